import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from reasond_server.errors.base import ReasondError
from reasond_server.errors.limits import StoreUnavailableError
from reasond_server.eventlog.mailbox import Mailbox
from reasond_server.eventlog.store import Append, Claim, Lease, Renewal
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.reasoning.registry import StrategyRegistry
from reasond_server.reasoning.strategy_selection import OfferedModels
from reasond_server.reasoning.strategy_work import ReasoningKind, ReasoningWork
from reasond_server.runs.runner import Runner, RunnerLimits
from reasond_server.types import (
    ExecutionState,
    Result,
)
from tests.unit.runs.conftest import EchoModel, ManualClock, Script, Scripted, in_virtual_time

Assign = Callable[..., ReasoningWork]


class Limping(MemoryExecutionStore):
    """A durable store whose calls fail as the test chooses."""

    is_durable = True

    def __init__(self) -> None:
        time = ManualClock()
        super().__init__(max_bytes=10**7, now=time.now, monotonic=time.monotonic)
        self.failures: dict[str, Exception] = {}

    async def create(self, *arguments: Any, **keys: Any) -> Claim:
        self._fail("create")
        return await super().create(*arguments, **keys)

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        if any(part.creation is not None for part in batch):
            self._fail("create")
        return await super().append(batch)

    async def renew(self, *arguments: Any) -> Renewal:
        self._fail("renew")
        return await super().renew(*arguments)

    def _fail(self, call: str) -> None:
        if call in self.failures:
            raise self.failures[call]


class Again(Scripted):
    """The scripted strategy, declared as replayable."""

    is_replayable = True


def runner_on(store: MemoryExecutionStore, model: EchoModel | None = None, **limits: Any) -> Runner:
    return Runner(
        store=store,
        model=model or EchoModel(),
        clock=ManualClock().clock(),
        limits=RunnerLimits(**{"max_concurrent": 3, "retention_s": 60, **limits}),
    )


@pytest.mark.parametrize(("tenant", "kept_s"), [("acme", 5), ("other", 60)])
@in_virtual_time
async def test_each_tenant_has_a_retention_of_its_own(assign: Assign, tenant: str, kept_s: float) -> None:
    store = Limping()
    runner = runner_on(store, tenant_retention_s={"acme": 5.0})
    execution = await runner.start(assign(tenant=tenant))
    run = runner.find_live(execution.execution_id)
    assert run is not None
    await run.wait_for_end()
    found = await store.find(tenant, execution.execution_id)
    assert found.end_time is not None
    assert found.expire_time is not None
    assert (found.expire_time - found.end_time).total_seconds() == kept_s


@in_virtual_time
async def test_a_unary_run_that_cannot_be_written_down_for_a_fault_of_the_store_does_not_go_on(assign: Assign) -> None:
    store, model = Limping(), EchoModel()
    runner = runner_on(store, model)
    store.failures["create"] = ZeroDivisionError()
    model.gate.clear()
    execution = await runner.start(assign(is_unary=True, keep_running=False))
    run = runner.find_live(execution.execution_id)
    assert run is not None
    result = await run.wait_for_result()
    assert result is not None
    assert result.error is not None
    assert result.error.message.startswith("The execution could not be written down")
    await run.wait_for_end()
    assert runner.find_live(execution.execution_id) is None


