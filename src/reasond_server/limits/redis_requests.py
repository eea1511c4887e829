"""Requests and places that several servers share: one script admits, by the clock of the Redis server.

A place is taken and all windows are asked before anything is counted, so that what is refused costs nothing, and an
execution asks Redis twice: at its beginning, and at its end when nobody waits any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reasond_server.limits.requests import Denial, no_place

if TYPE_CHECKING:
    from collections.abc import Sequence

    from redis.asyncio import Redis

    from reasond_server.limits.requests import RequestLimits

# A place whose server died is free again after that.
LEASE_S: Final = 3600
_NO_PLACE: Final = -1
_MILLI: Final = 1000
# KEYS: the caller's places, a sorted set by the time that each lapses; its windows, a hash with number, count and count
# of the window before, named by its seconds, because limits come and go. ARGV: the place, how many there are (0: not
# counted), seconds that one is kept, the weight, then amount and seconds of each limit. Returns which limit refuses
# (0: none) and the milliseconds to wait (-1: for ever). The sums are those of `windows.py`.
_ADMIT: Final = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1000000
local most, weight = tonumber(ARGV[2]), tonumber(ARGV[4])
if most > 0 then
  redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
  if redis.call('ZCARD', KEYS[1]) >= most then return {-1, 0} end
end
local found, longest = {}, 0
for limit = 1, (#ARGV - 4) / 2 do
  local amount, seconds = tonumber(ARGV[3 + limit * 2]), tonumber(ARGV[4 + limit * 2])
  if weight > amount then return {limit, -1} end
  local kept = redis.call('HMGET', KEYS[2], 'n' .. seconds, 'c' .. seconds, 'b' .. seconds)
  local number, left = math.floor(now / seconds), 1 - now % seconds / seconds
  local was, count, before = tonumber(kept[1]) or -1, tonumber(kept[2]) or 0, tonumber(kept[3]) or 0
  if was > number then
    number, left = was, 1
  elseif was < number then
    before, count = was == number - 1 and count or 0, 0
  end
  local room, wait = amount - weight + 1, nil
  if count + before * left >= room then
    if count < room then wait = left - (room - count) / before else wait = left + 1 - room / count end
    return {limit, math.max(1000, math.ceil(wait * seconds * 1000) + 1)}
  end
  found[limit], longest = {seconds, number, count + weight, before}, math.max(longest, seconds)
end
for _, window in ipairs(found) do
  local seconds = window[1]
  redis.call('HSET', KEYS[2], 'n' .. seconds, string.format('%.0f', window[2]), 'c' .. seconds, window[3],
    'b' .. seconds, window[4])
end
if longest > 0 then redis.call('EXPIRE', KEYS[2], longest * 2) end
if most > 0 then
  redis.call('ZADD', KEYS[1], now + tonumber(ARGV[3]), ARGV[1])
  redis.call('EXPIRE', KEYS[1], ARGV[3])
end
return {0, 0}
"""
# KEYS: the caller's places. ARGV: the place, seconds, the places that it stands for from now on.
_MOVE: Final = """
local now = tonumber(redis.call('TIME')[1])
redis.call('ZREM', KEYS[1], unpack(ARGV, 3))
redis.call('ZADD', KEYS[1], now + tonumber(ARGV[2]), ARGV[1])
redis.call('EXPIRE', KEYS[1], tonumber(ARGV[2]))
return 1
"""


class RedisAdmission:
    """Admits in Redis; `most_at_once` is None where executions at once are not counted."""

    def __init__(
        self, *, redis: Redis, limits: RequestLimits, most_at_once: int | None = None, prefix: str = "reasond"
    ) -> None:
        self._redis = redis
        self._most = most_at_once or 0
        self._prefix = prefix
        self._admit = redis.register_script(_ADMIT)
        self._move = redis.register_script(_MOVE)
        self._words = [words for _, _, words in limits.windows]
        self._windows = [str(number) for amount, seconds, _ in limits.windows for number in (amount, seconds)]

    async def admit(self, caller: str, place: str, *, weight: int) -> Denial | None:
        """See Admission.

        Raises:
            RedisError: Redis cannot be reached.
        """
        keys = [self._key(caller, "places"), self._key(caller, "requests")]
        arguments = [place, str(self._most), str(LEASE_S), str(weight), *self._windows]
        refusing, wait_ms = map(int, await self._admit(keys=keys, args=arguments))
        if refusing == _NO_PLACE:
            return no_place(self._most)
        if refusing:
            wait_s = None if wait_ms < 0 else wait_ms / _MILLI
            return Denial(limit=self._words[refusing - 1], retry_after_s=wait_s)
        return None

    async def give_back(self, caller: str, place: str) -> None:
        """See Admission. Raises as `admit`."""
        await self._redis.zrem(self._key(caller, "places"), place)

    async def move(self, caller: str, place: str, *, earlier: Sequence[str]) -> None:
        """See Admission. Raises as `admit`."""
        await self._move(keys=[self._key(caller, "places")], args=[place, str(LEASE_S), *earlier])

    def _key(self, caller: str, what: str) -> str:
        # In braces, so that a cluster keeps both keys on one node.
        return f"{self._prefix}:{{{caller.encode('utf-8', 'replace').hex()}}}:{what}"
