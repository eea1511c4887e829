import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import pytest

from reasond_server.assembly.core import Core, assemble
from reasond_server.config import Settings
from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.errors.executions import ExecutionNotFoundError
from reasond_server.errors.limits import DrainingError, StoreFullError, StoreUnavailableError
from reasond_server.errors.model import ModelFailedError
from reasond_server.eventlog.store import Append, Claim, Lease, LeaseLostError, Recovery
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.reasoning.registry import StrategyRegistry
from reasond_server.reasoning.views import read_view
from reasond_server.strategies.strategy import (
    Outcome,
    ReasoningStrategy,
    RunContext,
    Step,
    StrategyConfig,
    StrategyEvent,
)
from reasond_server.testing import Reply, ScriptedModel
from reasond_server.types import (
    CustomMetrics,
    CustomStep,
    Execution,
    ExecutionState,
    FinishReason,
    LoggedEvent,
    Principal,
    Result,
    Task,
)
from reasond_server.types.turns import TurnStart
from tests.unit.runs.conftest import in_virtual_time, passed_s

ALICE = Principal(subject="alice", tenant="acme", permissions=frozenset({"reasoning:execute"}))


class SlowCommits(MemoryExecutionStore):
    """A memory store that waits for the test before it creates or commits, and signals creations and refusals."""

    def __init__(self) -> None:
        super().__init__(max_bytes=10**8, now=lambda: datetime.now(UTC), monotonic=monotonic)
        self.gate = asyncio.Event()
        self.is_down = False
        self.created = asyncio.Event()
        self.refused = asyncio.Event()

    async def create(self, execution: Execution, **arguments: Any) -> Claim:
        await self._open()
        claim = await super().create(execution, **arguments)
        self.created.set()
        return claim

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        await self._open()
        refusals = await super().append(batch)
        if any(part.creation is not None for part in batch):
            self.created.set()
        return refusals

    async def _open(self) -> None:
        if self.is_down:
            self.refused.set()
            raise StoreUnavailableError("the store is gone", retry_after_s=1.0)
        await self.gate.wait()


def core_with(store: MemoryExecutionStore, registry: StrategyRegistry, *replies: str | Reply) -> Core:
    reasoning = {"default_strategy": "", "enabled_strategies": []}
    settings = Settings.model_validate_json(json.dumps({"reasoning": reasoning}))
    return assemble(settings, model=ScriptedModel(list(replies)), registry=registry, store=store)


async def test_a_unary_call_without_a_request_id_waits_for_no_commit(registry: StrategyRegistry) -> None:
    store = SlowCommits()
    core = core_with(store, registry, "forty-two")
    view = await core.reasoning.execute(ALICE, Task(query="why?", strategy="quick"))
    assert (view.result.answer, len(view.steps), view.execution.state) == ("forty-two", 1, ExecutionState.SUCCEEDED)
    reading = asyncio.create_task(read_view(core.reasoning.desk, ALICE, view.execution.execution_id))
    await asyncio.sleep(0)
    store.gate.set()
    assert (await reading).result == view.result


async def test_a_unary_call_is_answered_though_its_log_cannot_be_written_and_the_next_one_is_refused(
    registry: StrategyRegistry,
) -> None:
    store = SlowCommits()
    store.gate.set()
    store.is_down = True
    core = core_with(store, registry, "paid for")
    assert (await core.reasoning.execute(ALICE, Task(query="why?", strategy="quick"))).result.answer == "paid for"
    await store.refused.wait()
    with pytest.raises(StoreUnavailableError, match="the store is gone"):
        await core.reasoning.execute(ALICE, Task(query="why?", strategy="quick"))
    store.is_down = False
    await core.runner.stop()
    assert len((await core.reasoning.desk.list(ALICE)).executions) == 1


async def test_a_store_out_of_reach_refuses_a_stream_before_anything_is_spent(registry: StrategyRegistry) -> None:
    store = SlowCommits()
    store.is_down = True
    core = core_with(store, registry)
    with pytest.raises(StoreUnavailableError):
        await anext(core.reasoning.stream(ALICE, Task(query="why?", strategy="quick")))


async def test_a_store_without_room_refuses_a_unary_call(registry: StrategyRegistry) -> None:
    store = MemoryExecutionStore(max_bytes=20_000, now=lambda: datetime.now(UTC), monotonic=monotonic)
    core = core_with(store, registry, Reply(text="never", hold=asyncio.Event()), Reply(text="x", hold=asyncio.Event()))
    stream = core.reasoning.stream(ALICE, Task(query="why?", strategy="quick"))
    await anext(stream)
    for _ in range(2):
        with pytest.raises(StoreFullError, match="The store is full"):
            await core.reasoning.execute(ALICE, Task(query="why?" * 10_000, strategy="quick"))
    await stream.aclose()
    await core.runner.stop()


