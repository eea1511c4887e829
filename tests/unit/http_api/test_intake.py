from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.http_api.exchange import ClientGoneError, RefusalError
from reasond_server.http_api.intake import Intake, unless_client_leaves

if TYPE_CHECKING:
    from reasond_server.http_api.asgi import Message, Receive

SOON = 10.0


def pieces(*bodies: bytes) -> Receive:
    """Receive a body piece by piece, then nothing more, for ever."""
    left: deque[Message] = deque(
        {"type": "http.request", "body": body, "more_body": number < len(bodies)}
        for number, body in enumerate(bodies, start=1)
    )

    async def receive() -> Message:
        if left:
            return left.popleft()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]  # it never comes

    return receive


async def gone() -> Message:
    return {"type": "http.disconnect"}


def intake(*, body: int = 10, held: int = 25, requests: int = 10, timeout_s: float = 5) -> Intake:
    return Intake(max_body_bytes=body, max_held_bytes=held, max_requests=requests, body_timeout_s=timeout_s)


async def taken(room: Intake, receive: Receive, *, declared: int | None = None) -> bytes:
    """Take a body in and let it go at once."""
    body = await room.take_in(declared, receive)
    room.let_go(body)
    return bytes(body)


async def test_a_body_is_put_together_from_its_pieces() -> None:
    assert await taken(intake(), pieces(b"ab", b"", b"cd")) == b"abcd"


async def test_a_body_at_the_limit_passes_and_one_byte_more_does_not() -> None:
    assert len(await taken(intake(), pieces(b"x" * 10), declared=10)) == 10
    with pytest.raises(RefusalError) as caught:
        await taken(intake(), pieces(b"x" * 6, b"x" * 5))
    assert caught.value.status == 413
    assert "10 bytes" in caught.value.message


async def test_a_body_that_declares_too_much_is_not_read() -> None:
    async def never() -> Message:
        pytest.fail("the body was read")

    with pytest.raises(RefusalError) as caught:
        await taken(intake(), never, declared=11)
    assert caught.value.status == 413


async def test_a_body_that_does_not_come_is_given_up() -> None:
    with pytest.raises(RefusalError) as caught:
        await taken(intake(timeout_s=0.01), pieces())
    assert caught.value.status == 408
    assert caught.value.headers == {"connection": "close"}


async def test_a_client_that_leaves_before_its_body_is_complete_is_gone() -> None:
    with pytest.raises(ClientGoneError):
        await taken(intake(), gone)


async def test_all_bodies_together_are_bounded_and_counted_down_again() -> None:
    room = intake()
    for _ in range(2):
        held = [await room.take_in(None, pieces(b"x" * 10)) for _ in range(2)]
        with pytest.raises(RefusalError) as caught:
            await taken(room, pieces(b"x" * 3, b"x" * 3))
        assert caught.value.status == 503
        assert caught.value.headers == {"retry-after": "1"}
        assert await taken(room, pieces(b"x" * 5)) == b"x" * 5
        for body in held:
            room.let_go(body)


async def test_requests_at_once_are_bounded_and_counted_down_again() -> None:
    room = intake(requests=1)
    for _ in range(2):
        held = await room.take_in(None, pieces(b"x"))
        with pytest.raises(RefusalError) as caught:
            await taken(room, pieces(b"x"))
        assert caught.value.status == 503
        room.let_go(held)


async def answer() -> int:
    return 42


async def test_work_is_returned_while_the_client_stays() -> None:
    assert await unless_client_leaves(answer(), pieces(b"pipelined")) == 42


async def test_what_goes_wrong_in_the_work_is_raised() -> None:
    async def broken() -> None:
        message = "broken"
        raise LookupError(message)

    with pytest.raises(LookupError, match="broken"):
        await unless_client_leaves(broken(), pieces())


class Endless:
    """Work that never ends by itself; knows whether it was cancelled, and takes its time to clean up."""

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
    endless = Endless()

    async def receive() -> Message:
        await endless.has_begun.wait()
        return await gone()

    with pytest.raises(ClientGoneError):
        await unless_client_leaves(endless.work(), receive)
    assert endless.is_cleaned_up


async def test_being_cancelled_cancels_the_work() -> None:
    endless = Endless()
    task = asyncio.create_task(unless_client_leaves(endless.work(), pieces()))
    await endless.has_begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert endless.is_cleaned_up


def _cancelling() -> int:
    """Return how many cancellations of this test's task are still to be obeyed."""
    task = asyncio.current_task()
    assert task is not None
    return task.cancelling()


async def test_work_that_goes_on_though_its_client_left_is_not_answered() -> None:
    async def stubborn() -> int:
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return 42

    with pytest.raises(ClientGoneError):
        await unless_client_leaves(stubborn(), gone)
    assert _cancelling() == 0


async def test_what_goes_wrong_after_the_client_left_is_raised_as_it_is() -> None:
    async def breaking() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            message = "while it cleaned up"
            raise LookupError(message) from None

    with pytest.raises(LookupError, match="while it cleaned up"):
        await unless_client_leaves(breaking(), gone)
    assert _cancelling() == 0


async def test_who_is_cancelled_while_the_client_leaves_is_cancelled() -> None:
    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            task.cancel()
            await asyncio.sleep(0)

    task = asyncio.create_task(unless_client_leaves(work(), gone))
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_nobody_looks_for_the_client_once_the_work_has_ended() -> None:
    looking, ended = asyncio.Event(), asyncio.Event()

    async def receive() -> Message:
        looking.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    async def work() -> None:
        await looking.wait()

    await unless_client_leaves(work(), receive)
    await asyncio.wait_for(ended.wait(), SOON)


async def test_work_is_done_in_the_task_of_whoever_asks_for_it() -> None:
    async def work() -> asyncio.Task[Any] | None:
        return asyncio.current_task()

    assert await unless_client_leaves(work(), pieces()) is asyncio.current_task()
