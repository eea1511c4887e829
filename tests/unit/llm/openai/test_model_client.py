"""The package's client as it is made for a backend. Foreign hosts are reached through a proxy of the environment."""

from __future__ import annotations

import subprocess
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.model_client import (
    CodingError,
    ErrorStatusError,
    ModelClient,
    close_response,
    iterate_body,
)
from tests.faults.upstream import GOOD, STREAM_HEAD, Conversation, refusing, streaming, upstream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import httpx2

    from tests.faults.upstream import Upstream

OPENAI, AZURE = "http://api.openai.com/v1", "http://name.openai.azure.com"
CHAT, RESPONSES = "chat/completions", "responses"


@pytest.fixture(autouse=True)
def without_settings_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_CUSTOM_HEADERS", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@asynccontextmanager
async def client(base_url: str, **options: Any) -> AsyncIterator[ModelClient]:
    chosen = {"name": "main", "model": "m-1", "base_url": base_url, "api_key": "k"} | options
    one = ModelClient(options=BackendOptions(**chosen))
    try:
        yield one
    finally:
        await one.aclose()


async def read(answer: httpx2.Response) -> bytes:
    content = b"".join([piece async for piece in iterate_body(answer)])
    await close_response(answer)
    return content


@asynccontextmanager
async def proxy(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Upstream]:
    """Run a proxy that answers every request itself and name it in the environment."""
    async with upstream(streaming(*GOOD)) as server:
        monkeypatch.setenv("http_proxy", server.address.removesuffix("/v1").removeprefix("http://"))
        yield server


async def ask(monkeypatch: pytest.MonkeyPatch, base_url: str, path: str = CHAT, **options: Any) -> Conversation:
    """Return the request to `base_url` as a proxy sees it."""
    async with proxy(monkeypatch) as server:
        async with client(base_url, **options) as one:
            assert await read(await one.post(path, b"{}")) == b"".join(GOOD)
        return server.conversations[0]


def address_of(asked: Conversation) -> str:
    return asked.head.split(" ")[1]


def headers_of(asked: Conversation) -> dict[str, str]:
    lines = asked.head.strip().split("\r\n")[1:]
    return {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}


@pytest.mark.parametrize(
    ("base_url", "model", "version", "path", "address"),
    [
        (OPENAI, "gpt-5", "", CHAT, f"{OPENAI}/chat/completions"),
        (f"{OPENAI}/", "gpt-5", "", RESPONSES, f"{OPENAI}/responses"),
        ("http://h.example", "m", "", CHAT, "http://h.example/chat/completions"),
        ("http://h.example/a/b%20c/v1", "m", "", CHAT, "http://h.example/a/b%20c/v1/chat/completions"),
        (
            "http://h.example/v1?team=a%20b&x=1%262",
            "m",
            "",
            CHAT,
            "http://h.example/v1/chat/completions?team=a+b&x=1%262",
        ),
        ("http://h.example/v1?x=1", "m", "", "/tokenize", "http://h.example/tokenize?x=1"),
        (
            AZURE,
            "gpt-4o",
            "2024-10-21",
            CHAT,
            f"{AZURE}/openai/deployments/gpt-4o/chat/completions?api-version=2024-10-21",
        ),
        (
            AZURE,
            "my gpt/4o+ü",
            "2024-10-21",
            CHAT,
            f"{AZURE}/openai/deployments/my%20gpt%2F4o+%C3%BC/chat/completions?api-version=2024-10-21",
        ),
        (f"{AZURE}/", "gpt-4o", "2024-10-21", RESPONSES, f"{AZURE}/openai/responses?api-version=2024-10-21"),
        (
            f"{AZURE}/gateway/x",
            "m",
            "2026-01-01-preview",
            CHAT,
            f"{AZURE}/gateway/x/openai/deployments/m/chat/completions?api-version=2026-01-01-preview",
        ),
        (AZURE, "m", "2024-10-21", "/tokenize", f"{AZURE}/tokenize?api-version=2024-10-21"),
    ],
)
async def test_requests_go_to_the_address_of_the_backend(
    monkeypatch: pytest.MonkeyPatch, base_url: str, model: str, version: str, path: str, address: str
) -> None:
    asked = await ask(monkeypatch, base_url, path, model=model, azure_api_version=version)
    assert address_of(asked) == address


async def test_what_the_environment_says_for_openai_is_told_to_openai_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "x-team: secret-team\nAuthorization: Bearer secret-key")
    told = headers_of(await ask(monkeypatch, OPENAI))
    assert (told["openai-organization"], told["openai-project"], told["x-team"]) == ("org-1", "proj-1", "secret-team")
    for base_url, version in (("http://h.example/v1", ""), (AZURE, "2024-10-21")):
        for key in ("k", ""):
            asked = await ask(monkeypatch, base_url, azure_api_version=version, api_key=key)
            assert not {"openai-organization", "openai-project", "x-team"} & set(headers_of(asked))
            assert "secret" not in asked.head
    assert headers_of(await ask(monkeypatch, "http://h.example/v1"))["authorization"] == "Bearer k"


@pytest.mark.parametrize("base_url", [OPENAI, "http://h.example/v1"])
async def test_no_server_is_told_of_the_machine_that_asks(monkeypatch: pytest.MonkeyPatch, base_url: str) -> None:
    told = headers_of(await ask(monkeypatch, base_url))
    assert not [name for name in told if name.startswith("x-stainless")]
    assert told["user-agent"].startswith("reasond-server/")


