"""Where the library `limits` keeps the windows of one process: a count makes no task and waits for nothing.

The library's own storage in memory makes a task for each hit that looks at all windows there are. This one forgets idle
callers a few at a time. It is given to the library's strategy and registered nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Final, NoReturn

from limits.aio.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Callable

# For every new window so many are looked at, so that more leave than come.
_LOOKED_AT: Final = 32


@dataclass(slots=True)
class _Window:
    """What was counted under one key in the window with that `number`, and in the one before."""

    seconds: int
    number: int
    count: int = 0
    before: int = 0

    def move_to(self, number: int) -> None:
        """Be the window with `number`, which may be a later one."""
        if number != self.number:
            self.before = self.count if number == self.number + 1 else 0
            self.number, self.count = number, 0


class MemoryWindows(Storage):
    """Sliding windows in the memory of one process; `monotonic` is in seconds.

    It has what the library asks of `SlidingWindowCounterSupport`, without its wrapper around each call.

    Where there are as many as `most`, each new one has a few of those forgotten in which nothing is in sight. Nothing
    here waits, so that of what runs in one event loop nothing comes between a question and its answer.
    """

    STORAGE_SCHEME = None

    def __init__(self, *, monotonic: Callable[[], float], most: int = 100_000) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._most = most
        self._windows: dict[str, _Window] = {}

    @property
    def base_exceptions(self) -> tuple[type[Exception], ...]:
        """What may fail: nothing."""
        return ()

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Count `amount` unless more than `limit` would be in sight; return whether it was."""
        now_s = self._monotonic()
        window = self._windows.get(key)
        if window is None:
            return amount <= limit and self._begun(key, expiry, amount, now_s)
        number = int(now_s // expiry)
        if number != window.number:
            window.move_to(number)
        in_sight = window.count + window.before * _left(expiry, now_s) if window.before else window.count
        if in_sight >= limit - amount + 1:
            return False
        window.count += amount
        return True

    def take_back(self, key: str, amount: int) -> None:
        """Undo a count of `amount` that was made just now, with nothing awaited since."""
        self._windows[key].count -= amount

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Return the count of the window before and the seconds until it is out of sight, then those of this one."""
        now_s = self._monotonic()
        window = self._at(key, now_s)
        if window is None:
            return 0, 0.0, 0, 0.0
        left_s = _left(expiry, now_s) * expiry
        return window.before, left_s, window.count, left_s + expiry

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Forget what was counted under `key`."""
        del expiry
        self._windows.pop(key, None)

    async def clear(self, key: str) -> None:
        """Forget what was counted under `key`."""
        self._windows.pop(key, None)

    async def reset(self) -> int:
        """Forget everything; return how many windows there were."""
        found = len(self._windows)
        self._windows.clear()
        return found

    async def check(self) -> bool:
        """Return that it works."""
        return True

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Refuse: a counter of the library's fixed windows, of which there are none here."""
        del key, expiry, amount
        _no_fixed_window()

    async def get(self, key: str) -> int:
        """Refuse as `incr`."""
        del key
        _no_fixed_window()

    async def get_expiry(self, key: str) -> float:
        """Refuse as `incr`."""
        del key
        _no_fixed_window()

    def _begun(self, key: str, seconds: int, amount: int, now_s: float) -> bool:
        """Begin a window under `key` with `amount` counted; return True."""
        if len(self._windows) >= self._most:
            self._forget_idle(now_s)
        self._windows[key] = _Window(seconds=seconds, number=int(now_s // seconds), count=amount)
        return True

    def _at(self, key: str, now_s: float) -> _Window | None:
        """Return the window under `key` as it is now; None where nothing was counted."""
        window = self._windows.get(key)
        if window is not None:
            window.move_to(int(now_s // window.seconds))
        return window

    def _forget_idle(self, now_s: float) -> None:
        """Forget windows in which nothing is in sight.

        A few at a time, those first that were not looked at for longest: nobody waits while all are looked through.
        """
        for key in list(islice(self._windows, _LOOKED_AT)):
            window = self._windows.pop(key)
            if window.number >= int(now_s // window.seconds) - 1:
                self._windows[key] = window


def _left(seconds: int, now_s: float) -> float:
    """Return the share of a window that is still to come, which is the share of the one before that is in sight."""
    return 1 - now_s % seconds / seconds


def _no_fixed_window() -> NoReturn:
    raise NotImplementedError("only sliding windows are kept in memory")
