"""Where the secrets that sign tokens come from, and which of them are too weak to be used."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import SecretStr

from reasond_server.errors import Violation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from reasond_server.config.models import AuthKeySettings

MIN_SECRET_BYTES = 32

_MAX_FILE_BYTES = 4096
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
    """A key with its secret; the secret does not show in `repr`."""

    id: str
    algorithm: Literal["HS256"]
    secret: SecretStr


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
            secret = _secret_of(key, environ=environ, folder=folder)
        except _SecretError as error:
            problems.append(Violation(field=f"{field}{error.suffix}", description=error.description))
        else:
            found.append(AuthKey(id=key.id, algorithm=key.algorithm, secret=SecretStr(secret)))
    return tuple(found), tuple(problems)


class _SecretError(Exception):
    """A secret cannot be read or is too weak; `suffix` is the part of the key that says so."""

    def __init__(self, suffix: str, description: str) -> None:
        super().__init__(description)
        self.suffix = suffix
        self.description = description


def _secret_of(key: AuthKeySettings, *, environ: Mapping[str, str], folder: Path) -> str:
    """Return the secret of `key`."""
    named = [name for name in ("secret", "secret_env", "secret_file") if getattr(key, name)]
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
        secret = _read(folder / key.secret_file)
    weakness = weakness_of(secret)
    if weakness:
        raise _SecretError(source, weakness)
    return secret


def _read(path: Path) -> str:
    """Return the text of the file of a secret without its last line end."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        text = content.decode()
    except (OSError, ValueError):
        message = "names a file that cannot be read as UTF-8 text; it must exist and be readable for the server"
        raise _SecretError(".secret_file", message) from None
    if len(content) > _MAX_FILE_BYTES:
        raise _SecretError(".secret_file", f"names a file of more than {_MAX_FILE_BYTES} bytes, which is no secret")
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
