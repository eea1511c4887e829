"""ExecutionService over gRPC: converts requests, calls the desks, converts responses; decides nothing."""
# ruff: noqa: N802 - the names of the methods are those of the contract

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from reasond.v1 import execution_pb2, execution_service_pb2_grpc
from reasond.v1 import execution_service_pb2 as pb
from reasond_server.grpc_api.guard import get_current_principal
from reasond_server.grpc_api.message_writers import fill
from reasond_server.grpc_api.reasoning_servicer import RESULT_ROOM_BYTES, build_event_message, fill_task, fill_traced
from reasond_server.grpc_api.repair_servicer import build_repair_event_message
from reasond_server.grpc_api.requests import read_finish_reason, read_moment, read_state, read_trace_view, require_id
from reasond_server.grpc_api.stream_writer import StreamWriter
from reasond_server.grpc_api.turn_servicer import build_turn_event_message
from reasond_server.reasoning.strategy_work import REASONING
from reasond_server.reasoning.views import read_view
from reasond_server.repair.service.repair_work import REPAIR
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.turns.history import TURN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from reasond_server.executions.desk import ExecutionDesk
    from reasond_server.grpc_api.handlers import Context, MethodTable
    from reasond_server.types import StreamEvent

_Time: TypeAlias = Literal["create_time_after", "create_time_before"]
_OBSERVED: Final[Mapping[str, Callable[[StreamEvent], pb.FollowExecutionResponse]]] = {
    REASONING: lambda event: pb.FollowExecutionResponse(reasoning=build_event_message(event)),
    TURN: lambda event: pb.FollowExecutionResponse(turn=build_turn_event_message(event)),
    REPAIR: lambda event: pb.FollowExecutionResponse(repair=build_repair_event_message(event)),
}


class ExecutionServicer(execution_service_pb2_grpc.ExecutionServiceServicer):
    """Serves `reasond.v1.ExecutionService` from two desks: `observed` has the executions that can be followed.

    The limits are those of `ReasoningServicer`.
    """

    def __init__(
        self,
        *,
        desk: ExecutionDesk,
        observed: ExecutionDesk,
        max_send_bytes: int = 4 * 1024 * 1024,
        write_timeout_s: float = 30.0,
        observer: Observer = UNOBSERVED,
    ) -> None:
        self._desk = desk
        self._observed = observed
        self._room = max_send_bytes - RESULT_ROOM_BYTES
        self._streams = StreamWriter(write_timeout_s=write_timeout_s, observer=observer)

    def register(self, methods: MethodTable) -> None:
        """Add the RPCs to the `methods` of a server."""
        execution_service_pb2_grpc.add_ExecutionServiceServicer_to_server(self, methods)  # type: ignore[arg-type]  # it takes what it is told

    async def GetExecution(self, request: pb.GetExecutionRequest, context: Context) -> pb.GetExecutionResponse:
        """Return an execution with its result so far."""
        view = read_trace_view(request.trace_view)
        execution_id = require_id(request.execution_id, field="execution_id")
        found = await read_view(self._desk, get_current_principal(), execution_id, with_task=True)
        response = pb.GetExecutionResponse(execution=fill(execution_pb2.Execution(), found.execution))
        if found.task is not None:
            fill_task(response.task, found.task, strategy=found.execution.strategy)
        size = response.task.ByteSize()
        if is_too_large := size > self._room:
            response.ClearField("task")
        room = self._room if is_too_large else self._room - size
        fill_traced(response.reasoning, found.result, found.steps, view, max_bytes=room)
        if is_too_large:
            response.reasoning.warnings.append(f"The task is left out: its {size} bytes do not fit into the response.")
        return response

    async def FollowExecution(  # type: ignore[override]  # grpc.aio takes coroutines that write, see `handlers`
        self, request: pb.FollowExecutionRequest, context: Context
    ) -> None:
        """Write the events of an execution of any kind, for an observer."""
        found = await self._observed.observe(
            get_current_principal(),
            require_id(request.execution_id, field="execution_id"),
            after_sequence=request.after_sequence,
            include_deltas=request.include_deltas,
        )
        await self._streams.write(found.events, context, _OBSERVED[found.execution.kind])

    async def CancelExecution(self, request: pb.CancelExecutionRequest, context: Context) -> pb.CancelExecutionResponse:
        """Cancel an execution and return it."""
        execution_id = require_id(request.execution_id, field="execution_id")
        execution = await self._desk.cancel(get_current_principal(), execution_id)
        return pb.CancelExecutionResponse(execution=fill(execution_pb2.Execution(), execution))

    async def ListExecutions(self, request: pb.ListExecutionsRequest, context: Context) -> pb.ListExecutionsResponse:
        """List the caller's executions, newest first."""
        page = await self._desk.list(
            get_current_principal(),
            strategy=request.strategy,
            finish_reason=read_finish_reason(request.finish_reason),
            state=read_state(request.state),
            create_time_after=_read_moment_in(request, "create_time_after"),
            create_time_before=_read_moment_in(request, "create_time_before"),
            text=request.text,
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return pb.ListExecutionsResponse(
            executions=[fill(execution_pb2.Execution(), each) for each in page.executions],
            next_page_token=page.next_page_token,
        )

    async def ListModelCalls(self, request: pb.ListModelCallsRequest, context: Context) -> pb.ListModelCallsResponse:
        """List the model calls of an execution of any kind, oldest first."""
        page = await self._observed.list_calls(
            get_current_principal(),
            require_id(request.execution_id, field="execution_id"),
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return pb.ListModelCallsResponse(
            calls=[fill(pb.ModelCall(), each) for each in page.calls], next_page_token=page.next_page_token
        )

    async def DeleteExecution(self, request: pb.DeleteExecutionRequest, context: Context) -> pb.DeleteExecutionResponse:
        """Forget an execution."""
        await self._desk.delete(get_current_principal(), require_id(request.execution_id, field="execution_id"))
        return pb.DeleteExecutionResponse()


def _read_moment_in(request: pb.ListExecutionsRequest, field: _Time) -> datetime | None:
    return read_moment(getattr(request, field), path=field) if request.HasField(field) else None
