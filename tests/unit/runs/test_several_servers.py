"""Two runners on one store: the second resumes or ends the executions that the first left."""

import asyncio
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from reasond_server.assembly.stores import StoreOptions, Stores, open_stores
from reasond_server.errors.limits import StoreUnavailableError
from reasond_server.eventlog.store import Lease
from reasond_server.runs.live_runs import LiveRuns
from reasond_server.types import (
    ExecutionState,
    FinishReason,
    Result,
)
from tests.stores.statements import run_statement
from tests.unit.runs.conftest import EchoModel, ManualClock, Script, Scripted
from tests.unit.runs.servers import (
    LIMITS,
    Assign,
    Replayable,
    Servers,
    end_of,
    held_after,
    recover_run,
)


async def test_a_hundred_duplicates_on_two_servers_make_one_run(servers: Servers, model: EchoModel) -> None:
    runners = [servers.server(model, replace(LIMITS, max_concurrent=100)) for _ in range(2)]
    started = await asyncio.gather(
        *(runners[n % 2].start(servers.assignment(request_id="r1", digest="d")) for n in range(100))
    )
    assert len({execution.execution_id for execution in started}) == 1
    assert sum(len(runner.runs.by_id) for runner in runners) <= 1
    await asyncio.gather(*(end_of(runner, started[0]) for runner in runners))
    assert model.calls == 2


async def test_somebody_elses_wish_to_stop_is_heard_at_once_or_with_the_next_renewal(
    servers: Servers, model: EchoModel
) -> None:
    first = servers.server(model)
    execution = await held_after(servers, first, model, 1)
    run = first.find_live(execution.execution_id)
    assert run is not None
    await servers.store.request_cancel("acme", execution.execution_id)
    assert run.is_cancelled
    await run.wait_for_end()
    model.gate.set()
    model.waited.clear()
    later = await held_after(servers, first, model, 1)
    await run_statement(
        servers.store, "UPDATE executions SET is_cancel_requested = TRUE WHERE execution_id = ?", later.execution_id
    )
    await first._recoverer.lease_keeper.round()
    await end_of(first, later)
    assert (await servers.store.find("acme", later.execution_id)).state is ExecutionState.CANCELLED


async def test_a_wish_to_stop_survives_the_death_of_the_process(servers: Servers, model: EchoModel) -> None:
    servers.strategy = Replayable(Script(waits_for=asyncio.Event()))
    execution = await held_after(servers, (first := servers.server(model)), model, 1)
    await servers.die(first)
    await servers.store.request_cancel("acme", execution.execution_id)
    result, _, _ = await recover_run(servers, execution)
    assert result.finish_reason is FinishReason.CANCELLED


async def test_a_process_that_was_out_of_touch_is_its_own_heir(servers: Servers, model: EchoModel) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six")))
    first = servers.server(model)
    execution = await held_after(servers, first, model, 1)
    servers.time.advance(20)
    first._recoverer.lease_keeper.runs = LiveRuns()
    await first._recoverer.lease_keeper.round()
    model.gate.set()
    while first._recoverer._tasks:
        await asyncio.wait(first._recoverer._tasks)
    await end_of(first, execution)
    assert (await servers.store.find("acme", execution.execution_id)).state is ExecutionState.SUCCEEDED


async def test_an_heir_that_shuts_down_meanwhile_gives_the_lease_back(servers: Servers, model: EchoModel) -> None:
    first = servers.server(model)
    execution = await held_after(servers, first, model, 1)
    servers.time.advance(20)
    first._recoverer.lease_keeper.runs = LiveRuns()
    await first._recoverer.lease_keeper.round()
    await first.stop()
    (found,) = await servers.store.recover(Lease(owner="other", seconds=15), limit=9)
    assert found.execution.execution_id == execution.execution_id


