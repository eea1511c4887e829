"""Paths that edits and patches may name: relative, in one spelling, and none that git gives a meaning of its own."""

from __future__ import annotations

import unicodedata
from typing import Final

_MAX_PATH_BYTES: Final = 1024
_MAX_NAME_BYTES: Final = 255


def find_path_problem(path: str) -> str:
    """Return why `path` cannot be used, as the end of a sentence about it; empty if it can."""
    if not path or path.startswith("/") or "\\" in path or path[1:2] == ":":
        return "is not a relative path with slashes"
    if any(unicodedata.category(char) in {"Cc", "Cs", "Zl", "Zp"} for char in path):
        return "contains a control character"
    size = len(path.encode())
    if size > _MAX_PATH_BYTES:
        return f"has {size} bytes; the limit is {_MAX_PATH_BYTES}"
    return next((problem for problem in map(_find_name_problem, path.split("/")) if problem), "")


def _find_name_problem(name: str) -> str:
    size, folded = len(name.encode()), _fold_name(name)
    if name in {"", ".", ".."}:
        return "has an empty part, or a part that is . or .."
    if size > _MAX_NAME_BYTES:
        return f"has a part of {size} bytes; the limit is {_MAX_NAME_BYTES}"
    if name != name.strip() or folded.startswith(".git") or folded == "git~1":
        return "has a part that git reserves, or that begins or ends with a space"
    return ""


def fold_path(path: str) -> str:
    """Return a form that is equal for paths that some file system takes for one."""
    return "/".join(map(_fold_name, path.split("/")))


def _fold_name(name: str) -> str:
    """Return a name without what file systems may ignore: case, invisible characters, forms of letters, last dots."""
    visible = "".join(char for char in name if unicodedata.category(char) != "Cf")
    return unicodedata.normalize("NFKC", visible).casefold().rstrip(". ")
