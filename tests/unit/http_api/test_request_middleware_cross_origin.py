"""Pages of the origins that the operator names may call, and no others."""

from __future__ import annotations

import asyncio
import http.client
from contextlib import asynccontextmanager, closing
from typing import TYPE_CHECKING

import pytest

from reasond_server.config.settings import ServerSettings
from reasond_server.http_api.exchange import send_answer
from reasond_server.http_api.http_server import HttpServer
from reasond_server.http_api.request_middleware import CrossOriginApp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from reasond_server.http_api.exchange import Receive, Scope, Send

PAGE = "https://app.example"
ASKED = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    del receive
    await send_answer(send, 405 if scope["method"] == "OPTIONS" else 200, b"{}", headers=[(b"retry-after", b"1")])


@asynccontextmanager
async def serve() -> AsyncIterator[int]:
    server = HttpServer(app=CrossOriginApp(refuse, origins=[PAGE, "http://127.0.0.1:3000"]), host="127.0.0.1", port=0)
    await server.start()
    try:
        yield server.port
    finally:
        await server.stop(0)


async def ask(port: int, method: str, headers: Mapping[str, str]) -> tuple[int, Mapping[str, str]]:
    def call() -> tuple[int, Mapping[str, str]]:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as line:
            line.request(method, "/api/v1/jsonrpc", headers=dict(headers))
            answer = line.getresponse()
            answer.read()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}

    return await asyncio.to_thread(call)


async def test_a_page_of_a_named_origin_is_told_that_it_may_call() -> None:
    async with serve() as port:
        status, headers = await ask(port, "OPTIONS", {"Origin": PAGE, **ASKED})
    assert status == 204
    assert headers["access-control-allow-origin"] == PAGE
    assert headers["access-control-allow-headers"] == "authorization,content-type"
    assert "POST" in headers["access-control-allow-methods"]
    assert "access-control-allow-credentials" not in headers


async def test_its_calls_are_answered_with_headers_that_it_may_read() -> None:
    async with serve() as port:
        status, headers = await ask(port, "POST", {"Origin": PAGE})
    assert status == 200
    assert headers["access-control-allow-origin"] == PAGE
    assert headers["vary"] == "origin"
    assert "retry-after" in headers["access-control-expose-headers"]


@pytest.mark.parametrize("origin", ["https://app.example.evil", "https://APP.example", "null", "", "*"])
async def test_other_origins_are_told_nothing(origin: str) -> None:
    async with serve() as port:
        status, headers = await ask(port, "OPTIONS", {"Origin": origin, **ASKED})
    assert status == 405
    assert not [name for name in headers if name.startswith("access-control")]


@pytest.mark.parametrize("origin", ["*", "app.example", "https://app.example/", "https://a b", "null", "ftp://x"])
def test_what_is_no_origin_is_refused_as_one(origin: str) -> None:
    with pytest.raises(ValueError, match="cors_origins"):
        ServerSettings.model_validate({"cors_origins": [origin]})
