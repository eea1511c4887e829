"""Runs whose store is full, whose strategy does not stop, or whose server ends."""

import asyncio
import gc
import weakref
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from reasond_server.errors.base import ReasondError
from reasond_server.errors.limits import StoreFullError, StoreUnavailableError
from reasond_server.errors.model import ModelTimeoutError
from reasond_server.eventlog.store import Append, Lease, Renewal
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.llm.model import ChatRequest, Message, Role, Text
from reasond_server.reasoning.strategy_work import ReasoningWork
from reasond_server.runs.followers import Follower
from reasond_server.runs.runner import Runner, RunnerLimits
from reasond_server.strategies.strategy import Outcome, RunContext, StrategyConfig, StrategyEvent, Wrote
from reasond_server.types import Budget, CustomMetrics, Execution, ExecutionState, FinishReason, Heartbeat, Result, Task
from tests.unit.runs.conftest import EchoModel, ManualClock, Script, Scripted, in_virtual_time, passed_s

Assign = Callable[..., ReasoningWork]
LIMITS = RunnerLimits(max_concurrent=3, retention_s=60, unwinding_s=2)


class TroubledStore(MemoryExecutionStore):
    """A durable store that refuses the first `full` results as full, and refuses every append while it `is_down`."""

    is_durable = True

    def __init__(self, *, full: int = 0) -> None:
        time = ManualClock()
        super().__init__(max_bytes=10**7, now=time.now, monotonic=time.monotonic)
        self.full = full
        self.is_down = False

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        if self.is_down:
            raise StoreUnavailableError("gone")
        has_result = any(isinstance(getattr(e, "event", None), Result) for part in batch for e in part.entries)
        if has_result and self.full:
            self.full -= 1
            return [StoreFullError("full") for _ in batch]
        return await super().append(batch)

    async def renew(self, lease: Lease, fences: Any) -> Renewal:
        if self.is_down:
            raise StoreUnavailableError("gone")
        return await super().renew(lease, fences)


class Stubborn(Scripted):
    """Does not stop before the test releases it, however often it is cancelled."""

    def __init__(self) -> None:
        super().__init__(Script())
        self.released = asyncio.Event()
        self.stopped = asyncio.Event()

    async def run(self, task: Task, context: RunContext[StrategyConfig]) -> AsyncGenerator[StrategyEvent, None]:
        del task, context
        while not self.released.is_set():
            try:
                await self.released.wait()
            except asyncio.CancelledError:
                continue
        self.stopped.set()
        yield Outcome(answer="late", finish_reason=FinishReason.ANSWERED, metrics=CustomMetrics(data={}))


class Again(Scripted):
    """The scripted strategy, declared as replayable."""

    is_replayable = True


def runner_on(store: MemoryExecutionStore, model: EchoModel | None = None, limits: RunnerLimits = LIMITS) -> Runner:
    clock = replace(ManualClock().clock(), random=lambda: 0.5)
    return Runner(store=store, model=model or EchoModel(), clock=clock, limits=limits)


async def end_of(store: MemoryExecutionStore, runner: Runner, execution: Execution) -> Result | None:
    run = runner.find_live(execution.execution_id)
    assert run is not None
    await run.wait_for_end()
    last = (await store.read("acme", execution.execution_id))[-1].event
    return last if isinstance(last, Result) else None


@in_virtual_time
async def test_a_result_that_found_no_room_is_written_once_there_is_some(assign: Assign) -> None:
    store = TroubledStore(full=2)
    runner = runner_on(store)
    result = await end_of(store, runner, await runner.start(assign()))
    assert result is not None
    assert (result.answer, result.warnings[-1]) == ("one two", "The store was full: the last steps are not kept.")
    assert passed_s() == pytest.approx(0.5 + 2.0)


@in_virtual_time
async def test_a_store_that_stays_full_does_not_keep_a_run_for_ever(assign: Assign) -> None:
    store = TroubledStore(full=99)
    runner = runner_on(store)
    execution = await runner.start(assign())
    run = runner.find_live(execution.execution_id)
    assert run is not None
    concluded = await run.wait_for_result()
    assert isinstance(concluded, Result)
    assert concluded.answer == "one two"
    assert await end_of(store, runner, execution) is None
    assert passed_s() == pytest.approx(0.5 + 2.0 + 8.0)
    assert runner.find_live(execution.execution_id) is None


