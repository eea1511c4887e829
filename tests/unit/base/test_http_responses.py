from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import pytest

from reasond_server.base.http_responses import MAX_INTERIM, BoundedResponse
from tests.accepting import accepting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

HINTS = b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"


@asynccontextmanager
async def ask(*replies: bytes) -> AsyncIterator[tuple[aiohttp.ClientSession, str, list[asyncio.StreamWriter]]]:
    """Answer the n-th request with the n-th reply; yield a session, the address and the connections."""
    left, connections = list(replies), list[asyncio.StreamWriter]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(left.pop(0))
        except (ConnectionError, asyncio.IncompleteReadError):
            writer.close()

    async with (
        asyncio.timeout(120),
        accepting(serve) as port,
        aiohttp.ClientSession(response_class=BoundedResponse) as session,
    ):
        yield session, f"http://127.0.0.1:{port}/", connections


async def test_some_interim_responses_pass_and_the_connection_is_used_again() -> None:
    async with ask(OK, HINTS * MAX_INTERIM + OK, OK) as (session, address, connections):
        for _ in range(3):
            async with session.get(address) as response:
                assert await response.text() == "hello"
        assert len(connections) == 1


async def test_one_more_is_an_error_and_closes_the_connection() -> None:
    async with ask(HINTS * (MAX_INTERIM + 1) + OK, OK) as (session, address, connections):
        with pytest.raises(aiohttp.ClientResponseError, match="too many interim responses"):
            await session.get(address)
        async with session.get(address) as response:
            assert response.status == 200
        assert len(connections) == 2


async def test_a_total_time_limit_still_holds_while_the_headers_are_awaited() -> None:
    async with ask(HINTS) as (session, address, _):
        with pytest.raises(TimeoutError):
            await session.get(address, timeout=aiohttp.ClientTimeout(total=0.05))
