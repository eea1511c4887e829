"""`reasond token`: a token of a configured key, for development and for scripts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from reasond_server.access.permissions import ADMIN, EXECUTE, OPERATIONS, TOOLS
from reasond_server.access.tokens import TokenMinter
from reasond_server.cli.outcome import CommandError, ExitCode, warn
from reasond_server.cli.terminal import write
from reasond_server.config import load
from reasond_server.errors import InvalidRequestError
from reasond_server.verifiers import signing_key_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from reasond_server.access.keys import SigningKey
    from reasond_server.config import AuthKey, LoadedSettings

_UNITS_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_LIFETIME = re.compile(r"([0-9]{1,9})\s*([smhd]?)")
_ONE_STRATEGY = re.compile(rf"{EXECUTE}:[a-z][a-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRequest:
    """The token that the command line asks for."""

    subject: str
    permissions: tuple[str, ...]
    tenant: str | None
    lifetime: str
    key_id: str | None


def mint(request: TokenRequest, *, config: Path | None, environ: Mapping[str, str]) -> ExitCode:
    """Print a token on stdout, and nothing else there.

    Raises:
        SettingsError: the configuration is wrong.
        CommandError: there is no such key, or no server would accept such a token.
    """
    lifetime_s = parse_lifetime(request.lifetime)
    loaded = load(config, environ)
    key = _chosen_key(loaded.auth_keys, request.key_id)
    for permission in unknown_permissions(request.permissions):
        warn(f"nothing asks for the permission {permission!r}; known are {', '.join(_known())}, {EXECUTE}:<strategy>")
    try:
        write(
            _minter(loaded, key).mint(
                subject=request.subject,
                permissions=request.permissions,
                lifetime_s=lifetime_s,
                now=datetime.now(UTC),
                tenant=request.tenant,
            )
        )
    except InvalidRequestError as error:
        raise CommandError(error.message, remedy=error.remedy, code=ExitCode.BAD_REQUEST) from None
    return ExitCode.OK


def parse_lifetime(text: str) -> float:
    """Return the seconds that `text` stands for: a number, or one with s, m, h or d.

    Raises:
        CommandError: it is none.
    """
    match = _LIFETIME.fullmatch(text.strip())
    if match is None:
        raise CommandError(
            f"--lifetime {text[:40]!r} is no time", remedy="Such as 90s, 30m, 1h or 1d.", code=ExitCode.BAD_REQUEST
        )
    return float(int(match[1]) * _UNITS_S[match[2]])


def unknown_permissions(permissions: Sequence[str]) -> list[str]:
    """Return those of `permissions` that open nothing."""
    return [one for one in permissions if one not in _known() and not _ONE_STRATEGY.fullmatch(one)]


def _known() -> list[str]:
    return sorted({ADMIN, TOOLS, *OPERATIONS.values()})


def _chosen_key(keys: Sequence[AuthKey], key_id: str | None) -> SigningKey:
    """Return the key of that id, or the first one."""
    signing = [key for key in keys if key.algorithm == "HS256"]
    found = next((key for key in signing if key_id in {None, key.id}), None)
    if found is not None:
        return signing_key_of(found)
    if signing:
        names = ", ".join(repr(key.id) for key in signing)
        raise CommandError(
            f"[auth] keys has no key {str(key_id)[:80]!r} that signs",
            remedy=f"It has: {names}.",
            code=ExitCode.BAD_REQUEST,
        )
    raise CommandError(
        "There is no key to sign a token with: [auth] keys has none for HS256",
        remedy='Add a key such as { id = "main", secret_env = "REASOND_SIGNING_KEY" } to the configuration. '
        "A server under `reasond serve --dev` prints a token of its own.",
        code=ExitCode.BAD_REQUEST,
    )


def _minter(loaded: LoadedSettings, key: SigningKey) -> TokenMinter:
    auth = loaded.settings.auth
    return TokenMinter(key=key, issuer=auth.issuer, audience=auth.audience, max_lifetime_s=auth.max_lifetime_s)
