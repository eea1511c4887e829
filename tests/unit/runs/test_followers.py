import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing

import pytest

from reasond_server.errors.base import InternalError, Violation
from reasond_server.errors.executions import ExecutionNotFoundError
from reasond_server.errors.limits import StoreUnavailableError
from reasond_server.errors.model import ModelUnavailableError
from reasond_server.errors.request import InvalidConfigError
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.reasoning.strategy_work import ReasoningWork
from reasond_server.runs.followers import Follower, _size_next_page
from reasond_server.runs.runner import Runner, RunnerLimits
from reasond_server.types import (
    Execution,
    ExecutionStarted,
    FinishReason,
    Heartbeat,
    Iteration,
    LoggedEvent,
    Result,
    StreamEvent,
    TextDelta,
    Thought,
    Usage,
)
from tests.stores.statements import run_statement
from tests.unit.runs.conftest import EchoModel, ManualClock, Script, in_virtual_time, passed_s

Assign = Callable[..., ReasoningWork]


@pytest.fixture
def follower(store: MemoryExecutionStore, runner: Runner, time: ManualClock) -> Follower:
    return Follower(store=store, runner=runner, clock=time.clock(), heartbeat_interval_s=30)


async def everything(
    follower: Follower, execution: Execution, *, after: int = 0, deltas: bool = False
) -> list[StreamEvent]:
    async with aclosing(follower.follow(execution, after=after, include_deltas=deltas)) as events:
        return [event async for event in events]


async def test_a_follower_sees_the_whole_log_in_order(runner: Runner, follower: Follower, assign: Assign) -> None:
    events = await everything(follower, await runner.start(assign()))
    assert [type(event.event) for event in events] == [ExecutionStarted, Iteration, Iteration, Result]
    assert [event.sequence for event in events] == [1, 2, 3, 4]


async def test_a_late_follower_sees_the_same_after_the_end(runner: Runner, follower: Follower, assign: Assign) -> None:
    execution = await runner.start(assign())
    live = await everything(follower, execution)
    assert await everything(follower, execution) == live
    assert await everything(follower, execution, after=2) == live[2:]
    assert await everything(follower, execution, after=4) == []


async def test_deltas_come_between_the_steps_and_join_to_their_text(
    runner: Runner, follower: Follower, assign: Assign
) -> None:
    events = await everything(follower, await runner.start(assign()), deltas=True)
    text = ""
    for event in events:
        if isinstance(event.event, TextDelta):
            text += event.event.text
            assert event.sequence == event.event.iteration_index + 1
        if isinstance(event.event, Iteration):
            assert event.event.index + 2 == event.sequence
    assert text in {"onetwo", "one", "two", ""}
    assert [e.event.index for e in events if isinstance(e.event, Iteration)] == [0, 1]


async def test_deltas_that_come_soon_are_joined_and_the_step_is_not_held_back(
    runner: Runner, store: MemoryExecutionStore, time: ManualClock, assign: Assign
) -> None:
    """The interval never ends, so only the first letter and, because the step follows, the rest are delivered."""
    follower = Follower(store=store, runner=runner, clock=time.clock(), heartbeat_interval_s=30, flush_interval_s=3600)
    released = asyncio.Event()
    execution = await runner.start(assign(Script(words=[""], waits_for=released)))
    run = runner.find_live(execution.execution_id)
    assert run is not None
    async with aclosing(follower.follow(execution, after=0, include_deltas=True)) as events:
        assert isinstance((await anext(events)).event, ExecutionStarted)
        run.subscribers.publish(0, "a")
        assert (await anext(events)).event == TextDelta(iteration_index=0, text="a")
        waiting = asyncio.ensure_future(anext(events))
        for letter in "bcd":
            await asyncio.sleep(0)
            run.subscribers.publish(0, letter)
        await asyncio.sleep(0)
        assert not waiting.done()
        released.set()
        assert (await waiting).event == TextDelta(iteration_index=0, text="bcd")
        assert [type(event.event) async for event in events] == [Iteration, Result]


