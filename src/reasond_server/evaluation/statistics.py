"""Shares with their intervals, and paired comparisons of two ways that answered the same questions."""

from __future__ import annotations

from math import comb, sqrt
from typing import TYPE_CHECKING, Final

from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence

_Z: Final = 1.959963984540054
"""The 97.5 % quantile of the normal distribution: every interval here covers 95 %."""


@value
class Interval:
    """An interval of a share or of a difference of shares, from -1 to 1."""

    low: float
    high: float


@value
class Comparison:
    """Two ways on the same questions: how many of `n` only the first and only the second had right.

    Attributes:
        difference: the share that the second has right minus that of the first.
        interval: of the difference, after Agresti and Min 2005: half a pair is added to each cell.
        p: of McNemar's exact test, two-sided: how likely so uneven a split is if neither is better.
    """

    n: int
    lost: int
    won: int
    difference: float
    interval: Interval
    p: float


def compute_interval(right: int, n: int) -> Interval:
    """Return Wilson's interval (1927) of the share `right` of `n`; of nothing, from 0 to 1."""
    if n == 0:
        return Interval(low=0.0, high=1.0)
    share, square = right / n, _Z * _Z
    middle = (share + square / (2 * n)) / (1 + square / n)
    half = _Z / (1 + square / n) * sqrt(share * (1 - share) / n + square / (4 * n * n))
    return Interval(low=max(0.0, middle - half), high=min(1.0, middle + half))


def compare(first: Sequence[bool], second: Sequence[bool]) -> Comparison:
    """Compare two ways; the verdicts stand in the order of the same questions."""
    pairs = list(zip(first, second, strict=True))
    lost = sum(a and not b for a, b in pairs)
    won = sum(b and not a for a, b in pairs)
    n = len(pairs)
    # Half a pair in each of the four cells.
    lost_more, won_more, n_more = lost + 0.5, won + 0.5, n + 2
    middle = (won_more - lost_more) / n_more
    half = _Z * sqrt(lost_more + won_more - (won_more - lost_more) ** 2 / n_more) / n_more
    return Comparison(
        n=n,
        lost=lost,
        won=won,
        difference=(won - lost) / n if n else 0.0,
        interval=Interval(low=max(-1.0, middle - half), high=min(1.0, middle + half)),
        p=compute_mcnemar(lost, won),
    )


def compute_mcnemar(lost: int, won: int) -> float:
    """Return the exact two-sided p of `lost` against `won` (McNemar 1947): a fair coin for each unequal pair."""
    n, least = lost + won, min(lost, won)
    tail = sum(comb(n, k) for k in range(least + 1))
    return min(1.0, float(2 * tail / 2**n)) if n else 1.0
