"""`reasond token` and `reasond secret-hash`: a token signed by a configured key, and the hash of an agent's secret."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from getpass import getpass
from typing import TYPE_CHECKING, Annotated

import typer

from reasond_server.access.agent_secrets import MAX_SECRET_CHARACTERS, MIN_SECRET_CHARACTERS, hash_secret
from reasond_server.access.permissions import EXECUTE, KNOWN, find_unknown_permissions
from reasond_server.assembly.verifiers import build_minter, read_signing_key
from reasond_server.cli.options import Config, Environ, command, parse_lifetime
from reasond_server.cli.outcome import CommandError, ExitCode, warn
from reasond_server.cli.terminal import write
from reasond_server.config import AuthKey, load
from reasond_server.errors.request import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.access.token_keys import SigningKey

app = typer.Typer(rich_markup_mode=None)


@command(app, "token")
def mint(
    *,
    subject: Annotated[str, typer.Option(metavar="NAME", help="Whom the token stands for.")],
    permission: Annotated[
        list[str],
        typer.Option(metavar="NAME", help="What it permits, such as reasoning:execute; repeat for more than one."),
    ],
    tenant: Annotated[
        str | None, typer.Option(metavar="NAME", help="Whose executions it may see; else the subject's own.")
    ] = None,
    lifetime: Annotated[
        str, typer.Option(metavar="TIME", help="How long it lives, such as 90s, 30m, 1h or 1d.")
    ] = "1h",
    key: Annotated[
        str | None, typer.Option(metavar="ID", help="Key that signs it; else the first of [auth] keys.")
    ] = None,
    config: Config = None,
    environ: Environ,
) -> ExitCode:
    """Mint a token for development with a configured key; stdout gets the token alone."""
    lifetime_s = parse_lifetime(lifetime)
    loaded = load(config, environ)
    minter = build_minter(loaded.settings.auth, _choose_key(loaded.auth_keys, key))
    _require_lifetime(lifetime, lifetime_s, most_s=loaded.settings.auth.max_lifetime_s)
    for unknown in find_unknown_permissions(permission):
        warn(f"nothing asks for the permission {unknown!r}; known are {', '.join(KNOWN)}, {EXECUTE}:<strategy>")
    now = datetime.now(UTC)
    try:
        write(minter.mint(subject=subject, permissions=permission, lifetime_s=lifetime_s, now=now, tenant=tenant))
    except InvalidRequestError as error:
        raise CommandError(error.message, remedy=error.remedy, code=ExitCode.BAD_REQUEST) from None
    return ExitCode.OK


def _require_lifetime(text: str, lifetime_s: float, *, most_s: int) -> None:
    """Reject a lifetime below one second or above the configured maximum `most_s` (seconds)."""
    if not 1 <= lifetime_s <= most_s:
        raise CommandError(
            f"--lifetime {text.strip()[:40]} is not between 1 second and the {most_s} seconds of [auth] max_lifetime_s",
            remedy=f"Ask for --lifetime {most_s}s or less, and for a new token when it has expired.",
            code=ExitCode.BAD_REQUEST,
        )


def _choose_key(keys: Sequence[AuthKey], key_id: str | None) -> SigningKey:
    """Return the key with the id `key_id`, or the first one."""
    signing = [key for key in keys if key.algorithm == "HS256"]
    found = next((key for key in signing if key_id in {None, key.id}), None)
    if found is not None:
        return read_signing_key(found)
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


@command(app, "secret-hash")
def print_secret_hash() -> ExitCode:
    """Read a secret from the terminal or standard input, and print its argon2id hash for [auth.agents]."""
    secret = getpass("Secret: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
    if not MIN_SECRET_CHARACTERS <= len(secret) <= MAX_SECRET_CHARACTERS:
        raise CommandError(
            f"A secret must have {MIN_SECRET_CHARACTERS} to {MAX_SECRET_CHARACTERS} characters, got {len(secret)}",
            remedy="Make one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'",
            code=ExitCode.BAD_REQUEST,
        )
    write(hash_secret(secret))
    return ExitCode.OK
