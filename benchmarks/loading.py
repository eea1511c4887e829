"""Load clients that cost less than the measured server: gRPC and HTTP/1.1 by hand, over plain TCP on loopback.

A gRPC client in Python costs as much per call as the server. These clients send bytes that were made once, and count
frames. They judge an answer by its size: a failed call has no message, or a different one.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_FRAME_HEAD = 9
_FIRST_WINDOW = 65_535
_LARGEST_WINDOW = 2**31 - 1
_STREAMS_PER_CONNECTION = 16
# Entries of HPACK's static table that every request has: POST and http.
_POST, _HTTP = b"\x83", b"\x86"
_FIRST_DYNAMIC = 62

Kept = list[dict[int, bytearray]]
"""The bytes of messages, each in its gRPC frame, by connection and stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The result of a load: wall time of all calls in seconds, and the milliseconds of each call in ascending order."""

    calls: int
    seconds: float
    latencies_ms: Sequence[float]

    @property
    def per_second(self) -> float:
        """Calls per second."""
        return self.calls / self.seconds

    def percentile_ms(self, percent: int) -> float:
        """Return the latency in milliseconds that `percent` of the calls did not exceed."""
        return statistics.quantiles(self.latencies_ms, n=100, method="inclusive")[percent - 1]


class _Calls:
    """Counts the calls that are still to be made, and records when each call ended."""

    def __init__(self, total: int) -> None:
        self._left = total
        self._open = total
        self.latencies_ms: list[float] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(self) -> bool:
        """Return whether another call is to be made."""
        self._left -= 1
        return self._left >= 0

    def note_end(self, begun: float) -> None:
        """Record the end of a call that began at that time."""
        self.latencies_ms.append(1000 * (time.perf_counter() - begun))
        self._open -= 1
        if not self._open and not self.done.done():
            self.done.set_result(None)

    def fail(self, why: str) -> None:
        """End the measurement, because its result would be useless."""
        if not self.done.done():
            self.done.set_exception(SystemExit(why))


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcCall:
    """One call, repeated: path, metadata and request message; an answer has at least `least` bytes of messages."""

    path: str
    metadata: Sequence[tuple[str, str]]
    message: bytes
    least: int = 1

    @property
    def body(self) -> bytes:
        """The message in its gRPC frame."""
        return b"\x00" + len(self.message).to_bytes(4, "big") + self.message

    def headers(self, authority: str) -> Sequence[tuple[str, str]]:
        """Return the headers of the request apart from method and scheme."""
        common = (("content-type", "application/grpc"), ("te", "trailers"))
        return ((":path", self.path), (":authority", authority), *common, *self.metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCall:
    """One whole HTTP/1.1 request, repeated; a good answer has at least `least` bytes."""

    request: bytes
    least: int = 1


def http_post(path: str, body: bytes, *, headers: Sequence[tuple[str, str]] = (), least: int = 1) -> HttpCall:
    """Return a POST of JSON."""
    lines = ["POST " + path + " HTTP/1.1", "host: localhost", "content-type: application/json"]
    lines += [f"content-length: {len(body)}", *(f"{name}: {value}" for name, value in headers)]
    return HttpCall(request="\r\n".join(lines).encode() + b"\r\n\r\n" + body, least=least)


class _GrpcConnection(asyncio.Protocol):
    """One HTTP/2 connection that keeps `width` calls open until all calls are made."""

    def __init__(self, *, call: GrpcCall, authority: str, calls: _Calls, width: int, kept: Kept | None) -> None:
        self._body = call.body
        self._least = call.least + 5
        headers = call.headers(authority)
        # The first request puts its headers into the connection's dynamic table; later requests refer to them.
        self._first = _POST + _HTTP + b"".join(_literal(name, value) for name, value in headers)
        self._next = _POST + _HTTP + bytes(0x80 | (_FIRST_DYNAMIC + place) for place in reversed(range(len(headers))))
        self._calls = calls
        self._width = width
        self._kept: dict[int, bytearray] | None = None
        if kept is not None:
            self._kept = {}
            kept.append(self._kept)
        self._stream = 1
        self._window = _FIRST_WINDOW
        self._waiting: deque[int] = deque()
        self._begun: dict[int, float] = {}
        self._received: dict[int, int] = {}
        self._taken_in = 0
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open all calls."""
        self._transport = cast("asyncio.Transport", transport)
        largest = _LARGEST_WINDOW.to_bytes(4, "big")
        more = (_LARGEST_WINDOW - _FIRST_WINDOW).to_bytes(4, "big")
        self._write(_PREFACE + _frame(_SETTINGS, 0, 0, b"\x00\x04" + largest) + _frame(_WINDOW, 0, 0, more))
        for _ in range(self._width):
            self._open()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail if an answer is still missing."""
        self._calls.fail(f"the connection was lost: {exc}")

    def data_received(self, data: bytes) -> None:
        """Read whole frames."""
        buffer = self._buffer + data if self._buffer else data
        at = 0
        while len(buffer) - at >= _FRAME_HEAD:
            size = int.from_bytes(buffer[at : at + 3], "big")
            end = at + _FRAME_HEAD + size
            if len(buffer) < end:
                break
            stream = int.from_bytes(buffer[at + 5 : at + 9], "big")
            self._frame(buffer[at + 3], buffer[at + 4], stream, buffer[at + _FRAME_HEAD : end])
            at = end
        self._buffer = buffer[at:]

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _frame(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == _DATA:
            self._received[stream] += len(payload)
            if self._kept is not None:
                self._kept.setdefault(stream, bytearray()).extend(payload)
            self._taken_in += len(payload)
            if self._taken_in > _LARGEST_WINDOW // 2:
                self._write(_frame(_WINDOW, 0, 0, self._taken_in.to_bytes(4, "big")))
                self._taken_in = 0
        elif kind == _HEADERS and flags & _END_STREAM:
            self._close_stream(stream)
        elif kind == _WINDOW and not stream:
            self._window += int.from_bytes(payload, "big")
            self._send_waiting()
        elif kind in {_SETTINGS, _PING} and not flags & _ACK:
            self._write(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind in {_RST, _GOAWAY}:
            self._calls.fail(f"the server refused: frame {kind} on stream {stream}: {payload!r}")

    def _close_stream(self, stream: int) -> None:
        if self._received.pop(stream) < self._least:
            self._calls.fail("a call was not answered well")
        self._calls.note_end(self._begun.pop(stream))
        self._open()

    def _open(self) -> None:
        if self._calls.take():
            self._waiting.append(self._stream)
            self._stream += 2
            self._send_waiting()

    def _send_waiting(self) -> None:
        """Send as much as the connection's flow control window allows."""
        while self._waiting and self._window >= len(self._body):
            stream = self._waiting.popleft()
            self._window -= len(self._body)
            self._begun[stream], self._received[stream] = time.perf_counter(), 0
            block = self._first if stream == 1 else self._next
            self._write(_frame(_HEADERS, _END_HEADERS, stream, block) + _frame(_DATA, _END_STREAM, stream, self._body))

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)


