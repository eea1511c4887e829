"""Chooses the files that a prompt shows: those that the evidence names come first, as many as fit."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Final

from reasond_server.types.repairs import CheckRole
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from reasond_server.types.repairs import Check
    from reasond_server.types.snapshots import SourceFile

MOST_SHOWN: Final = 50
MOST_LISTED: Final = 200
_MOST_BYTES: Final = 256 * 1024
_PATH: Final = re.compile(r"[\w./\\-]{1,512}\.[A-Za-z0-9_]{1,16}")
_IMPORT: Final = re.compile(
    r"^\s{0,40}(?:from\s{1,8}([\w.]{1,200})\s{1,8}import|import\s{1,8}([\w.]{1,200}))", re.MULTILINE
)
_SOURCES: Final = frozenset(
    {
        *("c", "cc", "clj", "cpp", "cs", "css", "dart", "ex", "exs", "go", "h", "hpp", "html", "java", "jl", "js"),
        *("json", "jsx", "kt", "lua", "m", "md", "mjs", "ml", "php", "pl", "py", "r", "rb", "rs", "scala", "sh", "sql"),
        *("swift", "toml", "ts", "tsx", "txt", "vue", "xml", "yaml", "yml", "zig"),
    }
)


@value
class ShownFiles:
    """The texts that a prompt shows, by path in their order, and the paths of other files of the project."""

    texts: Mapping[str, str]
    others: Sequence[str] = ()


def choose_files(
    files: Mapping[str, SourceFile],
    *,
    hints: Iterable[str],
    is_editable: Callable[[str], bool],
    room: int,
    count: Callable[[str], int],
) -> ShownFiles:
    """Return as many whole files as `room` tokens hold.

    First come files that `hints` (evidence, findings, the description) name, then files that those import, then other
    files that may be edited, small ones first; protected files come last. `count` counts the tokens of a text.
    """
    readable = {path: text for path, file in files.items() if (text := _read(file)) is not None}
    named = _find_named(readable, hints)
    imported = _find_imported(readable, named)
    rest = sorted(readable.keys() - set(named) - set(imported), key=lambda path: (len(readable[path]), path))
    wanted = [*named, *imported, *(path for path in rest if is_editable(path))]
    wanted += [path for path in rest if not is_editable(path)]
    shown: dict[str, str] = {}
    for path in wanted:
        if len(shown) == MOST_SHOWN:
            break
        tokens = count(readable[path])
        if tokens <= room:
            shown[path] = readable[path]
            room -= tokens
    others = [path for path in sorted(files) if path not in shown]
    return ShownFiles(texts=shown, others=others[:MOST_LISTED])


def leave_out_held_out(
    files: Mapping[str, SourceFile], checks: Sequence[Check], *, is_protected: Callable[[str], bool]
) -> Mapping[str, SourceFile]:
    """Return the files without the protected ones that commands of held-out checks name, alone or by a folder.

    The search must not learn what the held-out checks ask for. Files that candidates may change stay, because such a
    command also names the code under repair; so do files that the command of another check names.
    """
    held_out = [check for check in checks if check.role is CheckRole.HELD_OUT]
    seen = _list_named([check for check in checks if check.role is not CheckRole.HELD_OUT])
    hidden = _list_named(held_out) - {"", "."}
    folders = tuple(f"{name}/" for name in hidden)
    return {
        path: file
        for path, file in files.items()
        if path in seen or not is_protected(path) or not (path in hidden or path.startswith(folders))
    }


def _list_named(checks: Iterable[Check]) -> set[str]:
    """Return the paths that the commands of checks may name; `tests/test_a.py::test_b` names its file."""
    return {argument.partition("::")[0].removeprefix("./").rstrip("/") for check in checks for argument in check.argv}


def _read(file: SourceFile) -> str | None:
    """Return the text of a file that is worth showing; None for others."""
    suffix = PurePosixPath(file.path).suffix[1:].lower()
    if len(file.content) > _MOST_BYTES or (suffix and suffix not in _SOURCES) or b"\0" in file.content:
        return None
    try:
        return file.content.decode()
    except UnicodeDecodeError:
        return None


def _find_named(texts: Mapping[str, str], hints: Iterable[str]) -> Sequence[str]:
    """Return the files that the hints name, by path or by its end, in the order in which they are named."""
    by_name: dict[str, list[str]] = {}
    for path in sorted(texts):
        by_name.setdefault(PurePosixPath(path).name, []).append(path)
    found: dict[str, None] = {}
    for hint in hints:
        for match in _PATH.finditer(hint):
            said = match[0].replace("\\", "/").lstrip("./")
            for path in by_name.get(PurePosixPath(said).name, ()):
                if said == path or said.endswith(f"/{path}") or path.endswith(f"/{said}"):
                    found[path] = None
    return list(found)


def _find_imported(texts: Mapping[str, str], named: Sequence[str]) -> Sequence[str]:
    """Return the Python modules that the named files import."""
    modules = {_module_of(path): path for path in texts if path.endswith(".py")}
    found: dict[str, None] = {}
    for path in named:
        for match in _IMPORT.finditer(texts[path]):
            wanted = (match[1] or match[2]).lstrip(".")
            for module, other in modules.items():
                if other not in named and (module == wanted or module.endswith(f".{wanted}")):
                    found[other] = None
    return list(found)


def _module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").removeprefix("src/").replace("/", ".")
