from __future__ import annotations

import asyncio

import pytest

from reasond_server.llm.openai.concurrency import ConcurrencyCap, NoRoomError


async def test_a_place_that_is_given_back_is_the_next_ones_and_nobody_waits_longer_than_told() -> None:
    waits: list[float] = []
    cap = ConcurrencyCap(limit=1, on_wait=waits.append)
    await cap.take(wait_s=0.0)
    with pytest.raises(NoRoomError):
        await cap.take(wait_s=0.01)
    assert len(waits) == 1
    cap.give_back()
    await cap.take(wait_s=0.0)
    assert cap.limit == 1
    assert len(waits) == 1


async def test_a_cancelled_wait_takes_no_place() -> None:
    cap = ConcurrencyCap(limit=1)
    entered = asyncio.Event()

    async def wait() -> None:
        entered.set()
        await cap.take(wait_s=5.0)

    await cap.take(wait_s=1.0)
    task = asyncio.create_task(wait())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    cap.give_back()
    await cap.take(wait_s=0.1)
