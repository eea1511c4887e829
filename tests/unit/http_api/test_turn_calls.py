"""The methods of TurnService over a real HTTP listener, above a scripted service."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.errors.turns import ToolFailedInTurnError
from reasond_server.turns.turn_service import TurnView
from reasond_server.types import Budget, Cursor, ToolResult
from reasond_server.types.turns import (
    ClientTool,
    ContextBlock,
    ContextScope,
    Decision,
    ResultPart,
    TurnReentry,
    TurnStart,
)
from tests.unit.turns.parts import RESULT, STAMP, WAITING, ScriptedTurns

if TYPE_CHECKING:
    from tests.unit.http_api.parts import ServeSite, Site

START: dict[str, Any] = {
    "message": "Deploy.",
    "session_id": "s",
    "if_revision": 0,
    "material": "long",
    "mode": "careful",
    "client_tools": [{"name": "deploy", "description": "d", "parameters_json": "{}"}],
    "context": [{"name": "a", "text": "b"}, {"name": "c", "scope": "session", "text": "d"}],
    "budget": {"max_model_calls": 3},
}
STARTED = TurnStart(
    message="Deploy.",
    session_id="s",
    if_revision=0,
    material="long",
    mode="careful",
    client_tools=(ClientTool(name="deploy", description="d", parameters_json="{}"),),
    context=(
        ContextBlock(name="a", scope=ContextScope.TURN, text="b"),
        ContextBlock(name="c", scope=ContextScope.SESSION, text="d"),
    ),
    budget=Budget(max_model_calls=3),
)
REENTRY: dict[str, Any] = {
    "turn_id": "turn-1",
    "etag": "h1",
    "results": [{"call_id": "c1", "result_json": "1"}],
    "decisions": [{"call_id": "c2", "is_approved": True}],
}
REENTERED = TurnReentry(
    turn_id="turn-1",
    etag="h1",
    results=(ToolResult(call_id="c1", result_json="1"),),
    decisions=(Decision(call_id="c2", is_approved=True),),
)
SSE = {"accept": "text/event-stream"}


async def events_of(site: Site, method: str, params: dict[str, Any], **headers: str) -> list[dict[str, str]]:
    """Call a method as a stream and return the fields of its events."""
    asked = {"auth_token": site.token(), **params}
    response = await site.post({"jsonrpc": "2.0", "method": method, "params": asked, "id": 1}, **SSE, **headers)
    frames = response.text.strip().split("\n\n")
    return [dict(line.split(": ", 1) for line in frame.splitlines()) for frame in frames]


async def test_a_start_and_a_reentry_return_the_turn_with_its_exit(serve_site: ServeSite) -> None:
    turns = ScriptedTurns()
    site = await serve_site(turns=turns)
    done = (await site.call("turns.start", {**START, "request_id": "mine"}))["result"]
    turns.view = TurnView(turn=WAITING)
    waiting = (await site.call("turns.reenter", REENTRY))["result"]
    assert [(call["source"], call["request_id"]) for call in turns.calls] == [(STARTED, "mine"), (REENTERED, "")]
    assert (done["exit_mode"], done["turn"]["state"], done["result"]["turn_id"]) == ("done", "succeeded", "turn-1")
    assert (done["result"]["elapsed_ms"], done["result"]["error"]) == (1500, None)
    assert (waiting["exit_mode"], waiting["result"]) == ("client_tools", None)
    assert waiting["turn"]["handoff"]["calls"][0]["kind"] == "approve"


@pytest.mark.parametrize(
    ("method", "params", "source"),
    [
        ("turns.start", START, STARTED),
        ("turns.reenter", REENTRY, REENTERED),
        ("turns.attach", {"turn_id": "turn-1", "after_sequence": 0}, Cursor(execution_id="turn-1")),
    ],
)
async def test_three_methods_stream_events_that_name_the_turn(
    serve_site: ServeSite, method: str, params: dict[str, Any], source: object
) -> None:
    turns = ScriptedTurns()
    site = await serve_site(turns=turns)
    events = await events_of(site, method, {**params, "include_deltas": True, "follow": True})
    assert [event["event"] for event in events] == [
        *("started", "model_call", "tool", "mode_change", "handed_off", "reentered", "completed")
    ]
    assert [event["id"] for event in events] == [f"turn-1:{number}" for number in range(1, 8)]
    first = json.loads(events[0]["data"])
    assert first == {
        "turn_id": "turn-1",
        "sequence": 1,
        "create_time": STAMP,
        "started": {"session_id": "s", "mode": "default", "model": "scripted", "session_revision": 1},
    }
    assert not any("SECRET" in event["data"] for event in events)
    (call,) = turns.calls
    assert (call["source"], call["include_deltas"], call["follow"]) == (source, True, True)


@pytest.mark.parametrize(
    ("method", "params"), [("turns.start", START), ("turns.reenter", REENTRY), ("turns.attach", {"turn_id": "turn-1"})]
)
async def test_a_stream_resumes_after_the_last_event_id(
    serve_site: ServeSite, method: str, params: dict[str, Any]
) -> None:
    turns = ScriptedTurns()
    site = await serve_site(turns=turns)
    events = await events_of(site, method, params, last_event_id="turn-1:5")
    assert [event["id"] for event in events] == ["turn-1:6", "turn-1:7"]
    assert [call["source"] for call in turns.calls] == [Cursor(execution_id="turn-1", after_sequence=5)]


async def test_attaching_without_a_stream_waits_for_the_next_exit(serve_site: ServeSite) -> None:
    turns = ScriptedTurns()
    site = await serve_site(turns=turns)
    answer = (await site.call("turns.attach", {"turn_id": "turn-1"}))["result"]
    assert [call["method"] for call in turns.calls] == ["stream", "get"]
    assert (answer["exit_mode"], answer["result"]["answer"]) == ("done", "done")


async def test_the_other_methods_ask_the_core_and_answer(serve_site: ServeSite) -> None:
    turns = ScriptedTurns()
    site = await serve_site(turns=turns)
    one = {"turn_id": "turn-1"}
    got = (await site.call("turns.get", one))["result"]
    assert (got["turn"]["ledger"][0]["state"], got["result"]["finish_reason"]) == ("succeeded", "answered")
    page = (await site.call("turns.list", {"session_id": "s", "page_size": 2}))["result"]
    assert (page["turns"][0]["turn_id"], page["next_page_token"]) == ("turn-1", "more")
    assert (await site.call("turns.cancel", one))["result"]["turn"]["last_sequence"] == 7
    assert (await site.call("turns.delete", one))["result"] == {}
    session = (await site.call("sessions.get", {"session_id": "s"}))["result"]["session"]
    assert (session["revision"], session["create_time"]) == (2, STAMP)
    assert (await site.call("sessions.list"))["result"]["sessions"] == [session]
    assert (await site.call("sessions.delete", {"session_id": "s"}))["result"] == {}
    assert [call["method"] for call in turns.calls] == [
        *("get", "list", "cancel", "delete", "get_session", "list_sessions", "delete_session")
    ]


@pytest.mark.parametrize(
    ("params", "part"),
    [
        ({}, ResultPart()),
        ({"offset": 2, "limit": 4}, ResultPart(offset=2, limit=4)),
        ({"json_pointer": "/a"}, ResultPart(json_pointer="/a")),
        ({"contains": "error"}, ResultPart(contains="error")),
    ],
)
async def test_a_tool_result_is_read_in_parts(serve_site: ServeSite, params: dict[str, Any], part: ResultPart) -> None:
    turns = ScriptedTurns()
    site = await serve_site(turns=turns)
    answer = await site.call("turns.read_tool_result", {"turn_id": "turn-1", "call_id": "c1", **params})
    assert answer["result"] == {
        "text": "cdef",
        "total_characters": 9,
        "offset": 2,
        "next_offset": 6,
        "hits": [{"offset": 2, "text": "cdef"}],
        "is_error": True,
    }
    assert (turns.calls[0]["part"], turns.calls[0]["max_bytes"]) == (part, 3 * 1024 * 1024)


@pytest.mark.parametrize(
    ("method", "params", "field", "says"),
    [
        ("turns.start", {**START, "follow": True}, "follow", "needs a stream; ask for one with"),
        ("turns.start", {"client_tools": [{"nam": "x"}]}, "client_tools.0.nam", "is not known; did you mean 'name'?"),
        ("turns.start", {"context": [{"scope": "ever"}]}, "context.0.scope", "must be one of 'turn' or 'session'"),
        ("turns.start", {"client_tools": [{}] * 1001}, "client_tools", "must have at most 1000 entries"),
        ("turns.reenter", {"decisions": [{"call_id": "c"}]}, "decisions.0.is_approved", "is required"),
        ("turns.attach", {"turn_id": "t", "after_sequence": -1}, "after_sequence", "must be at least 0, got -1"),
        ("turns.get", {"turn_id": ""}, "turn_id", "must not be empty"),
        (
            "turns.read_tool_result",
            {"turn_id": "t", "call_id": "c", "offset": 0, "contains": "x"},
            "contains",
            "cannot be combined with offset; leave one out",
        ),
        (
            "turns.read_tool_result",
            {"turn_id": "t", "call_id": "c", "limit": -1},
            "limit",
            "must be at least 0, got -1",
        ),
    ],
)
async def test_malformed_params_are_refused_before_the_core(
    serve_site: ServeSite, method: str, params: dict[str, Any], field: str, says: str
) -> None:
    turns = ScriptedTurns()
    site = await serve_site(turns=turns)
    error = (await site.call(method, params))["error"]
    assert (error["code"], error["data"]["reason"]) == (-32602, "INVALID_REQUEST")
    (violation,) = error["data"]["violations"]
    assert violation["field"] == field
    assert violation["description"].startswith(says)
    assert not turns.calls


async def test_the_error_of_a_failed_turn_shows_the_turn(serve_site: ServeSite) -> None:
    failure = ToolFailedInTurnError("The tool 'deploy' failed")
    failure.execution_id = "turn-1"
    site = await serve_site(turns=ScriptedTurns(failure=failure))
    error = (await site.call("turns.start", START))["error"]
    assert error["data"]["reason"] == "TOOL_FAILED"
    assert error["data"]["partial"]["turn"]["turn_id"] == "turn-1"
    assert error["data"]["partial"]["result"]["answer"] == RESULT.answer


@pytest.mark.parametrize(
    ("method", "permission"),
    [("turns.start", "turns:execute"), ("turns.get", "turns:read"), ("sessions.delete", "turns:execute")],
)
async def test_each_method_needs_its_permission(serve_site: ServeSite, method: str, permission: str) -> None:
    site = await serve_site(turns=ScriptedTurns())
    token = site.token("reasoning:execute", "executions:read")
    error = (await site.call(method, {"auth_token": token}))["error"]
    assert f"'{permission}'" in error["message"]
