from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.errors.base import SettingsError
from reasond_server.errors.model import ModelProtocolError, ModelTimeoutError, ModelUnavailableError
from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.faults import UpstreamFaultError
from reasond_server.llm.openai.transport import OpenAITransport, Upstream
from reasond_server.telemetry.propagation import OutgoingTrace, TraceContext
from tests.faults.backend import KEY, NOW
from tests.faults.upstream import GOOD, STREAM_HEAD, Conversation, refusing, streaming, upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@asynccontextmanager
async def transport(address: str, **options: Any) -> AsyncIterator[OpenAITransport]:
    chosen = {"name": "main", "model": "m-1", "base_url": address, "api_key": KEY} | options
    one = OpenAITransport(options=BackendOptions(**chosen), now=lambda: NOW)
    try:
        yield one
    finally:
        await one.aclose()


async def read(one: OpenAITransport, path: str = "chat/completions") -> bytes:
    return await read_whole(await one.open(path, {"model": "m-1"}))


async def read_whole(answer: Upstream) -> bytes:
    try:
        content = b""
        while piece := await answer.read():
            content += piece
        return content
    finally:
        await answer.aclose()


async def test_the_body_comes_as_the_server_wrote_it() -> None:
    async with upstream(streaming(*GOOD)) as server, transport(server.address) as one:
        assert await read(one) == b"".join(GOOD)
        (asked,) = server.conversations
        assert asked.head.startswith("POST /v1/chat/completions HTTP/1.1")
        assert f"authorization: Bearer {KEY}" in asked.head
        assert "accept-encoding: identity" in asked.head
        assert asked.json == {"model": "m-1"}


async def test_the_packages_below_log_no_request_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with upstream(streaming(*GOOD)) as server, transport(server.address) as one:
        await read(one)
        assert len(server.conversations) == 1
    assert [record.getMessage() for record in caplog.records if record.name != "asyncio"] == []


async def test_a_break_in_the_body_is_told() -> None:
    async def break_off(conversation: Conversation) -> None:
        await conversation.send(STREAM_HEAD + b"content-length: 100\r\n\r\n" + GOOD[0])
        conversation.abort()

    async with upstream(break_off) as server, transport(server.address) as one:
        answer = await one.open("chat/completions", {"model": "m-1"})
        with pytest.raises(UpstreamFaultError, match="broke the connection in the middle"):
            await read_whole(answer)


async def test_without_a_key_none_is_sent_whatever_the_environment_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-someone")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-someone")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-of-someone")
    async with upstream(streaming(*GOOD)) as server, transport(server.address, api_key="") as one:
        await read(one)
        head = server.conversations[0].head.lower()
        assert "authorization" not in head
        assert "of-someone" not in head


async def test_azure_is_asked_at_its_deployment_with_its_own_header() -> None:
    async with upstream(streaming(*GOOD)) as server:
        root = server.address.removesuffix("/v1")
        async with transport(root, azure_api_version="2026-01-01") as one:
            await read(one)
        head = server.conversations[0].head
        assert head.startswith("POST /openai/deployments/m-1/chat/completions?api-version=2026-01-01 ")
        assert f"api-key: {KEY}" in head


