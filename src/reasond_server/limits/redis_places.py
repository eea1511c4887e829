"""Places that several servers share: given back when executions end, and by themselves when a server dies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

# A place whose server died is free again after that.
LEASE_S: Final = 3600
# KEYS: the caller's places, a sorted set by the time that each lapses. ARGV: the place, how many there are, seconds.
_TAKE: Final = """
local now = tonumber(redis.call('TIME')[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[3]), ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
"""
# KEYS as above. ARGV: the place, seconds, the places that it stands for from now on.
_MOVE: Final = """
local now = tonumber(redis.call('TIME')[1])
redis.call('ZREM', KEYS[1], unpack(ARGV, 3))
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[1])
redis.call('EXPIRE', KEYS[1], ARGV[2])
return 1
"""


class RedisSlots:
    """Places by the clock of the Redis server: one round trip to take one, one to give it back."""

    def __init__(self, *, redis: Redis, most: int, prefix: str = "reasond") -> None:
        self._redis = redis
        self._most = most
        self._prefix = prefix
        self._take = redis.register_script(_TAKE)
        self._move = redis.register_script(_MOVE)

    @property
    def most(self) -> int:
        """See Slots."""
        return self._most

    async def take(self, caller: str, place: str) -> bool:
        """See Slots.

        Raises:
            RedisError: Redis cannot be reached.
        """
        return bool(await self._take(keys=[self._key(caller)], args=[place, str(self._most), str(LEASE_S)]))

    async def give_back(self, caller: str, place: str) -> None:
        """See Slots. Raises as `take`."""
        await self._redis.zrem(self._key(caller), place)

    async def move(self, caller: str, place: str, *, earlier: Sequence[str]) -> None:
        """See Slots. Raises as `take`."""
        await self._move(keys=[self._key(caller)], args=[place, str(LEASE_S), *earlier])

    def _key(self, caller: str) -> str:
        return f"{self._prefix}:{{{caller.encode('utf-8', 'replace').hex()}}}:places"
