"""How long a process may act for a run: by its own clock, also if the event loop was blocked, and what happens then."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.errors.limits import StoreUnavailableError
from reasond_server.eventlog.leases import MARGIN_SHARE, Tenure
from reasond_server.runs.phase import Trigger
from reasond_server.runs.run import Run
from reasond_server.runs.runner import Runner
from reasond_server.types import Execution, ExecutionState, Result
from tests.stores.statements import run_statement
from tests.unit.runs.conftest import EchoModel, ManualClock, Script, in_virtual_time, passed_s
from tests.unit.runs.servers import LIMITS, Assign, Replayable, Servers, SharedStore, end_of

SURE_S, MARGIN_S = 13.5, 1.5


class Watched:
    """A tenure with a lease of 15 s that begins now, and the callbacks that it made."""

    def __init__(self, monotonic: Callable[[], float] = passed_s) -> None:
        self.told: list[tuple[str, float]] = []
        self.tenure = Tenure(lease_s=15, monotonic=monotonic)
        self.tenure.begin(monotonic(), ask=lambda: self._tell("ask"), end=lambda: self._tell("end"))

    def _tell(self, what: str) -> None:
        self.told.append((what, round(passed_s(), 3)))


@in_virtual_time
async def test_a_run_is_surely_at_work_here_alone_for_nine_tenths_of_the_lease() -> None:
    watched = Watched()
    await asyncio.sleep(SURE_S - 0.01)
    assert watched.tenure.is_sure
    await asyncio.sleep(0.02)
    assert not watched.tenure.is_sure
    watched.tenure.close()


@in_virtual_time
async def test_a_renewal_is_asked_for_and_a_tenth_of_a_lease_later_the_run_is_ended_again_and_again() -> None:
    watched = Watched()
    await asyncio.sleep(SURE_S + 2 * MARGIN_S + 0.5)
    watched.tenure.close()
    await asyncio.sleep(100)
    assert watched.told == [("ask", 13.5), ("end", 15.0), ("end", 16.5)]


@in_virtual_time
async def test_a_renewal_counts_from_when_it_was_asked_for() -> None:
    watched = Watched()
    await asyncio.sleep(13)
    watched.tenure.prolong(5.0)
    await asyncio.sleep(5.4)
    assert watched.tenure.is_sure
    await asyncio.sleep(0.2)
    assert not watched.tenure.is_sure
    assert watched.told == [("ask", 18.5)]
    watched.tenure.close()


@in_virtual_time
async def test_a_renewal_that_comes_in_the_last_tenth_ends_nothing() -> None:
    watched = Watched()
    await asyncio.sleep(14)
    watched.tenure.prolong(13.9)
    await asyncio.sleep(10)
    assert watched.told == [("ask", 13.5)]
    watched.tenure.close()


@in_virtual_time
async def test_a_call_waits_until_the_lease_is_sure_again() -> None:
    watched = Watched()
    await watched.tenure.wait_for_lease()
    assert passed_s() == 0
    await asyncio.sleep(14)
    call = asyncio.create_task(watched.tenure.wait_for_lease())
    await asyncio.sleep(0.5)
    watched.tenure.prolong(0.1)
    await asyncio.sleep(0.1)
    assert not call.done(), "a renewal that was asked for long ago says nothing of now"
    watched.tenure.prolong(14.2)
    await call
    assert watched.tenure.is_sure
    watched.tenure.close()


@in_virtual_time
async def test_a_process_that_stood_still_looks_at_the_clock_and_asks_before_it_ends_anything() -> None:
    time = ManualClock()
    watched = Watched(time.monotonic)
    time.advance(60)
    assert not watched.tenure.is_sure, "no timer has come, but the time is over"
    call = asyncio.create_task(watched.tenure.wait_for_lease())
    await asyncio.sleep(0)
    assert watched.told == [("ask", 0.0)]
    watched.tenure.prolong(time.monotonic())
    await call
    watched.tenure.close()


@given(rate=st.floats(1 - MARGIN_SHARE, 1 + MARGIN_SHARE), lease_s=st.floats(0.5, 3600))
def test_clocks_that_differ_by_less_than_the_margin_never_let_a_call_begin_too_late(
    rate: float, lease_s: float
) -> None:
    @in_virtual_time
    async def check_tenure() -> None:
        tenure = Tenure(lease_s=lease_s, monotonic=lambda: passed_s() * rate)
        tenure.begin(0.0, ask=lambda: None, end=lambda: None)
        await asyncio.sleep(lease_s * 1.000001)
        assert not tenure.is_sure
        tenure.close()

    check_tenure()


class LoopClock(ManualClock):
    """A clock that follows the time of the loop."""

    def monotonic(self) -> float:
        return passed_s()


class Cut(SharedStore):
    """A store that several processes share and that one of them cannot reach for a while."""

    cut_off: str = ""

    async def renew(self, *arguments: Any) -> Any:
        self._reach(arguments[0].owner)
        return await super().renew(*arguments)

    async def recover(self, *arguments: Any, **keys: Any) -> Any:
        self._reach(arguments[0].owner)
        return await super().recover(*arguments, **keys)

    async def append(self, batch: Sequence[Any]) -> Any:
        if self.cut_off:
            raise StoreUnavailableError("cut off")
        return await super().append(batch)

    def _reach(self, owner: str) -> None:
        if owner == self.cut_off:
            raise StoreUnavailableError("cut off")


@pytest.fixture
def servers(assign: Assign) -> Servers:
    time = LoopClock()
    servers = Servers(time, assign)
    servers.store = Cut(max_bytes=10**7, now=time.now, monotonic=time.monotonic)
    return servers


def cut_off(servers: Servers, runner: Runner | None) -> None:
    """Cut `runner` off from the store; None lets all runners reach it again."""
    assert isinstance(servers.store, Cut)
    servers.store.cut_off = "" if runner is None else runner._lease.owner


async def start_held(servers: Servers, runner: Runner, model: EchoModel, **keys: object) -> tuple[Execution, Run]:
    """Return an execution that has made one step and whose second call is open."""
    script = Script(words=("one", "two", "six"), before_step=lambda index: model.gate.clear() if index == 1 else None)
    servers.strategy = Replayable(script)
    execution = await runner.start(servers.assignment(script, **keys))
    run = runner.find_live(execution.execution_id)
    assert run is not None
    await model.waited.wait()
    await run.log.flush()
    return execution, run


async def stop_all(*runners: Runner) -> None:
    for runner in runners:
        await runner.stop()


@in_virtual_time
async def test_a_process_that_is_cut_off_closes_what_is_open_when_its_lease_may_have_run_out(servers: Servers) -> None:
    model = EchoModel()
    runner = servers.server(model)
    runner.begin()
    _, run = await start_held(servers, runner, model)
    cut_off(servers, runner)
    model.closed.clear()
    await model.closed.wait()
    assert SURE_S - 5.1 <= passed_s() <= 15.0 + 0.1
    assert run.cause is Trigger.FENCE
    await run.wait_for_end()
    assert model.calls == 2
    cut_off(servers, None)
    await stop_all(runner)


@in_virtual_time
async def test_its_follower_is_told_where_to_go_on_and_goes_on_elsewhere_without_loss(servers: Servers) -> None:
    model, other_model = EchoModel(), EchoModel()
    runner, other = servers.server(model), servers.server(other_model)
    runner.begin()
    execution, _ = await start_held(servers, runner, model)
    cut_off(servers, runner)
    seen = list[int]()

    async def follow() -> None:
        async with aclosing(servers.follower(runner).follow(execution, after=0, include_deltas=False)) as events:
            async for event in events:
                seen.append(event.sequence)

    with pytest.raises(StoreUnavailableError, match="has left the execution") as caught:
        await follow()
    assert caught.value.execution_id == execution.execution_id
    assert caught.value.retry_after_s == 1.0
    assert [number for number in seen if number] == [1, 2]
    ((lease_until,),) = await run_statement(servers.store, "SELECT lease_until FROM executions")
    assert lease_until <= passed_s() + 0.1
    assert isinstance(servers.store, Cut)
    await asyncio.sleep(1)
    servers.store.cut_off = ""
    other.begin()
    async with aclosing(servers.follower(other).follow(execution, after=2, include_deltas=False)) as events:
        rest = [event async for event in events]
    assert [event.sequence for event in rest] == [3, 4, 5]
    assert isinstance(rest[-1].event, Result)
    assert other_model.calls == 2, "the call that was completed is not made again"
    await stop_all(runner, other)


@in_virtual_time
async def test_no_call_begins_while_the_lease_is_in_doubt_and_it_begins_once_it_is_not(servers: Servers) -> None:
    model = EchoModel()
    runner = servers.server(model)
    execution, run = await start_held(servers, runner, model)
    assert run.tenure is not None
    await asyncio.sleep(SURE_S + 0.1)
    model.gate.set()
    await asyncio.sleep(0.1)
    assert model.calls == 2
    await runner._recoverer.lease_keeper.round()
    await end_of(runner, execution)
    assert model.calls == 3
    assert (await servers.store.find("acme", execution.execution_id)).state is ExecutionState.SUCCEEDED
    await stop_all(runner)


@in_virtual_time
async def test_when_the_store_is_back_and_nobody_has_taken_the_run_over_it_goes_on_here(servers: Servers) -> None:
    model = EchoModel()
    runner = servers.server(model)
    runner.begin()
    execution, run = await start_held(servers, runner, model)
    cut_off(servers, runner)
    await run.wait_for_end()
    assert run.cause is Trigger.FENCE
    model.gate.set()
    servers.strategy = Replayable(Script(words=("one", "two", "six")))
    cut_off(servers, None)
    async with aclosing(servers.follower(runner).follow(execution, after=0, include_deltas=False)) as events:
        seen = [event.sequence async for event in events if event.sequence]
    assert seen[-1] == 5
    assert model.calls == 4, "the call that was closed is made again, the one on record is not"
    await stop_all(runner)


@in_virtual_time
async def test_a_tool_at_work_is_not_interrupted(servers: Servers) -> None:
    model = EchoModel()
    runner = servers.server(model)
    execution, run = await start_held(servers, runner, model)
    assert run.journal is not None
    with run.journal.act():
        await asyncio.sleep(40)
        assert run.cause is None
    await run.wait_for_end()
    assert run.cause is Trigger.FENCE
    assert passed_s() < 40 + 2 * MARGIN_S
    assert (await servers.store.find("acme", execution.execution_id)).state is ExecutionState.RUNNING
    await stop_all(runner)


@in_virtual_time
async def test_what_nobody_can_go_on_with_is_not_fenced(servers: Servers) -> None:
    model = EchoModel()
    runner = servers.server(model, replace(LIMITS, records_content=False))
    execution, run = await start_held(servers, runner, model)
    assert run.tenure is None
    await asyncio.sleep(60)
    model.gate.set()
    await end_of(runner, execution)
    assert (await servers.store.find("acme", execution.execution_id)).state is ExecutionState.SUCCEEDED
    await stop_all(runner)


@in_virtual_time
async def test_a_store_that_no_other_process_can_use_meanwhile_fences_nobody(servers: Servers) -> None:
    servers.store.is_shared = False
    model = EchoModel()
    runner = servers.server(model)
    _, run = await start_held(servers, runner, model)
    assert run.tenure is None
    model.gate.set()
    await stop_all(runner)
