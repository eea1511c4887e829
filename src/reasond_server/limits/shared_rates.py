"""Counts requests in sliding windows in Redis, with the library `limits`, for all servers together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from limits import RateLimitItemPerHour, RateLimitItemPerMinute
from limits.aio.storage import RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter

from reasond_server.limits.request_windows import MINUTE, CoveredWindow, deny, deny_unfitting, list_rates

if TYPE_CHECKING:
    from limits import RateLimitItem
    from redis.asyncio import Redis

    from reasond_server.limits.request_limits import Denial, RequestLimits
    from reasond_server.limits.request_windows import Rate

_NAMESPACE: Final = "requests"


class RedisRates:
    """Counts requests of callers in Redis, for all servers together."""

    def __init__(self, *, storage: RedisStorage, limits: RequestLimits) -> None:
        self._storage = storage
        self._limiter = SlidingWindowCounterRateLimiter(storage)
        self._rates = list_rates(limits)
        self._items = [(rate, _build_item(rate)) for rate in self._rates]

    async def count(self, caller: str, *, weight: int) -> Denial | None:
        """See RequestRates.

        All limits except the first are checked before any of them counts; the first counts nothing if it refuses. If
        another server counts between the check and the count, limits that have already counted keep the count.

        Raises:
            RedisError: Redis cannot be reached.
        """
        if (denial := deny_unfitting(self._rates, weight)) is not None:
            return denial
        # Braces in a Redis key choose its node, and a key must be valid UTF-8.
        name = caller.encode("utf-8", "surrogatepass").hex()
        for rate, item in self._items[1:]:
            if not await self._limiter.test(item, name, cost=weight):
                return await self._deny(rate, item, name, weight)
        for rate, item in self._items:
            if not await self._limiter.hit(item, name, cost=weight):
                return await self._deny(rate, item, name, weight)
        return None

    async def _deny(self, rate: Rate, item: RateLimitItem, name: str, weight: int) -> Denial:
        # The library's `get_window_stats` returns the time for a weight of 1, which is too early for a larger weight.
        found = await self._storage.get_sliding_window(item.key_for(name), item.get_expiry())
        before, before_s, count, count_s = found
        covered = CoveredWindow(before=before, before_s=before_s, count=count, count_s=count_s)
        return deny(rate, covered, weight)


def build_redis_storage(redis: Redis, *, prefix: str = "reasond") -> RedisStorage:
    """Return the library's storage in Redis, over the connections of `redis`."""
    # The address only selects the implementation. The library would refuse some Redis addresses and quote them.
    pool: Any = redis.connection_pool
    return RedisStorage("async+redis://", implementation="redispy", key_prefix=prefix, connection_pool=pool)


def _build_item(rate: Rate) -> RateLimitItem:
    kind = RateLimitItemPerMinute if rate.seconds == MINUTE else RateLimitItemPerHour
    return kind(rate.amount, 1, _NAMESPACE)
