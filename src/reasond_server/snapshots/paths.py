"""Paths of clients' files: the faults of one path, and paths that cannot exist together."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING, Final

from reasond_server.errors.base import show

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MAX_PATH_BYTES: Final = 1024
"""The longest path, in bytes of UTF-8."""
MAX_PART_BYTES: Final = 255
"""The longest name of a file or folder, in bytes of UTF-8: what common file systems allow."""
MAX_PARTS: Final = 64
"""The deepest path: folders and the file together."""

_LEAVE_OUT: Final = "rename the file, or leave it out"
_DRIVE: Final = re.compile(r"[A-Za-z]:")
# Windows gives `.git` such a short name, and git refuses it, too.
_SHORT_GIT: Final = re.compile(r"git~\d+")
# What an ASCII path has that has a bad part: most paths are passed over at once.
_SUSPECT: Final = re.compile(r"(?:^|/)(?:[./]|$)|[. ](?:/|$)|~\d|[^/]{256}")
_NO_TEXT: Final = frozenset({"Cc", "Zl", "Zp"})
_IGNORED: Final = "Cf"


def find_problems(path: str) -> Iterator[str]:
    """Yield what is wrong with `path`, each kind of problem once, as the end of a sentence; nothing if it is good."""
    if not path:
        yield "must not be empty"
        return
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        yield f"must be valid Unicode, got {show(path)}; {_LEAVE_OUT}"
        return
    if size > MAX_PATH_BYTES:
        # Nothing else is looked for: the work for one path stays bounded.
        yield f"must have at most {MAX_PATH_BYTES} bytes, got {size}; {_LEAVE_OUT}"
        return
    if path[0] == "/" or _DRIVE.match(path):
        yield f"must be relative to the root of the snapshot, got {show(path)}"
    if "\\" in path:
        yield f"must have / between its parts and no \\, got {show(path)}"
    if not (path.isascii() and path.isprintable()) and any(unicodedata.category(each) in _NO_TEXT for each in path):
        yield f"must have no control characters, got {show(path)}; {_LEAVE_OUT}"
    parts = path.removeprefix("/").split("/")
    if len(parts) > MAX_PARTS:
        yield f"must have at most {MAX_PARTS} parts, got {len(parts)}; {_LEAVE_OUT}"
    if not path.isascii() or _SUSPECT.search(path):
        yield from _find_bad_parts(path, parts)


def fold_path(path: str) -> str:
    """Return a text that is the same for paths that some file systems take for one: by case or by normal form."""
    if path.isascii():
        return path.lower()
    visible = "".join(each for each in path if unicodedata.category(each) != _IGNORED)
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", visible).casefold())


def find_collisions(paths: Sequence[str]) -> Iterator[tuple[int, int, str]]:
    """Yield (index, index of another path, why they exclude each other) for paths that cannot exist together.

    Each index comes at most twice: as a file that another file is, and as a file that is a folder of another. Paths
    that are empty or longer than MAX_PATH_BYTES are passed over.
    """
    files: dict[str, int] = {}
    folders: dict[str, int] = {}
    for index, path in enumerate(paths):
        if not path or len(path) > MAX_PATH_BYTES:
            continue
        folded = fold_path(path)
        other = files.setdefault(folded, index)
        if other != index:
            is_same = paths[other] == path
            yield index, other, "is given twice" if is_same else "differs only in case or in its normal form"
        end = folded.rfind("/")
        while end > 0 and folded[:end] not in folders:
            folders[folded[:end]] = index
            end = folded.rfind("/", 0, end)
    for folded, index in files.items():
        if folded in folders:
            yield index, folders[folded], "is a folder of another path"


def _find_bad_parts(path: str, parts: Sequence[str]) -> Iterator[str]:
    if not all(parts):
        yield f"must have no empty part, got {show(path)}"
    if any(part in {".", ".."} for part in parts):
        yield f"must have no part . or .., got {show(path)}"
    if any(_is_of_git(part) for part in parts):
        yield f"must have no part that begins with .git, got {show(path)}; leave the file out"
    if any(part[-1:] in {".", " "} and part not in {".", ".."} for part in parts):
        yield f"must have no part that ends with a dot or a space, got {show(path)}; {_LEAVE_OUT}"
    longest = max(len(part.encode()) for part in parts)
    if longest > MAX_PART_BYTES:
        yield f"must have parts of at most {MAX_PART_BYTES} bytes, got one of {longest}; {_LEAVE_OUT}"


def _is_of_git(part: str) -> bool:
    """Return whether git, on some file system, reads the part as its own file or folder."""
    # Compatibility forms too, such as letters of full width: what a program of the checks makes of them is unknown.
    folded = unicodedata.normalize("NFKC", fold_path(part)).casefold()
    return folded.startswith(".git") or _SHORT_GIT.fullmatch(folded) is not None
