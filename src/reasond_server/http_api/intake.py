"""How much of a request is taken in: bounds on a body, on all bodies together, on time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from reasond_server.errors import show
from reasond_server.http_api.exchange import ClientGoneError, RefusalError

if TYPE_CHECKING:
    from reasond_server.http_api.exchange import Receive, RequestHeaders


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

    async def take_in(self, declared: int | None, receive: Receive) -> bytearray:
        """Return the body of a request, which counts as held from now on, until it is let go.

        What is over the limit as it is `declared` need not be read at all.

        Raises:
            RefusalError: 413 too large, 408 too slow, 503 more than the server holds at once.
            ClientGoneError: the client left before its body was complete.
        """
        if declared is not None and declared > self._max_body_bytes:
            raise self._too_large()
        if self._requests >= self._max_requests:
            raise _busy()
        self._requests += 1
        body = bytearray()
        try:
            async with asyncio.timeout(self._body_timeout_s):
                while await self._take(body, receive):
                    pass
        except BaseException as error:
            self.let_go(body)
            if isinstance(error, TimeoutError):
                raise self._too_slow() from None
            raise
        return body

    def let_go(self, body: bytearray) -> None:
        """Count a request no longer, and what of its body was taken in."""
        self._requests -= 1
        self._held_bytes -= len(body)

    async def _take(self, body: bytearray, receive: Receive) -> bool:
        """Take the next piece of `body`; return whether more is to come."""
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk: bytes = message.get("body", b"")
        if len(body) + len(chunk) > self._max_body_bytes:
            raise self._too_large()
        if self._held_bytes + len(chunk) > self._max_held_bytes:
            raise _busy()
        body += chunk
        self._held_bytes += len(chunk)
        return bool(message.get("more_body", False))

    def _too_large(self) -> RefusalError:
        return RefusalError(
            413,
            f"the body is over the limit of {self._max_body_bytes} bytes; send less, "
            "or have [server] max_http_body_bytes raised",
        )

    def _too_slow(self) -> RefusalError:
        message = f"the body did not arrive within {self._body_timeout_s:g} s"
        return RefusalError(408, message, headers={"connection": "close"})


def require_plain(headers: RequestHeaders) -> None:
    """Refuse a body that is packed: a small one could hold more than any limit.

    Raises:
        RefusalError: 415.
    """
    encoding = headers.first(b"content-encoding")
    if encoding is not None and encoding.strip().lower() != "identity":
        raise RefusalError(
            415,
            f"the body has Content-Encoding {show(encoding)}, which is not unpacked here; send it as it is, without",
            headers={"accept-encoding": "identity"},
        )


def _busy() -> RefusalError:
    message = "the server holds as many requests as it may; retry in a second"
    return RefusalError(503, message, headers={"retry-after": "1"})
