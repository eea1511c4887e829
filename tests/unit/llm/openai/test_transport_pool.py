from __future__ import annotations

import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from yarl import URL

from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.request_heads import RequestHead
from reasond_server.llm.openai.transport import ConnectionPool
from tests.faults.upstream import GOOD, STREAM_HEAD, Conversation, refusing, streaming, upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(autouse=True)
def without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@asynccontextmanager
async def pool(address: str) -> AsyncIterator[ConnectionPool]:
    one = ConnectionPool(options=BackendOptions(name="main", model="m-1", base_url=address))
    try:
        yield one
    finally:
        await one.aclose()


def request_to(address: str) -> RequestHead:
    return RequestHead(url=URL(f"{address}/chat/completions"), headers={"accept": "*/*", "x-a": "1"})


async def first_line(one: ConnectionPool, address: str) -> bytes:
    answer = await one.send(request_to(address), b"{}", keeps=True)
    content = await answer.content.read()
    answer.close()
    return content


async def test_cookies_are_not_kept_and_redirects_not_followed() -> None:
    scripts = (refusing("302 Found", b"", "set-cookie: a=b", "location: /elsewhere"), streaming(*GOOD))
    async with upstream(*scripts) as server, pool(server.address) as one:
        answer = await one.send(request_to(server.address), b"{}", keeps=True)
        assert answer.status == 302
        answer.close()
        assert await first_line(one, server.address) == b"".join(GOOD)
        assert "cookie" not in server.conversations[1].head.lower()


async def test_a_proxy_of_the_environment_is_asked_for_the_whole_address(monkeypatch: pytest.MonkeyPatch) -> None:
    async with upstream(streaming(*GOOD)) as proxy:
        monkeypatch.setenv("http_proxy", proxy.address.removesuffix("/v1").removeprefix("http://"))
        async with pool("http://model.example/v1") as one:
            assert await first_line(one, "http://model.example/v1") == b"".join(GOOD)
        assert proxy.conversations[0].head.startswith("POST http://model.example/v1/chat/completions HTTP/1.1")


async def test_no_proxy_is_asked_for_what_the_environment_excepts(monkeypatch: pytest.MonkeyPatch) -> None:
    async with upstream(streaming(*GOOD)) as server:
        monkeypatch.setenv("all_proxy", "http://127.0.0.1:9")
        monkeypatch.setenv("no_proxy", "example.com,127.0.0.1")
        async with pool(server.address) as one:
            assert await first_line(one, server.address) == b"".join(GOOD)


async def test_an_answer_closed_before_its_end_closes_the_connection_and_one_read_whole_keeps_it() -> None:
    whole = b"data: 1\n\n"

    async def keep(conversation: Conversation) -> None:
        await conversation.send(STREAM_HEAD + b"content-length: %d\r\n\r\n" % len(whole) + whole)
        await conversation.until_gone()

    async def half(conversation: Conversation) -> None:
        await conversation.send(STREAM_HEAD + b"content-length: 100\r\n\r\n" + whole)
        await conversation.until_gone()

    async with upstream(keep) as server, pool(server.address) as one:
        assert await first_line(one, server.address) == whole
        assert not server.conversations[0].gone.is_set()
    async with upstream(half) as server, pool(server.address) as one:
        answer = await one.send(request_to(server.address), b"{}", keeps=True)
        assert await answer.content.read(1)
        answer.close()
        await server.conversations[0].until_gone()


def test_without_aiohttp_the_remedy_is_named() -> None:
    program = (
        "import sys\n"
        "sys.modules['aiohttp'] = None\n"
        "from reasond_server.llm.openai.backend_options import BackendOptions\n"
        "from reasond_server.llm.openai.transport import ConnectionPool\n"
        "try:\n"
        "    ConnectionPool(options=BackendOptions(name='a', model='m', base_url='http://x/v1'))\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error.remedy)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=180)
    assert done.stdout.strip() == "SettingsError Install reasond-server again: its dependencies are not complete."
