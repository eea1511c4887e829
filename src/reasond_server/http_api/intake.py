"""Reads request bodies, with limits on each body, on all bodies together, and on time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, Protocol

from reasond_server.errors import show
from reasond_server.http_api.exchange import ClientGoneError, RefusalError

if TYPE_CHECKING:
    from reasond_server.http_api.exchange import Exchange, Receive, RequestHeaders


_JSON_ONLY: Final = "send the call as 'Content-Type: application/json'"
# Read even without a valid token, so that an answer about an invalid token has the id of its call.
_READ_OF_ANYBODY_BYTES: Final = 64 * 1024


class HeaderGate(Protocol):
    """Verifies the token of a request before its body is read."""

    async def look_at_header(self, exchange: Exchange) -> None:
        """Raise an AccessError if the header has a token that is invalid."""
        ...


class Intake:
    """Reads request bodies and counts the bytes in memory.

    `max_body_bytes` limits one body, `max_held_bytes` all bodies of calls in progress,
    `max_requests` their number, `body_timeout_s` the seconds until a body is complete.
    """

    def __init__(self, *, max_body_bytes: int, max_held_bytes: int, max_requests: int, body_timeout_s: float) -> None:
        self._max_body_bytes = max_body_bytes
        self._max_held_bytes = max_held_bytes
        self._max_requests = max_requests
        self._body_timeout_s = body_timeout_s
        self._held_bytes = 0
        self._requests = 0

    async def take_in(self, declared: int | None, receive: Receive, *, has_arrived: bool = False) -> bytearray:
        """Return the body of a request; it counts as held until `let_go`.

        A body whose `declared` length exceeds the limit is not read. One that `has_arrived` as a whole comes with the
        first event, which needs no timer: a timer takes as long as all other steps here together.

        Raises:
            RefusalError: 413 too large, 408 too slow, 503 too many bodies at once.
            ClientGoneError: the client left before its body was complete.
        """
        if declared is not None and declared > self._max_body_bytes:
            raise self._too_large()
        if self._requests >= self._max_requests:
            raise _busy()
        self._requests += 1
        body = bytearray()
        try:
            if has_arrived and not await self._take(body, receive):
                return body
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
        """Stop counting a request and the bytes of its body."""
        self._requests -= 1
        self._held_bytes -= len(body)

    async def _take(self, body: bytearray, receive: Receive) -> bool:
        """Receive the next piece of `body`; return whether more follows."""
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk: bytes = message.get("body", b"")
        size = len(chunk)
        if len(body) + size > self._max_body_bytes:
            raise self._too_large()
        if self._held_bytes + size > self._max_held_bytes:
            raise _busy()
        body += chunk
        self._held_bytes += size
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


async def take_in_call(exchange: Exchange, receive: Receive, *, gate: HeaderGate, intake: Intake) -> bytearray:
    """Return the body of a call, which counts as held by `intake` until `let_go`.

    Raises:
        AccessError: the body is large, and the token in the header is invalid; nothing was read.
        RefusalError: the body is no JSON, is packed, too large or too slow, or the server holds too many.
        ClientGoneError: the client left before its body was complete.
    """
    headers = exchange.headers
    if not headers.say_json():
        # A page of another site can send JSON only after a CORS preflight, which is never granted.
        raise RefusalError(415, _JSON_ONLY, headers={"accept": "application/json"})
    require_plain(headers)
    declared = headers.declared_bytes()
    if declared is None or declared > _READ_OF_ANYBODY_BYTES:
        await gate.look_at_header(exchange)
    return await intake.take_in(declared, receive, has_arrived=exchange.has_whole_body)


def require_plain(headers: RequestHeaders) -> None:
    """Reject a compressed body: even a small one could expand beyond any limit.

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
