"""Reads the edits of a model's reply: search/replace blocks, diffs, JSON, fences, and deletions.

`write_edit_format` has the two forms that prompts ask for. The reader also accepts what models write instead: other
marks, fences around blocks, a path in a heading, behind the mark or in prose, diffs, patches and objects of JSON. Which
file an edit means is decided where it is applied.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from html import unescape
from typing import Final

from reasond_server.context.replies import parse_reply
from reasond_server.errors.base import show
from reasond_server.repair.edits.diffs import begins_diff, is_diff, join_lines, read_diff, read_json, read_tags
from reasond_server.repair.edits.parts import Edit, EditError, EditForm, EditReply
from reasond_server.types.values import value

_EXAMPLE_WORD: Final = "total_of_example"
_FORMAT: Final = """\
Write each change as a block below the path of its file. An example, for {path}:

{path}
<<<<<<< SEARCH
    return total_of_example - 1
=======
    return total_of_example + 1
>>>>>>> REPLACE

Above ======= stand whole lines of the file as they are now, with their indentation, enough of them to occur exactly \
once. Below it stand the lines that take their place. Leave nothing out and write no line numbers. Several blocks for \
one file apply in order. If the lines contain such marks themselves, make all three marks of the block one character \
longer. A new file stands whole in a fence that names its path, as in ```python {path}. To delete a file, write its \
path and below it the line <<<<<<< DELETE
"""
_WHOLE_FORMAT: Final = (
    "Write each file that you change on its own: its path, such as {path}, on a line of its own, and below it the "
    "whole corrected file in a fenced code block. A new file is written in the same way. To delete a file, write its "
    "path and below it the line <<<<<<< DELETE"
)

_MAX_CHARACTERS: Final = 2_000_000
_USUAL_MARK: Final = 7
_FEWEST_MARKS: Final = 5
_MAX_PATH_LINE: Final = 300
_OLD_WORDS: Final = frozenset(("SEARCH", "DELETE", "HEAD", "ORIGINAL", "OLD", "BEFORE", "CURRENT", "FIND"))
_OPENER = re.compile(r"[ \t]{0,16}(<{5,40}|-{5,40}) ?([A-Za-z]*)[ \t]*[:(`\"']*[ \t]*([^\s<>`\"')]*)[^\n]{0,80}")
_CLOSER = re.compile(r"[ \t]{0,16}(>{5,40}|\+{5,40}(?= ?REPLACE))(?: ?[\w./:-][\w ./:-]{0,80})?[ \t]*", re.IGNORECASE)
_DIVIDER = re.compile(r"[ \t]{0,16}(={5,40})[ \t]*")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_DEEP_FENCE = re.compile(r"([ \t]{0,12})(`{3,}|~{3,})(.*)")
_THINKING = re.compile(r"\s*<[ \t]{0,2}think[ \t]{0,2}>", re.IGNORECASE)
_THINKING_END = re.compile(r"<[ \t]{0,2}/[ \t]{0,2}think[ \t]{0,2}>", re.IGNORECASE)
_FIRST_CHANGE = re.compile(r"^(?:<{5,40} ?(?:SEARCH|DELETE|HEAD)| {0,3}(?:`{3}|~{3}))", re.IGNORECASE | re.MULTILINE)
_LABEL = re.compile(r"(?:file ?name|file|path)[*`]{0,3}(?:[ \t]{0,2}:[*]{0,2}[ \t]*|[ \t]{1,2})", re.IGNORECASE)
_LIST_MARK = re.compile(r"(?:#{1,6}|[-*+]|\d{1,3}\.)[ \t]+")
_TOKEN = re.compile(r"[^\s<>|*?\"'`]*[^\s<>|*?\"'`.,:;!]")
_FILE_NAME = re.compile(r"[\w.@+/\\-]{0,200}\.[A-Za-z]\w{0,9}")
_INFO_KEY = re.compile(r"(?:file ?name|file|path|title)=", re.IGNORECASE)
_LINES_OF = re.compile(r":\d{1,6}(?:[-:]\d{1,6})?$|^\d{1,6}:\d{1,6}:")
_CANDIDATE = re.compile(
    r"[ \t]{0,3}(?:#{1,6}[ \t]+)?[*_]{0,3}(?:candidate|option|alternative|solution)(?:[ \t]+(?:patch|fix))?[ \t]+#?"
    r"(?:\d{1,4}|[A-D])[*_]{0,3}(?:[:.)](.*)|[ \t]*)",
    re.IGNORECASE,
)
_PLACE_LINES = re.compile(
    r"(^<{5,40} ?SEARCH[ \t]*\n)(?::(?:start|end)_line:[ \t]*\d{1,7}[ \t]*\n){1,2}-{3,40}[ \t]*\n", re.MULTILINE
)
_NUMBER = re.compile(r"[ \t]{0,6}\d{1,6}[ \t]?[|│→\t] ?")
_HEREDOC = re.compile(r"cat[ \t]{0,4}>[ \t]{0,4}[\"']?([\w./-]{1,300})[\"']?[ \t]{0,4}<<-?[ \t]?[\"']?(\w{1,40})[\"']?")
_FIRST_LINE = re.compile(
    r"(?:file ?name|file|path):[ \t]*([\w./-]{1,300}\.\w{1,10})|(?:\"{3}|'{3})([\w./-]{1,300}\.\w{1,10})(?:\"{3}|'{3})",
    re.IGNORECASE,
)
_FENCE_TAG = re.compile(r"[ \t]*</?(?:material|question|observation|passage) [a-z]{16,64}>[ \t]*")
_FROM = re.compile(r"\b(?:change|replace|from|before|original|old|find|search|current|instead of)\b", re.IGNORECASE)
_TO = re.compile(
    r"\W{0,4}(?:and )?(?:replace (?:it |this )?)?(?:to|with|by|into|after|new|becomes|should be|"
    r"fixed|corrected|updated|replacement|replace)\b",
    re.IGNORECASE,
)
_WHOLE_PART = re.compile(r"\s*(?:@|def |class |async |import |from |func |function |export |package )")


