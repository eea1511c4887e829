"""The ledger that several servers share: one script reserves, one settles, by the clock of the Redis server."""

from __future__ import annotations

import asyncio
import logging
import uuid
from typing import TYPE_CHECKING, Final

from redis.exceptions import RedisError

from reasond_server.limits.tokens import RESERVED_S, Reservation, exhausted

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from reasond_server.limits.tokens import TokenLimits

_log = logging.getLogger("reasond.limits")
# A server that stops must not wait for a Redis that does not answer.
_LAST_S: Final = 1.0
# KEYS: the caller's buckets (a hash), the reservation. ARGV: least, most, seconds that a reservation is kept, then
# capacity and seconds of each bucket. Levels are kept in thousandths of a token, times in microseconds. A clock that
# was set back fills nothing, but is noted also where a call is refused: no caller waits until it is where it was.
_FILL: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local is_set_back = false
local function fill(place, capacity, seconds)
  local full = capacity * 1000
  local kept = redis.call('HMGET', KEYS[1], 'l' .. place, 't' .. place)
  local level, at = tonumber(kept[1]) or full, tonumber(kept[2]) or now
  is_set_back = is_set_back or now < at
  if now > at then level = math.min(full, level + (now - at) * full / (seconds * 1000000)) end
  return level
end
local function keep(place, level)
  redis.call('HSET', KEYS[1], 'l' .. place, string.format('%.3f', level), 't' .. place, string.format('%.0f', now))
end
"""
_RESERVE: Final = (
    _FILL
    + """
local made = redis.call('GET', KEYS[2])
if made then return {tonumber(made) or 0, 0} end
local least, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local granted, wait, longest = most, 0, 0
local levels = {}
for place = 1, (#ARGV - 3) / 2 do
  local capacity, seconds = tonumber(ARGV[2 + place * 2]), tonumber(ARGV[3 + place * 2])
  local level = fill(place, capacity, seconds)
  levels[place] = level
  granted = math.min(granted, math.floor(level / 1000))
  if least > capacity then wait = -1 end
  if wait >= 0 and level < least * 1000 then
    wait = math.max(wait, math.ceil((least * 1000 - level) * seconds / capacity))
  end
  longest = math.max(longest, seconds)
end
local is_refused = granted < least
if is_refused and not is_set_back then return {granted, wait} end
if not is_refused then redis.call('SET', KEYS[2], granted, 'EX', ARGV[3]) end
for place, level in ipairs(levels) do keep(place, is_refused and level or level - granted * 1000) end
redis.call('EXPIRE', KEYS[1], math.ceil(longest * 2))
return {granted, wait}
"""
)
# KEYS as above. ARGV: tokens used, then capacity and seconds of each bucket. What is not reserved yet never will be:
# who gives up a reservation may be heard before it is made.
_SETTLE: Final = (
    _FILL
    + """
local reserved = redis.call('GETDEL', KEYS[2])
if tonumber(reserved or 'x') == nil then
  redis.call('SET', KEYS[2], 'settled', 'EX', 60)
  return 0
end
local back, longest = (tonumber(reserved) - tonumber(ARGV[1])) * 1000, 0
for place = 1, (#ARGV - 1) / 2 do
  local capacity, seconds = tonumber(ARGV[place * 2]), tonumber(ARGV[1 + place * 2])
  keep(place, math.min(capacity * 1000, fill(place, capacity, seconds) + back))
  longest = math.max(longest, seconds)
end
redis.call('EXPIRE', KEYS[1], math.ceil(longest * 2))
return 1
"""
)


class RedisTokenLedger:
    """Keeps buckets in Redis. Two round trips for a model call: one to reserve, one to settle.

    Whoever stops waiting for a reservation, which Redis may have made all the same, has it given back beside; whoever
    stops waiting for a settlement has it made beside.
    """

    def __init__(self, *, redis: Redis, limits: TokenLimits, prefix: str = "reasond") -> None:
        self._limits = limits
        self._prefix = prefix
        self._reserve = redis.register_script(_RESERVE)
        self._settle = redis.register_script(_SETTLE)
        self._buckets = [str(number) for pair in limits.buckets for number in pair]
        self._leaving: set[asyncio.Task[None]] = set()

    async def aclose(self) -> None:
        """Wait until what is settled beside is, for `_LAST_S` at most: what is not counts as spent."""
        if self._leaving:
            await asyncio.wait(self._leaving, timeout=_LAST_S)

    async def reserve(self, caller: str, *, least: int, most: int) -> Reservation:
        """See TokenLedger.

        Raises:
            RedisError: Redis cannot be reached.
        """
        number = uuid.uuid4().hex
        arguments = [str(least), str(most), str(int(RESERVED_S)), *self._buckets]
        try:
            granted, wait_ms = await self._reserve(keys=self._keys(caller, number), args=arguments)
        except BaseException:
            self._settle_beside(Reservation(id=number, caller=caller, tokens=0), used=0)
            raise
        if int(granted) < least:
            wait_s = None if int(wait_ms) < 0 else int(wait_ms) / 1000
            raise exhausted(self._limits, least=least, left=int(granted), wait_s=wait_s)
        return Reservation(id=number, caller=caller, tokens=int(granted))

    async def settle(self, reservation: Reservation, *, used: int) -> None:
        """See TokenLedger. Raises as `reserve`."""
        try:
            await self._settled(reservation, used)
        except asyncio.CancelledError:
            self._settle_beside(reservation, used)
            raise

    async def _settled(self, reservation: Reservation, used: int) -> None:
        keys = self._keys(reservation.caller, reservation.id)
        await self._settle(keys=keys, args=[str(used), *self._buckets])

    def _settle_beside(self, reservation: Reservation, used: int) -> None:
        """Settle it, though nobody waits for that any more."""

        async def settle() -> None:
            try:
                await self._settled(reservation, used)
            except (RedisError, OSError, TimeoutError) as error:
                # It counts as spent then, as that of a process that died.
                _log.debug("tokens could not be given back: %s", type(error).__name__)

        task = asyncio.create_task(settle(), name="tokens of a caller")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    def _keys(self, caller: str, number: str) -> list[str]:
        # In braces, so that a cluster keeps both keys on one node.
        tag = f"{self._prefix}:{{{caller.encode('utf-8', 'replace').hex()}}}"
        return [f"{tag}:tokens", f"{tag}:reserved:{number}"]
