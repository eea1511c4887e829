"""The settings of [auth]: which tokens are accepted, what their roles grant, who is no longer welcome."""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003 - Pydantic reads the annotations when the models are made
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, StringConstraints

from reasond_server.config.sections import EnvironmentName, Section

_DAY_S = 86_400
_LOOPBACK_URL = re.compile(r"http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?(/[^\s@?#]*)?")
_HTTPS_URL = re.compile(r"https://[^\s@/?#]+(/[^\s@#]*)?")

KeyAlgorithm = Literal[
    "HS256", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
ClaimName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_./:-]{1,128}$")]
Word = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^\S+$")]
RoleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


class AuthKeySettings(Section):
    """A key that signs or verifies tokens: HS256 with one of three sources of its secret, else a public key."""

    id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")] = Field(
        description="Name of the key, which tokens may carry as kid."
    )
    algorithm: KeyAlgorithm = Field(default="HS256", description="Algorithm of the key; tokens cannot choose another.")
    secret: SecretStr | None = Field(
        default=None, strict=False, description="The secret itself, at least 32 bytes; better kept out of this file."
    )
    secret_env: EnvironmentName = Field(
        default="", description="Name of the environment variable that holds the secret."
    )
    secret_file: str = Field(
        default="",
        description="File that holds the secret, relative to the configuration file; its last line end is dropped.",
    )
    public_key_file: str = Field(
        default="",
        description="PEM file of a public key or certificate, relative to the configuration file; for every "
        "algorithm but HS256.",
    )


class RoleSettings(Section):
    """What a role grants to the tokens that carry it."""

    permissions: tuple[Word, ...] = Field(
        default=(), strict=False, max_length=64, description="Permissions that the role grants."
    )
    strategies: tuple[Word, ...] = Field(
        default=(),
        strict=False,
        max_length=64,
        description="Strategies that its reasoning:execute is good for; empty means all.",
    )


class AgentAccountSettings(Section):
    """An agent that gets tokens for its secret."""

    secret_hash: SecretStr = Field(
        strict=False, description="Argon2id hash of the agent's secret, as `reasond secret-hash` makes it."
    )
    permissions: tuple[Word, ...] = Field(
        default=(), strict=False, max_length=64, description="Permissions of its tokens."
    )
    roles: tuple[Word, ...] = Field(default=(), strict=False, max_length=64, description="Roles of its tokens.")
    tenant: str = Field(default="", max_length=128, description="Its tenant; empty: it is a tenant of its own.")


class PeerSettings(Section):
    """What callers may whose client certificate has a SPIFFE id of a matching path."""

    path: Annotated[str, StringConstraints(pattern=r"^/[A-Za-z0-9._/*-]{1,1024}$")] = Field(
        description='Path of the ids, such as "/ns/prod/sa/worker"; * stands for any characters.'
    )
    tenant: str = Field(default="", max_length=128, description="Their tenant; empty: each is a tenant of its own.")
    permissions: tuple[Word, ...] = Field(default=(), strict=False, max_length=64, description="Their permissions.")
    roles: tuple[Word, ...] = Field(default=(), strict=False, max_length=64, description="Their roles.")


def _jwks_url(value: str) -> str:
    """Return `value` if it is an address that keys may come from, or empty."""
    if value and not (_HTTPS_URL.fullmatch(value) or _LOOPBACK_URL.fullmatch(value)):
        message = 'must start with "https://" (or "http://" on this machine) and hold no user, password or fragment'
        raise ValueError(message)
    return value


def _frozen_roles(roles: Mapping[str, RoleSettings]) -> Mapping[str, RoleSettings]:
    return MappingProxyType(dict(roles))


def _frozen_agents(agents: Mapping[str, AgentAccountSettings]) -> Mapping[str, AgentAccountSettings]:
    return MappingProxyType(dict(agents))


class AuthSettings(Section):
    """Which tokens are accepted, and what they may do."""

    issuer: str = Field(
        default="reasond", min_length=1, max_length=256, description="The claim iss that tokens must carry."
    )
    audience: str = Field(
        default="reasond", min_length=1, max_length=256, description="The claim aud that tokens must carry."
    )
    keys: tuple[AuthKeySettings, ...] = Field(
        default=(),
        strict=False,
        max_length=16,
        description="Keys whose tokens are accepted, each a table of id, algorithm and one of secret, secret_env, "
        "secret_file, or public_key_file; the first HS256 one signs the tokens of `reasond token`.",
    )
    jwks_url: Annotated[str, AfterValidator(_jwks_url)] = Field(
        default="", max_length=2048, description="Address of the issuer's JSON Web Key Set; empty for none."
    )
    leeway_s: int = Field(default=30, ge=0, le=30, description="Seconds by which clocks may differ.")
    max_lifetime_s: int = Field(
        default=_DAY_S, ge=60, le=_DAY_S, description="Longest lifetime of a token (exp - iat) in seconds."
    )
    required_type: str = Field(
        default="", max_length=64, description='The header typ that tokens must carry, such as "at+jwt"; empty for any.'
    )
    tenant_claim: ClaimName = Field(default="tenant", description="Claim that names the tenant.")
    permissions_claim: ClaimName = Field(
        default="permissions", description='Claim that lists permissions; "scope" reads words with spaces between.'
    )
    roles_claim: ClaimName = Field(default="roles", description="Claim that lists roles.")
    revoked_ids: tuple[Word, ...] = Field(
        default=(),
        strict=False,
        max_length=10_000,
        description="Ids (claim jti) of tokens that are refused; read again while the server runs.",
    )
    inactive_subjects: tuple[Word, ...] = Field(
        default=(),
        strict=False,
        max_length=10_000,
        description="Subjects (claim sub) whose tokens are refused; read again while the server runs.",
    )
    verified_kept_s: float = Field(
        default=60.0, ge=0, le=60, description="Seconds that a verified token is not verified again; 0 is never."
    )
    trust_domain: Annotated[str, StringConstraints(pattern=r"^[a-z0-9._-]{0,255}$")] = Field(
        default="", description="SPIFFE trust domain whose client certificates say who calls; empty for none."
    )
    peers: tuple[PeerSettings, ...] = Field(
        default=(),
        strict=False,
        max_length=256,
        description="What callers with a client certificate may, each a table of path, tenant, permissions and roles; "
        "the first whose path matches counts.",
    )
    agent_token_lifetime_s: int = Field(
        default=3600, ge=60, le=_DAY_S, description="Seconds that the tokens of auth.agents live."
    )
    roles: Annotated[Mapping[RoleName, RoleSettings], AfterValidator(_frozen_roles)] = Field(
        default_factory=lambda: MappingProxyType({}),
        description="Roles by name, each a table of permissions and strategies.",
    )
    agents: Annotated[Mapping[RoleName, AgentAccountSettings], AfterValidator(_frozen_agents)] = Field(
        default_factory=lambda: MappingProxyType({}),
        description="Agents by id that get tokens from POST /api/v1/auth/token, each a table of secret_hash, "
        "permissions, roles and tenant.",
    )
