"""Executions as server-sent events over a real socket."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.config import ServerSettings, Settings
from reasond_server.errors.model import ModelFailedError
from reasond_server.http_api.exchange import wants_stream
from reasond_server.reasoning.views import read_view
from reasond_server.testing import FunctionModel, Reply
from reasond_server.types import ExecutionState, Principal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    import httpx

    from tests.unit.http_api.parts import ServeSite, Site

ALICE = Principal(subject="alice", tenant="sub:alice", permissions=frozenset())


@dataclass(frozen=True, kw_only=True)
class ServerEvent:
    """One event as a browser's parser would see it."""

    name: str
    data: dict[str, Any]
    event_id: str | None


async def read_events(response: httpx.Response) -> AsyncIterator[ServerEvent]:
    fields: dict[str, str] = {}
    async for line in response.aiter_lines():
        if line:
            name, _, value = line.partition(": ")
            assert name not in fields
            fields[name] = value
        elif fields:
            yield ServerEvent(name=fields["event"], data=json.loads(fields["data"]), event_id=fields.get("id"))
            fields = {}
    assert not fields


def call_of(site: Site, method: str = "reasoning.execute", **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "id": 1, "params": {"auth_token": site.token(), **params}}


async def stream(site: Site, payload: object, **headers: str) -> list[ServerEvent]:
    """Send a call and return all events of its stream."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with site.client.stream(
        "POST", "/api/v1/jsonrpc", json=payload, headers={"accept": "text/event-stream", **named}
    ) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-store"
        return [event async for event in read_events(response)]


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ([], False),
        (["application/json"], False),
        (["*/*"], False),
        (["text/event-stream"], True),
        (["application/json, Text/Event-Stream;q=0.5"], True),
        (["application/json", "text/event-stream"], True),
        (["text/event-stream; q=0"], False),
        (["text/event-stream;q=0.00, application/json"], False),
    ],
)
def test_a_stream_is_wanted_where_it_is_asked_for_by_name(accept: Sequence[str], wanted: bool) -> None:  # noqa: FBT001 - an expectation
    assert wants_stream(accept) is wanted


@pytest.mark.parametrize(
    ("method", "strategy"),
    [("reasoning.execute", "chain_of_thought"), ("reasoning.bounded_context", "bounded_context")],
)
async def test_a_call_is_streamed_step_by_step_to_its_result(site: Site, method: str, strategy: str) -> None:
    events = await stream(site, call_of(site, method, query="q"))
    assert [event.name for event in events] == ["started", "iteration", "completed"]
    execution_id = events[0].data["execution_id"]
    assert [event.event_id for event in events] == [f"{execution_id}:{number}" for number in (1, 2, 3)]
    assert all(event.name in event.data for event in events)
    assert events[0].data["started"]["strategy"] == strategy
    got = (await site.call("executions.get", {"execution_id": execution_id}))["result"]["reasoning"]
    assert "trace" not in events[-1].data["completed"]
    assert events[-1].data["completed"].items() <= got.items()


async def test_text_is_streamed_only_where_it_is_asked_for_and_has_no_id(site: Site) -> None:
    events = await stream(site, call_of(site, query="q", include_deltas=True))
    deltas = [event for event in events if event.name == "delta"]
    assert "".join(event.data["delta"]["text"] for event in deltas) == "6 times 7 is 42.42"
    assert all(event.event_id is None and event.data["sequence"] == 1 for event in deltas)


async def test_silence_is_filled_with_heartbeats(serve_site: ServeSite) -> None:
    hold = asyncio.Event()
    settings = Settings(server=ServerSettings(heartbeat_interval_s=1.0))
    site = await serve_site(FunctionModel(lambda _: Reply(text="<answer>1</answer>", hold=hold)), settings=settings)
    payload = call_of(site, query="q")
    async with site.client.stream(
        "POST", "/api/v1/jsonrpc", json=payload, headers={"accept": "text/event-stream"}
    ) as response:
        names = []
        async for event in read_events(response):
            names.append((event.name, event.event_id is None, event.data["sequence"]))
            if event.name == "heartbeat":
                hold.set()
    assert names == [("started", False, 1), ("heartbeat", True, 1), ("iteration", False, 2), ("completed", False, 3)]


async def test_a_stream_resumes_after_the_last_event_that_was_seen(site: Site) -> None:
    events = await stream(site, call_of(site, query="q"))
    only_token = call_of(site)
    for seen, rest in [(events[0], events[1:]), (events[1], events[2:])]:
        assert await stream(site, only_token, last_event_id=str(seen.event_id)) == rest
    from_start = f"{events[0].data['execution_id']}:0"
    assert await stream(site, only_token, last_event_id=from_start) == events
    assert len(site.model.requests) == 1


async def test_a_client_may_resume_with_the_call_that_it_began_with(site: Site) -> None:
    payload = call_of(site, query="q", strategy="chain_of_thought")
    events = await stream(site, payload)
    assert await stream(site, payload, last_event_id=str(events[0].event_id)) == events[1:]
    assert len(site.model.requests) == 1


@pytest.mark.parametrize(
    ("last_event_id", "reason"),
    [("nonsense", "INVALID_REQUEST"), ("unknown:1", "EXECUTION_NOT_FOUND")],
)
async def test_a_place_that_is_not_there_is_refused(site: Site, last_event_id: str, reason: str) -> None:
    (event,) = await stream(site, call_of(site), last_event_id=last_event_id)
    assert (event.name, event.event_id, event.data["data"]["reason"]) == ("error", None, reason)


async def test_nobody_resumes_what_belongs_to_another_tenant(site: Site) -> None:
    events = await stream(site, call_of(site, query="q"))
    theirs = {**call_of(site), "params": {"auth_token": site.token(subject="mallory", tenant="elsewhere")}}
    (event,) = await stream(site, theirs, last_event_id=str(events[0].event_id))
    assert event.data["data"]["reason"] == "EXECUTION_NOT_FOUND"


@pytest.mark.parametrize(
    ("params", "code", "reason"),
    [
        ({"auth_token": None, "query": "q"}, -32603, "TOKEN_MISSING"),
        ({"query": ""}, -32602, "INVALID_REQUEST"),
        ({"query": "q", "strategy": "unknown"}, -32001, "STRATEGY_NOT_FOUND"),
        ({"query": "q", "strategy_config": {"max_tokens": 1}}, -32602, "INVALID_CONFIG"),
    ],
)
async def test_a_call_that_is_refused_is_one_error_event(
    site: Site, params: Mapping[str, Any], code: int, reason: str
) -> None:
    (event,) = await stream(site, call_of(site, **params))
    assert (event.name, event.event_id) == ("error", None)
    assert (event.data["code"], event.data["data"]["reason"]) == (code, reason)


async def test_a_run_that_fails_ends_with_its_result_and_its_error(serve_site: ServeSite) -> None:
    site = await serve_site(FunctionModel(lambda _: Reply(text="half", error=ModelFailedError("it broke off"))))
    events = await stream(site, call_of(site, query="q"))
    started, cut, completed, error = events
    assert [event.name for event in events] == ["started", "iteration", "completed", "error"]
    assert cut.data["iteration"]["thought"]["text"] == "half"
    assert completed.data["completed"]["finish_reason"] == "failed"
    assert error.data["data"]["reason"] == "MODEL_FAILED"
    assert error.data["data"]["partial"]["execution_id"] == started.data["execution_id"]


async def test_what_cannot_be_streamed_is_answered_as_usual(site: Site) -> None:
    accept = {"accept": "text/event-stream"}
    listing = await site.call("reasoning.list_strategies", {}, **accept)
    assert listing["result"]["strategies"]
    batch = await site.post([call_of(site, query="q"), call_of(site, "nope")], **accept)
    assert [("result" in each) for each in batch.json()] == [True, False]
    assert (await site.post(b"nonsense", **accept)).json()["error"]["code"] == -32700
    assert (await site.post({"id": 1}, **accept)).json()["error"]["code"] == -32600
    notification = call_of(site, query="q")
    del notification["id"]
    assert (await site.post(notification, **accept)).status_code == 204


async def start_and_leave(site: Site, payload: object) -> str:
    """Begin a stream, read its first event, disconnect, and return the id of the execution."""
    async with site.client.stream(
        "POST", "/api/v1/jsonrpc", json=payload, headers={"accept": "text/event-stream"}
    ) as response:
        async for event in read_events(response):
            return str(event.data["execution_id"])
    pytest.fail("the stream was empty")


async def end_of(site: Site, execution_id: str) -> ExecutionState:
    """Wait for the end of an execution, without following its stream, and return its state."""
    run = site.core.runner.find_live(execution_id)
    if run is not None:
        await asyncio.wait_for(run.wait_for_end(), 120)
    return (await read_view(site.core.reasoning.desk, ALICE, execution_id)).execution.state


async def test_a_client_that_leaves_cancels_the_run_and_the_model(serve_site: ServeSite) -> None:
    hold = asyncio.Event()
    site = await serve_site(FunctionModel(lambda _: Reply(text="never", hold=hold)))
    execution_id = await start_and_leave(site, call_of(site, query="q"))
    assert await end_of(site, execution_id) is ExecutionState.CANCELLED
    assert site.model.open_calls == 0


async def test_a_client_that_leaves_may_have_the_run_go_on(serve_site: ServeSite) -> None:
    hold = asyncio.Event()
    site = await serve_site(FunctionModel(lambda _: Reply(text="<answer>1</answer>", hold=hold)))
    execution_id = await start_and_leave(site, call_of(site, query="q", keep_running=True))
    hold.set()
    assert await end_of(site, execution_id) is ExecutionState.SUCCEEDED