def write_edit_format(path: str, *, is_whole: bool = False) -> str:
    """Return how the model is to write edits, with `path` of the task as the example; a part of prompts.

    With `is_whole` it writes files whole.
    """
    return (_WHOLE_FORMAT if is_whole else _FORMAT).format(path=path)


@value
class CandidateSolution:
    """One of several solutions in one reply."""

    candidate_id: str
    code_or_plan: str


def read_reply(text: str) -> EditReply:
    """Return the edits of a reply as they are written, and what else it says; of several candidates those of the first.

    Raises:
        EditError: the reply has no edits, was cut, or has a block that cannot be read.
    """
    if len(text) > _MAX_CHARACTERS:
        raise EditError(
            f"The reply has {len(text)} characters; at most {_MAX_CHARACTERS} are read. Change fewer lines."
        )
    thinking, body = _divide_thinking(text)
    part = _undress(split_candidates(body)[0])
    edits = [*read_json(part)] or [*read_tags(part)]
    prose = ""
    if not edits:
        reader = _EditReader(part)
        reader.read()
        edits, prose = reader.edits, "\n".join(reader.prose).strip()
    edits = [edit for edit in edits if _EXAMPLE_WORD not in f"{edit.anchor}{edit.text}"]
    if not edits:
        raise EditError(_describe_unread(part))
    return EditReply(thought="\n\n".join(each for each in (thinking, prose) if each), edits=edits)


def _undress(text: str) -> str:
    """Return a reply without what stands around all of it: marks of a quotation, entities, places of blocks."""
    lines = text.split("\n")
    if all(line.startswith(">") or not line.strip() for line in lines):
        lines = [line[2:] if line.startswith("> ") else line[1:] for line in lines]
    text = "\n".join(lines)
    if "<<<<<" not in text and "&lt;&lt;&lt;&lt;&lt;" in text:
        text = unescape(text)
    return _PLACE_LINES.sub(r"\1", text)


