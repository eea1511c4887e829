"""Results, events and executions: types -> proto, by the declarations of their kinds."""

from __future__ import annotations

from base64 import b64decode
from typing import TYPE_CHECKING, Final

from reasond.v1 import execution_pb2, reasoning_service_pb2
from reasond_server.grpc_api.message_writers import Alternatives, fill
from reasond_server.grpc_api.times import fill_timestamp
from reasond_server.types.kinds import EVENTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.types import HistoryMessage, Iteration, Metrics, Result, StreamEvent

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


def build_history_message(told: HistoryMessage) -> execution_pb2.HistoryMessage:
    """Return an earlier message of a conversation."""
    role = execution_pb2.Speaker.Value(f"SPEAKER_{told.role.name}")
    message = execution_pb2.HistoryMessage(role=role, text=told.text, reasoning=told.reasoning)
    for image in told.images:
        message.images.add(media_type=image.media_type, data=b64decode(image.base64))
    for call in told.tool_calls:
        message.tool_calls.add(call_id=call.call_id, tool=call.name, arguments_json=call.arguments_json)
    for result in told.tool_results:
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
    _EVENTS[happening.__class__](message, happening, True)
    return message
