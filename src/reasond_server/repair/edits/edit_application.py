"""Applies the edits of a reply to the files of a snapshot.

An anchor must occur exactly once, as whole lines; white space at the end of lines is not compared, and what else may
differ says `targets`. Line endings, a byte order mark and a missing newline at the end of a file stay as they are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from reasond_server.context.tags import restore
from reasond_server.errors.base import show
from reasond_server.repair.edits.edit_parser import (
    CandidateSolution,
    list_candidates,
    parse_candidates,
    read_reply,
    split_candidates,
    write_edit_format,
)
from reasond_server.repair.edits.parts import Edit, EditError, EditForm, EditReply, find_left_out, merge_fence
from reasond_server.repair.edits.python_sources import PythonSourceError, is_python, parse_python
from reasond_server.repair.edits.targets import MOST_COUNTED, AnchorPlace, find_places, resolve_targets, write_anchor
from reasond_server.snapshots.manifests import find_collisions, find_problems

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from reasond_server.types.repairs import SourceFile

__all__ = [
    "MAX_CHANGED_FILES",
    "CandidateSolution",
    "Edit",
    "EditError",
    "EditReply",
    "apply_edits",
    "list_candidates",
    "parse_candidates",
    "read_reply",
    "split_candidates",
    "write_edit_format",
]

MAX_CHANGED_FILES: Final = 200
"""The most files that one candidate may change."""

_MAX_PROBLEMS: Final = 5
_BYTE_ORDER_MARK: Final = "\ufeff"
ItemT = TypeVar("ItemT")


def apply_edits(
    files: Mapping[str, SourceFile],
    edits: Sequence[Edit],
    *,
    protected: Callable[[str], bool],
    max_file_bytes: int = 1024 * 1024,
) -> Mapping[str, bytes | None]:
    """Return the changed files by path, None for a deleted one.

    Args:
        files: the files of the snapshot by path.
        edits: the edits of one reply, applied in order.
        protected: whether a file must not be changed.
        max_file_bytes: the largest file that may be edited, before and after.

    Raises:
        EditError: with a line for each of the first five problems.
    """
    editing = _Editing(files, protected=protected, max_file_bytes=max_file_bytes)
    edits = resolve_targets(edits, files, protected=protected)
    problems = _collect_problems(edits, editing.apply)
    if not problems:
        problems = _collect_problems(editing.changes, editing.check)
        problems += editing.list_collisions()[: _MAX_PROBLEMS - len(problems)]
    if problems:
        raise EditError("\n".join(problems))
    return editing.changes


def _collect_problems(items: Iterable[ItemT], step: Callable[[ItemT], None]) -> list[str]:
    """Return the first problems that `step` finds with `items`."""
    problems: dict[str, None] = {}
    for item in items:
        try:
            step(item)
        except EditError as error:
            problems[str(error)] = None
        if len(problems) == _MAX_PROBLEMS:
            break
    return list(problems)


class _Editing:
    """The files of a candidate while its edits are applied."""

    def __init__(
        self, files: Mapping[str, SourceFile], *, protected: Callable[[str], bool], max_file_bytes: int
    ) -> None:
        self._files = files
        self._is_protected = protected
        self._max_file_bytes = max_file_bytes
        self.changes: dict[str, bytes | None] = {}

    def apply(self, edit: Edit) -> None:
        """Apply one edit.

        Raises:
            EditError: it cannot be applied.
        """
        path = edit.path
        for problem in find_problems(path):
            raise EditError(f"{show(path)} cannot be changed: the path {problem}.")
        if self._is_protected(path):
            raise EditError(
                f"{show(path)} is protected and stays as it is: change the code that is tested instead. (Who started "
                "the repair may name the file as `editable`, in the command line with --editable.)"
            )
        if path not in self.changes and len(self.changes) == MAX_CHANGED_FILES:
            raise EditError(f"The reply changes more than {MAX_CHANGED_FILES} files.")
        before = self._read(path)
        if edit.text is None:
            if before is None:
                raise EditError(f"There is no file {show(path)} to delete.")
            self._decode(path, before)
            after = None
        else:
            after = self._apply_edit(edit, before)
        if after == before and path not in self.changes:
            raise EditError(f"An edit of {show(path)} changes nothing.")
        self.changes[path] = after

    def check(self, path: str) -> None:
        """Check a changed file as a whole.

        Raises:
            EditError: it is as before, too large, or no longer Python.
        """
        file, after = self._files.get(path), self.changes[path]
        before = None if file is None else file.content
        if after == before:
            raise EditError(f"The edits of {show(path)} together change nothing.")
        if after is None:
            return
        if len(after) > self._max_file_bytes:
            raise EditError(f"{show(path)} would have {len(after)} bytes; the limit is {self._max_file_bytes}.")
        if is_python(path):
            _check_python(path, before, after)

    def list_collisions(self) -> list[str]:
        """Return which new files exclude another one; deleted files count, because a patch cannot replace them."""
        new = [path for path, content in self.changes.items() if content is not None and path not in self._files]
        paths = [*self._files, *new] if new else []
        return [
            f"The new files do not fit the others: {show(paths[index])} {why}: {show(paths[other])}."
            for index, other, why in find_collisions(paths)
            if max(index, other) >= len(self._files)
        ]

    def _apply_edit(self, edit: Edit, before: bytes | None) -> bytes:
        path, text = edit.path, edit.text or ""
        if before is None or (not before and not edit.anchor):
            if edit.anchor:
                raise EditError(f"There is no file {show(path)}. To make one, write all of it in a fence.")
            return self._encode(path, restore(text))
        old = _Lines(self._decode(path, before))
        new = old.restore(text)
        if edit.anchor is None:
            if edit.form is EditForm.FENCE or edit.form is EditForm.JSON:
                new = old.merge(path, new)
            return self._encode(path, old.take_style(new))
        if not edit.anchor:
            raise EditError(f"A block of {show(path)} has no lines to search for, but the file is not empty.")
        known = old.text
        if left_out := find_left_out(new, f"{known}\n{edit.anchor}"):
            raise EditError(f"The new lines of {show(path)} leave lines out: {show(left_out)}. Write every line.")
        places = old.find(replace(edit, anchor=old.restore(edit.anchor), text=new))
        if edit.form is EditForm.JSON and not places and known.count(edit.anchor[:-1]) == 1:
            return self._encode(path, old.take_style(known.replace(edit.anchor[:-1], new.removesuffix("\n"))))
        if len(places) != 1:
            count = f"more than {MOST_COUNTED}" if len(places) > MOST_COUNTED else str(len(places))
            advice = "add lines around them" if places else "copy them from the file as it is now"
            raise EditError(
                f"The lines to search for must occur exactly once in {show(path)}, but {show(edit.anchor)} has {count}"
                f" matches: {advice}."
            )
        return self._encode(path, old.replace(places[0]))

    def _read(self, path: str) -> bytes | None:
        """Return the file as the edits before have left it; None if there is none."""
        file = self._files.get(path)
        return self.changes.get(path, None if file is None else file.content)

    def _decode(self, path: str, content: bytes) -> str:
        if len(content) > self._max_file_bytes:
            raise EditError(
                f"{show(path)} has {len(content)} bytes and cannot be edited: limit {self._max_file_bytes}."
            )
        if b"\0" in content:
            raise EditError(f"{show(path)} is not a text and cannot be edited.")
        try:
            return content.decode()
        except UnicodeDecodeError:
            raise EditError(f"{show(path)} is not in UTF-8 and cannot be edited.") from None

    def _encode(self, path: str, text: str) -> bytes:
        try:
            content = text.encode()
        except UnicodeEncodeError:
            raise EditError(f"The new text of {show(path)} has a lone surrogate.") from None
        if b"\0" in content:
            raise EditError(f"The new text of {show(path)} has a NUL character.")
        return content


class _Lines:
    """The lines of a file with their endings; only the last one may have none."""

    def __init__(self, text: str) -> None:
        self._mark = _BYTE_ORDER_MARK if text.startswith(_BYTE_ORDER_MARK) else ""
        self._texts = text.removeprefix(self._mark).split("\n")
        self._is_ended = not self._texts[-1]
        if self._is_ended:
            self._texts.pop()
        crlf = sum(line.endswith("\r") for line in self._texts)
        self._return = "\r" if crlf * 2 > len(self._texts) - (not self._is_ended) else ""
        self._has_entities = restore(text) != text

    def restore(self, text: str) -> str:
        """Return a text of the model without the entities by which prompts show tags, unless the file has such."""
        return text if self._has_entities else restore(text)

    @property
    def text(self) -> str:
        """The file with line feeds alone, and one at its end."""
        return "".join(f"{line.removesuffix(chr(13))}\n" for line in self._texts)

    def merge(self, path: str, text: str) -> str:
        """Return the whole file for the text of a fence; see `merge_fence`."""
        return merge_fence(path, self.text, text)

    def find(self, edit: Edit) -> Sequence[AnchorPlace]:
        """Return the places of an edit; see `find_places`."""
        return find_places([line.removesuffix("\r") for line in self._texts], write_anchor(edit))

    def replace(self, place: AnchorPlace) -> str:
        """Return the file with the new lines at their place."""
        at, end = place.at, place.at + place.count
        ending = "\r" if self._texts[at].endswith("\r") else "" if at < len(self._texts) - 1 else self._return
        new = self._give_endings("".join(f"{line}\n" for line in place.lines), ending)
        return self._join([*self._texts[:at], *new, *self._texts[end:]])

    def take_style(self, text: str) -> str:
        """Return a new text of the whole file with the line endings of the old one."""
        return self._join(self._give_endings(text.removeprefix(_BYTE_ORDER_MARK), self._return))

    def _give_endings(self, text: str, ending: str) -> list[str]:
        return [line.removesuffix("\r") + ending for line in text.split("\n")[:-1]]

    def _join(self, lines: list[str]) -> str:
        if not lines:
            return self._mark
        if self._is_ended:
            return self._mark + "".join(f"{line}\n" for line in lines)
        return self._mark + "\n".join([*lines[:-1], lines[-1].removesuffix("\r")])


def _check_python(path: str, before: bytes | None, after: bytes) -> None:
    """Check that a Python file can be parsed.

    A file that this interpreter could not parse before may be in a newer Python: then the checks decide.
    """
    try:
        parse_python(after)
    except PythonSourceError as error:
        if before is None or _is_parsable(before):
            raise EditError(f"{show(path)} is no valid Python after the edits: {error}.") from None


def _is_parsable(source: bytes) -> bool:
    try:
        parse_python(source)
    except PythonSourceError:
        return False
    return True
