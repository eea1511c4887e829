"""Peers over raw HTTP/2 that do not acknowledge SETTINGS: until then, gRPC limits no calls and no metadata."""

from __future__ import annotations

import asyncio
import gc
import struct
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

import pytest

from benchmarks.hostile import (
    ACK,
    END_HEADERS,
    HEADERS,
    PREFACE,
    SETTINGS,
    call_headers,
    frame,
    large_metadata,
    literal,
)
from tests.unit.grpc_api.parts import new_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

GREETING = PREFACE + frame(SETTINGS, 0, 0)
# The limit of gRPC itself is 60 s.
SOONER_THAN_GRPC_S = 50.0


@asynccontextmanager
async def connect() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    server = new_server()
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        await server.stop(0)


@pytest.mark.parametrize("sent", [b"", PREFACE[:5], PREFACE, GREETING, GREETING + large_metadata(1)])
async def test_who_does_not_acknowledge_the_settings_is_cut_off(sent: bytes) -> None:
    async with connect() as (reader, writer):
        writer.write(sent)
        async with asyncio.timeout(SOONER_THAN_GRPC_S):
            while await reader.read(65_536):
                pass


async def test_who_acknowledges_them_stays() -> None:
    async with connect() as (reader, writer), connect() as (other, silent):
        writer.write(GREETING + frame(SETTINGS, ACK, 0))
        silent.write(GREETING)
        while await other.read(65_536):
            pass
        # The other connection has been closed; this one still receives answers.
        writer.write(frame(6, 0, 0, b"a ping. "))
        received = b""
        while not received.endswith(b"a ping. "):
            received += await reader.readexactly(1)


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Disable the automatic garbage collection."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def large_texts_in_tuples() -> int:
    """Return how many metadata pairs with a large value are still in memory."""
    return sum(
        1
        for found in gc.get_objects()
        if isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], str) and len(found[1]) > 900_000
    )


async def test_the_metadata_of_refused_calls_are_not_kept() -> None:
    with collector_at_rest():
        async with connect() as (reader, writer):
            writer.write(GREETING + b"".join(large_metadata(stream) for stream in range(1, 41, 2)))
            while await reader.read(65_536):
                pass
            async with asyncio.timeout(120):
                while large_texts_in_tuples():  # noqa: ASYNC110 - the collector announces nothing
                    await asyncio.sleep(0.1)


def test_lengths_are_written_as_hpack_has_them() -> None:
    assert literal("a", "b") == b"\0\x01a\x01b"
    assert literal("a", "b" * 127)[3:5] == b"\x7f\x00"
    assert literal("a", "b" * 1337)[3:6] == b"\x7f" + bytes((1210 & 127 | 128, 1210 >> 7))
    assert len(call_headers()) < 200
    assert struct.unpack(">I", b"\0" + large_metadata(1)[:3])[0] == 16_384


def repeat_pair(stream: int, *, value: str = "b", times: int = 10_000) -> bytes:
    """Return a call whose metadata repeat one pair, in one byte each: HPACK names a pair that it has seen by number."""
    block = call_headers() + b"\x40" + literal("x", value)[1:] + b"\xbe" * times
    return frame(HEADERS, END_HEADERS, stream, block)


async def read_until(reader: asyncio.StreamReader, wanted: bytes) -> bytes:
    received = b""
    while wanted not in received:
        received += await reader.read(65_536)
        assert received
    return received


@pytest.mark.parametrize("value", ["", "b" * 50])
async def test_metadata_over_the_limit_are_refused_before_a_message_comes(value: str) -> None:
    async with asyncio.timeout(SOONER_THAN_GRPC_S), connect() as (reader, writer):
        writer.write(GREETING + repeat_pair(1, value=value))
        # grpc-status 3 is INVALID_ARGUMENT; it comes though the call has no message and does not end.
        answer = await read_until(reader, b"max_metadata_bytes")
        assert b"8192 bytes" in answer
