"""Reads a unified diff strictly, before git sees it: what this reader does not know for certain is refused.

`git apply` takes more than a patch needs to say: symbolic links, submodules, binary contents, files that git itself
reads. Every line must be accounted for here, so that git cannot read into a patch what this reader has not seen.
"""

from __future__ import annotations

import re
from typing import Final

from reasond_server.errors.base import show
from reasond_server.snapshots.manifests import find_problems

MAX_PATCH_BYTES: Final = 1024 * 1024
"""The largest patch, in bytes."""

MAX_PATCH_FILES: Final = 200
"""The most files of a patch."""

_HEADER: Final = "diff --git "
_MODE: Final = r"(?:100644|100755)"
_NEW = re.compile(rf"new file mode {_MODE}")
_DELETED = re.compile(rf"deleted file mode {_MODE}")
_INDEX = re.compile(rf"index [0-9a-f]{{4,64}}\.\.[0-9a-f]{{4,64}}(?: {_MODE})?")
_HUNK = re.compile(r"@@ -(\d{1,9})(?:,(\d{1,9}))? \+(\d{1,9})(?:,(\d{1,9}))? @@(?: .*)?")
_NO_NEWLINE: Final = "\\ No newline at end of file"
_ESCAPE = re.compile(rb"\\(?:([0-3][0-7]{2})|([abfnrtv\"\\]))")
_ESCAPED: Final = dict(zip(b'abfnrtv"\\', b'\a\b\f\n\r\t\v"\\', strict=True))


class PatchError(Exception):
    """A patch that is refused; the text says why."""


def check_patch(patch: str) -> str:
    """Return why a patch is refused before git sees it; empty if it is not.

    A patch has at most 200 files and 1 MiB, is text, changes or makes regular files of the modes 100644 and 100755 by
    relative paths, none of which begins with .git, and has no other lines than those of its sections.
    """
    try:
        size = len(patch.encode())
    except UnicodeEncodeError:
        return "the patch has a lone surrogate"
    if size > MAX_PATCH_BYTES:
        return f"the patch has {size} bytes; the limit is {MAX_PATCH_BYTES}"
    if "\0" in patch:
        return "the patch is not a text"
    if not patch.endswith("\n"):
        return "the patch is empty or ends within a line"
    try:
        _PatchReader(patch).read()
    except PatchError as error:
        return str(error)
    return ""


class _PatchReader:
    def __init__(self, patch: str) -> None:
        self._lines = patch.split("\n")[:-1]
        self._at = 0

    def read(self) -> None:
        """Read all sections.

        Raises:
            PatchError: a line is not allowed where it stands.
        """
        paths: set[str] = set()
        while self._at < len(self._lines):
            path = self._read_section()
            if path in paths:
                raise PatchError(f"the patch changes {show(path)} twice")
            paths.add(path)
            if len(paths) > MAX_PATCH_FILES:
                raise PatchError(f"the patch changes more than {MAX_PATCH_FILES} files")

    def _read_section(self) -> str:
        path = self._read_header()
        is_new, is_deleted = self._take(_NEW), self._take(_DELETED)
        if is_new and is_deleted:
            self._refuse("a file is both new and deleted")
        has_index = self._take(_INDEX)
        if not self._look().startswith("--- "):
            if not (is_new or is_deleted) or not has_index:
                self._refuse("a section changes nothing that is allowed")
            return path
        self._read_name("--- ", "/dev/null" if is_new else f"a/{path}")
        self._read_name("+++ ", "/dev/null" if is_deleted else f"b/{path}")
        if _HUNK.fullmatch(self._look()) is None:
            self._refuse("a section has no hunk")
        while (hunk := _HUNK.fullmatch(self._look())) is not None:
            self._read_hunk(hunk)
        return path

    def _read_header(self) -> str:
        line = self._look()
        if not line.startswith(_HEADER):
            self._refuse("a line belongs to no section")
        rest = line[len(_HEADER) :]
        middle = len(rest) // 2
        old, new = _read_quoted(rest[:middle]), _read_quoted(rest[middle + 1 :])
        if rest[middle] != " " or not old.startswith("a/") or not new.startswith("b/") or old[2:] != new[2:]:
            self._refuse("a section names two files, or none")
        for problem in find_problems(old[2:]):
            raise PatchError(f"the path {show(old[2:])} {problem}")
        self._at += 1
        return old[2:]

    def _read_name(self, mark: str, name: str) -> None:
        line = self._look()
        # git ends a name that contains a space with a tab.
        found = line[len(mark) :].removesuffix("\t") if line.startswith(mark) else ""
        if found != name and _read_quoted(found) != name:
            self._refuse(f"the line must name {show(name)}")
        self._at += 1

    def _read_hunk(self, hunk: re.Match[str]) -> None:
        old, new = (int(hunk[group]) if hunk[group] is not None else 1 for group in (2, 4))
        self._at += 1
        while old > 0 or new > 0:
            sign = self._look()[:1]
            if sign not in {" ", "+", "-"}:
                self._refuse("a hunk has fewer lines than it says")
            old -= sign != "+"
            new -= sign != "-"
            self._at += 1
            if self._look() == _NO_NEWLINE:
                self._at += 1
        if old or new:
            self._refuse("a hunk has more lines than it says")

    def _take(self, pattern: re.Pattern[str]) -> bool:
        is_there = pattern.fullmatch(self._look()) is not None
        self._at += is_there
        return is_there

    def _look(self) -> str:
        """Return the next line; empty at the end, like no line of a patch."""
        return self._lines[self._at] if self._at < len(self._lines) else ""

    def _refuse(self, why: str) -> None:
        raise PatchError(f"line {self._at + 1} of the patch is refused: {why}: {show(self._look())}")


def _read_quoted(name: str) -> str:
    """Return a name as it is without git's quotes and escapes; empty if they are wrong."""
    if not name.startswith('"'):
        return name
    if len(name) < len('""') or not name.endswith('"'):
        return ""
    inner = name[1:-1].encode()
    if b'"' in _ESCAPE.sub(b"", inner) or b"\\" in _ESCAPE.sub(b"", inner):
        return ""
    plain = _ESCAPE.sub(lambda found: bytes([int(found[1], 8) if found[1] else _ESCAPED[found[2][0]]]), inner)
    try:
        return plain.decode()
    except UnicodeDecodeError:
        return ""
