"""Agent cards of A2A 1.0: parses the cards of other agents and builds this server's.

A card is a JSON object with A2A's names. Unknown fields are accepted, known fields have A2A's types. Every valid card
converts to the `AgentCard` message: JSON names only, no empty required field, at most one case of each choice. Source:
A2A protocol 1.0, sections 4.4 and 8.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, from_json

from reasond_server.base.plugins import PLUGIN_NAME
from reasond_server.base.violations import describe_finding
from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.types.values import value

if TYPE_CHECKING:
    from reasond_server.types import Json

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


EXTENSION = "urn:reasond:reasoning:v1"
JSONRPC_BINDING = "urn:reasond:jsonrpc:v1"
GRPC_BINDING = "urn:reasond:grpc:v1"
EXECUTE_METHOD = "reasoning.execute"
MAX_DEPTH = 16

_A2A_VERSION = "1.0"
_A2A_BINDINGS = ("JSONRPC", "GRPC", "HTTP+JSON")
_TEXT_PLAIN = "text/plain"
_PREFIX = "reasoning.strategy."
_SHOWN_VIOLATIONS = 20


@value
class ParsedCard:
    """A valid card.

    `card` is an A2A card, `card_json` the given text, byte for byte. Only small cards set `agent_id`. `strategies` are
    in the agent's order of preference; `strategy_config` holds the agent's own parameters by strategy, unchecked.
    """

    card: Json
    card_json: str
    agent_id: str | None
    capabilities: Sequence[str]
    strategies: Sequence[str]
    supported_methods: Sequence[str]
    strategy_config: Mapping[str, Json]


def parse_card(text: str, *, max_bytes: int) -> ParsedCard:
    """Parse an A2A 1.0 card or a small card of seed 000, which is recognised by its list of capabilities.

    A duplicate key in an object is refused, because some parsers take the first one and others the last.

    Raises:
        InvalidRequestError: `text` is too large, not JSON or not a card; the violations name the fields.
    """
    data = _parse_json(text, max_bytes)
    try:
        if isinstance(data.get("capabilities"), list):
            small = SmallCard.model_validate(data)
            card, agent_id, params = _upgrade_card(small), small.id, ReasoningParams.model_validate(data)
            capabilities = tuple(dict.fromkeys(small.capabilities))
        else:
            known = AgentCard.model_validate(data)
            card, agent_id, params = data, None, _read_extension(known)
            capabilities = tuple(skill.id for skill in known.skills)
    except ValidationError as error:
        raise InvalidRequestError.of(*map(_to_violation, error.errors()[:_SHOWN_VIOLATIONS])) from None
    strategies = list_strategies(capabilities)
    _check_config(params.strategy_config, strategies)
    return ParsedCard(
        card=card,
        card_json=text,
        agent_id=agent_id,
        capabilities=capabilities,
        strategies=strategies,
        supported_methods=tuple(params.supported_methods),
        strategy_config=params.strategy_config,
    )


def list_strategies(capabilities: Sequence[str]) -> tuple[str, ...]:
    """Return the strategies that `capabilities` name as `reasoning.strategy.{name}`, in the same order."""
    names = (capability.removeprefix(_PREFIX) for capability in capabilities if capability.startswith(_PREFIX))
    return tuple(name for name in names if PLUGIN_NAME.fullmatch(name))


def build_server_card(
    *,
    name: str,
    version: str,
    grpc_url: str,
    jsonrpc_url: str,
    strategies: Mapping[str, str],
    supported_methods: Sequence[str],
    a2a_urls: Sequence[str] = (),
    has_push: bool = False,
) -> dict[str, Any]:
    """Build this server's card; `strategies` maps names to descriptions; an empty address omits its interface.

    `a2a_urls` are those of A2A's own bindings JSONRPC and HTTP+JSON; with them gRPC has its binding, too.
    With `has_push` clients may name receivers of push notifications.

    Equal arguments give equal cards. A2A requires at least one skill: without strategies, the skill is to list them.
    """
    skills = [_build_strategy_skill(strategy, strategies[strategy]) for strategy in sorted(strategies)]
    methods = list(dict.fromkeys((EXECUTE_METHOD, *supported_methods)))
    interfaces = [_build_interface(jsonrpc_url, JSONRPC_BINDING), _build_interface(grpc_url, GRPC_BINDING)]
    if a2a_urls:
        # Clients hand the address of gRPC to their channel, which takes no scheme.
        urls = (a2a_urls[0], grpc_url.rpartition("://")[2], a2a_urls[1])
        interfaces = [*map(_build_interface, urls, _A2A_BINDINGS), *interfaces]
    params = {
        "supported_methods": methods,
        "capabilities": [f"{_PREFIX}{strategy}" for strategy in sorted(strategies)],
    }
    return {
        "name": name,
        "description": "Works questions out with reasoning strategies over a language model, each step streamed.",
        "supportedInterfaces": [interface for interface in interfaces if interface["url"]],
        "version": version,
        "capabilities": {
            "streaming": True,
            "pushNotifications": has_push,
            "extensions": [_build_extension(params)],
        },
        "securitySchemes": {"bearer": {"httpAuthSecurityScheme": _build_bearer_scheme()}},
        "securityRequirements": [{"schemes": {"bearer": {"list": []}}}],
        "defaultInputModes": [_TEXT_PLAIN],
        "defaultOutputModes": [_TEXT_PLAIN],
        "skills": skills or [_build_listing_skill()],
    }


def encode_card(card: Json) -> str:
    """Return `card` as compact JSON; the order of its keys is kept."""
    return json.dumps(card, ensure_ascii=False, separators=(",", ":"))


def compute_etag(card_json: str) -> str:
    """Return a tag of 32 hexadecimal digits that changes with `card_json`; HTTP puts it in quotes."""
    return hashlib.sha256(card_json.encode()).hexdigest()[:32]


def _parse_json(text: str, max_bytes: int) -> dict[str, Any]:
    """Return the JSON object in `text`."""
    # If the characters alone exceed the limit, the text need not be encoded.
    if len(text) > max_bytes or len(text.encode(errors="replace")) > max_bytes:
        raise _build_json_error(f"must have at most {max_bytes} bytes")
    try:
        # The first parser is strict and bounded in depth. The second is neither, so it gets only accepted text; it
        # finds duplicate keys. It keeps numbers as text, because a long number takes long to parse.
        data = from_json(text.encode(), allow_inf_nan=False)
        json.loads(text, object_pairs_hook=_refuse_duplicates, parse_int=str, parse_float=str)
    except _DuplicateKeyError as error:
        raise _build_json_error(f"holds the key {error.key} twice in one object") from None
    except ValueError as error:
        place = re.search(r"at line \d+ column \d+$", str(error))
        raise _build_json_error(f"is not valid JSON{f' {place[0]}' if place else ''}") from None
    if not isinstance(data, dict):
        raise _build_json_error("must be a JSON object")
    _check_values(data)
    return data


class _DuplicateKeyError(Exception):
    """An object has a key twice."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = show(key)


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> None:
    """Refuse an object that has a key twice."""
    keys: set[str] = set()
    for key, _ in pairs:
        if key in keys:
            raise _DuplicateKeyError(key)
        keys.add(key)


