"""TurnService over gRPC: converts requests, calls the core, converts responses; decides nothing."""
# ruff: noqa: N802 - the names of the methods are those of the contract

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from reasond.v1 import turn_service_pb2 as pb
from reasond.v1 import turn_service_pb2_grpc, turns_pb2
from reasond_server.errors.base import ReasondError
from reasond_server.grpc_api.guard import get_current_principal
from reasond_server.grpc_api.message_writers import fill
from reasond_server.grpc_api.requests import prefix_fields, require_id
from reasond_server.grpc_api.stream_writer import StreamWriter
from reasond_server.grpc_api.turn_conversion import (
    build_conversation_message,
    build_turn_event_message,
    fill_view,
    read_part,
    read_source,
    read_turn_work,
)
from reasond_server.telemetry.observers import UNOBSERVED
from reasond_server.turns.turn_requests import check_part
from reasond_server.types.turns import TurnState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reasond_server.grpc_api.handlers import Context, MethodTable
    from reasond_server.telemetry.observers import CallObserver
    from reasond_server.turns.turn_service import TurnService

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
        observer: CallObserver = UNOBSERVED,
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
        with _naming_fields(request):
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
        del context
        with _naming_fields(request):
            view = await self._service.run(
                get_current_principal(), read_turn_work(request), request_id=request.request_id
            )
        is_waiting = view.turn.state is TurnState.AWAITING_CLIENT
        response = pb.RunTurnResponse(exit_mode=pb.EXIT_MODE_CLIENT_TOOLS if is_waiting else pb.EXIT_MODE_DONE)
        fill_view(response, view)
        return response

    async def GetTurn(self, request: pb.GetTurnRequest, context: Context) -> pb.GetTurnResponse:
        """Return a turn with its ledger and what was said to it."""
        del context
        turn_id = require_id(request.turn_id, field="turn_id")
        view = await self._service.get(get_current_principal(), turn_id, with_conversation=True)
        told = None if view.conversation is None else build_conversation_message(view.conversation)
        response = pb.GetTurnResponse(conversation=told)
        fill_view(response, view)
        return response

    async def ListTurns(self, request: pb.ListTurnsRequest, context: Context) -> pb.ListTurnsResponse:
        """List the caller's turns, newest first."""
        del context
        page = await self._service.list(
            get_current_principal(),
            session_id=request.session_id,
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return pb.ListTurnsResponse(
            turns=[fill(turns_pb2.Turn(), turn) for turn in page.turns], next_page_token=page.next_page_token
        )

    async def CancelTurn(self, request: pb.CancelTurnRequest, context: Context) -> pb.CancelTurnResponse:
        """Cancel a turn and return it."""
        del context
        turn_id = require_id(request.turn_id, field="turn_id")
        return pb.CancelTurnResponse(
            turn=fill(turns_pb2.Turn(), await self._service.cancel(get_current_principal(), turn_id))
        )

    async def DeleteTurn(self, request: pb.DeleteTurnRequest, context: Context) -> pb.DeleteTurnResponse:
        """Forget a turn."""
        del context
        await self._service.delete(get_current_principal(), require_id(request.turn_id, field="turn_id"))
        return pb.DeleteTurnResponse()

    async def ReadToolResult(self, request: pb.ReadToolResultRequest, context: Context) -> pb.ReadToolResultResponse:
        """Return a part of the whole result of a tool call."""
        del context
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
        del context
        session_id = require_id(request.session_id, field="session_id")
        return pb.GetSessionResponse(
            session=fill(turns_pb2.Session(), await self._service.get_session(get_current_principal(), session_id))
        )

    async def ListSessions(self, request: pb.ListSessionsRequest, context: Context) -> pb.ListSessionsResponse:
        """List the caller's sessions, last changed first."""
        del context
        page = await self._service.list_sessions(
            get_current_principal(), page_size=request.page_size, page_token=request.page_token
        )
        return pb.ListSessionsResponse(
            sessions=[fill(turns_pb2.Session(), session) for session in page.sessions],
            next_page_token=page.next_page_token,
        )

    async def DeleteSession(self, request: pb.DeleteSessionRequest, context: Context) -> pb.DeleteSessionResponse:
        """Forget a session and its turns."""
        del context
        await self._service.delete_session(get_current_principal(), require_id(request.session_id, field="session_id"))
        return pb.DeleteSessionResponse()


@contextmanager
def _naming_fields(request: pb.ExecuteTurnRequest | pb.RunTurnRequest) -> Iterator[None]:
    """Make violations name the fields of the request: `message` becomes `start.message`."""
    try:
        yield
    except ReasondError as error:
        source = request.WhichOneof("source")
        if source in _FIELDS:
            prefix_fields(error, f"{source}.", _FIELDS[source])
        raise
