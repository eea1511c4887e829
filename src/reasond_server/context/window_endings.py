"""When a run of bounded context ends: with an answer, with empty replies, at its last window, or by repetition.

A window repeats the previous one if its text or its notes are equal except for case and white space, or if at least
nine in ten of its sequences of five words are in the previous window. Reading windows are not compared: each shows new
text, and any number of them may find nothing in it. Nothing is random, so equal replies always have the same result.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Final

from reasond_server.context.answers import split_answer
from reasond_server.context.replies import ParsedReply, parse_reply
from reasond_server.context.tags import TagKind
from reasond_server.llm.model import ModelFinish
from reasond_server.types import FinishReason
from reasond_server.types.values import value

if TYPE_CHECKING:
    from reasond_server.context.calls import ModelReply
    from reasond_server.context.window_plan import Window


_MOST_EMPTY_REPLIES = 2

_CUT_LAST: Final = (
    "The last window was cut off after {tokens} tokens, so its text is not whole: raise chunk_size or max_iterations."
)
_MOST_CHARACTERS: Final = 65_536
_RUN: Final = 5
_FEWEST_RUNS: Final = 24
_OVERLAP_PER_MILLE: Final = 900
# For texts with more words than this, only one in eight sequences is compared.
_MANY_WORDS: Final = 4096
_SAMPLE: Final = 8
# In scripts without spaces between words, each letter counts as a word.
_WORD: Final = re.compile("[^\\W\u2e80-\U0003ffff]+|\\w")


@value
class WindowEnding:
    """The final answer and the finish reason of a run."""

    answer: str
    finish_reason: FinishReason
    warning: str = ""

    @property
    def is_answered(self) -> bool:
        """Whether the model ended the run with an answer."""
        return self.finish_reason in {FinishReason.ANSWERED, FinishReason.ANSWERED_UNTAGGED}


def adds_nothing(window: Window, reply: ModelReply) -> bool:
    """Return whether `<continue>` without a word says that a passage adds nothing to the notes."""
    is_whole = reply.finish is ModelFinish.STOP
    return (
        window.reading is not None and is_whole and reply.parsed.kind is TagKind.CONTINUE and not reply.parsed.written
    )


class EndingJudge:
    """Decides after each window whether the run ends; `best` is the last tagged answer, complete or not."""

    def __init__(self) -> None:
        self.best = ""
        self._empty_in_a_row = 0

    def decide(self, window: Window, reply: ModelReply) -> WindowEnding | None:
        """Return the ending if `reply` ends the run, else None."""
        parsed = _unwrap_notes(reply.parsed) if window.is_last else reply.parsed
        content = parsed.content.strip()
        answer = content if parsed.kind is TagKind.ANSWER else ""
        self.best = answer or self.best
        self._empty_in_a_row = 0 if parsed.written or adds_nothing(window, reply) else self._empty_in_a_row + 1
        if reply.finish is ModelFinish.CONTENT_FILTER:
            return WindowEnding(answer=self.best, finish_reason=FinishReason.CONTENT_FILTERED)
        if answer and parsed.is_closed and window.may_answer:
            return WindowEnding(answer=answer, finish_reason=FinishReason.ANSWERED)
        # One empty reply may be an accident of sampling. After two in a row, further windows would only cost tokens.
        if self._empty_in_a_row == _MOST_EMPTY_REPLIES or (window.is_last and reply.is_only_hidden_reasoning):
            return self._end_truncated(reply)
        is_untagged = window.reading is None and reply.finish is ModelFinish.STOP and _is_untagged(parsed)
        if is_untagged and (untagged := split_answer(parsed.text)[1]):
            return WindowEnding(answer=untagged, finish_reason=FinishReason.ANSWERED_UNTAGGED)
        if window.is_last:
            last = content or parsed.written or self.best
            cut = _CUT_LAST.format(tokens=reply.usage.output_tokens) if reply.finish is ModelFinish.LENGTH else ""
            return WindowEnding(answer=last, finish_reason=FinishReason.MAX_ITERATIONS, warning=cut)
        return None

    def _end_truncated(self, reply: ModelReply) -> WindowEnding:
        """Return the end of a run whose model wrote no text, with the reason if it is known."""
        warning = "The model wrote nothing in two windows in a row."
        if reply.is_only_hidden_reasoning:
            warning = (
                f"Hidden reasoning took {reply.reasoning_tokens} of the {reply.usage.output_tokens} tokens that the "
                "model wrote in its last window and left none for the answer: raise chunk_size, or lower the "
                "model's reasoning effort."
            )
        return WindowEnding(answer=self.best, finish_reason=FinishReason.TRUNCATED, warning=warning)


def _unwrap_notes(parsed: ParsedReply) -> ParsedReply:
    """Return the reply of a last window: an answer within its notes is the answer."""
    if parsed.kind is TagKind.ANSWER:
        return parsed
    inner = parse_reply(parsed.content, kinds=(TagKind.ANSWER,), is_stop=parsed.is_closed)
    if inner.kind is not None:
        return replace(parsed, kind=inner.kind, content=inner.content, is_closed=inner.is_closed)
    return parsed


def _is_untagged(parsed: ParsedReply) -> bool:
    """Return whether the reply has text but no tagged content, so that the text is the answer."""
    return bool(parsed.text.strip()) and not parsed.content.strip()


class RepetitionGuard:
    """Detects repetition in the reasoning windows of one run; it keeps only the last window."""

    def __init__(self) -> None:
        self._text = ""
        self._notes = ""
        self._runs: frozenset[int] = frozenset()

    def note_repetition(self, *, text: str, notes: str) -> bool:
        """Take the text and the notes of a window; return whether it repeats the previous window."""
        chunk, carried = _normalize(text), _normalize(notes)
        runs = _hash_runs(chunk)
        is_same = bool(chunk) and chunk == self._text
        is_stuck = bool(carried) and carried == self._notes
        shared = len(runs & self._runs) * 1000
        overlaps = len(runs) >= _FEWEST_RUNS and shared >= _OVERLAP_PER_MILLE * len(runs)
        self._text, self._notes, self._runs = chunk, carried, runs
        return is_same or is_stuck or overlaps


def _normalize(text: str) -> str:
    return " ".join(text[-_MOST_CHARACTERS:].casefold().split())


def _hash_runs(text: str) -> frozenset[int]:
    """Return a hash of each sequence of five words; the hashes are the same in every process."""
    words = _WORD.findall(text)
    rows = zip(*(islice(words, start, None) for start in range(_RUN)), strict=False)
    numbers = (zlib.crc32(" ".join(row).encode("utf-8", "replace")) for row in rows)
    if len(words) <= _MANY_WORDS:
        return frozenset(numbers)
    return frozenset(number for number in numbers if number % _SAMPLE == 0)
