"""The HTTP rules: methods, media types, sizes, the pages, headers and the access log."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.config import ReasoningSettings
from reasond_server.http_api.http_app import HttpLimits
from reasond_server.testing import FunctionModel, Reply
from reasond_server.types import Principal

if TYPE_CHECKING:
    from tests.unit.http_api.parts import ServeSite, Site

LISTING = {"jsonrpc": "2.0", "method": "reasoning.list_strategies", "id": 1}
PATH = "/api/v1/jsonrpc"
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"])
async def test_every_method_but_post_is_refused(site: Site, method: str) -> None:
    response = await site.client.request(method, PATH)
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"


@pytest.mark.parametrize(
    "content_type", [None, "", "text/plain", "application/x-www-form-urlencoded", "application/jsonx"]
)
async def test_only_json_is_taken(site: Site, content_type: str | None) -> None:
    headers = {} if content_type is None else {"content-type": content_type}
    response = await site.client.post(PATH, content=json.dumps(LISTING).encode(), headers=headers)
    assert response.status_code == 415
    assert response.json()["request_id"] == response.headers["x-request-id"]


@pytest.mark.parametrize(("encoding", "status"), [("gzip", 415), ("zstd, br", 415), ("", 415), ("Identity", 200)])
async def test_a_packed_body_is_refused_and_what_to_send_instead_is_told(
    site: Site, encoding: str, status: int
) -> None:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    response = await site.client.post(PATH, content=json.dumps(LISTING).encode(), headers=headers)
    assert response.status_code == status
    if status == 415:
        assert response.headers["accept-encoding"] == "identity"
        assert f"Content-Encoding {encoding!r}, which is not unpacked here; send it as it is" in response.text


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
async def test_parameters_of_the_media_type_are_fine(site: Site, content_type: str) -> None:
    response = await site.client.post(
        PATH, content=json.dumps(LISTING).encode(), headers={"content-type": content_type}
    )
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"


async def test_every_json_rpc_answer_is_200_even_an_error(site: Site) -> None:
    response = await site.post(b"nonsense")
    assert (response.status_code, response.json()["error"]["code"]) == (200, -32700)


async def test_where_there_is_nothing_to_answer_it_is_204(site: Site) -> None:
    notification = {key: value for key, value in LISTING.items() if key != "id"}
    for payload in (notification, [notification, notification]):
        response = await site.post(payload)
        assert (response.status_code, response.content) == (204, b"")


async def test_a_body_over_the_limit_is_refused_by_its_length_or_as_it_comes(serve_site: ServeSite) -> None:
    site = await serve_site(limits=HttpLimits(max_body_bytes=100_000))

    async def chunks() -> Any:
        for _ in range(11):
            yield b" " * 10_000

    declared = await site.client.post(PATH, content=b" " * 100_001, headers=JSON)
    counted = await site.client.post(PATH, content=chunks(), headers=JSON)
    assert (declared.status_code, counted.status_code) == (413, 413)
    assert "max_http_body_bytes" in counted.json()["error"]
    fitting = json.dumps(LISTING).encode().ljust(100_000)
    assert (await site.post(fitting)).status_code == 200


async def test_a_client_that_waits_to_be_told_to_go_on_is_told_at_once_that_it_is_too_much(
    serve_site: ServeSite,
) -> None:
    site = await serve_site(limits=HttpLimits(max_body_bytes=1000))
    reader, writer = await asyncio.open_connection("127.0.0.1", site.server.port)
    head = "host: x\r\ncontent-type: application/json\r\ncontent-length: 5000\r\nexpect: 100-continue"
    writer.write(f"POST {PATH} HTTP/1.1\r\n{head}\r\n\r\n".encode())
    assert (await asyncio.wait_for(reader.readline(), 120)).startswith(b"HTTP/1.1 413 ")
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize("how", ["content-length: 70000", "transfer-encoding: chunked"])
async def test_a_large_body_is_not_read_where_the_token_in_the_header_is_not_valid(
    site: Site, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", site.server.port)
    head = f"host: x\r\ncontent-type: application/json\r\nauthorization: Bearer nonsense\r\n{how}"
    with caplog.at_level("INFO", "reasond.audit"):
        # The client sends no byte of the body and still receives the answer.
        writer.write(f"POST {PATH} HTTP/1.1\r\n{head}\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), 120)
    writer.close()
    await writer.wait_closed()
    told = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"www-authenticate: Bearer" in answer
    assert (told["jsonrpc"], told["id"], told["error"]["code"]) == ("2.0", None, -32603)
    assert told["error"]["data"]["reason"] == "TOKEN_INVALID"
    assert [record.__dict__["reason"] for record in caplog.records if record.name == "reasond.audit"] == [
        "TOKEN_INVALID"
    ]


async def test_a_large_body_is_read_where_the_token_is_valid_or_stands_in_it(site: Site) -> None:
    listing = {**LISTING, "params": {"auth_token": site.token()}}
    large = json.dumps(listing).encode().ljust(70_000)
    assert "result" in (await site.post(large)).json()
    without = json.dumps({**LISTING, "params": {}}).encode().ljust(70_000)
    assert "result" in (await site.post(without, authorization=f"Bearer {site.token()}")).json()
    assert (await site.post(without)).json()["error"]["data"]["reason"] == "TOKEN_MISSING"


async def test_a_body_that_does_not_come_is_answered_408(serve_site: ServeSite) -> None:
    site = await serve_site(limits=HttpLimits(body_timeout_s=0.05))
    reader, writer = await asyncio.open_connection("127.0.0.1", site.server.port)
    head = "host: x\r\ncontent-type: application/json\r\ncontent-length: 50"
    writer.write(f"POST {PATH} HTTP/1.1\r\n{head}\r\n\r\n{{".encode())
    answer = await asyncio.wait_for(reader.read(), 120)
    assert answer.startswith(b"HTTP/1.1 408 ")
    writer.close()
    await writer.wait_closed()


async def test_more_requests_than_may_are_refused_but_health_answers(serve_site: ServeSite) -> None:
    hold, has_begun = asyncio.Event(), asyncio.Event()

    def wait(_request: object) -> Reply:
        has_begun.set()
        return Reply(text="<answer>1</answer>", hold=hold)

    site = await serve_site(FunctionModel(wait), limits=HttpLimits(max_requests=1))
    running = asyncio.create_task(site.call("reasoning.execute", {"query": "q"}))
    await asyncio.wait_for(has_begun.wait(), 120)
    refused = await site.post(LISTING)
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert (await site.client.get("/healthz")).status_code == 200
    hold.set()
    assert (await running)["result"]["answer"] == "1"


async def test_a_client_that_leaves_cancels_its_call(serve_site: ServeSite, caplog: pytest.LogCaptureFixture) -> None:
    has_begun = asyncio.Event()

    def wait(_request: object) -> Reply:
        has_begun.set()
        return Reply(text="never", hold=asyncio.Event())

    caplog.set_level(logging.INFO, logger="reasond.http")
    site = await serve_site(FunctionModel(wait))
    body = json.dumps({**LISTING, "method": "reasoning.execute", "params": {"auth_token": site.token(), "query": "q"}})
    head = f"host: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    connection = socket.create_connection(("127.0.0.1", site.server.port), timeout=180)
    connection.sendall(f"POST {PATH} HTTP/1.1\r\n{head}\r\n\r\n{body}".encode())
    await asyncio.wait_for(has_begun.wait(), 120)
    alice = Principal(subject="alice", tenant="sub:alice", permissions=frozenset())
    (execution,) = (await site.core.reasoning.desk.list(alice)).executions
    run = site.core.runner.find_live(execution.execution_id)
    assert run is not None
    connection.close()
    await asyncio.wait_for(run.wait_for_end(), 120)
    assert site.model.open_calls == 0
    await site.server.stop(5)
    (record,) = [record for record in caplog.records if record.name == "reasond.http"]
    assert (record.__dict__["status"], record.__dict__["subject"]) == (499, "alice")


async def test_the_agent_card_is_public_and_has_a_strong_tag(site: Site) -> None:
    response = await site.client.get("/.well-known/agent-card.json")
    view = site.agents.build_own_card()
    assert response.text == view.card_json
    assert response.headers["content-type"] == "application/json"
    assert response.headers["etag"] == f'"{view.etag}"'
    assert response.headers["cache-control"] == "public, max-age=300"
    skills = [skill["id"] for skill in response.json()["skills"]]
    names = ReasoningSettings().enabled_strategies
    assert skills == [f"reasoning.strategy.{name}" for name in names]


async def test_a_client_that_has_the_card_is_told_so(site: Site) -> None:
    path = "/.well-known/agent-card.json"
    etag = (await site.client.get(path)).headers["etag"]
    for known in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        response = await site.client.get(path, headers={"if-none-match": known})
        assert (response.status_code, response.content, response.headers["etag"]) == (304, b"", etag)
    assert (await site.client.get(path, headers={"if-none-match": '"other"'})).status_code == 200


async def test_head_tells_the_headers_of_the_card_without_it(site: Site) -> None:
    response = await site.client.head("/.well-known/agent-card.json")
    assert (response.status_code, response.content) == (200, b"")
    assert int(response.headers["content-length"]) == len(site.agents.build_own_card().card_json.encode())
    refused = await site.client.post("/healthz")
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


async def test_readiness_follows_the_server_and_health_does_not(site: Site) -> None:
    ready = await site.client.get("/readyz")
    assert (ready.status_code, ready.json()) == (200, {"status": "ready"})
    site.readiness["is_ready"] = False
    waiting = await site.client.get("/readyz")
    assert (waiting.status_code, waiting.json()) == (503, {"status": "not ready"})
    health = await site.client.get("/healthz")
    assert (health.status_code, health.json()) == (200, {"status": "ok"})


@pytest.mark.parametrize("path", ["/", "/api/v1", "/api/v1/jsonrpc/", "/docs", "/healthz/x", "/%2e%2e/etc/passwd"])
async def test_elsewhere_there_is_nothing(site: Site, path: str) -> None:
    response = await site.client.get(path)
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/json"
    assert JSON_RPC_HINT in response.json()["error"]


JSON_RPC_HINT = "/api/v1/jsonrpc"


async def test_answers_carry_safe_headers_and_no_leave_for_other_sites(site: Site) -> None:
    for response in (
        await site.post(LISTING, origin="https://elsewhere.example"),
        await site.client.get("/healthz"),
        await site.client.get("/nothing"),
    ):
        assert response.headers["x-content-type-options"] == "nosniff"
        assert not [name for name in response.headers if name.startswith("access-control")]
        assert "server" not in response.headers
    assert (await site.post(LISTING)).headers["cache-control"] == "no-store"


async def test_a_well_formed_request_id_is_taken_over_and_another_replaced(site: Site) -> None:
    assert (await site.post(LISTING, x_request_id="trace-1")).headers["x-request-id"] == "trace-1"
    for malformed in ("", "a b", "x" * 129, "-x", "<script>"):
        minted = (await site.post(LISTING, x_request_id=malformed)).headers["x-request-id"]
        assert minted.startswith("minted-")


async def test_every_request_is_one_line_in_the_access_log_without_content(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="reasond.http")
    await site.call("reasoning.execute", {"query": "a secret question"}, x_request_id="trace-1")
    await site.post([{**LISTING, "params": {"auth_token": site.token()}}, {**LISTING, "method": "my secret"}])
    await site.client.get("/healthz")
    await site.client.get("/secret%0A")
    records = [record for record in caplog.records if record.name == "reasond.http"]
    fields = ("levelname", "http_method", "method", "status", "code", "reason", "subject")
    assert [tuple(record.__dict__[field] for field in fields) for record in records] == [
        ("INFO", "POST", "reasoning.execute", 200, 0, "", "alice"),
        ("INFO", "POST", "reasoning.list_strategies,unknown", 200, -32601, "METHOD_NOT_FOUND", "alice"),
        ("DEBUG", "GET", "", 200, 0, "", ""),
        ("INFO", "GET", "", 404, 0, "", ""),
    ]
    assert records[0].__dict__["call_id"] == "trace-1"
    assert records[0].__dict__["duration_ms"] > 0
    assert records[0].getMessage() == "POST reasoning.execute 200"
    assert records[3].getMessage() == "GET '/secret\\n' 404"
    assert "secret question" not in caplog.text
    assert "my secret" not in caplog.text


async def test_a_page_that_fails_is_answered_500_without_its_cause(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.readiness.clear()
    response = await site.client.get("/readyz", headers={"x-request-id": "trace-9"})
    assert response.status_code == 500
    assert response.json() == {"error": "internal error", "request_id": "trace-9"}
    assert "KeyError" in caplog.text
