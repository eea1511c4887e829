"""Reads request bodies, with limits on each body, on all bodies together, and on time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from reasond_server.access import audit
from reasond_server.base.addresses import find_network
from reasond_server.errors.access import AccessError
from reasond_server.errors.base import show
from reasond_server.http_api.connection_cap import EvictionQueue
from reasond_server.http_api.connections import find_disconnect, run_unless_disconnected
from reasond_server.http_api.exchange import ClientGoneError, RefusalError, find_host

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from reasond_server.http_api.exchange import Exchange, Receive, RequestHeaders, Scope

T = TypeVar("T")


_JSON_ONLY: Final = "send the call as 'Content-Type: application/json'"
# Read even without a valid token, so that an answer about an invalid token has the id of its call.
_READ_OF_ANYBODY_BYTES: Final = 64 * 1024
# About what a body under way takes besides its bytes.
_READING_BYTES: Final = 4 * 1024


class HeaderGate(Protocol):
    """Verifies the caller of a request before its body is read."""

    async def recognise_caller(self, exchange: Exchange) -> bool:
        """Return whether the headers have a valid token; raise an AccessError if they have an invalid one."""


@dataclass(slots=True, eq=False)
class _StrangerBody:
    """A body under way whose caller has not shown a valid token."""

    deadline: asyncio.Timeout
    is_evicted: bool = False

    def evict(self) -> None:
        """End the wait for the body now."""
        self.is_evicted = True
        self.deadline.reschedule(asyncio.get_running_loop().time())


class BodyReader:
    """Reads request bodies and counts the bytes in memory.

    `max_body_bytes` limits one body, `max_held_bytes` all bodies of calls in progress, `max_requests` their number,
    `body_timeout_s` the seconds until a body is complete. Bodies under way of callers that have not shown a valid
    token may hold `max_stranger_bytes`, at least one body: one more ends the oldest of the network that holds most, so
    that they take no room from others.
    """

    def __init__(
        self,
        *,
        max_body_bytes: int,
        max_held_bytes: int,
        max_stranger_bytes: int,
        max_requests: int,
        body_timeout_s: float,
    ) -> None:
        self._max_body_bytes = max_body_bytes
        self._max_held_bytes = max_held_bytes
        self._max_stranger_bytes = max(max_stranger_bytes, max_body_bytes + _READING_BYTES)
        self._max_requests = max_requests
        self._body_timeout_s = body_timeout_s
        self._held_bytes = 0
        self._requests = 0
        self._strangers: EvictionQueue[_StrangerBody] = EvictionQueue()

    async def read(
        self,
        declared: int | None,
        receive: Receive,
        *,
        has_arrived: bool = False,
        is_known: bool = False,
        host: str = "",
    ) -> bytearray:
        """Return the body of a request; it counts as held until `release`.

        A body whose `declared` length exceeds the limit is not read. One that `has_arrived` as a whole comes with the
        first event, which needs no timer: a timer takes as long as all other steps here together. `is_known` says
        that the caller at `host` has shown a valid token.

        Raises:
            RefusalError: 413 too large, 408 too slow, 503 too many bytes or requests at once.
            ClientGoneError: the client left before its body was complete.
        """
        if declared is not None and declared > self._max_body_bytes:
            raise self._build_too_large_refusal()
        if self._requests >= self._max_requests:
            raise _build_busy_refusal()
        body = bytearray()
        counts = has_arrived or is_known
        self._requests += counts
        try:
            if has_arrived and not await self._take(body, receive):
                return body
            if is_known:
                async with asyncio.timeout(self._body_timeout_s):
                    while await self._take(body, receive):
                        pass
            else:
                await self._take_of_stranger(body, receive, host)
        except BaseException as error:
            self._requests -= counts
            self._held_bytes -= len(body)
            if isinstance(error, TimeoutError):
                raise self._build_too_slow_refusal() from None
            raise
        self._requests += not counts
        return body

    def release(self, body: bytearray) -> None:
        """Stop counting a request and the bytes of its body."""
        self._requests -= 1
        self._held_bytes -= len(body)

    async def _take_of_stranger(self, body: bytearray, receive: Receive, host: str) -> None:
        """Receive the rest of `body`, unless room is needed for those who came later."""
        reading = None
        try:
            async with asyncio.timeout(self._body_timeout_s) as deadline:
                reading = _StrangerBody(deadline)
                self._strangers.add(reading, find_network(host), _READING_BYTES + len(body))
                is_under_way = True
                while is_under_way:
                    before = len(body)
                    is_under_way = await self._take(body, receive)
                    self._strangers.grow(reading, len(body) - before)
                    while self._strangers.weight > self._max_stranger_bytes:
                        self._strangers.pop().evict()
        except TimeoutError:
            if reading is not None and reading.is_evicted:
                raise _build_busy_refusal(close=True) from None
            raise
        finally:
            if reading is not None:
                self._strangers.discard(reading)

    async def _take(self, body: bytearray, receive: Receive) -> bool:
        """Receive the next piece of `body`; return whether more follows."""
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        chunk: bytes = message.get("body", b"")
        size = len(chunk)
        if len(body) + size > self._max_body_bytes:
            raise self._build_too_large_refusal()
        if self._held_bytes + size > self._max_held_bytes:
            raise _build_busy_refusal()
        body += chunk
        self._held_bytes += size
        return bool(message.get("more_body", False))

    def _build_too_large_refusal(self) -> RefusalError:
        return RefusalError(
            413,
            f"the body is over the limit of {self._max_body_bytes} bytes; send less, "
            "or have [server] max_http_body_bytes raised",
        )

    def _build_too_slow_refusal(self) -> RefusalError:
        message = f"the body did not arrive within {self._body_timeout_s:g} s"
        return RefusalError(408, message, headers={"connection": "close"})


async def read_call_body(
    exchange: Exchange,
    receive: Receive,
    *,
    gate: HeaderGate,
    body_reader: BodyReader,
    host: str,
    media_type: str = "application/json",
) -> bytearray:
    """Return the body of a call of the client at `host`; it counts as held by `body_reader` until `release`.

    It is JSON, by this name or by that of `media_type`.

    Raises:
        AccessError: the body is large, and the token in the header is invalid; nothing was read.
        OverloadedError: callers with a valid token have all connections.
        RefusalError: the body is no JSON, is packed, too large or too slow, or the server holds too many.
        ClientGoneError: the client left before its body was complete.
    """
    headers = exchange.headers
    if not headers.accepts_json(media_type):
        # A page of another site can send JSON only after a CORS preflight, which [server] cors_origins grants.
        raise RefusalError(415, _JSON_ONLY, headers={"accept": "application/json"})
    require_plain(headers)
    declared = headers.declared_bytes()
    is_large = declared is None or declared > _READ_OF_ANYBODY_BYTES
    is_known = False
    if is_large or not exchange.has_whole_body:
        try:
            is_known = await gate.recognise_caller(exchange)
        except AccessError as error:
            if is_large:
                audit.log_denied(audit.UNREAD, error, call_id=exchange.call_id)
                raise
    has_arrived = exchange.has_whole_body
    return await body_reader.read(declared, receive, has_arrived=has_arrived, is_known=is_known, host=host)


async def answer_call(
    exchange: Exchange,
    scope: Scope,
    receive: Receive,
    *,
    gate: HeaderGate,
    body_reader: BodyReader,
    answer: Callable[[bytearray], Coroutine[Any, Any, T]],
    also: str = "application/json",
) -> T:
    """Return what `answer` makes of the body of a call, which is held until then; it is cancelled if the client leaves.

    The body is JSON, by this name or `also` by another one.

    Raises as `read_call_body` and `answer`.
    """
    host, disconnect = find_host(scope), find_disconnect(scope)
    body = await read_call_body(exchange, receive, gate=gate, body_reader=body_reader, host=host, media_type=also)
    try:
        return await run_unless_disconnected(answer(body), disconnect)
    finally:
        body_reader.release(body)


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


def _build_busy_refusal(*, close: bool = False) -> RefusalError:
    message = "the server holds as many requests as it may; retry in a second"
    return RefusalError(503, message, headers={"retry-after": "1", **({"connection": "close"} if close else {})})
