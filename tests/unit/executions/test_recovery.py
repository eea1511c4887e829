"""Two runners on one store: what one leaves behind, the other goes on with or ends."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reasond_server.errors import DrainingError, StoreUnavailableError, StrategyNotFoundError
from reasond_server.executions.following import Follower
from reasond_server.executions.memory import MemoryExecutionStore
from reasond_server.executions.opening import Stores, open_stores
from reasond_server.executions.run import Assignment
from reasond_server.executions.runner import Runner, RunnerLimits
from reasond_server.executions.store import Lease
from reasond_server.strategies.strategy import ReasoningStrategy, StrategyConfig
from reasond_server.types import (
    Execution,
    ExecutionStarted,
    ExecutionState,
    FinishReason,
    Iteration,
    Result,
    StreamEvent,
    TextDelta,
)
from tests.unit.executions.conftest import EchoModel, ManualClock, Script, Scripted

Assign = Callable[..., Assignment]
LIMITS = RunnerLimits(max_concurrent=3, retention_s=60, lease_s=15, reattach_s=30)


class Replayable(Scripted):
    """The scripted strategy, which does the same again."""

    name = "replayable"
    is_replayable = True


class SharedStore(MemoryExecutionStore):
    """A memory store that says it is one of several processes."""

    is_durable = True


class Servers:
    """Processes on one store; the strategies of those to come are set by a test."""

    def __init__(self, time: ManualClock, assign: Assign) -> None:
        self.time = time
        self.store = SharedStore(max_executions=10, max_bytes=10**7, now=time.now, monotonic=time.monotonic)
        self.strategy: ReasoningStrategy[StrategyConfig] | None = Replayable(Script())
        self.runners: list[Runner] = []
        self._assign = assign

    def server(self, model: EchoModel, limits: RunnerLimits = LIMITS) -> Runner:
        clock = replace(self.time.clock(), new_nonce=lambda: "n" * 28)
        runner = Runner(store=self.store, model=model, clock=clock, limits=limits, find_strategy=self._find)
        self.runners.append(runner)
        return runner

    def _find(self, name: str) -> ReasoningStrategy[StrategyConfig]:
        if self.strategy is None or self.strategy.name != name:
            raise StrategyNotFoundError(f"Strategy not found: {name!r}")
        return self.strategy

    def assignment(self, script: Script | None = None, **keys: object) -> Assignment:
        return replace(self._assign(script, **keys), strategy=Replayable(script or Script()))

    def follower(self, runner: Runner, heartbeat_interval_s: float = 30) -> Follower:
        return Follower(
            store=self.store,
            runner=runner,
            clock=self.time.clock(),
            heartbeat_interval_s=heartbeat_interval_s,
            flush_interval_s=0,
        )

    async def die(self, runner: Runner) -> None:
        """End as a process does that is killed: nothing more is written."""
        tasks = [runner._runs[name].driver for name in runner._runs]
        for name in tuple(runner._runs):
            runner._runs[name].log.close(StoreUnavailableError("dead"))
        for task in tasks:
            assert task is not None
            task.cancel()
            await asyncio.wait([task])
        self.time.advance(20)

    async def log(self, execution: Execution) -> list[object]:
        return [logged.event for logged in await self.store.read("acme", execution.execution_id)]


@pytest.fixture
async def servers(time: ManualClock, assign: Assign) -> AsyncGenerator[Servers, None]:
    servers = Servers(time, assign)
    yield servers
    for runner in servers.runners:
        await runner.stop()


async def held_after(servers: Servers, runner: Runner, model: EchoModel, steps: int, **keys: object) -> Execution:
    """Return an execution whose run has made `steps` steps and waits for its model."""
    script = Script(
        words=("one", "two", "six"), before_step=lambda index: model.gate.clear() if index == steps else None
    )
    execution = await runner.start(servers.assignment(script, **keys))
    run = runner.live(execution.execution_id)
    assert run is not None
    await model.waited.wait()
    await run.log.flush()
    return execution


async def end_of(runner: Runner, execution: Execution) -> None:
    run = runner.live(execution.execution_id)
    if run is not None:
        await run.ended()


async def recovered(servers: Servers, execution: Execution, **keys: object) -> tuple[Result, EchoModel, list[object]]:
    """Let another process take the execution over and return its result, the model that it called, and the log."""
    model = EchoModel()
    other = servers.server(model, replace(LIMITS, **keys))  # type: ignore[arg-type]  # fields of the limits
    await other._upkeep.round()
    await end_of(other, execution)
    for runner in servers.runners:
        await runner._writer.aclose(within_s=5)
    log = await servers.log(execution)
    assert isinstance(log[-1], Result)
    assert sum(isinstance(event, Result) for event in log) == 1
    return log[-1], model, log


async def test_a_run_whose_process_died_goes_on_where_it_stopped(servers: Servers, model: EchoModel) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six")))
    execution = await held_after(servers, (first := servers.server(model)), model, 2)
    before = await servers.log(execution)
    await servers.die(first)
    result, other, log = await recovered(servers, execution)
    assert (result.answer, result.finish_reason) == ("one two six", FinishReason.ANSWERED)
    assert log[: len(before)] == before
    assert [type(event) for event in log] == [ExecutionStarted, *[Iteration] * 3, Result]
    assert result.metrics.usage.model_calls == 3
    assert other.calls == 1
    assert result.metrics.execution_time_s >= 20


async def test_nobody_takes_over_what_is_alive(servers: Servers, model: EchoModel) -> None:
    first = servers.server(model)
    execution = await held_after(servers, first, model, 1)
    other = servers.server(EchoModel())
    for _ in range(4):
        servers.time.advance(10)
        await first._upkeep.round()
        await other._upkeep.round()
    assert other.live(execution.execution_id) is None
    model.gate.set()


async def test_who_was_taken_for_dead_stops_and_writes_nothing_more(servers: Servers, model: EchoModel) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six")))
    first = servers.server(model)
    execution = await held_after(servers, first, model, 1)
    servers.time.advance(20)
    result, _, _ = await recovered(servers, execution)
    model.gate.set()
    await first._upkeep.round()
    await end_of(first, execution)
    assert first.live(execution.execution_id) is None
    assert (await servers.log(execution))[-1] == result


async def test_a_run_that_differs_from_its_log_fails_and_keeps_its_steps(servers: Servers, model: EchoModel) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six"), extra="something else"))
    execution = await held_after(servers, (first := servers.server(model)), model, 2)
    await servers.die(first)
    result, other, log = await recovered(servers, execution)
    assert result.error is not None
    assert "its step 0 is another one than before" in result.error.message
    assert [type(event) for event in log] == [ExecutionStarted, Iteration, Iteration, Result]
    assert result.metrics.usage.model_calls >= 2
    assert other.calls == 0


async def test_a_run_that_ends_sooner_than_its_log_fails(servers: Servers, model: EchoModel) -> None:
    servers.strategy = Replayable(Script(words=("one",)))
    execution = await held_after(servers, (first := servers.server(model)), model, 2)
    await servers.die(first)
    result, _, _ = await recovered(servers, execution)
    assert result.error is not None
    assert "ended after 1 of 2 steps" in result.error.message


@pytest.mark.parametrize("is_enabled", [False, True])
async def test_a_strategy_that_cannot_go_on_ends_as_failed_with_what_it_has(
    servers: Servers,
    model: EchoModel,
    is_enabled: bool,  # noqa: FBT001 - a case, given by name
) -> None:
    execution = await held_after(servers, (first := servers.server(model)), model, 2)
    await servers.die(first)
    servers.strategy = Scripted(Script()) if is_enabled else None
    result, other, log = await recovered(servers, execution)
    assert result.error is not None
    assert "'replayable' is not enabled here any more" in result.error.message
    assert (result.finish_reason, len(log), other.calls) == (FinishReason.FAILED, 4, 0)
    assert result.metrics.usage.model_calls >= 2


async def test_a_strategy_that_is_not_replayable_ends_as_failed(servers: Servers, model: EchoModel) -> None:
    first = servers.server(model)
    model.gate.clear()
    execution = await first.start(replace(servers.assignment(), strategy=Scripted(Script())))
    await model.waited.wait()
    await servers.die(first)
    result, _, log = await recovered(servers, execution)
    assert result.error is not None
    assert "the strategy 'scripted' cannot go on from its steps" in result.error.message
    assert isinstance(log[0], ExecutionStarted)


async def test_a_run_that_nobody_can_come_back_for_ends_at_once(servers: Servers, model: EchoModel) -> None:
    first = servers.server(model)
    execution = await held_after(servers, first, model, 1, is_unary=True, keep_running=False)
    await servers.die(first)
    result, other, _ = await recovered(servers, execution)
    assert result.error is not None
    assert "nobody could have come back" in result.error.message
    assert other.calls == 0


async def test_the_time_limit_counts_from_the_first_beginning(servers: Servers, model: EchoModel) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six")))
    execution = await held_after(servers, (first := servers.server(model)), model, 2, time_limit_s=10)
    await servers.die(first)
    result, other, _ = await recovered(servers, execution)
    assert (result.finish_reason, other.calls) == (FinishReason.BUDGET_EXHAUSTED, 0)


async def test_a_run_that_nobody_asked_to_keep_is_cancelled_when_nobody_comes(
    servers: Servers, model: EchoModel
) -> None:
    servers.strategy = Replayable(Script(waits_for=asyncio.Event()))
    execution = await held_after(servers, (first := servers.server(model)), model, 1, keep_running=False)
    await servers.die(first)
    result, _, _ = await recovered(servers, execution, reattach_s=0.01)
    assert result.finish_reason is FinishReason.CANCELLED


async def test_a_follower_in_a_third_process_keeps_a_run_alive(servers: Servers, model: EchoModel) -> None:
    released = asyncio.Event()
    servers.strategy = Replayable(Script(words=("one", "two", "six"), waits_for=released))
    execution = await held_after(servers, (first := servers.server(model)), model, 1, keep_running=False)
    await servers.die(first)
    third = servers.server(EchoModel())
    seen: list[StreamEvent] = []
    has_begun = asyncio.Event()

    async def follow() -> None:
        events = servers.follower(third, 0.01).follow(execution, after=0, include_deltas=False)
        async with aclosing(events):
            async for event in events:
                has_begun.set()
                seen.append(event)

    following = asyncio.create_task(follow())
    await has_begun.wait()
    other = servers.server(EchoModel(), replace(LIMITS, reattach_s=0.1))
    await other._upkeep.round()
    run = other.live(execution.execution_id)
    assert run is not None
    announced = asyncio.Event()
    awaited = run.await_follower

    def hear(*, within_s: float) -> None:
        awaited(within_s=within_s)
        announced.set()

    run.await_follower = hear  # type: ignore[method-assign]  # to know when it was announced
    for _ in range(20):
        announced.clear()
        await announced.wait()
    released.set()
    await following
    assert [e.sequence for e in seen if isinstance(e.event, ExecutionStarted | Iteration | Result)] == [1, 2, 3, 4, 5]
    assert isinstance(seen[-1].event, Result)
    assert seen[-1].event.finish_reason is FinishReason.ANSWERED


async def test_a_follower_here_goes_on_when_its_run_comes_here(servers: Servers, model: EchoModel) -> None:
    gate = asyncio.Event()
    servers.strategy = Replayable(Script(words=("one", "two", "six"), waits_for=gate))
    execution = await held_after(servers, (first := servers.server(model)), model, 2)
    await servers.die(first)
    other = servers.server(EchoModel())
    events = servers.follower(other).follow(execution, after=1, include_deltas=True)
    async with aclosing(events):
        seen = [await anext(events), await anext(events)]
        await other._upkeep.round()
        gate.set()
        seen += [event async for event in events]
    logged = [event.sequence for event in seen if not isinstance(event.event, TextDelta)]
    assert logged == [2, 3, 4, 5]
    deltas = [event.event for event in seen if isinstance(event.event, TextDelta)]
    assert "".join(delta.text for delta in deltas) in {"six", ""}
    assert {delta.iteration_index for delta in deltas} <= {2}


async def test_a_server_that_ends_hands_its_runs_over_and_tells_their_followers(
    servers: Servers, model: EchoModel
) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six")))
    first = servers.server(model)
    execution = await held_after(servers, first, model, 1, keep_running=False)
    events = servers.follower(first).follow(execution, after=0, include_deltas=False)
    seen = [await anext(events), await anext(events)]
    await first.drain(grace_s=0.01)
    with pytest.raises(DrainingError) as told:
        await anext(events)
    assert told.value.execution_id == execution.execution_id
    assert [event.sequence for event in seen] == [1, 2]
    assert (await servers.store.find("acme", execution.execution_id)).state is ExecutionState.RUNNING
    result, other, log = await recovered(servers, execution)
    assert (result.answer, other.calls, len(log)) == ("one two six", 2, 5)
    # The call that was cut off was paid for as well, as far as is known.
    assert result.metrics.usage.model_calls == 4


async def test_a_retry_of_a_cancelled_run_does_not_pay_again(servers: Servers, model: EchoModel) -> None:
    first = servers.server(model)
    execution = await held_after(servers, first, model, 2, request_id="r1", digest="d")
    run = first.live(execution.execution_id)
    assert run is not None
    run.cancel()
    await run.ended()
    model.gate.set()
    cancelled = await servers.store.find("acme", execution.execution_id)
    other_model = EchoModel()
    other = servers.server(other_model)
    script = Script(words=("one", "two", "six"))
    again = await other.start(servers.assignment(script, request_id="r1", digest="d"))
    await end_of(other, again)
    assert again.execution_id != execution.execution_id
    log = await servers.log(again)
    assert [type(event) for event in log] == [ExecutionStarted, *[Iteration] * 3, Result]
    result = log[-1]
    assert isinstance(result, Result)
    assert other_model.calls == 1
    assert result.metrics.usage.model_calls == cancelled.usage.model_calls + 1
    assert result.warnings[-1].startswith(f"This request was begun as execution {execution.execution_id}")
    assert (await servers.store.claimed("acme", "r1")) is not None


async def test_a_hundred_duplicates_on_two_servers_make_one_run(servers: Servers, model: EchoModel) -> None:
    runners = [servers.server(model, replace(LIMITS, max_concurrent=100)) for _ in range(2)]
    started = await asyncio.gather(
        *(runners[n % 2].start(servers.assignment(request_id="r1", digest="d")) for n in range(100))
    )
    assert len({execution.execution_id for execution in started}) == 1
    assert sum(len(runner._runs) for runner in runners) <= 1
    await asyncio.gather(*(end_of(runner, started[0]) for runner in runners))
    assert model.calls == 2


async def test_somebody_elses_wish_to_stop_is_heard_at_once_or_with_the_next_renewal(
    servers: Servers, model: EchoModel
) -> None:
    first = servers.server(model)
    execution = await held_after(servers, first, model, 1)
    run = first.live(execution.execution_id)
    assert run is not None
    await servers.store.request_cancel("acme", execution.execution_id)
    assert run.is_cancelled
    await run.ended()
    model.gate.set()
    model.waited.clear()
    later = await held_after(servers, first, model, 1)
    servers.store._log("acme", later.execution_id).is_cancel_requested = True
    await first._upkeep.round()
    await end_of(first, later)
    assert (await servers.store.find("acme", later.execution_id)).state is ExecutionState.CANCELLED


async def test_a_wish_to_stop_survives_the_death_of_the_process(servers: Servers, model: EchoModel) -> None:
    servers.strategy = Replayable(Script(waits_for=asyncio.Event()))
    execution = await held_after(servers, (first := servers.server(model)), model, 1)
    await servers.die(first)
    await servers.store.request_cancel("acme", execution.execution_id)
    result, _, _ = await recovered(servers, execution)
    assert result.finish_reason is FinishReason.CANCELLED


async def test_a_process_that_was_out_of_touch_is_its_own_heir(servers: Servers, model: EchoModel) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six")))
    first = servers.server(model)
    execution = await held_after(servers, first, model, 1)
    servers.time.advance(20)
    first._upkeep._fences = dict
    await first._upkeep.round()
    model.gate.set()
    while first._tasks:
        await asyncio.wait(first._tasks)
    await end_of(first, execution)
    assert (await servers.store.find("acme", execution.execution_id)).state is ExecutionState.SUCCEEDED


async def test_an_heir_that_shuts_down_meanwhile_gives_the_lease_back(servers: Servers, model: EchoModel) -> None:
    first = servers.server(model)
    execution = await held_after(servers, first, model, 1)
    servers.time.advance(20)
    first._upkeep._fences = dict
    await first._upkeep.round()
    await first.stop()
    (found,) = await servers.store.recover(Lease(owner="other", seconds=15), limit=9)
    assert found.execution.execution_id == execution.execution_id


async def test_upkeep_begins_at_once_and_outlives_a_store_out_of_reach(servers: Servers, model: EchoModel) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six")))
    execution = await held_after(servers, (first := servers.server(model)), model, 2)
    await servers.die(first)
    calls: list[str] = []
    recover = servers.store.recover

    async def broken(*arguments: object, **keys: object) -> object:
        calls.append("recover")
        if len(calls) < 3:
            raise StoreUnavailableError("gone") if len(calls) == 1 else ZeroDivisionError
        return await recover(*arguments, **keys)  # type: ignore[arg-type]  # passed on as they came

    servers.store.recover = broken  # type: ignore[method-assign,assignment]  # a store that fails twice
    other = servers.server(EchoModel(), replace(LIMITS, lease_s=0.03))
    other.begin()
    other.begin()
    events = servers.follower(other).follow(execution, after=0, include_deltas=False)
    async with aclosing(events):
        seen = [event.event async for event in events]
    assert isinstance(seen[-1], Result)
    assert len(calls) >= 3


async def test_after_an_outage_nothing_is_taken_over_before_all_had_time_to_renew(
    servers: Servers, model: EchoModel
) -> None:
    first, other = servers.server(model), servers.server(EchoModel())
    execution = await held_after(servers, first, model, 1)
    forget, servers.store.forget = servers.store.forget, _unreachable  # type: ignore[method-assign,assignment]  # an outage
    recover, servers.store.recover = servers.store.recover, _unreachable  # type: ignore[method-assign,assignment]  # as above
    with pytest.raises(StoreUnavailableError):
        await other._upkeep.round()
    servers.store.forget, servers.store.recover = forget, recover  # type: ignore[method-assign]  # its end
    servers.time.advance(20)
    await other._upkeep.round()
    assert other.live(execution.execution_id) is None
    await first._upkeep.round()
    await other._upkeep.round()
    assert other.live(execution.execution_id) is None
    servers.time.advance(20)
    await other._upkeep.round()
    assert other.live(execution.execution_id) is not None
    model.gate.set()


async def _unreachable(*_: object, **__: object) -> None:
    raise StoreUnavailableError("gone")


async def test_content_that_is_not_kept_is_seen_while_the_run_lives_and_gone_afterwards(
    servers: Servers, model: EchoModel
) -> None:
    runner = servers.server(model, replace(LIMITS, records_content=False))
    model.gate.clear()
    execution = await runner.start(servers.assignment(Script(words=("one", "two")), query="my secret"))
    assert "secret" not in (await servers.store.kept("acme", execution.execution_id)).plan
    events = servers.follower(runner).follow(execution, after=0, include_deltas=False)
    async with aclosing(events):
        await anext(events)
        model.gate.set()
        seen = [event.event async for event in events]
    assert isinstance(seen[-1], Result)
    assert seen[-1].answer == "one two"
    assert "my secret" in repr(seen)
    log = await servers.log(execution)
    result = log[-1]
    assert isinstance(result, Result)
    assert result.answer == ""
    assert "keeps no content" in result.warnings[0]
    assert "secret" not in repr(log)
    assert result.metrics.usage == seen[-1].metrics.usage


async def test_content_that_is_not_kept_cannot_be_gone_on_with(servers: Servers, model: EchoModel) -> None:
    runner = servers.server(model, replace(LIMITS, records_content=False))
    execution = await held_after(servers, runner, model, 1)
    await servers.die(runner)
    result, _, _ = await recovered(servers, execution)
    assert result.error is not None
    assert "its content was not kept" in result.error.message


@pytest.mark.parametrize("is_told", [True, False])
async def test_a_run_that_another_process_asked_to_keep_outlives_its_followers(
    servers: Servers,
    model: EchoModel,
    is_told: bool,  # noqa: FBT001 - a case, given by name
) -> None:
    first = servers.server(model)
    execution = await held_after(servers, first, model, 1, keep_running=False)
    if is_told:
        await servers.store.request_keep("acme", execution.execution_id)
    else:
        servers.store._log("acme", execution.execution_id).is_keep_requested = True
        await first._upkeep.round()
    async with aclosing(servers.follower(first).follow(execution, after=0, include_deltas=False)) as events:
        await anext(events)
    run = first.live(execution.execution_id)
    assert run is not None
    assert not run.is_cancelled
    model.gate.set()
    await run.ended()
    assert (await servers.store.find("acme", execution.execution_id)).finish_reason is FinishReason.ANSWERED


async def test_a_wish_to_keep_a_run_survives_the_death_of_the_process(servers: Servers, model: EchoModel) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six")))
    execution = await held_after(servers, (first := servers.server(model)), model, 1, keep_running=False)
    await servers.store.request_keep("acme", execution.execution_id)
    await servers.die(first)
    result, _, _ = await recovered(servers, execution, reattach_s=0)
    assert result.finish_reason is FinishReason.ANSWERED


class OnFile(Servers):
    """One process after the other on one file."""

    def __init__(self, time: ManualClock, assign: Assign, folder: Path) -> None:
        super().__init__(time, assign)
        self._folder = folder

    async def open(self) -> Stores:
        stores = await open_stores(
            url="",
            data_dir=str(self._folder),
            now=self.time.now,
            monotonic=self.time.monotonic,
            max_executions=10,
            max_bytes=10**7,
            max_agents=1,
        )
        self.store = stores.executions  # type: ignore[assignment]  # any store will do
        return stores


@pytest.mark.parametrize("keys", [{"keep_running": True}, {"request_id": "r1", "digest": "d"}, {}])
async def test_a_server_that_ends_leaves_its_runs_to_the_next_one_on_its_file(
    time: ManualClock, assign: Assign, model: EchoModel, tmp_path: Path, keys: dict[str, Any]
) -> None:
    servers = OnFile(time, assign, tmp_path)
    servers.strategy = Replayable(Script(words=("one", "two", "six")))
    stores = await servers.open()
    execution = await held_after(servers, servers.server(model), model, 1, **{"keep_running": False, **keys})
    await servers.runners[0].drain(grace_s=0.01)
    left = await servers.store.find("acme", execution.execution_id)
    assert (left.state, left.last_sequence) == (ExecutionState.RUNNING, 2)
    await stores.aclose()
    stores = await servers.open()
    other = EchoModel()
    heir = servers.server(other, LIMITS)
    await heir._upkeep.round()
    async with aclosing(servers.follower(heir).follow(left, after=2, include_deltas=False)) as events:
        seen = [(event.sequence, event.event) async for event in events]
    result = seen[-1][1]
    assert isinstance(result, Result)
    assert (result.answer, [sequence for sequence, _ in seen], other.calls) == ("one two six", [3, 4, 5], 2)
    await heir.stop()
    await stores.aclose()


async def test_a_server_that_ends_cancels_what_nobody_could_go_on_with(
    time: ManualClock, assign: Assign, model: EchoModel, tmp_path: Path
) -> None:
    servers = OnFile(time, assign, tmp_path)
    stores = await servers.open()
    first = servers.server(model)
    model.gate.clear()
    execution = await first.start(replace(servers.assignment(), strategy=Scripted(Script())))
    await model.waited.wait()
    await first.drain(grace_s=0.01)
    assert (await servers.store.find("acme", execution.execution_id)).state is ExecutionState.CANCELLED
    await stores.aclose()
