from __future__ import annotations

import pytest

from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.limits.budgets import DAY_S, MINUTE_S, MemoryTokenLedger, TokenLimits


class Monotonic:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def test_a_bucket_fills_evenly_and_never_beyond_its_limit() -> None:
    clock = Monotonic()
    ledger = MemoryTokenLedger(limits=TokenLimits(per_minute=60), monotonic=clock)
    await ledger.reserve("alice", least=60, most=60)
    clock.now_s = 30
    assert (await ledger.reserve("alice", least=1, most=60)).tokens == 30
    clock.now_s = 10_000
    assert (await ledger.reserve("alice", least=1, most=1000)).tokens == 60


async def test_the_wait_that_is_told_is_the_wait_that_it_takes() -> None:
    clock = Monotonic()
    ledger = MemoryTokenLedger(limits=TokenLimits(per_minute=60, per_day=100), monotonic=clock)
    await ledger.reserve("alice", least=60, most=60)
    with pytest.raises(TokenBudgetExhaustedError) as caught:
        await ledger.reserve("alice", least=50, most=50)
    wait_s = caught.value.retry_after_s
    assert wait_s is not None
    assert wait_s == pytest.approx(10 * DAY_S / 100)
    assert wait_s > 50 * MINUTE_S / 60
    clock.now_s = wait_s
    assert (await ledger.reserve("alice", least=50, most=50)).tokens == 50


async def test_callers_whose_buckets_are_full_again_make_room_for_others() -> None:
    clock = Monotonic()
    ledger = MemoryTokenLedger(limits=TokenLimits(per_minute=60), monotonic=clock, most_callers=2)
    for caller in ("alice", "bob"):
        await ledger.reserve(caller, least=60, most=60)
    clock.now_s = 60
    await ledger.reserve("carol", least=60, most=60)
    with pytest.raises(TokenBudgetExhaustedError):
        await ledger.reserve("carol", least=1, most=1)
    assert (await ledger.reserve("alice", least=60, most=60)).tokens == 60


async def test_what_was_not_reserved_cannot_be_settled() -> None:
    ledger = MemoryTokenLedger(limits=TokenLimits(per_minute=60), monotonic=Monotonic())
    reservation = await ledger.reserve("alice", least=1, most=10)
    await ledger.settle(reservation, used=10)
    await ledger.settle(reservation, used=-1000)
    assert (await ledger.reserve("alice", least=1, most=1000)).tokens == 50


async def test_where_nothing_is_bounded_everything_is_granted() -> None:
    ledger = MemoryTokenLedger(limits=TokenLimits(), monotonic=Monotonic())
    assert (await ledger.reserve("alice", least=1, most=10**9)).tokens == 10**9
