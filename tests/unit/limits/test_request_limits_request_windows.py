"""Sliding windows of requests in memory, and the rates that count in them."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.limits.request_limits import (
    HOUR,
    MINUTE,
    CoveredWindow,
    MemoryRates,
    MemoryWindows,
    Rate,
    RequestLimits,
)

ONE_A_MINUTE = Rate(amount=1, seconds=MINUTE)


class Hand:
    """A clock that a test moves."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def rates(hand: Hand, *, minute: int | None = None, hour: int | None = None) -> MemoryRates:
    return MemoryRates(windows=MemoryWindows(monotonic=hand), limits=RequestLimits(per_minute=minute, per_hour=hour))


async def count_passes(counter: MemoryRates, caller: str, *, tries: int, weight: int = 1) -> int:
    return sum([await counter.count(caller, weight=weight) is None for _ in range(tries)])


async def test_as_many_pass_as_the_limit_says_and_each_caller_has_its_own() -> None:
    counter = rates(Hand(), minute=3)
    assert await count_passes(counter, "a", tries=5) == 3
    assert await count_passes(counter, "b", tries=5) == 3


async def test_what_was_counted_goes_out_of_sight_evenly_in_the_next_window() -> None:
    hand = Hand(59.0)
    counter = rates(hand, minute=10)
    assert await count_passes(counter, "a", tries=20) == 10
    hand.now_s = 60.0
    assert await count_passes(counter, "a", tries=20) == 0
    hand.now_s = 90.0
    # Half of the previous window still counts, and a fraction of a request is rounded down.
    assert await count_passes(counter, "a", tries=20) == 5
    hand.now_s = 180.0
    assert await count_passes(counter, "a", tries=20) == 10


@given(counted=st.integers(1, 50), at_s=st.floats(0, 10_000), later_s=st.floats(0, 59), minute=st.integers(1, 50))
async def test_whoever_waits_as_long_as_told_passes(counted: int, at_s: float, later_s: float, minute: int) -> None:
    hand = Hand(at_s)
    counter = rates(hand, minute=minute)
    await count_passes(counter, "a", tries=counted)
    hand.now_s += later_s
    await count_passes(counter, "a", tries=counted)
    denial = await counter.count("a", weight=1)
    while denial is not None:
        assert denial.limit == f"{minute} requests in a minute"
        assert denial.retry_after_s is not None
        assert 1.0 <= denial.retry_after_s <= 121.0
        hand.now_s += denial.retry_after_s
        denial = await counter.count("a", weight=1)
        assert denial is None


async def test_a_weight_that_never_fits_is_told_so_and_counts_for_nothing() -> None:
    counter = rates(Hand(), minute=3)
    denial = await counter.count("a", weight=4)
    assert denial is not None
    assert denial.retry_after_s is None
    assert await count_passes(counter, "a", tries=5) == 3


async def test_what_the_hour_refuses_is_not_counted_by_the_minute() -> None:
    hand = Hand()
    counter = rates(hand, minute=2, hour=3)
    assert await count_passes(counter, "a", tries=2) == 2
    hand.now_s = 120.0
    assert await count_passes(counter, "a", tries=3, weight=1) == 1
    denial = await counter.count("a", weight=1)
    assert denial is not None
    assert denial.limit == "3 requests in an hour"
    hand.now_s = 7200.0
    assert await count_passes(counter, "a", tries=5) == 2


async def test_what_the_minute_refuses_is_not_counted_by_the_hour() -> None:
    hand = Hand()
    counter = rates(hand, minute=1, hour=2)
    assert await count_passes(counter, "a", tries=5) == 1
    hand.now_s = 120.0
    assert await count_passes(counter, "a", tries=5) == 1


async def test_whoever_waits_as_long_as_told_passes_with_a_weight_too() -> None:
    hand = Hand()
    counter = rates(hand, minute=10)
    assert await count_passes(counter, "a", tries=1, weight=10) == 1
    for weight in (7, 10):
        denial = await counter.count("a", weight=weight)
        assert denial is not None
        assert denial.retry_after_s is not None
        hand.now_s += denial.retry_after_s - 0.01
        assert await counter.count("a", weight=weight) is not None
        hand.now_s += 0.01
        assert await counter.count("a", weight=weight) is None


async def test_of_two_limits_the_one_that_refuses_is_told_and_of_both_the_longer() -> None:
    counter = rates(Hand(), minute=2, hour=2)
    assert await count_passes(counter, "a", tries=2) == 2
    denial = await counter.count("a", weight=1)
    assert denial is not None
    assert denial.limit == "2 requests in an hour"


