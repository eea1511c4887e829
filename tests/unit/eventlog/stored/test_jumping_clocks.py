"""A clock that is wrong deletes nothing before its time, in any store."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from reasond_server.assembly.stores import MEMORY_URL, StoreOptions, Stores, open_stores
from reasond_server.errors.executions import CursorExpiredError
from reasond_server.storage.store_clock import Steadiness
from tests.stores.logs import HandWrittenLog, step

HOLD_S = 3600.0
KEPT = timedelta(hours=1)


class Machine:
    """A clock that a test sets, and seconds that pass evenly."""

    def __init__(self) -> None:
        self.time = datetime.now(tz=UTC)
        self.seconds = 0.0

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.seconds

    def wait(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)
        self.seconds += seconds


@asynccontextmanager
async def open_on(machine: Machine, url: str, folder: Path) -> AsyncGenerator[Stores, None]:
    stores = await open_stores(
        StoreOptions(
            url=url,
            data_dir=str(folder),
            now=machine.now,
            monotonic=machine.monotonic,
            asks_database_time=True,
            steadiness=Steadiness(hold_s=HOLD_S),
            max_bytes=10**6,
            max_agents=9,
        )
    )
    try:
        yield stores
    finally:
        await stores.aclose()


async def end_log(stores: Stores, request_id: str) -> HandWrittenLog:
    """Return a log that has ended now and is kept for an hour from then on."""
    log = HandWrittenLog.new(stores.executions, tenant="acme", request_id=request_id)
    await log.create()
    assert await log.write(step()) is None
    part = log.part(log.result())
    kept = replace(part.execution, expire_time=stores.clock.now() + KEPT)
    assert await stores.executions.append([replace(part, execution=kept)]) == [None]
    return log


async def test_a_second_server_whose_clock_is_ahead_takes_nothing_from_the_first(
    postgres_url: str, tmp_path: Path
) -> None:
    right, ahead = Machine(), Machine()
    ahead.wait(7200)
    async with open_on(right, postgres_url, tmp_path) as first:
        logs = [await end_log(first, f"r{number}") for number in range(10)]
        async with open_on(ahead, postgres_url, tmp_path) as second:
            assert await second.executions.forget(limit=100) == 0
            for log in logs:
                assert (await second.executions.find(*log.name)).state.has_ended
            claim = await second.executions.find_claim("acme", "r0")
            assert claim is not None
            assert claim.execution_id == logs[0].execution.execution_id


async def test_what_a_server_whose_clock_is_behind_has_ended_is_kept_as_long(postgres_url: str, tmp_path: Path) -> None:
    right, behind = Machine(), Machine()
    behind.wait(-7200)
    async with open_on(behind, postgres_url, tmp_path) as second, open_on(right, postgres_url, tmp_path) as first:
        log = await end_log(second, "r")
        assert await first.executions.forget(limit=100) == 0
        assert (await first.executions.find(*log.name)).state.has_ended


@pytest.mark.parametrize("url", [MEMORY_URL, ""])
async def test_a_jump_of_the_clock_ends_nothing_until_it_has_lasted(tmp_path: Path, url: str) -> None:
    machine = Machine()
    async with open_on(machine, url, tmp_path) as stores:
        log = await end_log(stores, "r")
        machine.time += timedelta(hours=2)
        machine.wait(60)
        assert await stores.executions.forget(limit=100) == 0
        assert (await stores.executions.find(*log.name)).state.has_ended
        assert await stores.executions.find_claim("acme", "r") is not None
        assert stores.clock.jump_s == 7200
        machine.wait(HOLD_S)
        with pytest.raises(CursorExpiredError):
            await stores.executions.find(*log.name)
        assert stores.clock.jump_s == 0


async def test_a_server_that_starts_with_a_clock_that_is_ahead_deletes_nothing_before_that_has_lasted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine()
    async with open_on(machine, "", tmp_path) as stores:
        log = await end_log(stores, "r")
        await stores.clock.keep()
    machine.time += timedelta(hours=2)
    async with open_on(machine, "", tmp_path) as stores:
        assert await stores.executions.forget(limit=100) == 0
        assert (await stores.executions.find(*log.name)).state.has_ended
        await stores.clock.keep()
        assert "the clock jumped" in caplog.text
        machine.time -= timedelta(hours=2)
        assert (await stores.executions.find(*log.name)).state.has_ended
        assert stores.clock.jump_s == 0
        machine.wait(KEPT.total_seconds() + 1)
        assert await stores.executions.forget(limit=100) == 1
