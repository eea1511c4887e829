from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

import pytest

from reasond_server.http_api.body_reader import BodyReader
from reasond_server.http_api.exchange import ClientGoneError, RefusalError

if TYPE_CHECKING:
    from reasond_server.http_api.exchange import Message, Receive


def pieces(*bodies: bytes) -> Receive:
    """Return a `receive` that returns a body piece by piece, and then waits for ever."""
    left: deque[Message] = deque(
        {"type": "http.request", "body": body, "more_body": number < len(bodies)}
        for number, body in enumerate(bodies, start=1)
    )

    async def receive() -> Message:
        if left:
            return left.popleft()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]  # it never comes

    return receive


async def leave() -> Message:
    return {"type": "http.disconnect"}


def body_reader(*, body: int = 10, held: int = 25, requests: int = 10, timeout_s: float = 5) -> BodyReader:
    return BodyReader(
        max_body_bytes=body,
        max_held_bytes=held,
        max_stranger_bytes=10_000,
        max_requests=requests,
        body_timeout_s=timeout_s,
    )


async def read(room: BodyReader, receive: Receive, *, declared: int | None = None) -> bytes:
    """Take in a body and release it at once."""
    body = await room.read(declared, receive)
    room.release(body)
    return bytes(body)


async def test_a_body_is_put_together_from_its_pieces() -> None:
    assert await read(body_reader(), pieces(b"ab", b"", b"cd")) == b"abcd"


async def test_a_body_at_the_limit_passes_and_one_byte_more_does_not() -> None:
    assert len(await read(body_reader(), pieces(b"x" * 10), declared=10)) == 10
    with pytest.raises(RefusalError) as caught:
        await read(body_reader(), pieces(b"x" * 6, b"x" * 5))
    assert caught.value.status == 413
    assert "10 bytes" in caught.value.message


async def test_a_body_that_declares_too_much_is_not_read() -> None:
    async def never() -> Message:
        pytest.fail("the body was read")

    with pytest.raises(RefusalError) as caught:
        await read(body_reader(), never, declared=11)
    assert caught.value.status == 413


async def test_a_body_that_has_arrived_needs_no_timer() -> None:
    room = body_reader(timeout_s=0)
    assert await room.read(None, pieces(b"abc"), has_arrived=True) == b"abc"


async def test_a_body_that_has_not_arrived_as_it_was_said_is_waited_for_no_longer_than_others() -> None:
    first: deque[Message] = deque([{"type": "http.request", "body": b"abc", "more_body": True}])

    async def receive() -> Message:
        return first.popleft() if first else await pieces()()

    with pytest.raises(RefusalError) as caught:
        await body_reader(timeout_s=0.01).read(None, receive, has_arrived=True)
    assert caught.value.status == 408


async def test_a_body_that_does_not_come_is_given_up() -> None:
    with pytest.raises(RefusalError) as caught:
        await read(body_reader(timeout_s=0.01), pieces())
    assert caught.value.status == 408
    assert caught.value.headers == {"connection": "close"}


async def test_a_client_that_leaves_before_its_body_is_complete_is_gone() -> None:
    with pytest.raises(ClientGoneError):
        await read(body_reader(), leave)


async def test_all_bodies_together_are_bounded_and_counted_down_again() -> None:
    room = body_reader()
    for _ in range(2):
        held = [await room.read(None, pieces(b"x" * 10)) for _ in range(2)]
        with pytest.raises(RefusalError) as caught:
            await read(room, pieces(b"x" * 3, b"x" * 3))
        assert caught.value.status == 503
        assert caught.value.headers == {"retry-after": "1"}
        assert await read(room, pieces(b"x" * 5)) == b"x" * 5
        for body in held:
            room.release(body)


async def test_requests_at_once_are_bounded_and_counted_down_again() -> None:
    room = body_reader(requests=1)
    for _ in range(2):
        held = await room.read(None, pieces(b"x"))
        with pytest.raises(RefusalError) as caught:
            await read(room, pieces(b"x"))
        assert caught.value.status == 503
        room.release(held)
