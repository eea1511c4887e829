"""One timer limits every write of a stream. The tests move the clock."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from reasond_server.grpc_api.stream_writer import StallWatch

if TYPE_CHECKING:
    from collections.abc import Callable

LIMIT_S = 30.0


class HandClock:
    """A clock whose timers fire when `pass_s` moves it to their time."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.handles: list[asyncio.TimerHandle] = []

    def time(self) -> float:
        return self.now_s

    def call_at(self, when: float, callback: Callable[[], object], /) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, (), asyncio.get_running_loop())
        self.handles.append(handle)
        return handle

    @property
    def set_timers(self) -> list[asyncio.TimerHandle]:
        """The timers that are still set."""
        return [handle for handle in self.handles if not handle.cancelled()]

    def pass_s(self, seconds: float) -> None:
        self.now_s += seconds
        for handle in [handle for handle in self.set_timers if handle.when() <= self.now_s]:
            self.handles.remove(handle)
            handle._run()


async def for_ever() -> None:
    """Wait for ever."""
    await asyncio.get_running_loop().create_future()


async def writing(watch: StallWatch) -> asyncio.Task[None]:
    """Start a stream whose second write never ends; return its task during that write."""
    begun = asyncio.Event()

    async def stream() -> None:
        with watch:
            await watch.write_within(asyncio.sleep(0))
            begun.set()
            await watch.write_within(for_ever())

    task = asyncio.create_task(stream())
    await begun.wait()
    return task


async def test_a_write_that_takes_too_long_is_cut_off() -> None:
    clock = HandClock()
    task = await writing(StallWatch(limit_s=LIMIT_S, timers=clock))

    clock.pass_s(LIMIT_S)

    with pytest.raises(TimeoutError):
        await task
    assert task.cancelling() == 0
    assert not clock.set_timers


async def test_a_write_is_not_charged_with_the_time_of_those_before() -> None:
    """The timer of the first write fires during the second write, which is younger than the limit, and is set again."""
    clock = HandClock()
    written, go_on = asyncio.Event(), asyncio.Event()

    async def stream() -> None:
        with StallWatch(limit_s=LIMIT_S, timers=clock) as watch:
            await watch.write_within(asyncio.sleep(0))
            written.set()
            await go_on.wait()
            await watch.write_within(for_ever())

    task = asyncio.create_task(stream())
    await written.wait()
    clock.pass_s(20.0)
    go_on.set()
    await asyncio.sleep(0)
    clock.pass_s(29.0)
    await asyncio.sleep(0)
    assert not task.done()
    assert [handle.when() for handle in clock.set_timers] == [20.0 + LIMIT_S]

    clock.pass_s(1.0)

    with pytest.raises(TimeoutError):
        await task


async def test_time_between_writes_does_not_count_and_sets_no_timer() -> None:
    clock = HandClock()
    with StallWatch(limit_s=LIMIT_S, timers=clock) as watch:
        await watch.write_within(asyncio.sleep(0))
        clock.pass_s(10 * LIMIT_S)
        assert not clock.set_timers

        await watch.write_within(asyncio.sleep(0))
        assert len(clock.set_timers) == 1

    assert not clock.set_timers


async def test_many_writes_share_one_timer() -> None:
    clock = HandClock()
    with StallWatch(limit_s=LIMIT_S, timers=clock) as watch:
        for _ in range(100):
            await watch.write_within(asyncio.sleep(0))

        assert len(clock.handles) == 1


async def test_a_cancellation_by_somebody_else_is_passed_on() -> None:
    task = await writing(StallWatch(limit_s=LIMIT_S, timers=HandClock()))

    task.cancel()
    await asyncio.wait({task})

    assert task.cancelled()


async def test_a_cancellation_that_comes_with_the_cut_is_passed_on() -> None:
    clock = HandClock()
    task = await writing(StallWatch(limit_s=LIMIT_S, timers=clock))

    clock.pass_s(LIMIT_S)
    task.cancel()
    await asyncio.wait({task})

    assert task.cancelled()


async def test_a_cancellation_after_a_cut_is_passed_on() -> None:
    clock = HandClock()
    is_cut = asyncio.Event()

    async def stream() -> None:
        with StallWatch(limit_s=LIMIT_S, timers=clock) as watch:
            try:
                await watch.write_within(for_ever())
            except TimeoutError:
                is_cut.set()
                await watch.write_within(for_ever())

    task = asyncio.create_task(stream())
    await asyncio.sleep(0)
    clock.pass_s(LIMIT_S)
    await is_cut.wait()
    task.cancel()
    await asyncio.wait({task})

    assert task.cancelled()


async def test_what_the_write_raises_is_raised() -> None:
    async def break_off() -> None:
        raise ConnectionError("gone")

    with StallWatch(limit_s=LIMIT_S) as watch, pytest.raises(ConnectionError):
        await watch.write_within(break_off())
