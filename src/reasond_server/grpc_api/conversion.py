"""Results, steps, metrics and executions: types -> proto, written by hand because every event passes here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import duration_pb2, timestamp_pb2

from reasond.v1 import errors_pb2, execution_pb2, reasoning_service_pb2, strategies_pb2
from reasond_server.grpc_api.structs import struct_of_json
from reasond_server.types import (
    BoundedContextMetrics,
    BoundedContextStep,
    CarryoverMode,
    ChainOfThoughtMetrics,
    CustomMetrics,
    CustomStep,
    ExecutionStarted,
    ExecutionState,
    FinishReason,
    Heartbeat,
    Iteration,
    Result,
    SavingsBaseline,
    StrategySource,
    TextDelta,
    Thought,
    UsageSource,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from enum import StrEnum

    from reasond_server.types import Execution, Metrics, Savings, StepDetail, StreamEvent, Usage

MAX_TRACE_BYTES: Final = 3 * 1024 * 1024
_NANOS: Final = 10**9
# What protobuf writes before each entry of a repeated field, at most: its tag and a length of up to 4 GiB.
_FIELD_BYTES: Final = 6


def _numbers(kind: type[StrEnum], proto: Any, prefix: str) -> Mapping[Any, Any]:  # noqa: ANN401 - wrappers of generated enums share no type
    return {value: proto.Value(f"{prefix}_{value.name}") for value in kind}


_FINISH_REASONS: Final = {
    **_numbers(FinishReason, execution_pb2.FinishReason, "FINISH_REASON"),
    None: execution_pb2.FINISH_REASON_UNSPECIFIED,
}
_REASONS: Final = {name.removeprefix("ERROR_REASON_"): number for name, number in errors_pb2.ErrorReason.items()}
_SOURCES: Final = _numbers(StrategySource, execution_pb2.StrategySource, "STRATEGY_SOURCE")
_USAGE_SOURCES: Final = _numbers(UsageSource, execution_pb2.UsageSource, "USAGE_SOURCE")
_STATES: Final = _numbers(ExecutionState, execution_pb2.ExecutionState, "EXECUTION_STATE")
_CARRYOVER_MODES: Final = _numbers(CarryoverMode, strategies_pb2.CarryoverMode, "CARRYOVER_MODE")
_BASELINES: Final = _numbers(SavingsBaseline, strategies_pb2.SavingsBaseline, "SAVINGS_BASELINE")


def timestamp(moment: datetime) -> timestamp_pb2.Timestamp:
    """Return an aware datetime as a Timestamp."""
    stamp = timestamp_pb2.Timestamp()
    stamp.FromDatetime(moment)
    return stamp


def duration(seconds: float) -> duration_pb2.Duration:
    """Return seconds as a Duration, rounded to nanoseconds; never negative."""
    nanos = round(seconds * _NANOS)
    return duration_pb2.Duration(seconds=nanos // _NANOS, nanos=nanos % _NANOS)


def usage_message(usage: Usage) -> execution_pb2.Usage:
    """Return what was spent."""
    return execution_pb2.Usage(
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_input_tokens=usage.cached_input_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        model_calls=usage.model_calls,
        source=_USAGE_SOURCES[usage.source],
    )


def iteration_message(iteration: Iteration, *, has_texts: bool = True) -> execution_pb2.Iteration:
    """Return a step; without its texts where `has_texts` is off."""
    message = execution_pb2.Iteration(
        index=iteration.index,
        answer_found=iteration.answer_found,
        usage=usage_message(iteration.usage),
        elapsed=duration(iteration.elapsed_s),
    )
    _set_detail(message, iteration.detail, has_texts=has_texts)
    return message


def _set_detail(message: execution_pb2.Iteration, detail: StepDetail, *, has_texts: bool) -> None:
    match detail:
        case Thought():
            message.thought.SetInParent()
            if has_texts:
                message.thought.text, message.thought.answer = detail.text, detail.answer
        case BoundedContextStep():
            message.bounded_context.CopyFrom(_window(detail, has_texts=has_texts))
        case CustomStep():
            message.custom.SetInParent()
            if has_texts:
                message.custom.CopyFrom(struct_of_json(detail.data))


def _window(step: BoundedContextStep, *, has_texts: bool) -> strategies_pb2.BoundedContextStep:
    message = strategies_pb2.BoundedContextStep(
        text=step.text if has_texts else "",
        carryover=step.carryover if has_texts else "",
        carryover_mode=_CARRYOVER_MODES[step.carryover_mode],
        window_tokens=step.window_tokens,
        carryover_generated=step.carryover_generated,
        is_window_exact=step.is_window_exact,
        carryover_tokens=step.carryover_tokens,
    )
    if step.reading is not None:
        message.reading.segment, message.reading.segment_count = step.reading.segment, step.reading.segment_count
    return message


def metrics_message(metrics: Metrics) -> execution_pb2.Metrics:
    """Return what a run reports; `strategy_specific` stays unset before the first step."""
    message = execution_pb2.Metrics(
        total_tokens=metrics.usage.total_tokens,
        execution_time=duration(metrics.execution_time_s),
        usage=usage_message(metrics.usage),
    )
    match metrics.strategy_specific:
        case ChainOfThoughtMetrics() as specific:
            message.chain_of_thought.CopyFrom(
                strategies_pb2.ChainOfThoughtMetrics(
                    temperature=specific.temperature,
                    max_tokens=specific.max_tokens,
                    finish_reason=specific.finish_reason,
                    model=specific.model,
                )
            )
        case BoundedContextMetrics() as specific:
            message.bounded_context.CopyFrom(_bounded_context_metrics(specific))
        case CustomMetrics() as specific:
            message.custom.CopyFrom(struct_of_json(specific.data))
        case None:
            pass
    return message


def _bounded_context_metrics(metrics: BoundedContextMetrics) -> strategies_pb2.BoundedContextMetrics:
    windows = [
        strategies_pb2.BoundedContextIterationMetrics(
            iteration=window.iteration,
            tokens=window.tokens,
            has_answer=window.has_answer,
            carryover_generated=window.carryover_generated,
            execution_time=duration(window.execution_time_s),
            is_reading=window.is_reading,
        )
        for window in metrics.iterations
    ]
    return strategies_pb2.BoundedContextMetrics(
        total_iterations=metrics.total_iterations,
        reading_iterations=metrics.reading_iterations,
        iterations=windows,
        carryover_compressions=metrics.carryover_compressions,
        savings=None if metrics.savings is None else _savings(metrics.savings),
        compute_savings_pct=metrics.compute_savings_pct,
        capacity_tokens=metrics.capacity_tokens,
        effective_capacity_tokens=metrics.effective_capacity_tokens,
        is_window_exact=metrics.is_window_exact,
        peak_window_tokens=metrics.peak_window_tokens,
    )


def _savings(savings: Savings) -> strategies_pb2.Savings:
    return strategies_pb2.Savings(
        baseline=_BASELINES[savings.baseline],
        attention_pct=savings.attention_pct,
        kv_read_pct=savings.kv_read_pct,
        tokens_pct=savings.tokens_pct,
        peak_context_pct=savings.peak_context_pct,
    )


def reasoning_message(result: Result) -> execution_pb2.Reasoning:
    """Return a result without steps, as streams carry it."""
    message = execution_pb2.Reasoning(
        execution_id=result.execution_id,
        answer=result.answer,
        strategy_used=result.strategy_used,
        strategy_source=_SOURCES[result.strategy_source],
        finish_reason=_FINISH_REASONS[result.finish_reason],
        metrics=metrics_message(result.metrics),
        warnings=result.warnings,
        model=result.model,
    )
    if result.error is not None:
        message.error.reason = _REASONS.get(result.error.reason, errors_pb2.ERROR_REASON_INTERNAL)
        message.error.message = result.error.message
    return message


def traced_message(
    result: Result,
    steps: Sequence[Iteration],
    view: reasoning_service_pb2.TraceView.ValueType,
    *,
    max_bytes: int = MAX_TRACE_BYTES,
) -> execution_pb2.Reasoning:
    """Return a result with its steps as `view` asks; a trace over `max_bytes` is cut and a warning says so."""
    message = reasoning_message(result)
    known = reasoning_service_pb2.TraceView
    if view in {known.TRACE_VIEW_UNSPECIFIED, known.TRACE_VIEW_NONE}:
        return message
    size = 0
    for count, step in enumerate(steps):
        one = iteration_message(step, has_texts=view == known.TRACE_VIEW_FULL)
        size += one.ByteSize() + _FIELD_BYTES
        if size > max_bytes:
            message.warnings.append(
                f"The trace is cut after {count} of {len(steps)} steps, because it would be over {max_bytes} bytes; "
                f"ReasonIterations with a cursor streams all of them."
            )
            break
        message.trace.append(one)
    return message


def event_message(event: StreamEvent) -> reasoning_service_pb2.ReasonIterationsResponse:
    """Return one event of a stream."""
    message = reasoning_service_pb2.ReasonIterationsResponse(
        execution_id=event.execution_id, sequence=event.sequence, create_time=timestamp(event.create_time)
    )
    match event.event:
        case ExecutionStarted() as started:
            message.started.CopyFrom(_started(started))
        case Iteration() as iteration:
            message.iteration.CopyFrom(iteration_message(iteration))
        case TextDelta() as delta:
            # Setting fields to their defaults does not choose an alternative of a oneof; this does.
            message.delta.SetInParent()
            message.delta.iteration_index, message.delta.text = delta.iteration_index, delta.text
        case Heartbeat():
            message.heartbeat.SetInParent()
        case Result() as result:
            message.completed.CopyFrom(reasoning_message(result))
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
    return execution_pb2.Execution(
        execution_id=execution.execution_id,
        state=_STATES[execution.state],
        strategy=execution.strategy,
        strategy_source=_SOURCES[execution.strategy_source],
        finish_reason=_FINISH_REASONS[execution.finish_reason],
        create_time=timestamp(execution.create_time),
        end_time=timestamp(execution.end_time) if execution.end_time else None,
        expire_time=timestamp(execution.expire_time) if execution.expire_time else None,
        last_sequence=execution.last_sequence,
        usage=usage_message(execution.usage),
        request_id=execution.request_id,
        model=execution.model,
    )


def json_text(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return compact JSON text with sorted keys."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
