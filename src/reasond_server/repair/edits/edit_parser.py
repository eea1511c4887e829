"""Reads the edits of a model's reply: search/replace blocks, whole files in fences, and deletions.

EDIT_FORMAT is the one form that prompts ask for. The reader also accepts what models write instead of it if there is no
doubt about its meaning: fences around blocks, a path in a heading or in backticks, a second block below the same path.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from reasond_server.context.replies import parse_reply
from reasond_server.errors.base import show
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

EDIT_FORMAT: Final = """\
Write each change as the path of the file on a line of its own, then a block:

path/to/file.py
<<<<<<< SEARCH
whole lines of the file as they are now, enough of them to occur exactly once
=======
the lines that take their place
>>>>>>> REPLACE

If the lines contain such marks themselves, make all three marks of the block one character longer. Several blocks for
one file apply in order. A new file, or one that you write anew, stands whole in a fence that names its path:

```python path/to/file.py
all lines of the file
```

To delete a file, write its path and below it the line <<<<<<< DELETE
"""
"""How the model is to write edits; a part of prompts."""

_MAX_CHARACTERS: Final = 2_000_000
_USUAL_MARK: Final = 7
_FEWEST_MARKS: Final = 5
_MAX_PATH_LINE: Final = 300
_OPENER = re.compile(r"(<{5,40}) ?(SEARCH|DELETE)[ \t]*", re.IGNORECASE)
_CLOSER = re.compile(r"(>{5,40}) ?REPLACE[ \t]*", re.IGNORECASE)
_DIVIDER = re.compile(r"(={5,40})[ \t]*")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_THINKING = re.compile(r"\s*<[ \t]{0,2}think[ \t]{0,2}>", re.IGNORECASE)
_THINKING_END = re.compile(r"<[ \t]{0,2}/[ \t]{0,2}think[ \t]{0,2}>", re.IGNORECASE)
_FIRST_CHANGE = re.compile(r"^(?:<{5,40} ?(?:SEARCH|DELETE)| {0,3}(?:`{3}|~{3}))", re.IGNORECASE | re.MULTILINE)
_LABEL = re.compile(r"(?:file ?name|file|path)[*`]{0,3}[ \t]{0,2}:[*]{0,2}[ \t]*", re.IGNORECASE)
_LIST_MARK = re.compile(r"(?:#{1,6}|[-*+]|\d{1,3}\.)[ \t]+")
_TOKEN = re.compile(r"[^\s<>|*?\"'`]*[^\s<>|*?\"'`.,:;!]")
_INFO_KEY = re.compile(r"(?:file ?name|file|path|title)=", re.IGNORECASE)
_CANDIDATE = re.compile(
    r"[ \t]{0,3}(?:#{1,6}[ \t]+)?[*_]{0,3}candidate[ \t]+\d{1,4}[*_]{0,3}(?::.*|[ \t]*)", re.IGNORECASE
)


class EditError(Exception):
    """A reply that cannot be used; the text says why and how to mend it, and is fit to be shown to the model."""


@value
class Edit:
    """One change of a file: whole lines in place of an anchor, a whole file without one, or without text a deletion."""

    path: str
    anchor: str | None = None
    text: str | None = None


@value
class EditReply:
    """A reply of the model: its reasoning and prose, and its edits, at least one, in order."""

    thought: str
    edits: Sequence[Edit]


@value
class CandidateSolution:
    """One of several solutions in one reply."""

    candidate_id: str
    code_or_plan: str


def read_reply(text: str) -> EditReply:
    """Return the edits of a reply, and what else it says; of several candidates those of the first.

    Raises:
        EditError: the reply has no edits, was cut, or has a block that cannot be read.
    """
    if len(text) > _MAX_CHARACTERS:
        raise EditError(
            f"The reply has {len(text)} characters; at most {_MAX_CHARACTERS} are read. Change fewer lines."
        )
    thinking, body = _divide_thinking(text)
    reader = _EditReader(split_candidates(body)[0])
    reader.read()
    if not reader.edits:
        raise EditError("The reply has no edit that could be read. " + EDIT_FORMAT)
    prose = "\n".join(reader.prose).strip()
    return EditReply(thought="\n\n".join(part for part in (thinking, prose) if part), edits=reader.edits)


def split_candidates(text: str) -> Sequence[str]:
    """Return the parts of a reply below the headings "Candidate 1:", "Candidate 2:" …; without headings all of it.

    Headings count at the beginning of a line, outside fences. What stands before the first one belongs to no candidate.
    """
    parts: list[list[str]] = []
    fence = ""
    for line in text.split("\n"):
        found = _FENCE.fullmatch(line.rstrip("\r"))
        if found is not None:
            fence = _follow_fence(fence, found)
        if not fence and found is None and _CANDIDATE.fullmatch(line.rstrip("\r")):
            parts.append([line.partition(":")[2].lstrip(" \t*_")])
        elif parts:
            parts[-1].append(line)
    joined = [part for part in ("\n".join(lines).strip() for lines in parts) if part]
    return joined or [text.strip()]


def parse_candidates(text: str, *, first_number: int = 1) -> Sequence[CandidateSolution]:
    """Return the candidates of a reply in order, with ids from "cand-{first_number}" on."""
    return [
        CandidateSolution(candidate_id=f"cand-{number}", code_or_plan=part)
        for number, part in enumerate(split_candidates(text), start=first_number)
    ]


def _divide_thinking(text: str) -> tuple[str, str]:
    """Return the reasoning in tags at the beginning, and the rest.

    Only tags before the first change are read: a change may contain such tags as text.
    """
    first, end = _FIRST_CHANGE.search(text), _THINKING_END.search(text)
    is_tagged = _THINKING.match(text) is not None
    if not is_tagged and (end is None or (first is not None and first.start() < end.start())):
        return "", text
    if end is None:
        raise EditError("The reply ends within its reasoning. Reason briefly, then write the edits.")
    parsed = parse_reply(text[: end.end()], kinds=(), is_stop=True)
    return "\n\n".join(part for part in (parsed.thinking.strip(), parsed.text.strip()) if part), text[end.end() :]


def _follow_fence(fence: str, found: re.Match[str]) -> str:
    """Return the mark of the fence that is open after the fence line `found`; empty if none is."""
    if not fence:
        return "" if found[1][0] == "`" and "`" in found[2] else found[1]
    return "" if found[1].startswith(fence) and not found[2].strip() else fence


class _EditReader:
    """Goes through the lines of a reply once.

    `_near` is the last line of prose or the path of a fence, which may name the file of the change below it; `_near_at`
    is the place of that line in `prose`; `_last` is the path of the change before.
    """

    def __init__(self, text: str) -> None:
        self._lines = [line.removesuffix("\r") for line in text.split("\n")]
        self._at = 0
        self._near = ""
        self._near_at: int | None = None
        self._last = ""
        self._named: list[str] = []
        self.edits: list[Edit] = []
        self.prose: list[str] = []

    def read(self) -> None:
        """Read all lines."""
        fence = ""
        while self._at < len(self._lines):
            line = self._lines[self._at]
            opener, fenced = _OPENER.fullmatch(line), _FENCE.fullmatch(line)
            if opener is not None:
                self._read_block(opener)
            elif fenced is not None and (fence or _follow_fence("", fenced)):
                fence = self._read_fence(fence, fenced)
            else:
                self._read_prose(line)
        if fence:
            self._refuse_cut("a fence")
        self._drop_quotations()

    def _read_prose(self, line: str) -> None:
        self._at += 1
        if line.strip():
            self._near, self._near_at = line.strip(), len(self.prose)
        self.prose.append(line)

    def _read_fence(self, fence: str, found: re.Match[str]) -> str:
        """Read a fence line, or a whole fence that holds no blocks; return the mark of the fence that is open then."""
        named = _read_info(found[2])
        self._at += 1
        if fence or self._has_block_ahead():
            if named:
                self._near, self._near_at = named, None
            return _follow_fence(fence, found)
        end = self._at
        while not _is_fence_end(self._lines[end], found[1]):
            end += 1
            if end == len(self._lines):
                self._refuse_cut("a fence")
        content = self._lines[self._at : end]
        path = named or self._take_path_line(is_word_enough=False)
        self._at = end + 1
        if path:
            self._named += [path] if named else []
            self._add(Edit(path=path, text="".join(f"{line}\n" for line in content)))
        else:
            self.prose += content
        return ""

    def _has_block_ahead(self) -> bool:
        """Return whether the fence that begins here holds blocks: a mark is its first line, or stands below a path."""
        ahead = [line for line in self._lines[self._at : self._at + 6] if line.strip()][:2]
        if ahead and _OPENER.fullmatch(ahead[0]):
            return True
        return len(ahead) > 1 and _OPENER.fullmatch(ahead[1]) is not None and bool(_read_path_line(ahead[0]))

    def _read_block(self, opener: re.Match[str]) -> None:
        path = self._take_path_line() or self._last or self._near[:_MAX_PATH_LINE]
        if not path:
            raise EditError("A block has no path above it. Write the path of the file on the line above the block.")
        self._at += 1
        if opener[2].upper() == "DELETE":
            self._add(Edit(path=path))
            return
        begin, size = self._at, len(opener[1])
        dividers: list[int] = []
        while not _is_mark(_CLOSER, self._lines[self._at] if self._at < len(self._lines) else None, size):
            if self._at >= len(self._lines) or _is_mark(_OPENER, self._lines[self._at], size):
                self._refuse_cut(f"a block of {show(path)}")
            if _is_mark(_DIVIDER, self._lines[self._at], size):
                dividers.append(self._at)
            self._at += 1
        if len(dividers) != 1:
            raise EditError(
                f"A block of {show(path)} has {len(dividers)} lines of ======= between its marks, it must be one. If"
                " the file itself has such lines, make all three marks of the block one character longer."
            )
        anchor, text = self._lines[begin : dividers[0]], self._lines[dividers[0] + 1 : self._at]
        self._at += 1
        self._add(Edit(path=path, anchor=_join_lines(anchor), text=_join_lines(text)))

    def _take_path_line(self, *, is_word_enough: bool = True) -> str:
        """Return the path that the line above names, which is no prose then; empty if it names none."""
        path = _read_path_line(self._near, is_word_enough=is_word_enough)
        if path and self._near_at is not None:
            del self.prose[self._near_at]
            self._near_at = None
        return path

    def _add(self, edit: Edit) -> None:
        self.edits.append(edit)
        self._near, self._near_at, self._last = "", None, edit.path

    def _drop_quotations(self) -> None:
        """Leave out whole files that were written again later, or that only quote what blocks change.

        A fence below a path may be a quotation; one that names the path itself is not.
        """
        blocks = {edit.path for edit in self.edits if edit.anchor is not None}
        latest = {edit.path: edit for edit in self.edits if edit.anchor is None and edit.text is not None}
        self.edits = [
            edit
            for edit in self.edits
            if edit.anchor is not None
            or edit.text is None
            or (edit is latest[edit.path] and (edit.path not in blocks or edit.path in self._named))
        ]

    def _refuse_cut(self, what: str) -> None:
        raise EditError(f"The reply was cut: {what} is not closed. Write fewer lines, and close every block and fence.")


def _is_mark(mark: re.Pattern[str], line: str | None, size: int) -> bool:
    """Return whether `line` is a mark of a block whose marks have `size` characters; some models write 6 or 5."""
    found = mark.fullmatch(line) if line is not None else None
    if found is None:
        return False
    return len(found[1]) == size or (_FEWEST_MARKS <= len(found[1]) <= _USUAL_MARK and size <= _USUAL_MARK)


def _is_fence_end(line: str, fence: str) -> bool:
    found = _FENCE.fullmatch(line)
    return found is not None and not _follow_fence(fence, found)


def _read_info(info: str) -> str:
    """Return the path that the info string of a fence names, such as "python src/a.py"; empty if it names none."""
    language, _, rest = info.strip().partition(" ")
    if not rest and ":" in language:
        rest = language.partition(":")[2]
    elif not rest:
        rest = language
    keyed = _INFO_KEY.match(rest.strip())
    path = rest.strip()[keyed.end() if keyed else 0 :].strip("\"'`")
    return path if _TOKEN.fullmatch(path) and ("/" in path or "." in path) else ""


def _read_path_line(line: str, *, is_word_enough: bool = True) -> str:
    """Return the path that is alone on a line, without its decoration; empty if the line is prose.

    A single word without a slash or dot counts with `is_word_enough`.
    """
    if len(line) > _MAX_PATH_LINE:
        return ""
    marked = _LIST_MARK.match(line)
    path = line[marked.end() if marked else 0 :].strip().strip("*").strip()
    labelled = _LABEL.match(path)
    path = path[labelled.end() if labelled else 0 :].strip()
    is_quoted = path.strip(":*").startswith("`") and path.strip(":*").endswith("`")
    path = path.strip("*:").strip("`").strip().removeprefix("./")
    if is_quoted and "`" not in path:
        return path
    if not _TOKEN.fullmatch(path):
        return ""
    is_plain_word = "/" not in path and "." not in path
    return "" if is_plain_word and not (is_word_enough and not line.endswith(":")) else path


def _join_lines(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)
