"""HTTP connections: closes those that send slowly or do not read, and cancels work when its client leaves."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from reasond_server.base.addresses import find_network
from reasond_server.http_api.exchange import ADMISSION_KEY, PEER_URIS_KEY, WHOLE_BODY_KEY, ClientGoneError, Scope
from reasond_server.types.values import value

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Coroutine, Sequence

    from reasond_server.http_api.connection_cap import ConnectionCap


CONNECT = b"CONNECT"


class RequestReader(Protocol):
    """An object with the callbacks of httptools, the parser that calls them, and the state of the current request."""

    parser: httptools.HttpRequestParser
    url: bytes
    headers: list[tuple[bytes, bytes]]


class PlainParser(httptools.HttpRequestParser):
    """Parses requests for `reader`; a request for an upgrade is parsed again without the upgrade.

    The second pass needs a new parser, which replaces this one in `reader`. Callbacks of the first pass come while
    `should_upgrade()` is true, and must be ignored. CONNECT is not parsed again: the data after it is not a request.
    """

    def __init__(self, reader: RequestReader) -> None:
        super().__init__(reader)
        # As in uvicorn: a client may send more data after `Connection: close`.
        self.set_dangerous_leniencies(lenient_data_after_close=True)
        self._reader = reader

    def feed_data(self, data: bytes | bytearray | memoryview[int] | array[int]) -> None:
        """Parse `data`.

        Raises:
            httptools.HttpParserError: it is not HTTP.
        """
        try:
            super().feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self.get_method() != CONNECT:
                again = PlainParser(self._reader)
                again_data = self._write_head() + bytes(data)[upgrade.args[0] :]
                self._reader.parser = again
                again.feed_data(again_data)

    def _write_head(self) -> bytes:
        """Return the head of the current request without the header Upgrade."""
        version = self.get_http_version().encode("ascii")
        lines = [b"%s %s HTTP/%s" % (self.get_method(), self._reader.url, version)]
        # The lines of a folded value would be parsed as separate headers.
        lines += [
            b"%s: %s" % (name, b" ".join(value.splitlines()))
            for name, value in self._reader.headers
            if name != b"upgrade"
        ]
        return b"\r\n".join((*lines, b"", b""))


def count_hosts(headers: Sequence[tuple[bytes, bytes]]) -> int:
    """Return the number of Host headers; an HTTP/1.1 request has one (RFC 9112, section 3.2)."""
    # Few requests repeat a header, and a dictionary is made without a step of Python for each.
    named = dict(headers)
    if len(named) == len(headers):
        return 1 if b"host" in named else 0
    return [name for name, _ in headers].count(b"host")


_log = logging.getLogger("reasond.http")
# A client that is still sending reads the answer only after it has sent everything.
_UNREAD_S = 2.0
_UNREAD_BYTES = 64 * 1024 * 1024
# No client sends requests ahead of answers any more, but proxies and measuring programs may.
_MOST_AHEAD = 64
# A read brings up to 256 KiB, which may be 8,000 requests.
_PIECE_BYTES = 4_096
_TOO_MANY = b"429 Too Many Requests"
_TOO_LARGE = b"431 Request Header Fields Too Large"
_REFUSAL = b"HTTP/1.1 %s\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
# Stays empty, so one is enough for all connections.
_NO_HEADERS: Final[deque[tuple[bytes, bytes]]] = deque(maxlen=0)


@value
class ConnectionLimits:
    """Limits: number of connections; per connection, seconds for headers, idleness and writes, and bytes of headers."""

    max_connections: int = 1000
    header_timeout_s: float = 10.0
    keep_alive_s: int = 60
    write_timeout_s: float = 30.0
    max_header_bytes: int = 64 * 1024


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with limits that it lacks.

    The limits on seconds and bytes of headers also apply to data between requests; after the headers, the
    application limits the body. A client that reads nothing for `write_timeout_s` seconds while data waits to be sent
    is disconnected, and `on_slow` is called. If the answer is sent before the whole body has arrived, the rest of the
    body is read and dropped for 2 s and up to 64 MiB, so that the client can read the answer. Requests without a host
    or with two hosts, CONNECT, and the 66th request ahead of an answer are rejected; a request to upgrade the protocol
    is served without the upgrade.

    uvicorn documents the protocol class as an option, but none of its attributes. Five of them are used nevertheless,
    because there is no public alternative: `cycle` and `pipeline` (the current and the waiting requests), `flow`
    (pauses and resumes reading), `headers` (trailers would fill it) and `parser` (which stops at an upgrade).
    `tests/unit/http_api/test_connections.py` fails if a release changes their meaning.
    """

    def __init__(
        self,
        *,
        limits: ConnectionLimits,
        cap: ConnectionCap,
        on_slow: Callable[[], None] = lambda: None,
        is_draining: Callable[[], bool] = lambda: False,
        **uvicorn_arguments: Any,  # noqa: ANN401 - uvicorn's own
    ) -> None:
        super().__init__(**uvicorn_arguments)
        self.parser = PlainParser(self)
        self._cap = cap
        self._on_slow = on_slow
        self._is_draining = is_draining
        self._limits = limits
        self._header_bytes = 0
        self._piece_bytes = 0
        self._is_reading_headers = False
        self._is_reading_body = False
        self._is_working = False
        self._has_ended_request = False
        self._refusal = b""
        self._timer: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self._unread_bytes = 0
        self._peer_uris: tuple[str, ...] = ()
        self._disconnect = ClientDisconnect()
        self._served: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Start the timer: a client that connects must send a request."""
        super().connection_made(transport)
        close = partial(self._close_when_read, transport)
        self.transport = _ReadBeforeClosed(transport, on_close=close)  # type: ignore[assignment]  # it delegates all other methods
        names = (transport.get_extra_info("peercert") or {}).get("subjectAltName", ())
        self._peer_uris = tuple(value for kind, value in names if kind == "URI")
        self._cap.enter(self, find_network(self.client[0]) if self.client else "")
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        """Receive data; the timer runs while no request is in progress."""
        for start in range(0, len(data), _PIECE_BYTES):
            # What follows a refusal is not parsed.
            if self._refusal:
                return
            self._receive_piece(data[start : start + _PIECE_BYTES])

    def _receive_piece(self, data: bytes) -> None:
        self._piece_bytes = len(data)
        self._has_ended_request = False
        super().data_received(data)
        if self._is_reading_headers:
            self._header_bytes += len(data)
            if self._header_bytes > self._limits.max_header_bytes:
                self._refuse(_TOO_LARGE)
        if not self._is_working and not self._refusal:
            self._start_timer()

    def on_message_begin(self) -> None:
        """Start counting the header bytes of a request."""
        if not self._is_reading_headers:
            self._is_reading_headers = True
            # It is unknown how many bytes of this piece belong to earlier requests: headers that begin in it are
            # counted from the next piece on, and complete headers by their names and values.
            self._header_bytes = -self._piece_bytes if self._has_ended_request else 0
        super().on_message_begin()
        self.scope[PEER_URIS_KEY] = self._peer_uris  # type: ignore[typeddict-unknown-key]  # ours, not ASGI's
        self.scope[DISCONNECT_KEY] = self._disconnect  # type: ignore[typeddict-unknown-key]  # as above
        self.scope[ADMISSION_KEY] = self._admit  # type: ignore[typeddict-unknown-key]  # as above

    def on_headers_complete(self) -> None:
        """Stop the timer and start the request; trailers, which are not used, are dropped from now on."""
        method = self.parser.get_method()
        if self.parser.should_upgrade() and method != CONNECT:
            return
        self._stop_timer()
        self._is_reading_headers = False
        # The last piece is not counted yet, because it may also contain a body.
        most = self._limits.max_header_bytes
        if max(0, self._header_bytes) + self._piece_bytes > most and _measure_fields(self.headers) > most:
            self._refuse(_TOO_LARGE)
        elif method == CONNECT:
            self._refuse(b"405 Method Not Allowed")
        elif (hosts := count_hosts(self.headers)) > 1 or (not hosts and self.parser.get_http_version() == "1.1"):
            self._refuse(b"400 Bad Request")
        elif len(self.pipeline) >= _MOST_AHEAD:
            self._refuse(_TOO_MANY)
        if not self._refusal:
            self._is_working = True
            self._cap.begin(self)
            super().on_headers_complete()
            self._is_reading_body = True
            if self._is_draining():
                self.cycle.keep_alive = False
            # There is no public hook for the current request: uvicorn queues requests that arrive during another.
            if not self.pipeline:
                self._served = self.cycle
        # No public option drops trailers: uvicorn would keep them all.
        self.headers = _NO_HEADERS  # type: ignore[assignment]  # uvicorn appends to it and looks through it

    def on_body(self, body: bytes) -> None:
        """Receive a piece of a body, unless its headers were rejected."""
        if not self._refusal:
            super().on_body(body)
        if self._unread is not None:
            self._unread_bytes += len(body)
            if self._unread_bytes > _UNREAD_BYTES:
                self.transport.abort()

    def on_message_complete(self) -> None:
        """End a request, unless its headers were rejected or it is parsed again."""
        if self._refusal or self._is_reading_headers:
            return
        self._has_ended_request = True
        self.scope[WHOLE_BODY_KEY] = True  # type: ignore[typeddict-unknown-key]  # ours, not ASGI's
        super().on_message_complete()
        self._is_reading_body = False
        if self._unread is not None:
            self.transport.close()
        elif len(self.pipeline) <= 1:
            # A large body or a waiting request has paused reading; only reading shows that the client has left.
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """Note that no request is in progress, unless the client has already sent its next request."""
        # Not public either: the queue shows whether the next request begins now.
        self._is_working = bool(self.pipeline)
        if self.pipeline:
            self._served = self.pipeline[-1][0]
        self._cap.begin(self)
        super().on_response_complete()
        if not self._is_working and self._refusal:
            self._close(self._refusal)

    def pause_writing(self) -> None:
        """Start the timer for the client to read."""
        super().pause_writing()
        self._stall = self.loop.call_later(self._limits.write_timeout_s, self._cut_off)

    def resume_writing(self) -> None:
        """Stop the timer: the client has read."""
        self._stop_stall()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers, and cancel the client's requests."""
        self._cap.leave(self)
        self._disconnect.set()
        if self._served is not None:
            # uvicorn notifies only the last request.
            self._served.disconnected = True
        self._stop_timer()
        self._stop_stall()
        self._stop_reading()
        super().connection_lost(exc)

    def evict(self) -> None:
        """Close the connection at once; a request whose answer has not begun is answered 503."""
        is_waiting = self._is_working and self._served is not None and not self._served.response_started
        if (is_waiting or self._is_reading_headers) and not self.transport.is_closing():
            self.transport.write(_REFUSAL % b"503 Service Unavailable")
            self.transport.close()
        self.transport.abort()

    def _admit(self) -> bool:
        return self._cap.admit(self)

    def _start_timer(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self._limits.header_timeout_s, self._close, b"408 Request Timeout")

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_stall(self) -> None:
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _stop_reading(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _close_when_read(self, transport: asyncio.Transport) -> None:
        """Close `transport`; close it later if the client is still sending, because else it would lose the answer."""
        # The application is notified only of a disconnect; only the cycle knows whether the answer was sent.
        is_sending = self._is_reading_body and self.cycle.response_complete
        if not is_sending or transport.is_closing():
            self._stop_reading()
            transport.close()
        elif self._unread is None:
            if transport.can_write_eof():
                transport.write_eof()
            self._unread = self.loop.call_later(_UNREAD_S, transport.close)

    def _cut_off(self) -> None:
        self._on_slow()
        # A client that does not read gets no error; it can resume from the id of its last event.
        _log.info("a client that took nothing for %g s was cut off (SLOW_CONSUMER)", self._limits.write_timeout_s)
        self.transport.abort()

    def _refuse(self, status: bytes) -> None:
        """Stop reading, and send the error after the answers to earlier requests."""
        self._refusal = status
        if not self._is_working:
            self._close(status)

    def _close(self, status: bytes) -> None:
        self._stop_timer()
        if not self.transport.is_closing():
            self.transport.write(_REFUSAL % status)
            self.transport.close()
            # Over TLS, close would wait half a minute for the close_notify that a silent client never sends.
            self.loop.call_later(_UNREAD_S, self.transport.abort)


def _measure_fields(headers: Sequence[tuple[bytes, bytes]]) -> int:
    """Return the bytes of the names and values, without separators."""
    return sum(len(name) + len(value) for name, value in headers)


T = TypeVar("T")
DISCONNECT_KEY: Final = "reasond.departure"


class ClientDisconnect:
    """Whether the client of a connection has left. Its requests run one after the other, each in a task."""

    def __init__(self) -> None:
        self.is_set = False
        self._task: asyncio.Task[Any] | None = None

    def set(self) -> None:
        """Note that the client has left, and cancel its task."""
        self.is_set = True
        if self._task is not None:
            self._task.cancel()

    def watch(self, task: asyncio.Task[Any]) -> None:
        """Cancel `task` when the client leaves, or now if it has left."""
        self._task = task
        if self.is_set:
            task.cancel()

    def forget(self) -> None:
        """Stop watching the task."""
        self._task = None


def find_disconnect(scope: Scope) -> ClientDisconnect:
    """Return the departure of the client of `scope`; one that never happens if the server provides none."""
    disconnect: ClientDisconnect | None = scope.get(DISCONNECT_KEY)
    return ClientDisconnect() if disconnect is None else disconnect


async def run_unless_disconnected(work: Coroutine[Any, Any, T], disconnect: ClientDisconnect) -> T:
    """Return the result of `work`; if the client leaves first, cancel `work` and wait until it has ended.

    `work` runs in the task of the caller.

    Raises:
        ClientGoneError: the client left.
    """
    task = asyncio.current_task()
    if task is None:  # pragma: no cover - coroutines run in tasks
        message = "a request is served outside a task"
        raise RuntimeError(message)
    disconnect.watch(task)
    try:
        result = await work
    except asyncio.CancelledError:
        # A cancellation from outside takes precedence, even if the client has also left.
        if disconnect.is_set and not task.uncancel():
            raise ClientGoneError from None
        raise
    except BaseException:
        if disconnect.is_set:
            task.uncancel()
        raise
    else:
        if disconnect.is_set:
            # The work ended normally although it was cancelled.
            task.uncancel()
            raise ClientGoneError
        return result
    finally:
        disconnect.forget()


class _ReadBeforeClosed:
    """A transport whose `close` is `on_close`; everything else is that of `transport`."""

    def __init__(self, transport: asyncio.Transport, *, on_close: Callable[[], None]) -> None:
        self._transport = transport
        self.close = on_close

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a transport has
        return getattr(self._transport, name)
