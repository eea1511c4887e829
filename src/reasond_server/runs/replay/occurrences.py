"""How often a run asked its model the same before: a number for each asking, in memory that does not grow."""

from __future__ import annotations

import zlib
from array import array
from typing import Final

_RECENT: Final = 128
_SHARES: Final = 4096


class Occurrences:
    """Numbers what is asked: alike askings never get one number, and in the same order always the same ones.

    The last 128 different askings are counted each for itself, whatever their order. Of older ones the highest number
    is kept, in one of 4096 places that they share, so that a new asking may begin above 1. Where calls at one time
    change places in another life of the run just as an older one is let go, that number may differ: then, in one of
    some two thousand such cases, a call is made again.
    """

    __slots__ = ("_older", "_recent")

    def __init__(self) -> None:
        self._recent: dict[str, int] = {}
        self._older: array[int] | None = None

    def next_of(self, asked: str) -> int:
        """Count `asked` once more and return its number, 1 or more."""
        known = self._recent.pop(asked, None)
        number = 1 + (self._among_older(asked) if known is None else known)
        # Last in the order of the dict: the first is what was not asked for the longest time.
        self._recent[asked] = number
        if len(self._recent) > _RECENT:
            self._let_go()
        return number

    def _among_older(self, asked: str) -> int:
        return 0 if self._older is None else self._older[_share_of(asked)]

    def _let_go(self) -> None:
        oldest = next(iter(self._recent))
        number = self._recent.pop(oldest)
        if self._older is None:
            self._older = array("I", bytes(_SHARES * array("I").itemsize))
        share = _share_of(oldest)
        self._older[share] = max(self._older[share], number)


def _share_of(asked: str) -> int:
    return zlib.crc32(asked.encode()) % _SHARES
