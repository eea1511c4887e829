"""ExecutionService over gRPC, and google.longrunning.Operations over the same executions (AIP-151); decides nothing.

An operation is called `operations/{execution_id}`. Its metadata are the execution, its response is the message with
which the log ends.
"""
# ruff: noqa: N802 - the names of the methods are those of the contracts

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import grpc
from google.longrunning import operations_pb2  # type: ignore[import-untyped]  # shipped without py.typed
from google.protobuf import empty_pb2
from google.protobuf.message_factory import GetMessageClass

from reasond.v1 import execution_pb2, execution_service_pb2_grpc, repairs_pb2, turns_pb2
from reasond.v1 import execution_service_pb2 as pb
from reasond_server.errors.access import PermissionMissingError
from reasond_server.errors.base import InternalError, show
from reasond_server.errors.executions import ExecutionRunningError
from reasond_server.grpc_api.guard import get_current_call, get_current_principal, remaining_s
from reasond_server.grpc_api.message_writers import fill
from reasond_server.grpc_api.reasoning_servicer import RESULT_ROOM_BYTES, build_event_message, fill_task, fill_traced
from reasond_server.grpc_api.repair_servicer import build_repair_event_message
from reasond_server.grpc_api.requests import (
    invalid,
    read_finish_reason,
    read_moment,
    read_seconds,
    read_state,
    read_trace_view,
    require_id,
)
from reasond_server.grpc_api.statuses import build_status
from reasond_server.grpc_api.stream_writer import StreamWriter
from reasond_server.grpc_api.turn_servicer import build_turn_event_message
from reasond_server.reasoning.strategy_work import REASONING
from reasond_server.reasoning.views import read_view
from reasond_server.repair.service.repair_work import REPAIR
from reasond_server.runs.work import build_failure
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.turns.history import TURN
from reasond_server.types import Execution, ExecutionState, LastEvent
from reasond_server.types.turns import HandedOff

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from google.protobuf.message import Message

    from reasond_server.executions.desk import ExecutionDesk, ExecutionLog
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


SERVICE: Final = operations_pb2.DESCRIPTOR.services_by_name["Operations"]
_COLLECTION: Final = "operations"
_RESULTS: Final[Mapping[str, type[Message]]] = {
    REASONING: execution_pb2.Reasoning,
    TURN: turns_pb2.TurnResult,
    REPAIR: repairs_pb2.Repair,
}
_CANCELLED: Final = "The execution was cancelled. GetExecution, GetTurn or GetRepair returns what it had done."
# What the state takes to reach the caller before its deadline.
_ANSWERING_S: Final = 0.5


