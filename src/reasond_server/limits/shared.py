"""Limits that several servers share in Redis, and the fallback while Redis cannot be reached.

Scripts run by the clock of the Redis server. Braces in a key keep all keys of a caller on one node of a cluster.
Requests are counted in sliding windows with the library `limits`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from limits import RateLimitItem, RateLimitItemPerHour, RateLimitItemPerMinute
from limits.aio.storage import RedisStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from redis.exceptions import RedisError, ResponseError

from reasond_server.base.asyncio_tasks import end_task, limit_awake_time
from reasond_server.errors.base import ReasondError
from reasond_server.errors.limits import StoreUnavailableError
from reasond_server.limits.budgets import RESERVED_S, Reservation, TokenLedger, TokenLimits, build_refusal
from reasond_server.limits.request_limits import MINUTE, CoveredWindow, deny, deny_unfitting, list_rates, release_slot

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from redis.asyncio import Redis

    from reasond_server.limits.callers import SharedHealth
    from reasond_server.limits.request_limits import Cleanup, Denial, Rate, RequestAdmission, RequestLimits

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


T = TypeVar("T")
OnFailure = Literal["local", "closed", "open"]
FAILURES: Final = (RedisError, OSError, TimeoutError)
LEASE_S: Final = 60.0
"""Seconds after which the slot of a dead server is free again."""
_RENEWALS_IN_A_LEASE: Final = 4
# A server that stops must not wait for a Redis that does not answer.
_CLOSING_S: Final = 1.0
_UNLIMITED: Final = "unlimited"
_log = logging.getLogger("reasond.limits")


class Fallback:
    """Asks Redis for at most `timeout_s` seconds in which the event loop is awake; then `on_failure` decides.

    `local` applies the local limits of each server, `closed` refuses, and `open` admits everything.
    """

    def __init__(self, *, health: SharedHealth, on_failure: OnFailure, timeout_s: float = 0.05) -> None:
        self._health = health
        self._on_failure = on_failure
        self._timeout_s = timeout_s

    async def attempt(self, shared: Callable[[], Coroutine[Any, Any, T | None]]) -> T | None:
        """Return the result of `shared`; None if Redis cannot be reached."""

        async def skip() -> T | None:
            return None

        return await Fallback(health=self._health, on_failure="local", timeout_s=self._timeout_s).ask(
            shared, local=skip, unlimited=lambda: None
        )

    async def ask(
        self,
        shared: Callable[[], Coroutine[Any, Any, T]],
        *,
        local: Callable[[], Awaitable[T]],
        unlimited: Callable[[], T],
    ) -> T:
        """Return the result of `shared`; without Redis that of `local` or `unlimited`.

        Raises:
            StoreUnavailableError: Redis cannot be reached, and `on_failure` is `closed`.
        """
        if self._health.may_try():
            try:
                async with limit_awake_time(self._timeout_s):
                    found = await shared()
            except FAILURES as error:
                self._health.note_failure(error)
            except ReasondError:
                # A refusal is an answer of Redis, so the caller must not get the local limits in addition.
                self._health.note_success()
                raise
            else:
                self._health.note_success()
                return found
        if self._on_failure == "local":
            return await local()
        if self._on_failure == "open":
            return unlimited()
        raise StoreUnavailableError("Limits cannot be checked at present", remedy="Retry after the time given.")


# KEYS: the caller's buckets (a hash), the reservation. ARGV: least, most, seconds that a reservation is kept, then
# capacity and seconds of each bucket. Levels are in thousandths of a token, times in microseconds. A clock that was set
# back refills nothing. Its time is stored even if a call is refused, so that no caller waits until the old time comes
# again. The hash expires when its buckets are full, but not before two windows have passed; a debt can take many.
_FILL: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local is_set_back, needed = false, 0
local function fill(place, capacity, seconds)
  local full = capacity * 1000
  local kept = redis.call('HMGET', KEYS[1], 'l' .. place, 't' .. place)
  local level, at = tonumber(kept[1]) or full, tonumber(kept[2]) or now
  is_set_back = is_set_back or now < at
  if now > at then level = math.min(full, level + (now - at) * full / (seconds * 1000000)) end
  return level
end
local function keep(place, level, capacity, seconds)
  redis.call('HSET', KEYS[1], 'l' .. place, string.format('%.3f', level), 't' .. place, string.format('%.0f', now))
  needed = math.max(needed, seconds * 2, seconds * (1 - level / (capacity * 1000)))
  redis.call('EXPIRE', KEYS[1], math.min(1e9, math.ceil(needed)))
end
"""
_RESERVE: Final = (
    _FILL
    + """
local made = redis.call('GET', KEYS[2])
if made then return {tonumber(made) or 0, 0} end
local least, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local granted, wait = most, 0
local buckets = {}
for place = 1, (#ARGV - 3) / 2 do
  local capacity, seconds = tonumber(ARGV[2 + place * 2]), tonumber(ARGV[3 + place * 2])
  local level = fill(place, capacity, seconds)
  buckets[place] = {level, capacity, seconds}
  granted = math.min(granted, math.floor(level / 1000))
  if least > capacity then wait = -1 end
  if wait >= 0 and level < least * 1000 then
    wait = math.max(wait, math.ceil((least * 1000 - level) * seconds / capacity))
  end
end
local is_refused = granted < least
if is_refused and not is_set_back then return {granted, wait} end
if not is_refused then redis.call('SET', KEYS[2], granted, 'EX', ARGV[3]) end
local taken = is_refused and 0 or granted * 1000
for place, bucket in ipairs(buckets) do keep(place, bucket[1] - taken, bucket[2], bucket[3]) end
return {granted, wait}
"""
)
# KEYS as above. ARGV: tokens used, then capacity and seconds of each bucket. The call that gives up a reservation may
# arrive before the one that makes it; in this case the script stores a mark that prevents the reservation. Returns the
# share of the tokens of a day that is left, empty if there is none.
_SETTLE: Final = (
    _FILL
    + """
local reserved = redis.call('GETDEL', KEYS[2])
if tonumber(reserved or 'x') == nil then
  redis.call('SET', KEYS[2], 'settled', 'EX', 60)
  return ''
end
local left, back = '', (tonumber(reserved) - tonumber(ARGV[1])) * 1000
for place = 1, (#ARGV - 1) / 2 do
  local capacity, seconds = tonumber(ARGV[place * 2]), tonumber(ARGV[1 + place * 2])
  local level = math.min(capacity * 1000, fill(place, capacity, seconds) + back)
  keep(place, level, capacity, seconds)
  if seconds == 86400 then left = string.format('%.6f', level / (capacity * 1000)) end
end
return left
"""
)


