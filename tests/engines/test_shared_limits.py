"""Limits that several servers share, over a real Redis that is also killed."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from reasond_server.config import LimitsSettings
from reasond_server.errors import RateLimitedError, StoreUnavailableError, TokenBudgetExhaustedError
from reasond_server.limiting import limiting_of
from reasond_server.limits.concurrency import MemorySlots
from reasond_server.limits.fallback import Fallback, FallbackAdmission, FallbackLedger, OnFailure
from reasond_server.limits.health import SharedHealth
from reasond_server.limits.memory_windows import MemoryWindows
from reasond_server.limits.redis_places import RedisSlots
from reasond_server.limits.redis_tokens import RedisTokenLedger
from reasond_server.limits.requests import Admission, DirectAdmission, RequestGate, RequestLimits, given_back
from reasond_server.limits.tokens import MemoryTokenLedger, Reservation, TokenLimits
from reasond_server.limits.windows import MemoryRates, RedisRates, redis_windows
from tests.engines.redis_server import RedisServer, running_redis

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from reasond_server.limits.tokens import TokenLedger

LIMITS = TokenLimits(per_minute=100, per_day=1000)


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    async with running_redis() as running:
        yield running


@pytest.fixture
async def redis(server: RedisServer) -> AsyncIterator[Redis]:
    client = Redis.from_url(server.url)
    yield client
    await client.aclose()


@pytest.fixture(params=["memory", "redis"])
def ledger(request: pytest.FixtureRequest) -> TokenLedger:
    if request.param == "memory":
        return MemoryTokenLedger(limits=LIMITS, monotonic=time.monotonic)
    return RedisTokenLedger(redis=request.getfixturevalue("redis"), limits=LIMITS)


async def refusal(ledger: TokenLedger, least: int) -> TokenBudgetExhaustedError:
    with pytest.raises(TokenBudgetExhaustedError) as caught:
        await ledger.reserve("alice", least=least, most=1000)
    return caught.value


async def test_sixty_four_calls_at_once_against_a_limit_for_one_admit_exactly_one(ledger: TokenLedger) -> None:
    tries = (ledger.reserve("alice", least=60, most=100) for _ in range(64))
    ends = await asyncio.gather(*tries, return_exceptions=True)
    admitted = [end for end in ends if isinstance(end, Reservation)]
    assert [reservation.tokens for reservation in admitted] == [100]
    assert sum(isinstance(end, TokenBudgetExhaustedError) for end in ends) == 63


async def test_what_was_not_used_is_given_back_once(ledger: TokenLedger) -> None:
    reservation = await ledger.reserve("alice", least=1, most=100)
    await ledger.settle(reservation, used=40)
    await ledger.settle(reservation, used=0)
    assert 60 <= (await ledger.reserve("alice", least=1, most=1000)).tokens < 100


async def test_tokens_whose_reservation_nobody_waited_for_are_given_back(server: RedisServer, redis: Redis) -> None:
    ledger = RedisTokenLedger(redis=redis, limits=LIMITS)
    await ledger.settle(await ledger.reserve("alice", least=1, most=1), used=0)
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await ledger.reserve("alice", least=1, most=100)
    server.process.send_signal(signal.SIGCONT)
    await asyncio.wait(ledger._leaving)
    assert (await ledger.reserve("alice", least=100, most=100)).tokens == 100


async def test_a_settlement_that_nobody_waited_for_is_made(server: RedisServer, redis: Redis) -> None:
    ledger = RedisTokenLedger(redis=redis, limits=LIMITS)
    reservation = await ledger.reserve("alice", least=1, most=100)
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await ledger.settle(reservation, used=50)
    server.process.send_signal(signal.SIGCONT)
    await asyncio.wait(ledger._leaving)
    assert 50 <= (await ledger.reserve("alice", least=1, most=100)).tokens < 100


async def test_what_is_settled_beside_is_settled_before_the_connections_are_closed(
    server: RedisServer, redis: Redis
) -> None:
    settings = LimitsSettings(storage="redis", redis_url=SecretStr(server.url), tokens_per_minute=100)
    limiting = limiting_of(settings)
    account = limiting.callers.account("acme", "alice")
    assert account is not None
    assert server.process is not None
    held = await account.reserve(least=1, most=100)
    server.process.send_signal(signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await account.settle(held, used=0)
    closing = asyncio.create_task(limiting.aclose())
    await asyncio.sleep(0)
    server.process.send_signal(signal.SIGCONT)
    await closing
    ledger = RedisTokenLedger(redis=redis, limits=TokenLimits(per_minute=100, per_day=None))
    assert (await ledger.reserve(held.caller, least=100, most=100)).tokens == 100


async def test_tokens_that_nobody_can_give_back_stay_spent(server: RedisServer, redis: Redis) -> None:
    ledger = RedisTokenLedger(redis=redis, limits=LIMITS)
    server.kill()
    with pytest.raises(RedisConnectionError):
        await ledger.reserve("alice", least=1, most=100)
    (ended,) = (await asyncio.wait(ledger._leaving))[0]
    assert ended.exception() is None


async def test_a_reservation_that_is_given_back_before_it_is_made_takes_nothing(redis: Redis) -> None:
    ledger = RedisTokenLedger(redis=redis, limits=LIMITS)
    given_back = await ledger.reserve("alice", least=1, most=1)
    await ledger.settle(given_back, used=0)
    await ledger.settle(given_back, used=0)
    late = [*ledger._keys("alice", given_back.id)]
    assert await ledger._reserve(keys=late, args=["1", "100", "60", *ledger._buckets]) == [0, 0]
    assert (await ledger.reserve("alice", least=100, most=100)).tokens == 100


async def test_a_reservation_that_a_client_sends_twice_is_made_once(redis: Redis) -> None:
    ledger = RedisTokenLedger(redis=redis, limits=LIMITS)
    made = await ledger.reserve("alice", least=60, most=60)
    again = [*ledger._keys("alice", made.id)]
    assert await ledger._reserve(keys=again, args=["60", "60", "60", *ledger._buckets]) == [60, 0]
    assert 40 <= (await ledger.reserve("alice", least=1, most=100)).tokens < 60


async def test_a_clock_of_redis_that_is_set_back_keeps_nobody_out_until_it_is_where_it_was(redis: Redis) -> None:
    ledger = RedisTokenLedger(redis=redis, limits=LIMITS)
    await ledger.settle(await ledger.reserve("alice", least=100, most=100), used=100)
    (buckets,) = await redis.keys("*:tokens")
    seconds, micros = await redis.time()
    now = seconds * 1_000_000 + micros
    await redis.hset(buckets, mapping={"t1": str(now + 86_400 * 10**6), "t2": str(now + 86_400 * 10**6)})
    error = await refusal(ledger, 50)
    assert error.retry_after_s is not None
    assert error.retry_after_s <= 60
    assert float(await redis.hget(buckets, "t1") or "inf") < now + 60 * 10**6


async def test_a_reservation_is_clamped_to_the_smallest_bucket(ledger: TokenLedger) -> None:
    assert (await ledger.reserve("alice", least=1, most=500)).tokens == 100


async def test_what_was_used_beyond_the_reservation_is_a_debt(ledger: TokenLedger) -> None:
    reservation = await ledger.reserve("alice", least=1, most=100)
    await ledger.settle(reservation, used=250)
    error = await refusal(ledger, 1)
    assert error.retry_after_s is not None
    assert error.retry_after_s > 60


async def test_a_call_that_no_wait_makes_fit_is_told_no_time(ledger: TokenLedger) -> None:
    error = await refusal(ledger, 101)
    assert error.retry_after_s is None
    assert "101" in error.message


async def test_callers_do_not_share_a_budget(ledger: TokenLedger) -> None:
    await ledger.reserve("alice", least=1, most=100)
    assert (await ledger.reserve("bob:{alice}", least=1, most=100)).tokens == 100


async def test_two_servers_share_one_budget(redis: Redis, server: RedisServer) -> None:
    other = Redis.from_url(server.url)
    one, two = (RedisTokenLedger(redis=client, limits=LIMITS) for client in (redis, other))
    reservation = await one.reserve("alice", least=1, most=100)
    await refusal(two, 1 + LIMITS.buckets[0][0] // 2)
    await two.settle(reservation, used=0)
    assert (await one.reserve("alice", least=1, most=100)).tokens == 100
    await other.aclose()


async def test_a_model_call_takes_two_round_trips(redis: Redis) -> None:
    ledger = RedisTokenLedger(redis=redis, limits=LIMITS)
    await ledger.settle(await ledger.reserve("alice", least=1, most=2), used=1)
    await redis.config_resetstat()
    await ledger.settle(await ledger.reserve("alice", least=1, most=2), used=1)
    statistics = await redis.info("commandstats")
    from_us = {name: found["calls"] for name, found in statistics.items() if "eval" in name}
    assert from_us == {"cmdstat_evalsha": 2}


def admitting(kind: str, redis: Redis, *, most: int | None = None, **limits: int) -> Admission:
    bounds = RequestLimits(**limits)
    rates = (
        RedisRates(storage=redis_windows(redis), limits=bounds)
        if kind == "redis"
        else MemoryRates(windows=MemoryWindows(monotonic=time.monotonic), limits=bounds)
    )
    if most is None:
        return DirectAdmission(rates=rates, slots=None)
    slots = RedisSlots(redis=redis, most=most) if kind == "redis" else MemorySlots(most=most)
    return DirectAdmission(rates=rates, slots=slots)


async def admitted(admission: Admission, caller: str, place: str, *, weight: int = 1) -> bool:
    return await admission.admit(caller, place, weight=weight) is None


@pytest.mark.parametrize("kind", ["memory", "redis"])
async def test_the_last_place_goes_to_one_of_many_and_comes_back(kind: str, redis: Redis) -> None:
    places = admitting(kind, redis, most=1)
    taken = await asyncio.gather(*(admitted(places, "alice", str(number)) for number in range(20)))
    assert taken.count(True) == 1
    assert await admitted(places, "bob", "x")
    await given_back(places, "alice", str(taken.index(True)))
    await given_back(places, "alice", str(taken.index(True)))
    assert await admitted(places, "alice", "next")


@pytest.mark.parametrize("kind", ["memory", "redis"])
async def test_a_place_is_moved_from_one_server_to_the_next_whether_it_was_given_back_or_not(
    kind: str, redis: Redis
) -> None:
    places = admitting(kind, redis, most=1)
    assert await admitted(places, "alice", "run")
    await places.move("alice", "run:2", earlier=["run"])
    assert not await admitted(places, "alice", "next")
    await given_back(places, "alice", "run")
    assert not await admitted(places, "alice", "next")
    await places.move("alice", "run:4", earlier=["run", "run:2", "run:3"])
    await given_back(places, "alice", "run:4")
    assert await admitted(places, "alice", "next")


async def test_the_place_of_a_server_that_died_is_free_soon_and_that_of_one_that_lives_is_not(
    redis: Redis, server: RedisServer
) -> None:
    other = Redis.from_url(server.url)
    dead, alive = (RedisSlots(redis=client, most=1, lease_s=1.0) for client in (other, redis))
    assert await dead.take("bob", "lost")
    assert await alive.take("alice", "run")
    await dead.aclose()
    await other.aclose()
    async with asyncio.timeout(30):
        while not await alive.take("bob", "new"):
            await alive.renew()
    assert not await alive.take("alice", "another")
    await alive.aclose()


async def test_places_are_renewed_while_they_are_held_also_after_they_had_lapsed(redis: Redis) -> None:
    may_go, pauses = asyncio.Semaphore(0), []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        await may_go.acquire()

    slots = RedisSlots(redis=redis, most=1, sleep=pause)
    assert await slots.take("alice", "run")
    key = slots._key("alice")
    await redis.delete(key)
    async with asyncio.timeout(30):
        may_go.release()
        while not await redis.zcard(key):
            pass
        assert 55_000 < await redis.pttl(key) <= 60_000
        rest = slots.give_back("alice", "run")
        await rest()
        may_go.release()
        assert slots._keeper is not None
        await slots._keeper
    assert pauses == [15.0, 15.0]
    assert not await redis.exists(key)


async def test_a_place_that_is_given_back_while_it_is_renewed_does_not_come_back(redis: Redis) -> None:
    slots = RedisSlots(redis=redis, most=2)
    assert await slots.take("alice", "one")
    assert await slots.take("alice", "two")
    renewing = asyncio.create_task(slots.renew())
    await asyncio.sleep(0)
    # Given back, and that is told to Redis before the renewal is.
    slots.give_back("alice", "one")
    await renewing
    assert await redis.zrange(slots._key("alice"), 0, -1) == [b"two"]
    await slots.aclose()


async def test_a_renewal_that_fails_is_made_again(server: RedisServer, redis: Redis) -> None:
    may_go = asyncio.Semaphore(0)

    async def pause(_seconds: float) -> None:
        await may_go.acquire()

    slots = RedisSlots(redis=redis, most=1, sleep=pause)
    assert await slots.take("alice", "run")
    server.kill()
    may_go.release()
    await asyncio.sleep(0)
    await server.start()
    async with asyncio.timeout(30):
        while not await redis.exists(slots._key("alice")):
            may_go.release()
            await asyncio.sleep(0)
    await slots.aclose()


async def keys_in(redis: Redis) -> list[str]:
    return [key.decode() if isinstance(key, bytes) else key for key in await redis.keys("*")]


async def round_trips(redis: Redis) -> int:
    """Return how many there were since this was asked before: scripts, and what is given back without one."""
    statistics = await redis.info("commandstats")
    await redis.config_resetstat()
    return sum(statistics.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in ("evalsha", "zrem", "script|load"))


@pytest.mark.parametrize(
    ("limits", "until_admitted", "until_refused"),
    [
        ({"per_minute": 2}, 1, 2),
        ({"per_minute": 2, "per_hour": 9}, 3, 3),
        ({"per_minute": 9, "per_hour": 2}, 3, 2),
        ({"most": 2}, 1, 1),
        ({"per_minute": 2, "most": 9}, 2, 4),
        ({"per_minute": 2, "per_hour": 9, "most": 9}, 4, 5),
        ({"per_minute": 9, "per_hour": 2, "most": 9}, 4, 4),
        ({"per_minute": 9, "per_hour": 9, "most": 2}, 4, 1),
    ],
)
async def test_a_request_takes_as_many_round_trips_as_documented(
    redis: Redis, limits: dict[str, int], until_admitted: int, until_refused: int
) -> None:
    gate = RequestGate(admission=admitting("redis", redis, **limits), has_places="most" in limits)
    for _ in range(2):
        await gate.admit("bob")
    with pytest.raises(RateLimitedError):
        await gate.admit("bob")
    await gate.admit("alice")
    await round_trips(redis)
    permit = await gate.admit("alice")
    assert await round_trips(redis) == until_admitted
    with pytest.raises(RateLimitedError):
        await gate.admit("alice")
    assert await round_trips(redis) == until_refused
    permit.leave()
    await gate.aclose()
    assert await round_trips(redis) == int("most" in limits)


async def test_two_servers_admit_together_no_request_more_than_the_limit(redis: Redis, server: RedisServer) -> None:
    other = Redis.from_url(server.url)
    servers = [admitting("redis", client, per_minute=50, per_hour=30) for client in (redis, other)]
    tries = (admitted(servers[number % 2], "alice", "") for number in range(100))
    assert (await asyncio.gather(*tries)).count(True) == 30
    await other.aclose()


@pytest.mark.parametrize(
    ("left_s", "count", "before", "is_admitted"),
    [
        (3600, 9, 0, True),
        (3600, 10, 0, False),
        (1, 10, 0, False),
        (3000, 0, 10**9, False),
        (1800, 0, 10, True),  # half of the hour before is in sight
        (1800, 6, 10, False),
        (-1800, 10, 0, True),
        (-1800, 10**9, 0, False),
        (-3601, 10**9, 10**9, True),  # out of sight
    ],
)
async def test_what_was_counted_holds_as_long_as_it_is_in_sight(
    redis: Redis, left_s: int, count: int, before: int, *, is_admitted: bool
) -> None:
    admission = admitting("redis", redis, per_hour=10)
    assert await admitted(admission, "alice", "")
    (key,) = await keys_in(redis)
    await redis.set(key, count, px=max(1, (left_s + 3600) * 1000))
    if before:
        await redis.set(f"{key}/-1", before, px=max(1, left_s * 1000))
    while left_s < -3600 and await redis.exists(key):
        pass
    denial = await admission.admit("alice", "", weight=1)
    assert (denial is None) is is_admitted
    if denial is not None:
        assert denial.retry_after_s is not None
        assert 1 <= denial.retry_after_s <= 2 * 3600 + 1


async def test_whoever_waits_as_long_as_told_by_redis_passes_and_not_much_earlier(redis: Redis) -> None:
    admission = admitting("redis", redis, per_hour=10)
    assert await admitted(admission, "alice", "", weight=10)
    (key,) = await keys_in(redis)
    denial = await admission.admit("alice", "", weight=4)
    assert denial is not None
    assert denial.retry_after_s is not None
    for short_s, is_admitted in ((60, False), (-1, True)):
        left_ms = int((7200 - denial.retry_after_s + short_s) * 1000)
        await redis.delete(f"{key}/-1")
        await redis.set(key, 10, px=left_ms)
        assert await admitted(admission, "alice", "", weight=4) is is_admitted


async def test_limits_that_are_set_or_taken_away_leave_the_windows_of_the_others_alone(redis: Redis) -> None:
    alone, both = admitting("redis", redis, per_hour=3), admitting("redis", redis, per_minute=9, per_hour=3)
    for _ in range(3):
        assert await admitted(alone, "alice", "")
        assert await admitted(both, "bob", "")
    assert not await admitted(both, "alice", "")
    assert not await admitted(alone, "bob", "")


async def test_everything_in_redis_has_the_prefix_of_the_server_and_lapses(redis: Redis) -> None:
    gate = RequestGate(admission=admitting("redis", redis, most=2, per_minute=9, per_hour=9), has_places=True)
    await gate.admit("t{a}/\ud800")
    keys = await keys_in(redis)
    assert len(keys) == 3
    for key in keys:
        assert key.startswith("reasond:{")
        assert 0 < await redis.ttl(key) <= 7200


async def test_two_at_once_are_not_each_refused_for_the_other(redis: Redis) -> None:
    admission = admitting("redis", redis, per_minute=1, per_hour=1)
    tries = await asyncio.gather(*(admitted(admission, "alice", "") for _ in range(20)))
    assert tries.count(True) == 1


def fallback(health: SharedHealth, on_failure: OnFailure = "local") -> Fallback:
    return Fallback(health=health, on_failure=on_failure, timeout_s=5.0)


async def test_without_redis_each_server_keeps_its_share_and_shares_again_afterwards(
    server: RedisServer, redis: Redis
) -> None:
    health = SharedHealth(monotonic=time.monotonic, rest_s=0.0)
    local = MemoryTokenLedger(limits=TokenLimits(per_minute=50), monotonic=time.monotonic)
    shared = RedisTokenLedger(redis=redis, limits=LIMITS)
    ledger = FallbackLedger(shared=shared, local=local, fallback=fallback(health))
    before = await ledger.reserve("alice", least=1, most=1000)
    assert (before.tokens, health.is_degraded) == (100, False)
    server.kill()
    during = await ledger.reserve("alice", least=1, most=1000)
    assert (during.tokens, health.is_degraded) == (50, True)
    await ledger.settle(before, used=1)
    await ledger.settle(during, used=0)
    assert (await ledger.reserve("alice", least=1, most=1000)).tokens == 50
    await server.start()
    assert (await ledger.reserve("alice", least=1, most=1000)).tokens == 100
    assert not health.is_degraded


async def test_an_operator_may_have_nothing_or_everything_let_through_without_redis(
    server: RedisServer, redis: Redis
) -> None:
    server.kill()
    local = MemoryTokenLedger(limits=LIMITS, monotonic=time.monotonic)
    shared = RedisTokenLedger(redis=redis, limits=LIMITS)
    health = SharedHealth(monotonic=time.monotonic)
    closed = FallbackLedger(shared=shared, local=local, fallback=fallback(health, "closed"))
    with pytest.raises(StoreUnavailableError):
        await closed.reserve("alice", least=1, most=10)
    opened = FallbackLedger(shared=shared, local=local, fallback=fallback(health, "open"))
    reservation = await opened.reserve("alice", least=1, most=10_000)
    assert reservation.tokens == 10_000
    await opened.settle(reservation, used=1)


@pytest.mark.parametrize("kind", ["memory", "redis"])
async def test_a_denied_request_counts_for_nothing(kind: str, redis: Redis) -> None:
    gate = RequestGate(admission=admitting(kind, redis, most=1, per_minute=10, per_hour=12), has_places=True)
    permit = await gate.admit("alice", weight=8)
    with pytest.raises(RateLimitedError, match="1 executions at once"):
        await gate.admit("alice")
    permit.leave()
    permit.leave()
    await gate.aclose()
    for _ in range(20):
        with pytest.raises(RateLimitedError, match="10 requests in a minute") as caught:
            await gate.admit("alice", weight=3)
        assert caught.value.retry_after_s is not None
    for caller, weight in (("alice", 2), ("bob", 10)):
        (await gate.admit(caller, weight=weight)).leave()
    with pytest.raises(RateLimitedError) as never:
        await gate.admit("carol", weight=11)
    assert never.value.retry_after_s is None
    await gate.aclose()


async def test_rates_are_kept_by_each_server_while_redis_is_gone(server: RedisServer, redis: Redis) -> None:
    shared, local = admitting("redis", redis, per_minute=4), admitting("memory", redis, per_minute=2)
    health = SharedHealth(monotonic=time.monotonic)
    rates = FallbackAdmission(shared=shared, local=local, fallback=fallback(health))
    assert await admitted(rates, "alice", "")
    server.kill()
    assert [await admitted(rates, "alice", "") for _ in range(3)] == [True, True, False]
    assert health.is_degraded


async def test_a_caller_whose_buckets_lapsed_during_a_call_is_forgotten_all_the_same(redis: Redis) -> None:
    ledger = RedisTokenLedger(redis=redis, limits=LIMITS)
    reservation = await ledger.reserve("alice", least=1, most=2)
    (buckets,) = await redis.keys("*:tokens")
    await redis.delete(buckets)
    await ledger.settle(reservation, used=1)
    assert await redis.ttl(buckets) > 0
