import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

import pytest

from reasond_server.errors.base import ReasondError
from reasond_server.errors.limits import DrainingError, OverloadedError
from reasond_server.errors.model import (
    ModelFailedError,
    ModelRateLimitedError,
    ModelTimeoutError,
    ModelUnavailableError,
)
from reasond_server.errors.request import RequestIdReusedError
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.reasoning.strategy_work import ReasoningWork
from reasond_server.runs.phase import Trigger
from reasond_server.runs.runner import Runner, RunnerLimits
from reasond_server.strategies.strategy import Outcome, RunContext, StrategyConfig, StrategyEvent
from reasond_server.types import (
    Budget,
    CustomMetrics,
    CustomStep,
    Event,
    Execution,
    ExecutionStarted,
    ExecutionState,
    FinishReason,
    Iteration,
    Result,
    Task,
    UsageSource,
)
from tests.unit.runs.conftest import EchoModel, ManualClock, Script, Scripted

Assign = Callable[..., ReasoningWork]


async def log_of(store: MemoryExecutionStore, runner: Runner, execution: Execution) -> list[Event]:
    run = runner.find_live(execution.execution_id)
    if run is not None:
        await run.wait_for_end()
    logged = await store.read("acme", execution.execution_id)
    assert [event.sequence for event in logged] == list(range(1, len(logged) + 1))
    return [event.event for event in logged]


def result_of(events: list[Event]) -> Result:
    assert isinstance(events[-1], Result)
    assert sum(isinstance(event, Result) for event in events) == 1
    return events[-1]


async def test_a_run_logs_its_start_its_steps_and_one_result(
    runner: Runner, store: MemoryExecutionStore, assign: Assign
) -> None:
    events = await log_of(store, runner, await runner.start(assign()))
    assert [type(event) for event in events] == [ExecutionStarted, Iteration, Iteration, Result]
    result = result_of(events)
    assert (result.answer, result.finish_reason) == ("one two", FinishReason.ANSWERED)
    assert result.warnings == ("the echo model only repeats",)


async def test_the_usage_of_the_steps_adds_up_to_the_usage_of_the_run(
    runner: Runner, store: MemoryExecutionStore, assign: Assign
) -> None:
    execution = await runner.start(assign())
    events = await log_of(store, runner, execution)
    steps = [event for event in events if isinstance(event, Iteration)]
    usage = result_of(events).metrics.usage
    assert (usage.input_tokens, usage.output_tokens, usage.model_calls) == (20, 6, 2)
    assert sum(step.usage.total_tokens for step in steps) == usage.total_tokens
    assert usage.source is UsageSource.REPORTED
    assert (await store.find("acme", execution.execution_id)).usage == usage


async def test_an_error_keeps_the_steps_and_is_written_down(
    runner: Runner, store: MemoryExecutionStore, assign: Assign
) -> None:
    error = ModelFailedError("the model broke off", remedy="Try later.")
    execution = await runner.start(assign(Script(error=error)))
    events = await log_of(store, runner, execution)
    result = result_of(events)
    assert len(events) == 4
    assert result.finish_reason is FinishReason.FAILED
    assert result.error is not None
    assert (result.error.reason, result.error.message) == ("MODEL_FAILED", "the model broke off. Try later.")
    assert (await store.find("acme", execution.execution_id)).state is ExecutionState.FAILED


@pytest.mark.parametrize("kind", [ModelUnavailableError, ModelRateLimitedError, ModelTimeoutError])
async def test_a_refusal_that_costs_nothing_to_retry_is_none_after_tokens_were_spent(
    runner: Runner, store: MemoryExecutionStore, assign: Assign, kind: type[ReasondError]
) -> None:
    refusal = kind("the model is gone", remedy="Try later.", retry_after_s=2.0)
    at_first = result_of(await log_of(store, runner, await runner.start(assign(Script(words=(), error=refusal)))))
    later = result_of(await log_of(store, runner, await runner.start(assign(Script(error=refusal)))))
    assert at_first.error is not None
    assert later.error is not None
    assert (at_first.error.reason, at_first.metrics.usage.model_calls) == (kind.reason, 0)
    assert (later.error.reason, later.metrics.usage.model_calls) == ("MODEL_FAILED", 2)
    assert later.error.message == f"the model is gone, after tokens were spent ({kind.reason}). Try later."


@pytest.mark.parametrize("error", [ValueError("dsn=secret"), asyncio.CancelledError()])
async def test_a_fault_of_a_strategy_becomes_an_internal_error_without_its_text(
    runner: Runner, store: MemoryExecutionStore, assign: Assign, error: BaseException
) -> None:
    result = result_of(await log_of(store, runner, await runner.start(assign(Script(error=error)))))
    assert result.error is not None
    assert (result.error.reason, result.error.message) == ("INTERNAL", "internal error")


