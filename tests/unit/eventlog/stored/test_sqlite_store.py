"""The properties of a file: it survives, has one owner, can be full or damaged, and keeps no deleted content."""

import asyncio
import os
import re
import sqlite3
import stat
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from reasond_server.assembly.stores import StoreOptions, open_stores
from reasond_server.errors.base import SettingsError
from reasond_server.errors.executions import CursorExpiredError
from reasond_server.errors.limits import StoreFullError
from reasond_server.eventlog.store import Lease
from reasond_server.eventlog.stored.sql_store import _COUNT, _COUNT_OTHERS, _PAGES
from reasond_server.eventlog.stored.sqlite_store import SqliteExecutionStore
from reasond_server.storage.revisions import build_sqlite_statements
from reasond_server.storage.sqlite_file import SqliteFile
from reasond_server.storage.sqlite_memory import SqliteMemory
from reasond_server.storage.transactions import SqliteDatabase
from tests.stores.conformance import ExecutionStoreConformance
from tests.stores.logs import HandWrittenLog, first_event, step
from tests.unit.eventlog.stored.conftest import Time, open_one

SECRET = "the secret that must not stay behind"


@pytest.mark.slow
async def test_two_writers_never_both_win_in_a_thousand_races(tmp_path: Path, time: Time) -> None:
    async with open_one("", tmp_path, time) as one:
        conformance = ExecutionStoreConformance(one.store, pass_time=one.pass_time, races=1000)
        await conformance.check("lets_one_of_two_writers_win")


async def test_a_restarted_server_finds_what_was_written_and_takes_it_over_at_once(tmp_path: Path, time: Time) -> None:
    async with open_one("", tmp_path, time) as one:
        log = HandWrittenLog.new(one.store, tenant="acme", request_id="r")
        await log.create(plan='{"p":1}')
        assert await log.write(first_event(), step("kept")) is None
    time.time = time.time.replace(year=2020)
    async with open_one("", tmp_path, time) as one:
        assert [event.event for event in await one.store.read(*log.name)] == [first_event(), step("kept")]
        (recovery,) = await one.store.recover(Lease(owner="two", seconds=15), limit=9)
        assert (recovery.plan, recovery.fence, recovery.execution) == ('{"p":1}', 2, log.execution)


async def test_a_second_server_on_the_same_file_is_refused(tmp_path: Path, time: Time) -> None:
    async with open_one("", tmp_path, time):
        with pytest.raises(SettingsError, match=r"reasond\.db' is in use by another process"):
            async with open_one("", tmp_path, time):
                pass
    async with open_one("", tmp_path, time):
        pass


async def test_only_the_owner_can_read_the_files(tmp_path: Path, time: Time) -> None:
    folder = tmp_path / "new" / "data"
    old = os.umask(0)
    try:
        async with open_one("", folder, time) as one:
            log = HandWrittenLog.new(one.store, tenant="acme")
            await log.create()
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    finally:
        os.umask(old)
    assert set(modes.values()) == {0o600}
    assert {"reasond.db", "reasond.db-wal"} <= set(modes)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


async def test_an_event_of_a_running_log_costs_two_statements_and_three_pages(tmp_path: Path, time: Time) -> None:
    """The log is not read before, and of its row no index changes; the pages are those of the row and of the entry."""
    file = await SqliteFile.open(tmp_path / "reasond.db")
    store = SqliteExecutionStore(file=file, now=lambda: time.time, monotonic=lambda: 0.0)
    try:
        log = HandWrittenLog.new(store, tenant="acme")
        await log.create()
        assert await log.write(first_event()) is None
        statements: list[str] = []
        await file.write(lambda connection: connection.set_trace_callback(statements.append), then=lambda _: None)
        statements.clear()
        before = (tmp_path / "reasond.db-wal").stat().st_size
        assert await log.write(step("grown")) is None
        after = (tmp_path / "reasond.db-wal").stat().st_size
    finally:
        await store.aclose()
    assert [each.split()[0] for each in statements] == ["BEGIN", "UPDATE", "INSERT", "COMMIT"]
    assert (after - before) // 4096 == 3


async def test_deleted_content_is_in_no_file_any_more(tmp_path: Path, time: Time) -> None:
    async with open_one("", tmp_path, time) as one:
        other = HandWrittenLog.new(one.store, tenant="acme")
        await other.create()
        log = HandWrittenLog.new(one.store, tenant="acme", request_id="r")
        await log.create(plan=f'{{"q":"{SECRET}"}}')
        for index in range(50):
            assert await log.write(step(f"{SECRET} {index} " * 20, index=index)) is None
        assert SECRET in _bytes_of(tmp_path)
        await one.store.delete(*log.name)
        assert SECRET not in _bytes_of(tmp_path)
        assert await one.store.find(*other.name) == other.execution


