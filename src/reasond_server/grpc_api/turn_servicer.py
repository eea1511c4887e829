"""TurnService over gRPC: converts requests, calls the core, converts responses; decides nothing."""
# ruff: noqa: N802 - the names of the methods are those of the contract

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from reasond.v1 import turn_service_pb2 as pb
from reasond.v1 import turn_service_pb2_grpc, turns_pb2
from reasond_server.errors.base import ReasondError
from reasond_server.grpc_api.guard import get_current_principal
from reasond_server.grpc_api.message_writers import Alternatives, fill, fill_timestamp
from reasond_server.grpc_api.reasoning_servicer import build_history_message
from reasond_server.grpc_api.requests import (
    invalid,
    prefix_fields,
    read_budget,
    read_cursor,
    read_enum_word,
    read_history,
    read_image,
    read_result,
    read_state,
    require_id,
)
from reasond_server.grpc_api.stream_writer import StreamWriter
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.turns.turn_requests import check_part
from reasond_server.types import NO_BUDGET, Cursor, StreamEvent
from reasond_server.types.kinds import EVENTS
from reasond_server.types.turns import (
    ClientTool,
    ContextBlock,
    ContextScope,
    Decision,
    ResultPart,
    TurnReentry,
    TurnStart,
    TurnState,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reasond_server.grpc_api.handlers import Context, MethodTable
    from reasond_server.turns.turn_service import TurnService, TurnView
    from reasond_server.types.turns import TurnConversation

_EVENTS: Final = Alternatives(EVENTS, pb.ExecuteTurnResponse.DESCRIPTOR.oneofs_by_name["event"])


def read_source(request: pb.ExecuteTurnRequest) -> TurnStart | TurnReentry | Cursor:
    """Return what the request wants. Raises as `read_turn_work`."""
    if request.WhichOneof("source") != "attach":
        return read_turn_work(request)
    _refuse_request_id(request)
    return read_cursor(request.attach, path="attach")


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
    _EVENTS[happening.__class__](message, happening, has_content=True)
    return message


def fill_view(message: pb.RunTurnResponse | pb.GetTurnResponse, view: TurnView) -> None:
    """Write a turn, and how it ended if it did."""
    fill(message.turn, view.turn)
    if view.result is not None:
        fill(message.result, view.result)


def build_conversation_message(conversation: TurnConversation) -> pb.TurnConversation:
    """Return what was said to a turn."""
    return pb.TurnConversation(
        system=conversation.system,
        history=map(build_history_message, conversation.history),
        message=conversation.message,
        material=conversation.material,
        context=[fill(turns_pb2.ContextBlock(), block) for block in conversation.context],
        left_out_messages=conversation.left_out_messages,
    )


def _refuse_request_id(request: pb.ExecuteTurnRequest | pb.RunTurnRequest) -> None:
    if request.request_id:
        raise invalid("request_id", f"belongs to start; {request.WhichOneof('source')} names its turn instead")


def _read_scope(number: int, *, path: str) -> ContextScope:
    word = read_enum_word(turns_pb2.ContextScope.DESCRIPTOR, number, path=path)
    return ContextScope.TURN if word is None else ContextScope(word)


_MAX_EXCERPT_BYTES: Final = 3 * 1024 * 1024
_EXCERPT_ROOM_BYTES: Final = 64 * 1024
_RANGE_FIELDS: Final = frozenset({"limit", "offset"})
_FIELDS: Final = {
    "start": frozenset(field.name for field in turns_pb2.TurnStart.DESCRIPTOR.fields),
    "reentry": frozenset(field.name for field in turns_pb2.TurnReentry.DESCRIPTOR.fields),
}


class TurnServicer(turn_service_pb2_grpc.TurnServiceServicer):
    """Serves `reasond.v1.TurnService` from the core.

    A client that does not read a message within `write_timeout_s` seconds is disconnected (SLOW_CONSUMER); it can
    attach again. An excerpt of a tool result is bounded to fit into `max_send_bytes`.
    """

    def __init__(
        self,
        *,
        service: TurnService,
        max_send_bytes: int = 4 * 1024 * 1024,
        write_timeout_s: float = 30.0,
        observer: Observer = UNOBSERVED,
    ) -> None:
        self._service = service
        self._max_excerpt_bytes = min(_MAX_EXCERPT_BYTES, max(1, max_send_bytes - _EXCERPT_ROOM_BYTES))
        self._streams = StreamWriter(write_timeout_s=write_timeout_s, observer=observer, id_name="turn_id")

    def register(self, methods: MethodTable) -> None:
        """Add the RPCs to the `methods` of a server."""
        turn_service_pb2_grpc.add_TurnServiceServicer_to_server(self, methods)  # type: ignore[arg-type]  # it takes what it is told

    async def ExecuteTurn(  # type: ignore[override]  # grpc.aio takes coroutines that write, see `handlers`
        self, request: pb.ExecuteTurnRequest, context: Context
    ) -> None:
        """Write the events of a turn as they come, to its next exit."""
        with _name_fields(request):
            events = self._service.stream(
                get_current_principal(),
                read_source(request),
                request_id=request.request_id,
                include_deltas=request.include_deltas,
                follow=request.follow,
            )
            await self._streams.write(events, context, build_turn_event_message)

    async def RunTurn(self, request: pb.RunTurnRequest, context: Context) -> pb.RunTurnResponse:
        """Start a turn or go on with one, and return it at the next exit."""
        with _name_fields(request):
            view = await self._service.run(
                get_current_principal(), read_turn_work(request), request_id=request.request_id
            )
        is_waiting = view.turn.state is TurnState.AWAITING_CLIENT
        response = pb.RunTurnResponse(exit_mode=pb.EXIT_MODE_CLIENT_TOOLS if is_waiting else pb.EXIT_MODE_DONE)
        fill_view(response, view)
        return response

    async def GetTurn(self, request: pb.GetTurnRequest, context: Context) -> pb.GetTurnResponse:
        """Return a turn with its ledger and what was said to it."""
        turn_id = require_id(request.turn_id, field="turn_id")
        view = await self._service.get(get_current_principal(), turn_id, with_conversation=True)
        conversation = None if view.conversation is None else build_conversation_message(view.conversation)
        response = pb.GetTurnResponse(conversation=conversation)
        fill_view(response, view)
        return response

    async def ListTurns(self, request: pb.ListTurnsRequest, context: Context) -> pb.ListTurnsResponse:
        """List the caller's turns, newest first."""
        page = await self._service.list(
            get_current_principal(),
            session_id=request.session_id,
            state=read_state(request.state),
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return pb.ListTurnsResponse(
            turns=[fill(turns_pb2.Turn(), turn) for turn in page.turns], next_page_token=page.next_page_token
        )

    async def CancelTurn(self, request: pb.CancelTurnRequest, context: Context) -> pb.CancelTurnResponse:
        """Cancel a turn and return it."""
        turn_id = require_id(request.turn_id, field="turn_id")
        return pb.CancelTurnResponse(
            turn=fill(turns_pb2.Turn(), await self._service.cancel(get_current_principal(), turn_id))
        )

    async def DeleteTurn(self, request: pb.DeleteTurnRequest, context: Context) -> pb.DeleteTurnResponse:
        """Forget a turn."""
        await self._service.delete(get_current_principal(), require_id(request.turn_id, field="turn_id"))
        return pb.DeleteTurnResponse()

    async def ReadToolResult(self, request: pb.ReadToolResultRequest, context: Context) -> pb.ReadToolResultResponse:
        """Return a part of the whole result of a tool call."""
        turn_id, call_id = (require_id(getattr(request, name), field=name) for name in ("turn_id", "call_id"))
        part, most = read_part(request), self._max_excerpt_bytes
        try:
            check_part(part, max_bytes=request.max_bytes)
        except ReasondError as error:
            prefix_fields(error, "range.", _RANGE_FIELDS)
            raise
        excerpt = await self._service.read_tool_result(
            get_current_principal(), turn_id, call_id, part, max_bytes=min(request.max_bytes or most, most)
        )
        return fill(pb.ReadToolResultResponse(), excerpt)

    async def GetSession(self, request: pb.GetSessionRequest, context: Context) -> pb.GetSessionResponse:
        """Return a session."""
        session_id = require_id(request.session_id, field="session_id")
        return pb.GetSessionResponse(
            session=fill(turns_pb2.Session(), await self._service.get_session(get_current_principal(), session_id))
        )

    async def ListSessions(self, request: pb.ListSessionsRequest, context: Context) -> pb.ListSessionsResponse:
        """List the caller's sessions, last changed first."""
        page = await self._service.list_sessions(
            get_current_principal(), page_size=request.page_size, page_token=request.page_token
        )
        return pb.ListSessionsResponse(
            sessions=[fill(turns_pb2.Session(), session) for session in page.sessions],
            next_page_token=page.next_page_token,
        )

    async def DeleteSession(self, request: pb.DeleteSessionRequest, context: Context) -> pb.DeleteSessionResponse:
        """Forget a session and its turns."""
        await self._service.delete_session(get_current_principal(), require_id(request.session_id, field="session_id"))
        return pb.DeleteSessionResponse()


@contextmanager
def _name_fields(request: pb.ExecuteTurnRequest | pb.RunTurnRequest) -> Iterator[None]:
    """Make violations name the fields of the request: `message` becomes `start.message`."""
    try:
        yield
    except ReasondError as error:
        source = request.WhichOneof("source")
        if source in _FIELDS:
            prefix_fields(error, f"{source}.", _FIELDS[source])
        raise
