"""The listener: its address, its shutdown, and the signal handlers of its host, which it does not change."""

from __future__ import annotations

import asyncio
import signal
import socket
from typing import TYPE_CHECKING

import httpx
import pytest

from reasond_server.errors.base import SettingsError
from reasond_server.http_api.http_server import HttpServer
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from reasond_server.http_api.exchange import Receive, Scope, Send


class Slow:
    """Answers when the test allows it; records how its requests ended."""

    def __init__(self) -> None:
        self.has_begun = asyncio.Event()
        self.may_end = asyncio.Event()
        self.ends: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope, receive
        self.has_begun.set()
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.ends.append("cancelled")
            raise
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})
        self.ends.append("answered")


async def start(app: Slow, *, host: str = "127.0.0.1", port: int = 0) -> HttpServer:
    server = HttpServer(app=app, host=host, port=port)
    await server.start()
    return server


async def get(server: HttpServer, host: str = "127.0.0.1") -> httpx.Response:
    async with make_http_client() as client:
        return await client.get(f"http://{host}:{server.port}/")


async def wait_for_refusal(server: HttpServer) -> None:
    """Connect again and again until the connection is refused."""
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        except ConnectionRefusedError:
            return
        writer.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_port_zero_is_a_free_port_that_answers_at_once(host: str) -> None:
    app = Slow()
    app.may_end.set()
    server = await start(app, host=host)
    assert server.port > 0
    response = await get(server, host)
    assert (response.text, response.headers.get("server")) == ("ok", None)
    assert "date" in response.headers
    await server.stop(1)


async def test_what_is_written_is_sent_at_once() -> None:
    app = Slow()
    server = await start(app)
    request = asyncio.create_task(get(server))
    await asyncio.wait_for(app.has_begun.wait(), 120)
    assert server._server is not None
    (connection,) = server._server.server_state.connections
    accepted = connection.transport.get_extra_info("socket")
    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    app.may_end.set()
    assert (await request).text == "ok"
    await server.stop(1)


async def test_ipv6_is_served_where_there_is_any() -> None:
    app = Slow()
    app.may_end.set()
    try:
        server = await start(app, host="::1")
    except SettingsError:
        pytest.skip("this machine has no IPv6")
    assert (await get(server, "[::1]")).text == "ok"
    await server.stop(1)


async def test_a_port_in_use_is_refused_with_its_address_and_a_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError) as caught:
            await start(Slow(), port=port)
    assert f"'127.0.0.1:{port}'" in caught.value.message
    assert "http_address" in caught.value.remedy


async def test_a_host_that_is_not_of_this_machine_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"192\.0\.2\.1"):
        await start(Slow(), host="192.0.2.1")


async def test_signals_stay_with_the_host() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    server = await start(Slow())
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    await server.stop(0)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


async def test_stopping_lets_requests_in_progress_end_and_takes_no_more() -> None:
    app = Slow()
    server = await start(app)
    request = asyncio.create_task(get(server))
    await asyncio.wait_for(app.has_begun.wait(), 120)
    stopping = asyncio.create_task(server.stop(3600))
    await asyncio.wait_for(wait_for_refusal(server), 120)
    app.may_end.set()
    assert (await request).text == "ok"
    await asyncio.wait_for(stopping, 120)
    assert app.ends == ["answered"]


async def test_what_outlasts_the_grace_is_cancelled_and_cut_off() -> None:
    app = Slow()
    server = await start(app)
    request = asyncio.create_task(get(server))
    await asyncio.wait_for(app.has_begun.wait(), 120)
    await asyncio.wait_for(server.stop(0), 120)
    assert app.ends == ["cancelled"]
    (outcome,) = await asyncio.gather(request, return_exceptions=True)
    assert isinstance(outcome, httpx.HTTPError) or (isinstance(outcome, httpx.Response) and outcome.is_error)


async def test_a_second_stop_with_less_grace_ends_the_first() -> None:
    app = Slow()
    server = await start(app)
    request = asyncio.create_task(get(server))
    await asyncio.wait_for(app.has_begun.wait(), 120)
    patient = asyncio.create_task(server.stop(3600))
    await asyncio.wait_for(server.stop(0), 120)
    await asyncio.wait_for(patient, 120)
    await asyncio.gather(request, return_exceptions=True)


async def test_an_idle_connection_does_not_hold_up_the_end() -> None:
    server = await start(Slow())
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    await asyncio.wait_for(server.stop(3600), 120)
    writer.close()


async def test_stopping_what_never_started_does_nothing() -> None:
    await HttpServer(app=Slow(), host="127.0.0.1", port=0).stop(0)
