"""Reads the configuration from the file and the environment, each value with its origin; watches the file."""

from __future__ import annotations

import asyncio
import logging
import re
import stat
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from reasond_server.config.auth import AuthKey, read_auth_keys
from reasond_server.config.checks import cross_check
from reasond_server.config.problems import build_settings_error, explain, find_doubtful, join_key
from reasond_server.config.reference import is_text_key, list_key_docs
from reasond_server.config.settings import Settings
from reasond_server.errors.base import SettingsError, Violation
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydantic_core import ErrorDetails


_log = logging.getLogger("reasond.config")
_PREFIX = "REASOND__"
_FILE_VARIABLE = "REASOND_CONFIG"
_DEFAULT_FILE = "config.toml"
_MAX_FILE_BYTES = 1024 * 1024
_DEFAULT = "default"
_HEADER = re.compile(r"\s*\[(\[?)([^\[\]=]+)\]")
_ASSIGNMENT = re.compile(r"""\s*([\w."' -]+?)\s*=""")
# Twice the depth of any key; bounded because tables are walked recursively.
_MAX_DEPTH = 16
# The group may read: containers often rely on that.
_OF_OTHERS = stat.S_IRWXO | stat.S_IWGRP


@value
class LoadedSettings:
    """The configuration and the origin of each dotted key.

    The values of `origins` are "default", "file <name>, line <number>" or "environment NAME"; `auth_keys` are
    `settings.auth.keys` with their secrets; `file` is the path that was read, None if there was no file.
    """

    settings: Settings
    origins: Mapping[str, str]
    auth_keys: tuple[AuthKey, ...]
    file: Path | None

    @property
    def folder(self) -> Path:
        """The folder to which relative paths in the settings refer."""
        return self.file.parent if self.file else Path()

    @property
    def api_keys_file(self) -> Path | None:
        """The path of the file of API keys; None if there is none."""
        named = self.settings.auth.api_keys_file
        return self.folder / named if named else None

    def find_exposed_files(self) -> tuple[str, ...]:
        """Return a warning for each file with a secret that other users may read or change."""
        auth, server = self.settings.auth, self.settings.server
        named = [
            (f"auth.keys[{place}].secret_file", self.folder / key.secret_file)
            for place, key in enumerate(auth.keys)
            if key.secret_file
        ]
        if self.api_keys_file is not None:
            named.append(("auth.api_keys_file", self.api_keys_file))
        if server.tls == "files":
            named.append(("server.tls_private_key", Path(server.tls_private_key)))
        is_in_file = self.origins["auth.keys"].startswith("file ")
        if self.file is not None and is_in_file and any(key.secret for key in auth.keys):
            named.append(("the configuration, which holds auth.keys.secret,", self.file))
        return tuple(
            f"The file of {name} has mode {mode:04o}: other users may read or change it. Make it 0600."
            for name, path in named
            if (mode := _read_mode(path)) & _OF_OTHERS
        )


@value
class Examined:
    """A configuration that may be invalid: its valid part, and all its problems.

    `loaded` has the default in place of each invalid value; `doubtful` are the keys of these values.
    """

    loaded: LoadedSettings
    problems: Sequence[Violation]
    doubtful: frozenset[str]


def load(path: Path | None, environ: Mapping[str, str]) -> LoadedSettings:
    """Read the configuration.

    The file is `path`, else the one that REASOND_CONFIG names, else config.toml in the working directory if there is
    one. REASOND__SECTION__KEY overrides a key; its value is parsed as TOML, or taken as text if it is not TOML.

    Raises:
        SettingsError: the configuration is invalid (with every problem), or the file cannot be read.
    """
    found = examine(path, environ)
    if found.problems:
        raise build_settings_error(found.problems, found.loaded.origins)
    return found.loaded


def examine(path: Path | None, environ: Mapping[str, str]) -> Examined:
    """Read the configuration as `load` does, but return its problems instead of raising them.

    Raises:
        SettingsError: the file cannot be read, or is not TOML.
    """
    file = _choose_file(path, environ)
    tree, text = ({}, "") if file is None else _read_file(file)
    lines = _find_lines(text)
    origins = {
        key: f"file {file}, line {lines[key]}" if key in lines else f"file {file}" for key in _list_leaves(tree, ())
    }
    problems = list(_overlay(tree, origins, environ))
    settings, errors = _validate(tree)
    problems += map(explain, errors)
    doubtful = frozenset(key for error in errors for key in find_doubtful(error))
    auth_keys, key_problems = read_auth_keys(
        settings.auth.keys, environ=environ, folder=file.parent if file else Path()
    )
    problems += [*cross_check(settings, doubtful), *key_problems]
    defaults = dict.fromkeys((doc.key for doc in list_key_docs()), _DEFAULT)
    loaded = LoadedSettings(settings=settings, origins=defaults | origins, auth_keys=auth_keys, file=file)
    return Examined(loaded=loaded, problems=problems, doubtful=doubtful)


