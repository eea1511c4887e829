"""The temperature of each sample: near the one that was asked for, and different, so that samples differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_LADDER_SPREAD: Final = 0.3
_LEAST_TEMPERATURE: Final = 0.05
_MOST_TEMPERATURE: Final = 2.0


def ladder(temperature: float, samples: int) -> Sequence[float]:
    """Return the temperature of each sample: T * (1 + 0.3 * r / R), never below 0.05 nor above 2.

    r is 0, -1, 1, -2, 2 … and R the largest of them, so the first sample has T itself and all lie within 30 % of it.
    """
    rungs = [(place + 1) // 2 * (1 if place % 2 == 0 else -1) for place in range(samples)]
    largest = max(map(abs, rungs)) or 1
    wanted = [temperature * (1 + _LADDER_SPREAD * rung / largest) for rung in rungs]
    least = min(_LEAST_TEMPERATURE, temperature)
    return [round(min(max(each, least), _MOST_TEMPERATURE), 4) for each in wanted]