async def test_callers_with_any_characters_are_told_apart() -> None:
    counter = rates(Hand(), minute=1)
    callers = ["", "a", "a/1/1/minute", "{a}", "\ud800", "\udfff", "?"]
    assert [await counter.count(caller, weight=1) for caller in callers] == [None] * len(callers)


class Ended(MemoryWindows):
    """Windows that end after a refusal and before the caller asks for the remaining time."""

    def count(self, caller: str, rate: Rate, weight: int) -> bool:
        del caller, rate, weight
        return False


async def test_whoever_is_refused_at_the_very_end_of_a_window_is_told_the_shortest_wait() -> None:
    counter = MemoryRates(windows=Ended(monotonic=Hand()), limits=RequestLimits(per_minute=1))
    denial = await counter.count("a", weight=1)
    assert denial is not None
    assert denial.retry_after_s == 1.0


@pytest.mark.parametrize("limits", [RequestLimits(), RequestLimits(per_hour=1)])
async def test_what_sets_no_bound_refuses_nothing(limits: RequestLimits) -> None:
    counter = MemoryRates(windows=MemoryWindows(monotonic=Hand()), limits=limits)
    assert await count_passes(counter, "a", tries=3) == (3 if limits.per_hour is None else 1)


def enter_windows(windows: MemoryWindows, *callers: str, rate: Rate = ONE_A_MINUTE) -> list[bool]:
    return [windows.count(caller, rate, 1) for caller in callers]


def names(windows: MemoryWindows) -> set[str]:
    return {caller for caller, _ in windows._windows}


def test_windows_in_which_nothing_is_in_sight_are_forgotten_where_there_are_many() -> None:
    hand = Hand()
    windows = MemoryWindows(monotonic=hand, most=2)
    assert enter_windows(windows, "a", "b") == [True, True]
    hand.now_s = 60.0
    assert enter_windows(windows, "c", "a") == [True, False]
    hand.now_s = 600.0
    assert enter_windows(windows, "d") == [True]
    assert names(windows) == {"d"}


def test_each_window_is_forgotten_by_its_own_length() -> None:
    hand = Hand()
    windows = MemoryWindows(monotonic=hand, most=1)
    enter_windows(windows, "by the minute")
    enter_windows(windows, "by the hour", rate=Rate(amount=1, seconds=HOUR))
    hand.now_s = 600.0
    enter_windows(windows, "other")
    assert names(windows) == {"by the hour", "other"}


def test_a_call_looks_at_a_few_windows_however_many_there_are() -> None:
    hand = Hand()
    windows = MemoryWindows(monotonic=hand, most=1)
    enter_windows(windows, *(str(number) for number in range(200)))
    looked_at = [0]

    class Watched(dict[Any, Any]):
        """Counts the entries that are read."""

        def items(self) -> Any:
            looked_at[0] += len(self)
            return super().items()

        def pop(self, *names: Any) -> Any:
            looked_at[0] += 1
            return super().pop(*names)

    windows._windows = Watched(windows._windows)
    enter_windows(windows, "0")
    assert looked_at == [0]
    enter_windows(windows, "new")
    assert looked_at == [32]
    hand.now_s = 180.0
    later = [f"later {number}" for number in range(10)]
    enter_windows(windows, *later)
    assert names(windows) == set(later)


def test_neither_a_question_nor_a_refusal_leaves_anything_behind() -> None:
    windows = MemoryWindows(monotonic=Hand())
    assert windows.measure("a", ONE_A_MINUTE) == CoveredWindow()
    assert not windows.count("a", ONE_A_MINUTE, 2)
    assert not windows._windows


def test_what_is_in_sight_is_told_with_the_time_until_it_is_not() -> None:
    hand, rate = Hand(), Rate(amount=10, seconds=MINUTE)
    windows = MemoryWindows(monotonic=hand)
    windows.count("a", rate, 4)
    hand.now_s = 75.0
    assert windows.count("a", rate, 7)
    assert windows.measure("a", rate) == CoveredWindow(before=4, before_s=45.0, count=7, count_s=105.0)


@pytest.mark.slow
@given(steps=st.lists(st.tuples(st.floats(0, 90), st.integers(1, 8)), max_size=30))
async def test_no_window_ever_counts_more_than_its_limit(steps: list[tuple[float, int]]) -> None:
    hand = Hand()
    counter = rates(hand, minute=7)
    admitted: Counter[float] = Counter()
    for step_s, weight in steps:
        hand.now_s += step_s
        if await counter.count("a", weight=weight) is None:
            admitted[hand.now_s // MINUTE] += weight
    assert all(counted <= 7 for counted in admitted.values())