@in_virtual_time
async def test_who_follows_a_run_whose_end_finds_no_room_is_told_so_and_not_kept_waiting(assign: Assign) -> None:
    store = TroubledStore(full=99)
    runner = runner_on(store)
    follower = Follower(store=store, runner=runner, clock=ManualClock().clock(), heartbeat_interval_s=30)
    execution = await runner.start(assign())
    seen = []
    with pytest.raises(StoreFullError, match="no room for what the execution did last") as told:
        async with aclosing(follower.follow(execution, after=0, include_deltas=False)) as events:
            seen += [event.sequence async for event in events if not isinstance(event.event, Heartbeat)]
    assert told.value.execution_id == execution.execution_id
    assert passed_s() == pytest.approx(0.5 + 2.0 + 8.0)


@pytest.mark.parametrize("limit_s", [None, 5.0])
@in_virtual_time
async def test_a_strategy_that_does_not_stop_is_left_behind_and_its_run_ends(
    assign: Assign, limit_s: float | None
) -> None:
    store = TroubledStore()
    runner = runner_on(store)
    strategy = Stubborn()
    execution = await runner.start(assign(time_limit_s=limit_s, strategy=strategy))
    run = runner.find_live(execution.execution_id)
    assert run is not None
    await asyncio.sleep(0.1)
    if limit_s is None:
        run.cancel()
    result = await end_of(store, runner, execution)
    assert result is not None
    assert result.warnings[-1] == "The work did not stop when it was told to and was left behind."
    assert result.finish_reason is (FinishReason.CANCELLED if limit_s is None else FinishReason.FAILED)
    assert passed_s() == pytest.approx((0.1 if limit_s is None else limit_s) + 2.0)
    strategy.released.set()
    await strategy.stopped.wait()


class Ending(Scripted):
    """Yields its outcome, and runs the callbacks of the test before and after it."""

    def __init__(
        self,
        *,
        before: Callable[[], object] = bool,
        after: Callable[[], object] = bool,
        reason: FinishReason = FinishReason.ANSWERED,
    ) -> None:
        super().__init__(Script())
        self._reason = reason
        self._before = before
        self._after = after
        self.cuts = 0

    async def run(self, task: Task, context: RunContext[StrategyConfig]) -> AsyncGenerator[StrategyEvent, None]:
        del task, context
        self._before()
        try:
            await asyncio.sleep(0)
            yield Outcome(answer="done", finish_reason=self._reason, metrics=CustomMetrics(data={}))
        finally:
            while self._after():
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    self.cuts += 1


class Late(Scripted):
    """Cancels its own task, then yields its outcome without another await."""

    def __init__(self) -> None:
        super().__init__(Script())

    async def run(self, task: Task, context: RunContext[StrategyConfig]) -> AsyncGenerator[StrategyEvent, None]:
        del task, context
        cancel_own_task()
        yield Outcome(answer="done", finish_reason=FinishReason.ANSWERED, metrics=CustomMetrics(data={}))


class Sore(Scripted):
    """Works until it is cancelled, and fails then."""

    def __init__(self, error: Exception) -> None:
        super().__init__(Script(waits_for=asyncio.Event()))
        self._error = error

    async def run(self, task: Task, context: RunContext[StrategyConfig]) -> AsyncGenerator[StrategyEvent, None]:
        try:
            async for event in super().run(task, context):
                yield event
        except asyncio.CancelledError:
            raise self._error from None


class Slow(Scripted):
    """Takes 810 seconds for its first step, and never ends its cleanup."""

    async def run(self, task: Task, context: RunContext[StrategyConfig]) -> AsyncGenerator[StrategyEvent, None]:
        await asyncio.sleep(810)
        try:
            async for event in super().run(task, context):
                yield event
        finally:
            await asyncio.Event().wait()


def cancel_own_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


def cancel_own_task_soon() -> None:
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: loop.call_soon(task.cancel))


@in_virtual_time
async def test_a_strategy_that_cancels_its_own_task_fails_and_is_written_down(assign: Assign) -> None:
    store = TroubledStore()
    runner = runner_on(store)
    execution = await runner.start(assign(strategy=Ending(before=cancel_own_task)))
    result = await end_of(store, runner, execution)
    assert result is not None
    assert result.error is not None
    assert (result.finish_reason, result.error.reason) == (FinishReason.FAILED, "INTERNAL")
    assert passed_s() < 1


@in_virtual_time
async def test_a_strategy_that_cancels_its_own_task_and_then_gives_its_outcome_is_written_down(assign: Assign) -> None:
    store = TroubledStore(full=1)
    runner = runner_on(store)
    execution = await runner.start(assign(strategy=Late()))
    result = await end_of(store, runner, execution)
    assert result is not None
    assert (result.answer, result.finish_reason) == ("done", FinishReason.ANSWERED)


