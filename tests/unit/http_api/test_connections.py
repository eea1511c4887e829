"""What a hostile peer can do to a connection, over raw sockets."""

from __future__ import annotations

import asyncio
import http.client
import logging
import urllib.error
import urllib.request
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

import pytest

from reasond_server.http_api.connections import ConnectionLimits, find_disconnect, run_unless_disconnected
from reasond_server.http_api.exchange import WHOLE_BODY_KEY, ClientGoneError
from reasond_server.http_api.http_server import HttpServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from reasond_server.http_api.exchange import ASGIApp, Receive, Scope, Send

REQUEST = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
SOON = ConnectionLimits(header_timeout_s=0.1)
SMALL = ConnectionLimits(max_header_bytes=1000)


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, then answer with the number of received headers."""
    while (await receive()).get("more_body"):
        pass
    body = b"%d headers" % len(scope["headers"])
    length = b"%d" % len(body)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": body})


@asynccontextmanager
async def connect(
    limits: ConnectionLimits, app: ASGIApp = hello, *, on_slow: Callable[[], None] = lambda: None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    server = HttpServer(app=app, host="127.0.0.1", port=0, limits=limits, on_slow=on_slow)
    await server.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        async with asyncio.timeout(120):
            yield reader, writer
    finally:
        writer.close()
        await server.stop(0)


async def answer(reader: asyncio.StreamReader) -> bytes:
    """Read one answer of `hello`, body included."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    return head + await reader.readexactly(len(b"1 headers"))


@pytest.mark.parametrize("begun", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\n", b"\r\n"])
async def test_a_client_that_does_not_end_its_headers_is_cut_off(begun: bytes) -> None:
    async with connect(SOON) as (reader, writer):
        writer.write(begun)
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")


async def test_bytes_between_requests_do_not_keep_a_connection_open() -> None:
    async with connect(SOON) as (reader, writer):
        writer.write(REQUEST)
        await answer(reader)
        writer.write(b"\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")


async def test_the_next_request_has_a_clock_of_its_own() -> None:
    async with connect(SOON) as (reader, writer):
        for _ in range(3):
            writer.write(REQUEST)
            await answer(reader)
        writer.write(REQUEST[:20])
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    "begun",
    [b"GET /" + b"x" * 2000, b"GET / HTTP/1.1\r\nx: " + b"x" * 2000, b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 400],
)
async def test_headers_without_end_are_refused(begun: bytes) -> None:
    async with connect(SMALL) as (reader, writer):
        writer.write(begun)
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")


async def test_headers_are_counted_for_each_request_and_bodies_are_not() -> None:
    async with connect(SMALL) as (reader, writer):
        for _ in range(3):
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\n")
            await writer.drain()
            writer.write(b"x" * 5000)
            assert (await answer(reader)).endswith(b"2 headers")


async def test_the_application_is_told_whether_the_whole_body_has_arrived() -> None:
    has_arrived: list[bool] = []
    third_began = asyncio.Event()

    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        has_arrived.append(WHOLE_BODY_KEY in scope)
        if len(has_arrived) == 3:
            third_began.set()
        await hello(scope, receive, send)

    async with connect(SOON, noting) as (reader, writer):
        head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n"
        writer.write(REQUEST + head + b"ab" + head + b"a")
        for _ in range(2):
            await answer(reader)
        await third_began.wait()
        writer.write(b"b")
        await answer(reader)
    assert has_arrived == [True, True, False]


async def test_trailers_are_dropped() -> None:
    async with connect(SMALL) as (reader, writer):
        head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"1\r\nx\r\n0\r\nx-evil: 1\r\n\r\n")
        assert (await answer(reader)).endswith(b"2 headers")


async def test_trailers_without_end_are_kept_nowhere() -> None:
    seen: list[Scope] = []

    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await hello(scope, receive, send)

    async with connect(SMALL, noting) as (reader, writer):
        head = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"1\r\nx\r\n0\r\n" + b"x-evil: 1\r\n" * 10_000 + b"\r\n")
        assert (await answer(reader)).endswith(b"2 headers")
        (scope,) = seen
        assert len(scope["headers"]) == 2


class Endless:
    """Reads the body, then works until its client leaves."""

    def __init__(self) -> None:
        self.is_working = asyncio.Event()
        self.was_cancelled = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del send
        while (await receive()).get("more_body"):
            pass
        try:
            await run_unless_disconnected(self._work(), find_disconnect(scope))
        except ClientGoneError:
            self.was_cancelled.set()

    async def _work(self) -> None:
        self.is_working.set()
        await asyncio.Event().wait()


def post_of(size: int) -> bytes:
    """Return a request with a body of `size` bytes."""
    return b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % size + bytes(size)


