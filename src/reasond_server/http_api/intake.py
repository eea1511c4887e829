"""How much of a request is taken in: bounds on a body, on all bodies together, on time; and who has left."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from reasond_server.http_api.exchange import ClientGoneError, RefusalError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from starlette.datastructures import Headers
    from starlette.types import Receive

T = TypeVar("T")

# What is done sooner is not worth a task that looks whether its client has left.
_UNWATCHED_S = 0.03


class Intake:
    """Takes in request bodies and counts what is held.

    `max_body_bytes` bounds one body, `max_held_bytes` all bodies whose calls are in progress,
    `max_requests` their number, `body_timeout_s` the seconds until a body is complete.
    """

    def __init__(self, *, max_body_bytes: int, max_held_bytes: int, max_requests: int, body_timeout_s: float) -> None:
        self._max_body_bytes = max_body_bytes
        self._max_held_bytes = max_held_bytes
        self._max_requests = max_requests
        self._body_timeout_s = body_timeout_s
        self._held_bytes = 0
        self._requests = 0

    @asynccontextmanager
    async def body(self, headers: Headers, receive: Receive) -> AsyncIterator[bytes]:
        """Yield the body of a request; it counts as held until the block is left.

        Raises:
            RefusalError: 413 too large, 408 too slow, 503 more than the server holds at once.
            ClientGoneError: the client left before its body was complete.
        """
        self._check_declared(headers.get("content-length", ""))
        if self._requests >= self._max_requests:
            raise _busy()
        self._requests += 1
        held = bytearray()
        try:
            yield await self._read(held, receive)
        finally:
            self._requests -= 1
            self._held_bytes -= len(held)

    async def _read(self, held: bytearray, receive: Receive) -> bytes:
        try:
            async with asyncio.timeout(self._body_timeout_s):
                while await self._take(held, receive):
                    pass
        except TimeoutError:
            raise RefusalError(
                408, f"the body did not arrive within {self._body_timeout_s:g} s", headers={"connection": "close"}
            ) from None
        return bytes(held)

    async def _take(self, held: bytearray, receive: Receive) -> bool:
        """Take the next piece of a body; return whether more is to come."""
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk: bytes = message.get("body", b"")
        if len(held) + len(chunk) > self._max_body_bytes:
            raise self._too_large()
        if self._held_bytes + len(chunk) > self._max_held_bytes:
            raise _busy()
        held += chunk
        self._held_bytes += len(chunk)
        return bool(message.get("more_body", False))

    def _check_declared(self, length: str) -> None:
        """Refuse by Content-Length what need not be read at all."""
        # Twenty digits are over every limit already, and reading thousands of them would take time.
        if length.isdecimal() and int(length[:20]) > self._max_body_bytes:
            raise self._too_large()

    def _too_large(self) -> RefusalError:
        return RefusalError(
            413,
            f"the body is over the limit of {self._max_body_bytes} bytes; send less, "
            "or have [server] max_http_body_bytes raised",
        )


async def unless_client_leaves(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """Return what `work` returns; when the client leaves first, cancel `work` and wait until it has ended.

    Raises:
        ClientGoneError: the client left.
    """
    task = asyncio.create_task(work)
    watched: set[asyncio.Task[Any]] = {task}
    try:
        await asyncio.wait(watched, timeout=_UNWATCHED_S)
        if not task.done():
            # ASGI tells of a departure only to whoever is waiting for a message.
            watched.add(asyncio.create_task(_departure(receive)))
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGoneError
    finally:
        going = [each for each in watched if each.cancel()]
        if going:
            await asyncio.gather(*going, return_exceptions=True)


async def _departure(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _busy() -> RefusalError:
    message = "the server holds as many requests as it may; retry in a second"
    return RefusalError(503, message, headers={"retry-after": "1"})
