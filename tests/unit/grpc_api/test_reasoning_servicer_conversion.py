from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from reasond.v1 import errors_pb2, execution_pb2, strategies_pb2
from reasond_server.grpc_api.message_writers import fill, timestamp, write_json
from reasond_server.grpc_api.reasoning_servicer import (
    build_event_message,
    build_iteration_message,
    build_metrics_message,
    fill_traced,
)
from reasond_server.types import (
    BoundedContextMetrics,
    BoundedContextStep,
    CarryoverMode,
    CustomMetrics,
    CustomStep,
    ExecutionFailure,
    ExecutionState,
    FinishReason,
    Iteration,
    Metrics,
    ReadingProgress,
    Result,
    Savings,
    SavingsBaseline,
    StrategySource,
    Thought,
    Usage,
    UsageSource,
    WindowMetrics,
)
from tests.unit.grpc_api.parts import EVENTS, EXECUTION, RESULT, START, STEP, USAGE

FULL = execution_pb2.TRACE_VIEW_FULL
STEPS = execution_pb2.TRACE_VIEW_STEPS
WINDOW = BoundedContextStep(
    text="read",
    carryover="kept",
    carryover_mode=CarryoverMode.TAIL,
    carryover_tokens=7,
    carryover_generated=True,
    window_tokens=1000,
    is_window_exact=True,
    reading=ReadingProgress(segment=2, segment_count=9),
)
WINDOW_METRICS = WindowMetrics(
    iteration=0, tokens=1000, has_answer=False, carryover_generated=True, execution_time_s=0.25, is_reading=True
)
SAVED = Savings(
    baseline=SavingsBaseline.SINGLE_PASS, attention_pct=40.5, kv_read_pct=10.0, tokens_pct=-3.5, peak_context_pct=75.0
)
BOUNDED = BoundedContextMetrics(
    iterations=(WINDOW_METRICS, replace(WINDOW_METRICS, iteration=1, tokens=500, is_reading=False, has_answer=True)),
    carryover_compressions=1,
    carryover_calls=1,
    savings=SAVED,
    reprompt_savings=SAVED,
    capacity_tokens=24_576,
    effective_capacity_tokens=20_000,
    is_window_exact=True,
)


def reasoning_message(result: Result) -> execution_pb2.Reasoning:
    message = execution_pb2.Reasoning()
    fill(message, result)
    return message


def traced_message(*arguments: Any, **options: Any) -> execution_pb2.Reasoning:
    message = execution_pb2.Reasoning()
    fill_traced(message, *arguments, **options)
    return message


def test_timestamps_know_their_zone() -> None:
    elsewhere = datetime(2026, 1, 1, 1, 0, 0, 500, tzinfo=timezone(timedelta(hours=1)))

    assert timestamp(elsewhere).ToDatetime(UTC) == datetime(2026, 1, 1, 0, 0, 0, 500, tzinfo=UTC)


ENUMS: list[tuple[Any, Any, str, Any]] = [
    (
        FinishReason,
        lambda value: fill(execution_pb2.Execution(), replace(EXECUTION, finish_reason=value)).finish_reason,
        "FINISH_REASON",
        execution_pb2.FinishReason,
    ),
    (
        ExecutionState,
        lambda value: fill(execution_pb2.Execution(), replace(EXECUTION, state=value)).state,
        "EXECUTION_STATE",
        execution_pb2.ExecutionState,
    ),
    (
        StrategySource,
        lambda value: fill(execution_pb2.Execution(), replace(EXECUTION, strategy_source=value)).strategy_source,
        "STRATEGY_SOURCE",
        execution_pb2.StrategySource,
    ),
    (
        UsageSource,
        lambda value: (
            build_metrics_message(Metrics(usage=replace(USAGE, source=value), execution_time_s=0.0)).usage.source
        ),
        "USAGE_SOURCE",
        execution_pb2.UsageSource,
    ),
    (CarryoverMode, lambda value: window_message(value).carryover_mode, "CARRYOVER_MODE", strategies_pb2.CarryoverMode),
    (
        SavingsBaseline,
        lambda value: bounded_message(value).savings.baseline,
        "SAVINGS_BASELINE",
        strategies_pb2.SavingsBaseline,
    ),
]


