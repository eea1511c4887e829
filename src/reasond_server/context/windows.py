"""The windows of bounded context: what each call is shown, so that no window outgrows `chunk_size`.

Notation: C = chunk_size, m = carryover_size, f = tokens of a prompt without any content (the frame).

- Reserve: a call always keeps at least C/8 tokens to write in; the call that shows the whole material C/4.
- The free part C - f - m - C/8 is shared by the question and the segment that is read. The question is
  pinned to every window and gets at most half of the free part and at most C/4; of a longer one the first
  and the last paragraph are pinned, clipped, and what lies between becomes the beginning of the material.
- Where a window that is cut at its limit is summarised by a call of its own (hybrid, summary), the calls that it can
  follow leave room for that: R tokens, the request and at most 0.15 (C - m) to write, taken from the free part. Where
  that is too small, no summary is asked for.
- Material that fits one window together with the question and C/4 to write in is shown whole. Otherwise
  it is read in segments of (free part - question) tokens, each shown exactly once.
- Every call may write C - (tokens of its prompt) - R, the last one without R, which is the bound:
  `context.fitting` counts those.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from reasond_server.context.carryover_call import FEWEST_SUMMARY_TOKENS, SUMMARY_REQUEST, most_summary_tokens
from reasond_server.context.sections import Passage, build_prompt
from reasond_server.context.segments import split_text
from reasond_server.context.tags import neutralize
from reasond_server.errors import InvalidConfigError, Violation
from reasond_server.llm.model import Message, Role
from reasond_server.types import CarryoverMode, ReadingProgress

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reasond_server.llm.model import TokenCounter

MAX_CHUNK_SIZE = 32768
MIN_CARRYOVER_SIZE = 512
MAX_SEGMENTS = 4096

_WRITING_SHARE = 8
_WHOLE_WRITING_SHARE = 4
_QUESTION_SHARE = 4
_MIN_FREE_TOKENS = 128
# Where two sections meet, a tokenizer may count a few tokens more than for the two alone.
_JOINT_TOKENS = 16
_LEFT_OUT = "\n[...]\n"

_RULES = (
    "Work out what <question> asks. <notes> is all you kept from earlier. Think step by step, then end in one "
    "of two ways: <answer>the final answer</answer>, or, to go on in a fresh window, <continue>"
)
_FIELDS = "lines Current Strategy:, Key Findings:, Progress:, Next Steps:, Unresolved:</continue>."
# Every token of these is paid in every window.
_ENDINGS = MappingProxyType(
    {
        CarryoverMode.HYBRID: f"{_FIELDS} Findings, one a line, add to old ones.",
        CarryoverMode.SUMMARY: f"{_FIELDS} Repeat old notes that still matter.",
        CarryoverMode.TAIL: "the notes you need, with earlier notes that still matter</continue>.",
    }
)
_READ = " You are reading a long text passage by passage. Do not answer yet: end with <continue>."
_READ_LAST = " You are reading a long text; this is its last passage. Answer if the notes and it suffice."
_ANSWER_NOW = " This is the last window: end with <answer> now."


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowLimits:
    """The sizes that a plan keeps to; tokens, except `max_segments` and `max_iterations`."""

    chunk_size: int
    carryover_size: int
    max_segments: int
    max_iterations: int
    carryover_mode: CarryoverMode = CarryoverMode.TAIL

    @property
    def writing_tokens(self) -> int:
        """What every call keeps to write in, at the least."""
        return -(-self.chunk_size // _WRITING_SHARE)

    @property
    def rules(self) -> str:
        """What the model is told first."""
        return _RULES + _ENDINGS[self.carryover_mode]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One call to be made: `reading` tells the segment it reads; `is_last` that no other may follow."""

    reading: ReadingProgress | None
    is_last: bool
    shows_material: bool = False

    @property
    def may_answer(self) -> bool:
        """Whether everything has been read when this window ends."""
        return self.reading is None or self.reading.segment == self.reading.segment_count


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPlan:
    """What the windows of one run show. Texts are neutralised already; `material` or `segments` is empty.

    `prompt_tokens` is the share of every window that question and frame take, `single_pass_tokens` the
    prompt of one window that would hold everything. `nonce` marks the fences of every window.
    `segments_before` were read under an earlier plan. A window that a summary may follow keeps `reserve_tokens`
    for that call, which may write `summary_tokens`; both are 0 where none is made.
    """

    limits: WindowLimits
    nonce: str
    question: str
    is_question_clipped: bool
    material: str
    segments: Sequence[str]
    prompt_tokens: int
    single_pass_tokens: int
    segments_before: int = 0
    summary_tokens: int = 0
    reserve_tokens: int = 0

    @property
    def capacity_tokens(self) -> int:
        """Tokens of reasoning that all windows hold together: C + (max_iterations - 1)(C - m) (seed 000, BR-5)."""
        return self._capacity(prompt_tokens=0)

    @property
    def effective_capacity_tokens(self) -> int:
        """The same less the prompt's share q of each window: (C - q) + (max_iterations - 1)(C - q - m)."""
        return self._capacity(prompt_tokens=self.prompt_tokens)

    def windows(self) -> Iterator[Window]:
        """Yield the calls in order, until one of them ends the run: reading first, then reasoning."""
        before = self.segments_before
        count = before + len(self.segments)
        for segment in range(before + 1, count + 1):
            yield Window(reading=ReadingProgress(segment=segment, segment_count=count), is_last=False)
        for iteration in range(self.limits.max_iterations):
            is_last = iteration == self.limits.max_iterations - 1
            yield Window(reading=None, is_last=is_last, shows_material=iteration == 0)

    def prompt(self, window: Window, *, notes: str) -> Sequence[Message]:
        """Return the messages of one call; `notes` is the carryover of the window before."""
        if window.reading is not None:
            number, count = window.reading.segment, window.reading.segment_count
            return build_prompt(
                instructions=self.limits.rules + (_READ_LAST if number == count else _READ),
                question=self.question,
                nonce=self.nonce,
                notes=notes,
                passage=Passage(
                    text=self.segments[number - 1 - self.segments_before], segment=number, segment_count=count
                ),
            )
        return build_prompt(
            instructions=self.limits.rules + (_ANSWER_NOW if window.is_last else ""),
            question=self.question,
            nonce=self.nonce,
            notes=notes,
            material=self.material if window.shows_material else "",
        )

    def _capacity(self, *, prompt_tokens: int) -> int:
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
) -> WindowPlan:
    """Return what the windows show; the time is linear in the texts, and long texts take a while to count.

    With `is_reading` the material is read in segments even if it fits one window: `segments_before` of it were
    read already.

    A tokenizer that cuts nonces into different numbers of tokens may refuse with one nonce what just fits
    with another; those of this package count all nonces of a length alike.

    Raises:
        InvalidConfigError: chunk_size is too small for carryover_size (the smallest that works is named),
            or the material needs more than max_segments segments (the number it needs is named).
    """
    rules = limits.rules
    frame = _frame_tokens(counter, nonce, rules)
    free = _free_tokens(limits, frame)
    if free < _MIN_FREE_TOKENS:
        raise _too_small(limits, frame)
    summary, reserve = _summary_share(limits, free - _MIN_FREE_TOKENS, counter)
    free -= reserve
    question, rest = _pinned(neutralize(query), min(limits.chunk_size // _QUESTION_SHARE, free // 2), counter)
    whole = "\n\n".join(text for text in (rest, neutralize(material)) if text)
    everything = counter.count_prompt(
        build_prompt(instructions=rules + _ANSWER_NOW, question=question, nonce=nonce, material=whole)
    )
    segments: Sequence[str] = ()
    most = limits.chunk_size - limits.chunk_size // _WHOLE_WRITING_SHARE - reserve
    if whole and (is_reading or everything > most):
        segments = split_text(whole, limit=free - counter.count_text(question), counter=counter)
        if segments_before + len(segments) > limits.max_segments:
            raise _too_many(limits, segments_before + len(segments))
    return WindowPlan(
        limits=limits,
        nonce=nonce,
        question=question,
        is_question_clipped=bool(rest),
        material="" if segments else whole,
        segments=segments,
        prompt_tokens=counter.count_prompt(build_prompt(instructions=rules, question=question, nonce=nonce)),
        single_pass_tokens=everything,
        segments_before=segments_before,
        summary_tokens=summary,
        reserve_tokens=reserve,
    )


def _summary_share(limits: WindowLimits, most: int, counter: TokenCounter) -> tuple[int, int]:
    """Return the tokens that a summary may have and those that it takes of a window with all that is around it."""
    if limits.carryover_mode is CarryoverMode.TAIL:
        return 0, 0
    around = counter.count_prompt(
        (Message(role=Role.ASSISTANT, content=""), Message(role=Role.USER, content=SUMMARY_REQUEST))
    )
    summary = most_summary_tokens(chunk_size=limits.chunk_size, carryover_size=limits.carryover_size)
    summary = min(summary, limits.carryover_size, most - around - _JOINT_TOKENS)
    return (summary, summary + around + _JOINT_TOKENS) if summary >= FEWEST_SUMMARY_TOKENS else (0, 0)


def _frame_tokens(counter: TokenCounter, nonce: str, rules: str) -> int:
    """Return the tokens of the largest prompt that shows nothing yet."""
    widest = Passage(text="", segment=MAX_SEGMENTS, segment_count=MAX_SEGMENTS)
    # An empty section is left out, so one letter stands for the notes.
    prompts = (
        build_prompt(instructions=rules + kind, question="", nonce=nonce, notes="n", passage=widest)
        for kind in (_READ, _READ_LAST, _ANSWER_NOW)
    )
    return max(map(counter.count_prompt, prompts)) + _JOINT_TOKENS


def _free_tokens(limits: WindowLimits, frame: int) -> int:
    return limits.chunk_size - frame - limits.carryover_size - limits.writing_tokens


def _pinned(query: str, limit: int, counter: TokenCounter) -> tuple[str, str]:
    """Return what of `query` every window repeats, in at most `limit` tokens, and what is left to be read."""
    if counter.count_text(query) <= limit:
        return query, ""
    share = (limit - counter.count_text(_LEFT_OUT) - _JOINT_TOKENS) // 2
    first = _first_paragraph(query)
    head = counter.head(first, share)
    last = _last_paragraph(query[len(head) :])
    tail = counter.tail(last, share)
    return f"{head}{_LEFT_OUT}{tail}", query[len(head) : len(query) - len(tail)]


def _first_paragraph(text: str) -> str:
    start = len(text) - len(text.lstrip())
    end = text.find("\n\n", start)
    return text if end < 0 else text[:end]


def _last_paragraph(text: str) -> str:
    end = len(text.rstrip())
    start = text.rfind("\n\n", 0, end)
    return text if start < 0 else text[start + 2 :]


def _too_small(limits: WindowLimits, frame: int) -> InvalidConfigError:
    """Name the smallest chunk_size for this carryover_size, and the largest carryover_size if there is one."""
    taken = frame + limits.carryover_size + _MIN_FREE_TOKENS
    smallest = -(-taken * _WRITING_SHARE // (_WRITING_SHARE - 1))
    largest = limits.chunk_size - limits.writing_tokens - frame - _MIN_FREE_TOKENS
    remedies = [f"raise it to at least {smallest}"] if smallest <= MAX_CHUNK_SIZE else []
    if largest >= MIN_CARRYOVER_SIZE:
        remedies.append(f"lower carryover_size to at most {largest}")
    description = (
        f"must leave room beside carryover_size {limits.carryover_size} for the prompt, the question and what the "
        f"model writes: the smallest that does is {smallest}, got {limits.chunk_size}; {' or '.join(remedies)}"
    )
    return InvalidConfigError.of(Violation(field="chunk_size", description=description.removesuffix("; ")))


def _too_many(limits: WindowLimits, needed: int) -> InvalidConfigError:
    remedy = f"raise it to at least {needed}, or " if needed <= MAX_SEGMENTS else ""
    description = (
        f"is {limits.max_segments}, but the material needs {needed} segments; "
        f"{remedy}raise chunk_size, lower carryover_size or shorten the material"
    )
    return InvalidConfigError.of(Violation(field="max_segments", description=description))
