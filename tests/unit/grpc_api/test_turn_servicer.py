"""TurnService over a real gRPC server, above a scripted service."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf import json_format

from reasond.v1 import turn_service_pb2 as pb
from reasond.v1 import turns_pb2
from reasond.v1.execution_pb2 import EXECUTION_STATE_SUSPENDED, ExecutionCursor
from reasond.v1.execution_pb2 import Budget as BudgetMessage
from reasond.v1.strategies_pb2 import ToolResult as ToolResultMessage
from reasond_server.errors.base import Violation
from reasond_server.errors.request import InvalidRequestError
from reasond_server.errors.turns import TurnLeasedError
from reasond_server.grpc_api.turn_servicer import build_turn_event_message
from reasond_server.turns.turn_service import TurnView
from reasond_server.types import Budget, Cursor, ExecutionState, ToolResult
from reasond_server.types.turns import (
    ClientTool,
    ContextBlock,
    ContextScope,
    Decision,
    ResultPart,
    TurnReentry,
    TurnStart,
)
from tests.unit.grpc_api.parts import AUTHORIZED, PRINCIPAL, get_error, serving
from tests.unit.turns.parts import EVENTS, HAPPENINGS, WAITING, ScriptedTurns, turn_event

START_MESSAGE = turns_pb2.TurnStart(
    session_id="s",
    if_revision=0,
    message="Deploy.",
    material="long",
    mode="careful",
    client_tools=[turns_pb2.ClientTool(name="deploy", description="d", parameters_json="{}")],
    context=[
        turns_pb2.ContextBlock(name="a", text="b"),
        turns_pb2.ContextBlock(name="c", scope=turns_pb2.CONTEXT_SCOPE_SESSION, text="d"),
    ],
    budget=BudgetMessage(max_model_calls=3),
)
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
REENTRY_MESSAGE = turns_pb2.TurnReentry(
    turn_id="turn-1",
    etag="h1",
    results=[ToolResultMessage(call_id="c1", result_json="1", is_error=True)],
    decisions=[turns_pb2.Decision(call_id="c2", reason="no")],
)
REENTERED = TurnReentry(
    turn_id="turn-1",
    etag="h1",
    results=(ToolResult(call_id="c1", result_json="1", is_error=True),),
    decisions=(Decision(call_id="c2", is_approved=False, reason="no"),),
)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ({"start": START_MESSAGE}, STARTED),
        ({"start": turns_pb2.TurnStart(message="m")}, TurnStart(message="m")),
        ({"reentry": REENTRY_MESSAGE}, REENTERED),
        (
            {"attach": ExecutionCursor(execution_id="turn-1", after_sequence=4)},
            Cursor(execution_id="turn-1", after_sequence=4),
        ),
    ],
)
async def test_a_stream_asks_the_core_for_what_the_request_says(source: dict[str, Any], expected: object) -> None:
    turns = ScriptedTurns()
    async with serving(turns=turns) as served:
        call = served.turns.ExecuteTurn(
            pb.ExecuteTurnRequest(**source, include_deltas=True, follow=True), metadata=AUTHORIZED
        )
        received = [event async for event in call]
    assert turns.calls == [
        {
            "method": "stream",
            "caller": PRINCIPAL,
            "source": expected,
            "request_id": "",
            "include_deltas": True,
            "follow": True,
        }
    ]
    assert [event.sequence for event in received] == [each.sequence for each in EVENTS][-len(received) :]
    assert received[-1].WhichOneof("event") == "completed"
    assert {event.turn_id for event in received} == {"turn-1"}


async def test_run_turn_returns_the_turn_with_its_exit() -> None:
    turns = ScriptedTurns()
    async with serving(turns=turns) as served:
        request = pb.RunTurnRequest(start=START_MESSAGE, request_id="mine")
        done = await served.turns.RunTurn(request, metadata=AUTHORIZED)
        turns.view = TurnView(turn=WAITING)
        waiting = await served.turns.RunTurn(pb.RunTurnRequest(reentry=REENTRY_MESSAGE), metadata=AUTHORIZED)
    assert [call["source"] for call in turns.calls] == [STARTED, REENTERED]
    assert [call["request_id"] for call in turns.calls] == ["mine", ""]
    assert (done.exit_mode, done.result.answer, done.turn.ledger[0].call_id) == (pb.EXIT_MODE_DONE, "done", "c1")
    assert (waiting.exit_mode, waiting.HasField("result")) == (pb.EXIT_MODE_CLIENT_TOOLS, False)
    assert waiting.turn.state == turns_pb2.TURN_STATE_AWAITING_CLIENT
    (pending,) = waiting.turn.handoff.calls
    assert (pending.kind, pending.idempotency_key, pending.call.tool) == (
        turns_pb2.CALL_KIND_APPROVE,
        "key-1",
        "deploy",
    )


@pytest.mark.parametrize("happening", HAPPENINGS, ids=lambda one: type(one).__name__)
def test_an_event_fills_its_message_and_shows_nothing_that_is_only_stored(happening: Any) -> None:
    message = build_turn_event_message(turn_event(3, happening))
    assert message.WhichOneof("event") is not None
    assert "SECRET" not in json_format.MessageToJson(message)


async def test_the_rpcs_about_one_turn_ask_the_core_and_answer() -> None:
    turns = ScriptedTurns()
    async with serving(turns=turns) as served:
        stub, md = served.turns, AUTHORIZED
        got = await stub.GetTurn(pb.GetTurnRequest(turn_id="turn-1"), metadata=md)
        page = await stub.ListTurns(
            pb.ListTurnsRequest(session_id="s", state=EXECUTION_STATE_SUSPENDED, page_size=2, page_token="p"),
            metadata=md,
        )
        cancelled = await stub.CancelTurn(pb.CancelTurnRequest(turn_id="turn-1"), metadata=md)
        await stub.DeleteTurn(pb.DeleteTurnRequest(turn_id="turn-1"), metadata=md)
    assert (got.turn.turn_id, got.result.turn_id, got.turn.request_id) == ("turn-1", "turn-1", "mine")
    assert ([turn.turn_id for turn in page.turns], page.next_page_token) == (["turn-1"], "more")
    assert cancelled.turn.state == turns_pb2.TURN_STATE_SUCCEEDED
    assert turns.calls[1] == {
        "method": "list",
        "caller": PRINCIPAL,
        "session_id": "s",
        "state": ExecutionState.SUSPENDED,
        "page_size": 2,
        "page_token": "p",
    }
    assert [call["method"] for call in turns.calls] == ["get", "list", "cancel", "delete"]


async def test_the_rpcs_about_sessions_ask_the_core_and_answer() -> None:
    turns = ScriptedTurns()
    async with serving(turns=turns) as served:
        stub, md = served.turns, AUTHORIZED
        session = (await stub.GetSession(pb.GetSessionRequest(session_id="s"), metadata=md)).session
        page = await stub.ListSessions(pb.ListSessionsRequest(page_size=2, page_token="p"), metadata=md)
        await stub.DeleteSession(pb.DeleteSessionRequest(session_id="s"), metadata=md)
    assert (session.session_id, session.revision, session.open_turn_id, session.turn_count) == ("s", 2, "turn-1", 1)
    assert ([each.session_id for each in page.sessions], page.next_page_token) == (["s"], "more")
    assert [call["method"] for call in turns.calls] == ["get_session", "list_sessions", "delete_session"]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({}, ResultPart()),
        ({"range": pb.CharacterRange(offset=2, limit=4)}, ResultPart(offset=2, limit=4)),
        ({"json_pointer": ""}, ResultPart(json_pointer="")),
        ({"contains": "error"}, ResultPart(contains="error")),
    ],
)
async def test_a_tool_result_is_read_in_parts_that_fit_into_a_message(
    part: dict[str, Any], expected: ResultPart
) -> None:
    turns = ScriptedTurns()
    async with serving(turns=turns, max_send_bytes=1024 * 1024) as served:
        request = pb.ReadToolResultRequest(turn_id="turn-1", call_id="c1", **part)
        got = await served.turns.ReadToolResult(request, metadata=AUTHORIZED)
        request.max_bytes = 10
        await served.turns.ReadToolResult(request, metadata=AUTHORIZED)
    assert [call["part"] for call in turns.calls] == [expected, expected]
    assert [call["max_bytes"] for call in turns.calls] == [960 * 1024, 10]
    assert (got.text, got.offset, got.next_offset, got.total_characters, got.is_error) == ("cdef", 2, 6, 9, True)
    assert (got.hits[0].offset, got.hits[0].text) == (2, "cdef")


@pytest.mark.parametrize(
    ("rpc", "request_message", "field", "says"),
    [
        ("RunTurn", pb.RunTurnRequest(), "start", "is required, unless reentry is given"),
        ("ExecuteTurn", pb.ExecuteTurnRequest(), "start", "is required, unless reentry is given"),
        (
            "RunTurn",
            pb.RunTurnRequest(reentry=REENTRY_MESSAGE, request_id="r"),
            "request_id",
            "belongs to start; reentry names its turn instead",
        ),
        ("ExecuteTurn", pb.ExecuteTurnRequest(attach=ExecutionCursor()), "attach.execution_id", "is required"),
        (
            "ExecuteTurn",
            pb.ExecuteTurnRequest(attach=ExecutionCursor(execution_id="t", after_sequence=-1)),
            "attach.after_sequence",
            "must be at least 0, got -1",
        ),
        (
            "RunTurn",
            pb.RunTurnRequest(start=turns_pb2.TurnStart(context=[turns_pb2.ContextBlock(scope=7)])),  # type: ignore[arg-type]  # what a newer client may send
            "start.context[0].scope",
            "must be one of CONTEXT_SCOPE_UNSPECIFIED, CONTEXT_SCOPE_TURN, CONTEXT_SCOPE_SESSION, not 7",
        ),
        ("GetTurn", pb.GetTurnRequest(), "turn_id", "is required"),
        ("ReadToolResult", pb.ReadToolResultRequest(turn_id="t"), "call_id", "is required"),
        (
            "ReadToolResult",
            pb.ReadToolResultRequest(turn_id="t", call_id="c", range=pb.CharacterRange(offset=-1)),
            "range.offset",
            "must be at least 0, got -1",
        ),
        ("DeleteSession", pb.DeleteSessionRequest(), "session_id", "is required"),
    ],
)
async def test_a_malformed_request_is_refused_with_the_path_of_its_field(
    rpc: str, request_message: Any, field: str, says: str
) -> None:
    turns = ScriptedTurns()
    async with serving(turns=turns) as served:
        code, _, details = await get_error(getattr(served.turns, rpc)(request_message, metadata=AUTHORIZED))
    assert code is grpc.StatusCode.INVALID_ARGUMENT
    (violation,) = details["BadRequest"].field_violations
    assert (violation.field, violation.description) == (field, says)
    assert not turns.calls


@pytest.mark.parametrize(
    ("source", "prefix"), [({"start": START_MESSAGE}, "start."), ({"reentry": REENTRY_MESSAGE}, "reentry.")]
)
async def test_violations_of_the_core_name_the_fields_of_the_request(source: dict[str, Any], prefix: str) -> None:
    inner = "client_tools[0].name" if prefix == "start." else "results[1].call_id"
    fields = [Violation(field=name, description="d") for name in (inner, "request_id")]
    turns = ScriptedTurns(failure=InvalidRequestError.of(*fields))
    async with serving(turns=turns) as served:
        for call in (
            served.turns.RunTurn(pb.RunTurnRequest(**source), metadata=AUTHORIZED),
            served.turns.ExecuteTurn(pb.ExecuteTurnRequest(**source), metadata=AUTHORIZED),
        ):
            turns.failure = InvalidRequestError.of(*fields)
            _, _, details = await get_error(call)
            assert [each.field for each in details["BadRequest"].field_violations] == [f"{prefix}{inner}", "request_id"]


async def test_an_error_of_a_turn_keeps_its_code_and_its_reason() -> None:
    async with serving(turns=ScriptedTurns(failure=TurnLeasedError("The turn 'turn-1' runs"))) as served:
        call = served.turns.RunTurn(pb.RunTurnRequest(start=START_MESSAGE), metadata=AUTHORIZED)
        code, _, details = await get_error(call)
    assert (code, details["ErrorInfo"].reason) == (grpc.StatusCode.ABORTED, "TURN_LEASED")
