"""Connections that show no token and keep what they hold: others are served all the same."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from reasond_server.http_api.connections import ConnectionLimits
from reasond_server.http_api.http_app import HttpLimits
from tests.unit.http_api.parts import Site, serve

PLACES = 20
PATH = b"POST /api/v1/jsonrpc HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
CALL = json.dumps({"jsonrpc": "2.0", "method": "reasoning.list_strategies", "id": 1}).encode()
HELD = {
    "half a body": PATH + b"content-length: 200\r\n\r\n{",
    "half a body with a token that is not valid": PATH + b"authorization: Bearer x\r\ncontent-length: 200\r\n\r\n{",
    "half a body in chunks": PATH + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n",
    "half a header": PATH,
    "nothing": b"",
}


async def connect(site: Site, sent: bytes, stack: AsyncExitStack) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.server.port)
    stack.callback(writer.close)
    writer.write(sent)
    return reader, writer


async def status_of(site: Site, *parts: bytes, stack: AsyncExitStack) -> bytes:
    """Send the parts of a request, the next one when the server waits for it, and return the status of the answer."""
    reader, writer = await connect(site, b"", stack)
    for part in parts:
        writer.write(part)
        await writer.drain()
        # One exchange of others shows that the part before has been read.
        assert (await site.client.get("/healthz")).status_code == 200
    return (await reader.readline())[9:12]


def call_of(token: str) -> bytes:
    return PATH + b"authorization: Bearer %s\r\ncontent-length: %d\r\n\r\n" % (token.encode(), len(CALL))


@pytest.mark.parametrize("held", HELD.values(), ids=HELD)
async def test_who_holds_all_places_without_a_token_keeps_nobody_out(held: bytes) -> None:
    async with asyncio.timeout(120), AsyncExitStack() as stack:
        site = await serve(stack, connections=ConnectionLimits(max_connections=PLACES))
        for _ in range(2 * PLACES):
            await connect(site, held, stack)
        for path in ("/healthz", "/readyz"):
            assert (await site.client.get(path)).status_code == 200
        assert "result" in await site.call("reasoning.list_strategies")
        call = call_of(site.token())
        assert await status_of(site, call, CALL, stack=stack) == b"200"


async def test_half_a_body_with_a_valid_token_keeps_its_place() -> None:
    async with asyncio.timeout(120), AsyncExitStack() as stack:
        site = await serve(stack, connections=ConnectionLimits(max_connections=PLACES))
        reader, writer = await connect(site, call_of(site.token()), stack)
        await site.client.get("/healthz")
        for _ in range(2 * PLACES):
            await connect(site, HELD["half a body"], stack)
        await site.client.get("/healthz")
        writer.write(CALL)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")


async def test_large_bodies_under_way_without_a_token_leave_room_for_those_with_one() -> None:
    most = 10_000
    half = PATH + b"content-length: %d\r\n\r\n" % most + bytes(most - 1)
    async with asyncio.timeout(120), AsyncExitStack() as stack:
        site = await serve(stack, limits=HttpLimits(max_body_bytes=most, max_requests=10))
        first, _ = await connect(site, half, stack)
        for _ in range(30):
            await connect(site, half, stack)
        assert await status_of(site, call_of(site.token()), CALL, stack=stack) == b"200"
        # The oldest had to go.
        assert (await first.readline()).startswith(b"HTTP/1.1 503 ")
        assert "result" in await site.call("reasoning.list_strategies")
