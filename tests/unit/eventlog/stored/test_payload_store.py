"""Payloads are written once, listed in order, and gone with their execution; the cluster gets their digests."""

from __future__ import annotations

from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.converter import ActivitySerializationContext, WorkflowSerializationContext

from reasond_server.assembly.core import make_system_clock
from reasond_server.assembly.stores import StoreOptions, open_stores
from reasond_server.engines.packing import BATCH, RECORD
from reasond_server.engines.temporal import ClaimCheckCodec, build_workflow_id
from reasond_server.errors.base import InternalError
from reasond_server.eventlog.store import Lease
from reasond_server.eventlog.stored.payload_store import PayloadStore
from reasond_server.types import Execution, ExecutionState, StrategySource

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from reasond_server.assembly.stores import Stores

TENANT = "a tenant/with a slash"


@asynccontextmanager
async def open_one(folder: Path) -> AsyncIterator[tuple[Stores, PayloadStore]]:
    """Yield stores with one execution, `one`."""
    clock = make_system_clock()
    stores = await open_stores(
        StoreOptions(
            url=f"sqlite:///{folder / 'reasond.db'}",
            data_dir="",
            now=clock.now,
            monotonic=clock.monotonic,
            max_bytes=1_000_000,
            max_agents=1,
        )
    )
    execution = Execution(
        execution_id="one",
        tenant=TENANT,
        state=ExecutionState.RUNNING,
        kind="repair",
        strategy="repair",
        strategy_source=StrategySource.REQUEST,
        model="m",
        create_time=datetime.now(UTC),
    )
    await stores.executions.create(execution, digest="", plan="{}", lease=Lease(owner="test", seconds=60))
    assert stores.transactions is not None
    try:
        yield stores, PayloadStore(stores.transactions)
    finally:
        await stores.aclose()


async def test_a_name_keeps_its_first_body(tmp_path: Path) -> None:
    async with open_one(tmp_path) as (_, payloads):
        await payloads.put(TENANT, "one", {"record/a": b"first"})
        await payloads.put(TENANT, "one", {"record/a": b"second", "record/b": b""})
        assert await payloads.read(TENANT, "one", ["record/a", "record/b", "record/c"]) == {
            "record/a": b"first",
            "record/b": b"",
        }


async def test_a_body_is_replaced_or_removed_where_that_is_asked(tmp_path: Path) -> None:
    async with open_one(tmp_path) as (_, payloads):
        for body in (b"first", b"second"):
            await payloads.put(TENANT, "one", {"record/a": body, "record/b": body}, replaces=True)
        await payloads.remove(TENANT, "one", "record/b")
        await payloads.remove(TENANT, "one", "record/c")
        assert await payloads.list(TENANT, "one", RECORD) == {"record/a": b"second"}


async def test_names_are_listed_by_prefix_and_in_order(tmp_path: Path) -> None:
    async with open_one(tmp_path) as (_, payloads):
        bodies = {f"{BATCH}{number:08}": b"%d" % number for number in (3, 1, 2, 10)}
        await payloads.put(TENANT, "one", bodies | {f"{RECORD}x": b"x"})
        assert [*(await payloads.list(TENANT, "one", BATCH)).values()] == [b"1", b"2", b"3", b"10"]
        after = await payloads.list(TENANT, "one", BATCH, after=f"{BATCH}00000002")
        assert [*after.values()] == [b"3", b"10"]


async def test_nothing_is_kept_of_an_execution_that_is_not_there(tmp_path: Path) -> None:
    async with open_one(tmp_path) as (stores, payloads):
        await payloads.put(TENANT, "another", {"record/a": b"1"})
        await payloads.put("another", "one", {"record/a": b"1"})
        assert not await payloads.list(TENANT, "another", RECORD)
        assert not await payloads.list("another", "one", RECORD)
        await payloads.put(TENANT, "one", {"record/a": b"1"})
        await stores.executions.delete(TENANT, "one")
        assert not await payloads.list(TENANT, "one", RECORD)


async def test_the_cluster_gets_digests_and_sizes_alone(tmp_path: Path) -> None:
    async with open_one(tmp_path) as (_, payloads):
        workflow_id = build_workflow_id(TENANT, "one")
        codec = ClaimCheckCodec(payloads).with_context(WorkflowSerializationContext("default", workflow_id))
        secret = Payload(metadata={"encoding": b"binary/plain"}, data=b"a secret")
        (claim,) = await codec.encode([secret])
        assert b"secret" not in claim.SerializeToString()
        activity = ActivitySerializationContext("default", "a", "b", "c", workflow_id, "d", is_local=False)
        assert await ClaimCheckCodec(payloads).with_context(activity).decode([claim]) == [secret]
        await payloads.clear(TENANT, "one")
        with pytest.raises(InternalError, match="the payloads of an execution are gone"):
            await codec.decode([claim])
