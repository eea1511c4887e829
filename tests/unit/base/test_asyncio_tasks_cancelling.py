"""Tasks are ended even where a library swallows a cancellation."""

from __future__ import annotations

import asyncio

from reasond_server.base.asyncio_tasks import end_task


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
