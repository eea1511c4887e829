"""Token budgets that several servers share, over a real Redis."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import TYPE_CHECKING

import pytest
from pydantic import SecretStr
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from reasond_server.assembly.limit_backend import build_limit_backend
from reasond_server.config import LimitsSettings
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.limits.budgets import MemoryTokenLedger, Reservation, TokenLimits
from reasond_server.limits.shared import RedisTokenLedger

if TYPE_CHECKING:
    from reasond_server.limits.budgets import TokenLedger
    from tests.engines.redis_server import RedisServer

LIMITS = TokenLimits(per_minute=100, per_day=1000)


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


async def test_unused_tokens_are_released_once(ledger: TokenLedger) -> None:
    reservation = await ledger.reserve("alice", least=1, most=100)
    await ledger.settle(reservation, used=40)
    await ledger.settle(reservation, used=0)
    assert 60 <= (await ledger.reserve("alice", least=1, most=1000)).tokens < 100


async def test_a_settlement_tells_the_share_of_the_day_that_is_left_and_a_second_one_nothing(
    ledger: TokenLedger,
) -> None:
    reservation = await ledger.reserve("alice", least=1, most=100)
    left = await ledger.settle(reservation, used=40)
    # A thousandth of a day may pass meanwhile on a busy machine.
    assert left == pytest.approx(0.96, abs=0.005)
    assert await ledger.settle(reservation, used=0) is None


async def test_tokens_of_an_abandoned_reservation_are_released(redis_server: RedisServer, redis: Redis) -> None:
    ledger = RedisTokenLedger(redis=redis, limits=LIMITS)
    await ledger.settle(await ledger.reserve("alice", least=1, most=1), used=0)
    assert redis_server.process is not None
    redis_server.process.send_signal(signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await ledger.reserve("alice", least=1, most=100)
    redis_server.process.send_signal(signal.SIGCONT)
    await asyncio.wait(ledger._settling)
    assert (await ledger.reserve("alice", least=100, most=100)).tokens == 100


async def test_an_abandoned_settlement_is_completed(redis_server: RedisServer, redis: Redis) -> None:
    ledger = RedisTokenLedger(redis=redis, limits=LIMITS)
    reservation = await ledger.reserve("alice", least=1, most=100)
    assert redis_server.process is not None
    redis_server.process.send_signal(signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await ledger.settle(reservation, used=50)
    redis_server.process.send_signal(signal.SIGCONT)
    await asyncio.wait(ledger._settling)
    assert 50 <= (await ledger.reserve("alice", least=1, most=100)).tokens < 100


async def test_background_settlements_finish_before_the_connections_close(
    redis_server: RedisServer, redis: Redis
) -> None:
    settings = LimitsSettings(storage="redis", redis_url=SecretStr(redis_server.url), tokens_per_minute=100)
    limit_backend = build_limit_backend(settings)
    account = limit_backend.callers.open_account("acme", "alice")
    assert account is not None
    assert redis_server.process is not None
    held = await account.reserve(least=1, most=100)
    redis_server.process.send_signal(signal.SIGSTOP)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await account.settle(held, used=0)
    closing = asyncio.create_task(limit_backend.aclose())
    await asyncio.sleep(0)
    redis_server.process.send_signal(signal.SIGCONT)
    await closing
    ledger = RedisTokenLedger(redis=redis, limits=TokenLimits(per_minute=100, per_day=None))
    assert (await ledger.reserve(held.caller, least=100, most=100)).tokens == 100


async def test_tokens_that_cannot_be_released_stay_spent(redis_server: RedisServer, redis: Redis) -> None:
    ledger = RedisTokenLedger(redis=redis, limits=LIMITS)
    redis_server.kill()
    with pytest.raises(RedisConnectionError):
        await ledger.reserve("alice", least=1, most=100)
    (ended,) = (await asyncio.wait(ledger._settling))[0]
    assert ended.exception() is None


async def test_a_debt_is_kept_until_it_is_paid_off(redis: Redis) -> None:
    """The retry time given to the caller must not be later than the moment at which Redis forgets the debt."""
    ledger = RedisTokenLedger(redis=redis, limits=TokenLimits(per_minute=100))
    reservation = await ledger.reserve("alice", least=1, most=100)
    await ledger.settle(reservation, used=5000)
    with pytest.raises(TokenBudgetExhaustedError) as refused:
        await ledger.reserve("alice", least=1, most=100)
    buckets, _ = ledger._build_keys("alice", reservation.id)
    await ledger.settle(await ledger.reserve("bob", least=1, most=1), used=10**15)
    assert 2900 < (refused.value.retry_after_s or 0) < await redis.ttl(buckets)


async def test_a_reservation_that_is_released_before_it_is_made_takes_nothing(redis: Redis) -> None:
    ledger = RedisTokenLedger(redis=redis, limits=LIMITS)
    release_slot = await ledger.reserve("alice", least=1, most=1)
    await ledger.settle(release_slot, used=0)
    await ledger.settle(release_slot, used=0)
    late = [*ledger._build_keys("alice", release_slot.id)]
    assert await ledger._reserve(keys=late, args=["1", "100", "60", *ledger._buckets]) == [0, 0]
    assert (await ledger.reserve("alice", least=100, most=100)).tokens == 100


async def test_a_reservation_that_a_client_sends_twice_is_made_once(redis: Redis) -> None:
    ledger = RedisTokenLedger(redis=redis, limits=LIMITS)
    made = await ledger.reserve("alice", least=60, most=60)
    again = [*ledger._build_keys("alice", made.id)]
    assert await ledger._reserve(keys=again, args=["60", "60", "60", *ledger._buckets]) == [60, 0]
    assert 40 <= (await ledger.reserve("alice", least=1, most=100)).tokens < 60


async def test_callers_do_not_wait_for_a_redis_clock_that_was_set_back(redis: Redis) -> None:
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


async def test_usage_beyond_the_reservation_is_a_debt(ledger: TokenLedger) -> None:
    reservation = await ledger.reserve("alice", least=1, most=100)
    await ledger.settle(reservation, used=250)
    error = await refusal(ledger, 1)
    assert error.retry_after_s is not None
    assert error.retry_after_s > 60


async def test_a_call_that_can_never_fit_gets_no_retry_time(ledger: TokenLedger) -> None:
    error = await refusal(ledger, 101)
    assert error.retry_after_s is None
    assert "101" in error.message


async def test_callers_do_not_share_a_budget(ledger: TokenLedger) -> None:
    await ledger.reserve("alice", least=1, most=100)
    assert (await ledger.reserve("bob:{alice}", least=1, most=100)).tokens == 100


async def test_two_servers_share_one_budget(redis: Redis, redis_server: RedisServer) -> None:
    other = Redis.from_url(redis_server.url, socket_timeout=120, socket_connect_timeout=120)
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


async def test_a_caller_whose_buckets_lapsed_during_a_call_is_forgotten_all_the_same(redis: Redis) -> None:
    ledger = RedisTokenLedger(redis=redis, limits=LIMITS)
    reservation = await ledger.reserve("alice", least=1, most=2)
    (buckets,) = await redis.keys("*:tokens")
    await redis.delete(buckets)
    await ledger.settle(reservation, used=1)
    assert await redis.ttl(buckets) > 0