def _validate(tree: dict[str, Any]) -> tuple[Settings, list[ErrorDetails]]:
    """Return the settings of `tree` without its invalid values, and Pydantic's errors about these.

    Invalid values are removed from `tree`. If that leaves a table incomplete, the whole table is removed.
    """
    found: list[ErrorDetails] = []
    while True:
        try:
            return Settings.model_validate(tree), found
        except ValidationError as error:
            errors = error.errors(include_url=False)
        found = found or errors
        # From the end, so that the places of entries in a list stay what they are.
        for *tables, name in sorted({_place_to_clear(tree, each["loc"]) for each in errors}, key=_rank, reverse=True):
            table: Any = tree
            for part in tables:
                table = table[part]
            del table[name]


def _rank(place: Sequence[str | int]) -> tuple[tuple[int, str], ...]:
    return tuple((part, "") if isinstance(part, int) else (-1, part) for part in place)


def _place_to_clear(tree: dict[str, Any], place: Sequence[str | int]) -> tuple[str | int, ...]:
    """Return the path of the value at `place` in `tree`, or of the innermost value around it.

    An entry of a list is such a value only if it is no table: a list of tables is given up as a whole.
    """
    found: list[str | int] = []
    node: Any = tree
    for part in place:
        is_in_table = isinstance(node, dict) and part in node
        is_entry = isinstance(node, list) and isinstance(part, int) and not isinstance(node[part], dict | list)
        if not (is_in_table or is_entry):
            break
        found.append(part)
        node = node[part]
    return tuple(found)


class FileWatch:
    """Reads the configuration again when its file or that of the API keys is written, replaced or relinked.

    `apply` receives the new settings and applies those that may change while the server runs. A file that cannot be
    used changes nothing.
    """

    def __init__(
        self, loaded: LoadedSettings, *, environ: Mapping[str, str], apply: Callable[[LoadedSettings], None]
    ) -> None:
        self._loaded = loaded
        self._environ = environ
        self._apply = apply
        self._stamps = self._look()

    async def run(self, *, every_s: float = 2.0) -> None:
        """Check the files every `every_s` seconds until cancelled."""
        while True:
            await asyncio.sleep(every_s)
            self.check()

    def check(self) -> bool:
        """Load the files if one has changed; return whether they were applied."""
        stamps = self._look()
        if stamps == self._stamps:
            return False
        self._stamps = stamps
        try:
            # Without a file at the start, none is looked for later: the environment cannot change.
            if self._loaded.file is not None:
                self._loaded = load(self._loaded.file, self._environ)
            self._apply(self._loaded)
        except SettingsError as error:
            _log.error("a changed configuration cannot be used, what was read before stays: %s", error.message)
            return False
        _log.info(
            "configuration read again: auth.revoked_ids, auth.inactive_subjects and auth.api_keys_file hold where they "
            "are stated; other keys need a restart"
        )
        return True

    def _look(self) -> Mapping[Path, tuple[int, ...]]:
        """Return attributes of each file that change with every write and every change of its mode."""
        files = (self._loaded.file, self._loaded.api_keys_file)
        return {file: _read_stamp(file) for file in files if file is not None}


def _read_stamp(file: Path) -> tuple[int, ...]:
    try:
        found = file.stat()
    except OSError:
        return ()
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)


def _read_mode(path: Path) -> int:
    """Return the permissions of a file; 0 if it is missing, which is reported elsewhere."""
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return 0