async def test_a_strategy_without_an_outcome_fails_by_name(
    runner: Runner, store: MemoryExecutionStore, assign: Assign
) -> None:
    result = result_of(await log_of(store, runner, await runner.start(assign(Script(ends=False)))))
    assert result.error is not None
    assert result.error.message == "strategy 'scripted' ended without an outcome"


async def test_cancelling_closes_the_model_and_keeps_what_was_done(
    runner: Runner, store: MemoryExecutionStore, assign: Assign, model: EchoModel
) -> None:
    script = Script(words=("one", "two"), before_step=lambda index: model.gate.clear() if index else None)
    execution = await runner.start(assign(script))
    run = runner.find_live(execution.execution_id)
    assert run is not None
    await model.waited.wait()
    run.cancel()
    run.cancel()
    events = await log_of(store, runner, execution)
    assert [type(event) for event in events] == [ExecutionStarted, Iteration, Result]
    assert result_of(events).finish_reason is FinishReason.CANCELLED
    assert model.closed.is_set()
    assert script.cleaned_up.is_set()
    assert (await store.find("acme", execution.execution_id)).state is ExecutionState.CANCELLED


async def test_a_run_that_is_cancelled_before_its_first_step_still_ends_its_log(
    runner: Runner, store: MemoryExecutionStore, assign: Assign
) -> None:
    execution = await runner.start(assign())
    run = runner.find_live(execution.execution_id)
    assert run is not None
    run.cancel()
    events = await log_of(store, runner, execution)
    assert [type(event) for event in events] == [ExecutionStarted, Result]
    assert runner.find_live(execution.execution_id) is None


async def test_no_more_than_the_limit_run_at_once(runner: Runner, assign: Assign, model: EchoModel) -> None:
    model.gate.clear()
    for _ in range(3):
        await runner.start(assign())
    with pytest.raises(OverloadedError) as refused:
        await runner.start(assign())
    assert refused.value.retry_after_s == 1.0
    assert refused.value.metadata == {"max_concurrent_requests": "3"}


async def test_the_same_request_id_makes_one_run(runner: Runner, store: MemoryExecutionStore, assign: Assign) -> None:
    first = await runner.start(assign(request_id="r1", digest="d"))
    again = await runner.start(assign(request_id="r1", digest="d"))
    assert first.execution_id == again.execution_id
    await log_of(store, runner, first)
    after = await runner.start(assign(request_id="r1", digest="d"))
    assert after.execution_id == first.execution_id
    assert after.state is ExecutionState.SUCCEEDED


async def test_a_request_that_failed_before_anything_was_spent_starts_anew_with_its_id(
    runner: Runner, store: MemoryExecutionStore, assign: Assign
) -> None:
    first = await runner.start(assign(Script(words=(), error=ModelUnavailableError("gone")), request_id="r1"))
    await log_of(store, runner, first)
    again = await runner.start(assign(request_id="r1"))
    assert result_of(await log_of(store, runner, again)).finish_reason is FinishReason.ANSWERED
    assert again.execution_id != first.execution_id
    assert (await runner.start(assign(request_id="r1"))).execution_id == again.execution_id


async def test_a_request_that_failed_after_tokens_were_spent_is_not_paid_for_again(
    runner: Runner, store: MemoryExecutionStore, assign: Assign
) -> None:
    first = await runner.start(assign(Script(error=ModelFailedError("broke off")), request_id="r1"))
    await log_of(store, runner, first)
    assert (await runner.start(assign(request_id="r1"))).execution_id == first.execution_id


async def test_a_request_that_was_cancelled_starts_anew_with_its_id(
    runner: Runner, store: MemoryExecutionStore, assign: Assign, model: EchoModel
) -> None:
    model.gate.clear()
    first = await runner.start(assign(request_id="r1"))
    await model.waited.wait()
    run = runner.find_live(first.execution_id)
    assert run is not None
    run.cancel()
    await run.wait_for_end()
    model.gate.set()
    again = await runner.start(assign(request_id="r1"))
    assert again.execution_id != first.execution_id
    assert result_of(await log_of(store, runner, again)).finish_reason is FinishReason.ANSWERED
    assert (await store.find("acme", first.execution_id)).state is ExecutionState.CANCELLED


async def test_a_request_id_for_another_request_is_refused(runner: Runner, assign: Assign) -> None:
    first = await runner.start(assign(request_id="r1", digest="d"))
    with pytest.raises(RequestIdReusedError, match="was used before") as refused:
        await runner.start(assign(request_id="r1", digest="other"))
    assert refused.value.metadata == {"execution_id": first.execution_id}