class Slow(Limping):
    """A store that commits a creation when the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_creating, self.gate = asyncio.Event(), asyncio.Event()

    async def create(self, *arguments: Any, **keys: Any) -> Claim:
        self.is_creating.set()
        await self.gate.wait()
        return await super().create(*arguments, **keys)


@pytest.mark.parametrize("cancellations", [1, 3])
@in_virtual_time
async def test_what_is_created_for_a_caller_who_left_meanwhile_is_cancelled_before_it_spends(
    assign: Assign, cancellations: int
) -> None:
    store, model = Slow(), EchoModel()
    runner = runner_on(store, model, max_concurrent=1)
    starting = asyncio.create_task(runner.start(assign(strategy=Again(Script()), keep_running=False)))
    await store.is_creating.wait()
    for _ in range(cancellations):
        starting.cancel()
        await asyncio.sleep(0)
        assert not starting.done()
    store.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    (run,) = runner.runs.by_id.values()
    await run.wait_for_end()
    assert (await store.find("acme", run.log.execution.execution_id)).state is ExecutionState.CANCELLED
    assert model.calls == 0
    assert runner._admission.free_places == 1


@in_virtual_time
async def test_who_leaves_while_a_creation_fails_leaves_nothing_behind(assign: Assign) -> None:
    store = Slow()
    runner = runner_on(store, max_concurrent=1)
    store.failures["create"] = StoreUnavailableError("gone")
    starting = asyncio.create_task(runner.start(assign()))
    await store.is_creating.wait()
    starting.cancel()
    store.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert runner.runs.by_id == {}
    assert runner._admission.free_places == 1


@in_virtual_time
async def test_a_lease_that_cannot_be_given_back_runs_out(assign: Assign) -> None:
    store, model = Limping(), EchoModel()
    runner = runner_on(store, model)
    model.gate.clear()
    execution = await runner.start(assign(strategy=Again(Script())))
    await model.waited.wait()
    store.failures["renew"] = StoreUnavailableError("gone")
    await runner.stop()
    assert runner.find_live(execution.execution_id) is None
    assert (await store.find("acme", execution.execution_id)).state is ExecutionState.RUNNING
    assert await store.recover(Lease(owner="other", seconds=15), limit=9) == []


@in_virtual_time
async def test_a_runner_ends_what_others_left_of_a_kind_that_it_knows_and_leaves_others(
    assign: Assign,
) -> None:
    store, model = Limping(), EchoModel()
    first, stranger, other = runner_on(store, model), runner_on(store), runner_on(store)
    kind = ReasoningKind(
        clock=ManualClock().clock(), find_strategy=StrategyRegistry([]).get, models=OfferedModels(EchoModel())
    )
    other._factory.kinds = {kind.kind: kind}
    model.gate.clear()
    execution = await first.start(assign(strategy=Again(Script())))
    await model.waited.wait()
    await first.stop()
    await stranger._recoverer.lease_keeper.round()
    assert (await store.find("acme", execution.execution_id)).state is ExecutionState.RUNNING
    await store.renew(replace(stranger._lease, seconds=0), {execution.execution_id: 2})
    await other._recoverer.lease_keeper.round()
    await other._writer.aclose(within_s=5)
    result = (await store.read("acme", execution.execution_id))[-1].event
    assert isinstance(result, Result)
    assert result.error is not None
    assert "'scripted' is not enabled here any more" in result.error.message


@in_virtual_time
async def test_who_waits_for_an_execution_hears_of_it_until_it_leaves(assign: Assign) -> None:
    runner = runner_on(Limping())
    one, other = Mailbox(wants_deltas=False), Mailbox(wants_deltas=False)
    with runner.runs.await_run("e1", one):
        with runner.runs.await_run("e1", other):
            assert list(runner.runs._waiting["e1"]) == [one, other]
        assert list(runner.runs._waiting["e1"]) == [one]
    assert runner.runs._waiting == {}
    runner.runs.lose("e1")
    runner.runs.keep("e1")
    assert (await runner.start(assign())).state is ExecutionState.RUNNING


class SlowToEnd(Limping):
    """A store that commits the end of a run only when the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.may_go = asyncio.Event(), asyncio.Event()

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        if any(part.execution.state is not ExecutionState.RUNNING for part in batch):
            self.asked.set()
            await self.may_go.wait()
        return await super().append(batch)


async def test_what_a_strategy_left_behind_does_not_end_its_run_before_the_commit(assign: Assign) -> None:
    store = SlowToEnd()
    runner = runner_on(store)
    execution = await runner.start(assign())
    run = runner.find_live(execution.execution_id)
    assert run is not None
    task = run.driver
    assert task is not None
    await store.asked.wait()
    task.cancel()
    await asyncio.wait([task])
    assert runner.find_live(execution.execution_id) is run
    store.may_go.set()
    await run.wait_for_end()
    assert isinstance((await store.read("acme", execution.execution_id))[-1].event, Result)
    assert runner.find_live(execution.execution_id) is None
    await runner.stop()
