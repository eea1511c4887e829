"""Slows guessing down: after some failures within a minute nobody gets another try until the first is a minute old."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Throttle:
    """Counts failures by key over `window_s` seconds and allows `most` of them; remembers up to `most_keys` keys."""

    def __init__(self, *, most: int, window_s: float, monotonic: Callable[[], float], most_keys: int = 10_000) -> None:
        self._most = most
        self._window_s = window_s
        self._monotonic = monotonic
        self._most_keys = most_keys
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()

    def wait_s(self, key: str) -> float:
        """Return the seconds until `key` may try again; 0 now."""
        times = self._failures.get(key)
        if times is None:
            return 0.0
        now = self._monotonic()
        while times and times[0] <= now - self._window_s:
            times.popleft()
        if not times:
            del self._failures[key]
        return times[0] + self._window_s - now if len(times) >= self._most else 0.0

    def failed(self, key: str) -> None:
        """Note that `key` failed now."""
        times = self._failures.setdefault(key, deque(maxlen=self._most))
        times.append(self._monotonic())
        self._failures.move_to_end(key)
        while len(self._failures) > self._most_keys:
            self._failures.popitem(last=False)

    def succeeded(self, key: str) -> None:
        """Forget what `key` did wrong before."""
        self._failures.pop(key, None)
