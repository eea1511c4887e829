"""Windows in memory, as the library's strategy asks them."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits import RateLimitItemPerMinute
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from limits.storage import storage_from_string

from reasond_server.limits.memory_windows import MemoryWindows

MINUTE, HOUR = 60, 3600


class Hand:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def counted(windows: MemoryWindows, *keys: str, seconds: int = MINUTE) -> list[bool]:
    return [await windows.acquire_sliding_window_entry(key, 1, seconds) for key in keys]


async def test_windows_in_which_nothing_is_in_sight_are_forgotten_where_there_are_many() -> None:
    hand = Hand()
    windows = MemoryWindows(monotonic=hand, most=2)
    assert await counted(windows, "a", "b") == [True, True]
    hand.now_s = 60.0
    assert await counted(windows, "c", "a") == [True, False]
    hand.now_s = 600.0
    assert await counted(windows, "d") == [True]
    assert set(windows._windows) == {"d"}


async def test_each_window_is_forgotten_by_its_own_length() -> None:
    hand = Hand()
    windows = MemoryWindows(monotonic=hand, most=1)
    await counted(windows, "minute")
    await counted(windows, "hour", seconds=HOUR)
    hand.now_s = 600.0
    await counted(windows, "other")
    assert set(windows._windows) == {"hour", "other"}


async def test_a_call_looks_at_a_few_windows_however_many_there_are() -> None:
    hand = Hand()
    windows = MemoryWindows(monotonic=hand, most=1)
    await counted(windows, *(str(number) for number in range(200)))
    looked_at = [0]

    class Watched(dict[str, Any]):
        """Counts what is looked at."""

        def items(self) -> Any:
            looked_at[0] += len(self)
            return super().items()

        def pop(self, *names: Any) -> Any:
            looked_at[0] += 1
            return super().pop(*names)

    windows._windows = Watched(windows._windows)
    await counted(windows, "0")
    assert looked_at == [0]
    await counted(windows, "new")
    assert looked_at == [32]
    hand.now_s = 180.0
    later = [f"later {number}" for number in range(10)]
    await counted(windows, *later)
    assert set(windows._windows) == set(later)


async def test_neither_a_question_nor_a_refusal_leaves_anything_behind() -> None:
    windows = MemoryWindows(monotonic=Hand())
    assert await windows.get_sliding_window("a", MINUTE) == (0, 0.0, 0, 0.0)
    assert not await windows.acquire_sliding_window_entry("a", 1, MINUTE, 2)
    assert not windows._windows


async def test_what_is_in_sight_is_told_with_the_time_until_it_is_not() -> None:
    hand = Hand()
    windows = MemoryWindows(monotonic=hand)
    await windows.acquire_sliding_window_entry("a", 10, MINUTE, 4)
    hand.now_s = 75.0
    assert await windows.acquire_sliding_window_entry("a", 10, MINUTE, 7)
    assert await windows.get_sliding_window("a", MINUTE) == (4, 45.0, 7, 105.0)


@given(steps=st.lists(st.tuples(st.floats(0, 90), st.integers(1, 8)), max_size=30))
async def test_what_the_librarys_strategy_tests_it_hits_and_never_more_than_the_limit_in_one_window(
    steps: list[tuple[float, int]],
) -> None:
    hand = Hand()
    limiter = SlidingWindowCounterRateLimiter(MemoryWindows(monotonic=hand))
    item = RateLimitItemPerMinute(7)
    admitted: list[tuple[float, int]] = []
    for step_s, cost in steps:
        hand.now_s += step_s
        before = (await limiter.get_window_stats(item, "a")).remaining
        was_told, was_counted = await limiter.test(item, "a", cost=cost), await limiter.hit(item, "a", cost=cost)
        assert was_told == was_counted == (cost <= before)
        if was_counted:
            admitted.append((hand.now_s // MINUTE, cost))
        assert sum(counted for window, counted in admitted if window == hand.now_s // MINUTE) <= 7


async def test_no_count_makes_a_task() -> None:
    before = asyncio.all_tasks()
    await counted(MemoryWindows(monotonic=Hand()), "a", "b", "a")
    assert asyncio.all_tasks() == before


async def test_windows_are_cleared_one_at_a_time_and_all_at_once() -> None:
    windows = MemoryWindows(monotonic=Hand())
    assert await windows.check()
    await counted(windows, "a", "b", "c")
    await windows.clear_sliding_window("a", MINUTE)
    await windows.clear("b")
    assert await counted(windows, "a", "b", "c") == [True, True, False]
    assert await windows.reset() == 3
    assert await counted(windows, "c") == [True]


async def test_a_fixed_window_is_refused_instead_of_counted_wrong() -> None:
    windows = MemoryWindows(monotonic=Hand())
    for refused in (windows.incr("a", MINUTE), windows.get("a"), windows.get_expiry("a")):
        with pytest.raises(NotImplementedError, match="only sliding windows"):
            await refused
    assert windows.base_exceptions == ()


def test_the_librarys_own_storages_are_left_as_they_are() -> None:
    assert type(storage_from_string("async+memory://")) is MemoryStorage
