"""Which of several equal requests wins, and which execution a request id stands for in the end."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from reasond_server.errors.limits import OverloadedError, StoreUnavailableError
from reasond_server.errors.model import ModelUnavailableError
from reasond_server.eventlog.store import Claim
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.reasoning.strategy_work import ReasoningWork
from reasond_server.runs.runner import RequestIds, Runner, RunnerLimits, is_standing
from reasond_server.types import ExecutionState
from tests.unit.runs.conftest import EchoModel, ManualClock, Script, in_virtual_time, passed_s

Assign = Callable[..., ReasoningWork]


class ForeignStore(MemoryExecutionStore):
    """A store in which another process is always faster, or which releases no request id."""

    def __init__(self, *, holder: str = "", releases: bool = True) -> None:
        time = ManualClock()
        super().__init__(max_bytes=10**7, now=time.now, monotonic=time.monotonic)
        self.holder = holder
        self.releases = releases
        self.created: list[str] = []

    async def create(self, execution: Any, **keys: Any) -> Claim:
        self.created.append(keys["inherits"])
        if self.holder:
            return Claim(execution_id=self.holder, digest=keys["digest"])
        return await super().create(execution, **keys)

    async def release(self, tenant: str, execution_id: str) -> None:
        if not self.releases:
            raise StoreUnavailableError("gone")
        await super().release(tenant, execution_id)


def ids_of(store: MemoryExecutionStore, *, queue_timeout_s: float = 0.0) -> RequestIds:
    return RequestIds(store=store, runs={}, queue_timeout_s=queue_timeout_s)


@pytest.mark.parametrize(("queue_timeout_s", "waited_s"), [(0.0, 5.0), (30.0, 30.0)])
@in_virtual_time
async def test_a_turn_that_does_not_come_is_refused_and_can_be_tried_again(
    queue_timeout_s: float, waited_s: float
) -> None:
    ids = ids_of(ForeignStore(), queue_timeout_s=queue_timeout_s)
    async with ids.take_turn("acme", "r1"):
        async with (
            ids.take_turn("acme", "r2"),
            ids.take_turn("other", "r1"),
            ids.take_turn("acme", ""),
            ids.take_turn("acme", ""),
        ):
            assert passed_s() == 0
        with pytest.raises(OverloadedError, match="The same request is being started") as refused:
            async with ids.take_turn("acme", "r1"):
                pass
    assert refused.value.retry_after_s == 1.0
    assert passed_s() == pytest.approx(waited_s)
    async with ids.take_turn("acme", "r1"):
        assert passed_s() == pytest.approx(waited_s)


@in_virtual_time
async def test_the_same_request_comes_in_one_at_a_time_and_in_order() -> None:
    ids, seen = ids_of(ForeignStore()), list[int]()

    async def come(number: int) -> None:
        async with ids.take_turn("acme", "r1"):
            seen.append(number)
            await asyncio.sleep(1)
            seen.append(number)

    await asyncio.gather(*map(come, range(4)))
    assert seen == [0, 0, 1, 1, 2, 2, 3, 3]


@in_virtual_time
async def test_a_caller_that_gives_its_turn_up_leaves_nothing_behind() -> None:
    ids = ids_of(ForeignStore())
    async with ids.take_turn("acme", "r1"):
        late = asyncio.create_task(_turn(ids))
        await asyncio.sleep(1)
        late.cancel()
        await asyncio.wait([late])
    await _turn(ids)
    assert ids._turns == {}


async def _turn(ids: RequestIds) -> None:
    async with ids.take_turn("acme", "r1"):
        pass


def runner_on(store: MemoryExecutionStore, model: EchoModel | None = None) -> Runner:
    limits = RunnerLimits(max_concurrent=3, retention_s=60)
    return Runner(store=store, model=model or EchoModel(), clock=ManualClock().clock(), limits=limits)


@in_virtual_time
async def test_a_request_that_others_always_begin_and_lose_is_given_up_after_a_while(assign: Assign) -> None:
    store, model = ForeignStore(holder="gone"), EchoModel()
    runner = runner_on(store, model)
    with pytest.raises(OverloadedError, match="Too many callers make the same request"):
        await runner.start(assign(request_id="r1", digest="d"))
    assert store.created == [""] * 10
    assert model.calls == 0
    store.holder = ""
    for _ in range(3):
        await runner.start(assign())


@in_virtual_time
async def test_a_request_id_that_cannot_be_given_back_is_standing_for_the_failure(assign: Assign) -> None:
    store = ForeignStore(releases=False)
    runner = runner_on(store)
    first = await runner.start(assign(Script(words=(), error=ModelUnavailableError("gone")), request_id="r1"))
    run = runner.find_live(first.execution_id)
    assert run is not None
    await run.wait_for_end()
    again = await runner.start(assign(request_id="r1"))
    assert (again.execution_id, again.state) == (first.execution_id, ExecutionState.FAILED)


@in_virtual_time
async def test_nothing_is_standing_behind_an_id_that_nobody_used_or_that_was_deleted(assign: Assign) -> None:
    store = ForeignStore()
    runner = runner_on(store)
    assert await runner.request_ids.find_known("acme", "", "d") is None
    assert await runner.request_ids.find_known("acme", "r1", "d") is None
    execution = await runner.start(assign(request_id="r1", digest="d"))
    known = await runner.request_ids.find_known("acme", "r1", "d")
    assert is_standing(known)
    await store.delete("acme", execution.execution_id)
    assert (
        await runner.request_ids.find_holder(
            Claim(execution_id=execution.execution_id, digest="d"), "acme", request_id="r1", digest="d"
        )
        is None
    )
    assert await runner.request_ids.find_predecessor(None) is None
