"""Places that several servers share: given back when executions end, and by themselves when a server dies."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError, ResponseError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from redis.asyncio import Redis

    from reasond_server.limits.concurrency import Rest

_log = logging.getLogger("reasond.limits")
# A place whose server died is free again after that; those who live say so several times meanwhile.
LEASE_S: Final = 60.0
_RENEWALS_IN_A_LEASE: Final = 4
# KEYS: the caller's places, a sorted set by the time in milliseconds that each lapses. ARGV in all scripts: the
# milliseconds of a lease, and what is said there.
_NOW: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
# How many there are, the place.
_TAKE: Final = f"""{_NOW}
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""
# The place, and those that it stands for from now on.
_MOVE: Final = f"""{_NOW}
redis.call('ZREM', KEYS[1], unpack(ARGV, 3))
redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""
# The places that are held on.
_RENEW: Final = f"""{_NOW}
for place = 2, #ARGV do redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[place]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""


class RedisSlots:
    """Places by the clock of the Redis server: one round trip to take one, one to give it back.

    While any is held, one more for each caller in every quarter of `lease_s` says that it still is; `sleep` waits for
    that.
    """

    def __init__(
        self,
        *,
        redis: Redis,
        most: int,
        prefix: str = "reasond",
        lease_s: float = LEASE_S,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._redis = redis
        self._most = most
        self._prefix = prefix
        self._sleep = sleep
        self._lease_ms = str(round(lease_s * 1000))
        self._pause_s = lease_s / _RENEWALS_IN_A_LEASE
        self._held: dict[str, set[str]] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._take = redis.register_script(_TAKE)
        self._move = redis.register_script(_MOVE)
        self._renew = redis.register_script(_RENEW)

    @property
    def most(self) -> int:
        """See Slots."""
        return self._most

    async def aclose(self) -> None:
        """Renew nothing any more: what is held lapses, unless another server takes it over before."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    async def take(self, caller: str, place: str) -> bool:
        """See Slots.

        Raises:
            RedisError: Redis cannot be reached.
        """
        is_taken = await self._take(keys=[self._key(caller)], args=[self._lease_ms, str(self._most), place])
        if is_taken:
            self._hold(caller, place)
        return bool(is_taken)

    def give_back(self, caller: str, place: str) -> Rest:
        """See Slots. The rest raises as `take`."""
        held = self._held.get(caller, set())
        held.discard(place)
        if not held:
            self._held.pop(caller, None)
        return partial(self._remove, caller, place)

    async def move(self, caller: str, place: str, *, earlier: Sequence[str]) -> None:
        """See Slots. Raises as `take`."""
        await self._move(keys=[self._key(caller)], args=[self._lease_ms, place, *earlier])
        self._hold(caller, place)

    async def renew(self) -> None:
        """Say that what is held still is, also where it had lapsed: executions are at work there.

        What Redis answers for one caller, such as an error, keeps nobody else from it. Raises as `take`.
        """
        refusals: list[ResponseError] = []
        for caller, held in list(self._held.items()):
            try:
                await self._renew_of(caller, list(held))
            except ResponseError as error:
                refusals.append(error)
        if refusals:
            # One line: a Redis that takes no writes refuses every caller.
            _log.warning("places of %d callers could not be renewed", len(refusals), exc_info=refusals[0])

    async def _renew_of(self, caller: str, places: Sequence[str]) -> None:
        await self._renew(keys=[self._key(caller)], args=[self._lease_ms, *places])
        for place in places:
            # Given back meanwhile, and perhaps before it was renewed.
            if place not in self._held.get(caller, ()):
                await self._remove(caller, place)

    def _hold(self, caller: str, place: str) -> None:
        self._held.setdefault(caller, set()).add(place)
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep(), name="places in Redis")

    async def _keep(self) -> None:
        """Renew until nothing is held; what fails is tried again in its turn."""
        while self._held:
            await self._sleep(self._pause_s)
            with contextlib.suppress(RedisError, OSError, TimeoutError):
                await self.renew()

    async def _remove(self, caller: str, place: str) -> None:
        await self._redis.zrem(self._key(caller), place)

    def _key(self, caller: str) -> str:
        return f"{self._prefix}:{{{caller.encode('utf-8', 'replace').hex()}}}:places"
