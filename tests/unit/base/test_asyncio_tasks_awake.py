"""The limit of a wait, in an event loop that runs and in one that is blocked."""

import asyncio
import threading
import time

import pytest

from reasond_server.base.asyncio_tasks import limit_awake_time


async def test_what_does_not_come_is_given_up() -> None:
    with pytest.raises(TimeoutError):
        async with limit_awake_time(0.01):
            await asyncio.Event().wait()


async def test_who_is_cancelled_stays_cancelled() -> None:
    async def ask() -> None:
        async with limit_awake_time(60):
            await asyncio.Event().wait()

    task = asyncio.create_task(ask())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_answer_that_came_while_the_loop_stood_still_is_heard() -> None:
    stands = threading.Event()

    def stall() -> None:
        stands.set()
        time.sleep(0.6)

    async with limit_awake_time(0.5):
        asyncio.get_running_loop().call_soon(stall)
        assert await asyncio.to_thread(stands.wait, 60)