class RedisTokenLedger:
    """Keeps buckets in Redis. A model call costs two round trips: one to reserve, one to settle.

    If a caller stops waiting for a reservation, a task returns it, because Redis may still have made it. If a caller
    stops waiting for a settlement, a task completes it.
    """

    def __init__(self, *, redis: Redis, limits: TokenLimits, prefix: str = "reasond") -> None:
        self._limits = limits
        self._prefix = prefix
        self._reserve = redis.register_script(_RESERVE)
        self._settle = redis.register_script(_SETTLE)
        self._buckets = [str(number) for pair in limits.buckets for number in pair]
        self._settling: set[asyncio.Task[None]] = set()

    async def aclose(self) -> None:
        """Wait at most `_CLOSING_S` seconds for settlements in tasks; tokens not settled by then count as spent."""
        if self._settling:
            await asyncio.wait(self._settling, timeout=_CLOSING_S)

    async def reserve(self, caller: str, *, least: int, most: int) -> Reservation:
        """See TokenLedger.

        Raises:
            RedisError: Redis cannot be reached.
        """
        number = uuid.uuid4().hex
        arguments = [str(least), str(most), str(int(RESERVED_S)), *self._buckets]
        try:
            granted, wait_ms = await self._reserve(keys=self._build_keys(caller, number), args=arguments)
        except BaseException:
            self._settle_in_task(Reservation(id=number, caller=caller, tokens=0), used=0)
            raise
        if int(granted) < least:
            wait_s = None if int(wait_ms) < 0 else int(wait_ms) / 1000
            raise build_refusal(self._limits, least=least, left=int(granted), wait_s=wait_s)
        return Reservation(id=number, caller=caller, tokens=int(granted))

    async def settle(self, reservation: Reservation, *, used: int) -> float | None:
        """See TokenLedger. Raises the same errors as `reserve`."""
        try:
            return await self._run_settlement(reservation, used)
        except asyncio.CancelledError:
            self._settle_in_task(reservation, used)
            raise

    async def _run_settlement(self, reservation: Reservation, used: int) -> float | None:
        keys = self._build_keys(reservation.caller, reservation.id)
        left = await self._settle(keys=keys, args=[str(used), *self._buckets])
        return float(left) if left else None

    def _settle_in_task(self, reservation: Reservation, used: int) -> None:
        """Settle the reservation in a task, because no caller waits for it any more."""

        async def settle() -> None:
            try:
                await self._run_settlement(reservation, used)
            except FAILURES as error:
                # The reservation counts as spent, like that of a process that died.
                _log.debug("tokens could not be given back: %s", type(error).__name__)

        task = asyncio.create_task(settle(), name="tokens of a caller")
        self._settling.add(task)
        task.add_done_callback(self._settling.discard)

    def _build_keys(self, caller: str, number: str) -> list[str]:
        tag = f"{self._prefix}:{{{caller.encode('utf-8', 'replace').hex()}}}"
        return [f"{tag}:tokens", f"{tag}:reserved:{number}"]