async def test_a_unary_caller_that_goes_away_cancels_its_run(registry: StrategyRegistry) -> None:
    store = SlowCommits()
    store.gate.set()
    core = core_with(store, registry, Reply(text="never", hold=asyncio.Event()))
    call = asyncio.create_task(core.reasoning.execute(ALICE, Task(query="why?", strategy="quick")))
    await store.created.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await core.runner.stop()
    found = (await core.reasoning.desk.list(ALICE)).executions
    assert [execution.state for execution in found] == [ExecutionState.CANCELLED]


async def test_a_unary_call_whose_execution_is_deleted_is_told_so(registry: StrategyRegistry) -> None:
    store = SlowCommits()
    store.gate.set()
    hold = asyncio.Event()
    core = core_with(store, registry, Reply(text="late", hold=hold))
    call = asyncio.create_task(core.reasoning.execute(ALICE, Task(query="why?", strategy="quick")))
    await store.created.wait()
    execution = (await core.reasoning.desk.list(ALICE)).executions[0]
    run = core.runner.find_live(execution.execution_id)
    assert run is not None
    run.log.close(ExecutionNotFoundError("it is gone"))
    with pytest.raises(ExecutionNotFoundError):
        await call


async def test_a_known_request_is_answered_by_a_server_that_is_full_or_ends(registry: StrategyRegistry) -> None:
    store = SlowCommits()
    store.gate.set()
    core = core_with(store, registry, "yes")
    task = Task(query="why?", strategy="quick")
    first = await core.reasoning.execute(ALICE, task, request_id="r1")
    core.runner.begin_drain()
    again = await core.reasoning.execute(ALICE, task, request_id="r1")
    assert again == first
    with pytest.raises(DrainingError):
        await core.reasoning.execute(ALICE, task, request_id="r2")


async def test_an_execution_at_work_elsewhere_is_cancelled_there(registry: StrategyRegistry) -> None:
    store = SlowCommits()
    store.gate.set()
    here, there = core_with(store, registry), core_with(store, registry, Reply(text="never", hold=asyncio.Event()))
    stream = there.reasoning.stream(ALICE, Task(query="why?", strategy="quick"), keep_running=True)
    execution_id = (await anext(stream)).execution_id
    assert (await here.reasoning.desk.cancel(ALICE, execution_id)).state is ExecutionState.CANCELLED
    await stream.aclose()


async def test_a_stream_is_resumed_on_another_server_while_the_run_goes_on(registry: StrategyRegistry) -> None:
    store = SlowCommits()
    store.gate.set()
    hold = asyncio.Event()
    here, there = core_with(store, registry), core_with(store, registry, Reply(text="late", hold=hold))
    stream = there.reasoning.stream(ALICE, Task(query="why?", strategy="quick"), keep_running=True)
    execution_id = (await anext(stream)).execution_id
    await stream.aclose()
    resumed = here.reasoning.desk.resume(ALICE, execution_id, after_sequence=0)
    seen = [(await anext(resumed)).sequence]
    hold.set()
    seen += [event.sequence async for event in resumed]
    assert seen == [1, 2, 3]
    assert [event.sequence async for event in here.reasoning.desk.resume(ALICE, execution_id, after_sequence=3)] == []


async def test_who_resumes_can_ask_an_execution_elsewhere_to_go_on_without_followers(
    registry: StrategyRegistry,
) -> None:
    store = SlowCommits()
    store.gate.set()
    hold = asyncio.Event()
    here, there = core_with(store, registry), core_with(store, registry, Reply(text="late", hold=hold))
    first = there.reasoning.stream(ALICE, Task(query="why?", strategy="quick"))
    execution_id = (await anext(first)).execution_id
    resumed = here.reasoning.desk.resume(ALICE, execution_id, after_sequence=0, keep_running=True)
    assert (await anext(resumed)).sequence == 1
    await resumed.aclose()
    await first.aclose()
    hold.set()
    events = [event.event async for event in here.reasoning.desk.resume(ALICE, execution_id, after_sequence=1)]
    assert isinstance(events[-1], Result)
    assert events[-1].finish_reason is FinishReason.ANSWERED


@pytest.mark.parametrize("begins_kept", [True, False])
async def test_the_wish_to_keep_an_execution_is_stored_unless_it_was_made_at_the_beginning(
    registry: StrategyRegistry,
    begins_kept: bool,  # noqa: FBT001 - a case, given by name
) -> None:
    store = SlowCommits()
    store.gate.set()
    core = core_with(store, registry, Reply(text="late", hold=asyncio.Event()))
    task = Task(query="why?", strategy="quick")
    first = core.reasoning.stream(ALICE, task, request_id="r1", keep_running=begins_kept)
    execution_id = (await anext(first)).execution_id
    again = core.reasoning.stream(ALICE, task, request_id="r1", keep_running=True)
    await anext(again)
    for stream in (first, again):
        await stream.aclose()
    run = core.runner.find_live(execution_id)
    assert run is not None
    assert run.cause is None
    (recovery,) = await recovered_from(store, core)
    assert recovery.is_keep_requested is not begins_kept


