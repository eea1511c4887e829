"""The schema of the agent card of A2A 1.0; unknown fields are accepted, known fields have A2A's types.

Every valid card converts to the `AgentCard` message: JSON names only, no empty required field, at most one case of
each choice. Source: A2A protocol 1.0, sections 4.4 and 8.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationInfo, field_validator, model_validator
from pydantic.alias_generators import to_camel

_MAX_ENTRIES = 256

_UNSAFE_URL = re.compile(
    r"[\x00-\x20\x7f-\xa0\u2028-\u202e\u2066-\u2069]|^(?:javascript|vbscript|data|blob|file):", re.IGNORECASE
)

Text = Annotated[str, StringConstraints(max_length=16_384)]
Required = Annotated[str, StringConstraints(min_length=1, max_length=16_384)]
Texts = Annotated[list[Text], Field(max_length=_MAX_ENTRIES)]
RequiredTexts = Annotated[list[Required], Field(min_length=1, max_length=_MAX_ENTRIES)]
Scopes = dict[Text, Text]


class CardPart(BaseModel):
    """Base of all parts of a card: strict types, JSON names, unknown fields ignored."""

    # The validator is built with the first card, which saves 15 ms at the start.
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, alias_generator=to_camel, defer_build=True)

    is_choice: ClassVar[bool] = False

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, data: object) -> object:
        """Refuse objects that do not convert to a message: proto names, extensions, several cases of a choice."""
        if isinstance(data, Mapping):
            names = {name: str(field.alias) for name, field in cls.model_fields.items()}
            for name, alias in names.items():
                if name != alias and name in data:
                    message = f"spells {name!r}, which is {alias!r} in the JSON of A2A"
                    raise ValueError(message)
            if any(isinstance(name, str) and name.startswith("[") for name in data):
                message = "holds a name in brackets, which stands for a protobuf extension; cards have none"
                raise ValueError(message)
            if cls.is_choice and sum(data.get(alias) is not None for alias in names.values()) != 1:
                message = f"must hold exactly one of {', '.join(names.values())}"
                raise ValueError(message)
        return data

    @field_validator("*", mode="after")
    @classmethod
    def _check_links(cls, value: object, info: ValidationInfo) -> object:
        """Refuse addresses that a page must not show as links: other cards and the console are read by people."""
        name = info.field_name or ""
        if isinstance(value, str) and name.rpartition("_")[2] in {"url", "uri"} and _UNSAFE_URL.search(value):
            message = "is no address: it must have no spaces and no control characters, and no scheme that runs code"
            raise ValueError(message)
        return value


class StringList(CardPart):
    """A list of strings."""

    list_: Texts | None = Field(default=None, alias="list")


class SecurityRequirement(CardPart):
    """Schemes that are needed together, with their scopes."""

    schemes: dict[Text, StringList] | None = None


class AgentInterface(CardPart):
    """One way to reach the agent."""

    url: Required
    protocol_binding: Required
    tenant: Text | None = None
    protocol_version: Required


class AgentProvider(CardPart):
    """Who runs the agent."""

    url: Required
    organization: Required


class AgentExtension(CardPart):
    """An extension of the protocol."""

    uri: Text | None = None
    description: Text | None = None
    required: bool | None = None
    params: dict[str, Any] | None = None


class AgentCapabilities(CardPart):
    """Optional parts of the protocol."""

    streaming: bool | None = None
    push_notifications: bool | None = None
    extensions: Annotated[list[AgentExtension], Field(max_length=_MAX_ENTRIES)] | None = None
    extended_agent_card: bool | None = None


class AgentSkill(CardPart):
    """Something the agent can do."""

    id: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    name: Required
    description: Required
    tags: RequiredTexts
    examples: Texts | None = None
    input_modes: Texts | None = None
    output_modes: Texts | None = None
    security_requirements: Annotated[list[SecurityRequirement], Field(max_length=_MAX_ENTRIES)] | None = None


class AgentCardSignature(CardPart):
    """A JSON Web Signature over the card."""

    protected: Required
    signature: Required
    header: dict[str, Any] | None = None


class APIKeySecurityScheme(CardPart):
    """A key in a header, query or cookie."""

    description: Text | None = None
    location: Required
    name: Required


class HTTPAuthSecurityScheme(CardPart):
    """An HTTP Authorization scheme."""

    description: Text | None = None
    scheme: Required
    bearer_format: Text | None = None


class OpenIdConnectSecurityScheme(CardPart):
    """OpenID Connect."""

    description: Text | None = None
    open_id_connect_url: Required


class MutualTlsSecurityScheme(CardPart):
    """Mutual TLS."""

    description: Text | None = None


class AuthorizationCodeFlow(CardPart):
    """OAuth 2.0 authorization code flow."""

    authorization_url: Required
    token_url: Required
    refresh_url: Text | None = None
    scopes: Scopes = Field(default_factory=dict)
    pkce_required: bool | None = None


class ClientCredentialsFlow(CardPart):
    """OAuth 2.0 client credentials flow."""

    token_url: Required
    refresh_url: Text | None = None
    scopes: Scopes = Field(default_factory=dict)


class ImplicitFlow(CardPart):
    """OAuth 2.0 implicit flow."""

    authorization_url: Text | None = None
    refresh_url: Text | None = None
    scopes: Scopes | None = None


class PasswordFlow(CardPart):
    """OAuth 2.0 password flow."""

    token_url: Text | None = None
    refresh_url: Text | None = None
    scopes: Scopes | None = None


class DeviceCodeFlow(CardPart):
    """OAuth 2.0 device code flow."""

    device_authorization_url: Required
    token_url: Required
    refresh_url: Text | None = None
    scopes: Scopes = Field(default_factory=dict)


class OAuthFlows(CardPart):
    """A flow of OAuth 2.0."""

    is_choice: ClassVar[bool] = True

    authorization_code: AuthorizationCodeFlow | None = None
    client_credentials: ClientCredentialsFlow | None = None
    implicit: ImplicitFlow | None = None
    password: PasswordFlow | None = None
    device_code: DeviceCodeFlow | None = None


class OAuth2SecurityScheme(CardPart):
    """OAuth 2.0."""

    description: Text | None = None
    flows: OAuthFlows
    oauth2_metadata_url: Text | None = None


class SecurityScheme(CardPart):
    """A way to authenticate."""

    is_choice: ClassVar[bool] = True

    api_key_security_scheme: APIKeySecurityScheme | None = None
    http_auth_security_scheme: HTTPAuthSecurityScheme | None = None
    oauth2_security_scheme: OAuth2SecurityScheme | None = None
    open_id_connect_security_scheme: OpenIdConnectSecurityScheme | None = None
    mtls_security_scheme: MutualTlsSecurityScheme | None = None


class AgentCard(CardPart):
    """The card of A2A 1.0."""

    name: Required
    description: Required
    supported_interfaces: Annotated[list[AgentInterface], Field(min_length=1, max_length=_MAX_ENTRIES)]
    provider: AgentProvider | None = None
    version: Required
    documentation_url: Text | None = None
    capabilities: AgentCapabilities
    security_schemes: Annotated[dict[Text, SecurityScheme], Field(max_length=_MAX_ENTRIES)] | None = None
    security_requirements: Annotated[list[SecurityRequirement], Field(max_length=_MAX_ENTRIES)] | None = None
    default_input_modes: RequiredTexts
    default_output_modes: RequiredTexts
    skills: Annotated[list[AgentSkill], Field(min_length=1, max_length=_MAX_ENTRIES)]
    signatures: Annotated[list[AgentCardSignature], Field(max_length=_MAX_ENTRIES)] | None = None
    icon_url: Text | None = None

    @field_validator("skills")
    @classmethod
    def _check_skill_ids(cls, skills: list[AgentSkill]) -> list[AgentSkill]:
        """Refuse two skills with the same id."""
        if len({skill.id for skill in skills}) != len(skills):
            message = "must not use one id for two skills"
            raise ValueError(message)
        return skills


class ReasoningParams(BaseModel):
    """The parameters of the reasoning extension: the agent's methods and its own parameters per strategy."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True, defer_build=True)

    supported_methods: Texts = Field(default_factory=list)
    strategy_config: dict[str, dict[str, Any]] = Field(default_factory=dict, max_length=_MAX_ENTRIES)


class SmallCard(ReasoningParams):
    """The card of seed 000 (Feature 5): an id, capabilities, methods; other fields are accepted."""

    id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")] | None = None
    name: Required | None = None
    description: Required | None = None
    version: Required | None = None
    capabilities: Annotated[
        list[Annotated[str, StringConstraints(min_length=1, max_length=256)]], Field(max_length=_MAX_ENTRIES)
    ]
