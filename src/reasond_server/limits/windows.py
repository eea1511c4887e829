"""Requests counted in the memory of one process, in sliding windows: a count costs a microsecond and waits for nothing.

The window before counts by the share of it that is still in sight, as in Redis (`limits.redis_requests`).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from reasond_server.limits.requests import Denial

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.limits.requests import RequestLimits

_LEAST_WAIT_S = 1.0
# At the very time that is worked out, what is in sight is still as much as does not fit.
_MOMENT_S = 0.001
# For every new caller so many are looked at, so that more leave than come.
_LOOKED_AT = 32


@dataclass(slots=True)
class _Window:
    """What one caller did in the window with that `number`, and in the one before."""

    number: int
    count: int = 0
    before: int = 0

    def move_to(self, number: int) -> None:
        """Begin a later window."""
        if number != self.number:
            self.before = self.count if number == self.number + 1 else 0
            self.number, self.count = number, 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Limit:
    """So many requests in so many seconds, and the windows of the callers."""

    amount: int
    seconds: float
    words: str
    windows: dict[str, _Window]

    def window(self, caller: str, now_s: float, *, most_callers: int) -> _Window:
        """Return the window of `caller` as it is now."""
        number = int(now_s // self.seconds)
        window = self.windows.get(caller)
        if window is None:
            if len(self.windows) >= most_callers:
                self._forget_idle(number)
            self.windows[caller] = window = _Window(number=number)
        else:
            window.move_to(number)
        return window

    def wait_s(self, window: _Window, weight: int, now_s: float) -> float | None:
        """Return the seconds until `weight` more fit, 0 where they do now; None where they never do."""
        if weight > self.amount:
            return None
        # Parts of a request do not count, so that what is in sight may be just under one more.
        room, left = self.amount - weight + 1, 1 - now_s % self.seconds / self.seconds
        if window.count + window.before * left < room:
            return 0.0
        if window.count < room:
            return max(_LEAST_WAIT_S, (left - (room - window.count) / window.before) * self.seconds + _MOMENT_S)
        return max(_LEAST_WAIT_S, (left + 1 - room / window.count) * self.seconds + _MOMENT_S)

    def _forget_idle(self, number: int) -> None:
        """Forget callers of whom nothing is in sight in the window with that number.

        A few at a time, those first that were not looked at for longest: nobody waits while all are looked through.
        """
        for caller in list(islice(self.windows, _LOOKED_AT)):
            window = self.windows.pop(caller)
            if window.number >= number - 1:
                self.windows[caller] = window


class MemoryRates:
    """Counts requests of the callers of one process; `monotonic` is in seconds.

    Where as many as `most_callers` are known, each new one has a few of those forgotten of whom nothing is in sight.
    """

    def __init__(self, *, limits: RequestLimits, monotonic: Callable[[], float], most_callers: int = 100_000) -> None:
        self._limits = [
            _Limit(amount=amount, seconds=seconds, words=words, windows={}) for amount, seconds, words in limits.windows
        ]
        self._monotonic = monotonic
        self._most_callers = most_callers

    async def count(self, caller: str, *, weight: int) -> Denial | None:
        """See RequestRates; what one limit refuses, none of them counts."""
        now_s = self._monotonic()
        windows = [limit.window(caller, now_s, most_callers=self._most_callers) for limit in self._limits]
        for limit, window in zip(self._limits, windows, strict=True):
            wait_s = limit.wait_s(window, weight, now_s)
            if wait_s != 0:
                return Denial(limit=limit.words, retry_after_s=wait_s)
        for window in windows:
            window.count += weight
        return None
