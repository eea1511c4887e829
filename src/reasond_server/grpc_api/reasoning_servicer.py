"""ReasoningService over gRPC: converts requests, calls the core, converts responses; decides nothing."""
# ruff: noqa: N802 - the names of the methods are those of the contract

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING, Final

from reasond.v1 import execution_pb2, reasoning_service_pb2, reasoning_service_pb2_grpc
from reasond.v1 import reasoning_service_pb2 as pb
from reasond_server.errors.base import ReasondError
from reasond_server.grpc_api.guard import get_current_principal, remaining_s
from reasond_server.grpc_api.message_writers import (
    Alternatives,
    fill,
    fill_duration,
    fill_struct,
    fill_timestamp,
    write_json,
)
from reasond_server.grpc_api.requests import (
    invalid,
    name_request_fields,
    read_task,
    read_trace_view,
    require_id,
    require_task,
)
from reasond_server.grpc_api.stream_writer import StreamWriter
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.types.kinds import EVENTS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from google.protobuf.message import Message

    from reasond_server.grpc_api.handlers import Context, MethodTable
    from reasond_server.reasoning.service import ReasoningService
    from reasond_server.types import Budget, HistoryMessage, Iteration, Json, Metrics, Result, StreamEvent, Task

MAX_TRACE_BYTES: Final = 3 * 1024 * 1024
RESULT_ROOM_BYTES: Final = 512 * 1024
"""What a response keeps free for a result without its trace."""
# Most bytes that protobuf writes before an entry of a repeated field: its tag and a length of up to 4 GiB.
_FIELD_BYTES: Final = 6
_NO_TRACE: Final = frozenset({execution_pb2.TRACE_VIEW_UNSPECIFIED, execution_pb2.TRACE_VIEW_NONE})
_EVENT: Final = reasoning_service_pb2.ReasonIterationsResponse.DESCRIPTOR.oneofs_by_name["event"]
_EVENTS: Final = Alternatives(EVENTS, _EVENT)


def build_iteration_message(iteration: Iteration, *, has_texts: bool = True) -> execution_pb2.Iteration:
    """Return a step; without its texts if `has_texts` is false."""
    return fill(execution_pb2.Iteration(), iteration, has_content=has_texts)


def build_metrics_message(metrics: Metrics) -> execution_pb2.Metrics:
    """Return the metrics of a run."""
    return fill(execution_pb2.Metrics(), metrics)


def build_history_message(entry: HistoryMessage) -> execution_pb2.HistoryMessage:
    """Return an earlier message of a conversation."""
    role = execution_pb2.Speaker.Value(f"SPEAKER_{entry.role.name}")
    message = execution_pb2.HistoryMessage(role=role, text=entry.text, reasoning=entry.reasoning)
    for image in entry.images:
        message.images.add(media_type=image.media_type, data=b64decode(image.base64))
    for call in entry.tool_calls:
        message.tool_calls.add(call_id=call.call_id, tool=call.name, arguments_json=call.arguments_json)
    for result in entry.tool_results:
        message.tool_results.add(call_id=result.call_id, result_json=result.result_json, is_error=result.is_error)
    return message


def fill_traced(
    message: execution_pb2.Reasoning,
    result: Result,
    steps: Sequence[Iteration],
    view: execution_pb2.TraceView.ValueType,
    *,
    max_bytes: int = MAX_TRACE_BYTES,
) -> None:
    """Write a result with the steps that `view` selects.

    A trace over `max_bytes`, or over 3 MiB, is cut, and a warning is added.
    """
    fill(message, result)
    if view in _NO_TRACE:
        return
    size, max_bytes = 0, max(0, min(max_bytes, MAX_TRACE_BYTES))
    for count, step in enumerate(steps):
        one = build_iteration_message(step, has_texts=view == execution_pb2.TRACE_VIEW_FULL)
        size += one.ByteSize() + _FIELD_BYTES
        if size > max_bytes:
            message.warnings.append(
                f"The trace is cut after {count} of {len(steps)} steps, because it would be over {max_bytes} bytes; "
                f"ReasonIterations with a cursor streams all of them."
            )
            break
        message.trace.append(one)


def build_event_message(event: StreamEvent) -> reasoning_service_pb2.ReasonIterationsResponse:
    """Return one event of a stream."""
    message = reasoning_service_pb2.ReasonIterationsResponse()
    message.execution_id, message.sequence = event.execution_id, event.sequence
    fill_timestamp(message.create_time, event.create_time)
    happening = event.event
    _EVENTS[happening.__class__](message, happening, has_content=True)
    return message


_CONFIG: Final = execution_pb2.ReasoningTask.DESCRIPTOR.oneofs_by_name["config"]
_TYPED: Final = {field.name for field in _CONFIG.fields} - {"custom"}


def fill_task(message: execution_pb2.ReasoningTask, task: Task, *, strategy: str) -> None:
    """Write `task`; its configuration is that of `strategy`, the one that works, if the task names none."""
    message.query, message.material = task.query, task.material
    if task.strategy is not None:
        message.strategy = task.strategy
    _fill_config(message, task.config, strategy=task.strategy or strategy)
    message.agent = task.agent or ""
    message.agent_capabilities.extend(task.agent_capabilities)
    fill_budget(message.budget, task.budget)
    message.system = task.system
    message.history.extend(map(build_history_message, task.history))
    if task.model is not None:
        message.model = task.model
    message.stop.extend(task.stop)
    for image in task.images:
        message.images.add(media_type=image.media_type, data=b64decode(image.base64))
    if task.answer_schema is not None:
        message.answer_schema_json = write_json(task.answer_schema)


