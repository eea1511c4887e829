from __future__ import annotations

import asyncio

import pytest

from reasond_server.llm.openai.concurrency import ConcurrencyCap, NoRoomError


async def test_a_place_is_given_back_whatever_happens_in_it() -> None:
    cap = ConcurrencyCap(limit=1)
    with pytest.raises(ValueError, match="boom"):
        async with cap.room(wait_s=1.0):
            raise ValueError("boom")
    async with cap.room(wait_s=1.0):
        with pytest.raises(NoRoomError):
            async with cap.room(wait_s=0.01):
                pass
    async with cap.room(wait_s=0.0):
        assert cap.limit == 1


async def test_a_cancelled_wait_takes_no_place() -> None:
    cap = ConcurrencyCap(limit=1)
    entered = asyncio.Event()

    async def wait() -> None:
        entered.set()
        async with cap.room(wait_s=5.0):
            pass

    async with cap.room(wait_s=1.0):
        task = asyncio.create_task(wait())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    async with cap.room(wait_s=0.1):
        pass