@pytest.mark.parametrize(("kind", "convert", "prefix", "known"), ENUMS, ids=[prefix for _, _, prefix, _ in ENUMS])
def test_every_value_of_every_enum_has_its_number(kind: Any, convert: Any, prefix: str, known: Any) -> None:
    names = {value: known.Name(convert(value)) for value in kind}

    assert names == {value: f"{prefix}_{value.name}" for value in kind}
    assert set(names.values()) == {name for name, number in known.items() if number}


def window_message(mode: CarryoverMode) -> strategies_pb2.BoundedContextStep:
    return build_iteration_message(replace(STEP, detail=replace(WINDOW, carryover_mode=mode))).bounded_context


def bounded_message(baseline: SavingsBaseline) -> strategies_pb2.BoundedContextMetrics:
    assert BOUNDED.savings is not None
    specific = replace(BOUNDED, savings=replace(BOUNDED.savings, baseline=baseline))
    return build_metrics_message(Metrics(usage=USAGE, execution_time_s=1.0, strategy_specific=specific)).bounded_context


def test_a_window_keeps_every_figure() -> None:
    message = build_iteration_message(replace(STEP, index=4, detail=WINDOW))

    assert (message.index, message.elapsed.ToMilliseconds(), message.usage.input_tokens) == (4, 500, 120)
    assert message.bounded_context == strategies_pb2.BoundedContextStep(
        text="read",
        carryover="kept",
        carryover_mode=strategies_pb2.CARRYOVER_MODE_TAIL,
        window_tokens=1000,
        carryover_generated=True,
        reading=strategies_pb2.ReadingProgress(segment=2, segment_count=9),
        is_window_exact=True,
        carryover_tokens=7,
    )


def test_a_window_that_reasons_has_no_reading_progress() -> None:
    message = build_iteration_message(replace(STEP, detail=replace(WINDOW, reading=None)))

    assert not message.bounded_context.HasField("reading")


def test_a_step_of_a_third_party_is_a_struct() -> None:
    message = build_iteration_message(replace(STEP, detail=CustomStep(data={"score": 0.5})))

    assert dict(message.custom) == {"score": 0.5}


def test_a_step_that_took_nothing_and_says_nothing_has_all_its_parts() -> None:
    message = build_iteration_message(
        Iteration(index=0, answer_found=False, usage=Usage(), elapsed_s=0.0, detail=Thought(text=""))
    )

    assert [field.name for field, _ in message.ListFields()] == ["usage", "elapsed", "thought"]
    assert message.usage.source == execution_pb2.USAGE_SOURCE_REPORTED


@pytest.mark.parametrize(
    ("detail", "case"), [(STEP.detail, "thought"), (WINDOW, "bounded_context"), (CustomStep(data={"a": 1}), "custom")]
)
def test_a_step_without_texts_keeps_its_kind_and_figures(detail: Any, case: str) -> None:
    message = build_iteration_message(replace(STEP, detail=detail), has_texts=False)

    assert message.WhichOneof("detail") == case
    assert message.usage.output_tokens == 30
    assert (message.thought.text, message.thought.answer) == ("", "")
    assert (message.bounded_context.text, message.bounded_context.carryover) == ("", "")
    assert not message.custom.fields
    assert message.bounded_context.window_tokens == (1000 if case == "bounded_context" else 0)


def test_metrics_of_bounded_context_are_complete() -> None:
    message = build_metrics_message(
        Metrics(usage=USAGE, execution_time_s=2.0, strategy_specific=BOUNDED)
    ).bounded_context

    unset = {field.name for field in message.DESCRIPTOR.fields} - {field.name for field, _ in message.ListFields()}
    assert unset == set()
    assert (message.total_iterations, message.reading_iterations, message.peak_window_tokens) == (2, 1, 1000)
    assert message.compute_savings_pct == 40.5
    assert message.savings.tokens_pct == -3.5
    assert [line.iteration for line in message.iterations] == [0, 1]


def test_metrics_without_savings_leave_them_out() -> None:
    specific = replace(BOUNDED, savings=None)

    message = build_metrics_message(Metrics(usage=USAGE, execution_time_s=2.0, strategy_specific=specific))

    assert not message.bounded_context.HasField("savings")


