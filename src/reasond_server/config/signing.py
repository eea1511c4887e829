"""Where the keys of tokens come from, and which secrets are too weak to be used."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pydantic import SecretStr

from reasond_server.errors import Violation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from reasond_server.config.auth import AuthKeySettings, KeyAlgorithm

MIN_SECRET_BYTES = 32

_MAX_SECRET_BYTES = 4096
_MAX_PEM_BYTES = 16_384
_SECRET_SOURCES = ("secret", "secret_env", "secret_file")
_MIN_DISTINCT = 8
_MIN_UNKNOWN = 16
# Placeholders of tutorials, tools and of our own documents: what is left without them has to carry the secret.
_KNOWN_WORDS = re.compile(
    r"change[-_ ]?(me|this|it)?|secret|passw(or)?d|passphrase|example|default|replace|placeholder|eyJhbGciOi\w*"
    r"|reasond|test(ing)?|insecure|dummy|sample|token|super|development|12345678(90?)?|abcdefgh(ijklmnop)?(qrstuvwxyz)?"
    r"|qwerty(uiop)?|hmac|hs256|signing|\b(my|your|this|with|the|a|an|is|not|please|use|string|at|least|bits?|bytes?"
    r"|256|32|64|long|enough|key|jwt|dev|agent|random|value|me|in|production|prod|characters|for|do|very|and|of|to)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthKey:
    """A key with its secret, or with its public key in PEM; the secret does not show in `repr`."""

    id: str
    algorithm: KeyAlgorithm
    secret: SecretStr = field(default_factory=lambda: SecretStr(""))
    public_key: bytes = b""


def read_auth_keys(
    keys: Sequence[AuthKeySettings], *, environ: Mapping[str, str], folder: Path
) -> tuple[tuple[AuthKey, ...], tuple[Violation, ...]]:
    """Return `keys` with their secrets, and what is wrong with them.

    `folder` is where relative names of `secret_file` start.
    """
    found: list[AuthKey] = []
    problems: list[Violation] = []
    for index, key in enumerate(keys):
        field = f"auth.keys[{index}]"
        if key.id in {other.id for other in keys[:index]}:
            problems.append(Violation(field=f"{field}.id", description=f"{key.id!r} stands for another key already"))
        try:
            if key.algorithm == "HS256":
                secret = SecretStr(_secret_of(key, environ=environ, folder=folder))
                found.append(AuthKey(id=key.id, algorithm=key.algorithm, secret=secret))
            else:
                public = _public_key_of(key, folder=folder)
                found.append(AuthKey(id=key.id, algorithm=key.algorithm, public_key=public))
        except _SecretError as error:
            problems.append(Violation(field=f"{field}{error.suffix}", description=error.description))
    return tuple(found), tuple(problems)


class _SecretError(Exception):
    """A secret cannot be read or is too weak; `suffix` is the part of the key that says so."""

    def __init__(self, suffix: str, description: str) -> None:
        super().__init__(description)
        self.suffix = suffix
        self.description = description


def _secret_of(key: AuthKeySettings, *, environ: Mapping[str, str], folder: Path) -> str:
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
        secret = _text_of(_read(folder / key.secret_file, ".secret_file", most=_MAX_SECRET_BYTES))
    weakness = weakness_of(secret)
    if weakness:
        raise _SecretError(source, weakness)
    return secret


def _public_key_of(key: AuthKeySettings, *, folder: Path) -> bytes:
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
    """Return what is in the file of a key."""
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except (OSError, ValueError):
        message = "names a file that cannot be read; it must exist and be readable for the server"
        raise _SecretError(suffix, message) from None
    if len(content) > most:
        raise _SecretError(suffix, f"names a file of more than {most} bytes, which is no key")
    return content


def _text_of(content: bytes) -> str:
    """Return the text of the file of a secret without its last line end."""
    try:
        text = content.decode()
    except ValueError:
        raise _SecretError(".secret_file", "names a file that is no UTF-8 text") from None
    return text.removesuffix("\n").removesuffix("\r")


def weakness_of(secret: str) -> str:
    """Return why `secret` must not sign tokens, without quoting it; empty if it may."""
    remedy = "make one with: python -c 'import secrets; print(secrets.token_urlsafe(48))'"
    length = len(secret.encode(errors="replace"))
    if length < MIN_SECRET_BYTES:
        return f"has {length} bytes, fewer than the {MIN_SECRET_BYTES} that HS256 needs (RFC 7518); {remedy}"
    unknown = re.sub(r"[\W_]", "", _KNOWN_WORDS.sub("", secret.replace("_", "-")))
    if len(set(secret)) < _MIN_DISTINCT or len(unknown) < _MIN_UNKNOWN:
        return f"is a well-known or repetitive text that anybody can guess; {remedy}"
    return ""
