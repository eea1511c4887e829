"""Suspended executions that only the store holds: how they are suspended, woken and ended, in every store."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from reasond_server.assembly.stores import StoreOptions, open_stores
from reasond_server.errors.base import InternalError
from reasond_server.errors.limits import StoreFullError
from reasond_server.eventlog.store import LeaseLostError
from reasond_server.runs.followers import Follower
from reasond_server.runs.phase import Phase
from reasond_server.runs.runner import Runner, RunnerLimits
from reasond_server.types import (
    NOTHING,
    ExecutionStarted,
    ExecutionState,
    FinishReason,
    Iteration,
    LoggedEvent,
    Result,
    Thought,
)
from tests.napping import UNTIL_CALLED, NappingKind
from tests.unit.runs.conftest import EchoModel, ManualClock, in_virtual_time
from tests.unit.runs.servers import SharedStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

    from reasond_server.errors.base import ReasondError
    from reasond_server.eventlog.store import Append, ExecutionStore
    from reasond_server.runs.run import Run
    from reasond_server.types import Execution

LIMITS = RunnerLimits(max_concurrent=2, retention_s=60, lease_s=15)


class House:
    """Processes on one store."""

    def __init__(self, store: ExecutionStore, time: ManualClock) -> None:
        self.store = store
        self.time = time
        self.kind = NappingKind(now=time.now)
        self.runners: list[Runner] = []

    def server(self) -> Runner:
        clock = self.time.clock()
        runner = Runner(store=self.store, model=EchoModel(), clock=clock, limits=LIMITS, kinds=[self.kind])
        self.runners.append(runner)
        return runner

    async def suspend_one(self, runner: Runner, *naps: float, **request: object) -> Execution:
        """Return an execution that has begun its first nap."""
        execution = await runner.start(self.kind.create(naps, **request))
        await end_of(runner, execution)
        found = await self.find(execution)
        assert found.state is ExecutionState.SUSPENDED
        return found

    async def find(self, execution: Execution) -> Execution:
        return await self.store.find("acme", execution.execution_id)

    async def result(self, execution: Execution) -> Result:
        for runner in self.runners:
            await end_of(runner, execution)
        last = (await self.store.read("acme", execution.execution_id))[-1].event
        assert isinstance(last, Result)
        return last


async def end_of(runner: Runner, execution: Execution) -> None:
    run = runner.find_live(execution.execution_id)
    if run is not None:
        await run.wait_for_end()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def house(request: pytest.FixtureRequest, time: ManualClock, tmp_path: Path) -> AsyncGenerator[House, None]:
    url = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/log.db", "postgres": ""}[request.param]
    stores = await open_stores(
        StoreOptions(
            url=url or request.getfixturevalue("postgres_url"),
            data_dir=str(tmp_path),
            now=time.now,
            monotonic=time.monotonic,
            max_bytes=10**7,
            max_agents=1,
        )
    )
    house = House(stores.executions, time)
    yield house
    for runner in house.runners:
        await runner.stop()
    await stores.aclose()


async def test_a_suspended_execution_has_no_run_and_no_place_and_says_when_it_goes_on(house: House) -> None:
    runner = house.server()
    execution = await house.suspend_one(runner, 30.0)
    assert (runner.load.running, runner.find_live(execution.execution_id)) == (0, None)
    assert execution.wake_time is not None
    assert (execution.wake_time - house.time.now()).total_seconds() == 30
    assert execution.last_sequence == 2


async def test_a_call_wakes_it_once_in_any_process(house: House) -> None:
    first, other = house.server(), house.server()
    execution = await house.suspend_one(first, UNTIL_CALLED, 0.0)
    assert execution.wake_time is None
    assert await other.wake("acme", execution.execution_id)
    assert not await first.wake("acme", execution.execution_id)
    result = await house.result(execution)
    assert (result.finish_reason, result.answer) == (FinishReason.ANSWERED, "2")
    assert (await house.find(execution)).last_sequence == 4
    assert not await first.wake("acme", execution.execution_id)


async def test_the_upkeep_wakes_it_when_its_time_has_come_and_not_before(house: House) -> None:
    runner = house.server()
    execution = await house.suspend_one(runner, 30.0, 30.0, 0.0)
    for _ in range(2):
        house.time.advance(29)
        await runner._recoverer.lease_keeper.round()
        assert runner.find_live(execution.execution_id) is None
        house.time.advance(2)
        await runner._recoverer.lease_keeper.round()
        await end_of(runner, execution)
    assert (await house.result(execution)).answer == "3"


async def test_it_is_cancelled_at_once_though_every_place_is_taken(house: House) -> None:
    runner = house.server()
    execution = await house.suspend_one(runner, UNTIL_CALLED)
    for _ in range(LIMITS.max_concurrent):
        await runner.find_place("acme")
    await runner.stop_suspended("acme", execution.execution_id)
    assert (await house.find(execution)).state is ExecutionState.CANCELLED
    assert (await house.result(execution)).finish_reason is FinishReason.CANCELLED
    assert runner.load.running == LIMITS.max_concurrent


async def test_a_wish_to_cancel_that_nobody_waits_for_is_met_by_the_upkeep(house: House) -> None:
    runner = house.server()
    execution = await house.suspend_one(runner, UNTIL_CALLED)
    await house.store.request_cancel("acme", execution.execution_id)
    await runner._recoverer.lease_keeper.round()
    assert (await house.result(execution)).finish_reason is FinishReason.CANCELLED


async def test_who_follows_it_goes_on_following_until_it_ends(house: House) -> None:
    runner = house.server()
    execution = await house.suspend_one(runner, UNTIL_CALLED, 0.0)
    follower = Follower(store=house.store, runner=runner, clock=house.time.clock(), heartbeat_interval_s=0.05)
    seen = []
    async with aclosing(follower.follow(execution, after=0, include_deltas=False)) as events:
        async for event in events:
            seen.append(event.sequence)
            if len(seen) == 4:
                await runner.wake("acme", execution.execution_id)
    assert sorted(set(seen)) == [1, 2, 3, 4]
    assert seen[:2] == [1, 2]
    assert seen[-2:] == [3, 4]


async def test_the_time_asleep_is_no_part_of_its_time(house: House) -> None:
    runner = house.server()
    execution = await house.suspend_one(runner, 100.0, 100.0, 0.0, time_limit_s=5.0)
    for _ in range(2):
        house.time.advance(101)
        # A process that stood still recovers nothing in its first round.
        await runner._recoverer.lease_keeper.round()
        await runner._recoverer.lease_keeper.round()
        await end_of(runner, execution)
    result = await house.result(execution)
    assert result.finish_reason is FinishReason.ANSWERED
    assert result.metrics.execution_time_s < 5


async def test_its_request_id_stands_for_it_while_it_is_suspended(house: House) -> None:
    runner = house.server()
    execution = await house.suspend_one(runner, UNTIL_CALLED, request_id="r1", digest="d")
    again = await runner.start(house.kind.create((0.0,), request_id="r1", digest="d"))
    assert again.execution_id == execution.execution_id
    assert again.state is ExecutionState.SUSPENDED


async def test_a_caller_that_leaves_while_it_is_woken_leaves_no_lease_without_a_run(house: House) -> None:
    runner = house.server()
    execution = await house.suspend_one(runner, UNTIL_CALLED, 0.0)
    waking = asyncio.create_task(runner.wake("acme", execution.execution_id))
    await asyncio.sleep(0)
    waking.cancel()
    await asyncio.wait([waking])
    state = (await house.find(execution)).state
    assert state is ExecutionState.SUSPENDED or (await house.result(execution)).answer == "2"


class Stubborn(SharedStore):
    """Refuses to suspend an execution."""

    def __init__(self, error: ReasondError, time: ManualClock) -> None:
        super().__init__(max_bytes=10**6, now=time.now, monotonic=time.monotonic)
        self.error = error

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        return [
            self.error
            if part.execution.state is ExecutionState.SUSPENDED
            else (await super(Stubborn, self).append([part]))[0]
            for part in batch
        ]


@pytest.mark.parametrize(
    ("error", "phase", "state"),
    [
        (LeaseLostError("taken"), Phase.LEFT, ExecutionState.RUNNING),
        (StoreFullError("full"), Phase.ENDED, ExecutionState.FAILED),
    ],
    ids=repr,
)
@in_virtual_time
async def test_what_the_store_does_not_suspend_is_left_or_fails(
    time: ManualClock, error: ReasondError, phase: Phase, state: ExecutionState
) -> None:
    house = House(Stubborn(error, time), time)
    runner = house.server()
    execution = await runner.start(house.kind.create((UNTIL_CALLED,)))
    run = runner.find_live(execution.execution_id)
    assert run is not None
    await run.wait_for_end()
    assert (run.phase, (await house.find(execution)).state) == (phase, state)
    assert runner.load.running == 0


@in_virtual_time
async def test_what_is_cancelled_first_is_not_suspended_and_what_is_suspended_first_not_cancelled(
    time: ManualClock,
) -> None:
    store = SharedStore(max_bytes=10**6, now=time.now, monotonic=time.monotonic)
    house = House(store, time)
    runner = house.server()

    async def cancel(run: Run, number: int) -> None:
        del number
        run.cancel()

    house.kind = NappingKind(now=time.now, do=cancel)
    first = await runner.start(house.kind.create((UNTIL_CALLED,)))
    await end_of(runner, first)
    assert (await house.find(first)).state is ExecutionState.CANCELLED
    house.kind = NappingKind(now=time.now)
    other = await runner.start(house.kind.create((UNTIL_CALLED,)))
    run = runner.find_live(other.execution_id)
    assert run is not None
    while run.phase is not Phase.SUSPENDED:  # noqa: ASYNC110 - no event reports a phase
        await asyncio.sleep(0)
    run.cancel()
    await run.wait_for_end()
    assert (await house.find(other)).state is ExecutionState.SUSPENDED


@in_virtual_time
async def test_what_nobody_could_go_on_with_is_not_suspended(time: ManualClock) -> None:
    store = SharedStore(max_bytes=10**6, now=time.now, monotonic=time.monotonic)
    house = House(store, time)
    runner = house.server()
    execution = await runner.start(house.kind.create((UNTIL_CALLED,), keep_running=False, is_unary=True))
    run = runner.find_live(execution.execution_id)
    assert run is not None
    await run.wait_for_end()
    assert isinstance(run.error, InternalError)


async def test_an_event_wakes_it_once_and_its_sleep_is_no_part_of_its_time(house: House) -> None:
    first, other = house.server(), house.server()
    execution = await house.suspend_one(first, UNTIL_CALLED, 0.0, time_limit_s=100.0)
    house.time.advance(1000)
    events = [
        LoggedEvent(
            sequence=3,
            create_time=house.time.now(),
            event=Iteration(index=1, answer_found=False, usage=NOTHING, elapsed_s=0.0, detail=Thought(text=text)),
        )
        for text in "ab"
    ]
    wakes = zip((first, other), events, strict=True)
    calls = [runner.wake("acme", execution.execution_id, event=event) for runner, event in wakes]
    assert (await asyncio.gather(*calls)).count(True) == 1
    result = await house.result(execution)
    assert (result.finish_reason, result.answer) == (FinishReason.ANSWERED, "2")
    assert result.metrics.execution_time_s == 0
    kinds = [type(logged.event) for logged in await house.store.read("acme", execution.execution_id)]
    assert kinds == [ExecutionStarted, Iteration, Iteration, Result]