# uvicorn stops reading at 64 KiB of a body.
@pytest.mark.parametrize("sent", [REQUEST, post_of(200_000), post_of(1_000_000)], ids=["no body", "200 KB", "1 MB"])
@pytest.mark.parametrize("waiting", [b"", REQUEST, post_of(1000)], ids=["alone", "one waits", "one with a body waits"])
async def test_who_leaves_in_the_middle_of_a_request_is_told_of_at_once(
    sent: bytes, waiting: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    app = Endless()
    async with connect(ConnectionLimits(), app) as (_, writer):
        writer.write(sent)
        await app.is_working.wait()
        writer.write(waiting)
        writer.close()
        await app.was_cancelled.wait()
    assert caplog.messages == []


async def test_of_two_requests_at_once_the_one_that_is_worked_on_is_told() -> None:
    app = Endless()
    async with connect(ConnectionLimits(), app) as (_, writer):
        writer.write(REQUEST * 2)
        await app.is_working.wait()
        writer.close()
        await app.was_cancelled.wait()


async def test_leaving_in_the_middle_of_a_second_request_that_waited_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = Endless()

    async def first_answered(scope: Scope, receive: Receive, send: Send) -> None:
        await (hello if scope["path"] == "/first" else app)(scope, receive, send)

    async with connect(ConnectionLimits(), first_answered) as (reader, writer):
        writer.write(REQUEST.replace(b"/", b"/first", 1) + REQUEST * 2)
        await answer(reader)
        await app.is_working.wait()
        writer.close()
        await app.was_cancelled.wait()
    assert caplog.messages == []


async def test_requests_sent_at_once_are_answered_one_after_the_other() -> None:
    async with connect(SOON) as (reader, writer):
        writer.write(REQUEST * 3)
        for _ in range(3):
            await answer(reader)


async def test_what_is_not_http_is_refused() -> None:
    async with connect(SOON) as (reader, writer):
        writer.write(b"\x16\x03\x01 this is TLS\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")


async def test_a_client_that_reads_nothing_is_cut_off_and_the_application_told() -> None:
    was_told = asyncio.Event()

    async def flood(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        leaving = asyncio.create_task(_wait_for_departure(receive))
        while not leaving.done():
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
        was_told.set()

    async def _wait_for_departure(receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    async with connect(ConnectionLimits(write_timeout_s=0.1), flood) as (_, writer):
        writer.write(REQUEST)
        await was_told.wait()


async def test_cutting_off_a_client_that_reads_nothing_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    is_over = asyncio.Event()

    async def flood(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        leaving = asyncio.ensure_future(receive())
        while not leaving.done():
            await send({"type": "http.response.body", "body": b"x" * 100_000, "more_body": True})
        is_over.set()

    slow: list[str] = []
    with caplog.at_level(logging.INFO, logger="reasond.http"):
        limits = ConnectionLimits(write_timeout_s=0.1)
        async with connect(limits, flood, on_slow=lambda: slow.append("one")) as (_, writer):
            writer.write(REQUEST)
            await is_over.wait()

    assert "a client that took nothing for 0.1 s was cut off (SLOW_CONSUMER)" in caplog.messages
    assert slow == ["one"]


async def test_a_client_that_reads_slowly_is_waited_for() -> None:
    total = 20_000_000

    async def large(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        length = b"%d" % total
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        for _ in range(20):
            await send({"type": "http.response.body", "body": b"x" * (total // 20), "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async with connect(ConnectionLimits(write_timeout_s=5), large) as (reader, writer):
        writer.write(REQUEST)
        await reader.readuntil(b"\r\n\r\n")
        assert len(await reader.readexactly(total)) == total


async def test_headers_over_the_limit_are_refused_though_they_come_whole_and_with_a_body() -> None:
    async def never(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise AssertionError("the application was asked")

    async with connect(SMALL, never) as (reader, writer):
        large = b"POST / HTTP/1.1\r\nhost: x\r\nx-large: " + b"y" * 1001
        writer.write(large + b"\r\ncontent-length: 4\r\n\r\nbody")
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")


TOO_LARGE = b"POST / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"


async def refuse(_scope: Scope, _receive: Receive, send: Send) -> None:
    """Answer every request with 413."""
    await send({"type": "http.response.start", "status": 413, "headers": [(b"content-length", b"3")]})
    await send({"type": "http.response.body", "body": b"no!"})


@asynccontextmanager
async def refusing() -> AsyncIterator[int]:
    server = HttpServer(app=refuse, host="127.0.0.1", port=0)
    await server.start()
    try:
        async with asyncio.timeout(120):
            yield server.port
    finally:
        await server.stop(0)


def told_by_urllib(port: int, body: bytes) -> tuple[int, bytes]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", data=body, timeout=180)
    with caught.value as error:
        return error.code, error.read()


def told_by_http_client(port: int, body: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=180)
    with closing(connection):
        connection.request("POST", "/", body, {"connection": "close"})
        response = connection.getresponse()
        return response.status, response.read()


@pytest.mark.parametrize("told", [told_by_urllib, told_by_http_client])
async def test_a_client_that_sends_all_before_it_reads_is_told_why_it_was_refused(
    told: Callable[[int, bytes], tuple[int, bytes]],
) -> None:
    async with refusing() as port:
        assert await asyncio.to_thread(told, port, b"x" * 10_000_000) == (413, b"no!")


async def send_for_ever(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"x" * 65_536)
        await writer.drain()


async def test_a_client_that_does_not_end_what_was_refused_is_not_read_for_long() -> None:
    async with connect(ConnectionLimits(), refuse) as (reader, writer):
        writer.write(TOO_LARGE + b"content-length: 1000000000000\r\n\r\n")
        assert (await reader.read()).endswith(b"no!")
        with pytest.raises(ConnectionError):
            await send_for_ever(writer)


QUESTION = b'{"a": 1}'


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the path, the body and whether the request asked for an upgrade."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    asked = b"upgrade" in dict(scope["headers"])
    said = b"%s %s %s" % (scope["path"].encode(), body, b"asked" if asked else b"plain")
    length = b"%d" % len(said)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": said})


async def read_answer(reader: asyncio.StreamReader) -> bytes:
    """Read one answer of `echo`; return its body."""
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 "), head
    return await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))


WISHES = [
    b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n",
    b"upgrade: websocket\r\nconnection: upgrade\r\n",
    b"connection: keep-alive, Upgrade\r\nupgrade: TLS/1.2\r\n",
]
BODIES = {
    "sized": b"content-length: 8\r\n\r\n" + QUESTION,
    "chunked": b"transfer-encoding: chunked\r\n\r\n5\r\n"
    + QUESTION[:5]
    + b"\r\n3\r\n"
    + QUESTION[5:]
    + b"\r\n0\r\n\r\n",
}


@pytest.mark.parametrize("wish", WISHES, ids=["h2c", "websocket", "tls"])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("piece", [1, 7, 100_000])
async def test_a_request_that_asks_for_an_upgrade_is_answered_as_any_other(
    wish: bytes, body: bytes, piece: int
) -> None:
    sent = b"POST /one HTTP/1.1\r\nhost: x\r\n" + wish + body + REQUEST.replace(b"/ ", b"/two ", 1)
    async with connect(ConnectionLimits(), echo) as (reader, writer):
        for start in range(0, len(sent), piece):
            writer.write(sent[start : start + piece])
            await asyncio.sleep(0)
        assert await read_answer(reader) == b"/one " + QUESTION + b" plain"
        assert await read_answer(reader) == b"/two  plain"


async def test_connect_is_refused_and_what_follows_is_no_request() -> None:
    async with connect(ConnectionLimits(), echo) as (reader, writer):
        writer.write(b"CONNECT x:1 HTTP/1.1\r\nhost: x:1\r\n\r\n" + REQUEST)
        answered = await reader.read()
    assert answered.startswith(b"HTTP/1.1 405 ")
    assert answered.count(b"HTTP/1.1") == 1


async def test_small_requests_in_one_large_piece_are_all_answered() -> None:
    many = 60
    begun = REQUEST[:10]
    async with connect(SMALL, echo) as (reader, writer):
        writer.write(REQUEST * many + begun)
        for _ in range(many):
            await read_answer(reader)
        writer.write(REQUEST[10:])
        await read_answer(reader)


async def test_requests_without_end_ahead_of_their_answers_are_kept_nowhere() -> None:
    served: list[str] = []

    async def count(scope: Scope, receive: Receive, send: Send) -> None:
        served.append(scope["path"])
        await hello(scope, receive, send)

    async with connect(ConnectionLimits(), count) as (reader, writer):
        writer.write(REQUEST * 2_000)
        answers = await reader.read()
    assert len(served) == 65
    assert answers.count(b"HTTP/1.1 200 ") == 65
    assert answers.count(b"HTTP/1.1 429 ") == 1
    assert b"HTTP/1.1 200 " not in answers.split(b"HTTP/1.1 429 ")[1]


async def test_large_headers_after_a_small_request_are_refused_once_that_is_answered() -> None:
    large = b"GET / HTTP/1.1\r\nhost: x\r\nx-large: " + b"y" * 1001 + b"\r\n\r\n"
    async with connect(SMALL, echo) as (reader, writer):
        writer.write(REQUEST + large + REQUEST)
        await read_answer(reader)
        refused = await reader.read()
    assert refused.startswith(b"HTTP/1.1 431 ")
    assert refused.count(b"HTTP/1.1") == 1


async def test_headers_without_end_after_a_small_request_are_refused() -> None:
    async with connect(SMALL, echo) as (reader, writer):
        writer.write(REQUEST + b"GET / HTTP/1.1\r\nx: ")
        await read_answer(reader)
        for _ in range(3):
            writer.write(b"y" * 500)
            await writer.drain()
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nhost: x\r\nHost: y\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nhost: x\r\nhost: x\r\n\r\n", b"400"),
        (b"GET / HTTP/1.0\r\nhost: x\r\nhost: y\r\n\r\n", b"400"),
        (b"GET / HTTP/1.0\r\n\r\n", b"200"),
        (b"GET / HTTP/1.1\r\nhost:\r\n\r\n", b"200"),
    ],
)
async def test_a_request_names_one_host(sent: bytes, status: bytes) -> None:
    async with connect(ConnectionLimits(), echo) as (reader, writer):
        writer.write(sent)
        assert (await reader.readuntil(b"\r\n")).split()[1] == status
