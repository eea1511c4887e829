"""Runs that are restored from a store, and the reasons why a run cannot be restored."""

import json
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from reasond_server.errors.request import StrategyNotFoundError
from reasond_server.eventlog.store import Recovery
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.eventlog.writer import LogWriter
from reasond_server.reasoning.strategy_selection import OfferedModels
from reasond_server.reasoning.strategy_work import ReasoningKind, ReasoningWork
from reasond_server.runs.live_runs import RunnerLimits
from reasond_server.runs.plan import PlanError
from reasond_server.runs.run_factory import RunFactory, build_resume_error
from reasond_server.strategies.strategy import ReasoningStrategy
from reasond_server.types import (
    Execution,
    ExecutionStarted,
    ExecutionState,
    FinishReason,
    Iteration,
    LoggedEvent,
    Result,
    StrategySource,
    Thought,
    Usage,
)
from tests.unit.runs.conftest import EchoModel, ManualClock, Script, Scripted

Assign = Callable[..., ReasoningWork]
NOW = datetime(2026, 11, 21, tzinfo=UTC)
SPENT = Usage(input_tokens=7, output_tokens=2, model_calls=1)


class Again(Scripted):
    """The scripted strategy, declared as replayable."""

    is_replayable = True


def factory(strategy: ReasoningStrategy[Any] | None = None, **changes: Any) -> RunFactory:
    """Return a maker that knows only `strategy`."""
    time = ManualClock()
    store = MemoryExecutionStore(max_bytes=10**6, now=time.now, monotonic=time.monotonic)

    def find(name: str) -> ReasoningStrategy[Any]:
        if strategy is None:
            raise StrategyNotFoundError(name)
        return strategy

    limits = RunnerLimits(max_concurrent=1, retention_s=9, records_content=changes.pop("records_content", True))
    parts: dict[str, Any] = {
        "model": EchoModel(),
        "clock": time.clock(),
        "writer": LogWriter(store=store, random=lambda: 0.0),
        "kinds": {
            "reasoning": ReasoningKind(clock=time.clock(), find_strategy=find, models=OfferedModels(EchoModel()))
        },
        "limits": limits,
        "is_durable": True,
    }
    return RunFactory(**{**parts, **changes})


def recovery(plan: str, *events: LoggedEvent) -> Recovery:
    execution = Execution(
        execution_id="e1",
        tenant="acme",
        state=ExecutionState.RUNNING,
        strategy="scripted",
        strategy_source=StrategySource.REQUEST,
        model="echo",
        create_time=NOW - timedelta(seconds=20),
        last_sequence=len(events),
        usage=SPENT,
    )
    return Recovery(execution=execution, plan=plan, events=events, records=(), version=len(events), fence=2)


def plan_of(assign: Assign, **keys: Any) -> str:
    return str(factory().prepare(assign(**keys, strategy=Again(Script()))).plan)


async def test_a_run_that_left_no_event_begins_its_log(assign: Assign) -> None:
    run = factory(Again(Script())).revive(recovery(plan_of(assign)))
    first = run.log.take()
    assert first is not None
    assert (first.version, first.fence) == (0, 2)
    assert [type(entry.event) for entry in first.entries if isinstance(entry, LoggedEvent)] == [ExecutionStarted]
    assert run.accounts.usage == SPENT


async def test_what_was_told_of_the_choice_is_told_by_who_goes_on(assign: Assign) -> None:
    plan = json.loads(plan_of(assign))
    assert plan["warnings"] == []
    told = factory(Again(Script())).revive(recovery(json.dumps({**plan, "warnings": ["The task is long."]})))
    assert told.work.describe()["warnings"] == ["The task is long."]


