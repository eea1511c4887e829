"""Requests counted by the library `limits` in sliding windows, in memory or in Redis.

The window before counts by the share of it that is still in sight.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from limits import RateLimitItemPerHour, RateLimitItemPerMinute
from limits.aio.storage import RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from reasond_server.limits.requests import Denial

if TYPE_CHECKING:
    from collections.abc import Sequence

    from limits import RateLimitItem
    from redis.asyncio import Redis

    from reasond_server.limits.memory_windows import MemoryWindows
    from reasond_server.limits.requests import RequestLimits

_NAMESPACE: Final = "requests"
_LEAST_WAIT_S: Final = 1.0
# At the very time that is worked out, what is in sight is still as much as does not fit.
_MOMENT_S: Final = 0.001


class _Named:
    """A limit whose keys are made in one step: the same as the library's, which takes seven calls for each."""

    __slots__ = ()
    namespace: str
    amount: int
    multiples: int
    GRANULARITY: Any

    def key_for(self, *identifiers: bytes | str | float) -> str:
        """Return the key of one identifier, a text."""
        return f"{self.namespace}/{identifiers[0]!s}/{self.amount}/{self.multiples}/{self.GRANULARITY.name}"

    def get_expiry(self) -> int:
        """Return the seconds of a window."""
        seconds: int = self.GRANULARITY.seconds
        return seconds


class PerMinute(_Named, RateLimitItemPerMinute):
    """A limit of a minute."""


class PerHour(_Named, RateLimitItemPerHour):
    """A limit of an hour."""


class _WindowRates:
    """The windows of `limits`, which `storage` keeps."""

    def __init__(self, *, storage: MemoryWindows | RedisStorage, limits: RequestLimits) -> None:
        self._storage = storage
        self._limiter = SlidingWindowCounterRateLimiter(storage)
        self._items = _items(limits)

    def _never_fitting(self, weight: int) -> Denial | None:
        """Return which limit is too small for `weight` whenever it comes."""
        for item in self._items:
            if weight > item.amount:
                return Denial(limit=_words(item), retry_after_s=None)
        return None

    async def _denial(self, item: RateLimitItem, name: str, weight: int) -> Denial:
        # The library's `get_window_stats` tells when one more may fit, which is too early for a weight.
        found = await self._storage.get_sliding_window(item.key_for(name), item.get_expiry())
        wait_s = _wait_s(found, room=item.amount - weight + 1, seconds=item.get_expiry())
        return Denial(limit=_words(item), retry_after_s=max(_LEAST_WAIT_S, wait_s))


class MemoryRates(_WindowRates):
    """Counts requests of callers in the memory of one process."""

    def __init__(self, *, windows: MemoryWindows, limits: RequestLimits) -> None:
        super().__init__(storage=windows, limits=limits)
        self._windows = windows
        self._longest_first = self._items[::-1]

    async def count(self, caller: str, *, weight: int) -> Denial | None:
        """See RequestRates; the longest window is the one to be told of where several refuse.

        What was counted before one refuses is taken back, because nothing comes between.
        """
        denial = self._never_fitting(weight)
        if denial is not None:
            return denial
        for place, item in enumerate(self._longest_first):
            if not await self._limiter.hit(item, caller, cost=weight):
                for counted in self._longest_first[:place]:
                    self._windows.take_back(counted.key_for(caller), weight)
                return await self._denial(item, caller, weight)
        return None


class RedisRates(_WindowRates):
    """Counts requests of callers in Redis, for all servers together."""

    async def count(self, caller: str, *, weight: int) -> Denial | None:
        """See RequestRates.

        A limit that refuses counts nothing, so that only those after the first are asked before; where others count
        between that question and the count, the limits before keep what they counted.

        Raises:
            RedisError: Redis cannot be reached.
        """
        denial = self._never_fitting(weight)
        if denial is not None:
            return denial
        # A key of Redis may hold braces only around what tells its node, and no half of a character.
        name = caller.encode("utf-8", "surrogatepass").hex()
        for item in self._items[1:]:
            if not await self._limiter.test(item, name, cost=weight):
                return await self._denial(item, name, weight)
        for item in self._items:
            if not await self._limiter.hit(item, name, cost=weight):
                return await self._denial(item, name, weight)
        return None


def redis_windows(redis: Redis, *, prefix: str = "reasond") -> RedisStorage:
    """Return the library's storage in Redis, over the connections of `redis`."""
    # The address says only which implementation is meant: the library refuses some that Redis has, and repeats them.
    pool: Any = redis.connection_pool
    return RedisStorage("async+redis://", implementation="redispy", key_prefix=prefix, connection_pool=pool)


def _items(limits: RequestLimits) -> Sequence[RateLimitItem]:
    """Return the limits in the words of the library."""
    minute = [] if limits.per_minute is None else [PerMinute(limits.per_minute, 1, _NAMESPACE)]
    hour = [] if limits.per_hour is None else [PerHour(limits.per_hour, 1, _NAMESPACE)]
    return [*minute, *hour]


def _words(item: RateLimitItem) -> str:
    name = "a minute" if isinstance(item, RateLimitItemPerMinute) else "an hour"
    return f"{item.amount} requests in {name}"


def _wait_s(found: tuple[int, float, int, float], *, room: int, seconds: int) -> float:
    """Return the seconds until less than `room` is in sight.

    `found` has the count of the window before, the seconds until that is out of sight, and both of this window.
    """
    before, before_s, count, count_s = found
    if count >= room:
        return count_s - seconds * room / count + _MOMENT_S
    # Nothing is before, and there is room, where the window ended since it refused.
    return before_s - seconds * (room - count) / before + _MOMENT_S if before else 0.0