class OperationsServicer:
    """Serves `google.longrunning.Operations`; `observed` is the desk of callers who read, `used` of those who end."""

    def __init__(self, *, observed: ExecutionDesk, used: ExecutionDesk) -> None:
        self._observed = observed
        self._used = used

    def register(self, methods: MethodTable) -> None:
        """Add the RPCs to the `methods` of a server."""
        handlers: dict[str, Any] = {
            each.name: grpc.unary_unary_rpc_method_handler(
                getattr(self, each.name),
                request_deserializer=GetMessageClass(each.input_type).FromString,
                response_serializer=GetMessageClass(each.output_type).SerializeToString,
            )
            for each in SERVICE.methods
        }
        methods.add_registered_method_handlers(SERVICE.full_name, handlers)

    async def GetOperation(
        self, request: operations_pb2.GetOperationRequest, context: Context
    ) -> operations_pb2.Operation:
        """Return an operation with its result, if it is done."""
        return _build_operation(await self._observed.read_end(get_current_principal(), _read_id(request.name)))

    async def ListOperations(
        self, request: operations_pb2.ListOperationsRequest, context: Context
    ) -> operations_pb2.ListOperationsResponse:
        """List the caller's operations without their results, newest first; a page has those that it may read."""
        if request.name not in {"", _COLLECTION}:
            raise invalid("name", f"must be empty or {_COLLECTION}, got {show(request.name)}")
        if request.filter:
            raise invalid("filter", "is not taken; ListExecutions and ListTurns of reasond.v1 have filters")
        caller = get_current_principal()
        page = await self._observed.list(caller, page_size=request.page_size, page_token=request.page_token)
        found = operations_pb2.ListOperationsResponse(next_page_token=page.next_page_token)
        for execution in page.executions:
            with suppress(PermissionMissingError):
                self._observed.require_use(caller, execution)
                found.operations.append(_build_unfinished(execution))
        return found

    async def WaitOperation(
        self, request: operations_pb2.WaitOperationRequest, context: Context
    ) -> operations_pb2.Operation:
        """Return an operation once it is done, a turn hands calls off to its client, or the time is over."""
        caller, execution_id = get_current_principal(), _read_id(request.name)
        within_s = _find_wait(request, context)
        found = await self._observed.read_end(caller, execution_id)
        if not found.execution.state.has_ended:
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    after = found.execution.last_sequence
                    observed = await self._observed.observe(caller, execution_id, after_sequence=after)
                    async with aclosing(observed.events) as events:
                        async for each in events:
                            if isinstance(each.event, HandedOff | LastEvent):
                                break
            found = await self._observed.read_end(caller, execution_id)
        return _build_operation(found)

    async def CancelOperation(
        self, request: operations_pb2.CancelOperationRequest, context: Context
    ) -> empty_pb2.Empty:
        """Cancel an operation; one that is done stays as it is."""
        await self._used.cancel(get_current_principal(), _read_id(request.name))
        return empty_pb2.Empty()

    async def DeleteOperation(
        self, request: operations_pb2.DeleteOperationRequest, context: Context
    ) -> empty_pb2.Empty:
        """Forget an operation that is done: the contract says that this call cancels none."""
        caller, execution_id = get_current_principal(), _read_id(request.name)
        found = await self._used.read_end(caller, execution_id)
        if not found.execution.state.has_ended:
            raise ExecutionRunningError(
                f"{show(request.name)} is not done, and deleting does not stop it", remedy="Cancel it first."
            )
        await self._used.delete(caller, execution_id)
        return empty_pb2.Empty()


def _read_id(name: str) -> str:
    collection, _, execution_id = name.partition("/")
    if collection != _COLLECTION or not execution_id:
        raise invalid("name", f"must be {_COLLECTION}/ and the id of an execution, got {show(name)}")
    return execution_id


def _find_wait(request: operations_pb2.WaitOperationRequest, context: Context) -> float | None:
    """Return how many seconds to wait; None if neither the request nor the deadline of the call sets a bound."""
    asked_s = read_seconds(request.timeout, path="timeout") if request.HasField("timeout") else None
    left_s = remaining_s(context)
    bounds = [*([] if asked_s is None else [asked_s]), *([] if left_s is None else [left_s - _ANSWERING_S])]
    return max(0.0, min(bounds)) if bounds else None


def _build_unfinished(execution: Execution) -> operations_pb2.Operation:
    """Return the operation without a result."""
    operation = operations_pb2.Operation(name=f"{_COLLECTION}/{execution.execution_id}", done=execution.state.has_ended)
    operation.metadata.Pack(fill(execution_pb2.Execution(), execution))
    return operation


def _build_operation(found: ExecutionLog) -> operations_pb2.Operation:
    """Return the operation with its result, if it is done."""
    execution, operation = found.execution, _build_unfinished(found.execution)
    if not operation.done:
        return operation
    last = found.events[-1].event if found.events else None
    if not isinstance(last, LastEvent):
        raise InternalError("the execution ended without a result")
    if last.error is not None:
        failure = build_failure(last.error, execution.execution_id, error=None)
        operation.error.CopyFrom(build_status(failure, call_id=get_current_call().call_id))
    elif execution.state is ExecutionState.CANCELLED:
        operation.error.code, operation.error.message = grpc.StatusCode.CANCELLED.value[0], _CANCELLED
    else:
        operation.response.Pack(fill(_RESULTS[execution.kind](), last))
    return operation