def _fill_config(message: execution_pb2.ReasoningTask, config: Json, *, strategy: str) -> None:
    if not config:
        return
    if strategy in _TYPED:
        fill_typed(getattr(message, strategy), config)
    else:
        # Without the name nobody could say whose configuration it is.
        message.strategy = strategy
        fill_struct(message.custom, config)


def fill_typed(message: Message, config: Json) -> None:
    """Write the parameters of a strategy; those that are not set are left out, as its proto has them."""
    message.SetInParent()
    for field in message.DESCRIPTOR.fields:
        value = config.get(field.name)
        if value is None:
            continue
        if field.enum_type is not None:
            prefix = field.enum_type.values_by_number[0].name.removesuffix("UNSPECIFIED")
            value = field.enum_type.values_by_name[f"{prefix}{value.upper()}"].number
        setattr(message, field.name, value)


def fill_budget(message: execution_pb2.Budget, budget: Budget) -> None:
    """Write the bounds that are set."""
    for name in ("max_total_tokens", "max_model_calls", "max_tool_calls", "max_output_tokens"):
        if (bound := getattr(budget, name)) is not None:
            setattr(message, name, bound)
    if budget.max_elapsed_s is not None:
        fill_duration(message.max_elapsed, budget.max_elapsed_s)


_LARGEST_PAGE: Final = 100


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
        observer: Observer = UNOBSERVED,
    ) -> None:
        self._service = service
        self._trace_room = max_send_bytes - RESULT_ROOM_BYTES
        self._streams = StreamWriter(write_timeout_s=write_timeout_s, observer=observer)

    def register(self, methods: MethodTable) -> None:
        """Add the RPCs to the `methods` of a server."""
        reasoning_service_pb2_grpc.add_ReasoningServiceServicer_to_server(self, methods)  # type: ignore[arg-type]  # it takes what it is told

    async def Reason(self, request: pb.ReasonRequest, context: Context) -> pb.ReasonResponse:
        """Run a task and return the result."""
        view = read_trace_view(request.trace_view)
        task = require_task(request)
        try:
            found = await self._service.execute(
                get_current_principal(), task, request_id=request.request_id, deadline_s=remaining_s(context)
            )
        except ReasondError as error:
            name_request_fields(error, request.task)
            raise
        response = pb.ReasonResponse()
        fill_traced(response.reasoning, found.result, found.steps, view, max_bytes=self._trace_room)
        return response

    async def ReasonIterations(  # type: ignore[override]  # grpc.aio takes coroutines that write, see `handlers`
        self, request: pb.ReasonIterationsRequest, context: Context
    ) -> None:
        """Write the events of a new or an earlier execution as they come."""
        try:
            await self._streams.write(self._open_events(request, context), context, build_event_message)
        except ReasondError as error:
            name_request_fields(error, request.task)
            raise

    async def ListStrategies(self, request: pb.ListStrategiesRequest, context: Context) -> pb.ListStrategiesResponse:
        """List the enabled strategies; the page token is the last name of the previous page."""
        found = list(self._service.strategies())
        first = _place_after(request.page_token, [info.name for info in found])
        last = first + _page_size(request.page_size)
        page = found[first:last]
        return pb.ListStrategiesResponse(
            strategies=[fill(pb.Strategy(), info) for info in page],
            next_page_token=page[-1].name if last < len(found) else "",
            model=self._service.model_name,
            warnings=self._service.model_warnings,
            models=self._service.offered_models,
        )

    def _open_events(self, request: pb.ReasonIterationsRequest, context: Context) -> AsyncGenerator[StreamEvent, None]:
        """Return the events for the request; nothing starts before the first is requested."""
        source = request.WhichOneof("source")
        if source == "resume":
            if request.request_id:
                raise invalid("request_id", "belongs to a task; resume names its execution instead")
            return self._service.desk.resume(
                get_current_principal(),
                require_id(request.resume.execution_id, field="resume.execution_id"),
                after_sequence=request.resume.after_sequence,
                include_deltas=request.include_deltas,
                keep_running=request.keep_running,
            )
        if source is None:
            raise invalid("task", "is required, unless resume is given")
        return self._service.stream(
            get_current_principal(),
            read_task(request.task),
            request_id=request.request_id,
            include_deltas=request.include_deltas,
            keep_running=request.keep_running,
            deadline_s=remaining_s(context),
        )


def _page_size(size: int) -> int:
    """Return the page size to use: 0 and sizes above the maximum mean the maximum (AIP-158)."""
    if size < 0:
        raise invalid("page_size", f"must be at least 0, got {size}")
    return min(size or _LARGEST_PAGE, _LARGEST_PAGE)


def _place_after(token: str, names: list[str]) -> int:
    if not token:
        return 0
    if token not in names:
        raise invalid("page_token", "must be the next_page_token of the page before")
    return names.index(token) + 1
