"""The bound of the memory store over all tenants; test_snapshot_store.py tests the contract of all stores."""

from datetime import timedelta

import pytest

from reasond_server.errors.limits import StoreFullError
from reasond_server.snapshots.snapshot_store import SnapshotQuota, SnapshotStore
from reasond_server.storage.sqlite_file import open_memory
from reasond_server.storage.transactions import MemoryTransactions
from tests.unit.eventlog.stored.conftest import Time
from tests.unit.snapshots.conftest import Uploader


async def test_all_tenants_together_have_four_quotas(time: Time) -> None:
    store = SnapshotStore(
        rows=MemoryTransactions(open_memory()), quota=SnapshotQuota(max_bytes=10_000, max_bytes_of_all=40_000)
    )
    for index in range(4):
        await Uploader(store, time, f"tenant {index}").upload({"a": bytes(9000)}, kept_s=index + 1)
    with pytest.raises(StoreFullError, match="all callers") as caught:
        await Uploader(store, time, "fifth").upload({"a": bytes(9000)})
    assert "database" in caught.value.remedy
    await time.advance(1)
    assert await store.sweep(now=time.now(), limit=10) == 1
    await Uploader(store, time, "fifth").upload({"a": bytes(9000)})


async def test_a_tenant_that_has_nothing_left_leaves_nothing_behind(time: Time) -> None:
    store = SnapshotStore(rows=MemoryTransactions(open_memory()), quota=SnapshotQuota())
    await Uploader(store, time).upload({"a": b"a"}, kept_s=1)
    assert await store.sweep(now=time.now() + timedelta(seconds=1), limit=10) == 1
    assert await Uploader(store, time).read(b"a") == []
