"""Our addresses and headers are those that the installed `openai` package sends.

The package is used as its documentation shows, with a transport that sends nothing. The comparison leaves out the
headers that describe the package itself: its name in `user-agent`, and `x-stainless-*`.
"""

from __future__ import annotations

from typing import Any

import httpx2
import openai
import pytest

from reasond_server.errors.base import SettingsError
from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.request_heads import RequestHead, RequestHeads, find_proxy
from reasond_server.telemetry.propagation import OutgoingTrace, TraceContext

OPTIONS = BackendOptions(name="main", model="m-1", base_url="https://host.example/v1", api_key="k")
OPENAI, AZURE = "https://api.openai.com/v1", "https://name.openai.azure.com"
CHAT, RESPONSES = "chat/completions", "responses"


@pytest.fixture(autouse=True)
def without_settings_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.delenv(name, raising=False)


def head_of(base_url: str, path: str = CHAT, *, model: str = "m-1", version: str = "", key: str = "k") -> RequestHead:
    options = BackendOptions(name="main", model=model, base_url=base_url, api_key=key, azure_api_version=version)
    return RequestHeads(options=options).find(path)


async def request_of_package(
    base_url: str, path: str, *, model: str = "m-1", version: str = "", **more: Any
) -> httpx2.Request:
    """Return the request that the package would send."""
    sent: list[httpx2.Request] = []

    async def note(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        return httpx2.Response(200, json={}, request=request)

    http = httpx2.AsyncClient(transport=httpx2.MockTransport(note), trust_env=False)
    shared: dict[str, Any] = {"api_key": "k", "max_retries": 0, "http_client": http, **more}
    client = (
        openai.AsyncAzureOpenAI(azure_endpoint=base_url, api_version=version, **shared)
        if version
        else openai.AsyncOpenAI(base_url=base_url, **shared)
    )
    async with client:
        await client.post(f"/{path}", body={"model": model}, cast_to=httpx2.Response)
    return sent[0]


@pytest.mark.parametrize("path", [CHAT, RESPONSES])
@pytest.mark.parametrize(
    ("base_url", "model", "version"),
    [
        (OPENAI, "gpt-5", ""),
        (f"{OPENAI}/", "gpt-5", ""),
        ("http://127.0.0.1:8000/v1", "m-1", ""),
        ("http://[::1]:8000/v1", "m-1", ""),
        ("https://HOST.example:443/v1", "m-1", ""),
        ("https://host.example", "m-1", ""),
        ("https://host.example/a/b%20c/ü/v1", "m-1", ""),
        ("https://bücher.example/v1", "m-1", ""),
        (AZURE, "gpt-4o", "2024-10-21"),
        (f"{AZURE}/", "gpt-4o", "2024-10-21"),
        (AZURE, "my gpt/4o+ü", "2024-10-21"),
        (f"{AZURE}/gateway/x", "gpt-4o", "2026-01-01-preview"),
        (f"{AZURE}/deployments/other", "gpt-4o", "2024-10-21"),
    ],
)
async def test_requests_go_where_the_package_sends_them(base_url: str, model: str, version: str, path: str) -> None:
    theirs = await request_of_package(base_url, path, model=model, version=version)
    assert str(head_of(base_url, path, model=model, version=version).url) == str(theirs.url)


@pytest.mark.parametrize(("base_url", "version"), [("https://host.example/v1", ""), (AZURE, "2024-10-21")])
@pytest.mark.parametrize("slash", ["", "/"])
async def test_a_query_of_the_address_goes_where_the_package_puts_a_default_query(
    base_url: str, version: str, slash: str
) -> None:
    """The package itself appends its paths to the query of an address."""
    query = {"team": "a b", "x": "1&2"}
    theirs = await request_of_package(base_url, CHAT, version=version, default_query=query)
    ours = httpx2.URL(str(head_of(f"{base_url}{slash}?team=a%20b&x=1%262", version=version).url))
    assert (ours.host, ours.path) == (theirs.url.host, theirs.url.path)
    assert sorted(ours.params.multi_items()) == sorted(theirs.url.params.multi_items())


@pytest.mark.parametrize(
    ("base_url", "version"), [(OPENAI, ""), ("https://host.example/v1", ""), (AZURE, "2024-10-21")]
)
async def test_requests_carry_the_headers_of_the_package(
    base_url: str, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if base_url == OPENAI:
        monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
        monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    theirs = dict((await request_of_package(base_url, CHAT, version=version)).headers)
    ours = head_of(base_url, version=version).headers
    # Headers that aiohttp adds, headers that only we send, and headers that describe the package.
    different = {"host", "content-length", "connection", "accept", "accept-encoding", "user-agent"}
    expected = {name: value for name, value in theirs.items() if not name.startswith("x-stainless-")}
    assert {name: value for name, value in ours.items() if name not in different} == {
        name: value for name, value in expected.items() if name not in different
    }
    assert set(ours) >= {"accept", "accept-encoding", "user-agent"}
    assert ours["user-agent"].startswith("reasond-server/")
    assert ours["accept-encoding"] == "identity"


def test_organization_and_project_are_told_to_openai_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "proj-1")
    assert head_of(OPENAI).headers["openai-organization"] == "org-1"
    assert head_of(OPENAI).headers["openai-project"] == "proj-1"
    assert "org-1" not in str(head_of("https://host.example/v1").headers)
    assert "proj-1" not in str(head_of(AZURE, version="2024-10-21").headers)


@pytest.mark.parametrize("version", ["", "2024-10-21"])
def test_a_server_without_key_is_sent_none(version: str) -> None:
    assert not {"authorization", "api-key"} & set(head_of("https://host.example/v1", version=version, key="").headers)


@pytest.mark.parametrize("key", ["", "k"])
def test_credentials_in_the_address_become_a_header_and_leave_the_address(key: str) -> None:
    made = head_of("https://me:se%40cret@host.example/v1", key=key)
    assert str(made.url) == "https://host.example/v1/chat/completions"
    assert made.headers["authorization"] == "Basic bWU6c2VAY3JldA=="
    assert "cret" not in str(made)


def test_a_path_with_a_leading_slash_is_relative_to_the_root() -> None:
    assert str(head_of("https://host.example/v1?x=1", "/tokenize").url) == "https://host.example/tokenize"
    azure = head_of(AZURE, "/tokenize", version="2024-10-21")
    assert str(azure.url) == f"{AZURE}/tokenize?api-version=2024-10-21"


def test_each_head_is_built_once_and_each_call_adds_its_own_headers() -> None:
    heads = RequestHeads(options=OPTIONS)
    one = heads.find(CHAT)
    assert heads.find(CHAT) is one
    with OutgoingTrace(TraceContext(trace_id="1" * 32, span_id="2" * 16, is_sampled=True)):
        now = one.build_headers(keeps=False)
    assert now["connection"] == "close"
    assert now["traceparent"].startswith("00-1111")
    assert one.build_headers(keeps=True) == {"connection": "keep-alive"}


@pytest.mark.parametrize(
    ("excepted", "host", "is_asked"),
    [
        ("10.0.0.0/8", "10.1.2.3", False),
        ("10.0.0.0/8", "11.1.2.3", True),
        ("example.com, 10.1.2.3/8", "10.200.0.1", False),
        ("127.0.0.1", "127.0.0.1", False),
        ("fd00::/8", "[fd12::1]", False),
        ("[fd12::1]", "[fd12::1]", False),
        ("fd00::/8", "10.0.0.1", True),
        ("10.0.0.0/8", "model.example", True),
        (".example", "model.example", False),
        ("*", "10.1.2.3", False),
        ("10.0.0.0/99,nonsense//", "10.1.2.3", True),
        ("", "10.1.2.3", True),
    ],
)
def test_no_proxy_is_asked_for_names_addresses_and_networks_that_the_environment_excepts(
    monkeypatch: pytest.MonkeyPatch, excepted: str, host: str, *, is_asked: bool
) -> None:
    monkeypatch.setenv("all_proxy", "proxy.example:3128")
    monkeypatch.setenv("no_proxy", excepted)
    expected = "http://proxy.example:3128" if is_asked else None
    assert find_proxy(f"http://{host}:8000/v1") == expected


@pytest.mark.parametrize(
    ("proxy", "wrong"),
    [
        ("socks5://me:k4n4ry@127.0.0.1:1080", "is of the kind 'socks5'"),
        ("socks5h://127.0.0.1:1080", "is of the kind 'socks5h'"),
        ("http://proxy.example:none", "has no address"),
        ("http://", "has no address"),
        ("http://[k4n4ry", "has no address"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_refused_at_the_start_without_its_password(
    monkeypatch: pytest.MonkeyPatch, proxy: str, wrong: str
) -> None:
    monkeypatch.setenv("all_proxy", proxy)
    with pytest.raises(SettingsError) as refused:
        find_proxy("https://model.example/v1")
    assert wrong in refused.value.message
    assert "HTTPS_PROXY" in refused.value.remedy
    assert "name model.example in NO_PROXY" in refused.value.remedy
    assert "k4n4ry" not in refused.value.full_message
    monkeypatch.setenv("no_proxy", "model.example")
    assert find_proxy("https://model.example/v1") is None