async def test_without_an_interval_every_delta_goes_at_once(
    runner: Runner, store: MemoryExecutionStore, time: ManualClock, assign: Assign
) -> None:
    follower = Follower(store=store, runner=runner, clock=time.clock(), heartbeat_interval_s=30, flush_interval_s=0)
    execution = await runner.start(assign(Script(waits_for=asyncio.Event())))
    run = runner.find_live(execution.execution_id)
    assert run is not None
    async with aclosing(follower.follow(execution, after=0, include_deltas=True)) as events:
        await anext(events)
        for letter in "abc":
            run.subscribers.publish(0, letter)
            assert (await anext(events)).event == TextDelta(iteration_index=0, text=letter)


async def test_heartbeats_fill_the_silence(
    runner: Runner, store: MemoryExecutionStore, time: ManualClock, model: EchoModel, assign: Assign
) -> None:
    follower = Follower(store=store, runner=runner, clock=time.clock(), heartbeat_interval_s=0.001)
    model.gate.clear()
    seen: list[StreamEvent] = []
    async for event in follower.follow(await runner.start(assign()), after=0, include_deltas=False):
        seen.append(event)
        if sum(isinstance(one.event, Heartbeat) for one in seen) == 2:
            model.gate.set()
    assert {event.sequence for event in seen if isinstance(event.event, Heartbeat)} == {1}
    assert isinstance(seen[-1].event, Result)


async def test_a_failed_run_ends_with_its_result_and_then_its_error(
    runner: Runner, follower: Follower, assign: Assign
) -> None:
    error = InvalidConfigError.of(Violation(field="x", description="is wrong"))
    execution = await runner.start(assign(Script(error=error)))
    stream = follower.follow(execution, after=0, include_deltas=False)
    seen = [await anext(stream) for _ in range(4)]
    with pytest.raises(InvalidConfigError) as raised:
        await anext(stream)
    assert isinstance(seen[-1].event, Result)
    assert raised.value.execution_id == execution.execution_id
    assert raised.value.violations == error.violations


async def test_the_error_of_a_run_that_ended_long_ago_is_raised_again(
    runner: Runner, follower: Follower, assign: Assign
) -> None:
    execution = await runner.start(assign(Script(words=(), error=ModelUnavailableError("gone", remedy="Wait."))))
    for _ in range(2):
        with pytest.raises(ModelUnavailableError, match="gone"):
            await everything(follower, execution)


async def test_the_last_follower_that_leaves_cancels_the_run(
    runner: Runner, store: MemoryExecutionStore, follower: Follower, assign: Assign, model: EchoModel
) -> None:
    model.gate.clear()
    execution = await runner.start(assign(keep_running=False))
    run = runner.find_live(execution.execution_id)
    assert run is not None
    one, other = (follower.follow(execution, after=0, include_deltas=False) for _ in range(2))
    await anext(one)
    await anext(other)
    await model.called.wait()
    await one.aclose()
    assert not run.is_cancelled
    await other.aclose()
    await run.wait_for_end()
    assert (await store.find("acme", execution.execution_id)).finish_reason is FinishReason.CANCELLED
    assert model.closed.is_set()


async def test_an_observer_neither_keeps_a_run_nor_ends_it(
    runner: Runner, follower: Follower, assign: Assign, model: EchoModel
) -> None:
    model.gate.clear()
    execution = await runner.start(assign(keep_running=False))
    run = runner.find_live(execution.execution_id)
    assert run is not None
    owner = follower.follow(execution, after=0, include_deltas=False)
    leaving, staying = (follower.follow(execution, after=0, include_deltas=True, is_observer=True) for _ in range(2))
    for one in (leaving, owner, staying):
        assert isinstance((await anext(one)).event, ExecutionStarted)
    await model.called.wait()
    await leaving.aclose()
    assert not run.is_cancelled
    assert run.subscribers.are_any
    await owner.aclose()
    await run.wait_for_end()
    rest = [event.event async for event in staying]
    assert isinstance(rest[-1], Result)
    assert rest[-1].finish_reason is FinishReason.CANCELLED