class FallbackLedger:
    """Uses the shared ledger, or the local one while Redis is down; a reservation is settled where it was made."""

    def __init__(self, *, shared: TokenLedger, local: TokenLedger, fallback: Fallback) -> None:
        self._shared = shared
        self._local = local
        self._fallback = fallback
        self._made_locally: set[str] = set()

    async def reserve(self, caller: str, *, least: int, most: int) -> Reservation:
        """See TokenLedger. Also raises the errors of `Fallback.ask`."""

        async def reserve_locally() -> Reservation:
            reservation = await self._local.reserve(caller, least=least, most=most)
            self._made_locally.add(reservation.id)
            return reservation

        return await self._fallback.ask(
            lambda: _await(self._shared.reserve(caller, least=least, most=most)),
            local=reserve_locally,
            unlimited=lambda: Reservation(id=_UNLIMITED, caller=caller, tokens=most),
        )

    async def settle(self, reservation: Reservation, *, used: int) -> float | None:
        """See TokenLedger; a reservation that cannot be settled counts as spent."""
        if reservation.id == _UNLIMITED:
            return None
        if reservation.id in self._made_locally:
            self._made_locally.discard(reservation.id)
            return await self._local.settle(reservation, used=used)
        return await self._fallback.attempt(lambda: _await(self._shared.settle(reservation, used=used)))