def _check_values(data: object) -> None:
    """Refuse nesting that other protobuf readers refuse, and numbers that a double cannot represent."""
    level: list[Any] = [data]
    for _ in range(MAX_DEPTH):
        if any(isinstance(value, int | float) and not abs(value) <= sys.float_info.max for value in level):
            raise _build_json_error("holds a number beyond the range of a double")
        level = [inner for value in level for inner in _list_inner(value)]
    if level:
        raise _build_json_error(f"must not be nested more than {MAX_DEPTH} levels deep")


def _list_inner(value: object) -> Sequence[Any]:
    """Return the values in an object or a list."""
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else ()


def _build_json_error(description: str) -> InvalidRequestError:
    """Return the error for a text that is not a card."""
    return InvalidRequestError.at("card_json", description)


def _to_violation(error: ErrorDetails) -> Violation:
    """Convert an error of Pydantic to a `Violation`."""
    path = "card"
    for part in error["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return Violation(field=path[:256], description=describe_finding(error))


def _read_extension(card: AgentCard) -> ReasoningParams:
    """Return the parameters that `card` declares under the reasoning extension."""
    for extension in card.capabilities.extensions or ():
        if extension.uri == EXTENSION and extension.params:
            return ReasoningParams.model_validate(extension.params)
    return ReasoningParams()


def _check_config(config: Mapping[str, Json], strategies: Sequence[str]) -> None:
    """Refuse parameters for strategies that the agent does not offer."""
    extra = sorted(config.keys() - set(strategies))
    if extra:
        offered = ", ".join(strategies) or "none"
        description = f"sets parameters of {show(extra[0])}, but the card offers {offered[:200]}"
        raise InvalidRequestError.at("card.strategy_config", description)


def _upgrade_card(small: SmallCard) -> dict[str, Any]:
    """Convert `small` to an A2A card without an interface, because a small card has no address."""
    params = {"supported_methods": small.supported_methods, "strategy_config": small.strategy_config}
    return {
        "name": small.name or small.id or "agent",
        "description": small.description or "Registered with a card of capabilities only.",
        "supportedInterfaces": [],
        "version": small.version or "0",
        "capabilities": {"extensions": [{"uri": EXTENSION, "params": params}]},
        "defaultInputModes": [_TEXT_PLAIN],
        "defaultOutputModes": [_TEXT_PLAIN],
        "skills": [_build_skill(capability) for capability in dict.fromkeys(small.capabilities)],
    }


def _build_skill(capability: str) -> dict[str, Any]:
    """Return `capability` of a small card as a skill."""
    for strategy in list_strategies([capability]):
        return _build_strategy_skill(strategy, f"Reasons with the strategy {strategy}.")
    return {"id": capability, "name": capability, "description": capability, "tags": [capability]}


def _build_strategy_skill(strategy: str, description: str) -> dict[str, Any]:
    """Return `strategy` as a skill."""
    return {
        "id": f"{_PREFIX}{strategy}",
        "name": strategy,
        "description": description,
        "tags": ["reasoning", strategy],
    }


def _build_listing_skill() -> dict[str, Any]:
    """Return the skill of a server without strategies."""
    return {
        "id": "reasoning.list_strategies",
        "name": "list_strategies",
        "description": "Lists the strategies that are enabled here; at present there are none.",
        "tags": ["reasoning"],
    }


def _build_interface(url: str, binding: str) -> dict[str, str]:
    """Return an interface with a custom protocol binding (A2A 5.8)."""
    return {"url": url, "protocolBinding": binding, "protocolVersion": _A2A_VERSION}


def _build_extension(params: Json) -> dict[str, Any]:
    """Return the reasoning extension with `params`."""
    return {
        "uri": EXTENSION,
        "description": "Reasoning strategies and the methods to call them.",
        "required": False,
        "params": params,
    }


def _build_bearer_scheme() -> dict[str, str]:
    """Return the security scheme by which callers authenticate: a bearer token."""
    return {
        "description": "A JSON Web Token, or an API key, with the permission reasoning:execute.",
        "scheme": "Bearer",
        "bearerFormat": "JWT",
    }
