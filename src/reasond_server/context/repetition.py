"""Tells a run that goes in circles from one that makes progress, by what two windows in a row wrote.

A run repeats itself where the text of a window, or the notes it left, is that of the window before but for case and
blanks, or where at least nine in ten of its runs of five words stood in the window before. Reading is never judged:
every such window sees new text, and may well find nothing in it as often as it likes. Nothing is random, so the same
replies are judged alike.
"""

from __future__ import annotations

import re
import zlib
from itertools import islice
from typing import Final

_MOST_CHARACTERS: Final = 65_536
_RUN: Final = 5
_FEWEST_RUNS: Final = 24
_OVERLAP_PER_MILLE: Final = 900
# Beyond so many words one run in eight stands for all of them.
_MANY_WORDS: Final = 4096
_SAMPLE: Final = 8
# Scripts without spaces between words: each letter for itself.
_WORD: Final = re.compile("[^\\W\u2e80-\U0003ffff]+|\\w")


class RepetitionGuard:
    """Watches the reasoning windows of one run; keeps what it needs of the last one only."""

    def __init__(self) -> None:
        self._text = ""
        self._notes = ""
        self._runs: frozenset[int] = frozenset()

    def repeats(self, *, text: str, notes: str) -> bool:
        """Take what a window wrote and the notes it left; return whether it repeats the one before."""
        chunk, carried = _normal(text), _normal(notes)
        runs = _runs_of(chunk)
        is_same = bool(chunk) and chunk == self._text
        is_stuck = bool(carried) and carried == self._notes
        shared = len(runs & self._runs) * 1000
        overlaps = len(runs) >= _FEWEST_RUNS and shared >= _OVERLAP_PER_MILLE * len(runs)
        self._text, self._notes, self._runs = chunk, carried, runs
        return is_same or is_stuck or overlaps


def _normal(text: str) -> str:
    return " ".join(text[-_MOST_CHARACTERS:].casefold().split())


def _runs_of(text: str) -> frozenset[int]:
    """Return a number for each run of five words; the same text gives the same numbers in every process."""
    words = _WORD.findall(text)
    rows = zip(*(islice(words, start, None) for start in range(_RUN)), strict=False)
    numbers = (zlib.crc32(" ".join(row).encode("utf-8", "replace")) for row in rows)
    if len(words) <= _MANY_WORDS:
        return frozenset(numbers)
    return frozenset(number for number in numbers if number % _SAMPLE == 0)
