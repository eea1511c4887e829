import asyncio
from collections.abc import Callable
from contextlib import aclosing

import pytest

from reasond_server.errors import (
    ExecutionNotFoundError,
    InternalError,
    InvalidConfigError,
    ModelUnavailableError,
    Violation,
)
from reasond_server.executions.following import Follower
from reasond_server.executions.memory import MemoryExecutionStore
from reasond_server.executions.run import Assignment
from reasond_server.executions.runner import Runner
from reasond_server.types import (
    Execution,
    ExecutionStarted,
    FinishReason,
    Heartbeat,
    Iteration,
    Result,
    StreamEvent,
    TextDelta,
)
from tests.unit.executions.conftest import EchoModel, ManualClock, Script

Assign = Callable[..., Assignment]


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
    """The interval never ends: only the first letter, and the rest because the step follows, are given out."""
    follower = Follower(store=store, runner=runner, clock=time.clock(), heartbeat_interval_s=30, flush_interval_s=3600)
    released = asyncio.Event()
    execution = await runner.start(assign(Script(words=[""], waits_for=released)))
    run = runner.live(execution.execution_id)
    assert run is not None
    async with aclosing(follower.follow(execution, after=0, include_deltas=True)) as events:
        assert isinstance((await anext(events)).event, ExecutionStarted)
        run.wrote("a")
        assert (await anext(events)).event == TextDelta(iteration_index=0, text="a")
        waiting = asyncio.ensure_future(anext(events))
        for letter in "bcd":
            await asyncio.sleep(0)
            run.wrote(letter)
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
    run = runner.live(execution.execution_id)
    assert run is not None
    async with aclosing(follower.follow(execution, after=0, include_deltas=True)) as events:
        await anext(events)
        for letter in "abc":
            run.wrote(letter)
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
    run = runner.live(execution.execution_id)
    assert run is not None
    one, other = (follower.follow(execution, after=0, include_deltas=False) for _ in range(2))
    await anext(one)
    await anext(other)
    await model.called.wait()
    await one.aclose()
    assert not run.is_cancelled
    await other.aclose()
    await run.ended()
    assert (await store.find("acme", execution.execution_id)).finish_reason is FinishReason.CANCELLED
    assert model.closed.is_set()


async def test_a_run_that_somebody_wants_kept_outlives_its_followers(
    runner: Runner, follower: Follower, assign: Assign, model: EchoModel
) -> None:
    model.gate.clear()
    execution = await runner.start(assign(keep_running=False))
    stream = follower.follow(execution, after=0, include_deltas=False, keep_running=True)
    await anext(stream)
    await stream.aclose()
    model.gate.set()
    assert isinstance((await everything(follower, execution))[-1].event, Result)


async def test_a_log_that_can_never_end_is_an_error_and_no_endless_wait(
    runner: Runner, store: MemoryExecutionStore, follower: Follower, assign: Assign, model: EchoModel
) -> None:
    model.gate.clear()
    execution = await runner.start(assign())
    run = runner.live(execution.execution_id)
    assert run is not None
    stream = follower.follow(execution, after=0, include_deltas=False)
    await anext(stream)
    await store.delete("acme", execution.execution_id)
    model.gate.set()
    with pytest.raises(ExecutionNotFoundError):
        await anext(stream)


async def test_a_follower_of_a_broken_log_is_told(
    runner: Runner, follower: Follower, assign: Assign, model: EchoModel
) -> None:
    model.gate.clear()
    execution = await runner.start(assign())
    run = runner.live(execution.execution_id)
    assert run is not None
    assert run.driver is not None
    del runner._runs[execution.execution_id]
    with pytest.raises(InternalError, match="ended without a result"):
        await everything(follower, execution)
    runner._runs[execution.execution_id] = run
    model.gate.set()
    await asyncio.wait([run.driver])
