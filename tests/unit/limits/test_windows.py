from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.limits.requests import RequestLimits
from reasond_server.limits.windows import MemoryRates


class Hand:
    """A clock that a test moves."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def rates(hand: Hand, *, minute: int | None = None, hour: int | None = None, callers: int = 100) -> MemoryRates:
    return MemoryRates(limits=RequestLimits(per_minute=minute, per_hour=hour), monotonic=hand, most_callers=callers)


async def taken(counter: MemoryRates, caller: str, *, tries: int, weight: int = 1) -> int:
    return sum([await counter.count(caller, weight=weight) is None for _ in range(tries)])


async def test_as_many_pass_as_the_limit_says_and_each_caller_has_its_own() -> None:
    counter = rates(Hand(), minute=3)
    assert await taken(counter, "a", tries=5) == 3
    assert await taken(counter, "b", tries=5) == 3


async def test_what_was_counted_goes_out_of_sight_evenly_in_the_next_window() -> None:
    hand = Hand(59.0)
    counter = rates(hand, minute=10)
    assert await taken(counter, "a", tries=20) == 10
    hand.now_s = 60.0
    assert await taken(counter, "a", tries=20) == 0
    hand.now_s = 90.0
    # Half of the window before is in sight, and part of a request does not count.
    assert await taken(counter, "a", tries=20) == 5
    hand.now_s = 180.0
    assert await taken(counter, "a", tries=20) == 10


@given(counted=st.integers(1, 50), at_s=st.floats(0, 10_000), later_s=st.floats(0, 59), minute=st.integers(1, 50))
async def test_whoever_waits_as_long_as_told_passes(counted: int, at_s: float, later_s: float, minute: int) -> None:
    hand = Hand(at_s)
    counter = rates(hand, minute=minute)
    await taken(counter, "a", tries=counted)
    hand.now_s += later_s
    await taken(counter, "a", tries=counted)
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
    assert await taken(counter, "a", tries=5) == 3


async def test_what_the_hour_refuses_is_not_counted_by_the_minute() -> None:
    hand = Hand()
    counter = rates(hand, minute=2, hour=3)
    assert await taken(counter, "a", tries=2) == 2
    hand.now_s = 120.0
    assert await taken(counter, "a", tries=3, weight=1) == 1
    denial = await counter.count("a", weight=1)
    assert denial is not None
    assert denial.limit == "3 requests in an hour"
    hand.now_s = 7200.0
    assert await taken(counter, "a", tries=5) == 2


async def test_callers_of_whom_nothing_is_in_sight_are_forgotten_where_there_are_many() -> None:
    hand = Hand()
    counter = rates(hand, minute=1, callers=2)
    for caller in "ab":
        await counter.count(caller, weight=1)
    hand.now_s = 59.0 + 60.0
    await counter.count("c", weight=1)
    assert await counter.count("a", weight=1) is None
    hand.now_s = 600.0
    await counter.count("d", weight=1)
    (limit,) = counter._limits
    assert set(limit.windows) == {"d"}


async def test_a_call_looks_at_a_few_callers_however_many_there_are() -> None:
    hand = Hand()
    counter = rates(hand, hour=100, callers=1)
    for number in range(200):
        await counter.count(str(number), weight=1)
    (limit,) = counter._limits
    looked_at = [0]

    class Watched(dict[str, Any]):
        """Counts who is looked at."""

        def items(self) -> Any:
            looked_at[0] += len(self)
            return super().items()

        def pop(self, *names: Any) -> Any:
            looked_at[0] += 1
            return super().pop(*names)

    object.__setattr__(limit, "windows", Watched(limit.windows))
    await counter.count("0", weight=1)
    assert looked_at == [0]
    await counter.count("new", weight=1)
    assert looked_at == [32]
    hand.now_s = 3 * 3600.0
    for number in range(10):
        await counter.count(f"later {number}", weight=1)
    assert set(limit.windows) == {f"later {number}" for number in range(10)}


@pytest.mark.parametrize("limits", [RequestLimits(), RequestLimits(per_hour=1)])
async def test_what_sets_no_bound_refuses_nothing(limits: RequestLimits) -> None:
    counter = MemoryRates(limits=limits, monotonic=Hand())
    assert await taken(counter, "a", tries=3) == (3 if not limits.windows else 1)