async def test_forgotten_content_is_in_no_file_any_more(tmp_path: Path, time: Time) -> None:
    async with open_one("", tmp_path, time) as one:
        log = HandWrittenLog.new(one.store, tenant="acme")
        await log.create(plan=f'{{"q":"{SECRET}"}}')
        assert await log.write(step(SECRET)) is None
        assert await log.write(log.result(answer=SECRET)) is None
        await time.advance(61)
        assert await one.store.forget(limit=10) == 1
        assert SECRET not in _bytes_of(tmp_path)


async def open_bounded(place: str, folder: Path, kibibytes: int) -> SqliteDatabase:
    """Open a database with room for about so much; the bound of a file includes its empty tables."""
    if place == "memory":
        return SqliteMemory(kibibytes * 1024)
    return await SqliteFile.open(folder / "a.db", max_file_bytes=(kibibytes + 160) * 1024)


@pytest.mark.parametrize("place", ["file", "memory"])
async def test_a_full_store_refuses_writers_and_serves_readers(tmp_path: Path, time: Time, place: str) -> None:
    file = await open_bounded(place, tmp_path, 40)
    store = SqliteExecutionStore(file=file, now=time.now, monotonic=time.monotonic)
    log = HandWrittenLog.new(store, tenant="acme")
    await log.create()
    assert await log.write(first_event()) is None
    while (refused := await log.write(step("x" * 10_000))) is None:
        pass
    assert isinstance(refused, StoreFullError)
    large = HandWrittenLog.new(store, tenant="acme")
    with pytest.raises(StoreFullError, match="is full"):
        await large.create(plan="x" * 100_000)
    events = await store.read(*log.name)
    assert len(events) == log.execution.last_sequence > 1
    await store.delete(*log.name)
    await large.create(plan="x" * 10_000)
    await store.aclose()


@pytest.mark.parametrize("place", ["file", "memory"])
async def test_what_is_past_its_time_makes_room(tmp_path: Path, time: Time, place: str) -> None:
    file = await open_bounded(place, tmp_path, 192)
    store = SqliteExecutionStore(file=file, now=time.now, monotonic=time.monotonic)
    log = HandWrittenLog.new(store, tenant="acme")
    await log.create()
    assert await log.write(step("x" * 100_000)) is None
    assert await log.write(log.result()) is None
    first = HandWrittenLog.new(store, tenant="acme")
    await first.create(plan="x" * 50_000)
    await time.advance(61)
    second = HandWrittenLog.new(store, tenant="acme")
    with pytest.raises(StoreFullError):
        await second.create(plan="x" * 190_000)
    await second.create(plan="x" * 90_000)
    with pytest.raises(CursorExpiredError):
        await store.find(*log.name)
    await store.aclose()


@pytest.mark.parametrize("place", ["file", "memory"])
async def test_in_a_full_store_the_oldest_of_the_tenant_that_has_most_goes_first_and_others_lose_nothing(
    tmp_path: Path, time: Time, place: str
) -> None:
    file = await open_bounded(place, tmp_path, 864)
    store = SqliteExecutionStore(file=file, now=time.now, monotonic=time.monotonic)
    small = await _end_log(store, "small", 20_000, time.now())
    logs = [await _end_log(store, "large", 30_000, time.now() + timedelta(seconds=second)) for second in range(60)]
    assert (await store.find(*small.name)).state.has_ended
    assert (await store.find(*logs[-1].name)).state.has_ended
    with pytest.raises(CursorExpiredError):
        await store.find(*logs[0].name)
    while await file.read_share() > 0.85:
        await store.forget(limit=10)
    assert (await store.find(*logs[-1].name)).state.has_ended
    assert await store.room.read_fill() < 0.9
    await store.aclose()


@pytest.mark.parametrize("place", ["file", "memory"])
async def test_a_full_store_takes_executions_for_good_because_the_ids_of_those_that_went_go_too(
    tmp_path: Path, time: Time, place: str
) -> None:
    file = await open_bounded(place, tmp_path, 64)
    store = SqliteExecutionStore(file=file, now=time.now, monotonic=time.monotonic)
    for number in range(500):
        latest = await _end_log(store, "acme", 5_000, time.now() + timedelta(seconds=number))
    assert (await store.find(*latest.name)).state.has_ended
    noted = await file.read(lambda connection: connection.execute("SELECT count(*) FROM forgotten").fetchone()[0])
    assert 10 < noted < 100
    await store.aclose()


async def _end_log(store: SqliteExecutionStore, tenant: str, size: int, end_time: datetime) -> HandWrittenLog:
    log = HandWrittenLog.new(store, tenant=tenant)
    await log.create()
    assert await log.write(step("x" * size)) is None
    part = log.part(log.result())
    kept = replace(part.execution, expire_time=end_time + timedelta(hours=1))
    assert await store.append([replace(part, execution=kept)]) == [None]
    return log


