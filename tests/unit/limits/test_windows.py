import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits import RateLimitItem, RateLimitItemPerHour, RateLimitItemPerMinute

from reasond_server.limits.memory_windows import MemoryWindows
from reasond_server.limits.requests import RequestLimits
from reasond_server.limits.windows import MemoryRates, PerHour, PerMinute


class Hand:
    """A clock that a test moves."""

    def __init__(self, now_s: float = 0.0) -> None:
        self.now_s = now_s

    def __call__(self) -> float:
        return self.now_s


def rates(hand: Hand, *, minute: int | None = None, hour: int | None = None) -> MemoryRates:
    return MemoryRates(windows=MemoryWindows(monotonic=hand), limits=RequestLimits(per_minute=minute, per_hour=hour))


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


async def test_what_the_minute_refuses_is_not_counted_by_the_hour() -> None:
    hand = Hand()
    counter = rates(hand, minute=1, hour=2)
    assert await taken(counter, "a", tries=5) == 1
    hand.now_s = 120.0
    assert await taken(counter, "a", tries=5) == 1


@pytest.mark.parametrize(("ours", "theirs"), [(PerMinute, RateLimitItemPerMinute), (PerHour, RateLimitItemPerHour)])
@given(name=st.text(), amount=st.integers(1, 10**9))
def test_keys_are_those_of_the_library(
    ours: type[PerMinute | PerHour], theirs: type[RateLimitItem], name: str, amount: int
) -> None:
    own, known = ours(amount, 1, "requests"), theirs(amount, 1, "requests")
    assert (own.key_for(name), own.get_expiry()) == (known.key_for(name), known.get_expiry())
    assert own == known


async def test_whoever_waits_as_long_as_told_passes_with_a_weight_too() -> None:
    hand = Hand()
    counter = rates(hand, minute=10)
    assert await taken(counter, "a", tries=1, weight=10) == 1
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
    assert await taken(counter, "a", tries=2) == 2
    denial = await counter.count("a", weight=1)
    assert denial is not None
    assert denial.limit == "2 requests in an hour"


async def test_callers_with_any_characters_are_told_apart() -> None:
    counter = rates(Hand(), minute=1)
    callers = ["", "a", "a/1/1/minute", "{a}", "\ud800", "\udfff", "?"]
    assert [await counter.count(caller, weight=1) for caller in callers] == [None] * len(callers)


class Ended(MemoryWindows):
    """Windows that end between a refusal and the question how long it holds."""

    async def acquire_sliding_window_entry(self, key: str, limit: int, expiry: int, amount: int = 1) -> bool:
        del key, limit, expiry, amount
        return False


async def test_whoever_is_refused_at_the_very_end_of_a_window_is_told_the_shortest_wait() -> None:
    counter = MemoryRates(windows=Ended(monotonic=Hand()), limits=RequestLimits(per_minute=1))
    denial = await counter.count("a", weight=1)
    assert denial is not None
    assert denial.retry_after_s == 1.0


@pytest.mark.parametrize("limits", [RequestLimits(), RequestLimits(per_hour=1)])
async def test_what_sets_no_bound_refuses_nothing(limits: RequestLimits) -> None:
    counter = MemoryRates(windows=MemoryWindows(monotonic=Hand()), limits=limits)
    assert await taken(counter, "a", tries=3) == (3 if limits.per_hour is None else 1)