async def test_a_run_that_only_observers_follow_is_given_up_when_its_time_is_over(
    runner: Runner, follower: Follower, assign: Assign, model: EchoModel
) -> None:
    model.gate.clear()
    execution = await runner.start(assign(keep_running=False))
    run = runner.find_live(execution.execution_id)
    assert run is not None
    observer = follower.follow(execution, after=0, include_deltas=False, is_observer=True)
    await anext(observer)
    run.subscribers.await_one(within_s=0.01)
    await run.wait_for_end()
    assert run.is_cancelled
    await observer.aclose()


async def test_a_run_that_somebody_wants_kept_outlives_its_followers(
    runner: Runner, store: MemoryExecutionStore, follower: Follower, assign: Assign, model: EchoModel
) -> None:
    model.gate.clear()
    execution = await runner.start(assign(keep_running=False))
    stream = follower.follow(execution, after=0, include_deltas=False)
    await anext(stream)
    await store.request_keep("acme", execution.execution_id)
    await stream.aclose()
    model.gate.set()
    assert isinstance((await everything(follower, execution))[-1].event, Result)


async def test_a_log_that_can_never_end_is_an_error_and_no_endless_wait(
    runner: Runner, store: MemoryExecutionStore, follower: Follower, assign: Assign, model: EchoModel
) -> None:
    model.gate.clear()
    execution = await runner.start(assign())
    run = runner.find_live(execution.execution_id)
    assert run is not None
    stream = follower.follow(execution, after=0, include_deltas=False)
    await anext(stream)
    await store.delete("acme", execution.execution_id)
    model.gate.set()
    with pytest.raises(ExecutionNotFoundError):
        await anext(stream)