def _choose_file(path: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the file to read, None if there is none."""
    if path is not None:
        return path
    named = environ.get(_FILE_VARIABLE, "")
    if named:
        return Path(named)
    default = Path(_DEFAULT_FILE)
    return default if default.exists() else None


def _read_file(path: Path) -> tuple[dict[str, Any], str]:
    """Return the content of the TOML file at `path`, and its text."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
        text = content.decode("utf-8-sig")
    except FileNotFoundError:
        raise _build_file_error(
            path, "does not exist", "Create it, or leave out --config and REASOND_CONFIG."
        ) from None
    except IsADirectoryError:
        raise _build_file_error(path, "is a directory", "Name the file in it.") from None
    except PermissionError:
        raise _build_file_error(path, "may not be read", "Make it readable for the user that starts reasond.") from None
    except OSError:
        raise _build_file_error(path, "cannot be read", "Check the disk and the name.") from None
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _build_file_error(path, f"is not UTF-8 text in line {line}", "Save it as UTF-8.") from None
    if len(content) > _MAX_FILE_BYTES:
        raise _build_file_error(path, f"has more than {_MAX_FILE_BYTES} bytes", "Is it the right file?")
    try:
        tree = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        place, problem = _describe_syntax_error(str(error), text)
        raise _build_file_error(path, f"{place}: {problem}", "See https://toml.io for the syntax.") from None
    if not _is_shallow(tree):
        raise _build_file_error(
            path, f"nests tables more than {_MAX_DEPTH} deep", "No key lies so deep; is it the right file?"
        )
    return tree, text


def _find_lines(text: str) -> Mapping[str, int]:
    """Return the first line of each dotted key of valid TOML, without those of inline tables and of lists of tables."""
    found: dict[str, int] = {}
    table: tuple[str, ...] = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            # A bracket more stands for a list, whose entries have no keys of their own.
            table = (header[1], *_split_key(header[2])) if header[1] else _split_key(header[2])
        elif assigned := _ASSIGNMENT.match(line):
            found.setdefault(join_key((*table, *_split_key(assigned[1]))), number)
    return found


def _split_key(text: str) -> tuple[str, ...]:
    return tuple(part.strip(" \t\"'") for part in text.split("."))


def _is_shallow(tree: Mapping[str, Any]) -> bool:
    """Return whether tables are nested no deeper than _MAX_DEPTH."""
    level: list[Any] = [tree]
    for _ in range(_MAX_DEPTH):
        level = [value for table in level for value in table.values() if isinstance(value, dict)]
        if not level:
            return True
    return False


def _build_file_error(path: Path, problem: str, remedy: str) -> SettingsError:
    """Make the error for a file that cannot be used as a whole."""
    return SettingsError(f"The configuration file {str(path)!r} {problem}", remedy=remedy)


def _describe_syntax_error(message: str, text: str) -> tuple[str, str]:
    """Return where and why `text` is not TOML, in our own words; the message of tomllib may quote the text."""
    if message.startswith("Exceeds the limit"):
        return "has a fault", "a whole number has more than 4300 digits"
    match = re.search(r"at line (\d+), column (\d+)\)$", message)
    place = f"line {match[1]}, column {match[2]}" if match else f"line {max(1, len(text.splitlines()))}, at its end"
    is_twice = message.startswith(("Cannot overwrite", "Cannot declare", "Cannot mutate", "Duplicate"))
    return f"in {place}", "a key or table is defined twice" if is_twice else "this is not valid TOML"


def _list_leaves(tree: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """Yield the dotted keys of all values in `tree` that are not tables."""
    for name, inner in tree.items():
        if isinstance(inner, dict):
            yield from _list_leaves(inner, (*path, name))
        else:
            yield join_key((*path, name))


def _overlay(tree: dict[str, Any], origins: dict[str, str], environ: Mapping[str, str]) -> Iterator[Violation]:
    """Write the environment's values into `tree` and `origins`; yield those that fit no key."""
    for variable in sorted(environ):
        if not variable.startswith(_PREFIX):
            continue
        parts = variable.removeprefix(_PREFIX).lower().split("__")
        key = join_key(parts)
        node: Any = tree
        for part in parts[:-1]:
            node = node.setdefault(part, {}) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            origins[key] = f"environment {variable}"
            yield Violation(field=key, description="is within a value that is no table; set that value as a whole")
            continue
        node[parts[-1]] = _parse_value(environ[variable], is_text=is_text_key(key))
        origins[key] = f"environment {variable}"


def _parse_value(text: str, *, is_text: bool) -> Any:  # noqa: ANN401 - any value of TOML
    """Parse `text` of the environment as TOML; return it unchanged if it is not TOML or if `is_text`."""
    try:
        tree = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return {"true": True, "false": False}.get(text.lower(), text) if not is_text else text
    value = tree["value"]
    is_plain = len(tree) == 1 and isinstance(value, bool | int | float | str | list)
    return text if not is_plain or (is_text and not isinstance(value, str)) else value
