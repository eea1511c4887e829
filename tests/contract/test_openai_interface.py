"""A chat of OpenAI's clients is a call like any other: API keys, permissions, audit lines, metrics and spans."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.cli.commands.keys import create
from reasond_server.testing import ScriptedModel, running_server
from tests.http_clients import make_http_client
from tests.spans import Spans, attributes_of
from tests.unit.protocols.chat.chatting import CHAT, QUESTION, chunks_of, serve_chats
from tests.unit.protocols.responses.responding import RESPONSES, TOOL, respond, resume, stream_response

if TYPE_CHECKING:
    from pathlib import Path

    from tests.unit.protocols.chat.chatting import ChatSite

CHAINS = "reasoning:execute:chain_of_thought"


def read_audit(caplog: pytest.LogCaptureFixture) -> list[tuple[str, ...]]:
    """Return the decisions since the last call."""
    lines = [vars(record) for record in caplog.records if record.name == "reasond.audit"]
    caplog.clear()
    assert "6 times 7" not in json.dumps([{name: str(value) for name, value in line.items()} for line in lines])
    return [(line["operation"], line["outcome"], line["reason"], line["execution_id"]) for line in lines]


async def metric(site: ChatSite, sample: str) -> float:
    text = (await site.client.get("/metrics")).text
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(sample))


async def test_chats_leave_the_lines_and_the_counts_of_calls(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serve_chats() as site:
        whole = (await site.ask()).json()
        assert read_audit(caplog) == [("Reason", "allowed", "", whole["reasond"]["execution_id"])]
        chunks = chunks_of(await site.stream())
        streamed = chunks[0]["id"].removeprefix("chatcmpl-")
        assert read_audit(caplog) == [("ReasonIterations", "allowed", "", streamed)]
        await site.client.get("/v1/models")
        assert read_audit(caplog) == [("ListStrategies", "allowed", "", "")]
        await site.ask(model="nothing")
        (line,) = [vars(each) for each in caplog.records if each.name == "reasond.http"]
        assert (line["method"], line["status"], line["reason"]) == (
            "openai.chat_completions",
            404,
            "STRATEGY_NOT_FOUND",
        )
        calls = 'reasond_calls_total{code="OK",method="openai.chat_completions",transport="openai"}'
        assert await metric(site, calls) == 2
        errors = 'reasond_errors_total{reason="STRATEGY_NOT_FOUND",transport="openai"}'
        assert await metric(site, errors) == 1
        assert await metric(site, 'reasond_http_requests_total{route="/v1/chat/completions",status="200"}') == 2
        assert await metric(site, 'reasond_streams_open{transport="openai"}') == 0


async def test_responses_leave_the_lines_and_the_counts_of_calls(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serve_chats() as site:
        whole = await respond(site, input="What is 6 times 7?")
        own = whole["reasond"]["execution_id"]
        assert read_audit(caplog) == [("Reason", "allowed", "", own)]
        streamed = (await stream_response(site, input="What is 6 times 7?"))[-1]["response"]
        assert read_audit(caplog) == [("ReasonIterations", "allowed", "", streamed["reasond"]["execution_id"])]
        await resume(site, whole["id"], after=3)
        await site.client.get(f"{RESPONSES}/{whole['id']}/input_items")
        await site.client.post(f"{RESPONSES}/{whole['id']}/cancel")
        await site.client.delete(f"{RESPONSES}/{whole['id']}")
        assert [line[:2] for line in read_audit(caplog)] == [
            ("FollowExecution", "allowed"),
            ("FollowExecution", "allowed"),
            ("CancelExecution", "allowed"),
            ("DeleteExecution", "allowed"),
        ]
        calls = 'reasond_calls_total{code="OK",method="openai.responses",transport="openai"}'
        assert await metric(site, calls) == 2
        assert await metric(site, 'reasond_calls_total{code="OK",method="openai.responses.delete"') == 1
        assert await metric(site, 'reasond_http_requests_total{route="/v1/responses",status="200"}') == 2
        assert await metric(site, 'reasond_http_requests_total{route="/v1/responses/{id}",status="200"}') == 4
        assert await metric(site, 'reasond_streams_open{transport="openai"}') == 0


async def test_a_response_needs_the_permissions_of_what_it_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    environ = {
        "REASOND_CONFIG": "/dev/null",
        "REASOND__AUTH__API_KEYS_FILE": str(tmp_path / "keys.json"),
        "REASOND__LIMITS__REQUESTS_PER_MINUTE": "4",
    }
    create(subject="chat", permission=[CHAINS], config=None, environ=environ)
    key = capsys.readouterr().out.strip()
    async with serve_chats(environ=environ) as site:
        site.client.headers["authorization"] = f"Bearer {key}"
        asked = {"model": "reasond", "input": "What is 6 times 7?"}
        statuses = []
        for more in ({}, {"model": "reasond/react"}, {"tools": [TOOL]}):
            answer = await site.client.post(RESPONSES, json={**asked, **more})
            statuses.append((answer.status_code, (answer.json()["error"] or {}).get("code")))
        assert statuses == [(200, None), (403, "PERMISSION_MISSING"), (403, "PERMISSION_MISSING")]
        answers = [await site.client.post(RESPONSES, json=asked) for _ in range(5)]
        assert answers[-1].status_code == 429
        assert answers[-1].json()["error"]["code"] == "rate_limit_exceeded"
        assert answers[-1].headers["x-should-retry"] == "true"


async def test_an_api_key_is_the_key_of_a_client_and_permits_what_it_was_made_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    environ = {"REASOND_CONFIG": "/dev/null", "REASOND__AUTH__API_KEYS_FILE": str(tmp_path / "keys.json")}
    keys = {}
    for permission in (CHAINS, "agents:write"):
        create(subject="chat", permission=[permission], config=None, environ=environ)
        keys[permission] = capsys.readouterr().out.strip()
    async with serve_chats(environ=environ) as site:
        site.client.headers["authorization"] = f"Bearer {keys[CHAINS]}"
        assert (await site.ask()).status_code == 200
        listed = (await site.client.get("/v1/models")).json()["data"]
        assert [model["id"] for model in listed] == ["reasond", "reasond/chain_of_thought"]
        hidden = await site.client.get("/v1/models/reasond/react")
        assert (hidden.status_code, hidden.json()["error"]["code"]) == (404, "STRATEGY_NOT_FOUND")
        caplog.clear()
        for response in (await site.ask(model="reasond/react"), await site.ask(model="reasond/react", stream=True)):
            error = response.json()["error"]
            assert (response.status_code, error["code"]) == (403, "PERMISSION_MISSING")
            assert error["type"] == "permission_error"
        assert [line[:3] for line in read_audit(caplog)] == [
            ("Reason", "denied", "PERMISSION_MISSING"),
            ("ReasonIterations", "denied", "PERMISSION_MISSING"),
        ]
        site.client.headers["authorization"] = f"Bearer {keys['agents:write']}"
        for response in (await site.ask(), await site.client.get("/v1/models")):
            assert response.status_code == 403


async def test_a_response_is_an_execution_that_the_console_lists_with_its_wire() -> None:
    async with serve_chats() as site:
        own = (await respond(site, input="What is 6 times 7?"))["reasond"]["execution_id"]
        call = {"jsonrpc": "2.0", "id": 1, "method": "executions.list", "params": {}}
        (found,) = (await site.client.post("/api/v1/jsonrpc", json=call)).json()["result"]["executions"]
    assert (found["execution_id"], found["wire"], found["question"]) == (own, "openai", "What is 6 times 7?")


async def test_a_chat_is_an_execution_that_json_rpc_reads() -> None:
    async with serve_chats() as site:
        asked = await site.ask(headers={"idempotency-key": "k-7"})
        named = {"execution_id": asked.json()["reasond"]["execution_id"]}
        call = {"jsonrpc": "2.0", "id": 1, "method": "executions.get", "params": named}
        found = (await site.client.post("/api/v1/jsonrpc", json=call)).json()["result"]
    assert found["execution"]["request_id"] == "k-7"
    assert found["reasoning"]["answer"] == "42"


@pytest.mark.parametrize(
    ("path", "method", "said"),
    [
        (CHAT, "openai.chat_completions", {"messages": QUESTION}),
        (RESPONSES, "openai.responses", {"input": "What is 6 times 7?"}),
    ],
)
async def test_the_span_of_a_call_has_the_run_below_it(path: str, method: str, said: dict[str, Any]) -> None:
    spans = Spans()
    async with running_server(model=ScriptedModel(["<answer>42</answer>"]), spans=spans.sink) as listening:
        headers = {"authorization": f"Bearer {listening.token}"}
        async with make_http_client(base_url=listening.http, headers=headers, timeout=180) as client:
            await client.post(path, json={"model": "reasond", **said})
        await spans.until(lambda one: one.find_named("POST "))
    assert spans.tree() == [f"POST {path}", ["invoke_workflow chain_of_thought", ["step", ["chat scripted"]]]]
    told = attributes_of(spans.one("POST "))
    assert (told["rpc.system.name"], told["rpc.method"]) == ("openai", method)