class _HttpConnection(asyncio.Protocol):
    """One HTTP/1.1 connection that makes one call after the other until all calls are made."""

    def __init__(self, *, call: HttpCall, calls: _Calls) -> None:
        self._call = call
        self._calls = calls
        self._begun = 0.0
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Make the first call."""
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail if an answer is still missing."""
        self._calls.fail(f"the connection was lost: {exc}")

    def data_received(self, data: bytes) -> None:
        """Read an answer, whose length is in its headers."""
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(body) < length:
            return
        if b" 200 " not in head[:16] or length < self._call.least:
            self._calls.fail(f"a call was not answered well: {self._buffer[:200]!r}")
        self._buffer = b""
        self._calls.note_end(self._begun)
        self._send()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    def _send(self) -> None:
        if self._calls.take() and self._transport is not None:
            self._begun = time.perf_counter()
            self._transport.write(self._call.request)


async def load(
    target: str,
    call: GrpcCall | HttpCall,
    *,
    callers: int,
    total: int,
    on_each: int = _STREAMS_PER_CONNECTION,
    kept: Kept | None = None,
) -> Load:
    """Let `callers` make `total` calls; each makes its next call when it has the answer to the one before.

    gRPC callers share connections, `on_each` on each; each HTTP/1.1 caller has its own. The messages that gRPC callers
    receive are appended to `kept`.

    Raises:
      SystemExit: an answer was wrong or missing.
    """
    host, _, port = target.rpartition(":")
    calls = _Calls(total)
    begun = time.perf_counter()
    connections = []
    for factory in _factories(call, calls, callers=callers, authority=target, on_each=on_each, kept=kept):
        _, connection = await asyncio.get_running_loop().create_connection(factory, host, int(port))
        connections.append(connection)
    try:
        await calls.done
    finally:
        seconds = time.perf_counter() - begun
        for connection in connections:
            connection.close()
    return Load(calls=total, seconds=seconds, latencies_ms=sorted(calls.latencies_ms))


def _factories(
    call: GrpcCall | HttpCall, calls: _Calls, *, callers: int, authority: str, on_each: int, kept: Kept | None
) -> list[Callable[[], _GrpcConnection | _HttpConnection]]:
    if isinstance(call, HttpCall):
        return [lambda: _HttpConnection(call=call, calls=calls)] * callers
    count = -(-callers // on_each)
    width = callers // count
    return [lambda: _GrpcConnection(call=call, authority=authority, calls=calls, width=width, kept=kept)] * count


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _literal(name: str, value: str) -> bytes:
    """Return a header as HPACK literal with incremental indexing (RFC 7541, 6.2.1), without Huffman coding."""
    return b"\x40" + _string(name) + _string(value)


def _string(text: str) -> bytes:
    raw = text.encode()
    size, prefix = len(raw), 0x7F
    if size < prefix:
        return bytes((size,)) + raw
    size, coded = size - prefix, [prefix]
    while size >= 0x80:  # noqa: PLR2004 - the continuation bit of the coding
        coded.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((*coded, size)) + raw