def _describe_unread(part: str) -> str:
    """Return why a reply has no edits, by what it has instead."""
    if _EXAMPLE_WORD in part:
        return "The reply repeats the example of the instructions. Write the lines of the file instead."
    if not part.strip():
        return "The reply is empty, so it has no edit that could be read. Write a block as in the example."
    return "The reply has no edit that could be read: it is prose alone. Write a block as in the example."


def list_candidates(text: str) -> Sequence[str]:
    """Return the texts of the candidates of a reply, each with the reasoning of the reply before it."""
    if len(text) > _MAX_CHARACTERS:
        return [text]
    try:
        _, body = _divide_thinking(text)
    except EditError:
        return [text]
    parts = split_candidates(body)
    return [text] if len(parts) == 1 else parts


def split_candidates(text: str) -> Sequence[str]:
    """Return the parts of a reply below the headings "Candidate 1:", "Candidate 2:" …; without headings all of it.

    Headings count at the beginning of a line, outside fences. What stands before the first one belongs to no candidate.
    """
    parts: list[list[str]] = []
    fence = ""
    for line in text.split("\n"):
        found = _FENCE.fullmatch(line.rstrip("\r"))
        if found is not None:
            fence = _follow_fence(fence, found[1], found[2])
        heading = None if fence or found else _CANDIDATE.fullmatch(line.rstrip("\r"))
        if heading is not None:
            parts.append([(heading[1] or "").lstrip(" \t*_")])
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


def _follow_fence(fence: str, mark: str, info: str) -> str:
    """Return the mark of the fence that is open after a fence line with `mark` and `info`; empty if none is."""
    if not fence:
        return "" if mark[0] == "`" and "`" in info else mark
    return "" if mark.startswith(fence) and not info.strip() else fence


