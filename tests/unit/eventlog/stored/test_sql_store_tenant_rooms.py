"""What one tenant may have in a database."""

from contextlib import suppress
from pathlib import Path

import pytest

from reasond_server.assembly.stores import StoreOptions, Stores, open_stores
from reasond_server.errors.executions import CursorExpiredError
from reasond_server.eventlog.contract import TenantQuotaError, TenantShare
from tests.stores.logs import HandWrittenLog, step
from tests.unit.eventlog.stored.conftest import Time


async def open_with(share: TenantShare, url: str, folder: Path, time: Time, *, max_bytes: int = 0) -> Stores:
    return await open_stores(
        StoreOptions(
            url=url,
            data_dir=str(folder),
            now=time.now,
            monotonic=time.monotonic,
            tenant_share=share,
            max_file_bytes=max_bytes,
            max_bytes=max_bytes,
            max_agents=9,
        )
    )


@pytest.fixture(params=["", "memory:", "postgres"], ids=["sqlite", "memory", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("postgres_url")) if request.param == "postgres" else str(request.param)


async def begin(stores: Stores, tenant: str, *, kind: str = "turn", plan: str = "{}") -> HandWrittenLog:
    await stores.executions.room.require(tenant, kind)
    log = HandWrittenLog.new(stores.executions, tenant=tenant, kind=kind)
    await log.create(plan=plan)
    return log


async def test_turns_that_wait_are_bounded_by_tenant_and_count_again_once_they_end(
    url: str, tmp_path: Path, time: Time
) -> None:
    stores = await open_with(TenantShare(waiting=3), url, tmp_path, time)
    for _ in range(3):
        log = await begin(stores, "hostile")
        assert await log.suspend(step()) is None
    with pytest.raises(TenantQuotaError, match="has 3 suspended executions of the kind turn, and the store keeps 3"):
        await begin(stores, "hostile")
    await begin(stores, "hostile", kind="reasoning")
    await begin(stores, "acme")
    await stores.executions.delete(*log.name)
    await begin(stores, "hostile")
    await stores.aclose()


async def test_the_bytes_that_a_tenant_has_open_are_bounded_with_their_plans(
    url: str, tmp_path: Path, time: Time
) -> None:
    stores = await open_with(TenantShare(max_bytes=50_000), url, tmp_path, time)
    log = await begin(stores, "hostile", plan="x" * 30_000)
    assert await log.write(step("x" * 20_000)) is None
    await time.advance(5)
    with pytest.raises(TenantQuotaError, match="bytes in open executions, and the store keeps 50000"):
        await begin(stores, "hostile")
    await begin(stores, "acme")
    assert await log.write(log.result()) is None
    await begin(stores, "hostile")
    await stores.aclose()


@pytest.mark.parametrize("place", ["", "memory:"])
async def test_a_file_with_a_bound_keeps_a_share_of_it_for_each_tenant(tmp_path: Path, time: Time, place: str) -> None:
    stores = await open_with(TenantShare(share=0.5), place, tmp_path, time, max_bytes=2 * 1024 * 1024)
    for _ in range(20):
        await _wait_for_client(stores, time)
    with pytest.raises(TenantQuotaError, match=r"keeps 1048576 of one tenant"):
        await _wait_for_client(stores, time)
    others = [await begin(stores, "acme", plan="x" * 10_000) for _ in range(20)]
    assert len(others) == 20
    await stores.aclose()


async def test_what_one_tenant_has_ended_makes_room_and_others_lose_nothing(
    postgres_url: str, tmp_path: Path, time: Time
) -> None:
    stores = await open_with(TenantShare(share=0.5), postgres_url, tmp_path, time, max_bytes=2_000_000)
    store = stores.executions
    other = await begin(stores, "acme")
    assert await other.write(step("x" * 10_000), other.result()) is None
    ended = []
    for minute in range(24):
        log = HandWrittenLog.new(store, tenant="hostile", minute=minute)
        await log.create()
        assert await log.write(step("x" * 100_000), log.result()) is None
        ended.append(log)
    fill = await store.room.read_fill()
    assert fill > 0.98
    assert await store.forget(limit=100) == 0
    assert await store.room.read_fill() <= 0.95
    kept = 0
    for log in ended:
        with suppress(CursorExpiredError):
            kept += await store.find(*log.name) is not None
    assert 10 < kept < 24
    assert await store.find(*other.name) is not None
    await stores.aclose()


async def test_a_database_without_a_bound_is_not_measured(postgres_url: str, tmp_path: Path, time: Time) -> None:
    stores = await open_with(TenantShare(), postgres_url, tmp_path, time)
    log = await begin(stores, "acme", plan="x" * 10_000)
    assert await log.write(log.result()) is None
    assert await stores.executions.room.read_fill() == 0.0
    await stores.executions.forget(limit=100)
    assert await stores.executions.find(*log.name) is not None
    await stores.aclose()


async def test_the_bytes_of_a_tenant_in_a_database_are_a_share_of_its_bound(
    postgres_url: str, tmp_path: Path, time: Time
) -> None:
    stores = await open_with(TenantShare(share=0.5), postgres_url, tmp_path, time, max_bytes=2 * 1024 * 1024)
    for _ in range(20):
        await _wait_for_client(stores, time)
    with pytest.raises(TenantQuotaError, match=r"keeps 1048576 of one tenant"):
        await _wait_for_client(stores, time)
    await begin(stores, "acme", plan="x" * 10_000)
    await stores.aclose()


async def _wait_for_client(stores: Stores, time: Time) -> None:
    log = await begin(stores, "hostile", plan="x" * 52_429)
    assert await log.suspend(step()) is None
    await time.advance(5)


@pytest.mark.parametrize("place", ["", "memory:"])
async def test_several_tenants_together_leave_room_for_the_next(tmp_path: Path, time: Time, place: str) -> None:
    stores = await open_with(TenantShare(share=0.5), place, tmp_path, time, max_bytes=8_000_000)
    begun = dict.fromkeys("abc", 0)
    for tenant in begun:
        with suppress(TenantQuotaError):
            for _ in range(40):
                await begin(stores, tenant, plan="x" * 200_000)
                begun[tenant] += 1
                await time.advance(5)
    assert begun["a"] > begun["b"] > begun["c"] > 0
    await begin(stores, "late", plan="x" * 200_000)
    await stores.aclose()


async def test_a_tenant_at_its_quota_keeps_nobody_else_from_beginning(url: str, tmp_path: Path, time: Time) -> None:
    stores = await open_with(TenantShare(waiting=1), url, tmp_path, time)
    log = await begin(stores, "hostile")
    assert await log.suspend(step()) is None
    with pytest.raises(TenantQuotaError):
        await begin(stores, "hostile")
    await begin(stores, "acme")
    await stores.aclose()
