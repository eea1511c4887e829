"""ReasoningService over gRPC: converts requests, calls the core, converts responses; decides nothing."""
# ruff: noqa: N802 - the names of the methods are those of the contract

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from reasond.v1 import reasoning_service_pb2 as pb
from reasond.v1 import reasoning_service_pb2_grpc
from reasond_server.errors import ReasondError
from reasond_server.grpc_api.conversion import (
    MAX_TRACE_BYTES,
    event_message,
    execution_message,
    fill_traced,
)
from reasond_server.grpc_api.filling import json_text
from reasond_server.grpc_api.guard import current_principal, remaining_s
from reasond_server.grpc_api.repair_conversion import repair_event_message
from reasond_server.grpc_api.requests import (
    finish_reason_of,
    invalid,
    moment_of,
    name_request_fields,
    required_id,
    required_task,
    state_of,
    task_of,
    trace_view_of,
)
from reasond_server.grpc_api.stream_writing import StreamWriter
from reasond_server.grpc_api.task_conversion import fill_task
from reasond_server.grpc_api.turn_conversion import turn_event_message
from reasond_server.reasoning.strategy_work import REASONING
from reasond_server.repair.repair_work import REPAIR
from reasond_server.telemetry.observers import UNOBSERVED
from reasond_server.turns.history import TURN
from reasond_server.types import CostClass

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping
    from datetime import datetime

    from reasond.v1 import execution_pb2
    from reasond_server.grpc_api.handlers import Context, MethodTable
    from reasond_server.reasoning.service import ExecutionView, ReasoningService, StrategyInfo
    from reasond_server.telemetry.observers import CallObserver
    from reasond_server.types import StreamEvent


_Time: TypeAlias = Literal["create_time_after", "create_time_before"]
_LARGEST_PAGE: Final = 100
_RESULT_ROOM_BYTES: Final = 512 * 1024
_COST_CLASSES: Final = {cost: pb.CostClass.Value(f"COST_CLASS_{cost.name}") for cost in CostClass}