async def recovered_from(store: MemoryExecutionStore, core: Core) -> Sequence[Recovery]:
    """Return the executions that another process would recover if this one gave its leases back."""
    lease = core.runner._lease
    await store.renew(replace(lease, seconds=0), core.runner.runs.read_fences())
    found = await store.recover(Lease(owner="other", seconds=60), limit=9)
    await core.runner.stop()
    return found


async def test_a_unary_call_whose_execution_was_taken_over_is_told_so(registry: StrategyRegistry) -> None:
    store = SlowCommits()
    store.gate.set()
    core = core_with(store, registry, Reply(text="late", hold=asyncio.Event()))
    call = asyncio.create_task(core.reasoning.execute(ALICE, Task(query="why?", strategy="quick")))
    await store.created.wait()
    execution = (await core.reasoning.desk.list(ALICE)).executions[0]
    run = core.runner.find_live(execution.execution_id)
    assert run is not None
    run.log.close(LeaseLostError("taken"))
    with pytest.raises(ModelFailedError, match="another one took the execution over, after tokens were spent"):
        await call


class Chatty(ReasoningStrategy[StrategyConfig]):
    """Makes as many steps as the task says, without a model call."""

    name = "chatty"
    description = "Makes many steps."
    config_type = StrategyConfig

    async def run(self, task: Task, context: RunContext[StrategyConfig]) -> AsyncGenerator[StrategyEvent, None]:
        del context
        metrics = CustomMetrics(data={})
        for _ in range(int(task.query)):
            yield Step(detail=CustomStep(data={}), answer_found=False, metrics=metrics)
        yield Outcome(answer="done", finish_reason=FinishReason.ANSWERED, metrics=metrics)


class Tidy(Chatty):
    """Yields its answer long before its cleanup ends."""

    name = "tidy"

    def __init__(self) -> None:
        self.answered, self.may_end = asyncio.Event(), asyncio.Event()

    async def run(self, task: Task, context: RunContext[StrategyConfig]) -> AsyncGenerator[StrategyEvent, None]:
        del task, context
        try:
            yield Outcome(answer="paid for", finish_reason=FinishReason.ANSWERED, metrics=CustomMetrics(data={}))
        finally:
            self.answered.set()
            await self.may_end.wait()


async def test_a_unary_call_is_answered_though_its_log_was_refused_when_the_answer_was_there() -> None:
    store, strategy = SlowCommits(), Tidy()
    store.gate.set()
    core = core_with(store, StrategyRegistry([strategy]))
    call = asyncio.create_task(core.reasoning.execute(ALICE, Task(query="why?", strategy="tidy")))
    await strategy.answered.wait()
    await store.created.wait()
    execution = (await core.reasoning.desk.list(ALICE)).executions[0]
    run = core.runner.find_live(execution.execution_id)
    assert run is not None
    run.log.close(InternalError("refused"))
    strategy.may_end.set()
    assert (await call).result.answer == "paid for"


@pytest.mark.parametrize("steps", [1, 300])
async def test_a_unary_call_returns_all_steps_however_many(steps: int) -> None:
    store = SlowCommits()
    store.gate.set()
    core = core_with(store, StrategyRegistry([Chatty()]))
    view = await core.reasoning.execute(ALICE, Task(query=str(steps), strategy="chatty"))
    assert [step.index for step in view.steps] == [*range(steps)]
    assert view.result.answer == "done"


@in_virtual_time
async def test_a_unary_call_of_many_steps_is_answered_whole_though_its_store_is_down() -> None:
    store = SlowCommits()
    store.is_down = True
    core = core_with(store, StrategyRegistry([Chatty()]))
    view = await core.reasoning.execute(ALICE, Task(query="3000", strategy="chatty"))
    assert [step.index for step in view.steps] == [*range(3000)]
    assert (view.result.answer, view.result.warnings) == ("done", ())
    assert passed_s() < 0.1


@in_virtual_time
async def test_an_answer_does_not_wait_for_steps_that_only_a_dead_store_has() -> None:
    store = SlowCommits()
    store.gate.set()
    strategy = Verbose(store)
    core = core_with(store, StrategyRegistry([strategy]))
    view = await core.reasoning.execute(ALICE, Task(query="60", strategy="verbose"))
    assert view.result.answer == "done"
    assert view.result.warnings == ("The store cannot be reached: the first steps are left out.",)
    assert [step.index for step in view.steps] == [*range(60 - len(view.steps), 60)]
    assert 0 < len(view.steps) < 60
    assert passed_s() == pytest.approx(2, abs=0.1)