async def test_a_budget_that_does_not_cover_the_first_call_is_an_error(
    runner: Runner, store: MemoryExecutionStore, assign: Assign
) -> None:
    execution = await runner.start(assign(budget=Budget(max_total_tokens=1)))
    result = result_of(await log_of(store, runner, execution))
    assert result.error is not None
    assert result.error.reason == "TOKEN_BUDGET_EXHAUSTED"
    assert result.metrics.usage.total_tokens == 0


async def test_a_budget_that_ends_later_keeps_what_there_is(
    runner: Runner, store: MemoryExecutionStore, assign: Assign
) -> None:
    execution = await runner.start(assign(budget=Budget(max_model_calls=1)))
    events = await log_of(store, runner, execution)
    result = result_of(events)
    assert [type(event) for event in events] == [ExecutionStarted, Iteration, Result]
    assert (result.finish_reason, result.error) == (FinishReason.BUDGET_EXHAUSTED, None)
    assert "max_model_calls is 1" in result.warnings[-1]


async def test_the_time_limit_ends_a_run_with_what_it_has(
    runner: Runner, store: MemoryExecutionStore, assign: Assign, model: EchoModel
) -> None:
    script = Script(before_step=lambda index: model.gate.clear() if index else None)
    execution = await runner.start(assign(script, budget=Budget(max_elapsed_s=0.05)))
    events = await log_of(store, runner, execution)
    assert result_of(events).finish_reason is FinishReason.BUDGET_EXHAUSTED
    assert len(events) == 3


async def test_a_time_limit_before_the_first_call_is_an_error(
    runner: Runner, store: MemoryExecutionStore, assign: Assign
) -> None:
    execution = await runner.start(assign(Script(waits_for=asyncio.Event()), time_limit_s=0.01))
    result = result_of(await log_of(store, runner, execution))
    assert result.error is not None
    assert result.error.reason == "MODEL_TIMEOUT"


async def test_a_call_shortened_by_the_budget_is_not_called_truncated(
    runner: Runner, store: MemoryExecutionStore, assign: Assign
) -> None:
    script = Script(words=("one",), finish=FinishReason.TRUNCATED)
    execution = await runner.start(assign(script, budget=Budget(max_total_tokens=20)))
    result = result_of(await log_of(store, runner, execution))
    assert result.finish_reason is FinishReason.BUDGET_EXHAUSTED
    assert result.warnings[-1] == "The token budget cut the last model call short."


async def test_draining_refuses_new_work_and_lets_running_work_end(
    runner: Runner, store: MemoryExecutionStore, assign: Assign, model: EchoModel
) -> None:
    model.gate.clear()
    execution = await runner.start(assign())
    drained = asyncio.create_task(runner.drain(grace_s=30))
    await asyncio.sleep(0)
    with pytest.raises(DrainingError) as refused:
        await runner.start(assign())
    assert refused.value.retry_after_s == 1.0
    model.gate.set()
    await drained
    assert result_of(await log_of(store, runner, execution)).finish_reason is FinishReason.ANSWERED


async def test_what_outlives_the_grace_stops_at_its_next_step(
    runner: Runner, store: MemoryExecutionStore, assign: Assign, model: EchoModel
) -> None:
    model.gate.clear()
    execution = await runner.start(assign(Script(words=("a", "b", "c"))))
    run = runner.find_live(execution.execution_id)
    assert run is not None
    run.leaves_at_checkpoint = Trigger.CANCEL
    model.gate.set()
    events = await log_of(store, runner, execution)
    assert [type(event) for event in events] == [ExecutionStarted, Iteration, Result]
    assert result_of(events).warnings[-1].startswith("The server was shut down")


async def test_what_hangs_is_cancelled_when_the_grace_is_over(
    runner: Runner, store: MemoryExecutionStore, assign: Assign, model: EchoModel
) -> None:
    model.gate.clear()
    execution = await runner.start(assign())
    await runner.drain(grace_s=0.01)
    assert result_of(await log_of(store, runner, execution)).finish_reason is FinishReason.CANCELLED


async def test_deleting_a_running_execution_ends_its_run_quietly(
    runner: Runner, store: MemoryExecutionStore, assign: Assign, model: EchoModel
) -> None:
    model.gate.clear()
    execution = await runner.start(assign())
    run = runner.find_live(execution.execution_id)
    assert run is not None
    await store.delete("acme", execution.execution_id)
    model.gate.set()
    await run.wait_for_end()
    assert runner.find_live(execution.execution_id) is None


