"""The limit on the number of connections, over raw sockets."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from reasond_server.http_api.connection_cap import ConnectionCap
from reasond_server.http_api.connections import ConnectionLimits
from reasond_server.http_api.http_server import HttpServer
from tests.unit.http_api.test_connections import REQUEST, Endless, answer, hello

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

    from reasond_server.http_api.exchange import ASGIApp

THREE = ConnectionLimits(max_connections=3)
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def serving(app: ASGIApp = hello) -> AsyncIterator[HttpServer]:
    server = HttpServer(app=app, host="127.0.0.1", port=0, limits=THREE)
    await server.start()
    try:
        async with asyncio.timeout(120):
            yield server
    finally:
        await server.stop(0)


async def open_to(server: HttpServer, stack: AsyncExitStack) -> Streams:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    stack.callback(writer.close)
    return reader, writer


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read() == b""
    except ConnectionError:
        return True


async def test_one_more_takes_the_place_of_the_one_that_is_idle_longest(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="reasond.http"):
        async with serving() as server, AsyncExitStack() as stack:
            used, silent, *_ = held = [await open_to(server, stack) for _ in range(3)]
            for reader, writer in (held[2], used):
                writer.write(REQUEST)
                await answer(reader)
            for _ in range(2):
                reader, writer = await open_to(server, stack)
                writer.write(REQUEST)
                await answer(reader)
            assert await is_closed(silent[0])
            assert await is_closed(held[2][0])
            used[1].write(REQUEST)
            await answer(used[0])
    (line,) = caplog.messages
    assert "max_http_connections" in line


async def test_who_is_worked_for_keeps_the_place_and_one_more_is_refused() -> None:
    app = Endless()
    async with serving(app) as server, AsyncExitStack() as stack:
        for _ in range(3):
            _, writer = await open_to(server, stack)
            app.is_working.clear()
            writer.write(REQUEST)
            await app.is_working.wait()
        reader, _ = await open_to(server, stack)
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")
        writer.close()
        await app.was_cancelled.wait()
        app.is_working.clear()
        _, writer = await open_to(server, stack)
        writer.write(REQUEST)
        await app.is_working.wait()


class Connection:
    """A connection that closes only if it has nothing left to send."""

    def __init__(self, *, sends: bool = False) -> None:
        self.sends = sends
        self.is_closed = False

    def close_if_idle(self) -> bool:
        self.is_closed = not self.sends
        return self.is_closed


def test_one_that_still_sends_is_spared() -> None:
    cap = ConnectionCap(most=2)
    sends, idle, third = Connection(sends=True), Connection(), Connection()
    assert cap.enter(sends)
    assert cap.enter(idle)
    assert cap.enter(third)
    assert (sends.is_closed, idle.is_closed) == (False, True)


def test_one_that_is_closed_takes_no_place_again() -> None:
    cap = ConnectionCap(most=1)
    first, second, third = Connection(), Connection(), Connection()
    cap.enter(first)
    cap.enter(second)
    cap.rest(first)
    cap.leave(first)
    cap.begin(second)
    assert not cap.enter(third)


def test_it_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    cap = ConnectionCap(most=1, monotonic=lambda: now_s)
    for now_s in (0.0, 1.0, 59.0, 60.0):  # noqa: B007 - the clock of the cap reads it
        cap.enter(Connection())
    assert len(caplog.messages) == 1