class Elsewhere(MemoryExecutionStore):
    """A store whose executions run in another process that sends no notifications. A test chooses its answers."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        super().__init__(max_bytes=10**7, now=self.clock.now, monotonic=self.clock.monotonic)
        self.fails = 0
        self.hides = 0
        self.reads = 0

    async def read(
        self, tenant: str, execution_id: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[LoggedEvent]:
        self.reads += 1
        if self.fails:
            self.fails -= 1
            raise StoreUnavailableError("gone")
        if self.hides:
            self.hides -= 1
            return ()
        return await super().read(tenant, execution_id, after=after, limit=limit)


async def ended_on(store: MemoryExecutionStore, assign: Assign, script: Script | None = None) -> Execution:
    limits = RunnerLimits(max_concurrent=3, retention_s=60)
    runner = Runner(store=store, model=EchoModel(), clock=ManualClock().clock(), limits=limits)
    execution = await runner.start(assign(script))
    run = runner.find_live(execution.execution_id)
    assert run is not None
    await run.wait_for_end()
    return await store.find("acme", execution.execution_id)


def stranger_on(store: MemoryExecutionStore) -> Follower:
    clock = ManualClock().clock()
    runner = Runner(store=store, model=EchoModel(), clock=clock, limits=RunnerLimits(max_concurrent=1, retention_s=60))
    return Follower(store=store, runner=runner, clock=clock, heartbeat_interval_s=30)


@in_virtual_time
async def test_a_store_out_of_reach_is_asked_again_soon_and_nothing_is_lost(assign: Assign) -> None:
    store = Elsewhere()
    execution = await ended_on(store, assign)
    store.fails = 4
    seen = await everything(stranger_on(store), execution)
    assert [event.sequence for event in seen if not isinstance(event.event, Heartbeat)] == [1, 2, 3, 4]
    assert passed_s() == pytest.approx(2.0)


@in_virtual_time
async def test_an_execution_that_ends_between_two_looks_is_read_to_its_end(assign: Assign) -> None:
    store = Elsewhere()
    execution = await ended_on(store, assign)
    store.hides = 1
    seen = await everything(stranger_on(store), execution, after=1)
    assert [event.sequence for event in seen] == [2, 3, 4]
    assert passed_s() == 0


@in_virtual_time
async def test_a_log_that_ended_without_a_result_is_an_error_and_no_endless_wait(assign: Assign) -> None:
    store = Elsewhere()
    execution = await ended_on(store, assign)
    ((earlier,),) = await run_statement(store, "SELECT body FROM entries WHERE sequence = 3")
    await run_statement(store, "UPDATE entries SET body = ? WHERE sequence = 4", earlier)
    with pytest.raises(InternalError, match="ended without a result"):
        await everything(stranger_on(store), execution, after=4)


@in_virtual_time
async def test_a_late_follower_reads_from_the_store_what_its_run_has_let_go_of(assign: Assign) -> None:
    store, model, clock = Elsewhere(), EchoModel(), ManualClock().clock()
    runner = Runner(store=store, model=model, clock=clock, limits=RunnerLimits(max_concurrent=1, retention_s=60))
    follower = Follower(store=store, runner=runner, clock=clock, heartbeat_interval_s=30)
    script = Script(words=["w"] * 400, before_step=lambda index: model.gate.clear() if index == 399 else None)
    execution = await runner.start(assign(script))
    await model.waited.wait()
    run = runner.find_live(execution.execution_id)
    assert run is not None
    await run.log.flush()
    assert run.log.events.read_after(0) is None
    async with aclosing(follower.follow(execution, after=0, include_deltas=True)) as events:
        seen = [(await anext(events)).sequence for _ in range(400)]
        model.gate.set()
        seen += [event.sequence async for event in events if not isinstance(event.event, TextDelta)]
    assert seen == [*range(1, 403)]


@in_virtual_time
async def test_a_follower_that_lags_behind_the_end_reads_from_memory_what_is_there(assign: Assign) -> None:
    store, model, clock = Elsewhere(), EchoModel(), ManualClock().clock()
    runner = Runner(store=store, model=model, clock=clock, limits=RunnerLimits(max_concurrent=1, retention_s=60))
    follower = Follower(store=store, runner=runner, clock=clock, heartbeat_interval_s=30)
    execution = await runner.start(assign(Script(words=["w"] * 400)))
    run = runner.find_live(execution.execution_id)
    assert run is not None
    async with aclosing(follower.follow(execution, after=0, include_deltas=False)) as events:
        seen = [(await anext(events)).sequence]
        await run.wait_for_end()
        assert run.log.events.read_after(1) is None
        seen += [event.sequence async for event in events]
    assert seen == [*range(1, 403)]
    # 4, 8, 16, 32, 64 and 64 events reach what is in memory, the last 256.
    assert store.reads <= 6


@in_virtual_time
async def test_text_of_steps_that_a_follower_has_seen_already_is_not_told(assign: Assign) -> None:
    store, clock = Elsewhere(), ManualClock().clock()
    runner = Runner(store=store, model=EchoModel(), clock=clock, limits=RunnerLimits(max_concurrent=1, retention_s=60))
    follower = Follower(store=store, runner=runner, clock=clock, heartbeat_interval_s=30, flush_interval_s=0)
    gate = asyncio.Event()
    execution = await runner.start(assign(Script(waits_for=gate)))
    run = runner.find_live(execution.execution_id)
    assert run is not None
    await run.log.flush()
    async with aclosing(follower.follow(execution, after=3, include_deltas=True)) as events:
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(1)
        run.subscribers.publish(0, "of step 0")
        await asyncio.sleep(1)
        assert not waiting.done()
        gate.set()
        seen = [await waiting] + [event async for event in events]
    assert all(delta.event.iteration_index >= 2 for delta in seen if isinstance(delta.event, TextDelta))
    assert isinstance(seen[-1].event, Result)


@in_virtual_time
async def test_a_page_of_large_events_is_small() -> None:
    def log_of(text: str) -> LoggedEvent:
        step = Iteration(index=0, answer_found=False, usage=Usage(), elapsed_s=0, detail=Thought(text=text))
        return LoggedEvent(sequence=1, create_time=ManualClock().now(), event=step)

    assert _size_next_page([]) == 4
    assert _size_next_page([log_of("x")] * 4) == 8
    assert _size_next_page([log_of("x")] * 60) == 64
    assert _size_next_page([log_of("x" * 100_000)] * 4) == 1
