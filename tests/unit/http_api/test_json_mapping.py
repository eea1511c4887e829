from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from reasond_server.agents.directory import CardView, RegisteredAgent
from reasond_server.http_api import json_mapping as mapping
from reasond_server.http_api.json_mapping import list_trace_items, milliseconds, timestamp
from reasond_server.reasoning.service import StrategyInfo
from reasond_server.types import (
    BoundedContextMetrics,
    BoundedContextStep,
    CarryoverMode,
    ChainOfThoughtMetrics,
    CostClass,
    CustomMetrics,
    CustomStep,
    Execution,
    ExecutionFailure,
    ExecutionStarted,
    ExecutionState,
    FinishReason,
    Heartbeat,
    Iteration,
    Metrics,
    ReadingProgress,
    Result,
    Savings,
    SavingsBaseline,
    StepDetail,
    StrategyMetrics,
    StrategySource,
    StreamEvent,
    TextDelta,
    Thought,
    Usage,
    UsageSource,
    WindowMetrics,
)

MOMENT = datetime(2026, 11, 21, 3, 4, 5, 678_900, tzinfo=UTC)
USAGE = Usage(
    input_tokens=400,
    output_tokens=50,
    cached_input_tokens=30,
    reasoning_tokens=20,
    model_calls=1,
    source=UsageSource.ESTIMATED,
)
USAGE_JSON = {
    "input_tokens": 400,
    "output_tokens": 50,
    "cached_input_tokens": 30,
    "reasoning_tokens": 20,
    "model_calls": 1,
    "source": "estimated",
    "cost_usd": None,
}
COT = ChainOfThoughtMetrics(temperature=0.5, max_tokens=4096, finish_reason="stop", model="gpt-4")
WINDOW = BoundedContextStep(
    text="The method is ...",
    carryover="so far",
    carryover_mode=CarryoverMode.TAIL,
    carryover_tokens=2,
    carryover_generated=True,
    window_tokens=8000,
    is_window_exact=True,
    reading=ReadingProgress(segment=2, segment_count=7),
)
SAVINGS = Savings(
    baseline=SavingsBaseline.REPROMPT, attention_pct=52.3, kv_read_pct=40.0, tokens_pct=-12.5, peak_context_pct=80.0
)
BOUNDED = BoundedContextMetrics(
    iterations=[
        WindowMetrics(
            iteration=0,
            tokens=8192,
            has_answer=False,
            carryover_generated=True,
            execution_time_s=2.5,
            is_reading=True,
        ),
        WindowMetrics(
            iteration=1,
            tokens=4800,
            has_answer=True,
            carryover_generated=False,
            execution_time_s=1.8,
            is_reading=False,
            is_only_hidden_reasoning=True,
        ),
    ],
    carryover_compressions=1,
    savings=SAVINGS,
    capacity_tokens=24576,
    effective_capacity_tokens=24000,
    is_window_exact=True,
)


def result(strategy: str = "chain_of_thought", specific: StrategyMetrics | None = COT, **changes: Any) -> Result:
    return replace(
        Result(
            execution_id="e1",
            answer="$11,576.25",
            strategy_used=strategy,
            strategy_source=StrategySource.REQUEST,
            finish_reason=FinishReason.ANSWERED,
            metrics=Metrics(usage=USAGE, execution_time_s=1.2004, strategy_specific=specific),
            warnings=("one",),
            model="gpt-4",
        ),
        **changes,
    )


def step(detail: StepDetail, index: int = 0) -> Iteration:
    return Iteration(index=index, answer_found=True, usage=USAGE, elapsed_s=0.25, detail=detail)


def event(happening: Any) -> StreamEvent:
    return StreamEvent(execution_id="e1", sequence=3, create_time=MOMENT, event=happening)


def test_a_chain_of_thought_result_is_seed_001s_with_additions_behind() -> None:
    shown = mapping.build_result_json(result(), [step(Thought(text="Step 1", answer="$11,576.25"))])
    assert list(shown)[:4] == ["answer", "strategy_used", "metrics", "trace"]
    assert shown == {
        "answer": "$11,576.25",
        "strategy_used": "chain_of_thought",
        "metrics": {
            "total_tokens": 450,
            "execution_time_ms": 1200,
            "strategy_specific": {"temperature": 0.5, "max_tokens": 4096, "finish_reason": "stop", "model": "gpt-4"},
            "usage": USAGE_JSON,
        },
        "trace": [{"type": "reasoning", "content": "Step 1"}, {"type": "answer", "content": "$11,576.25"}],
        "execution_id": "e1",
        "finish_reason": "answered",
        "strategy_source": "request",
        "model": "gpt-4",
        "warnings": ["one"],
    }