class _EditReader:
    """Goes through the lines of a reply once.

    `_near` is the last line of prose or the path of a fence, which may name the file of the change below it; `_near_at`
    is the place of that line in `prose`; `_last` is the path of the block before, as long as no prose follows it.
    """

    def __init__(self, text: str) -> None:
        lines = [line.removesuffix("\r") for line in text.split("\n")]
        self._lines = [line for line in lines if "<" not in line or _FENCE_TAG.fullmatch(line) is None]
        self._at = 0
        self._near = ""
        self._near_at: int | None = None
        self._last = ""
        self._fence = ""
        self._pair: str | None = None
        self.edits: list[Edit] = []
        self.prose: list[str] = []

    def read(self) -> None:
        """Read all lines."""
        while self._at < len(self._lines):
            line = self._lines[self._at]
            fenced = _DEEP_FENCE.fullmatch(line)
            if _match_opener(line):
                self._read_block()
            elif fenced is not None and (self._fence or _follow_fence("", fenced[2], fenced[3])):
                self._read_fence(fenced)
            elif line[:1] in {"-", "d", "*", "@"} and begins_diff(self._lines, self._at):
                self._read_diff()
            else:
                self._read_prose(line)

    def _read_prose(self, line: str) -> None:
        self._at += 1
        if line.strip():
            self._near, self._near_at, self._last = line.strip(), len(self.prose), ""
        self.prose.append(line)

    def _read_diff(self) -> None:
        """Read a diff that stands in the reply without a fence, or in an open one."""
        path, mention = self._take_name(is_word_enough=False)
        edits, count = read_diff(self._lines[self._at :], path=path, mention=mention, is_fenced=False)
        self.edits += edits
        self._at += max(count, 1)
        self._end_edit("")

    def _read_fence(self, found: re.Match[str]) -> None:
        """Read a fence line, or a whole fence that holds no blocks."""
        named = _read_info(found[3])
        self._at += 1
        if self._fence or self._has_block_ahead():
            if named:
                self._near, self._near_at = named, None
            self._fence = _follow_fence(self._fence, found[2], found[3])
            return
        end, depth = self._at, found[1]
        while end < len(self._lines) and not _is_fence_end(self._lines[end], found[2], len(depth)):
            end += 1
        content = [line.removeprefix(depth) for line in self._lines[self._at : end]]
        self._at = end + 1
        self._take_content(content, named, found[3])

    def _take_content(self, content: Sequence[str], named: str, info: str) -> None:
        """Make edits of the content of a fence."""
        content = _cut_numbers(content)
        if not named and content:
            named, content = _read_first_line(content)
        if is_diff(content, info) and not named.endswith((".diff", ".patch")):
            path, mention = (named, "") if named else self._take_name(is_word_enough=False)
            edits, _ = read_diff(content, path=path, mention=mention, is_fenced=True)
            self.edits += edits
            self._end_edit("")
            return
        text = join_lines(content)
        if not named.endswith(".json") and (edits := read_json(text)):
            self.edits += edits
            self._end_edit("")
            return
        near = self._near
        path, mention = (named, "") if named else self._take_name(is_word_enough=False)
        edit = Edit(path=path, text=text, form=EditForm.FENCE, is_named=bool(named), mention=mention)
        before, self._pair = self._pair, None
        if before is not None and _TO.match(near) and self.edits and not _WHOLE_PART.match(text):
            first = self.edits.pop()
            self.edits.append(replace(first, anchor=before, text=text, form=EditForm.BLOCK))
        else:
            self.edits.append(edit)
            self._pair = text if _FROM.search(near) and text.strip() and not _WHOLE_PART.match(text) else None
        if not path:
            self.prose += content
        self._near, self._near_at, self._last = "", None, ""

    def _has_block_ahead(self) -> bool:
        """Return whether the fence that begins here holds blocks: a mark is its first line, or stands below a path."""
        ahead = [line for line in self._lines[self._at : self._at + 6] if line.strip()][:2]
        if ahead and _match_opener(ahead[0]):
            return True
        return len(ahead) > 1 and bool(_match_opener(ahead[1])) and _DEEP_FENCE.fullmatch(ahead[0]) is None

    def _read_block(self) -> None:
        opener = _match_opener(self._lines[self._at])
        assert opener is not None  # noqa: S101 - the caller has seen it
        mark, word, named = opener
        path, mention = (named, "") if named else self._take_name()
        path = path or ("" if mention else self._last)
        self._at += 1
        if word == "DELETE":
            if not path:
                raise EditError("A DELETE has no path above it. Write the path of the file on the line above it.")
            self.edits.append(Edit(path=path))
            self._end_edit(path)
            return
        begin, size = self._at, len(mark)
        dividers: list[int] = []
        while not self._is_block_end(size, has_divider=len(dividers) == 1):
            if self._at >= len(self._lines) or _is_opener(self._lines[self._at], size):
                self._refuse_cut(f"a block of {show(path)}" if path else "a block")
            if _is_mark(_DIVIDER, self._lines[self._at], size):
                dividers.append(self._at)
            self._at += 1
        if len(dividers) != 1:
            raise EditError(
                f"A block of {show(path)} has {len(dividers)} lines of ======= between its marks, it must be one. If"
                " the file itself has such lines, make all three marks of the block one character longer."
            )
        anchor, text = self._lines[begin : dividers[0]], self._lines[dividers[0] + 1 : self._at]
        if anchor and _FILE_NAME.fullmatch(anchor[0].strip()) and (not path or anchor[0].strip() == path):
            path, anchor = anchor[0].strip(), anchor[1:]
        self._at += 1 if self._at < len(self._lines) and _DEEP_FENCE.fullmatch(self._lines[self._at]) is None else 0
        old, new = join_lines(_cut_numbers(anchor)), join_lines(_cut_numbers(text))
        self.edits.append(Edit(path=path, anchor=old, text=new, mention=mention))
        self._end_edit(path)

    def _is_block_end(self, size: int, *, has_divider: bool) -> bool:
        """Return whether the block ends here: at its mark, or at the end of the fence around it."""
        if self._at >= len(self._lines):
            return False
        line = self._lines[self._at]
        return _is_mark(_CLOSER, line, size) or (
            has_divider and bool(self._fence) and _is_fence_end(line, self._fence, 0)
        )

    def _take_name(self, *, is_word_enough: bool = True) -> tuple[str, str]:
        """Return the path that the line above names, which is no prose then, or else that line."""
        path = _read_path_line(self._near, is_word_enough=is_word_enough)
        if path and self._near_at is not None:
            del self.prose[self._near_at]
            self._near_at = None
        return path, "" if path else self._near[:_MAX_PATH_LINE]

    def _end_edit(self, path: str) -> None:
        self._near, self._near_at, self._last, self._pair = "", None, path, None

    def _refuse_cut(self, what: str) -> None:
        raise EditError(f"The reply was cut: {what} is not closed. Write fewer lines, and close every block and fence.")


