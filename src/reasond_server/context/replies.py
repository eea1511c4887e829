"""The incremental parser of a model's reply: it separates reasoning, answer and notes."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from reasond_server.context.tags import TagKind
from reasond_server.dialects.reasoning_marks import is_spoken_of
from reasond_server.types.values import value

_TAG = re.compile(r"<[ \t]{0,2}(/?)[ \t]{0,2}(answer|continue|action|think)[ \t]{0,2}>", re.IGNORECASE | re.ASCII)
_TAG_NAMES = ("answer", "continue", "action", "think")
_PLAIN_KINDS = (TagKind.ANSWER, TagKind.CONTINUE)
_KIND_OF_NAME = {kind.value: kind for kind in TagKind}
_UNFINISHED_TAG = re.compile(r"<[ \t]{0,2}(/?)[ \t]{0,2}([a-z]{0,8})[ \t]{0,2}", re.IGNORECASE | re.ASCII)
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_FENCE_BEGINS = " `~"
# The end of a line before a line that begins like a fence or has not arrived yet.
_LINE_TO_LOOK_AT = re.compile(r"\n(?= {0,3}(?:[`~]|\Z))")
_UNFINISHED_FENCE = re.compile(r" {0,3}(?:`{0,2}|~{0,2})")
_WHOLE_FENCE = re.compile(r"\s*(`{3,}|~{3,})[^\n`]*\n(.*?)(?:\n {0,3}\1[`~]*\s*)?", re.DOTALL)
# A fence must be recognisable within this many characters, so that little text is held back.
_FENCE_LINE_CHARACTERS = 200
# Far more than any model writes in one call: a bound for providers that never stop sending.
_MAX_CHARACTERS = 2_000_000
# What stands around a tag of reasoning says whether it is meant as its name.
_LOOK_AHEAD = 3
_LOOK_BEHIND = 16


@value
class Fragment:
    """A piece of a reply without its tags; `kind` is the tag around it, None outside tags."""

    text: str
    kind: TagKind | None = None
    is_thinking: bool = False


@value
class ParsedReply:
    """A whole reply.

    `text` is the text before the tag, or all text if there is no tag. `content` is inside the tag. `thinking` is from
    `<think>` or from the provider's reasoning channel. `is_closed`: the tagged part is complete. `is_cut`: the reply
    was longer than allowed, and its rest is lost.
    """

    text: str
    thinking: str
    kind: TagKind | None
    content: str
    is_closed: bool
    is_cut: bool

    @property
    def written(self) -> str:
        """All text outside reasoning, without tags; the reasoning if there is no other text."""
        return (self.text + self.content).strip() or self.thinking.strip()


class TagParser:
    """Parses a reply while it streams; the result does not depend on how the text is split into deltas.

    A suffix that may begin a tag or a code fence is held back until this is certain. Tags inside reasoning or inside
    fences (``` and ~~~, as in CommonMark) are text, except in a fence around the whole reply. The first opening tag of
    `kinds` decides the kind, and its closing tag ends the reply. Other tags after it are text, except an immediate
    repetition of the opening tag, which is dropped.

    Attributes:
        has_taken_back: whether fragments of text that were returned before turned out to be reasoning.
    """

    def __init__(self, *, kinds: Collection[TagKind] = _PLAIN_KINDS, max_characters: int = _MAX_CHARACTERS) -> None:
        self._kinds = kinds
        self._room = max_characters
        self._pending = ""
        self._at = 0
        self._mark = -1
        self._is_line_start = True
        self._fence = ""
        self._fence_from = 0
        self._is_thinking = False
        self._kind: TagKind | None = None
        self._is_closed = False
        self._is_cut = False
        self._has_content = False
        self._fresh: list[Fragment] = []
        self.has_taken_back = False
        self._text: list[str] = []
        self._thinking: list[str] = []
        self._content: list[str] = []

    @property
    def is_done(self) -> bool:
        """Whether more text would change nothing: the tag is closed or the size cap is reached."""
        return self._is_closed or self._is_cut

    def feed(self, text: str) -> Sequence[Fragment]:
        """Take the next delta and return the fragments that became certain."""
        if self._is_closed or self._is_cut:
            return ()
        # The fast path for most deltas: text that continues a line and cannot begin a tag.
        if (
            not (self._pending or (self._is_line_start and not self._is_thinking))
            and 0 < len(text) <= self._room
            and "<" not in text
            and "\n" not in text
        ):
            self._room -= len(text)
            return (self._note(text),)
        self._pending += self._take_within_cap(text)
        self._advance(is_final=False)
        # Text behind the closing tag does not belong to the reply, so dropping it is not a cut.
        self._is_cut = self._is_cut and not self._is_closed
        return self._take_fresh()

    def feed_reasoning(self, text: str) -> Sequence[Fragment]:
        """Take a delta of the provider's reasoning channel, where tags have no meaning."""
        if self.is_done:
            return ()
        kept = self._take_within_cap(text)
        if not kept:
            return ()
        self._thinking.append(kept)
        return (Fragment(text=kept, is_thinking=True),)

    def close(self, *, is_stop: bool) -> Sequence[Fragment]:
        """End the reply and return the fragments that were held back.

        `is_stop`: the model stopped on its own or at a stop string. Then an open tag is complete, because closing tags
        are the stop strings. Exception: a stop string seems to have cut code that quotes the tag, inside a fence, after
        an opening tag in the fence or in the middle of a line. If the model only forgot to close the fence, a closing
        tag on its own line closes it.
        """
        if not self._is_closed:
            if self._pending:
                if not self._is_cut_in_closing_tag():
                    self._advance(is_final=True)
                self._pending = ""
            if is_stop and self._kind is not None and not self._is_cut:
                self._is_closed = not self._fence or self._is_fence_forgotten(self._kind)
            if self._kind is None and not self._is_cut and self._kinds:
                self._unwrap_fence(is_stop=is_stop)
        return self._take_fresh()

    @property
    def result(self) -> ParsedReply:
        """The reply as parsed so far; complete after `close`."""
        return ParsedReply(
            text="".join(self._text),
            thinking="".join(self._thinking),
            kind=self._kind,
            content="".join(self._content),
            is_closed=self._is_closed,
            is_cut=self._is_cut,
        )

    @property
    def behind(self) -> str:
        """What came behind the closing tag in the same delta."""
        return self._pending if self._is_closed else ""

    def _unwrap_fence(self, *, is_stop: bool) -> None:
        """Parse the tags inside a fence, if one fence encloses the whole text."""
        found = _WHOLE_FENCE.fullmatch("".join(self._text))
        if found is None or re.search(rf"^ {{0,3}}{found[1]}", found[2], re.MULTILINE):
            return
        inner = TagParser(kinds=self._kinds)
        inner.feed(found[2])
        inner.close(is_stop=is_stop)
        if inner._kind is not None:
            self._kind, self._is_closed = inner._kind, inner._is_closed
            self._text, self._content = inner._text, inner._content
            self._thinking += inner._thinking

    def _take_within_cap(self, text: str) -> str:
        """Return as much of `text` as fits the size cap."""
        if len(text) > self._room:
            self._is_cut = True
            text = text[: self._room]
        self._room -= len(text)
        return text

    def _take_fresh(self) -> Sequence[Fragment]:
        fresh, self._fresh = self._fresh, []
        return fresh

    def _is_cut_in_closing_tag(self) -> bool:
        """Return whether the text held back is just the beginning of the expected closing tag."""
        found = _UNFINISHED_TAG.fullmatch(self._pending)
        if self._kind is None or found is None or not (found[1] and found[2]):
            return False
        return self._kind.value.startswith(found[2].lower())

    def _is_fence_forgotten(self, kind: TagKind) -> bool:
        """Return whether the open fence should have ended with the tag; if so, remove the tag from the content."""
        whole = "".join(self._content)
        fenced = "".join(self._content[self._fence_from :])
        depth, end = 0, len(fenced)
        for tag in _TAG.finditer(fenced):
            if tag[2].lower() != kind.value:
                continue
            if tag[1] and not depth and not fenced[tag.end() :].strip():
                end = tag.start()
            else:
                depth += -min(depth, 1) if tag[1] else 1
        if depth or fenced[:end].rpartition("\n")[2].strip():
            return False
        self._content = [whole[: len(whole) - len(fenced) + end]]
        return True

    def _advance(self, *, is_final: bool) -> None:
        """Consume the text whose meaning is certain; at the end, all text."""
        end = len(self._pending)
        while self._at < end and not self._is_closed:
            if self._is_line_start and not self._is_thinking:
                if self._pending[self._at] not in _FENCE_BEGINS:
                    self._is_line_start = False
                    continue
                is_certain = self._read_line_start(is_final=is_final)
            elif self._fence:
                is_certain = self._read_fenced()
            else:
                is_certain = self._read_text(is_final=is_final)
            if not is_certain:
                break
        self._pending = self._pending[self._at :]
        self._at = 0
        self._mark = -1

    def _read_line_start(self, *, is_final: bool) -> bool:
        """Open or close a fence if the line is one; return False if more text is needed to decide."""
        line = self._pending[self._at : self._at + _FENCE_LINE_CHARACTERS]
        is_short = len(line) < _FENCE_LINE_CHARACTERS and not is_final
        found = _FENCE.match(line)
        if found is None:
            if is_short and _UNFINISHED_FENCE.fullmatch(line):
                return False
        elif self._fence:
            rest = line[found.end() :].lstrip(" \t")
            if not rest and is_short:
                return False
            if found[1].startswith(self._fence) and (not rest or rest[0] in "\r\n<"):
                self._fence = ""
                self._emit(len(line) - len(rest))
        else:
            end = line.find("\n")
            if end < 0 and is_short:
                return False
            if end < 0 and is_final:
                end = len(line)
            if end >= 0 and not (found[1][0] == "`" and "`" in line[found.end() : end]):
                self._fence, self._fence_from = found[1], len(self._content)
                self._emit(min(end + 1, len(line)))
                return True
        self._is_line_start = False
        return True

    def _read_fenced(self) -> bool:
        """Emit one line, or its beginning, without parsing it."""
        end = self._pending.find("\n", self._at)
        self._is_line_start = end >= 0
        self._emit((end + 1 if end >= 0 else len(self._pending)) - self._at)
        return True

    def _read_text(self, *, is_final: bool) -> bool:
        """Emit text up to a possible fence line, or handle one tag; return False at text that may become a tag."""
        mark = self._find_mark()
        if mark > self._at:
            newline = self._pending.find("\n", self._at, mark)
            line = None if newline < 0 else _LINE_TO_LOOK_AT.search(self._pending, newline, mark + 1)
            if line is not None:
                self._is_line_start = True
                self._emit(line.end() - self._at)
                return True
            self._emit(mark - self._at)
            if mark == len(self._pending):
                return True
        found = _TAG.match(self._pending, self._at)
        if found is None:
            if not is_final and self._could_become_tag():
                return False
            self._emit(1)
        elif self._is_undecided(found, is_final=is_final):
            return False
        elif not self._is_spoken_of(found) and self._handle_tag(found[2].lower(), is_closing=bool(found[1])):
            self._at = found.end()
        else:
            self._emit(len(found[0]))
        return True

    def _is_undecided(self, found: re.Match[str], *, is_final: bool) -> bool:
        """Return whether more text is needed to know if a tag of reasoning is meant as its name."""
        is_mark = found[2].lower() == "think" and not self._is_thinking
        return is_mark and not is_final and len(self._pending) - found.end() < _LOOK_AHEAD

    def _is_spoken_of(self, found: re.Match[str]) -> bool:
        if found[2].lower() != "think" or self._is_thinking:
            return False
        before = "".join((self._text if self._kind is None else self._content)[-_LOOK_BEHIND:])
        return is_spoken_of(before, self._pending[found.end() : found.end() + _LOOK_AHEAD])

    def _find_mark(self) -> int:
        """Return where the next tag may begin; cached, because many lines may be before it."""
        if self._mark < self._at:
            mark = self._pending.find("<", self._at)
            self._mark = len(self._pending) if mark < 0 else mark
        return self._mark

    def _could_become_tag(self) -> bool:
        found = _UNFINISHED_TAG.fullmatch(self._pending, self._at)
        return found is not None and any(name.startswith(found[2].lower()) for name in _TAG_NAMES)

    def _handle_tag(self, name: str, *, is_closing: bool) -> bool:
        """Handle a tag and return whether it has a meaning; otherwise it is text."""
        if self._is_thinking or name == "think":
            return self._handle_thinking_tag(name, is_closing=is_closing)
        kind = _KIND_OF_NAME[name]
        if kind not in self._kinds:
            return False
        if kind is self._kind and not is_closing and self._is_opened_again():
            return True
        if kind is not self._kind if is_closing else self._kind is not None:
            return False
        if is_closing:
            self._is_closed = True
        else:
            self._kind = kind
            self._is_line_start = True
        return True

    def _is_opened_again(self) -> bool:
        """Return whether there is no text between this opening tag and the previous one; then the tag is dropped."""
        self._has_content = self._has_content or any(part.strip() for part in self._content)
        return not self._has_content

    def _handle_thinking_tag(self, name: str, *, is_closing: bool) -> bool:
        """Enter or leave `<think>`. A lone closing tag makes all text before it reasoning: the prompt had opened it."""
        if name == "think" and is_closing and not self._is_thinking:
            self._take_back()
        if name != "think" or self._kind is not None or (self._is_thinking and not is_closing):
            return False
        self._is_thinking = not is_closing
        self._is_line_start = is_closing
        return True

    def _take_back(self) -> None:
        """Make reasoning of all text so far, and of the answer in it."""
        self.has_taken_back = True
        self._fresh = [Fragment(text=each.text, is_thinking=True) for each in self._fresh]
        self._thinking += [*self._text, *self._content]
        self._text, self._content, self._kind, self._has_content = [], [], None, False

    def _emit(self, size: int) -> None:
        """Emit the next `size` characters as a fragment of the current state."""
        text = self._pending[self._at : self._at + size]
        self._at += size
        if text:
            self._fresh.append(self._note(text))

    def _note(self, text: str) -> Fragment:
        """Store `text` and return it as a fragment of the current state."""
        if self._is_thinking:
            self._thinking.append(text)
        elif self._kind is not None:
            self._content.append(text)
        else:
            self._text.append(text)
        return Fragment(text=text, kind=self._kind, is_thinking=self._is_thinking)


def parse_reply(text: str, *, kinds: Collection[TagKind], is_stop: bool) -> ParsedReply:
    """Return what `TagParser` makes of a whole text."""
    parser = TagParser(kinds=kinds)
    parser.feed(text)
    parser.close(is_stop=is_stop)
    return parser.result
