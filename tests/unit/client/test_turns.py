"""Turns with both clients, against a scripted server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from reasond import AsyncClient, Client, ReconnectPolicy, TurnAwaitsError, client_tool
from reasond.v1 import turn_service_pb2 as pb
from reasond.v1 import turns_pb2
from reasond.v1.execution_pb2 import ExecutionCursor
from reasond.v1.strategies_pb2 import ToolCall

if TYPE_CHECKING:
    from tests.unit.client.conftest import Failure, ScriptedServer

QUICK = ReconnectPolicy(initial_backoff_s=0.001, max_backoff_s=0.001)
DONE = pb.RunTurnResponse(
    turn=turns_pb2.Turn(turn_id="t1", state=turns_pb2.TURN_STATE_SUCCEEDED),
    exit_mode=pb.EXIT_MODE_DONE,
    result=turns_pb2.TurnResult(turn_id="t1", answer="42"),
)


def call(call_id: str, tool: str, kind: turns_pb2.CallKind.ValueType, **arguments: Any) -> turns_pb2.PendingCall:
    return turns_pb2.PendingCall(
        call=ToolCall(call_id=call_id, tool=tool, arguments_json=json.dumps(arguments)),
        kind=kind,
        idempotency_key=f"key-{call_id}",
    )


def waiting(*calls: turns_pb2.PendingCall, etag: str = "h1") -> turns_pb2.Turn:
    return turns_pb2.Turn(
        turn_id="t1",
        state=turns_pb2.TURN_STATE_AWAITING_CLIENT,
        handoff=turns_pb2.HandedOff(etag=etag, calls=calls),
    )


def handed_off(*calls: turns_pb2.PendingCall, etag: str = "h1") -> pb.RunTurnResponse:
    return pb.RunTurnResponse(turn=waiting(*calls, etag=etag), exit_mode=pb.EXIT_MODE_CLIENT_TOOLS)


RUN: list[str] = []


@client_tool
def add(a: int, b: int, idempotency_key: str) -> int:
    """Add."""
    RUN.append(idempotency_key)
    return a + b


@client_tool
async def fail(text: str) -> None:
    """Fail."""
    RUN.append("fail")
    raise RuntimeError(text)


@pytest.fixture(params=["async", "sync"])
def ask(request: pytest.FixtureRequest, server: ScriptedServer) -> Any:
    """A function that calls a method of a client and returns its result, or the list of its items."""
    RUN.clear()

    async def asynchronously(method: str, *arguments: Any, **named: Any) -> Any:
        async with AsyncClient(server.target) as client:
            found = getattr(client, method)(*arguments, **named)
            return [each async for each in found] if isinstance(found, AsyncIterator) else await found

    def blocking(method: str, *arguments: Any, **named: Any) -> Any:
        with Client(server.target) as client:
            found = getattr(client, method)(*arguments, **named)
            return list(found) if isinstance(found, Iterator) else found

    async def call_method(method: str, *arguments: Any, **named: Any) -> Any:
        if request.param == "async":
            return await asynchronously(method, *arguments, **named)
        return await asyncio.to_thread(blocking, method, *arguments, **named)

    return call_method


EXECUTE, APPROVE, RESOLVE = turns_pb2.CALL_KIND_EXECUTE, turns_pb2.CALL_KIND_APPROVE, turns_pb2.CALL_KIND_RESOLVE


async def test_a_turn_settles_every_hand_off_and_returns_the_answer(ask: Any, server: ScriptedServer) -> None:
    server.answers(
        "RunTurn",
        handed_off(call("c1", "add", EXECUTE, a=1, b=2), call("c2", "deploy", APPROVE)),
        handed_off(call("c3", "fail", EXECUTE, text="boom"), call("c4", "add", EXECUTE, a="1"), etag="h2"),
        handed_off(call("c5", "mail", RESOLVE), etag="h3"),
        DONE,
    )
    result = await ask(
        "turn",
        "How much?",
        session="s",
        tools=[add, fail],
        approve=lambda pending: f"not {pending.call.tool}",
        resolve=lambda _: {"sent": True},
        mode="careful",
        if_revision=0,
    )
    assert result.answer == "42"
    start, first, second, third = [received.request for received in server.of("RunTurn")]
    assert (start.start.message, start.start.session_id, start.start.mode) == ("How much?", "s", "careful")
    assert start.start.HasField("if_revision")
    assert [tool.name for tool in start.start.client_tools] == ["add", "fail"]
    assert start.request_id
    assert (first.reentry.turn_id, first.reentry.etag, first.request_id) == ("t1", "h1", "")
    assert [(each.call_id, each.result_json, each.is_error) for each in first.reentry.results] == [("c1", "3", False)]
    (decision,) = first.reentry.decisions
    assert (decision.call_id, decision.is_approved, decision.reason) == ("c2", False, "not deploy")
    failed, misused = second.reentry.results
    assert json.loads(failed.result_json) == {"error": "RuntimeError: boom"}
    assert json.loads(misused.result_json) == {"error": "b is required; a must be a whole number, got '1'"}
    assert failed.is_error
    assert misused.is_error
    assert [each.result_json for each in third.reentry.results] == ['{"sent": true}']
    assert RUN == ["key-c1", "fail"], "a call with wrong arguments does not run"


async def test_nothing_runs_if_something_that_a_hand_off_needs_is_not_given(ask: Any, server: ScriptedServer) -> None:
    server.answers(
        "RunTurn",
        handed_off(
            call("c1", "add", EXECUTE, a=1, b=2),
            call("c2", "deploy", APPROVE),
            call("c3", "look", EXECUTE),
            call("c4", "mail", RESOLVE),
        ),
    )
    with pytest.raises(TurnAwaitsError) as caught:
        await ask("turn", "x", tools=[add])
    assert str(caught.value) == (
        "turn 't1' waits for what is not given here: approve= for c2 (deploy); the tool look for c3; "
        "resolve= for c4 (mail); give it to resume_turn('t1', ...)"
    )
    assert caught.value.turn.handoff.etag == "h1"
    assert not RUN


async def test_a_turn_that_waits_is_resumed_by_any_process(ask: Any, server: ScriptedServer) -> None:
    server.answers("GetTurn", pb.GetTurnResponse(turn=waiting(call("c1", "add", EXECUTE, a=1, b=2))))
    server.answers("RunTurn", DONE)
    assert (await ask("resume_turn", "t1", tools=[add])).answer == "42"
    assert RUN == ["key-c1"]


async def test_a_turn_that_runs_is_followed_to_its_exit_before_it_is_resumed(ask: Any, server: ScriptedServer) -> None:
    running = turns_pb2.Turn(turn_id="t1", state=turns_pb2.TURN_STATE_RUNNING, last_sequence=4)
    ended = pb.GetTurnResponse(turn=DONE.turn, result=DONE.result)
    server.answers("GetTurn", pb.GetTurnResponse(turn=running), ended)
    server.answers("ExecuteTurn", [event(5, completed=DONE.result)])
    assert (await ask("resume_turn", "t1")).answer == "42"
    (followed,) = server.of("ExecuteTurn")
    assert followed.request.attach == ExecutionCursor(execution_id="t1", after_sequence=4)


def event(sequence: int, **happening: Any) -> pb.ExecuteTurnResponse:
    return pb.ExecuteTurnResponse(turn_id="t1", sequence=sequence, **happening)


STARTED = event(1, started=turns_pb2.TurnStarted(session_id="s"))
COMPLETED = event(3, completed=DONE.result)


async def test_events_go_on_after_the_connection_broke(
    ask: Any, server: ScriptedServer, failure: type[Failure]
) -> None:
    broken = failure(code=grpc.StatusCode.UNAVAILABLE)
    server.answers("ExecuteTurn", [STARTED, broken], [event(2, tool=turns_pb2.ToolStep()), COMPLETED])
    events = await ask("turn_events", "x", tools=[add], include_deltas=True, follow=True, reconnect=QUICK)
    assert [each.sequence for each in events] == [1, 2, 3]
    first, second = [received.request for received in server.of("ExecuteTurn")]
    assert first.request_id
    assert [tool.name for tool in first.start.client_tools] == ["add"]
    assert second.attach == ExecutionCursor(execution_id="t1", after_sequence=1)
    assert (second.request_id, second.include_deltas, second.follow) == ("", True, True)


async def test_a_connection_that_breaks_after_the_exit_changes_nothing(
    ask: Any, server: ScriptedServer, failure: type[Failure]
) -> None:
    handed = event(2, handed_off=turns_pb2.HandedOff(etag="h1"))
    server.answers("ExecuteTurn", [STARTED, handed, failure(code=grpc.StatusCode.UNAVAILABLE)])
    assert [each.sequence for each in await ask("turn_events", "x", reconnect=QUICK)] == [1, 2]
    assert len(server.of("ExecuteTurn")) == 1


async def test_a_failed_turn_raises_after_its_events(ask: Any, server: ScriptedServer, failure: type[Failure]) -> None:
    failed = failure(code=grpc.StatusCode.ABORTED, reason="TOOL_FAILED", message="the tool failed")
    server.answers("ExecuteTurn", [STARTED, COMPLETED, failed])
    with pytest.raises(Exception, match="the tool failed"):
        await ask("turn_events", "x", reconnect=QUICK)
    assert len(server.of("ExecuteTurn")) == 1


async def test_the_other_methods_call_their_rpcs(ask: Any, server: ScriptedServer) -> None:
    server.answers(
        "ListTurns",
        pb.ListTurnsResponse(turns=[turns_pb2.Turn(turn_id="a")], next_page_token="p"),
        pb.ListTurnsResponse(turns=[turns_pb2.Turn(turn_id="b")]),
    )
    server.answers("ListSessions", pb.ListSessionsResponse(sessions=[turns_pb2.Session(session_id="s")]))
    server.answers("GetSession", pb.GetSessionResponse(session=turns_pb2.Session(session_id="s")))
    server.answers("CancelTurn", pb.CancelTurnResponse(turn=turns_pb2.Turn(turn_id="t1")))
    server.answers("ReadToolResult", pb.ReadToolResultResponse(text="x"), pb.ReadToolResultResponse(text="y"))
    server.answers("DeleteTurn", pb.DeleteTurnResponse())
    server.answers("DeleteSession", pb.DeleteSessionResponse())
    assert [turn.turn_id for turn in await ask("list_turns", session="s", page_size=1)] == ["a", "b"]
    assert [each.request.page_token for each in server.of("ListTurns")] == ["", "p"]
    assert [session.session_id for session in await ask("list_sessions")] == ["s"]
    assert (await ask("get_session", "s")).session_id == "s"
    assert (await ask("cancel_turn", "t1")).turn_id == "t1"
    assert (await ask("read_tool_result", "t1", "c1", offset=3, max_bytes=9)).text == "x"
    assert (await ask("read_tool_result", "t1", "c1", json_pointer="")).text == "y"
    ranged, pointed = [each.request for each in server.of("ReadToolResult")]
    assert (ranged.range.offset, ranged.max_bytes, pointed.WhichOneof("part")) == (3, 9, "json_pointer")
    assert await ask("delete_turn", "t1") is None
    assert await ask("delete_session", "s") is None
    with pytest.raises(ValueError, match="only one of"):
        await ask("read_tool_result", "t1", "c1", offset=3, contains="x")


async def test_tools_are_decorated_functions_with_different_names(ask: Any) -> None:
    with pytest.raises(TypeError, match=r"must be functions with @reasond\.client_tool"):
        await ask("turn", "x", tools=[print])
    with pytest.raises(ValueError, match="twice: add"):
        await ask("turn", "x", tools=[add, add])
