import dataclasses

import pytest

from reasond_server.logs.redaction import NOT_RECORDED, redacted
from reasond_server.types import (
    AnswerVotes,
    BoundedContextStep,
    CarryoverMode,
    CustomMetrics,
    CustomStep,
    Event,
    ExecutionFailure,
    ExecutionStarted,
    FinishReason,
    Iteration,
    Metrics,
    ReactStep,
    Result,
    Sample,
    SelfConsistencyMetrics,
    StepDetail,
    StrategyMetrics,
    StrategySource,
    Thought,
    ToolCall,
    ToolResult,
    TreeStep,
    Usage,
)

SECRET = "the secret"
DETAILS: list[StepDetail] = [
    Thought(text=SECRET, answer=SECRET),
    BoundedContextStep(
        text=SECRET,
        carryover=SECRET,
        carryover_mode=CarryoverMode.TAIL,
        carryover_tokens=3,
        carryover_generated=True,
        window_tokens=9,
        is_window_exact=True,
    ),
    ReactStep(
        thought=SECRET,
        actions=[ToolCall(call_id="c", name="t", arguments_json=SECRET)],
        observations=[ToolResult(call_id="c", result_json=SECRET)],
    ),
    TreeStep(node_id="n", parent_id="p", depth=1, thought=SECRET, score=0.5, is_pruned=False, answer=SECRET),
    Sample(text=SECRET, answer=SECRET, normalized_answer=SECRET, temperature=0.1),
    CustomStep(data={SECRET: SECRET}),
]


@pytest.mark.parametrize("detail", DETAILS)
def test_no_text_of_a_step_is_left_and_its_kind_and_numbers_are(detail: StepDetail) -> None:
    step = Iteration(index=4, answer_found=True, usage=Usage(input_tokens=7), elapsed_s=1.5, detail=detail)
    left = redacted(step)
    assert SECRET not in repr(left)
    assert isinstance(left, Iteration)
    assert type(left.detail) is type(detail)
    assert (left.index, left.usage, left.elapsed_s) == (4, step.usage, 1.5)
    for field in dataclasses.fields(detail):
        value = getattr(detail, field.name)
        if isinstance(value, int | float):
            assert getattr(left.detail, field.name) == value


@pytest.mark.parametrize(
    "metrics",
    [
        None,
        CustomMetrics(data={"said": SECRET}),
        SelfConsistencyMetrics(
            samples=3, votes=[AnswerVotes(answer=SECRET, votes=3)], margin=1.0, is_stopped_early=False
        ),
    ],
)
def test_a_result_keeps_its_numbers_and_says_why_it_has_no_text(metrics: StrategyMetrics | None) -> None:
    result = Result(
        execution_id="e",
        answer=SECRET,
        strategy_used="s",
        strategy_source=StrategySource.SYSTEM,
        finish_reason=FinishReason.FAILED,
        metrics=Metrics(usage=Usage(output_tokens=3), execution_time_s=2, strategy_specific=metrics),
        warnings=(SECRET,),
        model="m",
        error=ExecutionFailure(reason="MODEL_FAILED", message=SECRET),
    )
    left = redacted(result)
    assert isinstance(left, Result)
    assert SECRET not in repr(left)
    assert left.warnings == (NOT_RECORDED,)
    assert left.error is not None
    assert left.error.reason == "MODEL_FAILED"
    assert left.metrics.usage == result.metrics.usage


def test_the_first_event_is_kept_as_it_is() -> None:
    event: Event = ExecutionStarted(strategy="s", strategy_source=StrategySource.SYSTEM, model="m", config={"a": 1})
    assert redacted(event) is event
