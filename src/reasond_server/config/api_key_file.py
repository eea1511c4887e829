"""The file of the API keys: who calls with which key, by the hash of the key; read by servers, written by commands."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AwareDatetime, Field, StringConstraints, ValidationError

from reasond_server.config.auth import KeyFileError, RoleName, Word, read_key_file
from reasond_server.config.section import Section
from reasond_server.errors.base import SettingsError, Violation, show

MOST_KEYS: Final = 2000
_MOST_BYTES: Final = 4 * 1024 * 1024
_FIELD: Final = "auth.api_keys_file"

KeyId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]{12}$")]
KeyHash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class ApiKeyRow(Section):
    """One key: the SHA-256 of its text, who calls with it and how long. `revoked` is when it was taken back."""

    id: KeyId
    sha256: KeyHash = Field(repr=False)
    subject: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    tenant: str = Field(default="", max_length=128)
    permissions: tuple[Word, ...] = Field(default=(), strict=False, max_length=64)
    roles: tuple[RoleName, ...] = Field(default=(), strict=False, max_length=64)
    created: AwareDatetime
    expires: AwareDatetime | None = None
    revoked: AwareDatetime | None = None


class _Content(Section):
    version: Literal[1] = 1
    keys: tuple[ApiKeyRow, ...] = Field(strict=False, max_length=MOST_KEYS)


def read_api_keys(path: Path) -> tuple[ApiKeyRow, ...]:
    """Return the keys of the file at `path`.

    Raises:
        SettingsError: the file cannot be read, is damaged, or has two keys with one id.
    """
    try:
        content = read_key_file(path, most=_MOST_BYTES)
    except KeyFileError as error:
        # In the description, because of several problems of a configuration only that is shown.
        description = f"{error.description}; `reasond keys create` makes one"
        raise _build_error(description, "Make it with `reasond keys create`, or correct the name.") from None
    try:
        rows = _Content.model_validate_json(content).keys
    except ValidationError as error:
        place = ".".join(map(str, error.errors(include_url=False)[0]["loc"]))
        wrong = f"; the first thing wrong is {show(place)}" if place else ""
        raise _build_error(
            f"names a file that is no list of API keys of this release{wrong}",
            "Restore it from a copy; `reasond keys` writes it whole, so it was changed otherwise.",
        ) from None
    if len({row.id for row in rows}) < len(rows):
        raise _build_error("names a file in which two keys have one id", "Remove one of them.")
    return rows


@contextmanager
def changing(path: Path) -> Generator[list[ApiKeyRow], None, None]:
    """Let the caller change the list of the keys at `path`, then write it in one go; two commands wait for each other.

    A file that does not exist counts as empty. Readers see the whole old or the whole new file. A
    new one has mode 0600; one that exists keeps its owner and mode.

    Raises:
        SettingsError: the file cannot be read or written, or has too many keys afterwards.
    """
    folder = path.absolute().parent
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        raise _build_error(f"lies in {show(str(folder))}, which cannot be opened", "Make the folder.") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = list(read_api_keys(path)) if os.path.lexists(path) else []
        yield rows
        if len(rows) > MOST_KEYS:
            raise _build_error(f"would hold {len(rows)} keys, more than {MOST_KEYS}", "Remove keys that have ended.")
        _write(path, rows)
    finally:
        os.close(lock)


def _write(path: Path, rows: Sequence[ApiKeyRow]) -> None:
    text = _Content(keys=tuple(rows)).model_dump_json(indent=2) + "\n"
    # A link, such as that of a mounted secret, stays a link.
    target = path.resolve()
    try:
        # mkstemp makes the file with mode 0600.
        number, fresh = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        try:
            with os.fdopen(number, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                _keep_owner(file.fileno(), target)
                os.fsync(file.fileno())
            Path(fresh).replace(target)
        finally:
            with suppress(OSError):
                Path(fresh).unlink()
    except OSError:
        raise _build_error("names a file that cannot be written", "Check the folder and the disk.") from None


def _keep_owner(number: int, old: Path) -> None:
    """Give the new file the owner and mode of the old one: the server may run as another user than the command."""
    with suppress(FileNotFoundError, PermissionError):
        found = old.stat()
        os.fchmod(number, stat.S_IMODE(found.st_mode))
        os.fchown(number, found.st_uid, found.st_gid)


def _build_error(description: str, remedy: str) -> SettingsError:
    return SettingsError(
        f"{_FIELD} {description}", remedy=remedy, violations=[Violation(field=_FIELD, description=description)]
    )
