"""Finds the file that each edit of a reply means. What may mean two files, or none, is refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from reasond_server.errors.base import show
from reasond_server.repair.edits.anchors import Anchor, find_places
from reasond_server.repair.edits.parts import Edit, EditError, EditForm, list_names, merge_fence

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from reasond_server.types.repairs import SourceFile

_PLACEHOLDER: Final = re.compile(
    r"(?:.*/)?path/to/.*|(?:.*/)?(?:(?:your|my|the|some)_?)?(?:file|filename|file_name|example|module|script|code)\.\w+",
    re.IGNORECASE,
)
_PATH_WORD: Final = re.compile(r"[\w.@+/\\-]{0,200}[\w+-]\.[A-Za-z]\w{0,9}|`[^`\n]{1,200}`")
_COMMENT_PATH: Final = re.compile(
    r"\s*(?:#+|//+|/\*+|--|<!--|;+|%)\s*(?:(?:file ?name|file|path)\s*:\s*)?`?([\w.@+/\\-]{1,200}\.[A-Za-z]\w{0,9})`?"
    r"(?:\s*[(:,-].{0,80})?\s*(?:\*/|-->)?\s*",
    re.IGNORECASE,
)
_LONGEST_COMMENT: Final = 400
_MOST_NAMED: Final = 5
_MOST_TRIED: Final = 200


def write_anchor(edit: Edit) -> Anchor:
    """Return what an edit searches for."""
    old, new = (edit.anchor or "").split("\n")[:-1], (edit.text or "").split("\n")[:-1]
    return Anchor(old=old, new=new, lead=edit.lead, trail=edit.trail, line=edit.line, section=edit.section)


def resolve_targets(
    edits: Sequence[Edit], files: Mapping[str, SourceFile], *, protected: Callable[[str], bool]
) -> Sequence[Edit]:
    """Return the edits with the paths of the files that they mean, without fences that only quote or illustrate.

    Raises:
        EditError: an edit may mean several files, or none.
    """
    finder = _TargetFinder(files, protected)
    named = [finder.read_comment(edit) for edit in edits]
    is_explicit = any(edit.path or edit.form is not EditForm.FENCE for edit in named)
    chosen = [edit for edit in named if edit.path or edit.form is not EditForm.FENCE or not is_explicit]
    found = [each for edit in chosen if (each := finder.find(edit)) is not None]
    blocks = {edit.path for edit in found if edit.form is not EditForm.FENCE}
    kept = [
        edit
        for edit in found
        if edit.form is not EditForm.FENCE or not (finder.quotes(edit) or (edit.path in blocks and not edit.is_named))
    ]
    if not kept and found:
        kept = found
    if not kept:
        raise EditError(finder.problem or "No fence of the reply is the whole file, or whole functions of one.")
    return [edit for at, edit in enumerate(kept) if edit not in kept[:at]]


class _TargetFinder:
    def __init__(self, files: Mapping[str, SourceFile], protected: Callable[[str], bool]) -> None:
        self._files = files
        self._is_protected = protected
        self._texts: dict[str, str | None] = {}
        self.problem = ""

    def read_comment(self, edit: Edit) -> Edit:
        """Return a fence whose first line names its file in a comment with that path."""
        if edit.form is not EditForm.FENCE or edit.path or not edit.text:
            return edit
        first, _, rest = edit.text.lstrip("\n").partition("\n")
        found = _COMMENT_PATH.fullmatch(first) if len(first) <= _LONGEST_COMMENT else None
        path = self._match(found[1]) if found else ""
        if found is None or (not path and (_PLACEHOLDER.fullmatch(found[1]) or "/" not in found[1])):
            return edit
        text = self._read(path) if path else None
        has_line = text is not None and text.split("\n", 1)[0].strip() == first.strip()
        return replace(edit, path=path or found[1], text=edit.text if has_line else rest, is_named=True)

    def find(self, edit: Edit) -> Edit | None:
        """Return the edit with the path of its file; None for a fence that belongs to none.

        Raises:
            EditError: it may mean several files, or none.
        """
        path = edit.path
        if path in self._files or (path and edit.form is EditForm.FENCE and not self._is_elsewhere(edit)):
            return edit
        if path and (known := self._match(path)):
            return replace(edit, path=known)
        if edit.anchor is None and edit.form is not EditForm.FENCE:
            return edit
        is_word = "." not in path and "/" not in path
        if path and not is_word and not (_PLACEHOLDER.fullmatch(path) and self._list_editable()):
            if not edit.anchor:
                return edit
            raise EditError(
                f"There is no file {show(path)}, so its lines cannot be searched. {self._list_files()} To make a new "
                "file, write all of it in a fence."
            )
        mentioned = self._read_mention(edit.mention)
        if mentioned is not None:
            return replace(edit, path=mentioned)
        return self._find_by_content(replace(edit, path=""))

    def quotes(self, edit: Edit) -> bool:
        """Return whether a fence only repeats what its file has."""
        text = self._read(edit.path)
        if text is None or edit.text is None:
            return False
        try:
            return merge_fence(edit.path, text, edit.text).rstrip() == text.rstrip()
        except EditError:
            return False

    def _is_elsewhere(self, edit: Edit) -> bool:
        """Return whether the path of a fence names a known file in another way; else it is a new file."""
        known = self._match(edit.path)
        if not known:
            return bool(_PLACEHOLDER.fullmatch(edit.path)) and "path/to/" in edit.path
        folder = edit.path.rpartition("/")[0]
        return edit.path.startswith(("a/", "b/", "/", "./")) or not any(
            path.startswith(f"{folder}/") for path in self._files
        )

    def _match(self, written: str) -> str:
        """Return the one file that a path names, exactly or by its end; empty if none or several do."""
        said = written.replace("\\", "/").strip().removeprefix("./")
        if said in self._files:
            return said
        if said[2:] in self._files and said.startswith(("a/", "b/")):
            return said[2:]
        ends = [path for path in self._files if said.endswith(f"/{path}") or path.endswith(f"/{said}")]
        longest = [path for path in ends if len(path) == max(map(len, ends))]
        return ends[0] if len(ends) == 1 else longest[0] if len(longest) == 1 and said.endswith(longest[0]) else ""

    def _read_mention(self, line: str) -> str | None:
        """Return the one file that a line of prose names; None if it names none.

        Raises:
            EditError: it names several, or one that is not there.
        """
        words = [word.strip("`") for word in _PATH_WORD.findall(line[:600])]
        paths = {path for word in words if (path := self._match(word))}
        strange = [
            word
            for word in words
            if not self._match(word) and re.fullmatch(r"[\w/\\.-]*\.(?:py|js|ts|go|java|rb|rs|c)", word)
        ]
        if len(paths) == 1 and not strange:
            return paths.pop()
        if paths or strange:
            raise EditError(
                f"The line {show(line[:200])} does not name one file of the project. Write the path of the file alone "
                f"on the line above the change. {self._list_files()}"
            )
        return None

    def _find_by_content(self, edit: Edit) -> Edit | None:
        if edit.form is EditForm.FENCE:
            return self._find_home(edit)
        if edit.text is None or not (edit.anchor or "").strip():
            raise EditError("A change has no path above it. Write the path of the file on the line above it.")
        anchor, found = write_anchor(edit), []
        word = max((line.strip() for line in anchor.old), key=len)
        for path in self._list_editable():
            text = self._read(path)
            if text and word in text:
                places = find_places(text.split("\n"), anchor)
                found += [path] * min(len(places), 2)
        if len(found) == 1:
            return replace(edit, path=found[0])
        if not found and len(self._list_editable()) == 1:
            return replace(edit, path=self._list_editable()[0])
        names = ", ".join(show(path) for path in dict.fromkeys(found[:_MOST_NAMED]))
        why = (
            f"its lines are in more than one place: {names}"
            if found
            else "its lines are in no file that may be changed"
        )
        raise EditError(
            f"{edit.form.capitalize()} has no path above it, and {why}. Write the path on the line above it."
        )

    def _find_home(self, edit: Edit) -> Edit | None:
        """Return a fence without a path with that of the one file whose functions it has, or which it is."""
        homes, problems = [], []
        for path in self._list_editable()[:_MOST_TRIED]:
            text, names = self._read(path), list_names(path, edit.text or "")
            if text is None:
                continue
            has_names = bool(names) and any(name in text for name in names)
            if not has_names and not (len(self._list_editable()) == 1 and not names):
                continue
            if (
                has_names
                and not set(names) & set(list_names(path, text))
                and len(self._list_editable()) > 1
                and not any(re.search(rf"\b{re.escape(name)}\s*\(", text) for name in names)
            ):
                continue
            try:
                merge_fence(path, text, edit.text or "")
            except EditError as error:
                problems.append(str(error))
            else:
                homes.append(path)
        if len(homes) == 1:
            return replace(edit, path=homes[0])
        self.problem = (
            f"A fence without a path fits several files: {', '.join(map(show, homes[:_MOST_NAMED]))}. Write the path "
            "on the line above it."
            if homes
            else next(iter(problems), self.problem)
        )
        return None

    def _list_editable(self) -> Sequence[str]:
        return [path for path in self._files if not self._is_protected(path)]

    def _list_files(self) -> str:
        names = self._list_editable()
        more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
        return f"Files that may be changed: {', '.join(map(show, names[:_MOST_NAMED]))}{more}." if names else ""

    def _read(self, path: str) -> str | None:
        if path not in self._texts:
            file = self._files.get(path)
            try:
                self._texts[path] = None if file is None or b"\0" in file.content else file.content.decode()
            except UnicodeDecodeError:
                self._texts[path] = None
        return self._texts[path]
