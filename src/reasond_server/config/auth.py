"""The section [auth]: accepted tokens and the permissions of roles; reads the configured keys."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import field
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr, StringConstraints

from reasond_server.config.section import EnvironmentName, Section
from reasond_server.errors.base import Violation
from reasond_server.types.policy_sections import freeze
from reasond_server.types.values import value

if TYPE_CHECKING:
    from pathlib import Path


class KeyFileError(Exception):
    """A file cannot be used; `description` continues a sentence that begins with its setting."""

    def __init__(self, description: str) -> None:
        super().__init__(description)
        self.description = description


def read_key_file(path: Path, *, most: int) -> bytes:
    """Return the content of a regular file of at most `most` bytes.

    Raises:
        KeyFileError: the file is missing, may not be read, is larger, or is no regular file.
    """
    try:
        # A plain open of a pipe would wait for its writer, possibly for ever.
        with open(path, "rb", opener=_open_at_once) as file:
            is_regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            content = file.read(most + 1) if is_regular else b""
    except (OSError, ValueError):
        message = "names a file that cannot be read; it must exist and be readable for the server"
        raise KeyFileError(message) from None
    if not is_regular:
        raise KeyFileError("names no regular file, but a pipe or a device")
    if len(content) > most:
        raise KeyFileError(f"names a file of more than {most} bytes, which is no key")
    return content


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


_DAY_S = 86_400
_LOOPBACK_URL = re.compile(r"http://(localhost|127\.0\.0\.1|\[::1\])(:\d+)?(/[^\s@?#]*)?")
_HTTPS_URL = re.compile(r"https://[^\s@/?#]+(/[^\s@#]*)?")

KeyAlgorithm = Literal[
    "HS256", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
ClaimName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_./:-]{1,128}$")]
Word = Annotated[str, StringConstraints(min_length=1, max_length=256, pattern=r"^\S+$")]
# Spaces are allowed: tokens and certificates may contain the name of a person.
TokenId = Annotated[str, StringConstraints(min_length=1, max_length=8192)]
Subject = Annotated[str, StringConstraints(min_length=1, max_length=2048)]
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
    """The permissions that a role grants to its tokens."""

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
    """The permissions of callers whose client certificate has a SPIFFE id with a matching path."""

    path: Annotated[str, StringConstraints(pattern=r"^/[A-Za-z0-9._/*-]{1,1024}$")] = Field(
        description='Path of the ids, such as "/ns/prod/sa/worker"; * stands for any characters.'
    )
    tenant: str = Field(default="", max_length=128, description="Their tenant; empty: each is a tenant of its own.")
    permissions: tuple[Word, ...] = Field(default=(), strict=False, max_length=64, description="Their permissions.")
    roles: tuple[Word, ...] = Field(default=(), strict=False, max_length=64, description="Their roles.")


def _check_jwks_url(value: str) -> str:
    """Return `value` if it is an allowed URL for fetching keys, or empty."""
    if value and not (_HTTPS_URL.fullmatch(value) or _LOOPBACK_URL.fullmatch(value)):
        message = 'must start with "https://" (or "http://" on this machine) and hold no user, password or fragment'
        raise ValueError(message)
    return value


class AuthSettings(Section):
    """The accepted tokens and their permissions."""

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
    jwks_url: Annotated[str, AfterValidator(_check_jwks_url)] = Field(
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
    revoked_ids: tuple[TokenId, ...] = Field(
        default=(),
        strict=False,
        max_length=10_000,
        description="Ids (claim jti) of tokens that are refused; read again while the server runs, and then a file "
        "without this key changes nothing.",
    )
    inactive_subjects: tuple[Subject, ...] = Field(
        default=(),
        strict=False,
        max_length=10_000,
        description="Subjects (claim sub, or SPIFFE id of a certificate) that are refused; read again as revoked_ids.",
    )
    api_keys_file: str = Field(
        default="",
        max_length=4096,
        description="File of the API keys that `reasond keys` makes, relative to the configuration file; it holds only "
        "their hashes and is read again while the server runs. Empty: no API keys.",
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
    roles: Annotated[Mapping[RoleName, RoleSettings], AfterValidator(freeze)] = Field(
        default_factory=lambda: MappingProxyType({}),
        description="Roles by name, each a table of permissions and strategies.",
    )
    agents: Annotated[Mapping[RoleName, AgentAccountSettings], AfterValidator(freeze)] = Field(
        default_factory=lambda: MappingProxyType({}),
        description="Agents by id that get tokens from POST /api/v1/auth/token, each a table of secret_hash, "
        "permissions, roles and tenant.",
    )


MIN_SECRET_BYTES = 32

_MAX_SECRET_BYTES = 4096
_MAX_PEM_BYTES = 16_384
_SECRET_SOURCES = ("secret", "secret_env", "secret_file")
_MIN_DISTINCT = 8
_MIN_UNKNOWN = 16
# Placeholders of tutorials, tools and our own documents: a secret must be strong enough without them.
_KNOWN_WORDS = re.compile(
    r"change[-_ ]?(me|this|it)?|secret|passw(or)?d|passphrase|example|default|replace|placeholder|eyJhbGciOi\w*"
    r"|reasond|test(ing)?|insecure|dummy|sample|token|super|development|12345678(90?)?|abcdefgh(ijklmnop)?(qrstuvwxyz)?"
    r"|qwerty(uiop)?|hmac|hs256|signing|\b(my|your|this|with|the|a|an|is|not|please|use|string|at|least|bits?|bytes?"
    r"|256|32|64|long|enough|key|jwt|dev|agent|random|value|me|in|production|prod|characters|for|do|very|and|of|to)\b",
    re.IGNORECASE,
)


@value
class AuthKey:
    """A key with its secret, or with its public key in PEM; the secret does not show in `repr`."""

    id: str
    algorithm: KeyAlgorithm
    secret: SecretStr = field(default_factory=lambda: SecretStr(""))
    public_key: bytes = b""


def read_auth_keys(
    keys: Sequence[AuthKeySettings], *, environ: Mapping[str, str], folder: Path
) -> tuple[tuple[AuthKey, ...], tuple[Violation, ...]]:
    """Return `keys` with their secrets, and their problems.

    Relative names of `secret_file` are resolved against `folder`.
    """
    found: list[AuthKey] = []
    problems: list[Violation] = []
    for index, key in enumerate(keys):
        field = f"auth.keys[{index}]"
        if key.id in {other.id for other in keys[:index]}:
            problems.append(Violation(field=f"{field}.id", description=f"{key.id!r} stands for another key already"))
        try:
            if key.algorithm == "HS256":
                secret = SecretStr(_read_secret(key, environ=environ, folder=folder))
                found.append(AuthKey(id=key.id, algorithm=key.algorithm, secret=secret))
            else:
                public = _read_public_key(key, folder=folder)
                found.append(AuthKey(id=key.id, algorithm=key.algorithm, public_key=public))
        except _SecretError as error:
            problems.append(Violation(field=f"{field}{error.suffix}", description=error.description))
    return tuple(found), tuple(problems)


class _SecretError(Exception):
    """A secret cannot be read or is too weak; `suffix` is the part of the key that is to blame."""

    def __init__(self, suffix: str, description: str) -> None:
        super().__init__(description)
        self.suffix = suffix
        self.description = description


def _read_secret(key: AuthKeySettings, *, environ: Mapping[str, str], folder: Path) -> str:
    """Return the secret of `key`."""
    named = [name for name in _SECRET_SOURCES if getattr(key, name)]
    if key.public_key_file:
        raise _SecretError(".public_key_file", "has no effect with HS256, which signs and verifies with one secret")
    if len(named) != 1:
        message = f"must set exactly one of secret, secret_env and secret_file, not {' and '.join(named) or 'none'}"
        raise _SecretError("", message)
    source = f".{named[0]}"
    if key.secret:
        secret = key.secret.get_secret_value()
    elif key.secret_env:
        secret = environ.get(key.secret_env, "")
        if not secret:
            raise _SecretError(source, f"names the environment variable {key.secret_env}, which is not set")
    else:
        secret = _decode_secret(_read(folder / key.secret_file, ".secret_file", most=_MAX_SECRET_BYTES))
    weakness = find_weakness(secret)
    if weakness:
        raise _SecretError(source, weakness)
    return secret


def _read_public_key(key: AuthKeySettings, *, folder: Path) -> bytes:
    """Return the PEM text of a public key."""
    named = [name for name in _SECRET_SOURCES if getattr(key, name)]
    if named:
        raise _SecretError(
            f".{named[0]}", f"has no effect with {key.algorithm}; a server that verifies needs public_key_file alone"
        )
    if not key.public_key_file:
        raise _SecretError(".public_key_file", f"is empty, but {key.algorithm} needs it")
    return _read(folder / key.public_key_file, ".public_key_file", most=_MAX_PEM_BYTES)


def _read(path: Path, suffix: str, *, most: int) -> bytes:
    """Return the content of a key's file."""
    try:
        return read_key_file(path, most=most)
    except KeyFileError as error:
        raise _SecretError(suffix, error.description) from None


def _decode_secret(content: bytes) -> str:
    """Return the text of a secret's file without its last line end."""
    try:
        text = content.decode()
    except ValueError:
        raise _SecretError(".secret_file", "names a file that is no UTF-8 text") from None
    return text.removesuffix("\n").removesuffix("\r")


def find_weakness(secret: str) -> str:
    """Return why `secret` is too weak to sign tokens, without quoting it; empty if it is strong enough."""
    remedy = "make one with: python -c 'import secrets; print(secrets.token_urlsafe(48))'"
    length = len(secret.encode(errors="replace"))
    if length < MIN_SECRET_BYTES:
        return f"has {length} bytes, fewer than the {MIN_SECRET_BYTES} that HS256 needs (RFC 7518); {remedy}"
    unknown = re.sub(r"[\W_]", "", _KNOWN_WORDS.sub("", secret.replace("_", "-")))
    if len(set(secret)) < _MIN_DISTINCT or len(unknown) < _MIN_UNKNOWN:
        return f"is a well-known or repetitive text that anybody can guess; {remedy}"
    return ""