@pytest.mark.parametrize("damage", ["no database", "damaged"])
async def test_an_unusable_file_is_refused_by_name_with_the_remedy(tmp_path: Path, time: Time, damage: str) -> None:
    path = tmp_path / "reasond.db"
    if damage == "no database":
        path.write_bytes(b"a letter to my aunt " * 500)
    else:
        async with open_one("", tmp_path, time) as one:
            for _ in range(30):
                log = HandWrittenLog.new(one.store, tenant="acme")
                await log.create(plan="x" * 3000)
        content = bytearray(path.read_bytes())
        content[4096 * 3 : 4096 * 12] = b"\xff" * (4096 * 9)
        path.write_bytes(content)
    with pytest.raises(SettingsError, match=r"reasond\.db' is (no SQLite|damaged)") as caught:
        async with open_one("", tmp_path, time):
            pass
    assert "Restore it from a backup" in caught.value.remedy


async def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, time: Time) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("in the way")
    with pytest.raises(SettingsError, match="cannot be opened for writing"):
        async with open_one("", blocker / "below", time):
            pass


async def test_what_a_cancelled_caller_wrote_is_told_to_watchers(tmp_path: Path, time: Time) -> None:
    async with open_one("", tmp_path, time) as one:
        log = HandWrittenLog.new(one.store, tenant="acme")
        await log.create()
        told = asyncio.Event()
        with one.store.watch(log.execution.execution_id, lambda _change: told.set()):
            writing = asyncio.create_task(log.write(first_event()))
            await asyncio.sleep(0)
            writing.cancel()
            await told.wait()
        assert [event.sequence for event in await one.store.read(*log.name)] == [1]


async def test_the_log_is_write_ahead_and_synchronous_as_configured(tmp_path: Path) -> None:
    for synchronous, number in (("NORMAL", 1), ("FULL", 2)):
        file = await SqliteFile.open(tmp_path / "a.db", synchronous=synchronous)
        found = await file.write(
            lambda connection: [
                connection.execute(f"PRAGMA {name}").fetchone()[0]
                for name in ("journal_mode", "synchronous", "foreign_keys", "busy_timeout", "secure_delete")
            ],
            then=lambda _found: None,
        )
        assert found == ["wal", number, 1, 5000, 1]
        await file.aclose()


async def test_another_program_can_read_while_we_write(tmp_path: Path, time: Time) -> None:
    async with open_one("", tmp_path, time) as one:
        await HandWrittenLog.new(one.store, tenant="acme").create()
        with sqlite3.connect(tmp_path / "reasond.db") as reader:
            assert reader.execute("SELECT count(*) FROM executions").fetchone() == (1,)
            await HandWrittenLog.new(one.store, tenant="acme").create()
        reader.close()


async def test_an_address_of_no_known_form_is_refused(tmp_path: Path, time: Time) -> None:
    for url in ("mysql://localhost", "sqlite:", "sqlite:///", "reasond.db"):
        with pytest.raises(SettingsError, match="is of no known form"):
            await open_stores(
                StoreOptions(
                    url=url,
                    data_dir=str(tmp_path),
                    now=time.now,
                    monotonic=time.monotonic,
                    max_bytes=1,
                    max_agents=1,
                )
            )


def _bytes_of(folder: Path) -> str:
    return "".join(path.read_bytes().decode("latin-1") for path in folder.iterdir())


def explain(statement: str) -> list[tuple[Any, ...]]:
    """Return how SQLite would read a statement in a database with the tables of this release."""
    names = dict.fromkeys(re.findall(r":(\w+)", statement), 0)
    with sqlite3.connect(":memory:") as connection:
        for each in build_sqlite_statements():
            connection.execute(each)
        return connection.execute(f"EXPLAIN QUERY PLAN {statement}", names).fetchall()


@pytest.mark.parametrize("statement", [_COUNT, _COUNT_OTHERS], ids=["tenant", "others"])
def test_what_is_open_is_counted_without_reading_what_has_ended(statement: str) -> None:
    read = [line[-1] for line in explain(statement) if " executions" in line[-1]]
    assert read
    assert all("INDEX" in each for each in read)


@pytest.mark.parametrize(
    ("narrowed", "index"), [((False, False), "executions_by_time"), ((False, True), "executions_by_state")]
)
def test_a_list_is_read_from_the_index_of_its_filter(narrowed: tuple[bool, bool], index: str) -> None:
    statement = _PAGES[narrowed]
    plan = explain(statement)
    assert [line[-1].split("(")[0].split(" INDEX ")[-1].strip() for line in plan] == [index]
    assert "create_time" in plan[0][-1], "a range of times is read from the index too"
