"""HTTP for MCP servers, with limits that httpx2 lacks. To be imported where httpx2 is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import httpx2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MAX_BODY_BYTES: Final = 16 * 1024 * 1024
"""Most bytes of an answer that is one document; streams of events are read event by event."""

_EVENTS: Final = "text/event-stream"


class BoundedTransport(httpx2.AsyncBaseTransport):
    """Sends requests by `inner`; headers, and a body that is one document, must arrive within `timeout_s` seconds.

    The timeouts of httpx2 hold for each read, so that a server that sends a little again and again, such as interim
    responses (100 to 199), would never exceed them.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport, *, timeout_s: float) -> None:
        self._inner = inner
        self._timeout_s = timeout_s

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the response to `request`, whose body is not read yet.

        Raises:
            ReadTimeout: the headers did not arrive in time.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout_s
        try:
            async with asyncio.timeout_at(deadline):
                response = await self._inner.handle_async_request(request)
        except TimeoutError:
            message = f"no headers within {self._timeout_s:g} s"
            raise httpx2.ReadTimeout(message, request=request) from None
        stream = response.stream
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != _EVENTS and isinstance(stream, httpx2.AsyncByteStream):
            response.stream = _BoundedStream(stream, deadline=deadline)
        return response

    async def aclose(self) -> None:
        """Close all connections."""
        await self._inner.aclose()


class _BoundedStream(httpx2.AsyncByteStream):
    """A body that ends with an error after too many bytes, or at the first bytes after its deadline."""

    def __init__(self, stream: httpx2.AsyncByteStream, *, deadline: float) -> None:
        self._stream = stream
        self._deadline = deadline

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            size += len(chunk)
            if size > MAX_BODY_BYTES:
                message = f"the answer is over {MAX_BODY_BYTES} bytes"
                raise httpx2.ReadError(message)
            if asyncio.get_running_loop().time() > self._deadline:
                message = "the answer did not end in time"
                raise httpx2.ReadTimeout(message)
            yield chunk

    async def aclose(self) -> None:
        """Close the body."""
        await self._stream.aclose()