@pytest.mark.parametrize("version", ["", "2024-10-21"])
async def test_a_server_without_key_is_sent_none(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-someone")
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", "sk-of-someone")
    monkeypatch.setenv("AZURE_OPENAI_AD_TOKEN", "sk-of-someone")
    asked = await ask(monkeypatch, "http://h.example/v1", azure_api_version=version, api_key="")
    assert not {"authorization", "api-key"} & set(headers_of(asked))


@pytest.mark.parametrize("key", ["", "k"])
async def test_credentials_in_the_address_become_a_header_and_leave_the_address(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    asked = await ask(monkeypatch, "http://me:se%40cret@h.example/v1", api_key=key)
    assert address_of(asked) == "http://h.example/v1/chat/completions"
    assert headers_of(asked)["authorization"] == "Basic bWU6c2VAY3JldA=="


async def test_a_key_may_be_another_one_for_each_request(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = iter(("first", "second", "third", "fourth"))

    async def find_key() -> str:
        return next(keys)

    async with proxy(monkeypatch) as server:
        async with client("http://h.example/v1", api_key=find_key) as one:
            for _ in range(2):
                await read(await one.post(CHAT, b"{}"))
        async with client(AZURE, api_key=find_key, azure_api_version="2024-10-21") as one:
            await read(await one.post(CHAT, b"{}"))
        async with client(AZURE, api_key="", azure_token=find_key, azure_api_version="2024-10-21") as one:
            await read(await one.post(CHAT, b"{}"))
        told = [headers_of(asked) for asked in server.conversations]
    assert [one.get("authorization", one.get("api-key")) for one in told] == [
        "Bearer first",
        "Bearer second",
        "third",
        "Bearer fourth",
    ]


async def test_cookies_are_not_kept_and_redirects_not_followed() -> None:
    scripts = (refusing("302 Found", b"", "set-cookie: a=b", "location: /elsewhere"), streaming(*GOOD))
    async with upstream(*scripts) as server, client(server.address) as one:
        with pytest.raises(ErrorStatusError) as refused:
            await one.post(CHAT, b"{}")
        assert refused.value.status == 302
        assert await read(await one.post(CHAT, b"{}")) == b"".join(GOOD)
        assert "cookie" not in server.conversations[1].head.lower()
        assert server.calls == 2


async def test_no_proxy_is_asked_for_what_the_environment_excepts(monkeypatch: pytest.MonkeyPatch) -> None:
    async with upstream(streaming(*GOOD)) as server:
        monkeypatch.setenv("all_proxy", "http://127.0.0.1:9")
        monkeypatch.setenv("no_proxy", "example.com,127.0.0.1")
        async with client(server.address) as one:
            assert await read(await one.post(CHAT, b"{}")) == b"".join(GOOD)


async def test_a_refusal_brings_the_beginning_of_its_body_and_no_more() -> None:
    async with (
        upstream(refusing("500 Internal Server Error", b"x" * 1_000_000)) as server,
        client(server.address) as one,
    ):
        with pytest.raises(ErrorStatusError) as refused:
            await one.post(CHAT, b"{}")
    assert len(refused.value.body) == 65_536


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "x-unknown"])
async def test_a_body_that_could_unfold_without_a_bound_is_not_read(coding: str) -> None:
    async def send_compressed(conversation: Conversation) -> None:
        await conversation.answer("200 OK", b"x", "content-type: text/event-stream", f"content-encoding: {coding}")

    async with upstream(send_compressed) as server, client(server.address) as one:
        answer = await one.post(CHAT, b"{}")
        with pytest.raises(CodingError):
            iterate_body(answer)
        await close_response(answer)


async def test_an_answer_closed_before_its_end_closes_the_connection_and_one_read_whole_keeps_it() -> None:
    whole = b"data: 1\n\n"

    async def keep(conversation: Conversation) -> None:
        await conversation.send(STREAM_HEAD + b"content-length: %d\r\n\r\n" % len(whole) + whole)
        await conversation.until_gone()

    async def half(conversation: Conversation) -> None:
        await conversation.send(STREAM_HEAD + b"content-length: 100\r\n\r\n" + whole)
        await conversation.until_gone()

    async with upstream(keep) as server, client(server.address) as one:
        assert await read(await one.post(CHAT, b"{}")) == whole
        assert not server.conversations[0].gone.is_set()
    async with upstream(half) as server, client(server.address) as one:
        answer = await one.post(CHAT, b"{}")
        assert await anext(iterate_body(answer)) == whole
        await close_response(answer)
        await server.conversations[0].until_gone()


@pytest.mark.parametrize("missing", ["openai", "aiohttp"])
def test_without_a_package_the_remedy_is_named(missing: str) -> None:
    program = (
        "import sys\n"
        f"sys.modules[{missing!r}] = None\n"
        "from reasond_server.llm.openai.backend_options import BackendOptions\n"
        "from reasond_server.llm.openai.transport import OpenAITransport\n"
        "try:\n"
        "    OpenAITransport(options=BackendOptions(name='a', model='m', base_url='http://x/v1'), now=lambda: 0.0)\n"
        "except Exception as error:\n"
        "    print(type(error).__name__, error.remedy)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=180)
    assert done.stdout.strip() == "SettingsError Install reasond-server again: its dependencies are not complete."
