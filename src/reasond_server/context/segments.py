"""Splits a long text into segments of bounded size, at natural boundaries if possible."""

from __future__ import annotations

import re
import unicodedata
from typing import TYPE_CHECKING

from reasond_server.errors.model import ContextExhaustedError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reasond_server.llm.model import TokenCounter

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