@pytest.mark.parametrize(
    ("thought", "kinds"),
    [
        (Thought(text="", answer="42"), ["answer"]),
        (Thought(text="thinking", answer=""), ["reasoning"]),
        (Thought(text="", answer=""), []),
    ],
)
def test_a_thought_shows_only_what_it_has(thought: Thought, kinds: list[str]) -> None:
    assert [item["type"] for item in list_trace_items(step(thought))] == kinds


def test_bounded_context_metrics_have_the_keys_of_both_seeds() -> None:
    metrics = mapping.build_metrics_json(result("bounded_context", BOUNDED).metrics)
    assert metrics["strategy_specific"] == {
        "total_iterations": 2,
        "compute_savings_pct": 52.3,
        "iterations": [
            {
                "iteration": 0,
                "tokens": 8192,
                "has_answer": False,
                "carryover_generated": True,
                "execution_time_ms": 2500,
                "is_reading": True,
                "is_only_hidden_reasoning": False,
            },
            {
                "iteration": 1,
                "tokens": 4800,
                "has_answer": True,
                "carryover_generated": False,
                "execution_time_ms": 1800,
                "is_reading": False,
                "is_only_hidden_reasoning": True,
            },
        ],
        "carryover_compressions": 1,
        "carryover_calls": 0,
        "reading_iterations": 1,
        "savings": {
            "baseline": "reprompt",
            "attention_pct": 52.3,
            "kv_read_pct": 40.0,
            "tokens_pct": -12.5,
            "peak_context_pct": 80.0,
            "is_measured": False,
        },
        "reprompt_savings": None,
        "capacity_tokens": 24576,
        "effective_capacity_tokens": 24000,
        "is_window_exact": True,
        "peak_window_tokens": 8192,
    }


def test_percentages_have_one_decimal() -> None:
    exact = replace(SAVINGS, attention_pct=18.99967922619489, tokens_pct=-73.2943469785575, kv_read_pct=-0.04)
    shown = mapping.build_metrics_json(result("bounded_context", replace(BOUNDED, savings=exact)).metrics)
    specific = shown["strategy_specific"]
    assert specific["compute_savings_pct"] == 19.0
    assert [specific["savings"][f"{name}_pct"] for name in ("attention", "tokens")] == [19.0, -73.3]
    assert str(specific["savings"]["kv_read_pct"]) == "0.0"


def test_where_one_window_was_enough_savings_are_null_and_the_scalar_is_zero() -> None:
    specific = mapping.build_metrics_json(result("bounded_context", replace(BOUNDED, savings=None)).metrics)
    assert specific["strategy_specific"]["savings"] is None
    assert specific["strategy_specific"]["compute_savings_pct"] == 0.0


def test_before_the_first_step_nothing_is_specific_to_the_strategy() -> None:
    assert mapping.build_metrics_json(result(specific=None).metrics)["strategy_specific"] == {}


def test_a_window_is_one_item_that_says_what_it_read_and_carries_over() -> None:
    assert list_trace_items(step(WINDOW, 1)) == [
        {
            "type": "reading",
            "iteration": 1,
            "content": "The method is ...",
            "answer_found": True,
            "tokens": 8000,
            "execution_time_ms": 250,
            "carryover": "so far",
            "carryover_mode": "tail",
            "carryover_tokens": 2,
            "carryover_generated": True,
            "is_window_exact": True,
            "carryover_report": None,
            "reading": {"segment": 2, "segment_count": 7},
        }
    ]


def test_a_window_that_reasons_reads_nothing() -> None:
    (item,) = list_trace_items(step(replace(WINDOW, reading=None)))
    assert item["type"] == "reasoning"
    assert item["reading"] is None


