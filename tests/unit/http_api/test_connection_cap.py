"""The limit on the number of connections, over raw sockets."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

from reasond_server.http_api.connection_cap import ConnectionCap
from reasond_server.http_api.connections import ConnectionLimits
from reasond_server.http_api.exchange import ADMISSION_KEY, send_answer
from reasond_server.http_api.http_server import HttpServer
from tests.unit.http_api.test_connections import REQUEST, Endless, answer, hello

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import pytest

    from reasond_server.http_api.exchange import ASGIApp, Receive, Scope, Send

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


class Admitting(Endless):
    """Works for whoever asks as if the request had a valid token; says 503 to those who find no place."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/healthz" or not scope[ADMISSION_KEY]():
            status = 200 if scope["path"] == "/healthz" else 503
            await send_answer(send, status, b"{}")
            return
        await super().__call__(scope, receive, send)


async def ask(server: HttpServer, path: bytes, stack: AsyncExitStack) -> bytes:
    reader, writer = await open_to(server, stack)
    writer.write(REQUEST.replace(b"/", path, 1))
    return (await reader.readline())[9:12]


async def test_callers_with_a_token_keep_their_places_and_health_has_its_own() -> None:
    app = Admitting()
    async with serving(app) as server, AsyncExitStack() as stack:
        for _ in range(3):
            _, writer = await open_to(server, stack)
            app.is_working.clear()
            writer.write(REQUEST)
            await app.is_working.wait()
        for _ in range(5):
            await open_to(server, stack)
            assert await ask(server, b"/healthz", stack) == b"200"
        assert await ask(server, b"/", stack) == b"503"
        assert not app.was_cancelled.is_set()
        writer.close()
        await app.was_cancelled.wait()
        app.is_working.clear()
        _, writer = await open_to(server, stack)
        writer.write(REQUEST)
        await app.is_working.wait()


async def test_work_for_somebody_without_a_token_ends_where_its_place_is_needed() -> None:
    app = Endless()
    async with serving(app) as server, AsyncExitStack() as stack:
        reader, writer = await open_to(server, stack)
        writer.write(REQUEST)
        await app.is_working.wait()
        for _ in range(3):
            await open_to(server, stack)
        assert (await reader.readline()).startswith(b"HTTP/1.1 503 ")
        await app.was_cancelled.wait()


async def test_answers_that_nobody_reads_keep_nobody_out() -> None:
    stalled = asyncio.Queue[None]()

    async def flood(scope: Scope, _receive: Receive, send: Send) -> None:
        if scope["path"] == "/healthz":
            await send_answer(send, 200, b"{}")
            return
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(16 * 1024 * 1024), "more_body": True})
        stalled.put_nowait(None)
        await send({"type": "http.response.body", "body": b"end"})

    async with serving(flood) as server, AsyncExitStack() as stack:
        for _ in range(3):
            _, writer = await open_to(server, stack)
            writer.write(REQUEST)
            await stalled.get()
        assert await ask(server, b"/healthz", stack) == b"200"


class Connection:
    """A connection that notes whether it was closed."""

    is_closed = False

    def evict(self) -> None:
        self.is_closed = True


def test_one_network_pushes_out_its_own_connections_first() -> None:
    cap = ConnectionCap(most=3)
    other, *many = connections = [Connection() for _ in range(6)]
    for connection in connections:
        cap.enter(connection, "2001:db8::/64" if connection is other else "2001:db8:0:1::/64")
    assert [each.is_closed for each in (other, *many)] == [False, True, True, True, False, False]


def test_one_that_is_closed_takes_no_place_again() -> None:
    cap = ConnectionCap(most=1)
    first, second, third = Connection(), Connection(), Connection()
    cap.enter(first, "")
    cap.enter(second, "")
    cap.begin(first)
    cap.leave(first)
    assert cap.admit(first)
    assert cap.admit(second)
    cap.enter(third, "")
    assert not cap.admit(third)
    assert not second.is_closed


def test_it_is_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = 0.0
    cap = ConnectionCap(most=1, monotonic=lambda: now_s)
    for now_s in (0.0, 0.0, 1.0, 59.0, 60.0):  # noqa: B007 - the clock of the cap reads it
        cap.enter(Connection(), "")
    assert len(caplog.messages) == 2