# KEYS: the caller's slots, a sorted set by expiry in milliseconds. ARGV of all scripts: the milliseconds of a lease,
# then the arguments named above each script.
_NOW: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""
# ARGV: the number of slots, the slot.
_TAKE: Final = f"""{_NOW}
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""
# ARGV: the slot, the slots that it replaces.
_MOVE: Final = f"""{_NOW}
redis.call('ZREM', KEYS[1], unpack(ARGV, 3))
redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""
# ARGV: the slots in use.
_RENEW: Final = f"""{_NOW}
for place = 2, #ARGV do redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[place]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""


class RedisSlots:
    """Slots in Redis: one round trip to take a slot and one to release it.

    Every quarter of `lease_s` one more round trip per caller renews the slots in use; `sleep` waits in between.
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
        self.most = most
        self._prefix = prefix
        self._sleep = sleep
        self._lease_ms = str(round(lease_s * 1000))
        self._pause_s = lease_s / _RENEWALS_IN_A_LEASE
        self._in_use: dict[str, set[str]] = {}
        self._renewing: asyncio.Task[None] | None = None
        self._take = redis.register_script(_TAKE)
        self._move = redis.register_script(_MOVE)
        self._renew = redis.register_script(_RENEW)

    async def aclose(self) -> None:
        """Stop renewing; the slots in use expire unless another server moves them first."""
        if self._renewing is not None:
            await end_task(self._renewing)

    async def take(self, caller: str, slot: str) -> bool:
        """See Slots.

        Raises:
            RedisError: Redis cannot be reached.
        """
        is_taken = await self._take(keys=[self._build_key(caller)], args=[self._lease_ms, str(self.most), slot])
        if is_taken:
            self._note_use(caller, slot)
        return bool(is_taken)

    def release(self, caller: str, slot: str) -> Cleanup:
        """See Slots. The cleanup raises the same errors as `take`."""
        slots = self._in_use.get(caller, set())
        slots.discard(slot)
        if not slots:
            self._in_use.pop(caller, None)
        return partial(self._remove, caller, slot)

    async def move(self, caller: str, slot: str, *, earlier: Sequence[str]) -> None:
        """See Slots. Raises the same errors as `take`."""
        await self._move(keys=[self._build_key(caller)], args=[self._lease_ms, slot, *earlier])
        self._note_use(caller, slot)

    async def renew(self) -> None:
        """Renew the slots in use, also expired ones, because their executions are still running.

        An error that Redis answers for one caller does not stop the renewal for the others. Raises the same errors as
        `take`.
        """
        refusals: list[ResponseError] = []
        for caller, slots in list(self._in_use.items()):
            try:
                await self._renew_caller(caller, list(slots))
            except ResponseError as error:
                refusals.append(error)
        if refusals:
            # Only one line, because a Redis that accepts no writes refuses every caller.
            _log.warning("places of %d callers could not be renewed", len(refusals), exc_info=refusals[0])

    async def _renew_caller(self, caller: str, slots: Sequence[str]) -> None:
        await self._renew(keys=[self._build_key(caller)], args=[self._lease_ms, *slots])
        for slot in slots:
            # The slot was released meanwhile, and the renewal may have come after the release.
            if slot not in self._in_use.get(caller, ()):
                await self._remove(caller, slot)

    def _note_use(self, caller: str, slot: str) -> None:
        self._in_use.setdefault(caller, set()).add(slot)
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.create_task(self._keep_renewing(), name="places in Redis")

    async def _keep_renewing(self) -> None:
        """Renew until no slot is in use; a failed renewal is repeated in the next turn."""
        while self._in_use:
            await self._sleep(self._pause_s)
            with contextlib.suppress(*FAILURES):
                await self.renew()

    async def _remove(self, caller: str, slot: str) -> None:
        await self._redis.zrem(self._build_key(caller), slot)

    def _build_key(self, caller: str) -> str:
        return f"{self._prefix}:{{{caller.encode('utf-8', 'replace').hex()}}}:places"


class FallbackAdmission:
    """Uses the shared admission, or the local one while Redis is down; a slot is released where it was taken."""

    def __init__(self, *, shared: RequestAdmission, local: RequestAdmission, fallback: Fallback) -> None:
        self._shared = shared
        self._local = local
        self._fallback = fallback
        self._taken_locally: set[str] = set()

    async def admit(self, caller: str, slot: str, *, weight: int) -> Denial | None:
        """See RequestAdmission. Also raises the errors of `Fallback.ask`."""

        async def admit_locally() -> Denial | None:
            denial = await self._local.admit(caller, slot, weight=weight)
            if denial is None and slot:
                self._taken_locally.add(slot)
            elif slot:
                await release_slot(self, caller, slot)
            return denial

        return await self._fallback.ask(
            lambda: _await(self._shared.admit(caller, slot, weight=weight)),
            local=admit_locally,
            unlimited=lambda: None,
        )

    async def move(self, caller: str, slot: str, *, earlier: Sequence[str]) -> None:
        """See RequestAdmission; without Redis the slot is counted locally, even if `on_failure` is `closed`."""

        async def move_locally() -> None:
            await self._local.move(caller, slot, earlier=earlier)
            self._taken_locally.add(slot)

        try:
            await self._fallback.ask(
                lambda: _await(self._shared.move(caller, slot, earlier=earlier)),
                local=move_locally,
                unlimited=lambda: None,
            )
        except StoreUnavailableError:
            await move_locally()

    def release(self, caller: str, slot: str) -> Cleanup | None:
        """See RequestAdmission; a slot that cannot be released expires."""
        local = None
        if slot in self._taken_locally:
            self._taken_locally.discard(slot)
            local = self._local.release(caller, slot)
        # Always release in Redis too: it may have given a slot although its answer came too late.
        shared = self._shared.release(caller, slot)
        return local if shared is None else partial(self._clean_both, local, shared)

    async def _clean_both(self, local: Cleanup | None, shared: Cleanup) -> None:
        if local is not None:
            await local()
        await self._fallback.attempt(shared)


async def _await(work: Awaitable[T]) -> T:
    return await work