def test_what_third_parties_report_is_passed_on_as_it_is() -> None:
    data = {"nodes": [1, {"deep": None}]}
    shown = mapping.build_result_json(result("theirs", CustomMetrics(data=data)), [step(CustomStep(data=data))])
    assert shown["metrics"]["strategy_specific"] == data
    assert shown["trace"] == [data]


@given(st.lists(st.dictionaries(st.text(), st.text() | st.integers() | st.lists(st.text()))), st.integers(0, 500))
def test_items_that_fit_whatever_their_texts_are_do_fit(items: list[dict[str, Any]], limit: int) -> None:
    if mapping._surely_fit(items, limit):
        assert len(to_json(items)) <= limit


def test_a_trace_of_one_mebibyte_is_kept_and_a_larger_one_is_cut_with_a_warning() -> None:
    items = [step(CustomStep(data={"text": "x" * 99_990}), index) for index in range(12)]
    size = len(to_json({"text": "x" * 99_990})) + 1
    fitting = mapping.MAX_TRACE_BYTES // size
    whole = mapping.build_result_json(result(), items[:fitting])
    assert len(whole["trace"]) == fitting
    assert whole["warnings"] == ["one"]
    cut = mapping.build_result_json(result(), items)
    assert len(cut["trace"]) == fitting
    assert len(json.dumps(cut["trace"], separators=(",", ":"))) <= mapping.MAX_TRACE_BYTES + 2
    assert cut["warnings"] == [
        "one",
        (
            f"The trace holds the first {fitting} of 12 items: all of them are over 1048576 bytes. "
            "Stream the execution to read every step."
        ),
    ]


def test_a_failed_result_names_its_error_and_a_running_one_has_not_finished() -> None:
    failure = ExecutionFailure(reason="MODEL_FAILED", message="it broke")
    assert mapping.build_completed_json(result(error=failure))["error"] == {
        "reason": "MODEL_FAILED",
        "message": "it broke",
    }
    assert mapping.build_completed_json(result(finish_reason=None))["finish_reason"] is None


def test_an_execution_is_shown_without_its_tenant_and_with_nulls_while_it_runs() -> None:
    execution = Execution(
        execution_id="e1",
        tenant="secret-tenant",
        state=ExecutionState.RUNNING,
        strategy="chain_of_thought",
        strategy_source=StrategySource.SYSTEM,
        model="gpt-4",
        create_time=MOMENT,
        request_id="mine",
        last_sequence=4,
        usage=USAGE,
    )
    shown = {
        "execution_id": "e1",
        "state": "running",
        "strategy": "chain_of_thought",
        "strategy_source": "system",
        "finish_reason": None,
        "create_time": "2026-11-21T03:04:05.678900Z",
        "end_time": None,
        "expire_time": None,
        "last_sequence": 4,
        "usage": USAGE_JSON,
        "request_id": "mine",
        "model": "gpt-4",
        "question": "",
        "outcome": "",
        "client": "",
        "wire": "",
    }
    assert mapping.build_execution_json(execution) == shown
    ended = replace(
        execution,
        state=ExecutionState.SUCCEEDED,
        finish_reason=FinishReason.MAX_ITERATIONS,
        end_time=MOMENT + timedelta(seconds=1),
        expire_time=MOMENT + timedelta(hours=1),
        question="How many?",
        outcome="12",
        client="ann",
        wire="grpc",
    )
    assert mapping.build_execution_json(ended) == {
        **shown,
        "question": "How many?",
        "outcome": "12",
        "client": "ann",
        "wire": "grpc",
        "state": "succeeded",
        "finish_reason": "max_iterations",
        "end_time": "2026-11-21T03:04:06.678900Z",
        "expire_time": "2026-11-21T04:04:05.678900Z",
    }


def test_a_strategy_is_shown_with_its_schema() -> None:
    info = StrategyInfo(
        name="quick",
        description="Quick.",
        config_schema={"type": "object"},
        default_config={"temperature": 0.7},
        capabilities=("reasoning.strategy.quick",),
        is_default=True,
        ceilings={"max_tokens": 100},
        cost_class=CostClass.CONSTANT,
        cost_formula="1",
    )
    assert mapping.build_kind_json(info) == {
        "name": "quick",
        "description": "Quick.",
        "config_schema": {"type": "object"},
        "default_config": {"temperature": 0.7},
        "capabilities": ["reasoning.strategy.quick"],
        "is_default": True,
        "ceilings": {"max_tokens": 100},
        "cost_class": "constant",
        "cost_formula": "1",
    }
    assert mapping.build_kind_json(replace(info, cost_class=None))["cost_class"] is None


