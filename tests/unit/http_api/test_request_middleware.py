"""The outermost layer, without a server, when the wrapped app fails or is cancelled."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import pytest

from reasond_server.http_api.request_middleware import RequestMiddleware

if TYPE_CHECKING:
    from reasond_server.http_api.exchange import ASGIApp, Message, Receive, Scope, Send

SCOPE = {"type": "http", "method": "GET", "path": "/x", "headers": [(b"x-request-id", b"trace-1")]}


async def never() -> Message:
    pytest.fail("nothing reads here")


class Sent(list["Message"]):
    """The messages that were sent."""

    async def __call__(self, message: Message) -> None:
        self.append(message)


async def serve(app: ASGIApp, sent: Sent) -> None:
    await RequestMiddleware(lambda _: app, new_call_id=lambda: "minted")(dict(SCOPE), never, sent)


async def test_a_request_that_is_cancelled_learns_that_the_server_shuts_down() -> None:
    has_begun = asyncio.Event()

    async def endless(_scope: Scope, _receive: Receive, _send: Send) -> None:
        has_begun.set()
        await asyncio.Event().wait()

    sent = Sent()
    task = asyncio.create_task(serve(endless, sent))
    await has_begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert sent[0]["status"] == 503
    assert (b"connection", b"close") in sent[0]["headers"]
    assert sent[1]["body"] == b'{"error":"the server is shutting down","request_id":"trace-1"}'


async def test_an_answer_that_has_begun_is_not_followed_by_another(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="reasond.http")

    async def half(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        message = "half way"
        raise LookupError(message)

    sent = Sent()
    with pytest.raises(LookupError):
        await serve(half, sent)
    assert len(sent) == 1
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]


async def test_a_stream_that_is_cancelled_is_not_followed_by_another_answer() -> None:
    has_begun = asyncio.Event()

    async def endless(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        has_begun.set()
        await asyncio.Event().wait()

    sent = Sent()
    task = asyncio.create_task(serve(endless, sent))
    await has_begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(sent) == 1