def _cut_numbers(lines: Sequence[str]) -> Sequence[str]:
    """Return lines without the numbers that stand before all of them, as prompts and editors show files."""
    found = [_NUMBER.match(line) for line in lines if line.strip()]
    if not found or not all(found):
        return lines
    return [_NUMBER.sub("", line, count=1) for line in lines]


def _read_first_line(content: Sequence[str]) -> tuple[str, Sequence[str]]:
    """Return the path that the first line of a fence gives, with the rest: a label, a docstring, or a here-document."""
    first = content[0].strip()
    if (found := _HEREDOC.fullmatch(first)) and found[2] in content[1:]:
        end = content.index(found[2], 1)
        return ("", content) if any(line.strip() for line in content[end + 1 :]) else (found[1], content[1:end])
    found = _FIRST_LINE.fullmatch(first)
    return (found[1] or found[2], content[1:]) if found else ("", content)


def _match_opener(line: str) -> tuple[str, str, str] | None:
    """Return the mark, the word and the path of a line that begins a block; None for other lines."""
    if line.lstrip(" \t")[:1] not in {"<", "-"}:
        return None
    found = _OPENER.fullmatch(line)
    if found is None:
        return None
    mark, word, rest = found[1], found[2].upper(), found[3]
    if mark[0] == "-" and word != "SEARCH":
        return None
    if word not in _OLD_WORDS:
        rest = f"{found[2]}{rest}" if rest[:1] in {".", "/", "_"} else rest
        if len(mark) < _USUAL_MARK:
            return None
    is_path = bool(_FILE_NAME.fullmatch(rest)) or "/" in rest
    return mark, word, rest.rstrip(":") if is_path else ""


def _is_opener(line: str, size: int) -> bool:
    opener = _match_opener(line)
    return opener is not None and opener[1] in _OLD_WORDS and _has_size(opener[0], size)


def _is_mark(mark: re.Pattern[str], line: str, size: int) -> bool:
    """Return whether `line` is a mark of a block whose marks have `size` characters; some models write 6 or 5."""
    found = mark.fullmatch(line)
    return found is not None and _has_size(found[1], size)


def _has_size(mark: str, size: int) -> bool:
    return len(mark) == size or (_FEWEST_MARKS <= len(mark) <= _USUAL_MARK and size <= _USUAL_MARK)


def _is_fence_end(line: str, fence: str, depth: int) -> bool:
    found = _DEEP_FENCE.fullmatch(line)
    return found is not None and len(found[1]) <= depth + 3 and not _follow_fence(fence, found[2], found[3])


def _read_info(info: str) -> str:
    """Return the path that the info string of a fence names, such as "python src/a.py"; empty if it names none."""
    language, _, rest = _LINES_OF.sub("", info.strip()).partition(" ")
    if not rest and ":" in language:
        rest = language.partition(":")[2]
    elif not rest:
        rest = language
    keyed = _INFO_KEY.match(rest.strip())
    path = rest.strip()[keyed.end() if keyed else 0 :].strip("\"'`{}")
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
    if is_quoted and "`" not in path and (is_word_enough or "/" in path or "." in path):
        return path
    if not _TOKEN.fullmatch(path):
        return ""
    is_plain_word = "/" not in path and "." not in path
    return "" if is_plain_word and not (is_word_enough and not line.endswith(":")) else path
