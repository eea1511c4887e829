"""`reasond keys`: makes, lists and revokes API keys in the file that the configuration names."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from reasond_server.access.api_keys import create_key, find_key_id, hash_key
from reasond_server.access.permissions import EXECUTE, KNOWN, Roles, find_unknown_permissions
from reasond_server.assembly.verifiers import build_api_key
from reasond_server.cli.options import AsJson, Config, Environ, command, parse_lifetime
from reasond_server.cli.outcome import CommandError, ExitCode, warn
from reasond_server.cli.terminal import escape_controls, sanitize, write
from reasond_server.config import LoadedSettings, load
from reasond_server.config.api_key_file import ApiKeyRow, changing, read_api_keys
from reasond_server.errors.base import SettingsError
from reasond_server.errors.base import show as show_value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


app = typer.Typer(rich_markup_mode=None)
keys = typer.Typer(rich_markup_mode=None, no_args_is_help=True)
app.add_typer(keys, name="keys")

_LONGEST_S = 20 * 366 * 86_400


@command(keys, "create", short_help="Make a key and print it once.")
def create(
    *,
    subject: Annotated[str, typer.Option(metavar="NAME", help="Whom the key stands for.")],
    permission: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="What it permits, such as reasoning:execute; repeat for more than one."),
    ] = None,
    role: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="One of [auth.roles]; repeat for more than one.")
    ] = None,
    tenant: Annotated[
        str, typer.Option(metavar="NAME", help="Whose executions it may see; else the subject's own.")
    ] = "",
    lifetime: Annotated[
        str, typer.Option(metavar="TIME", help="How long it is valid, such as 12h or 90d; else until it is revoked.")
    ] = "",
    config: Config = None,
    environ: Environ,
) -> ExitCode:
    """Make an API key: its hash goes to the file of [auth] api_keys_file, stdout gets the key alone, and only now."""
    permissions, roles = tuple(permission or ()), tuple(role or ())
    loaded, path = _load(config, environ)
    _warn_of_useless(permissions, roles, loaded)
    made, now = create_key(), datetime.now(UTC).replace(microsecond=0)
    try:
        row = ApiKeyRow(
            id=made.id,
            sha256=hash_key(made.text),
            subject=subject,
            tenant=tenant,
            permissions=permissions,
            roles=roles,
            created=now,
            expires=_find_end(lifetime, now),
        )
        # Refuses what Pydantic cannot know: a subject or tenant that no token may name.
        build_api_key(row, Roles({}))
    except SettingsError as error:
        raise CommandError(error.message, remedy="Choose other names.", code=ExitCode.BAD_REQUEST) from None
    except ValueError:
        raise CommandError(
            "A subject has 1-256 characters, a tenant at most 128, a permission or role no spaces",
            remedy="See `reasond keys create --help`.",
            code=ExitCode.BAD_REQUEST,
        ) from None
    with changing(path) as rows:
        rows.append(row)
    write(f"key {made.id} is in {sanitize(str(path))}; what follows is shown only now:", stream=sys.stderr)
    write(made.text)
    _warn_of_others(loaded)
    return ExitCode.OK


@command(keys, "list", short_help="List the keys.")
def show(*, config: Config = None, environ: Environ, as_json: AsJson = False) -> ExitCode:
    """List the API keys with whom they stand for, what they permit and whether they are valid."""
    loaded, path = _load(config, environ)
    rows = read_api_keys(path) if path.exists() else ()
    now = datetime.now(UTC)
    if as_json:
        plain = [
            {**row.model_dump(mode="json", exclude={"sha256"}), "state": _describe_state(row, now)} for row in rows
        ]
        write(escape_controls(json.dumps(plain, indent=2, ensure_ascii=False)))
    else:
        write("\n".join(_format_key(row, now) for row in rows) or f"no keys in {sanitize(str(path))}")
    _warn_of_others(loaded)
    return ExitCode.OK


@command(keys, "revoke", short_help="Revoke a key.")
def revoke(
    key: Annotated[str, typer.Argument(metavar="ID", help="The id of the key, as `reasond keys list` shows it.")],
    *,
    config: Config = None,
    environ: Environ,
) -> ExitCode:
    """Revoke an API key; running servers refuse it within two seconds."""
    _, path = _load(config, environ)
    # A person may give the whole key.
    key_id = find_key_id(key) or key
    now = datetime.now(UTC).replace(microsecond=0)
    with changing(path) as rows:
        place = next((place for place, row in enumerate(rows) if row.id == key_id), None)
        if place is None:
            raise CommandError(
                f"There is no key {show_value(key_id[:40])} in {sanitize(str(path))}",
                remedy="`reasond keys list` shows the ids.",
                code=ExitCode.NOT_FOUND,
            )
        if rows[place].revoked is None:
            rows[place] = rows[place].model_copy(update={"revoked": now})
        row = rows[place]
    write(_format_key(row, now))
    return ExitCode.OK


def _load(config: Path | None, environ: Mapping[str, str]) -> tuple[LoadedSettings, Path]:
    """Return the configuration and the path of its file of keys."""
    loaded = load(config, environ)
    if loaded.api_keys_file is None:
        raise CommandError(
            "The configuration names no file for API keys",
            remedy='Add api_keys_file = "keys.json" to [auth]; a server that runs needs a restart for that, once.',
            code=ExitCode.BAD_REQUEST,
        )
    return loaded, loaded.api_keys_file


def _find_end(lifetime: str, now: datetime) -> datetime | None:
    if not lifetime:
        return None
    lifetime_s = parse_lifetime(lifetime)
    if not 1 <= lifetime_s <= _LONGEST_S:
        raise CommandError(
            f"--lifetime {lifetime.strip()[:40]} is not between 1 second and 20 years",
            remedy="Leave it out for a key that is valid until it is revoked.",
            code=ExitCode.BAD_REQUEST,
        )
    return now + timedelta(seconds=lifetime_s)


def _warn_of_useless(permissions: Sequence[str], roles: Sequence[str], loaded: LoadedSettings) -> None:
    """Refuse a key that permits nothing; warn of words that open nothing."""
    if not permissions and not roles:
        raise CommandError(
            "The key would permit nothing",
            remedy="Add --permission reasoning:execute, or a --role of [auth.roles].",
            code=ExitCode.BAD_REQUEST,
        )
    for permission in find_unknown_permissions(permissions):
        warn(f"nothing asks for the permission {permission!r}; known are {', '.join(KNOWN)}, {EXECUTE}:<strategy>")
    known = loaded.settings.auth.roles
    for role in roles:
        if role not in known:
            warn(f"there is no role {role!r}; [auth.roles] has {', '.join(known) or 'none'}")


def _warn_of_others(loaded: LoadedSettings) -> None:
    for warning in loaded.find_exposed_files():
        warn(warning)


def _describe_state(row: ApiKeyRow, now: datetime) -> str:
    if row.revoked is not None:
        return "revoked"
    return "expired" if row.expires is not None and row.expires <= now else "valid"


def _format_key(row: ApiKeyRow, now: datetime) -> str:
    """Return a line about a key: id, state, until when, subject, tenant, permissions and roles."""
    if row.revoked is not None:
        times = f" at {row.revoked:%Y-%m-%d %H:%M} UTC"
    else:
        times = f" until {row.expires:%Y-%m-%d %H:%M} UTC" if row.expires else " until revoked"
    tenant = f" of {row.tenant}" if row.tenant else ""
    may = ", ".join([*row.permissions, *(f"role {role}" for role in row.roles)])
    return sanitize(f"{row.id}  {_describe_state(row, now)}{times}  {row.subject}{tenant}: {may}")
