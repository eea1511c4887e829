"""Every RPC is a call of HTTP at the addresses in the protos, with the checks and the answers of the RPC."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest
from openapi_spec_validator import validate

import reasond
from reasond_server.access.token_keys import SigningKey
from reasond_server.access.tokens import TokenMinter
from reasond_server.errors.model import ModelFailedError
from reasond_server.http_api.rest_endpoint import REST_ROOT
from reasond_server.testing import Reply, ScriptedModel, running_server
from scripts.openapi import PATH
from scripts.pages import ROOT
from tests.http_clients import make_http_client
from tests.rest_calls import RPCS, bindings_of, find_detail, make_request, read_events
from tests.spans import Spans, attributes_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    import httpx

    from reasond_server.assembly.app import Listening

SECRET = "a key of the test that nobody guesses 8f1c"
ENVIRON = {"REASOND__AUTH__KEYS": f'[{{ id = "test", secret = "{SECRET}" }}]', "REASOND__REPAIR__ENABLED": "true"}
TASK = {"task": {"query": "What is 6 times 7?", "strategy": "chain_of_thought"}}
CARD = json.dumps({"capabilities": ["reasoning.strategy.react"], "supported_methods": ["reasoning.execute"]})
EXECUTE = "/api/v1/reasoning:execute"
STREAM = "/api/v1/reasoning:stream"
DESCRIPTION = json.loads((ROOT / PATH).read_bytes())


def mint(*permissions: str) -> str:
    minter = TokenMinter(
        key=SigningKey(id="test", secret=SECRET.encode()), issuer="reasond", audience="reasond", max_lifetime_s=3600
    )
    return minter.mint(subject="ann", permissions=permissions, tenant="acme", lifetime_s=3600, now=datetime.now(UTC))


@pytest.fixture
async def server() -> AsyncGenerator[Listening, None]:
    async with running_server(environ=ENVIRON) as listening:
        yield listening


@pytest.fixture
async def web(server: Listening) -> AsyncGenerator[httpx.AsyncClient, None]:
    async with make_http_client(base_url=server.http, headers={"authorization": f"Bearer {mint('admin')}"}) as client:
        yield client


def test_every_rpc_has_an_address_of_its_own() -> None:
    places = [(each.verb, each.template) for rpc in RPCS for each in bindings_of(rpc)]
    assert all(bindings_of(rpc) for rpc in RPCS)
    assert all(template.startswith(REST_ROOT) for _, template in places)
    assert len(set(places)) == len(places)


def test_the_description_is_openapi_and_has_every_address_and_type() -> None:
    validate(DESCRIPTION)
    described = {(verb.upper(), path) for path, verbs in DESCRIPTION["paths"].items() for verb in verbs}
    assert described == {(each.verb, each.template) for rpc in RPCS for each in bindings_of(rpc)}
    without = [name for name, schema in DESCRIPTION["components"]["schemas"].items() if not schema["description"]]
    assert not without


async def test_the_description_is_served_without_a_token_and_known_by_its_tag(server: Listening) -> None:
    async with make_http_client(base_url=server.http) as client:
        got = await client.get("/openapi.json")
        assert got.json() == DESCRIPTION
        again = await client.get("/openapi.json", headers={"if-none-match": got.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_answers_are_what_the_description_says(web: httpx.AsyncClient) -> None:
    done = (await web.post(EXECUTE, json=TASK)).json()["reasoning"]["execution_id"]
    start = {"start": {"message": "Hello", "session_id": "s"}}
    turn = (await web.post("/api/v1/turns:execute", json=start)).json()["turn"]["turn_id"]
    repair = (await web.post("/api/v1/repairs:execute", json={"task": PLAN})).json()["repair"]["execution_id"]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("RegisterAgent", {"agent_id": "helper", "card_json": CARD}),
        ("ListAgents", {"capabilities": ["reasoning.strategy.react"]}),
        ("GetAgentCard", {"agent_id": "helper"}),
        ("Reason", TASK),
        ("ListStrategies", {}),
        ("GetExecution", {"execution_id": done, "trace_view": "TRACE_VIEW_FULL"}),
        ("ListExecutions", {"page_size": 5, "state": "EXECUTION_STATE_SUCCEEDED", "text": "6 times"}),
        ("CancelExecution", {"execution_id": done}),
        ("GetTurn", {"turn_id": turn}),
        ("ListTurns", {"session_id": "s"}),
        ("CancelTurn", {"turn_id": turn}),
        ("GetSession", {"session_id": "s"}),
        ("ListSessions", {}),
        ("GetRepair", {"execution_id": repair}),
        ("ListEnvironments", {}),
        ("CreateSnapshot", {"manifest": [{"path": "a.py", "digest": "0" * 64, "size_bytes": 6}]}),
        ("GetExecution", {"execution_id": "nobody"}),
        ("DeleteAgent", {"agent_id": "helper"}),
    ]
    for rpc, values in calls:
        answer = await web.request(**make_request(rpc, values))
        operation = DESCRIPTION["paths"][bindings_of(rpc)[0].template][bindings_of(rpc)[0].verb.lower()]
        response = operation["responses"]["200" if answer.status_code == 200 else "default"]
        validator_of(response["content"]["application/json"]["schema"]).validate(answer.json())


def validator_of(schema: dict[str, Any]) -> Any:
    """Return the validator of a schema of the description; no message may have other members than it names."""
    kinds = {
        name: {"additionalProperties": False, **each} if each["type"] == "object" else each
        for name, each in DESCRIPTION["components"]["schemas"].items()
    }
    return jsonschema_rs.Draft202012Validator({**schema, "components": {"schemas": kinds}})


async def test_a_stream_is_of_the_messages_of_the_rpc_and_is_followed_on(web: httpx.AsyncClient) -> None:
    answer = await web.post(STREAM, json=TASK)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = read_events(answer)
    assert [event["sequence"] for event in events] == [str(number + 1) for number in range(len(events))]
    assert events[-1]["completed"]["finish_reason"] == "FINISH_REASON_ANSWERED"
    name = events[0]["execution_id"]
    followed = await web.get(f"/api/v1/executions/{name}:follow", params={"after_sequence": 1})
    assert [event["reasoning"] for event in read_events(followed)] == events[1:]
    at_its_end = await web.get(f"/api/v1/executions/{name}:follow", params={"after_sequence": len(events)})
    assert (at_its_end.status_code, at_its_end.text) == (200, "")


PLAN = {"description": "Plan it.", "plan": {}, "config": {"num_candidates": 1, "max_candidates": 1}}
STREAMS = (
    (STREAM, TASK, "reasoning"),
    ("/api/v1/turns:stream", {"start": {"message": "Hello"}}, "turn"),
    ("/api/v1/repairs:stream", {"task": PLAN}, "repair"),
)


@pytest.mark.parametrize(("url", "body", "kind"), STREAMS)
async def test_a_stream_goes_on_after_the_event_that_its_client_read_last(
    web: httpx.AsyncClient, url: str, body: dict[str, Any], kind: str
) -> None:
    answer = await web.post(url, json={**body, "request_id": "again", "include_deltas": True})
    events = [event for event in read_events(answer) if not {"delta", "heartbeat"} & event.keys()]
    places = read_places(answer)
    name = places[0].partition(":")[0]
    assert places == [f"{name}:{event['sequence']}" for event in events]
    last = {"last-event-id": places[0]}
    again = await web.post(url, json={**body, "request_id": "again"}, headers=last)
    assert (read_places(again), read_events(again)) == (places[1:], events[1:])
    followed = await web.get(f"/api/v1/executions/{name}:follow", headers=last)
    assert read_places(followed) == places[1:]
    assert [event[kind] for event in read_events(followed)] == events[1:]


async def test_a_last_event_of_something_else_is_refused(web: httpx.AsyncClient) -> None:
    for place, words in (("x", "must be <execution_id>:<sequence>"), ("other:1", "is of the execution other")):
        refused = await web.get("/api/v1/executions/e:follow", headers={"last-event-id": place})
        [violation] = find_detail(refused.json(), "BadRequest")["field_violations"]
        assert (refused.status_code, violation["field"]) == (400, "Last-Event-ID")
        assert words in violation["description"]


def read_places(answer: httpx.Response) -> list[str]:
    """Return the ids of the events of an answer."""
    return [line[4:] for line in answer.text.splitlines() if line.startswith("id: ")]


async def test_head_is_answered_as_get_without_a_body(web: httpx.AsyncClient) -> None:
    name = (await web.post(EXECUTE, json=TASK)).json()["reasoning"]["execution_id"]
    for path in (
        *("/api/v1/executions", "/api/v1/executions?page_size=-1", "/api/v1/strategies", "/api/v1/nothing"),
        *(f"/api/v1/executions/{each}{verb}" for each in (name, "nobody") for verb in ("", ":follow")),
    ):
        get, head = [await web.request(verb, path) for verb in ("GET", "HEAD")]
        assert (head.status_code, head.content) == (get.status_code, b""), path
        for header in ("content-type", "content-length"):
            assert head.headers.get(header) == get.headers.get(header), path
    refused = await web.request("PATCH", f"/api/v1/executions/{name}")
    assert refused.headers["allow"] == "GET, HEAD, DELETE"


async def test_head_of_a_stream_does_not_wait_for_its_end() -> None:
    with ScriptedModel([Reply(text="<answer>42</answer>", hold=asyncio.Event())]) as model:
        async with (
            running_server(model=model, environ=ENVIRON) as server,
            make_http_client(base_url=server.http, headers={"authorization": f"Bearer {server.token}"}) as client,
            client.stream("POST", STREAM, json=TASK) as answer,
        ):
            lines = answer.aiter_lines()
            name = (await anext(lines)).removeprefix("id: ").partition(":")[0]
            head = await client.head(f"/api/v1/executions/{name}:follow")
            assert (head.status_code, head.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
            assert (await client.get(f"/api/v1/executions/{name}")).json()["execution"][
                "state"
            ] == "EXECUTION_STATE_RUNNING"


async def test_a_failure_in_the_midst_of_a_stream_is_its_last_event() -> None:
    with ScriptedModel([Reply(error=ModelFailedError("gone"))]) as model:
        async with running_server(model=model, environ=ENVIRON) as server, make_http_client() as client:
            client.headers["authorization"] = f"Bearer {server.token}"
            answer = await client.post(f"{server.http}{STREAM}", json=TASK)
    assert answer.status_code == 200
    *_, name, data = [line for line in answer.text.splitlines() if line]
    assert name == "event: error"
    status = json.loads(data.removeprefix("data: "))
    assert find_detail(status, "ErrorInfo")["metadata"]["execution_id"] == read_events(answer)[0]["execution_id"]


async def test_who_leaves_a_stream_cancels_its_execution() -> None:
    with ScriptedModel([Reply(text="<answer>42</answer>", hold=asyncio.Event())]) as model:
        async with (
            running_server(model=model, environ=ENVIRON) as server,
            make_http_client(headers={"authorization": f"Bearer {server.token}"}) as client,
            reasond.AsyncClient(server.grpc, token=server.token) as observer,
        ):
            async with client.stream("POST", f"{server.http}{STREAM}", json=TASK) as answer:
                line = await anext(answer.aiter_lines())
            name = line.removeprefix("id: ").partition(":")[0]
            async with observer.follow_execution(name) as events:
                last = [event async for event in events][-1].reasoning.completed
    assert last.finish_reason == reasond.FinishReason.FINISH_REASON_CANCELLED


MISTAKES: tuple[tuple[dict[str, Any], str, str], ...] = (
    ({"url": EXECUTE, "json": {"task": {"query": ""}}}, "task.query", "between 1 and"),
    ({"url": EXECUTE, "json": {"task": {"riddle": "?"}}}, "task.riddle", "is no field of this request; known are"),
    ({"url": EXECUTE, "json": {"task": {"query": 7}}}, "task.query", "must be a string, got 7"),
    ({"url": EXECUTE, "json": {"task": "?"}}, "task", "must be an object, got '?'"),
    ({"url": EXECUTE, "json": {**TASK, "requestId": "a", "request_id": "b"}}, "request_id", "beside requestId"),
    ({"url": "/api/v1/executions/a:cancel", "json": {"executionId": "b"}}, "execution_id", "beside executionId"),
    ({"url": f"{EXECUTE}?task.query=x", "json": TASK}, "'task.query'", "its fields stand in the body"),
    ({"url": "/api/v1/executions/a:cancel?execution_id=b", "json": {}}, "'execution_id'", "stand in the body"),
    ({"url": EXECUTE, "json": []}, "body", "must be a JSON object"),
    (
        {"url": STREAM, "json": {**TASK, "resume": {"execution_id": "e"}}},
        "resume",
        "cannot stand beside task; leave one of them out",
    ),
    ({"method": "GET", "url": "/api/v1/executions?pagesize=1"}, "'pagesize'", "did you mean 'page_size'?"),
    ({"method": "GET", "url": "/api/v1/executions?page_size=1&page_size=2"}, "page_size", "twice"),
    (
        {"method": "GET", "url": "/api/v1/executions?page_size=many"},
        "page_size",
        "must be a whole number of 32 bits, got 'many'",
    ),
    ({"method": "GET", "url": "/api/v1/executions?page_size=-1"}, "page_size", "must"),
    ({"method": "GET", "url": "/api/v1/executions?create_time_after=today"}, "create_time_after", "such as 2026"),
    ({"method": "GET", "url": "/api/v1/executions?create_time_after.seconds=1"}, "'create_time_after", "is no"),
    ({"method": "GET", "url": "/api/v1/executions?DESCRIPTOR.name=1"}, "'DESCRIPTOR.name'", "is no parameter"),
    ({"method": "GET", "url": "/api/v1/turns/t/toolResults/c?range=1"}, "'range'", "is no parameter"),
    (
        {"method": "GET", "url": "/api/v1/turns/t/toolResults/c?range.offset=x"},
        "range.offset",
        "must be a whole number",
    ),
    ({"method": "GET", "url": "/api/v1/turns/t/toolResults/c?range.offset.x=1"}, "'range.offset.x'", "is no"),
    (
        {"method": "GET", "url": "/api/v1/executions/e:follow?include_deltas=yes"},
        "include_deltas",
        "must be true or false, got 'yes'",
    ),
)
REFUSALS = (
    ("GET", "/api/v1/nothing", 404),
    ("GET", "/api/v1", 404),
    ("GET", "/api/v1/executions/a/b", 404),
    ("PATCH", "/api/v1/executions/a", 405),
    ("GET", EXECUTE, 405),
    ("POST", EXECUTE, 415),
)


async def test_what_is_wrong_is_named_in_our_words(web: httpx.AsyncClient) -> None:
    for call, field, words in MISTAKES:
        answer = await web.request(**{"method": "POST", **call})
        status = answer.json()
        assert (answer.status_code, status["code"]) == (400, 3), call
        assert find_detail(status, "ErrorInfo")["reason"] == "INVALID_REQUEST"
        (violation, *_) = find_detail(status, "BadRequest")["field_violations"]
        assert violation["field"].startswith(field), call
        assert words in violation["description"], call


async def test_refusals_before_a_call_are_of_the_same_form(web: httpx.AsyncClient) -> None:
    for verb, path, status in REFUSALS:
        answer = await web.request(verb, path)
        assert answer.status_code == status, path
        assert find_detail(answer.json(), "ErrorInfo")["domain"] == "reasond"
        assert ("allow" in answer.headers) == (status == 405)


async def test_every_address_checks_the_token_and_the_permission_before_it_reads_the_request(
    server: Listening, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="reasond.audit")
    values = dict.fromkeys(("execution_id", "turn_id", "session_id", "agent_id", "call_id"), "a")
    async with make_http_client(base_url=server.http) as client:
        for rpc in RPCS:
            request = {**make_request(rpc, values)}
            unknown = await client.request(**request)
            assert (unknown.status_code, unknown.json()["code"], rpc) == (401, 16, rpc)
            assert unknown.headers["www-authenticate"] == "Bearer"
            lacking = await client.request(**request, headers={"authorization": f"Bearer {mint('nothing')}"})
            assert (lacking.status_code, lacking.json()["code"], rpc) == (403, 7, rpc)
            lines = [vars(record) for record in caplog.records if record.name == "reasond.audit"]
            assert [(each["operation"], each["outcome"]) for each in lines] == [(rpc, "denied")] * 2
            caplog.clear()


async def test_a_long_request_and_a_long_answer_are_like_short_ones(web: httpx.AsyncClient) -> None:
    history = [{"role": "SPEAKER_USER", "text": f"line {number} {'and on ' * 40}"} for number in range(300)]
    answer = await web.post(EXECUTE, json={"task": {**TASK["task"], "history": history}})
    assert answer.status_code == 200
    found = await web.get(f"/api/v1/executions/{answer.json()['reasoning']['execution_id']}")
    assert found.json()["task"]["history"] == history


async def test_a_request_may_hold_no_more_fields_than_over_grpc(web: httpx.AsyncClient) -> None:
    history = [{"role": "SPEAKER_USER", "text": "a"}] * 30_000
    answer = await web.post(EXECUTE, json={"task": {**TASK["task"], "history": history}})
    assert (answer.status_code, answer.json()["code"]) == (400, 3)
    assert "hold more than 50000 fields" in answer.json()["message"]


async def test_a_name_in_a_path_may_have_any_character(web: httpx.AsyncClient) -> None:
    for name in ("a/b", "a b?c#d", "ä:cancel", "%2F", "\N{SNOWMAN}"):
        answer = await web.request(**make_request("GetSession", {"session_id": name}))
        assert (answer.status_code, answer.json()["code"]) == (404, 5)
        assert repr(name)[1:-1] in answer.json()["message"]


async def test_calls_are_counted_and_traced_and_their_executions_tell_the_wire() -> None:
    spans = Spans()
    async with (
        running_server(environ=ENVIRON, spans=spans.sink) as server,
        make_http_client(base_url=server.http, headers={"authorization": f"Bearer {server.token}"}) as web,
    ):
        await web.post(STREAM, json=TASK)
        await web.get("/api/v1/executions/nobody")
        text = (await web.get("/metrics")).text
        (listed,) = (await web.get("/api/v1/executions")).json()["executions"]
        await spans.until(lambda one: len(one.find_named("GET /api/v1/executions/{execution_id}")) == 1)
    assert listed["wire"] == "rest"
    for sample in (
        'reasond_http_requests_total{route="/api/v1/executions/{execution_id}",status="404"} 1.0',
        'reasond_calls_total{code="OK",method="reasond.v1.ReasoningService/ReasonIterations",transport="rest"} 1.0',
        'reasond_streams_open{transport="rest"} 0.0',
        'reasond_streams_open{transport="grpc"} 0.0',
    ):
        assert sample in text, [line for line in text.splitlines() if "rest" in line]
    told = attributes_of(spans.find_named(f"POST {STREAM}")[0])
    assert (told["rpc.system.name"], told["rpc.method"]) == ("rest", "reasond.v1.ReasoningService/ReasonIterations")


async def test_who_asks_too_often_is_told_when_to_come_back() -> None:
    environ = {**ENVIRON, "REASOND__LIMITS__REQUESTS_PER_HOUR": "1"}
    async with running_server(environ=environ) as server, make_http_client(base_url=server.http) as web:
        web.headers["authorization"] = f"Bearer {mint('reasoning:execute')}"
        answers = [await web.post(EXECUTE, json=TASK) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 429]
    delay_s = float(find_detail(answers[1].json(), "RetryInfo")["retry_delay"].removesuffix("s"))
    assert int(answers[1].headers["retry-after"]) == math.ceil(delay_s)
    assert find_detail(answers[1].json(), "ErrorInfo")["reason"] == "RATE_LIMITED"