@in_virtual_time
async def test_a_unary_call_that_writes_more_than_can_wait_for_a_dead_store_ends_within_a_bound() -> None:
    store = SlowCommits()
    store.is_down = True
    core = core_with(store, StrategyRegistry([Verbose(store)]))
    with pytest.raises(StoreUnavailableError, match="The store took nothing for 10 s"):
        await core.reasoning.execute(ALICE, Task(query="99", strategy="verbose"))
    assert passed_s() == pytest.approx(10, abs=0.1)


class Verbose(Chatty):
    """Writes 100,000 characters in each step. The store becomes unavailable before the last step."""

    name = "verbose"

    def __init__(self, store: SlowCommits) -> None:
        self._store = store

    async def run(self, task: Task, context: RunContext[StrategyConfig]) -> AsyncGenerator[StrategyEvent, None]:
        del context
        metrics = CustomMetrics(data={})
        for index in range(int(task.query)):
            if index == int(task.query) - 1:
                self._store.is_down = True
            yield Step(detail=CustomStep(data={"text": "x" * 100_000}), answer_found=False, metrics=metrics)
            await asyncio.sleep(0.001)
        yield Outcome(answer="done", finish_reason=FinishReason.ANSWERED, metrics=metrics)


class Damaged(SlowCommits):
    """A store that cannot read one event of each log."""

    def __init__(self, sequence: int) -> None:
        super().__init__()
        self.gate.set()
        self._sequence = sequence

    async def read(
        self, tenant: str, execution_id: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[LoggedEvent]:
        events = await super().read(tenant, execution_id, after=after, limit=limit)
        if after < self._sequence and events and events[0].sequence == self._sequence:
            raise InternalError("a stored row is no JSON")
        return [event for event in events if event.sequence < self._sequence or after >= self._sequence]


@pytest.mark.parametrize(("sequence", "steps"), [(1, []), (2, []), (4, [0, 1])])
async def test_a_damaged_execution_is_shown_up_to_the_damage_and_with_its_end(sequence: int, steps: list[int]) -> None:
    core = core_with(Damaged(sequence), StrategyRegistry([Chatty()]))
    view = await core.reasoning.execute(ALICE, Task(query="5", strategy="chatty"))
    await core.runner.stop()
    found = await read_view(core.reasoning.desk, ALICE, view.execution.execution_id)
    assert [step.index for step in found.steps] == steps
    assert found.result == view.result


async def test_an_execution_whose_end_is_damaged_is_an_internal_error() -> None:
    core = core_with(Damaged(7), StrategyRegistry([Chatty()]))
    view = await core.reasoning.execute(ALICE, Task(query="5", strategy="chatty"))
    await core.runner.stop()
    with pytest.raises(InternalError, match="no JSON"):
        await read_view(core.reasoning.desk, ALICE, view.execution.execution_id)


class SlowLookups(SlowCommits):
    """A store that signals when a request id is looked up, and waits for the test before it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.gate.set()
        self.asked, self.found = asyncio.Event(), asyncio.Event()

    async def find_claim(self, tenant: str, request_id: str) -> Claim | None:
        self.asked.set()
        await self.found.wait()
        return await super().find_claim(tenant, request_id)


@pytest.mark.parametrize("is_kept", [True, False])
async def test_who_leaves_while_the_request_id_is_looked_up_still_gets_the_run_that_shall_be_kept(
    registry: StrategyRegistry,
    is_kept: bool,  # noqa: FBT001 - a case, given by name
) -> None:
    store = SlowLookups()
    core = core_with(store, registry, "kept")
    events = core.reasoning.stream(ALICE, Task(query="why?", strategy="quick"), request_id="r1", keep_running=is_kept)
    call = asyncio.ensure_future(anext(events))
    await store.asked.wait()
    call.cancel()
    store.found.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    claim = await store.find_claim("acme", "r1")
    assert (claim is not None) is is_kept
    if claim is not None:
        told = [event.event async for event in core.reasoning.desk.resume(ALICE, claim.execution_id, after_sequence=0)]
        assert isinstance(told[-1], Result)
        assert told[-1].finish_reason is FinishReason.ANSWERED


async def test_a_turn_whose_caller_leaves_while_its_request_id_is_looked_up_begins(registry: StrategyRegistry) -> None:
    store = SlowLookups()
    core = core_with(store, registry, "done")
    events = core.turns.stream(ALICE, TurnStart(message="why?"), request_id="r1")
    call = asyncio.ensure_future(anext(events))
    await store.asked.wait()
    call.cancel()
    store.found.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await store.find_claim("acme", "r1") is not None
