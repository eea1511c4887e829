"""Tasks are ended even where a library swallows a cancellation."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from reasond_server.base.asyncio_tasks import end_task, interleave

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


async def test_a_task_that_swallows_a_cancellation_is_ended() -> None:
    swallowed = 0

    async def work() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed > 1:
                    raise

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    await end_task(task)
    assert task.cancelled()
    assert swallowed == 2


async def test_what_an_ended_task_raises_is_dropped() -> None:
    async def fail() -> None:
        raise ValueError("dropped")

    task = asyncio.create_task(fail())
    await asyncio.sleep(0)
    await end_task(task)
    assert task.done()


async def test_streams_are_read_as_they_come_and_all_are_closed_when_one_fails_or_the_reader_leaves() -> None:
    closed: list[str] = []
    may_go_on = asyncio.Event()

    async def tell(name: str, *, fails: bool = False) -> AsyncGenerator[str, None]:
        try:
            yield name
            await may_go_on.wait()
            if fails:
                raise ValueError(name)
            yield f"{name} again"
        finally:
            closed.append(name)

    async with aclosing(interleave([tell("a"), tell("b")])) as told:
        first = {await anext(told), await anext(told)}
        may_go_on.set()
        rest = [each async for each in told]
    assert first == {(0, "a"), (1, "b")}
    assert sorted(rest, key=repr) == [(0, "a again"), (0, None), (1, "b again"), (1, None)]

    may_go_on.clear()
    async with aclosing(interleave([tell("c"), tell("d")])) as told:
        await anext(told)
    assert closed == ["a", "b", "c", "d"]

    may_go_on.set()
    with pytest.raises(ValueError, match="f"):
        async for _ in interleave([tell("e"), tell("f", fails=True)]):
            pass
    assert sorted(closed[4:]) == ["e", "f"]
