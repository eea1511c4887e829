from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from reasond_server.http_api.connections import (
    DISCONNECT_KEY,
    ClientDisconnect,
    find_disconnect,
    run_unless_disconnected,
)
from reasond_server.http_api.exchange import ClientGoneError


def build_disconnected() -> ClientDisconnect:
    """Return the departure of a client that has left."""
    disconnect = ClientDisconnect()
    disconnect.set()
    return disconnect


async def answer() -> int:
    return 42


async def test_work_is_returned_while_the_client_stays() -> None:
    assert await run_unless_disconnected(answer(), ClientDisconnect()) == 42


async def test_what_goes_wrong_in_the_work_is_raised() -> None:
    async def fail() -> None:
        message = "broken"
        raise LookupError(message)

    with pytest.raises(LookupError, match="broken"):
        await run_unless_disconnected(fail(), ClientDisconnect())


class Endless:
    """Work that ends only when it is cancelled, and whose clean-up has to wait."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.is_cleaned_up = False

    async def work(self) -> None:
        self.has_begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.is_cleaned_up = True


async def test_a_client_that_leaves_cancels_the_work_and_waits_for_its_end() -> None:
    endless, disconnect = Endless(), ClientDisconnect()
    task = asyncio.create_task(run_unless_disconnected(endless.work(), disconnect))
    await endless.has_begun.wait()
    disconnect.set()
    with pytest.raises(ClientGoneError):
        await task
    assert endless.is_cleaned_up
    assert task.cancelling() == 0


async def test_being_cancelled_cancels_the_work() -> None:
    endless = Endless()
    task = asyncio.create_task(run_unless_disconnected(endless.work(), ClientDisconnect()))
    await endless.has_begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert endless.is_cleaned_up


def _cancelling() -> int:
    """Return how many cancellations of the task of this test are pending."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def test_work_that_goes_on_though_its_client_left_is_not_answered() -> None:
    async def stubborn() -> int:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return 42

    with pytest.raises(ClientGoneError):
        await run_unless_disconnected(stubborn(), build_disconnected())
    assert _cancelling() == 0


async def test_what_goes_wrong_after_the_client_left_is_raised_as_it_is() -> None:
    async def breaking() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            message = "while it cleaned up"
            raise LookupError(message) from None

    with pytest.raises(LookupError, match="while it cleaned up"):
        await run_unless_disconnected(breaking(), build_disconnected())
    assert _cancelling() == 0


async def test_who_is_cancelled_while_the_client_leaves_is_cancelled() -> None:
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            task.cancel()
            await asyncio.sleep(0)

    task = asyncio.create_task(run_unless_disconnected(work(), build_disconnected()))
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_client_that_leaves_once_the_work_has_ended_cancels_nothing() -> None:
    disconnect = ClientDisconnect()
    assert await run_unless_disconnected(answer(), disconnect) == 42
    disconnect.set()
    await asyncio.sleep(0)
    assert _cancelling() == 0


async def test_work_is_done_in_the_task_of_whoever_asks_for_it() -> None:
    async def work() -> asyncio.Task[Any] | None:
        return asyncio.current_task()

    assert await run_unless_disconnected(work(), ClientDisconnect()) is asyncio.current_task()


def test_where_the_server_tells_of_no_departure_none_happens() -> None:
    assert not find_disconnect({"type": "http"}).is_set
    disconnect = build_disconnected()
    assert find_disconnect({"type": "http", DISCONNECT_KEY: disconnect}) is disconnect