async def test_runs_of_a_tenant_whose_prompts_begin_alike_share_a_mark_and_no_others_do(assign: Assign) -> None:
    maker = factory(Again(Script()))

    def mark(*, tenant: str = "acme", begin: str = "A long text.") -> str:
        return maker.prepare(assign(strategy=Again(Script()), tenant=tenant, prompts_begin_with=begin)).mark

    assert mark() == mark()
    assert re.fullmatch("[a-z]{28}", mark())
    marks = {mark(), mark(tenant="other"), mark(begin="Another text."), mark(begin=""), mark(begin="")}
    assert len(marks) == 5
    other_process = factory(Again(Script())).prepare(
        assign(strategy=Again(Script()), prompts_begin_with="A long text.")
    )
    assert other_process.mark not in marks


async def test_who_goes_on_with_a_run_has_its_mark_and_the_keys_of_its_effects_are_its_own(assign: Assign) -> None:
    maker = factory(Again(Script()))
    one, other = (maker.prepare(assign(strategy=Again(Script()), prompts_begin_with="A text.")) for _ in range(2))
    run = factory(Again(Script())).revive(recovery(one.plan))
    assert run.mark == one.mark == other.mark
    assert run.effects.nonce == one.nonce != other.nonce
    old = {key: each for key, each in json.loads(one.plan).items() if key != "mark"}
    assert factory(Again(Script())).revive(recovery(json.dumps(old))).mark == one.nonce


async def test_of_the_steps_of_an_earlier_life_a_run_holds_digests_and_no_text(assign: Assign) -> None:
    steps = [
        LoggedEvent(
            sequence=number + 1,
            create_time=NOW,
            event=Iteration(
                index=number, answer_found=False, usage=SPENT, elapsed_s=0.1, detail=Thought(text=text * 10_000)
            ),
        )
        for number, text in enumerate("aba")
    ]
    run = factory(Again(Script())).revive(recovery(plan_of(assign), *steps))
    assert isinstance(run.work, ReasoningWork)
    known = run.work.steps._known
    assert [len(each) for each in known] == [16, 16, 16]
    assert known[0] == known[2] != known[1]
    assert run.work.steps.new_count == -3


async def test_a_log_that_is_written_off_has_its_beginning_and_its_end(assign: Assign) -> None:
    error = build_resume_error(PlanError("the reason"))
    log = factory().write_off(recovery(plan_of(assign)), error)
    part = log.take()
    assert part is not None
    started, result = (entry.event for entry in part.entries if isinstance(entry, LoggedEvent))
    assert isinstance(started, ExecutionStarted)
    assert isinstance(result, Result)
    assert (result.finish_reason, result.metrics.usage) == (FinishReason.FAILED, SPENT)
    assert result.error is not None
    assert "no other can go on: the reason" in result.error.message
    assert part.execution.expire_time == NOW + timedelta(seconds=9)


@pytest.mark.parametrize(
    ("strategy", "config", "told"),
    [
        (None, {}, "'scripted' is not enabled here any more"),
        (Scripted(Script()), {}, "'scripted' cannot go on from its steps"),
        (Again(Script()), {"unknown": 1}, "'scripted' does not take its configuration any more"),
    ],
)
async def test_what_cannot_be_made_again_is_told_apart(
    assign: Assign, strategy: ReasoningStrategy[Any] | None, config: dict[str, Any], told: str
) -> None:
    plan = json.dumps({**json.loads(plan_of(assign)), "config": config})
    with pytest.raises(PlanError, match=told):
        factory(strategy).revive(recovery(plan))


@pytest.mark.parametrize(
    ("changes", "keys", "obstacle"),
    [
        ({}, {}, ""),
        ({}, {"is_unary": True, "keep_running": False}, "nobody could have come back for its result"),
        ({"records_content": False}, {}, "its content was not kept ([store] record_content)"),
        ({"is_durable": False}, {}, "its store was gone with the server"),
        ({"is_durable": False}, {"request_id": "r1"}, ""),
    ],
)
async def test_a_plan_is_kept_only_where_somebody_can_use_it(
    assign: Assign, changes: dict[str, Any], keys: dict[str, Any], obstacle: str
) -> None:
    prepared = factory(**changes).prepare(assign(**keys, strategy=Again(Script())))
    assert prepared.is_recoverable is not bool(obstacle)
    assert json.loads(str(prepared.plan)).get("reason", "") == obstacle
