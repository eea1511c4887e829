"""The windows of bounded context: the prompt of each call, so that no window exceeds `chunk_size`.

Notation: C = chunk_size, m = carryover_size, f = tokens of a prompt without any content (the frame).

- Reserve: every call keeps at least C/8 tokens for its output; a call that shows the whole material keeps C/4.
- The free part C - f - m - C/8 is shared by the question and the segment that is read. The question is repeated in
  every window. It gets at most half of the free part and at most C/4. If it is longer, its first and last paragraph
  are repeated, shortened if necessary, and the text between them becomes the beginning of the material.
- In the modes hybrid and summary, a window that was cut at its limit is followed by a call that summarises it. Each
  window keeps R tokens of the free part for that call: the request and at most 0.15 (C - m) tokens of summary. If the
  free part is too small for that, no summary is requested.
- Material is shown whole if it fits one window together with the question and C/4 tokens of output. Otherwise it is
  read in segments of (free part - question) tokens, each shown exactly once.
- Every call may write C - (tokens of its prompt) - R, the last call C - (tokens of its prompt). `fit_windows` counts
  the prompts.

A plan is made with the model's counter; `context.window_fitting` handles servers that count more.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import MappingProxyType

from reasond_server.context.carryover import (
    FEWEST_SUMMARY_TOKENS,
    NOTES_EXAMPLE,
    PLAIN_EXAMPLE,
    SUMMARY_REQUEST,
    bound_summary,
)
from reasond_server.context.sections import Passage, build_prompt
from reasond_server.context.tags import neutralize
from reasond_server.dialects.answer_marks import EXAMPLE_ANSWER
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.errors.request import InvalidConfigError
from reasond_server.llm.model import Message, Role, TokenCounter
from reasond_server.types import CarryoverMode, ReadingProgress
from reasond_server.types.values import value

_PARAGRAPH = re.compile(r"\n[ \t\r]*\n")
# The escapes are the ellipsis, closing quotes, and full stop, "!" and "?" of Chinese and Japanese.
_SENTENCE = re.compile("[.!?\u2026]['\"\u2019\u201d)\\]]*\\s|[\u3002\uff01\uff1f]|\n")
_WORD = re.compile(r"\s")
_FIRST_GUESS = 4
_SMALLEST_GUESS = 64
_MAX_CLUSTER = 32
_ZERO_WIDTH_JOINER = "\u200d"


def split_text(text: str, *, limit: int, counter: TokenCounter) -> Sequence[str]:
    """Return segments of at most `limit` tokens; joined, they are exactly `text`. An empty text has no segments.

    A segment ends after a paragraph, else after a sentence or line, else after a word, if it then has at least half of
    the possible length. Otherwise it ends between two characters, but not inside an accented letter or an emoji. Time
    is linear in the length of `text` if counting is.

    Raises:
        ContextExhaustedError: a single character exceeds `limit`.
    """
    segments: list[str] = []
    start = 0
    guess = limit * _FIRST_GUESS
    while start < len(text):
        longest = _find_longest(text, start, guess=guess, limit=limit, counter=counter)
        if not longest:
            raise ContextExhaustedError(f"a single character does not fit a segment of {limit} tokens")
        segment = longest if start + len(longest) == len(text) else _cut(text, start, longest, limit, counter)
        segments.append(segment)
        start += len(segment)
        # The tokens per character differ much between texts but little within one text.
        guess = max(2 * len(longest), _SMALLEST_GUESS)
    return segments


def _find_longest(text: str, start: int, *, guess: int, limit: int, counter: TokenCounter) -> str:
    """Return the longest segment that begins at `start` and fits, without counting the whole rest of the text."""
    while True:
        piece = text[start : start + guess]
        longest = counter.head(piece, limit)
        if len(longest) < len(piece) or start + guess >= len(text):
            return longest
        guess *= 2


def _cut(text: str, start: int, longest: str, limit: int, counter: TokenCounter) -> str:
    """Return the beginning of `longest` up to its best boundary."""
    for end in _list_boundaries(text, start, start + len(longest)):
        segment = text[start:end]
        # A shorter text can have more tokens, if the cut splits a token.
        if counter.count_text(segment) <= limit:
            return segment
    return longest


def _list_boundaries(text: str, start: int, end: int) -> Iterator[int]:
    """Yield positions for a cut between the middle and `end`, best first."""
    middle = start + (end - start) // 2
    for boundary in (_PARAGRAPH, _SENTENCE, _WORD):
        last = None
        for found in boundary.finditer(text, middle, end):
            last = found.end()
        if last is not None:
            yield last
    place = end
    while place > max(start + 1, end - _MAX_CLUSTER) and _are_shown_as_one(text, start, place):
        place -= 1
    if not _are_shown_as_one(text, start, place):
        yield place


def _are_shown_as_one(text: str, start: int, place: int) -> bool:
    """Return whether the characters before and after `place` are displayed as one."""
    before, after = text[place - 1], text[place]
    if _is_flag_letter(before) and _is_flag_letter(after):
        # Flags are pairs of letters, counted from the beginning of the sequence.
        first = place
        while first > start and _is_flag_letter(text[first - 1]):
            first -= 1
        return (place - first) % 2 == 1
    return (
        _ZERO_WIDTH_JOINER in {before, after}
        or (before == "\r" and after == "\n")
        or unicodedata.category(after).startswith("M")
        or "\U0001f3fb" <= after <= "\U0001f3ff"
    )


def _is_flag_letter(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


MAX_CHUNK_SIZE = 32768
MIN_CARRYOVER_SIZE = 512
MAX_SEGMENTS = 4096

_WRITING_SHARE = 8
_WHOLE_WRITING_SHARE = 4
_QUESTION_SHARE = 4
_MIN_FREE_TOKENS = 128
_FREE_SHARE = 32
_CHEAPER_SHARES = (4, 8, 16)
# A tokenizer may count a few more tokens for two joined sections than for the two alone.
_JOINT_TOKENS = 16
_LEFT_OUT = "\n[...]\n"
UNREAD = "The text was not read to its end:"

_RULES = (
    f" <notes> is all you kept. End with the answer, as in <answer>{EXAMPLE_ANSWER}</answer>, or, to go on in a fresh "
    "window, with "
    "notes, as in "
)
_FIELDS = f"<continue>{NOTES_EXAMPLE}</continue>."
# Every token of these texts is billed in every window, so they are short.
_ENDINGS = MappingProxyType(
    {
        CarryoverMode.HYBRID: f"{_FIELDS} Findings add to old ones.",
        CarryoverMode.SUMMARY: f"{_FIELDS} Repeat old ones.",
        CarryoverMode.TAIL: f"<continue>{PLAIN_EXAMPLE}</continue>. Repeat old ones.",
    }
)
_READ = (
    "You read a long text passage by passage. Do not answer yet: end with <continue>. What does this passage say about "
    "the question?"
)
_READ_LAST = "You read a long text; this is its last passage. Answer if the notes and it suffice. Think step by step."
_THINK = "Think step by step."
_ANSWER_NOW = f"{_THINK} This is the last window: end with <answer> now."


@value
class WindowLimits:
    """The limits of a plan, in tokens, except `max_segments` and `max_iterations`."""

    chunk_size: int
    carryover_size: int
    max_segments: int
    max_iterations: int
    carryover_mode: CarryoverMode = CarryoverMode.TAIL

    @property
    def writing_tokens(self) -> int:
        """Fewest tokens that every call keeps for its output."""
        return -(-self.chunk_size // _WRITING_SHARE)

    @property
    def fewest_free_tokens(self) -> int:
        """Fewest tokens that question and passage must have; in small windows fewer, so that the smallest one works."""
        return min(_MIN_FREE_TOKENS, self.chunk_size // _FREE_SHARE)

    @property
    def rules(self) -> str:
        """The rules that all windows have."""
        return _RULES + _ENDINGS[self.carryover_mode]


@value
class Window:
    """One call of a plan: `reading` is the segment that it reads; `is_last` is whether it must be the last call."""

    reading: ReadingProgress | None
    is_last: bool
    shows_material: bool = False

    @property
    def may_answer(self) -> bool:
        """Whether all segments are read after this window."""
        return self.reading is None or self.reading.segment == self.reading.segment_count


@value
class WindowPlan:
    """The texts that the windows of one run show, already neutralised; `material` or `segments` is empty.

    `prompt_tokens` is the most tokens that question and frame take in a window. `nonce` marks the fences of every
    window. `segments_before` segments were read under an earlier plan. `shortfall` is a warning if this plan does less
    than the first one, and `is_text_left_out` is whether it never shows a part of the text. A window that may need a
    summary keeps `reserve_tokens` for the summary call, which may write `summary_tokens`; both are 0 without summaries.
    """

    limits: WindowLimits
    nonce: str
    question: str
    is_question_clipped: bool
    material: str
    segments: Sequence[str]
    prompt_tokens: int
    segments_before: int = 0
    summary_tokens: int = 0
    reserve_tokens: int = 0
    shortfall: str = ""
    is_text_left_out: bool = False

    @property
    def capacity_tokens(self) -> int:
        """Tokens of reasoning in all windows together: C + (max_iterations - 1)(C - m) (seed 000, BR-5)."""
        return self._bound_capacity(prompt_tokens=0)

    @property
    def effective_capacity_tokens(self) -> int:
        """The capacity without the prompt q = `prompt_tokens`: (C - q) + (max_iterations - 1)(C - q - m)."""
        return self._bound_capacity(prompt_tokens=self.prompt_tokens)

    def list_windows(self) -> Iterator[Window]:
        """Yield the calls in order, reading first, then reasoning. A call may end the run earlier."""
        before = self.segments_before
        count = before + len(self.segments)
        for segment in range(before + 1, count + 1):
            yield Window(reading=ReadingProgress(segment=segment, segment_count=count), is_last=False)
        for iteration in range(self.limits.max_iterations):
            is_last = iteration == self.limits.max_iterations - 1
            yield Window(reading=None, is_last=is_last, shows_material=iteration == 0)

    def build_prompt(self, window: Window, *, notes: str, has_text: bool = True) -> Sequence[Message]:
        """Return the messages of one call; `notes` is the carryover of the previous window.

        With `has_text` false, they have only the parts that every window repeats.
        """
        text, passage = self.find_text(window) if has_text else "", None
        kind = _ANSWER_NOW if window.is_last else _THINK
        if window.reading is not None:
            number, count = window.reading.segment, window.reading.segment_count
            passage = Passage(text=text, segment=number, segment_count=count)
            kind = _READ_LAST if number == count else _READ
        return build_prompt(
            instructions=kind,
            rules=self.limits.rules,
            question=self.question,
            nonce=self.nonce,
            notes=notes,
            material="" if passage else text,
            passage=passage,
        )

    def find_text(self, window: Window) -> str:
        """Return the part of the material that `window` shows; empty for none."""
        if window.reading is not None:
            return self.segments[window.reading.segment - 1 - self.segments_before]
        return self.material if window.shows_material else ""

    def _bound_capacity(self, *, prompt_tokens: int) -> int:
        window = self.limits.chunk_size - prompt_tokens
        return window + (self.limits.max_iterations - 1) * (window - self.limits.carryover_size)


def plan_windows(
    *,
    query: str,
    material: str,
    limits: WindowLimits,
    counter: TokenCounter,
    nonce: str,
    segments_before: int = 0,
    is_reading: bool = False,
    may_leave_out: bool = False,
    frame_tokens: int = 0,
) -> WindowPlan:
    """Return the plan of a run. Time is linear in the texts; counting long texts is slow.

    With `is_reading` the material is read in segments even if it fits one window, because `segments_before` segments of
    it were read already. With `may_leave_out` text after max_segments segments is left out. `frame_tokens` is the
    server's count of the frame; if it is 0, `counter` counts the frame.

    Some tokenizers give different counts for different nonces of one length. With them, a plan that just fits with one
    nonce may be refused with another. For the counters of this package, all nonces of one length have the same count.

    Raises:
        InvalidConfigError: chunk_size is too small for carryover_size (the error has the smallest possible size), or
            the material needs more than max_segments segments (the error has the necessary number) and
            `may_leave_out` is false.
    """
    rules = limits.rules
    frame = (frame_tokens or counter.count_prompt(find_frame(counter, nonce, rules))) + _JOINT_TOKENS
    shares = _share_window(query, limits, frame, counter)
    question, rest, summary, reserve = shares.question, shares.rest, shares.summary_tokens, shares.reserve_tokens
    whole = "\n\n".join(text for text in (rest, neutralize(material)) if text)
    everything = counter.count_prompt(
        build_prompt(instructions=_ANSWER_NOW, rules=rules, question=question, nonce=nonce, material=whole)
    )
    segments: Sequence[str] = ()
    shortfall = ""
    most = limits.chunk_size - limits.chunk_size // _WHOLE_WRITING_SHARE - reserve
    if whole and (is_reading or everything > most):
        segments = split_text(whole, limit=shares.segment_tokens, counter=counter)
        if segments_before + len(segments) > limits.max_segments:
            refusal = _refuse_segments(limits, segments_before + len(segments))
            if not may_leave_out:
                raise refusal
            segments = segments[: limits.max_segments - segments_before]
            shortfall = f"{UNREAD} {describe_violations(refusal)}."
    return WindowPlan(
        limits=limits,
        nonce=nonce,
        question=question,
        is_question_clipped=bool(rest),
        material="" if segments else whole,
        segments=segments,
        prompt_tokens=frame + shares.question_tokens,
        segments_before=segments_before,
        summary_tokens=summary,
        reserve_tokens=reserve,
        shortfall=shortfall,
        is_text_left_out=bool(shortfall),
    )


def suggest_carryover(
    *, query: str, limits: WindowLimits, counter: TokenCounter, nonce: str, segments: int
) -> tuple[int, int] | None:
    """Return a carryover_size with which a text of `segments` segments has half as many or fewer, and how many.

    Of a quarter, an eighth and a sixteenth of chunk_size the largest that does it counts; None if none does. The text
    itself is not looked at, so the number is what full segments would make.
    """
    frame = counter.count_prompt(find_frame(counter, nonce, limits.rules)) + _JOINT_TOKENS
    try:
        now = _share_window(query, limits, frame, counter).segment_tokens
        for share in _CHEAPER_SHARES:
            size = limits.chunk_size // share
            if not MIN_CARRYOVER_SIZE <= size < limits.carryover_size:
                continue
            other = _share_window(query, replace(limits, carryover_size=size), frame, counter).segment_tokens
            expected = -(-segments * now // other)
            if 2 * expected <= segments:
                return size, expected
    except InvalidConfigError:
        # The server's counter fitted these limits and this one does not.
        return None
    return None


@value
class _Shares:
    """How a window is shared: the question that it repeats and the `rest` of a long one, and tokens for the others."""

    question: str
    rest: str
    question_tokens: int
    summary_tokens: int
    reserve_tokens: int
    segment_tokens: int


def _share_window(query: str, limits: WindowLimits, frame: int, counter: TokenCounter) -> _Shares:
    free = _count_free(limits, frame)
    if free < limits.fewest_free_tokens:
        raise _refuse_chunk_size(limits, frame)
    summary, reserve = _share_summary(limits, free - _MIN_FREE_TOKENS, counter)
    free -= reserve
    question, rest = _pin_question(neutralize(query), min(limits.chunk_size // _QUESTION_SHARE, free // 2), counter)
    pinned = counter.count_text(question)
    return _Shares(
        question=question,
        rest=rest,
        question_tokens=pinned,
        summary_tokens=summary,
        reserve_tokens=reserve,
        segment_tokens=free - pinned,
    )


def _share_summary(limits: WindowLimits, most: int, counter: TokenCounter) -> tuple[int, int]:
    """Return the most tokens of a summary, and the tokens that its call needs in a window; 0, 0 without summaries."""
    if limits.carryover_mode is CarryoverMode.TAIL:
        return 0, 0
    around = counter.count_prompt(
        (Message(role=Role.ASSISTANT, content=""), Message(role=Role.USER, content=SUMMARY_REQUEST))
    )
    summary = bound_summary(chunk_size=limits.chunk_size, carryover_size=limits.carryover_size)
    summary = min(summary, limits.carryover_size, most - around - _JOINT_TOKENS)
    return (summary, summary + around + _JOINT_TOKENS) if summary >= FEWEST_SUMMARY_TOKENS else (0, 0)


def find_frame(counter: TokenCounter, nonce: str, rules: str) -> Sequence[Message]:
    """Return the largest prompt without any content."""
    widest = Passage(text="", segment=MAX_SEGMENTS, segment_count=MAX_SEGMENTS)
    # An empty section would be left out, so the notes have one letter.
    prompts = (
        build_prompt(instructions=kind, rules=rules, question="", nonce=nonce, notes="n", passage=widest)
        for kind in (_READ, _READ_LAST, _ANSWER_NOW)
    )
    return max(prompts, key=counter.count_prompt)


def _count_free(limits: WindowLimits, frame: int) -> int:
    return limits.chunk_size - frame - limits.carryover_size - limits.writing_tokens


def _has_room(limits: WindowLimits, frame: int) -> bool:
    return _count_free(limits, frame) >= limits.fewest_free_tokens


def _pin_question(query: str, limit: int, counter: TokenCounter) -> tuple[str, str]:
    """Return the part of `query` that every window repeats, with at most `limit` tokens, and the rest to be read."""
    if counter.count_text(query) <= limit:
        return query, ""
    share = (limit - counter.count_text(_LEFT_OUT) - _JOINT_TOKENS) // 2
    first = _find_first_paragraph(query)
    head = counter.head(first, share)
    last = _find_last_paragraph(query[len(head) :])
    tail = counter.tail(last, share)
    return f"{head}{_LEFT_OUT}{tail}", query[len(head) : len(query) - len(tail)]


def _find_first_paragraph(text: str) -> str:
    start = len(text) - len(text.lstrip())
    end = text.find("\n\n", start)
    return text if end < 0 else text[:end]


def _find_last_paragraph(text: str) -> str:
    end = len(text.rstrip())
    start = text.rfind("\n\n", 0, end)
    return text if start < 0 else text[start + 2 :]


def _refuse_chunk_size(limits: WindowLimits, frame: int) -> InvalidConfigError:
    """Return an error with the smallest chunk_size for this carryover_size, and the largest carryover_size if any."""
    taken = frame + limits.carryover_size + _MIN_FREE_TOKENS
    smallest = -(-taken * _WRITING_SHARE // (_WRITING_SHARE - 1))
    while _has_room(replace(limits, chunk_size=smallest - 1), frame):
        smallest -= 1
    largest = limits.chunk_size - limits.writing_tokens - frame - limits.fewest_free_tokens
    remedies = [f"raise it to at least {smallest}"] if smallest <= MAX_CHUNK_SIZE else []
    if largest >= MIN_CARRYOVER_SIZE:
        remedies.append(f"lower carryover_size to at most {largest}")
    description = (
        f"must leave room beside carryover_size {limits.carryover_size} for the prompt, the question and what the "
        f"model writes: the smallest that does is {smallest}, got {limits.chunk_size}; {' or '.join(remedies)}"
    )
    return InvalidConfigError.at("chunk_size", description.removesuffix("; "))


def _refuse_segments(limits: WindowLimits, needed: int) -> InvalidConfigError:
    remedy = f"raise it to at least {needed}, or " if needed <= MAX_SEGMENTS else ""
    description = (
        f"is {limits.max_segments}, but the material needs {needed} segments; "
        f"{remedy}raise chunk_size, lower carryover_size or shorten the material"
    )
    return InvalidConfigError.at("max_segments", description)


def check_frame(limits: WindowLimits, frame_tokens: int) -> None:
    """Refuse limits that are too small for a frame of `frame_tokens` tokens.

    Raises:
        InvalidConfigError: chunk_size is too small; the error has the smallest possible size.
    """
    frame = frame_tokens + _JOINT_TOKENS
    if not _has_room(limits, frame):
        raise _refuse_chunk_size(limits, frame)


def describe_violations(error: InvalidConfigError) -> str:
    """Return the violations of `error` as one line."""
    return "; ".join(f"{one.field} {one.description}" for one in error.violations)
