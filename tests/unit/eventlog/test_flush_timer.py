import asyncio
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from reasond_server.eventlog.mailbox import FlushTimer
from tests.unit.runs.conftest import in_virtual_time


class Stream:
    """Notes when it is flushed."""

    def __init__(self, name: int, heard: list[tuple[float, int]]) -> None:
        self._name = name
        self._heard = heard

    def flush(self) -> None:
        self._heard.append((asyncio.get_running_loop().time(), self._name))


@in_virtual_time
async def test_all_that_is_delayed_is_flushed_at_one_moment_and_in_order() -> None:
    loop, heard = asyncio.get_running_loop(), list[tuple[float, int]]()
    timer, begun_s = FlushTimer(interval_s=1.0), loop.time()
    assert timer.delay(Stream(1, heard))
    await asyncio.sleep(0.7)
    assert timer.delay(Stream(2, heard))
    await asyncio.sleep(5)
    assert heard == [(begun_s + 1, 1), (begun_s + 1, 2)]
    assert timer.count == 0


@in_virtual_time
async def test_who_is_delayed_again_waits_for_the_moment_after() -> None:
    loop, heard = asyncio.get_running_loop(), list[tuple[float, int]]()
    timer, begun_s, stream = FlushTimer(interval_s=1.0), loop.time(), Stream(1, heard)
    timer.delay(stream)
    timer.delay(stream)
    await asyncio.sleep(1.5)
    timer.delay(stream)
    await asyncio.sleep(5)
    assert heard == [(begun_s + 1, 1), (begun_s + 2.5, 1)]


@in_virtual_time
async def test_who_has_left_is_not_flushed_and_the_last_one_takes_the_timer_along() -> None:
    heard = list[tuple[float, int]]()
    timer = FlushTimer(interval_s=1.0)
    leaving, staying = Stream(1, heard), Stream(2, heard)
    timer.delay(leaving)
    timer.delay(staying)
    timer.remove(leaving)
    timer.remove(leaving)
    await asyncio.sleep(5)
    assert [name for _, name in heard] == [2]
    timer.delay(staying)
    timer.remove(staying)
    # If the timer fired later than the next timer, the test would notice it.
    await asyncio.sleep(0.5)
    begun_s = asyncio.get_running_loop().time()
    timer.delay(leaving)
    await asyncio.sleep(5)
    assert heard[1:] == [(begun_s + 1, 1)]


async def test_without_an_interval_nothing_is_delayed() -> None:
    timer = FlushTimer(interval_s=0)
    assert not timer.delay(Stream(1, []))
    assert timer.count == 0


@in_virtual_time
async def test_what_the_network_brings_need_not_wait_for_a_thousand_streams() -> None:
    """Other callbacks run in between: here one that is always ready."""
    loop, heard, turns = asyncio.get_running_loop(), list[tuple[float, int]](), list[int]()
    timer = FlushTimer(interval_s=1.0)

    def look() -> None:
        turns.append(len(heard))
        if len(heard) < 1000:
            loop.call_soon(look)

    for name in range(1000):
        timer.delay(Stream(name, heard))
    loop.call_later(1.0, look)
    await asyncio.sleep(5)
    assert [name for _, name in heard] == [*range(1000)]
    assert max(after - before for before, after in pairwise(turns)) <= 64


@given(st.lists(st.floats(min_value=0, max_value=10), max_size=20))
def test_nobody_waits_longer_than_the_interval(gaps_s: list[float]) -> None:
    @in_virtual_time
    async def delay_all() -> None:
        loop, heard, begun = asyncio.get_running_loop(), list[tuple[float, int]](), list[float]()
        timer = FlushTimer(interval_s=1.0)
        for name, gap_s in enumerate(gaps_s):
            await asyncio.sleep(gap_s)
            begun.append(loop.time())
            timer.delay(Stream(name, heard))
        await asyncio.sleep(5)
        assert [name for _, name in heard] == [*range(len(gaps_s))]
        assert all(0 < at - since <= 1.0 + 1e-9 for (at, _), since in zip(heard, begun, strict=True))

    delay_all()
