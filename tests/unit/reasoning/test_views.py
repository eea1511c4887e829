"""The view of an execution that callers receive, made from the part of its log that could be read."""

from dataclasses import replace
from datetime import UTC, datetime

from reasond_server.reasoning.views import build_view
from reasond_server.types import (
    CustomStep,
    Event,
    Execution,
    ExecutionStarted,
    ExecutionState,
    Iteration,
    LoggedEvent,
    StrategySource,
    Usage,
)

NOW = datetime(2026, 11, 21, tzinfo=UTC)
EXECUTION = Execution(
    execution_id="e1",
    tenant="acme",
    state=ExecutionState.RUNNING,
    strategy="quick",
    strategy_source=StrategySource.REQUEST,
    model="echo",
    create_time=NOW,
    last_sequence=2,
    usage=Usage(input_tokens=3, model_calls=1),
)
STARTED = ExecutionStarted(strategy="quick", strategy_source=StrategySource.REQUEST, model="echo", config={})


def step(index: int) -> Iteration:
    return Iteration(
        index=index, answer_found=False, usage=Usage(), elapsed_s=0.0, detail=CustomStep(data={"index": index})
    )


def test_a_running_execution_is_shown_with_its_steps_what_it_spent_and_no_answer() -> None:
    events: list[Event] = [STARTED, step(0), step(1)]
    logged = [LoggedEvent(sequence=number, create_time=NOW, event=event) for number, event in enumerate(events, 1)]
    view = build_view(EXECUTION, logged)
    assert [each.index for each in view.steps] == [0], "a step that came after the execution was looked up is left out"
    assert (view.result.answer, view.result.finish_reason) == ("", None)
    assert view.result.metrics.usage == EXECUTION.usage
    assert view.result.warnings == ("The execution is still running.",)
    assert build_view(replace(EXECUTION, last_sequence=3), logged).steps == [step(0), step(1)]
