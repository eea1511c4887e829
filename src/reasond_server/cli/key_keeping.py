"""`reasond keys`: makes, lists and revokes API keys in the file that the configuration names."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from reasond_server.access.api_keys import create_key, find_key_id, hash_key
from reasond_server.access.permissions import EXECUTE, KNOWN, Roles, find_unknown_permissions
from reasond_server.assembly.verifiers import build_api_key
from reasond_server.cli.minting import parse_lifetime
from reasond_server.cli.outcome import CommandError, ExitCode, warn
from reasond_server.cli.terminal import printable, write
from reasond_server.config import load
from reasond_server.config.api_key_file import ApiKeyRow, changing, read_api_keys
from reasond_server.errors.base import SettingsError
from reasond_server.errors.base import show as show_value
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from reasond_server.config import LoadedSettings

_LONGEST_S = 20 * 366 * 86_400


@value
class WantedKey:
    """The key that the command line asks for; an empty `lifetime` is one without end."""

    subject: str
    permissions: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    tenant: str = ""
    lifetime: str = ""


def create(request: WantedKey, *, config: Path | None, environ: Mapping[str, str]) -> ExitCode:
    """Add a key to the file and print it to stdout; nothing else is written to stdout.

    Raises:
        SettingsError: the configuration is invalid, or the file cannot be read or written.
        CommandError: there is no file for keys, or no server would accept the key.
    """
    loaded, path = _load(config, environ)
    _warn_of_useless(request, loaded)
    made, now = create_key(), datetime.now(UTC).replace(microsecond=0)
    try:
        row = ApiKeyRow(
            id=made.id,
            sha256=hash_key(made.text),
            subject=request.subject,
            tenant=request.tenant,
            permissions=request.permissions,
            roles=request.roles,
            created=now,
            expires=_find_end(request.lifetime, now),
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
    write(f"key {made.id} is in {printable(str(path))}; what follows is shown only now:", stream=sys.stderr)
    write(made.text)
    _warn_of_others(loaded)
    return ExitCode.OK


def show(*, config: Path | None, environ: Mapping[str, str], as_json: bool) -> ExitCode:
    """Print the keys, never their hashes.

    Raises:
        SettingsError: the configuration is invalid, or the file cannot be read.
        CommandError: there is no file for keys.
    """
    loaded, path = _load(config, environ)
    rows = read_api_keys(path) if path.exists() else ()
    now = datetime.now(UTC)
    if as_json:
        plain = [{**row.model_dump(mode="json", exclude={"sha256"}), "state": _state_of(row, now)} for row in rows]
        write(json.dumps(plain, indent=2, ensure_ascii=False))
    else:
        write("\n".join(_line_of(row, now) for row in rows) or f"no keys in {printable(str(path))}")
    _warn_of_others(loaded)
    return ExitCode.OK


def revoke(key: str, *, config: Path | None, environ: Mapping[str, str]) -> ExitCode:
    """Revoke the key with the id `key`, which may also be the text of the whole key.

    Raises:
        SettingsError: the configuration is invalid, or the file cannot be read or written.
        CommandError: there is no file for keys, or no such key in it.
    """
    _, path = _load(config, environ)
    key_id = find_key_id(key) or key
    now = datetime.now(UTC).replace(microsecond=0)
    with changing(path) as rows:
        place = next((place for place, row in enumerate(rows) if row.id == key_id), None)
        if place is None:
            raise CommandError(
                f"There is no key {show_value(key_id[:40])} in {printable(str(path))}",
                remedy="`reasond keys list` shows the ids.",
                code=ExitCode.NOT_FOUND,
            )
        if rows[place].revoked is None:
            rows[place] = rows[place].model_copy(update={"revoked": now})
        row = rows[place]
    write(_line_of(row, now))
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


def _warn_of_useless(request: WantedKey, loaded: LoadedSettings) -> None:
    """Refuse a key that permits nothing; warn of words that open nothing."""
    if not request.permissions and not request.roles:
        raise CommandError(
            "The key would permit nothing",
            remedy="Add --permission reasoning:execute, or a --role of [auth.roles].",
            code=ExitCode.BAD_REQUEST,
        )
    for permission in find_unknown_permissions(request.permissions):
        warn(f"nothing asks for the permission {permission!r}; known are {', '.join(KNOWN)}, {EXECUTE}:<strategy>")
    roles = loaded.settings.auth.roles
    for role in request.roles:
        if role not in roles:
            warn(f"there is no role {role!r}; [auth.roles] has {', '.join(roles) or 'none'}")


def _warn_of_others(loaded: LoadedSettings) -> None:
    for warning in loaded.find_exposed_files():
        warn(warning)


def _state_of(row: ApiKeyRow, now: datetime) -> str:
    if row.revoked is not None:
        return "revoked"
    return "expired" if row.expires is not None and row.expires <= now else "valid"


def _line_of(row: ApiKeyRow, now: datetime) -> str:
    """Return a line about a key: id, state, until when, subject, tenant, permissions and roles."""
    if row.revoked is not None:
        times = f" at {row.revoked:%Y-%m-%d %H:%M} UTC"
    else:
        times = f" until {row.expires:%Y-%m-%d %H:%M} UTC" if row.expires else " until revoked"
    tenant = f" of {row.tenant}" if row.tenant else ""
    may = ", ".join([*row.permissions, *(f"role {role}" for role in row.roles)])
    return printable(f"{row.id}  {_state_of(row, now)}{times}  {row.subject}{tenant}: {may}")
