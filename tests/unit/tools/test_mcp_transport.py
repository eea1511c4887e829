from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import httpx2
import pytest

from reasond_server.tools.mcp_transport import MAX_BODY_BYTES, BoundedTransport
from tests.accepting import accepting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ntransfer-encoding: chunked\r\n\r\n"
PIECE = b"10000\r\n" + bytes(65_536) + b"\r\n"
MANY = MAX_BODY_BYTES // 65_536
END = b"0\r\n\r\n"


@asynccontextmanager
async def client_of(*parts: bytes, repeats: bool = False, timeout_s: float = 60) -> AsyncIterator[httpx2.AsyncClient]:
    """Answer every request with `parts`, the last of which is sent for ever if it `repeats`."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            for part in parts:
                writer.write(part)
                await writer.drain()
            while repeats:
                writer.write(parts[-1])
                await writer.drain()
        writer.close()

    transport = BoundedTransport(httpx2.AsyncHTTPTransport(), timeout_s=timeout_s)
    async with (
        asyncio.timeout(120),
        accepting(serve) as port,
        httpx2.AsyncClient(transport=transport, base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
    ):
        yield client


async def test_a_document_of_the_most_bytes_comes_whole() -> None:
    async with client_of(HEAD % b"application/json", *[PIECE] * MANY, END) as client:
        assert len((await client.get("/")).content) == MAX_BODY_BYTES


async def test_a_document_without_end_is_an_error() -> None:
    async with client_of(HEAD % b"application/json", PIECE, repeats=True) as client:
        with pytest.raises(httpx2.ReadError, match="over 16777216 bytes"):
            await client.get("/")


async def test_events_may_be_longer_than_a_document() -> None:
    async with client_of(HEAD % b"text/event-stream; charset=utf-8", *[PIECE] * (MANY + 1), END) as client:
        assert len((await client.get("/")).content) == MAX_BODY_BYTES + 65_536


async def test_interim_responses_without_end_are_not_followed_for_longer_than_the_call_may_take() -> None:
    async with client_of(b"HTTP/1.1 103 Early Hints\r\n\r\n", repeats=True, timeout_s=0.1) as client:
        with pytest.raises(httpx2.ReadTimeout, match=r"no headers within 0\.1 s"):
            await client.get("/")


async def test_a_document_that_trickles_in_is_not_waited_for_longer_than_the_call_may_take() -> None:
    async with client_of(HEAD % b"application/json", b"1\r\n \r\n", repeats=True, timeout_s=0.5) as client:
        with pytest.raises((httpx2.ReadTimeout, httpx2.ReadError)):
            await client.get("/")