async def test_upkeep_begins_at_once_and_outlives_a_store_out_of_reach(servers: Servers, model: EchoModel) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six")))
    execution = await held_after(servers, (first := servers.server(model)), model, 2)
    await servers.die(first)
    calls: list[str] = []
    recover = servers.store.recover

    async def fail_twice(*arguments: object, **keys: object) -> object:
        calls.append("recover")
        if len(calls) < 3:
            raise StoreUnavailableError("gone") if len(calls) == 1 else ZeroDivisionError
        return await recover(*arguments, **keys)  # type: ignore[arg-type]  # arguments passed on unchanged

    servers.store.recover = fail_twice  # type: ignore[method-assign,assignment]  # a store that fails twice
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
    forget, servers.store.forget = servers.store.forget, _unreachable  # type: ignore[method-assign,assignment]  # an outage begins
    recover, servers.store.recover = servers.store.recover, _unreachable  # type: ignore[method-assign,assignment]  # the same outage
    with pytest.raises(StoreUnavailableError):
        await other._recoverer.lease_keeper.round()
    servers.store.forget, servers.store.recover = forget, recover  # type: ignore[method-assign]  # the outage ends
    servers.time.advance(20)
    await other._recoverer.lease_keeper.round()
    assert other.find_live(execution.execution_id) is None
    await first._recoverer.lease_keeper.round()
    await other._recoverer.lease_keeper.round()
    assert other.find_live(execution.execution_id) is None
    for _ in range(2):
        servers.time.advance(10)
        await other._recoverer.lease_keeper.round()
    assert other.find_live(execution.execution_id) is not None
    model.gate.set()


async def _unreachable(*_: object, **__: object) -> None:
    raise StoreUnavailableError("gone")


async def test_content_that_is_not_kept_is_seen_while_the_run_lives_and_gone_afterwards(
    servers: Servers, model: EchoModel
) -> None:
    runner = servers.server(model, replace(LIMITS, records_content=False))
    model.gate.clear()
    execution = await runner.start(servers.assignment(Script(words=("one", "two")), query="my secret"))
    assert "secret" not in (await servers.store.read_checkpoint("acme", execution.execution_id)).plan
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
    result, _, _ = await recover_run(servers, execution)
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
        await run_statement(servers.store, "UPDATE executions SET is_keep_requested = TRUE")
        await first._recoverer.lease_keeper.round()
    async with aclosing(servers.follower(first).follow(execution, after=0, include_deltas=False)) as events:
        await anext(events)
    run = first.find_live(execution.execution_id)
    assert run is not None
    assert not run.is_cancelled
    model.gate.set()
    await run.wait_for_end()
    assert (await servers.store.find("acme", execution.execution_id)).finish_reason is FinishReason.ANSWERED


async def test_a_wish_to_keep_a_run_survives_the_death_of_the_process(servers: Servers, model: EchoModel) -> None:
    servers.strategy = Replayable(Script(words=("one", "two", "six")))
    execution = await held_after(servers, (first := servers.server(model)), model, 1, keep_running=False)
    await servers.store.request_keep("acme", execution.execution_id)
    await servers.die(first)
    result, _, _ = await recover_run(servers, execution, reattach_s=0)
    assert result.finish_reason is FinishReason.ANSWERED


class OnFile(Servers):
    """Processes that open the same file one after the other."""

    def __init__(self, time: ManualClock, assign: Assign, folder: Path) -> None:
        super().__init__(time, assign)
        self._folder = folder

    async def open(self) -> Stores:
        stores = await open_stores(
            StoreOptions(
                url="",
                data_dir=str(self._folder),
                now=self.time.now,
                monotonic=self.time.monotonic,
                max_bytes=10**7,
                max_agents=1,
            )
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
    await heir._recoverer.lease_keeper.round()
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
    execution = await first.start(servers.assignment(strategy=Scripted(Script())))
    await model.waited.wait()
    await first.drain(grace_s=0.01)
    assert (await servers.store.find("acme", execution.execution_id)).state is ExecutionState.CANCELLED
    await stores.aclose()
