"""Results, events and executions: types -> proto, written by hand because every event passes here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from reasond.v1 import errors_pb2, execution_pb2, reasoning_service_pb2
from reasond_server.grpc_api.metrics import fill_metrics, fill_usage
from reasond_server.grpc_api.steps import with_detail
from reasond_server.grpc_api.times import fill_duration, fill_timestamp, timestamp
from reasond_server.types import (
    ExecutionStarted,
    ExecutionState,
    FinishReason,
    Heartbeat,
    Iteration,
    Result,
    StrategySource,
    TextDelta,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from enum import StrEnum

    from reasond_server.types import Execution, StreamEvent

MAX_TRACE_BYTES: Final = 3 * 1024 * 1024
# What protobuf writes before each entry of a repeated field, at most: its tag and a length of up to 4 GiB.
_FIELD_BYTES: Final = 6
_NO_TRACE: Final = frozenset({reasoning_service_pb2.TRACE_VIEW_UNSPECIFIED, reasoning_service_pb2.TRACE_VIEW_NONE})


def _numbers(kind: type[StrEnum], proto: Any, prefix: str) -> Mapping[Any, Any]:  # noqa: ANN401 - wrappers of generated enums share no type
    return {value: proto.Value(f"{prefix}_{value.name}") for value in kind}


_FINISH_REASONS: Final = {
    **_numbers(FinishReason, execution_pb2.FinishReason, "FINISH_REASON"),
    None: execution_pb2.FINISH_REASON_UNSPECIFIED,
}
_REASONS: Final = {name.removeprefix("ERROR_REASON_"): number for name, number in errors_pb2.ErrorReason.items()}
_SOURCES: Final = _numbers(StrategySource, execution_pb2.StrategySource, "STRATEGY_SOURCE")
_STATES: Final = _numbers(ExecutionState, execution_pb2.ExecutionState, "EXECUTION_STATE")


def iteration_message(iteration: Iteration, *, has_texts: bool = True) -> execution_pb2.Iteration:
    """Return a step; without its texts where `has_texts` is off."""
    message = execution_pb2.Iteration()
    _fill_iteration(message, iteration, has_texts=has_texts)
    return message


def _fill_iteration(message: execution_pb2.Iteration, iteration: Iteration, *, has_texts: bool = True) -> None:
    message.index = iteration.index
    if iteration.answer_found:
        message.answer_found = True
    fill_usage(message.usage, iteration.usage)
    fill_duration(message.elapsed, iteration.elapsed_s)
    with_detail(message, iteration.detail, has_texts=has_texts)


def fill_reasoning(message: execution_pb2.Reasoning, result: Result) -> None:
    """Write a result without steps, as streams carry it."""
    message.execution_id, message.answer, message.model = result.execution_id, result.answer, result.model
    message.strategy_used, message.strategy_source = result.strategy_used, _SOURCES[result.strategy_source]
    message.finish_reason = _FINISH_REASONS[result.finish_reason]
    fill_metrics(message.metrics, result.metrics)
    message.warnings.extend(result.warnings)
    if result.error is not None:
        message.error.reason = _REASONS.get(result.error.reason, errors_pb2.ERROR_REASON_INTERNAL)
        message.error.message = result.error.message


def fill_traced(
    message: execution_pb2.Reasoning,
    result: Result,
    steps: Sequence[Iteration],
    view: reasoning_service_pb2.TraceView.ValueType,
    *,
    max_bytes: int = MAX_TRACE_BYTES,
) -> None:
    """Write a result with its steps as `view` asks; a trace over `max_bytes` is cut and a warning says so."""
    fill_reasoning(message, result)
    if view in _NO_TRACE:
        return
    size = 0
    for count, step in enumerate(steps):
        one = iteration_message(step, has_texts=view == reasoning_service_pb2.TRACE_VIEW_FULL)
        size += one.ByteSize() + _FIELD_BYTES
        if size > max_bytes:
            message.warnings.append(
                f"The trace is cut after {count} of {len(steps)} steps, because it would be over {max_bytes} bytes; "
                f"ReasonIterations with a cursor streams all of them."
            )
            break
        message.trace.append(one)


def event_message(event: StreamEvent) -> reasoning_service_pb2.ReasonIterationsResponse:
    """Return one event of a stream."""
    message = reasoning_service_pb2.ReasonIterationsResponse()
    message.execution_id, message.sequence = event.execution_id, event.sequence
    fill_timestamp(message.create_time, event.create_time)
    happening = event.event
    # Nearly all are steps, and a match takes longer to say so.
    if isinstance(happening, Iteration):
        _fill_iteration(message.iteration, happening)
        return message
    match happening:
        case ExecutionStarted() as started:
            message.started.CopyFrom(_started(started))
        case TextDelta() as delta:
            # Setting fields to their defaults does not choose an alternative of a oneof; this does.
            message.delta.SetInParent()
            message.delta.iteration_index, message.delta.text = delta.iteration_index, delta.text
        case Heartbeat():
            message.heartbeat.SetInParent()
        case Result() as result:
            fill_reasoning(message.completed, result)
    return message


def _started(started: ExecutionStarted) -> execution_pb2.ExecutionStarted:
    return execution_pb2.ExecutionStarted(
        strategy=started.strategy,
        strategy_source=_SOURCES[started.strategy_source],
        model=started.model,
        config_json=json_text(started.config),
    )


def execution_message(execution: Execution) -> execution_pb2.Execution:
    """Return an execution without its content."""
    message = execution_pb2.Execution(
        execution_id=execution.execution_id,
        state=_STATES[execution.state],
        strategy=execution.strategy,
        strategy_source=_SOURCES[execution.strategy_source],
        finish_reason=_FINISH_REASONS[execution.finish_reason],
        create_time=timestamp(execution.create_time),
        end_time=timestamp(execution.end_time) if execution.end_time else None,
        expire_time=timestamp(execution.expire_time) if execution.expire_time else None,
        last_sequence=execution.last_sequence,
        request_id=execution.request_id,
        model=execution.model,
    )
    fill_usage(message.usage, execution.usage)
    return message


def json_text(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return compact JSON text with sorted keys."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