class ReasoningServicer(reasoning_service_pb2_grpc.ReasoningServiceServicer):
    """Serves `reasond.v1.ReasoningService` from the core.

    A client that does not read a message within `write_timeout_s` seconds is disconnected (SLOW_CONSUMER); it can
    resume. `max_send_bytes` bounds a response: a trace is cut to the remaining bytes, at most 3 MiB.
    """

    def __init__(
        self,
        *,
        service: ReasoningService,
        max_send_bytes: int = 4 * 1024 * 1024,
        write_timeout_s: float = 30.0,
        observer: CallObserver = UNOBSERVED,
    ) -> None:
        self._service = service
        self._max_send_bytes = max_send_bytes
        self._streams = StreamWriter(write_timeout_s=write_timeout_s, observer=observer)

    def register(self, methods: MethodTable) -> None:
        """Add the RPCs to the `methods` of a server."""
        reasoning_service_pb2_grpc.add_ReasoningServiceServicer_to_server(self, methods)  # type: ignore[arg-type]  # it takes what it is told

    async def Reason(self, request: pb.ReasonRequest, context: Context) -> pb.ReasonResponse:
        """Run a task and return the result."""
        view = trace_view_of(request.trace_view)
        task = required_task(request)
        try:
            found = await self._service.execute(
                current_principal(), task, request_id=request.request_id, deadline_s=remaining_s(context)
            )
        except ReasondError as error:
            name_request_fields(error, request.task)
            raise
        response = pb.ReasonResponse()
        self._fill_traced(response.reasoning, found, view)
        return response

    async def ReasonIterations(  # type: ignore[override]  # grpc.aio takes coroutines that write, see `handlers`
        self, request: pb.ReasonIterationsRequest, context: Context
    ) -> None:
        """Write the events of a new or an earlier execution as they come."""
        try:
            await self._streams.write(self._events(request, context), context, event_message)
        except ReasondError as error:
            name_request_fields(error, request.task)
            raise

    async def ListStrategies(self, request: pb.ListStrategiesRequest, context: Context) -> pb.ListStrategiesResponse:
        """List the enabled strategies; the page token is the last name of the previous page."""
        del context
        found = list(self._service.strategies())
        first = _place_after(request.page_token, [info.name for info in found])
        last = first + _page_size(request.page_size)
        page = found[first:last]
        return pb.ListStrategiesResponse(
            strategies=map(_strategy, page),
            next_page_token=page[-1].name if last < len(found) else "",
            model=self._service.model_name,
            warnings=self._service.model_warnings,
            models=self._service.offered_models,
        )

    async def GetExecution(self, request: pb.GetExecutionRequest, context: Context) -> pb.GetExecutionResponse:
        """Return an execution with its result so far."""
        del context
        view = trace_view_of(request.trace_view)
        execution_id = required_id(request.execution_id, field="execution_id")
        found = await self._service.get(current_principal(), execution_id, with_task=True)
        response = pb.GetExecutionResponse(execution=execution_message(found.execution))
        if found.task is not None:
            fill_task(response.task, found.task, strategy=found.execution.strategy)
        size = response.task.ByteSize()
        if is_too_large := size > self._max_send_bytes - _RESULT_ROOM_BYTES:
            response.ClearField("task")
        self._fill_traced(response.reasoning, found, view, taken_bytes=0 if is_too_large else size)
        if is_too_large:
            response.reasoning.warnings.append(f"The task is left out: its {size} bytes do not fit into the response.")
        return response

    async def FollowExecution(  # type: ignore[override]  # grpc.aio takes coroutines that write, see `handlers`
        self, request: pb.FollowExecutionRequest, context: Context
    ) -> None:
        """Write the events of an execution of any kind, for an observer."""
        found = await self._service.everything.observe(
            current_principal(),
            required_id(request.execution_id, field="execution_id"),
            after_sequence=request.after_sequence,
            include_deltas=request.include_deltas,
        )
        await self._streams.write(found.events, context, _OBSERVED[found.execution.kind])

    async def CancelExecution(self, request: pb.CancelExecutionRequest, context: Context) -> pb.CancelExecutionResponse:
        """Cancel an execution and return it."""
        del context
        execution = await self._service.desk.cancel(
            current_principal(), required_id(request.execution_id, field="execution_id")
        )
        return pb.CancelExecutionResponse(execution=execution_message(execution))

    async def ListExecutions(self, request: pb.ListExecutionsRequest, context: Context) -> pb.ListExecutionsResponse:
        """List the caller's executions, newest first."""
        del context
        page = await self._service.desk.list(
            current_principal(),
            strategy=request.strategy,
            finish_reason=finish_reason_of(request.finish_reason),
            state=state_of(request.state),
            create_time_after=_moment_in(request, "create_time_after"),
            create_time_before=_moment_in(request, "create_time_before"),
            page_size=request.page_size,
            page_token=request.page_token,
        )
        return pb.ListExecutionsResponse(
            executions=map(execution_message, page.executions), next_page_token=page.next_page_token
        )

    async def DeleteExecution(self, request: pb.DeleteExecutionRequest, context: Context) -> pb.DeleteExecutionResponse:
        """Forget an execution."""
        del context
        await self._service.desk.delete(current_principal(), required_id(request.execution_id, field="execution_id"))
        return pb.DeleteExecutionResponse()

    def _events(self, request: pb.ReasonIterationsRequest, context: Context) -> AsyncGenerator[StreamEvent, None]:
        """Return the events for the request; nothing starts before the first is requested."""
        source = request.WhichOneof("source")
        if source == "resume":
            if request.request_id:
                raise invalid("request_id", "belongs to a task; resume names its execution instead")
            return self._service.desk.resume(
                current_principal(),
                required_id(request.resume.execution_id, field="resume.execution_id"),
                after_sequence=request.resume.after_sequence,
                include_deltas=request.include_deltas,
                keep_running=request.keep_running,
            )
        if source is None:
            raise invalid("task", "is required, unless resume is given")
        return self._service.stream(
            current_principal(),
            task_of(request.task),
            request_id=request.request_id,
            include_deltas=request.include_deltas,
            keep_running=request.keep_running,
            deadline_s=remaining_s(context),
        )

    def _fill_traced(
        self,
        message: execution_pb2.Reasoning,
        found: ExecutionView,
        view: pb.TraceView.ValueType,
        *,
        taken_bytes: int = 0,
    ) -> None:
        room = min(MAX_TRACE_BYTES, max(0, self._max_send_bytes - _RESULT_ROOM_BYTES - taken_bytes))
        fill_traced(message, found.result, found.steps, view, max_bytes=room)


_OBSERVED: Final[Mapping[str, Callable[[StreamEvent], pb.FollowExecutionResponse]]] = {
    REASONING: lambda event: pb.FollowExecutionResponse(reasoning=event_message(event)),
    TURN: lambda event: pb.FollowExecutionResponse(turn=turn_event_message(event)),
    REPAIR: lambda event: pb.FollowExecutionResponse(repair=repair_event_message(event)),
}


def _page_size(size: int) -> int:
    """Return the page size to use: 0 and sizes above the maximum mean the maximum (AIP-158)."""
    if size < 0:
        raise invalid("page_size", f"must be at least 0, got {size}")
    return min(size or _LARGEST_PAGE, _LARGEST_PAGE)


def _moment_in(request: pb.ListExecutionsRequest, field: _Time) -> datetime | None:
    return moment_of(getattr(request, field), path=field) if request.HasField(field) else None


def _place_after(token: str, names: list[str]) -> int:
    if not token:
        return 0
    if token not in names:
        raise invalid("page_token", "must be the next_page_token of the page before")
    return names.index(token) + 1


def _strategy(info: StrategyInfo) -> pb.Strategy:
    return pb.Strategy(
        name=info.name,
        description=info.description,
        config_schema_json=json_text(info.config_schema),
        default_config_json=json_text(info.default_config),
        capabilities=info.capabilities,
        is_default=info.is_default,
        ceilings_json=json_text(info.ceilings),
        cost_class=_COST_CLASSES[info.cost_class] if info.cost_class else pb.COST_CLASS_UNSPECIFIED,
        cost_formula=info.cost_formula,
    )