def test_metrics_of_a_third_party_are_a_struct() -> None:
    specific = CustomMetrics(data={"rounds": 3})

    message = build_metrics_message(Metrics(usage=USAGE, execution_time_s=2.0, strategy_specific=specific))

    assert dict(message.custom) == {"rounds": 3}


def test_metrics_before_the_first_step_are_the_common_ones() -> None:
    message = build_metrics_message(Metrics(usage=USAGE, execution_time_s=2.0))

    assert message.WhichOneof("strategy_specific") is None
    assert message.total_tokens == 150


def test_a_result_is_complete() -> None:
    failed = replace(RESULT, error=ExecutionFailure(reason="MODEL_FAILED", message="it broke"))

    message = reasoning_message(failed)

    unset = {field.name for field in message.DESCRIPTOR.fields} - {field.name for field, _ in message.ListFields()}
    assert unset == {"trace", "answer_json"}
    assert (message.error.reason, message.error.message) == (errors_pb2.ERROR_REASON_MODEL_FAILED, "it broke")


def test_a_failure_with_a_strange_reason_counts_as_internal() -> None:
    failed = replace(RESULT, error=ExecutionFailure(reason="STRANGE", message="m"))

    assert reasoning_message(failed).error.reason == errors_pb2.ERROR_REASON_INTERNAL


def test_the_result_of_a_running_execution_has_no_finish_reason() -> None:
    message = reasoning_message(replace(RESULT, finish_reason=None))

    assert message.finish_reason == execution_pb2.FINISH_REASON_UNSPECIFIED


@pytest.mark.parametrize("view", [execution_pb2.TRACE_VIEW_UNSPECIFIED, execution_pb2.TRACE_VIEW_NONE])
def test_without_a_view_there_is_no_trace(view: Any) -> None:
    assert not traced_message(RESULT, [STEP], view).trace


def test_views_choose_between_figures_and_texts() -> None:
    assert traced_message(RESULT, [STEP], FULL).trace[0].thought.text == "six times seven"
    assert traced_message(RESULT, [STEP], STEPS).trace[0].thought.text == ""


def test_a_trace_over_the_limit_is_cut_and_says_so() -> None:
    steps = [replace(STEP, index=index) for index in range(100)]

    message = traced_message(RESULT, steps, FULL, max_bytes=1000)

    size = sum(step.ByteSize() for step in message.trace)
    assert 0 < size <= 1000
    assert message.warnings[-1].startswith(f"The trace is cut after {len(message.trace)} of 100 steps")
    assert [step.index for step in message.trace] == list(range(len(message.trace)))


def test_a_trace_within_the_limit_brings_no_warning() -> None:
    assert list(traced_message(RESULT, [STEP], FULL).warnings) == ["one warning"]


def test_every_kind_of_event_finds_its_place() -> None:
    messages = [build_event_message(event) for event in EVENTS]

    assert [message.WhichOneof("event") for message in messages] == [
        "started",
        "heartbeat",
        "delta",
        "iteration",
        "completed",
    ]
    assert {message.create_time.ToDatetime(UTC) for message in messages} == {START}
    assert [message.sequence for message in messages] == [1, 1, 1, 2, 3]
    assert messages[0].started.config_json == '{"max_tokens":4096,"temperature":0.7}'
    assert (messages[2].delta.iteration_index, messages[2].delta.text) == (0, "six")


def test_an_execution_is_complete() -> None:
    message = fill(execution_pb2.Execution(), EXECUTION)

    unset = {field.name for field in message.DESCRIPTOR.fields} - {field.name for field, _ in message.ListFields()}
    assert unset == set()


def test_a_running_execution_has_no_end() -> None:
    running = replace(EXECUTION, end_time=None, expire_time=None, finish_reason=None, state=ExecutionState.RUNNING)

    message = fill(execution_pb2.Execution(), running)

    assert not message.HasField("end_time")
    assert not message.HasField("expire_time")


def test_json_text_is_compact_and_keeps_letters() -> None:
    assert write_json({"b": "Größe", "a": [1]}) == '{"a":[1],"b":"Größe"}'