async def test_the_same_clock_and_model_give_the_same_log_again(model: EchoModel, assign: Assign) -> None:
    logs = []
    for _ in range(2):
        time = ManualClock()
        own = MemoryExecutionStore(max_bytes=10**6, now=time.now, monotonic=time.monotonic)
        runner = Runner(
            store=own, model=model, clock=time.clock(), limits=RunnerLimits(max_concurrent=1, retention_s=1)
        )
        logs.append(repr(await log_of(own, runner, await runner.start(assign()))))
    assert logs[0] == logs[1]


class Marked(Scripted):
    """Answers with the nonce of its run."""

    async def run(self, task: Task, context: RunContext[StrategyConfig]) -> AsyncGenerator[StrategyEvent, None]:
        assert task.query
        yield Outcome(
            answer=context.new_nonce(), finish_reason=FinishReason.ANSWERED, metrics=CustomMetrics(data={"steps": 0})
        )


async def test_a_run_draws_its_nonces_where_its_ids_come_from(
    store: MemoryExecutionStore, model: EchoModel, time: ManualClock, assign: Assign
) -> None:
    clock = replace(time.clock(), new_nonce=lambda: "m" * 28)
    runner = Runner(store=store, model=model, clock=clock, limits=RunnerLimits(max_concurrent=1, retention_s=1))
    events = await log_of(store, runner, await runner.start(assign(strategy=Marked(Script()))))
    assert result_of(events).answer == "m" * 28


def nest(depth: int) -> object:
    return {"in": nest(depth - 1)} if depth else 1


@pytest.mark.parametrize("extra", [object(), float("nan"), nest(16), nest(5000 // 6)])
async def test_a_step_that_no_transport_could_carry_ends_the_run_and_names_its_strategy(
    runner: Runner, store: MemoryExecutionStore, assign: Assign, extra: object
) -> None:
    events = await log_of(store, runner, await runner.start(assign(Script(extra=extra))))
    assert [type(event) for event in events] == [ExecutionStarted, Result]
    error = result_of(events).error
    assert error is not None
    assert error.message == "strategy 'scripted' yielded a CustomStep that is no JSON object of 16 levels at most"


async def test_a_step_of_as_many_levels_as_allowed_is_kept(
    runner: Runner, store: MemoryExecutionStore, assign: Assign
) -> None:
    result = result_of(await log_of(store, runner, await runner.start(assign(Script(extra=nest(15))))))
    assert result.finish_reason is FinishReason.ANSWERED


async def test_asking_again_for_a_run_that_is_being_left_starts_anew_once_that_has_ended(
    runner: Runner, store: MemoryExecutionStore, assign: Assign, model: EchoModel
) -> None:
    model.gate.clear()
    first = await runner.start(assign(request_id="r1"))
    await model.waited.wait()
    run = runner.find_live(first.execution_id)
    assert run is not None
    run.cancel()
    model.gate.set()
    again = await runner.start(assign(request_id="r1"))
    assert again.execution_id != first.execution_id
    assert result_of(await log_of(store, runner, again)).finish_reason is FinishReason.ANSWERED


async def test_what_a_strategy_changes_after_a_step_does_not_change_the_log(
    runner: Runner, store: MemoryExecutionStore, assign: Assign
) -> None:
    shared = ["first"]
    script = Script(extra=shared, before_step=lambda index: shared.append("second") if index else None)
    events = await log_of(store, runner, await runner.start(assign(script)))
    assert isinstance(events[1], Iteration)
    assert isinstance(events[1].detail, CustomStep)
    assert events[1].detail.data["extra"] == ["first"]


@pytest.mark.parametrize(
    ("unary", "script", "level", "reason"),
    [
        (True, Script(), logging.DEBUG, ""),
        (True, Script(error=ModelFailedError("broken")), logging.INFO, "MODEL_FAILED"),
        (False, Script(), logging.INFO, ""),
        (False, Script(error=ModelFailedError("broken")), logging.INFO, "MODEL_FAILED"),
    ],
)
async def test_a_run_that_the_line_of_its_call_tells_of_ends_with_a_line_for_debugging_only(
    runner: Runner,
    store: MemoryExecutionStore,
    assign: Assign,
    caplog: pytest.LogCaptureFixture,
    *,
    unary: bool,
    script: Script,
    level: int,
    reason: str,
) -> None:
    with caplog.at_level(logging.DEBUG, logger="reasond.executions"):
        execution = await runner.start(assign(script, is_unary=unary, keep_running=False))
        await log_of(store, runner, execution)

    ends = [record for record in caplog.records if record.message == "execution ended"]
    assert [record.levelno for record in ends] == [level]
    assert vars(ends[0])["execution_id"] == execution.execution_id
    assert vars(ends[0])["reason"] == reason
