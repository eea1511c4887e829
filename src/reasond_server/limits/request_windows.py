"""Counts requests in sliding windows in the memory of one process.

Each window has a fixed length; the previous one counts in proportion to its share that the sliding window still covers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final

from reasond_server.limits.request_limits import Denial
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from reasond_server.limits.request_limits import RequestLimits

MINUTE: Final = 60
HOUR: Final = 3600

_LEAST_WAIT_S: Final = 1.0
# At the exact end of the computed time the window still covers slightly too much.
_MARGIN_S: Final = 0.001
# For each new window this many others are examined to make room.
_EXAMINED: Final = 32


@value
class Rate:
    """At most `amount` requests in a sliding window of `seconds`, which is `MINUTE` or `HOUR`."""

    amount: int
    seconds: int

    @property
    def told(self) -> str:
        """The limit in words."""
        return f"{self.amount} requests in {'a minute' if self.seconds == MINUTE else 'an hour'}"


@value
class CoveredWindow:
    """What a sliding window covers: the counts of two windows, and the seconds for which each still counts."""

    before: int = 0
    before_s: float = 0.0
    count: int = 0
    count_s: float = 0.0


@dataclass(slots=True)
class _Window:
    """The counts of one key in the window `number` and in the previous window."""

    seconds: int
    number: int
    count: int = 0
    before: int = 0

    def move_to(self, number: int) -> None:
        """Advance to the window `number`, which is this one or a later one."""
        if number != self.number:
            self.before = self.count if number == self.number + 1 else 0
            self.number, self.count = number, 0


class MemoryWindows:
    """The windows of all callers; `monotonic` is in seconds.

    When there are `most` windows, each new one removes some windows that have expired.
    """

    def __init__(self, *, monotonic: Callable[[], float], most: int = 100_000) -> None:
        self._monotonic = monotonic
        self._most = most
        self._windows: dict[tuple[str, int], _Window] = {}

    def count(self, caller: str, rate: Rate, weight: int) -> bool:
        """Count `weight` and return True, unless the sliding window would then cover more than the limit."""
        now_s, seconds = self._monotonic(), rate.seconds
        window = self._windows.get((caller, seconds))
        if window is None:
            if weight > rate.amount:
                return False
            self._start_window((caller, seconds), weight, now_s)
            return True
        window.move_to(int(now_s // seconds))
        if window.count + window.before * _compute_rest(seconds, now_s) >= rate.amount - weight + 1:
            return False
        window.count += weight
        return True

    def take_back(self, caller: str, rate: Rate, weight: int) -> None:
        """Undo a count of `weight` that was just made; nothing may be awaited in between."""
        self._windows[caller, rate.seconds].count -= weight

    def measure(self, caller: str, rate: Rate) -> CoveredWindow:
        """Return what the caller's sliding window covers now."""
        now_s, seconds = self._monotonic(), rate.seconds
        window = self._windows.get((caller, seconds))
        if window is None:
            return CoveredWindow()
        window.move_to(int(now_s // seconds))
        rest_s = _compute_rest(seconds, now_s) * seconds
        return CoveredWindow(before=window.before, before_s=rest_s, count=window.count, count_s=rest_s + seconds)

    def _start_window(self, key: tuple[str, int], weight: int, now_s: float) -> None:
        if len(self._windows) >= self._most:
            self._forget_idle(now_s)
        _, seconds = key
        self._windows[key] = _Window(seconds=seconds, number=int(now_s // seconds), count=weight)

    def _forget_idle(self, now_s: float) -> None:
        """Remove some windows that have expired.

        It examines only a few windows, in rotation, so that no call is delayed.
        """
        for key in list(islice(self._windows, _EXAMINED)):
            window = self._windows.pop(key)
            if window.number >= int(now_s // window.seconds) - 1:
                self._windows[key] = window


class MemoryRates:
    """Counts requests of callers in the memory of one process."""

    def __init__(self, *, windows: MemoryWindows, limits: RequestLimits) -> None:
        self._windows = windows
        self._rates = list_rates(limits)

    async def count(self, caller: str, *, weight: int) -> Denial | None:
        """See RequestRates; if several windows refuse, the denial names the longest.

        Counts made before a window refuses are undone; no other task runs in between.
        """
        if (denial := deny_unfitting(self._rates, weight)) is not None:
            return denial
        counted: list[Rate] = []
        for rate in reversed(self._rates):
            if not self._windows.count(caller, rate, weight):
                for each in counted:
                    self._windows.take_back(caller, each, weight)
                return deny(rate, self._windows.measure(caller, rate), weight)
            counted.append(rate)
        return None


def list_rates(limits: RequestLimits) -> Sequence[Rate]:
    """Return the limits that are set, shortest window first."""
    amounts = ((limits.per_minute, MINUTE), (limits.per_hour, HOUR))
    return [Rate(amount=amount, seconds=seconds) for amount, seconds in amounts if amount is not None]


def deny_unfitting(rates: Sequence[Rate], weight: int) -> Denial | None:
    """Return the denial of a `weight` that exceeds a whole limit, else None."""
    for rate in rates:
        if weight > rate.amount:
            return Denial(limit=rate.told, retry_after_s=None)
    return None


def deny(rate: Rate, covered: CoveredWindow, weight: int) -> Denial:
    """Return the denial of a `weight` for which the sliding window of `rate` has no room now."""
    room = rate.amount - weight + 1
    if covered.count >= room:
        wait_s = covered.count_s - rate.seconds * room / covered.count + _MARGIN_S
    elif covered.before:
        wait_s = covered.before_s - rate.seconds * (room - covered.count) / covered.before + _MARGIN_S
    else:
        # The window ended after it refused, so there is room.
        wait_s = 0.0
    return Denial(limit=rate.told, retry_after_s=max(_LEAST_WAIT_S, wait_s))


def _compute_rest(seconds: int, now_s: float) -> float:
    """Return the remaining share of the window, which is also the share of the previous one that still counts."""
    return 1 - now_s % seconds / seconds
