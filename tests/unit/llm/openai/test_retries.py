from __future__ import annotations

import asyncio
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.errors.model import ModelUnavailableError
from reasond_server.llm.openai.backend_options import RetryPolicy
from reasond_server.llm.openai.faults import UpstreamFaultError
from reasond_server.llm.openai.retries import ConcurrencyCap, NoRoomError, Retries, RetryBudget, compute_backoff_s
from reasond_server.llm.openai.transport import read_retry_after_s

NOW = 1_800_000_000.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def fault(*, retries: int = 9, asked: float | None = None) -> UpstreamFaultError:
    return UpstreamFaultError(ModelUnavailableError("down", retry_after_s=asked), retries=retries)


@given(st.text(max_size=40))
def test_any_header_is_a_positive_wait_or_none(value: str) -> None:
    wait = read_retry_after_s({"retry-after": value}, now=lambda: NOW)
    assert wait is None or wait > 0


@given(st.integers(1, 10_000), st.floats(0, 1))
def test_backoff_doubles_up_to_the_most_and_keeps_half_for_chance(attempt: int, chance: float) -> None:
    policy = RetryPolicy(first_wait_s=0.5, max_wait_s=20.0)
    whole = min(0.5 * 2.0 ** min(attempt - 1, 50), 20.0)
    assert whole / 2 <= compute_backoff_s(policy, attempt, random=lambda: chance) <= whole


def test_milliseconds_go_before_seconds_and_nonsense_in_them_is_passed_over() -> None:
    headers = {"retry-after-ms": "250", "retry-after": "9"}
    assert read_retry_after_s(headers, now=lambda: NOW) == 0.25
    assert read_retry_after_s(headers | {"retry-after-ms": "soon"}, now=lambda: NOW) == 9


def test_a_date_is_taken_against_the_clock() -> None:
    assert read_retry_after_s({"retry-after": formatdate(NOW + 60, usegmt=True)}, now=lambda: NOW) == 60


@pytest.mark.slow
@given(st.integers(1, 2000))
def test_retries_stay_within_their_share_of_the_calls(calls: int) -> None:
    budget = RetryBudget(ratio=0.1, monotonic=lambda: 0.0)
    taken = 0
    for _ in range(calls):
        budget.note_call()
        taken += budget.take() + budget.take()
    assert taken <= 3 + 0.1 * calls + 1e-6


def test_the_reserve_comes_back_with_time_but_not_above_itself() -> None:
    clock = Clock()
    budget = RetryBudget(ratio=0.1, monotonic=clock)
    assert [budget.take() for _ in range(4)] == [True, True, True, False]
    clock.now = 10.1
    assert [budget.take() for _ in range(2)] == [True, False]
    clock.now = 10_000.0
    assert [budget.take() for _ in range(4)] == [True, True, True, False]


def test_there_are_no_more_attempts_than_the_policy_and_the_fault_allow() -> None:
    retries = Retries(policy=RetryPolicy(max_attempts=3), monotonic=Clock(), random=lambda: 1.0)
    assert retries.choose_wait_s(fault(), attempt=1, time_left_s=60) == 0.5
    assert retries.choose_wait_s(fault(), attempt=2, time_left_s=60) == 1.0
    with pytest.raises(ModelUnavailableError):
        retries.choose_wait_s(fault(), attempt=3, time_left_s=60)
    with pytest.raises(ModelUnavailableError):
        retries.choose_wait_s(fault(retries=0), attempt=1, time_left_s=60)


def test_what_the_server_asks_for_is_waited_even_above_the_own_most() -> None:
    retries = Retries(policy=RetryPolicy(), monotonic=Clock(), random=lambda: 0.0)
    assert retries.choose_wait_s(fault(asked=100.0), attempt=1, time_left_s=600) == 100.0


@pytest.mark.parametrize(("asked", "told"), [(7.0, 7.0), (None, 0.25)])
def test_without_the_time_to_wait_the_error_says_how_long(asked: float | None, told: float) -> None:
    retries = Retries(policy=RetryPolicy(), monotonic=Clock(), random=lambda: 0.0)
    with pytest.raises(ModelUnavailableError) as caught:
        retries.choose_wait_s(fault(asked=asked), attempt=1, time_left_s=0.1)
    assert caught.value.retry_after_s == told


def test_without_any_time_left_nothing_is_promised() -> None:
    retries = Retries(policy=RetryPolicy(), monotonic=Clock(), random=lambda: 0.0)
    with pytest.raises(ModelUnavailableError) as caught:
        retries.choose_wait_s(fault(), attempt=1, time_left_s=0.0)
    assert caught.value.retry_after_s is None


def test_an_empty_budget_ends_retrying() -> None:
    retries = Retries(policy=RetryPolicy(), monotonic=Clock(), random=lambda: 0.0)
    for _ in range(3):
        retries.choose_wait_s(fault(), attempt=1, time_left_s=60)
    with pytest.raises(ModelUnavailableError):
        retries.choose_wait_s(fault(), attempt=1, time_left_s=60)


async def test_a_place_that_is_given_back_is_the_next_ones_and_nobody_waits_longer_than_told() -> None:
    waits: list[float] = []
    cap = ConcurrencyCap(limit=1, on_wait=waits.append)
    await cap.take(wait_s=0.0)
    with pytest.raises(NoRoomError):
        await cap.take(wait_s=0.01)
    assert len(waits) == 1
    cap.give_back()
    await cap.take(wait_s=0.0)
    assert cap.limit == 1
    assert len(waits) == 1


async def test_a_cancelled_wait_takes_no_place() -> None:
    cap = ConcurrencyCap(limit=1)
    entered = asyncio.Event()

    async def wait() -> None:
        entered.set()
        await cap.take(wait_s=5.0)

    await cap.take(wait_s=1.0)
    task = asyncio.create_task(wait())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    cap.give_back()
    await cap.take(wait_s=0.1)