async def test_interim_responses_without_end_are_an_error_of_the_server() -> None:
    async def hint(conversation: Conversation) -> None:
        with suppress(ConnectionError):
            while True:
                await conversation.send(b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>; rel=preload\r\n\r\n" * 100)

    async with asyncio.timeout(120), upstream(hint) as server, transport(server.address) as one:
        with pytest.raises(UpstreamFaultError) as caught:
            await one.open("chat/completions", {"model": "m-1"})
        assert "interim responses without end" in caught.value.error.message
        # Nothing that was paid for is paid for again.
        assert server.calls == 1


async def test_json_is_asked_for_at_the_base_or_at_the_root() -> None:
    async with upstream(refusing("200 OK", {"data": []})) as server, transport(server.address) as one:
        assert await one.post_json("models", {}) == {"data": []}
        assert await one.post_json("/tokenize", {"content": "x"}) == {"data": []}
        assert [asked.head.partition(" HTTP")[0] for asked in server.conversations] == [
            "POST /v1/models",
            "POST /tokenize",
        ]


async def test_json_that_is_refused_late_or_none_is_an_error_of_ours() -> None:
    async def hang(conversation: Conversation) -> None:
        await conversation.until_gone()

    async with (
        upstream(refusing("404 N"), refusing("200 OK", b"<html>"), hang) as server,
        transport(server.address) as one,
    ):
        with pytest.raises(UpstreamFaultError) as missing:
            await one.post_json("/props", {})
        assert isinstance(missing.value.error, ModelUnavailableError)
        with pytest.raises(ModelProtocolError):
            await one.post_json("/props", {})
        with pytest.raises(UpstreamFaultError) as late:
            await one.post_json("/props", {}, timeout_s=0.1)
        assert isinstance(late.value.error, ModelTimeoutError)
        await server.conversations[2].until_gone()


async def test_a_compressed_answer_is_read_though_none_was_asked_for() -> None:
    import gzip  # noqa: PLC0415 - only this test compresses

    body = gzip.compress(b"".join(GOOD))

    async def send_compressed(conversation: Conversation) -> None:
        await conversation.answer("200 OK", body, "content-type: text/event-stream", "content-encoding: gzip")

    async with upstream(send_compressed) as server, transport(server.address) as one:
        assert await read(one) == b"".join(GOOD)


async def test_a_compressed_answer_is_bounded_by_what_it_unfolds_to() -> None:
    import gzip  # noqa: PLC0415 - only this test compresses

    body = gzip.compress(b":" * 10_000_000)

    async def send_compressed(conversation: Conversation) -> None:
        await conversation.answer("200 OK", body, "content-type: text/event-stream", "content-encoding: gzip")

    async with upstream(send_compressed) as server, transport(server.address, max_response_bytes=1_000_000) as one:
        with pytest.raises(UpstreamFaultError, match="more than 1000000 bytes"):
            await read(one)


@pytest.mark.parametrize("address", ["http://[", "http://host:notaport/v1"])
def test_an_address_that_is_none_is_refused_at_the_start(address: str) -> None:
    with pytest.raises(SettingsError, match="not usable"):
        OpenAITransport(options=BackendOptions(name="main", model="m", base_url=address), now=lambda: NOW)


async def test_an_address_that_is_not_http_cannot_be_reached() -> None:
    async with transport("ftp://127.0.0.1/v1") as one:
        with pytest.raises(UpstreamFaultError) as caught:
            await read(one)
        assert isinstance(caught.value.error, ModelUnavailableError)
        assert caught.value.retries == 0


def test_openai_is_imported_only_when_a_backend_is_made() -> None:
    program = (
        "import sys, reasond_server.llm.openai.chat, reasond_server.llm.openai.openai_model\n"
        "import reasond_server.llm.openai.transport\n"
        "print(sorted({'openai', 'aiohttp', 'httpx2'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=180)
    assert done.stdout.strip() == "[]"


async def test_later_requests_differ_from_the_first_in_their_body_and_nothing_else() -> None:
    async with upstream(streaming(*GOOD)) as server, transport(server.address) as one:
        for text in ("a", "b", "ümlaut"):
            answer = await one.open("chat/completions", {"model": "m-1", "text": text})
            await answer.aclose()
        first, second, third = server.conversations
    assert [asked.json["text"] for asked in (first, second, third)] == ["a", "b", "ümlaut"]
    assert headers_of(first) == headers_of(second)
    assert {name for name, _ in headers_of(first) ^ headers_of(third)} == {"content-length"}


async def test_azures_later_requests_go_to_the_same_deployment() -> None:
    async with upstream(streaming(*GOOD)) as server:
        root = server.address.removesuffix("/v1")
        async with transport(root, azure_api_version="2026-01-01") as one:
            await read(one)
            await read(one)
        first, second = server.conversations
    assert first.head.partition("\r\n")[0] == second.head.partition("\r\n")[0]
    assert headers_of(first) == headers_of(second)


async def test_each_request_tells_the_trace_of_its_own_call() -> None:
    traces = [TraceContext(trace_id=digit * 32, span_id=digit * 16, is_sampled=True) for digit in "1234"]
    async with upstream(streaming(*GOOD)) as server, transport(server.address) as one:
        for trace in traces:
            with OutgoingTrace(trace):
                await read(one)
        await read(one)
        told = [dict(headers_of(asked)).get("traceparent") for asked in server.conversations]
    assert told == [*(trace.traceparent for trace in traces), None]


async def test_a_refused_request_is_no_pattern_for_later_ones() -> None:
    scripts = (refusing("503 Service Unavailable", {}), streaming(*GOOD))
    async with upstream(*scripts) as server, transport(server.address) as one:
        with pytest.raises(UpstreamFaultError):
            await read(one)
        assert await read(one) == b"".join(GOOD)


def headers_of(asked: Conversation) -> set[tuple[str, str]]:
    """Return the headers of a request with their names in lower case."""
    lines = asked.head.strip().split("\r\n")[1:]
    return {(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)}