def test_a_loop_that_ends_with_a_run_at_work_does_not_wait_for_its_store(assign: Assign) -> None:
    async def leave() -> None:
        store = TroubledStore()
        script = Script(waits_for=asyncio.Event())
        await runner_on(store).start(assign(script, request_id="r"))
        await asyncio.sleep(0)
        store.is_down = True

    asyncio.run(leave())


@pytest.mark.parametrize("error", [ValueError("no"), StoreUnavailableError("no")], ids=repr)
@in_virtual_time
async def test_a_strategy_that_fails_when_its_time_is_over_has_run_out_of_time(
    assign: Assign, error: Exception
) -> None:
    store = TroubledStore()
    runner = runner_on(store)
    execution = await runner.start(assign(time_limit_s=5.0, strategy=Sore(error)))
    result = await end_of(store, runner, execution)
    assert result is not None
    assert result.error is not None
    assert result.error.reason == ModelTimeoutError.reason
    assert passed_s() == pytest.approx(5.0)


@in_virtual_time
async def test_a_strategy_whose_task_is_cancelled_after_its_outcome_has_ended_with_it(assign: Assign) -> None:
    store = TroubledStore()
    runner = runner_on(store)
    execution = await runner.start(assign(strategy=Ending(before=cancel_own_task_soon)))
    run = runner.find_live(execution.execution_id)
    assert run is not None
    result = await run.wait_for_result()
    assert isinstance(result, Result)
    assert result.answer == "done"
    await run.wait_for_end()
    await run.log.wait_for_commit()
    assert (await store.find("acme", execution.execution_id)).state is ExecutionState.SUCCEEDED
    assert (runner.load.running, runner.find_live(execution.execution_id)) == (0, None)


@pytest.mark.parametrize(("most_cuts", "is_left_behind"), [(1, False), (2, True)])
@in_virtual_time
async def test_a_strategy_has_a_while_to_clean_up_after_its_outcome_and_again_once_it_is_cancelled(
    assign: Assign, most_cuts: int, *, is_left_behind: bool
) -> None:
    store = TroubledStore()
    runner = runner_on(store)
    strategy = Ending(after=lambda: strategy.cuts < most_cuts)
    execution = await runner.start(assign(strategy=strategy))
    run = runner.find_live(execution.execution_id)
    assert run is not None
    await asyncio.sleep(1)
    run.cancel()
    result = await end_of(store, runner, execution)
    assert result is not None
    assert (result.answer, result.finish_reason) == ("done", FinishReason.ANSWERED)
    assert ("left behind" in result.warnings[-1]) is is_left_behind
    assert passed_s() == pytest.approx(4.0 if is_left_behind else 2.0)


@in_virtual_time
async def test_a_strategy_whose_outcome_is_refused_has_no_longer_to_clean_up(assign: Assign) -> None:
    store = TroubledStore()
    runner = runner_on(store)
    strategy = Ending(after=lambda: strategy.cuts < 1, reason=FinishReason.FAILED)
    result = await end_of(store, runner, await runner.start(assign(strategy=strategy)))
    assert result is not None
    assert result.error is not None
    assert (result.error.reason, result.warnings) == ("INTERNAL", ("the echo model only repeats",))
    assert passed_s() == pytest.approx(2.0)


@in_virtual_time
async def test_a_strategy_that_is_stopped_at_its_step_has_no_longer_to_clean_up(assign: Assign) -> None:
    store = MemoryExecutionStore(max_bytes=10**7, now=ManualClock().now, monotonic=bool)
    runner = runner_on(store)
    strategy = Slow(Script())
    execution = await runner.start(assign(strategy=strategy))
    await runner.drain(grace_s=1000)
    assert (await store.find("acme", execution.execution_id)).state is ExecutionState.CANCELLED
    assert passed_s() == pytest.approx(810 + 2.0)


@in_virtual_time
async def test_what_a_run_was_made_of_goes_with_it(assign: Assign) -> None:
    store = TroubledStore()
    runner = runner_on(store)
    gc.collect()
    gc.disable()
    try:
        execution = await runner.start(assign())
        run = runner.find_live(execution.execution_id)
        assert run is not None
        model = weakref.ref(run.accounts.model)
        await run.wait_for_end()
        del run
        await asyncio.sleep(1)
        assert model() is None
    finally:
        gc.enable()


class NoRetention(RunnerLimits):
    """Limits that raise an error when a run ends."""

    def find_retention(self, tenant: str) -> timedelta:
        raise ZeroDivisionError(tenant)