def test_a_card_comes_with_its_bytes_and_an_agent_without_its_tenant() -> None:
    view = CardView(card={"name": "a"}, card_json='{"name":"a"}', etag="t", supported_methods=("m",), capabilities=())
    assert mapping.build_kind_json(view) == {
        "card": {"name": "a"},
        "card_json": '{"name":"a"}',
        "etag": "t",
        "supported_methods": ["m"],
        "capabilities": [],
    }
    agent = RegisteredAgent(
        tenant="secret-tenant",
        agent_id="a1",
        card={"name": "a"},
        card_json='{"name":"a"}',
        capabilities=("reasoning.strategy.quick",),
        strategies=("quick",),
        supported_methods=(),
        strategy_config={},
        etag="t",
        create_time=MOMENT,
        update_time=MOMENT,
        expire_time=MOMENT,
    )
    stamp = "2026-11-21T03:04:05.678900Z"
    assert mapping.build_agent_json(agent) == {
        "agent_id": "a1",
        "card": {"name": "a"},
        "card_json": '{"name":"a"}',
        "capabilities": ["reasoning.strategy.quick"],
        "strategies": ["quick"],
        "etag": "t",
        "create_time": stamp,
        "update_time": stamp,
        "expire_time": stamp,
    }
    assert mapping.build_agent_json(replace(agent, expire_time=None))["expire_time"] is None


@pytest.mark.parametrize(
    ("happening", "name", "body"),
    [
        (
            ExecutionStarted(
                strategy="quick", strategy_source=StrategySource.AGENT, model="gpt-4", config={"max_tokens": 100}
            ),
            "started",
            {"strategy": "quick", "strategy_source": "agent", "model": "gpt-4", "config": {"max_tokens": 100}},
        ),
        (TextDelta(iteration_index=2, text="wor"), "delta", {"iteration_index": 2, "text": "wor"}),
        (Heartbeat(), "heartbeat", {}),
        (result(), "completed", mapping.build_completed_json(result())),
        (step(WINDOW), "iteration", mapping.build_iteration_json(step(WINDOW))),
    ],
)
def test_an_event_stands_under_the_name_of_its_proto_field(happening: Any, name: str, body: dict[str, Any]) -> None:
    shown = mapping.build_event_json(event(happening))
    assert shown == {
        "execution_id": "e1",
        "sequence": 3,
        "create_time": "2026-11-21T03:04:05.678900Z",
        name: body,
    }
    assert mapping.name_event(event(happening)) == name
    assert mapping.is_logged(event(happening)) == (name not in {"delta", "heartbeat"})


@pytest.mark.parametrize(
    ("detail", "name", "body"),
    [
        (Thought(text="t", answer="a"), "thought", {"text": "t", "answer": "a"}),
        (
            WINDOW,
            "bounded_context",
            {
                "text": "The method is ...",
                "carryover": "so far",
                "carryover_mode": "tail",
                "carryover_tokens": 2,
                "carryover_generated": True,
                "is_window_exact": True,
                "carryover_report": None,
                "window_tokens": 8000,
                "reading": {"segment": 2, "segment_count": 7},
            },
        ),
        (CustomStep(data={"any": [1]}), "custom", {"any": [1]}),
    ],
)
def test_an_iteration_has_the_structure_of_the_proto(detail: StepDetail, name: str, body: dict[str, Any]) -> None:
    assert mapping.build_iteration_json(step(detail, 5)) == {
        "index": 5,
        "answer_found": True,
        "usage": USAGE_JSON,
        "elapsed_ms": 250,
        name: body,
    }


def test_times_are_told_in_utc_whatever_their_zone() -> None:
    there = datetime(2026, 1, 1, 1, 0, tzinfo=timezone(timedelta(hours=2)))
    assert timestamp(there) == "2025-12-31T23:00:00Z"


def test_durations_are_rounded_to_whole_milliseconds() -> None:
    assert [milliseconds(seconds) for seconds in (0, 0.0004, 0.0016, 2.5)] == [0, 0, 2, 2500]
