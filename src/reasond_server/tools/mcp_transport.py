"""Transports for MCP servers: HTTP with limits that httpx2 lacks, and lists from which what is no tool is left out.

To be imported where httpx2 and mcp are.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

import httpx2
from mcp_types import methods
from pydantic import ValidationError

from reasond_server.errors.base import show

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from types import TracebackType

    from mcp.client import Transport
    from mcp.shared.message import SessionMessage

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


# Later versions take more keys, and the same forms of these.
_VERSION: Final = "2025-11-25"


class ListingTransport:
    """The transport of a client, over `inner`; `leave_out` is told the name of each tool that is left out, and why."""

    def __init__(self, inner: Transport, *, leave_out: Callable[[str, str], None]) -> None:
        self._inner = inner
        self._leave_out = leave_out

    async def __aenter__(self) -> tuple[Any, Any]:
        """Open the transport; returns its streams, as the package's protocol says."""
        read, write = await self._inner.__aenter__()
        return _ListingStream(read, self._leave_out), write

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Close the transport."""
        return await self._inner.__aexit__(kind, error, traceback)


class _ListingStream:
    """The messages of `inner`, with whole tools alone in each list of tools."""

    def __init__(self, inner: Any, leave_out: Callable[[str, str], None]) -> None:  # noqa: ANN401 - the package's stream
        self._inner = inner
        self._leave_out = leave_out

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - such as the context of the last message
        return getattr(self._inner, name)

    async def receive(self) -> SessionMessage | Exception:
        """Return the next message."""
        return self._clean(await self._inner.receive())

    def __aiter__(self) -> Self:
        """Return this stream."""
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        """Return the next message, or end as the inner stream does."""
        return self._clean(await self._inner.__anext__())

    async def __aenter__(self) -> Self:
        """Open the stream."""
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        """Close the stream."""
        closed: bool | None = await self._inner.__aexit__(kind, error, traceback)
        return closed

    def _clean(self, received: SessionMessage | Exception) -> SessionMessage | Exception:
        if isinstance(received, Exception):
            return received
        result = getattr(received.message, "result", None)
        if not isinstance(result, dict) or not isinstance(tools := result.get("tools"), list):
            return received
        kept = [tool for place, tool in enumerate(tools) if not self._refuse(tool, place)]
        if len(kept) == len(tools):
            return received
        message = received.message.model_copy(update={"result": {**result, "tools": kept}})
        return replace(received, message=message)

    def _refuse(self, tool: object, place: int) -> bool:
        """Return whether `tool` is none, and tell it."""
        try:
            methods.validate_server_result("tools/list", _VERSION, {"tools": [tool]})
        except ValidationError as error:
            name = tool.get("name") if isinstance(tool, dict) else None
            path = ".".join(map(str, error.errors()[0]["loc"][2:])) or "it is no object"
            self._leave_out(show(name) if isinstance(name, str) else f"number {place + 1}", path)
            return True
        return False
