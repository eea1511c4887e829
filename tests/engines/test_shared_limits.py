"""Request limits that several servers share, and the limits while Redis is unreachable: over a real Redis."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from reasond_server.errors.limits import RateLimitedError, StoreUnavailableError
from reasond_server.limits.budgets import MemoryTokenLedger, TokenLimits
from reasond_server.limits.callers import SharedHealth
from reasond_server.limits.request_limits import RequestGate
from reasond_server.limits.shared import Fallback, FallbackAdmission, FallbackLedger, OnFailure, RedisTokenLedger
from tests.engines.admitting import admitting, passes_admission

if TYPE_CHECKING:
    from tests.engines.redis_server import RedisServer

LIMITS = TokenLimits(per_minute=100, per_day=1000)


async def keys_in(redis: Redis) -> list[str]:
    return [key.decode() if isinstance(key, bytes) else key for key in await redis.keys("*")]


async def round_trips(redis: Redis) -> int:
    """Return the round trips since the last call of this function: scripts, and releases made without a script."""
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
    gate = RequestGate(admission=admitting("redis", redis, **limits), has_slots="most" in limits)
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
    permit.release()
    await gate.aclose()
    assert await round_trips(redis) == int("most" in limits)


async def test_two_servers_admit_together_no_request_more_than_the_limit(
    redis: Redis, redis_server: RedisServer
) -> None:
    other = Redis.from_url(redis_server.url, socket_timeout=120, socket_connect_timeout=120)
    servers = [admitting("redis", client, per_minute=50, per_hour=30) for client in (redis, other)]
    tries = (passes_admission(servers[number % 2], "alice", "") for number in range(100))
    assert (await asyncio.gather(*tries)).count(True) == 30
    await other.aclose()


@pytest.mark.parametrize(
    ("left_s", "count", "before", "is_admitted"),
    [
        (3600, 9, 0, True),
        (3600, 10, 0, False),
        (1, 10, 0, False),
        (3000, 0, 10**9, False),
        (1800, 0, 10, True),  # half of the hour before is in the window
        (1800, 6, 10, False),
        (-1800, 10, 0, True),
        (-1800, 10**9, 0, False),
        (-3601, 10**9, 10**9, True),  # outside the window
    ],
)
async def test_requests_count_while_they_are_in_the_window(
    redis: Redis, left_s: int, count: int, before: int, *, is_admitted: bool
) -> None:
    admission = admitting("redis", redis, per_hour=10)
    assert await passes_admission(admission, "alice", "")
    (key,) = await keys_in(redis)
    await redis.set(key, count, px=max(1, (left_s + 3600) * 1000))
    if before:
        await redis.set(f"{key}/-1", before, px=max(1, left_s * 1000))
    while left_s < -3600 and await redis.exists(key, f"{key}/-1"):
        pass
    denial = await admission.admit("alice", "", weight=1)
    assert (denial is None) is is_admitted
    if denial is not None:
        assert denial.retry_after_s is not None
        assert 1 <= denial.retry_after_s <= 2 * 3600 + 1


async def test_the_retry_time_from_redis_is_sufficient_and_not_much_too_long(redis: Redis) -> None:
    admission = admitting("redis", redis, per_hour=10)
    assert await passes_admission(admission, "alice", "", weight=10)
    (key,) = await keys_in(redis)
    denial = await admission.admit("alice", "", weight=4)
    assert denial is not None
    assert denial.retry_after_s is not None
    for short_s, is_admitted in ((60, False), (-1, True)):
        left_ms = int((7200 - denial.retry_after_s + short_s) * 1000)
        await redis.delete(f"{key}/-1")
        await redis.set(key, 10, px=left_ms)
        assert await passes_admission(admission, "alice", "", weight=4) is is_admitted


async def test_adding_or_removing_a_limit_keeps_the_windows_of_the_others(redis: Redis) -> None:
    alone, both = admitting("redis", redis, per_hour=3), admitting("redis", redis, per_minute=9, per_hour=3)
    for _ in range(3):
        assert await passes_admission(alone, "alice", "")
        assert await passes_admission(both, "bob", "")
    assert not await passes_admission(both, "alice", "")
    assert not await passes_admission(alone, "bob", "")


async def test_all_redis_keys_have_the_servers_prefix_and_expire(redis: Redis) -> None:
    gate = RequestGate(admission=admitting("redis", redis, most=2, per_minute=9, per_hour=9), has_slots=True)
    await gate.admit("t{a}/\ud800")
    keys = await keys_in(redis)
    assert len(keys) == 3
    for key in keys:
        assert key.startswith("reasond:{")
        assert 0 < await redis.ttl(key) <= 7200


async def test_two_at_once_are_not_each_refused_for_the_other(redis: Redis) -> None:
    admission = admitting("redis", redis, per_minute=1, per_hour=1)
    tries = await asyncio.gather(*(passes_admission(admission, "alice", "") for _ in range(20)))
    assert tries.count(True) == 1


def fallback(health: SharedHealth, on_failure: OnFailure = "local") -> Fallback:
    return Fallback(health=health, on_failure=on_failure, timeout_s=5.0)


async def test_without_redis_each_server_keeps_its_share_and_shares_again_afterwards(
    redis_server: RedisServer, redis: Redis
) -> None:
    health = SharedHealth(monotonic=time.monotonic, rest_s=0.0)
    local = MemoryTokenLedger(limits=TokenLimits(per_minute=50), monotonic=time.monotonic)
    shared = RedisTokenLedger(redis=redis, limits=LIMITS)
    ledger = FallbackLedger(shared=shared, local=local, fallback=fallback(health))
    before = await ledger.reserve("alice", least=1, most=1000)
    assert (before.tokens, health.is_degraded) == (100, False)
    redis_server.kill()
    during = await ledger.reserve("alice", least=1, most=1000)
    assert (during.tokens, health.is_degraded) == (50, True)
    await ledger.settle(before, used=1)
    await ledger.settle(during, used=0)
    assert (await ledger.reserve("alice", least=1, most=1000)).tokens == 50
    await redis_server.start()
    assert (await ledger.reserve("alice", least=1, most=1000)).tokens == 100
    assert not health.is_degraded


async def test_an_operator_may_admit_nothing_or_everything_without_redis(
    redis_server: RedisServer, redis: Redis
) -> None:
    redis_server.kill()
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
    gate = RequestGate(admission=admitting(kind, redis, most=1, per_minute=10, per_hour=12), has_slots=True)
    permit = await gate.admit("alice", weight=8)
    with pytest.raises(RateLimitedError, match="1 executions at once"):
        await gate.admit("alice")
    permit.release()
    permit.release()
    await gate.aclose()
    for _ in range(20):
        with pytest.raises(RateLimitedError, match="10 requests in a minute") as caught:
            await gate.admit("alice", weight=3)
        assert caught.value.retry_after_s is not None
    for caller, weight in (("alice", 2), ("bob", 10)):
        (await gate.admit(caller, weight=weight)).release()
    with pytest.raises(RateLimitedError) as never:
        await gate.admit("carol", weight=11)
    assert never.value.retry_after_s is None
    await gate.aclose()


async def test_rates_are_kept_by_each_server_while_redis_is_gone(redis_server: RedisServer, redis: Redis) -> None:
    shared, local = admitting("redis", redis, per_minute=4), admitting("memory", redis, per_minute=2)
    health = SharedHealth(monotonic=time.monotonic)
    rates = FallbackAdmission(shared=shared, local=local, fallback=fallback(health))
    assert await passes_admission(rates, "alice", "")
    redis_server.kill()
    assert [await passes_admission(rates, "alice", "") for _ in range(3)] == [True, True, False]
    assert health.is_degraded
