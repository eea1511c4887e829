"""What a log says of its execution while it grows."""

from __future__ import annotations

from dataclasses import fields, replace
from datetime import timedelta

from reasond_server.executions.log import RunLog
from reasond_server.executions.sizes import size_of
from reasond_server.testing.logs import START
from reasond_server.types import (
    Execution,
    ExecutionState,
    FinishReason,
    Iteration,
    StrategySource,
    Thought,
    Usage,
)


def test_an_event_changes_nothing_of_the_execution_but_its_sequence_and_usage() -> None:
    known = Execution(
        execution_id="x",
        tenant="acme",
        state=ExecutionState.RUNNING,
        strategy="s",
        strategy_source=StrategySource.REQUEST,
        model="m",
        create_time=START,
        request_id="r",
        finish_reason=FinishReason.ANSWERED,
        end_time=START + timedelta(seconds=1),
        expire_time=START + timedelta(seconds=2),
        last_sequence=3,
        usage=Usage(input_tokens=1),
    )
    for field in fields(Execution):
        assert getattr(known, field.name) != field.default, f"{field.name} shows nothing here"
    log = RunLog(execution=known, submit=lambda _: None)
    step = Iteration(
        index=0, answer_found=False, usage=Usage(), elapsed_s=0.0, detail=Thought(text="why", answer="because")
    )

    log.append(step, now=START, usage=Usage(input_tokens=5))

    assert log.execution == replace(known, last_sequence=4, usage=Usage(input_tokens=5))
    part = log.take()
    assert part is not None
    assert part.size == sum(map(size_of, part.entries))
