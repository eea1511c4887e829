"""Places for executions at once, by caller: given back on every way out, and by themselves when a server dies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from redis.asyncio import Redis

# A place whose server died is free again after that.
LEASE_S: Final = 3600
# KEYS: the caller's places, a sorted set by the time that each lapses. ARGV: the place, how many there are, seconds.
_TAKE: Final = """
local now = tonumber(redis.call('TIME')[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[3]), ARGV[1])
redis.call('EXPIRE', KEYS[1], tonumber(ARGV[3]))
return 1
"""
# KEYS as above. ARGV: the place, seconds, the places that it stands for from now on.
_MOVE: Final = """
local now = tonumber(redis.call('TIME')[1])
redis.call('ZREM', KEYS[1], unpack(ARGV, 3))
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[1])
redis.call('EXPIRE', KEYS[1], tonumber(ARGV[2]))
return 1
"""


class Slots(Protocol):
    """Places of callers."""

    async def take(self, caller: str, place: str) -> bool:
        """Take a place named `place`; return whether there was one."""
        ...

    def give_back(self, caller: str, place: str) -> Coroutine[Any, Any, None]:
        """Give it back; twice is once."""
        ...

    async def move(self, caller: str, place: str, *, earlier: Sequence[str]) -> None:
        """Let `place` stand for the places `earlier`, at least one, whether they are still there and there is room."""
        ...


class MemorySlots:
    """The places of one process: `most` for each caller."""

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._taken: dict[str, set[str]] = {}

    async def take(self, caller: str, place: str) -> bool:
        """See Slots."""
        taken = self._taken.setdefault(caller, set())
        if len(taken) >= self._most:
            return False
        taken.add(place)
        return True

    async def give_back(self, caller: str, place: str) -> None:
        """See Slots."""
        taken = self._taken.get(caller, set())
        taken.discard(place)
        if not taken:
            self._taken.pop(caller, None)

    async def move(self, caller: str, place: str, *, earlier: Sequence[str]) -> None:
        """See Slots."""
        taken = self._taken.setdefault(caller, set())
        taken.difference_update(earlier)
        taken.add(place)


class RedisSlots:
    """Places that several servers share."""

    def __init__(self, *, redis: Redis, most: int, prefix: str = "reasond") -> None:
        self._redis = redis
        self._most = most
        self._prefix = prefix
        self._take = redis.register_script(_TAKE)
        self._move = redis.register_script(_MOVE)

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
