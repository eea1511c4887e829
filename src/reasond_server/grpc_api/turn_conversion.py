"""Turns over gRPC: requests of the proto -> types, and types -> messages by the declarations of their kinds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reasond.v1 import turn_service_pb2 as pb
from reasond.v1 import turns_pb2
from reasond_server.grpc_api.conversion import build_history_message
from reasond_server.grpc_api.message_writers import Alternatives, fill
from reasond_server.grpc_api.requests import (
    invalid,
    read_budget,
    read_enum_word,
    read_history,
    read_image,
    read_result,
    require_id,
)
from reasond_server.grpc_api.times import fill_timestamp
from reasond_server.turns.turn_service import TurnCursor
from reasond_server.types import NO_BUDGET
from reasond_server.types.kinds import EVENTS
from reasond_server.types.turns import (
    ClientTool,
    ContextBlock,
    ContextScope,
    Decision,
    ResultPart,
    TurnReentry,
    TurnStart,
)

if TYPE_CHECKING:
    from reasond.v1 import execution_pb2
    from reasond_server.turns.turn_service import TurnView
    from reasond_server.types import StreamEvent
    from reasond_server.types.turns import TurnConversation

_EVENTS: Final = Alternatives(EVENTS, pb.ExecuteTurnResponse.DESCRIPTOR.oneofs_by_name["event"])


def read_source(request: pb.ExecuteTurnRequest) -> TurnStart | TurnReentry | TurnCursor:
    """Return what the request wants. Raises as `read_turn_work`."""
    if request.WhichOneof("source") != "attach":
        return read_turn_work(request)
    _refuse_request_id(request)
    return read_cursor(request.attach)


def read_turn_work(request: pb.ExecuteTurnRequest | pb.RunTurnRequest) -> TurnStart | TurnReentry:
    """Return what a request starts or goes on with.

    Raises:
        InvalidRequestError: it has no source, a request id without a start, or a value that the proto does not declare.
    """
    case = request.WhichOneof("source")
    if case is None:
        raise invalid("start", "is required, unless reentry is given")
    if case == "start":
        return read_start(request.start)
    _refuse_request_id(request)
    return read_reentry(request.reentry)


def read_start(start: turns_pb2.TurnStart) -> TurnStart:
    """Return the start of a turn; its limits are checked by `turns.turn_requests`.

    Raises:
        InvalidRequestError: a value is not declared by the proto.
    """
    return TurnStart(
        message=start.message,
        session_id=start.session_id,
        if_revision=start.if_revision if start.HasField("if_revision") else None,
        material=start.material,
        mode=start.mode if start.HasField("mode") else None,
        client_tools=tuple(
            ClientTool(name=tool.name, description=tool.description, parameters_json=tool.parameters_json)
            for tool in start.client_tools
        ),
        context=tuple(
            ContextBlock(
                name=block.name, scope=_read_scope(block.scope, path=f"start.context[{index}].scope"), text=block.text
            )
            for index, block in enumerate(start.context)
        ),
        budget=read_budget(start.budget, path="start.budget") if start.HasField("budget") else NO_BUDGET,
        system=start.system,
        history=tuple(read_history(start.history, path="start.history")),
        tool_choice=start.tool_choice,
        parallel_tool_calls=start.parallel_tool_calls if start.HasField("parallel_tool_calls") else True,
        answer_schema_json=start.answer_schema_json,
        stop=tuple(start.stop),
        images=tuple(map(read_image, start.images)),
        temperature=start.temperature if start.HasField("temperature") else None,
        seed=start.seed if start.HasField("seed") else None,
    )


def read_reentry(reentry: turns_pb2.TurnReentry) -> TurnReentry:
    """Return the results and decisions for a hand-off."""
    return TurnReentry(
        turn_id=reentry.turn_id,
        etag=reentry.etag,
        results=tuple(map(read_result, reentry.results)),
        decisions=tuple(
            Decision(call_id=each.call_id, is_approved=each.is_approved, reason=each.reason)
            for each in reentry.decisions
        ),
    )


def read_cursor(cursor: execution_pb2.ExecutionCursor) -> TurnCursor:
    """Return the place to follow a turn from.

    Raises:
        InvalidRequestError: it names no turn, or a negative place.
    """
    if cursor.after_sequence < 0:
        raise invalid("attach.after_sequence", f"must be at least 0, got {cursor.after_sequence}")
    return TurnCursor(
        turn_id=require_id(cursor.execution_id, field="attach.execution_id"), after_sequence=cursor.after_sequence
    )


def read_part(request: pb.ReadToolResultRequest) -> ResultPart:
    """Return the part of a tool result that the request wants."""
    case = request.WhichOneof("part")
    if case == "range":
        return ResultPart(offset=request.range.offset, limit=request.range.limit)
    if case == "json_pointer":
        return ResultPart(json_pointer=request.json_pointer)
    return ResultPart(contains=request.contains) if case == "contains" else ResultPart()


def build_turn_event_message(event: StreamEvent) -> pb.ExecuteTurnResponse:
    """Return one event of a turn."""
    message = pb.ExecuteTurnResponse()
    message.turn_id, message.sequence = event.execution_id, event.sequence
    fill_timestamp(message.create_time, event.create_time)
    happening = event.event
    _EVENTS[happening.__class__](message, happening, True)
    return message


def fill_view(message: pb.RunTurnResponse | pb.GetTurnResponse, view: TurnView) -> None:
    """Write a turn, and how it ended if it did."""
    fill(message.turn, view.turn)
    if view.result is not None:
        fill(message.result, view.result)


def build_conversation_message(told: TurnConversation) -> pb.TurnConversation:
    """Return what was said to a turn."""
    return pb.TurnConversation(
        system=told.system,
        history=map(build_history_message, told.history),
        message=told.message,
        material=told.material,
        context=[fill(turns_pb2.ContextBlock(), block) for block in told.context],
        left_out_messages=told.left_out_messages,
    )


def _refuse_request_id(request: pb.ExecuteTurnRequest | pb.RunTurnRequest) -> None:
    if request.request_id:
        raise invalid("request_id", f"belongs to start; {request.WhichOneof('source')} names its turn instead")


def _read_scope(number: int, *, path: str) -> ContextScope:
    word = read_enum_word(turns_pb2.ContextScope.DESCRIPTOR, number, path=path)
    return ContextScope.TURN if word is None else ContextScope(word)