@in_virtual_time
async def test_a_run_whose_end_cannot_be_written_still_gives_its_place_back(assign: Assign) -> None:
    store = TroubledStore()
    runner = runner_on(store, limits=NoRetention(max_concurrent=1, retention_s=1))
    for _ in range(2):
        execution = await runner.start(assign())
        run = runner.find_live(execution.execution_id)
        assert run is not None
        assert await run.wait_for_result() is None
        await run.wait_for_end()
        assert runner.find_live(execution.execution_id) is None


@in_virtual_time
async def test_a_server_that_ends_leaves_a_run_at_its_next_step(assign: Assign) -> None:
    store, model = TroubledStore(), EchoModel()
    runner = runner_on(store, model)
    model.gate.clear()
    script = Script(words=("one", "two", "six"))
    execution = await runner.start(assign(script, strategy=Again(script)))
    await model.waited.wait()
    asyncio.get_running_loop().call_later(90, model.gate.set)
    await runner.drain(grace_s=100)
    assert passed_s() == pytest.approx(90)
    found = await store.find("acme", execution.execution_id)
    assert (found.state, found.last_sequence, model.calls) == (ExecutionState.RUNNING, 2, 1)
    (recovery,) = await store.recover(Lease(owner="other", seconds=1), limit=9)
    assert recovery.execution == found


@in_virtual_time
async def test_a_server_ends_in_time_though_its_store_is_down(assign: Assign) -> None:
    store, model = TroubledStore(), EchoModel()
    runner = runner_on(store, model)
    model.gate.clear()
    script = Script()
    started = [await runner.start(assign()), await runner.start(assign(strategy=Again(script)))]
    await model.waited.wait()
    for execution in started:
        run = runner.find_live(execution.execution_id)
        assert run is not None
        await run.log.flush()
    store.is_down = True
    await runner.stop()
    assert passed_s() <= 2 * 2.0 + 5.0 + 2.0 + 5.0
    assert [runner.find_live(execution.execution_id) for execution in started] == [None, None]
    store.is_down = False
    for execution in started:
        assert (await store.find("acme", execution.execution_id)).state is ExecutionState.RUNNING


@in_virtual_time
async def test_the_time_limit_that_ends_a_run_after_a_call_keeps_what_there_is(assign: Assign) -> None:
    store, model = TroubledStore(), EchoModel()
    runner = runner_on(store, model)
    script = Script(before_step=lambda index: model.gate.clear() if index else None)
    result = await end_of(store, runner, await runner.start(assign(script, budget=Budget(max_elapsed_s=3.0))))
    assert result is not None
    assert result.finish_reason is FinishReason.BUDGET_EXHAUSTED
    assert passed_s() == pytest.approx(3.0)


class Interrupted(Again):
    """Stops its own run in the middle of its second call, as a caller may do at any time."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.stop: Callable[[], None] = lambda: None

    async def run(self, task: Task, context: RunContext[StrategyConfig]) -> AsyncGenerator[StrategyEvent, None]:
        del task
        for word in self.script.words:
            request = ChatRequest(messages=[Message(role=Role.USER, content=word)], max_tokens=50)
            async with aclosing(context.model.stream(request)) as events:
                async for event in events:
                    if word == "two":
                        self.stop()
                    if isinstance(event, Text):
                        yield Wrote(text=event.text)
        yield Outcome(answer="", finish_reason=FinishReason.ANSWERED, metrics=CustomMetrics(data={}))


@in_virtual_time
async def test_a_call_that_was_open_when_its_run_was_cancelled_is_not_taken_for_completed_by_a_retry(
    assign: Assign,
) -> None:
    store, strategy, model = TroubledStore(), Interrupted(Script(words=("one", "two"))), EchoModel()
    runner = runner_on(store, model)
    assignment = assign(request_id="r1", digest="d", strategy=strategy)
    execution = await runner.start(assignment)
    run = runner.find_live(execution.execution_id)
    assert run is not None
    strategy.stop = run.cancel
    await run.wait_for_end()
    assert (await store.find("acme", execution.execution_id)).finish_reason is FinishReason.CANCELLED
    kept = await store.read_checkpoint("acme", execution.execution_id)
    assert [record.key.partition(":")[0] for record in kept.records] == ["model"]
    strategy.stop = lambda: None
    again = await runner.start(assignment)
    run = runner.find_live(again.execution_id)
    assert run is not None
    await run.wait_for_end()
    assert (await store.find("acme", again.execution_id)).finish_reason is FinishReason.ANSWERED
    assert model.calls == 3
    await runner.stop()
