"""Finds the file that each edit of a reply means, and the lines in it. What may mean two, or none, is refused.

Models copy lines with another indentation, or with blank lines at their ends. What was copied differently is shifted as
a whole, and the new lines with it. Nothing is found by likeness.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from reasond_server.errors.base import show
from reasond_server.repair.edits.parts import Edit, EditError, EditForm, list_names, merge_fence
from reasond_server.types.values import value

if TYPE_CHECKING:
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
MOST_COUNTED: Final = 20
"""Places of an anchor are counted up to one more."""


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


@value
class AnchorPlace:
    """Where an anchor begins, counted from 0, how many lines it has there, and the lines that take their place."""

    at: int
    count: int
    lines: Sequence[str]


@value
class Anchor:
    """The lines to search for, those that take their place, and what else is known of the place.

    `lead` and `trail` are the lines of context at both ends, which a diff may have wrong; `line` counts from 1 and
    `section` is a line above the place: they choose among several.
    """

    old: Sequence[str]
    new: Sequence[str]
    lead: int = 0
    trail: int = 0
    line: int | None = None
    section: str = ""


def find_places(texts: Sequence[str], anchor: Anchor) -> Sequence[AnchorPlace]:
    """Return the places that an anchor may mean, at most one more than 20; one place is certain.

    Lines as they are come first, then without blank lines at their ends, then with another indentation, then without
    wrong context.
    """
    for form in _list_forms(anchor):
        if not any(line.strip() for line in form.old):
            continue
        for find in (_find_exact, _find_shifted):
            places = find(texts, form)
            if places:
                return _choose(texts, places, anchor)
    return _find_exact(texts, anchor) if anchor.old else ()


def _list_forms(anchor: Anchor) -> Sequence[Anchor]:
    forms = [anchor, _strip_blank(anchor)]
    if anchor.lead or anchor.trail:
        end, new_end = len(anchor.old) - anchor.trail, len(anchor.new) - anchor.trail
        forms.append(_strip_blank(Anchor(old=anchor.old[anchor.lead : end], new=anchor.new[anchor.lead : new_end])))
    return forms


def _strip_blank(anchor: Anchor) -> Anchor:
    """Return the anchor without blank lines at its ends, and the new lines without as many."""
    old_lead, old_trail = _count_blank(anchor.old), _count_blank(anchor.old[::-1])
    new_lead, new_trail = min(_count_blank(anchor.new), old_lead), min(_count_blank(anchor.new[::-1]), old_trail)
    old = anchor.old[old_lead : max(old_lead, len(anchor.old) - old_trail)]
    return Anchor(old=old, new=anchor.new[new_lead : max(new_lead, len(anchor.new) - new_trail)])


def _count_blank(lines: Sequence[str]) -> int:
    """Return how many blank lines stand at the beginning."""
    return next((at for at, line in enumerate(lines) if line.strip()), len(lines))


def _find_exact(texts: Sequence[str], anchor: Anchor) -> Sequence[AnchorPlace]:
    return [
        AnchorPlace(at=at, count=len(anchor.old), lines=anchor.new) for at in _search(texts, anchor.old, str.rstrip)
    ]


def _find_shifted(texts: Sequence[str], anchor: Anchor) -> Sequence[AnchorPlace]:
    """Return the places where only the indentation differs: each line of one depth alike, or that of the first line."""
    places = []
    for at in _search(texts, anchor.old, str.strip):
        there = texts[at : at + len(anchor.old)]
        for skipped in (0, 1):
            depths = _compare_depths(anchor.old[skipped:], there[skipped:])
            if depths is None or (skipped and any(mine != real for mine, real in depths.items())):
                continue
            new = list(anchor.new)
            first = [_swap_indent(new[0], there[0])] if skipped and new and _has_same_depth(new[0], anchor.old) else []
            places.append(
                AnchorPlace(at=at, count=len(there), lines=first + [_shift(line, depths) for line in new[len(first) :]])
            )
            break
    return places


def _search(texts: Sequence[str], wanted: Sequence[str], strip: Callable[[str], str]) -> Sequence[int]:
    """Return the numbers of the lines, from 0, at which `wanted` begins, in linear time."""
    whole = "\n" + "".join(f"{strip(line)}\n" for line in texts)
    lines = "\n" + "".join(f"{strip(line)}\n" for line in wanted)
    places: list[int] = []
    at = whole.find(lines)
    while at >= 0 and len(places) <= MOST_COUNTED:
        places.append(at)
        at = whole.find(lines, at + 1)
    return [whole.count("\n", 0, place) for place in places]


def _choose(texts: Sequence[str], places: Sequence[AnchorPlace], anchor: Anchor) -> Sequence[AnchorPlace]:
    """Return the place that line or section name, if they name one; otherwise all."""
    if len(places) == 1:
        return places
    if anchor.section:
        heads = [at for at, line in enumerate(texts) if line.strip() == anchor.section]
        below = [place for place in places if len(heads) == 1 and place.at > heads[0]]
        if below:
            return below[:1]
    exact = [place for place in places if anchor.line is not None and place.at == anchor.line - 1]
    return exact or places


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _swap_indent(line: str, other: str) -> str:
    return _indent(other) + line.lstrip()


def _has_same_depth(line: str, old: Sequence[str]) -> bool:
    return _indent(line) == _indent(old[0])


def _compare_depths(old: Sequence[str], there: Sequence[str]) -> Mapping[str, str] | None:
    """Return the indentations of the file by those of the anchor; None if one does not follow from the other."""
    depths: dict[str, str] = {}
    for mine, real in zip(old, there, strict=True):
        if mine.strip() and depths.setdefault(_indent(mine), _indent(real)) != _indent(real):
            return None
    if not depths or len(set(depths.values())) != len(depths):
        return None
    known = sorted(depths, key=len)
    is_ordered = all(len(depths[less]) < len(depths[more]) for less, more in pairwise(known))
    return depths if is_ordered else None


def _shift(line: str, depths: Mapping[str, str]) -> str:
    """Return a new line with the indentation that its own one stands for."""
    if not line.strip():
        return line
    mine = _indent(line)
    if mine in depths:
        return depths[mine] + line.lstrip()
    base = max((depth for depth in depths if mine.startswith(depth)), key=len, default=None)
    if base is None:
        # It stands further left than every line of the anchor.
        least = min(depths, key=len)
        lost = len(least) - len(mine)
        return depths[least][: max(0, len(depths[least]) - lost)] + line.lstrip()
    return depths[base] + _convert(mine[len(base) :], depths) + line.lstrip()


def _convert(rest: str, depths: Mapping[str, str]) -> str:
    """Return the deeper part of an indentation in the unit of the file, where two known depths tell both units."""
    known = sorted(depths, key=len)
    units = [
        (more[len(less) :], depths[more][len(depths[less]) :])
        for less, more in pairwise(known)
        if more.startswith(less) and depths[more].startswith(depths[less])
    ]
    if not units and known[0] and depths[known[0]].strip(" ") != known[0].strip(" "):
        units = [(known[0], depths[known[0]])]
    for mine, real in units:
        if mine and len(rest) % len(mine) == 0 and rest == mine * (len(rest) // len(mine)):
            return real * (len(rest) // len(mine))
    return rest
