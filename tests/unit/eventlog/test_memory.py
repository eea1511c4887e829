"""The bound of the memory store. stored/test_conformance.py tests the contract of all stores."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from reasond_server.errors.executions import CursorExpiredError, ExecutionNotFoundError
from reasond_server.errors.limits import StoreFullError
from reasond_server.eventlog.log import RunLog
from reasond_server.eventlog.memory import MemoryExecutionStore
from reasond_server.eventlog.quotas import TenantQuotaError, TenantShare
from reasond_server.eventlog.store import Creation, ExecutionFilter, Lease, Record
from reasond_server.eventlog.writer import LogWriter
from tests.stores.logs import KEPT_S, START, HandWrittenLog, first_event, step

EVERYTHING = ExecutionFilter()


class Time:
    """A clock that shows START until a test advances it."""

    def __init__(self) -> None:
        self.time: datetime = START

    def now(self) -> datetime:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Time:
    return Time()


def store_of(clock: Time, *, max_executions: int = 10, max_bytes: int = 10**6) -> MemoryExecutionStore:
    return MemoryExecutionStore(max_executions=max_executions, max_bytes=max_bytes, now=clock.now)


async def begin_log(store: MemoryExecutionStore, *, minute: int = 0, plan: str = "") -> HandWrittenLog:
    log = HandWrittenLog.new(store, tenant="acme", minute=minute)
    await log.create(plan=plan)
    assert await log.write(first_event()) is None
    return log


async def end_log(store: MemoryExecutionStore) -> HandWrittenLog:
    log = await begin_log(store)
    assert await log.write(log.result()) is None
    return log


async def names(store: MemoryExecutionStore) -> set[str]:
    return {one.execution_id for one in await store.page("acme", EVERYTHING, size=100, before=None)}


async def test_the_oldest_ended_execution_makes_room(clock: Time) -> None:
    store = store_of(clock, max_executions=2)
    running, old = await begin_log(store), await end_log(store)
    new = await begin_log(store)
    assert await names(store) == {running.name[1], new.name[1]}
    with pytest.raises(CursorExpiredError):
        await store.find(*old.name)
    with pytest.raises(StoreFullError, match="holds 2 running executions"):
        await begin_log(store)


async def test_what_ended_first_makes_room_first_whatever_began_before_it(clock: Time) -> None:
    store = store_of(clock, max_executions=4)
    late, running, early = await begin_log(store), await begin_log(store), await begin_log(store)
    for log in (early, late):
        assert await log.write(log.result()) is None
    deleted = await end_log(store)
    await store.delete(*deleted.name)
    newer = [await begin_log(store), await begin_log(store)]
    assert await names(store) == {late.name[1], running.name[1], *(log.name[1] for log in newer)}
    newest = await begin_log(store)
    assert await names(store) == {running.name[1], newest.name[1], *(log.name[1] for log in newer)}


async def test_bytes_are_bounded_but_a_running_log_is_never_cut(clock: Time) -> None:
    store = store_of(clock, max_bytes=6000)
    await end_log(store)
    running = await begin_log(store)
    assert await running.write(step("x" * 2000)) is None
    assert await names(store) == {running.name[1]}
    assert await running.write(running.result()) is None
    assert [event.sequence for event in await store.read(*running.name)] == [1, 2, 3]


async def test_plans_and_records_count_until_they_are_dropped(clock: Time) -> None:
    store = store_of(clock, max_bytes=20_000)
    old = await end_log(store)
    log = await begin_log(store, plan="x" * 3000)
    assert await log.write(Record(key="k", body="x" * 3000)) is None
    assert old.name[1] in await names(store)
    assert await log.write(Record(key="l", body="x" * 3000)) is None
    assert old.name[1] not in await names(store)
    assert await log.write(log.result()) is None
    for _ in range(5):
        await end_log(store)
    assert log.name[1] in await names(store)


async def test_a_plan_counts_against_what_the_store_holds(clock: Time) -> None:
    store = store_of(clock, max_bytes=6000)

    async def begin_with(plan: str) -> HandWrittenLog:
        log = HandWrittenLog.new(store, tenant="acme")
        creation = Creation(plan=plan, lease=Lease(owner="one", seconds=30.0))
        assert await store.append([replace(log.part(first_event()), creation=creation)]) == [None]
        return log

    small = await begin_with("the plan")
    assert (await store.read_checkpoint(*small.name)).plan == "the plan"
    ended = await end_log(store)
    await begin_with("x" * 5000)
    assert ended.name[1] not in await names(store)


async def test_only_the_last_forgotten_ids_are_remembered(clock: Time, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reasond_server.eventlog.memory_table._FORGOTTEN_KEPT", 1)
    store = store_of(clock, max_executions=1)
    first, second, _ = [await end_log(store) for _ in range(3)]
    with pytest.raises(ExecutionNotFoundError):
        await store.find(*first.name)
    with pytest.raises(CursorExpiredError):
        await store.find(*second.name)


async def test_what_is_past_its_time_is_forgotten_without_being_asked(clock: Time) -> None:
    store = store_of(clock)
    log = await end_log(store)
    clock.advance(KEPT_S)
    assert await names(store) == set()
    with pytest.raises(CursorExpiredError, match="is no longer kept"):
        await store.find(*log.name)


async def test_leases_are_measured_by_a_clock_that_never_jumps(clock: Time) -> None:
    seconds = [0.0]
    store = MemoryExecutionStore(max_executions=9, max_bytes=10**6, now=clock.now, monotonic=lambda: seconds[0])
    await begin_log(store)
    clock.advance(10**6)
    assert await store.recover(Lease(owner="two", seconds=15), limit=9) == []
    seconds[0] = 15
    assert len(await store.recover(Lease(owner="two", seconds=15), limit=9)) == 1
    await store.aclose()


async def begin_for(store: MemoryExecutionStore, tenant: str, *, kind: str = "reasoning") -> HandWrittenLog:
    log = HandWrittenLog.new(store, tenant=tenant, kind=kind)
    await log.create()
    assert await log.write(first_event()) is None
    return log


async def test_a_tenant_that_waits_for_its_clients_leaves_room_for_the_others_and_for_what_it_runs(clock: Time) -> None:
    quota = TenantShare(share=0.5, waiting=10_000).build_quota(max_executions=20, max_bytes=10**6)
    store = MemoryExecutionStore(max_executions=20, max_bytes=10**6, now=clock.now, quota=quota)
    for _ in range(8):
        log = await begin_for(store, "hostile", kind="turn")
        assert await log.suspend(step()) is None
    with pytest.raises(TenantQuotaError, match="has 8 suspended executions of the kind turn, and the store keeps 8"):
        await begin_for(store, "hostile", kind="turn")
    with pytest.raises(TenantQuotaError, match="has 8 suspended"):
        await store.room.require("hostile", "turn")
    running = [await begin_for(store, "hostile") for _ in range(2)]
    with pytest.raises(TenantQuotaError, match="has 10 open executions, and the store keeps 10 of one tenant"):
        await begin_for(store, "hostile")
    for _ in range(5):
        await begin_for(store, "acme", kind="turn")
    with pytest.raises(TenantQuotaError, match="has 5 open executions, and the store keeps 5 of one tenant"):
        await begin_for(store, "acme", kind="turn")
    assert await store.room.read_fill() == 15 / 20
    assert await running[0].write(running[0].result()) is None
    with pytest.raises(TenantQuotaError, match="has 9 open executions, and the store keeps 7 of one tenant"):
        await begin_for(store, "hostile")
    await store.delete(*log.name)
    await store.room.require("acme", "turn")


async def fill(store: MemoryExecutionStore, tenant: str, text: str, *, waits: bool) -> int:
    """Begin turns of the tenant with `text` until one is refused; return how many began."""
    for count in range(1000):
        log = HandWrittenLog.new(store, tenant=tenant, kind="turn")
        try:
            await log.create()
        except TenantQuotaError:
            return count
        refused = await (log.suspend(step(text)) if waits else log.write(step(text)))
        assert refused is None or isinstance(refused, TenantQuotaError)
    raise AssertionError


async def test_several_tenants_together_leave_room_for_the_next(clock: Time) -> None:
    quota = TenantShare(share=0.5).build_quota(max_executions=1000, max_bytes=10**9)
    store = MemoryExecutionStore(max_executions=1000, max_bytes=10**9, now=clock.now, quota=quota)
    taken = [await fill(store, tenant, "", waits=True) for tenant in "abcde"]
    assert taken == [400, 240, 144, 86, 52]
    await begin_for(store, "late")


async def test_the_bytes_of_several_tenants_leave_room_for_the_next(clock: Time) -> None:
    quota = TenantShare(share=0.5).build_quota(max_executions=1000, max_bytes=10**6)
    store = MemoryExecutionStore(max_executions=1000, max_bytes=10**6, now=clock.now, quota=quota)
    taken = [await fill(store, tenant, "x" * 3000, waits=False) for tenant in "abcd"]
    assert taken == sorted(taken, reverse=True)
    log = await begin_for(store, "late")
    assert await log.write(step("x" * 3000)) is None


async def test_who_has_more_than_its_share_loses_what_ended_before_the_others_do(clock: Time) -> None:
    quota = TenantShare(share=0.5).build_quota(max_executions=10, max_bytes=10**6)
    store = MemoryExecutionStore(max_executions=10, max_bytes=10**6, now=clock.now, quota=quota)
    kept = [await begin_for(store, "acme") for _ in range(3)]
    for log in kept:
        assert await log.write(log.result()) is None
    for _ in range(50):
        log = await begin_for(store, "hostile")
        assert await log.write(log.result()) is None
    assert len(await names(store)) == 3
    alone = MemoryExecutionStore(max_executions=10, max_bytes=10**6, now=clock.now, quota=quota)
    for _ in range(50):
        log = await begin_for(alone, "acme")
        assert await log.write(log.result()) is None
    assert len(await names(alone)) == 10, "whoever is alone has the whole store for what has ended"


async def test_the_bytes_of_what_a_tenant_has_open_are_bounded(clock: Time) -> None:
    quota = TenantShare(share=0.5).build_quota(max_executions=10, max_bytes=40_000)
    store = MemoryExecutionStore(max_executions=10, max_bytes=40_000, now=clock.now, quota=quota)
    log = await begin_for(store, "hostile")
    assert await log.write(step("x" * 6000)) is None
    with pytest.raises(TenantQuotaError, match="bytes in open executions, and the store keeps 20000"):
        await begin_for(store, "hostile")
    await begin_for(store, "acme")
    assert await log.write(log.result()) is None
    await begin_for(store, "hostile")


async def test_a_tenant_at_its_quota_keeps_nobody_else_from_beginning(clock: Time) -> None:
    quota = TenantShare(share=0.5).build_quota(max_executions=2, max_bytes=10**6)
    store = MemoryExecutionStore(max_executions=2, max_bytes=10**6, now=clock.now, quota=quota)
    await begin_for(store, "hostile")
    writer = LogWriter(store=store, random=lambda: 0.0)
    refused = RunLog(execution=HandWrittenLog.new(store, tenant="hostile").execution, submit=writer.submit)
    refused.creation = Creation(plan="", lease=Lease(owner="one", seconds=30.0))
    refused.append(first_event(), now=clock.now(), usage=refused.execution.usage)
    await refused.wait_for_commit()
    assert isinstance(refused.error, TenantQuotaError)
    writer.require_store()
    await writer.aclose(within_s=1)
