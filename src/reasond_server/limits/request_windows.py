"""Counts requests in sliding windows with the library `limits`, in memory or in Redis.

Each window has a fixed length; the previous one counts in proportion to its share that the sliding window still covers.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NoReturn

from limits import RateLimitItemPerHour, RateLimitItemPerMinute
from limits.aio.storage import RedisStorage, Storage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from reasond_server.limits.request_limits import Denial

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from limits import RateLimitItem
    from redis.asyncio import Redis

    from reasond_server.limits.request_limits import RequestLimits

_NAMESPACE: Final = "requests"
_LEAST_WAIT_S: Final = 1.0
# At the exact end of the computed time the window still covers slightly too much.
_MARGIN_S: Final = 0.001
# For each new window this many others are examined to make room.
_EXAMINED: Final = 32


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


class MemoryWindows(Storage):
    """The library's storage of sliding windows in the memory of one process; `monotonic` is in seconds.

    The library's own storage in memory makes a task for each hit, which examines all windows. This one makes no task
    and awaits nothing, so that no other task runs between a check and its result. It has the methods of
    `SlidingWindowCounterSupport` without the library's wrapper around each call, and is not registered.

    When there are `most` windows, each new one removes some windows that have expired.
    """

    STORAGE_SCHEME = None

    def __init__(self, *, monotonic: Callable[[], float], most: int = 100_000) -> None:
        super().__init__()
        self._monotonic = monotonic
        self._most = most
        self._windows: dict[str, _Window] = {}

    @property
    def base_exceptions(self) -> tuple[type[Exception], ...]:
        """The errors that the storage raises: none."""
        return ()

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        """Count `amount` and return True, unless the sliding window would then cover more than `limit`."""
        now_s = self._monotonic()
        window = self._windows.get(key)
        if window is None:
            return amount <= limit and self._start_window(key, expiry, amount, now_s)
        number = int(now_s // expiry)
        if number != window.number:
            window.move_to(number)
        covered = window.count + window.before * _compute_rest(expiry, now_s) if window.before else window.count
        if covered >= limit - amount + 1:
            return False
        window.count += amount
        return True

    def take_back(self, key: str, amount: int) -> None:
        """Undo a count of `amount` that was just made; nothing may be awaited in between."""
        self._windows[key].count -= amount

    async def get_sliding_window(self, key: str, expiry: int) -> tuple[int, float, int, float]:
        """Return the count of the previous window and the seconds for which it still counts, then those of this one."""
        now_s = self._monotonic()
        window = self._find(key, now_s)
        if window is None:
            return 0, 0.0, 0, 0.0
        rest_s = _compute_rest(expiry, now_s) * expiry
        return window.before, rest_s, window.count, rest_s + expiry

    async def clear_sliding_window(self, key: str, expiry: int) -> None:
        """Remove the counts of `key`."""
        del expiry
        self._windows.pop(key, None)

    async def clear(self, key: str) -> None:
        """Remove the counts of `key`."""
        self._windows.pop(key, None)

    async def reset(self) -> int:
        """Remove all windows and return their number."""
        found = len(self._windows)
        self._windows.clear()
        return found

    async def check(self) -> bool:
        """Return True: the storage always works."""
        return True

    async def incr(self, key: str, expiry: int, amount: int = 1) -> int:
        """Raise an error: only the library's fixed windows need this method."""
        del key, expiry, amount
        _refuse_fixed_window()

    async def get(self, key: str) -> int:
        """Raise an error, as `incr` does."""
        del key
        _refuse_fixed_window()

    async def get_expiry(self, key: str) -> float:
        """Raise an error, as `incr` does."""
        del key
        _refuse_fixed_window()

    def _start_window(self, key: str, seconds: int, amount: int, now_s: float) -> bool:
        """Start a window under `key` with `amount` counted; return True."""
        if len(self._windows) >= self._most:
            self._forget_idle(now_s)
        self._windows[key] = _Window(seconds=seconds, number=int(now_s // seconds), count=amount)
        return True

    def _find(self, key: str, now_s: float) -> _Window | None:
        """Return the current window of `key`; None if nothing was counted."""
        window = self._windows.get(key)
        if window is not None:
            window.move_to(int(now_s // window.seconds))
        return window

    def _forget_idle(self, now_s: float) -> None:
        """Remove some windows that have expired.

        It examines only a few windows, in rotation, so that no call is delayed.
        """
        for key in list(islice(self._windows, _EXAMINED)):
            window = self._windows.pop(key)
            if window.number >= int(now_s // window.seconds) - 1:
                self._windows[key] = window


class _Named:
    """A limit that makes the library's keys in one step; the library takes seven calls for each."""

    __slots__ = ()
    namespace: str
    amount: int
    multiples: int
    GRANULARITY: Any

    def key_for(self, *identifiers: bytes | str | float) -> str:
        """Return the key of one identifier, which is a text."""
        return f"{self.namespace}/{identifiers[0]!s}/{self.amount}/{self.multiples}/{self.GRANULARITY.name}"

    def get_expiry(self) -> int:
        """Return the length of a window in seconds."""
        seconds: int = self.GRANULARITY.seconds
        return seconds


class PerMinute(_Named, RateLimitItemPerMinute):
    """A limit of a minute."""


class PerHour(_Named, RateLimitItemPerHour):
    """A limit of an hour."""


class _WindowRates:
    """The rates of `limits`, with windows in `storage`."""

    def __init__(self, *, storage: MemoryWindows | RedisStorage, limits: RequestLimits) -> None:
        self._storage = storage
        self._limiter = SlidingWindowCounterRateLimiter(storage)
        self._items = _build_items(limits)

    def _deny_unfitting(self, weight: int) -> Denial | None:
        """Return the denial of a `weight` that exceeds a whole limit, else None."""
        for item in self._items:
            if weight > item.amount:
                return Denial(limit=_describe(item), retry_after_s=None)
        return None

    async def _build_denial(self, item: RateLimitItem, name: str, weight: int) -> Denial:
        # The library's `get_window_stats` returns the time for a weight of 1, which is too early for a larger weight.
        found = await self._storage.get_sliding_window(item.key_for(name), item.get_expiry())
        wait_s = _compute_wait_s(found, room=item.amount - weight + 1, seconds=item.get_expiry())
        return Denial(limit=_describe(item), retry_after_s=max(_LEAST_WAIT_S, wait_s))


class MemoryRates(_WindowRates):
    """Counts requests of callers in the memory of one process."""

    def __init__(self, *, windows: MemoryWindows, limits: RequestLimits) -> None:
        super().__init__(storage=windows, limits=limits)
        self._windows = windows
        self._longest_first = self._items[::-1]
        self._least = min((item.amount for item in self._items), default=0)

    async def count(self, caller: str, *, weight: int) -> Denial | None:
        """See RequestRates; if several windows refuse, the denial names the longest.

        Counts made before a window refuses are undone; no other task runs in between.
        """
        if weight > self._least and (denial := self._deny_unfitting(weight)) is not None:
            return denial
        count = self._windows.acquire_sliding_window_entry
        for place, item in enumerate(self._longest_first):
            if not await count(item.key_for(caller), item.amount, item.get_expiry(), weight):
                for counted in self._longest_first[:place]:
                    self._windows.take_back(counted.key_for(caller), weight)
                return await self._build_denial(item, caller, weight)
        return None


class RedisRates(_WindowRates):
    """Counts requests of callers in Redis, for all servers together."""

    async def count(self, caller: str, *, weight: int) -> Denial | None:
        """See RequestRates.

        All limits except the first are checked before any of them counts; the first counts nothing if it refuses. If
        another server counts between the check and the count, limits that have already counted keep the count.

        Raises:
            RedisError: Redis cannot be reached.
        """
        denial = self._deny_unfitting(weight)
        if denial is not None:
            return denial
        # Braces in a Redis key choose its node, and a key must be valid UTF-8.
        name = caller.encode("utf-8", "surrogatepass").hex()
        for item in self._items[1:]:
            if not await self._limiter.test(item, name, cost=weight):
                return await self._build_denial(item, name, weight)
        for item in self._items:
            if not await self._limiter.hit(item, name, cost=weight):
                return await self._build_denial(item, name, weight)
        return None


def build_redis_storage(redis: Redis, *, prefix: str = "reasond") -> RedisStorage:
    """Return the library's storage in Redis, over the connections of `redis`."""
    # The address only selects the implementation. The library would refuse some Redis addresses and quote them.
    pool: Any = redis.connection_pool
    return RedisStorage("async+redis://", implementation="redispy", key_prefix=prefix, connection_pool=pool)


def _build_items(limits: RequestLimits) -> Sequence[RateLimitItem]:
    """Return the limits as the library's items, shortest window first."""
    minute = [] if limits.per_minute is None else [PerMinute(limits.per_minute, 1, _NAMESPACE)]
    hour = [] if limits.per_hour is None else [PerHour(limits.per_hour, 1, _NAMESPACE)]
    return [*minute, *hour]


def _describe(item: RateLimitItem) -> str:
    name = "a minute" if isinstance(item, RateLimitItemPerMinute) else "an hour"
    return f"{item.amount} requests in {name}"


def _compute_wait_s(found: tuple[int, float, int, float], *, room: int, seconds: int) -> float:
    """Return the seconds until the sliding window covers less than `room`.

    `found` is the result of `get_sliding_window`; `seconds` is the length of a window.
    """
    before, before_s, count, count_s = found
    if count >= room:
        return count_s - seconds * room / count + _MARGIN_S
    # The window ended after it refused, so there is room, and the previous window is empty.
    return before_s - seconds * (room - count) / before + _MARGIN_S if before else 0.0


def _compute_rest(seconds: int, now_s: float) -> float:
    """Return the remaining share of the window, which is also the share of the previous one that still counts."""
    return 1 - now_s % seconds / seconds


def _refuse_fixed_window() -> NoReturn:
    raise NotImplementedError("only sliding windows are kept in memory")
