"""The properties that only a server has: several processes share it, and it can go away and return."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from reasond_server.assembly.stores import examine_stores, migrate_stores
from reasond_server.errors.base import InternalError, SettingsError
from reasond_server.errors.limits import StoreFullError, StoreUnavailableError
from reasond_server.errors.turns import TurnLeasedError
from reasond_server.eventlog.store import Change, Lease, SessionClaim
from reasond_server.storage.postgres_pool import PostgresPool
from reasond_server.types import ExecutionState, LoggedEvent
from tests.engines.postgres import PostgresServer, running_postgres
from tests.stores.conformance import ExecutionStoreConformance
from tests.stores.logs import HandWrittenLog, first_event, step
from tests.unit.eventlog.stored.conftest import Time, open_one

SECRET = "the secret that must not be logged"


@asynccontextmanager
async def refusing(
    connection: psycopg.AsyncConnection[tuple[object, ...]], *, table: str, code: str
) -> AsyncGenerator[None, None]:
    """Let the server refuse every insertion into `table` with the given error code."""
    body = f"BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END"
    await connection.execute(f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ {body} $$".encode())
    trigger = f"CREATE TRIGGER refuse BEFORE INSERT ON {table} EXECUTE FUNCTION refuse()"
    await connection.execute(trigger.encode())
    try:
        yield
    finally:
        await connection.execute(b"DROP FUNCTION refuse CASCADE")


@pytest.mark.slow
@pytest.mark.usefixtures("patient_pool")
async def test_two_writers_never_both_win_in_a_thousand_races(postgres_url: str, tmp_path: Path, time: Time) -> None:
    async with open_one(postgres_url, tmp_path, time) as one:
        conformance = ExecutionStoreConformance(one.store, pass_time=one.pass_time, races=1000, timeout_s=250)
        await conformance.check("lets_one_of_two_writers_win")


async def test_another_process_hears_of_what_one_writes(postgres_url: str, tmp_path: Path, time: Time) -> None:
    async with open_one(postgres_url, tmp_path, time) as one, open_one(postgres_url, tmp_path, time) as other:
        log = HandWrittenLog.new(one.store, tenant="acme")
        await log.create()
        heard: asyncio.Queue[Change] = asyncio.Queue()
        with other.store.watch(log.execution.execution_id, heard.put_nowait):
            assert await log.write(first_event()) is None
            assert await heard.get() is Change.GREW
            assert [event.sequence for event in await other.store.read(*log.name)] == [1]
            await one.store.request_cancel(*log.name)
            assert await heard.get() is Change.CANCEL_REQUESTED
        assert one.store.is_durable


@pytest.mark.usefixtures("patient_pool")
async def test_two_processes_that_wake_at_once_never_both_win(postgres_url: str, tmp_path: Path, time: Time) -> None:
    async with open_one(postgres_url, tmp_path, time) as one, open_one(postgres_url, tmp_path, time) as other:
        logs = [HandWrittenLog.new(one.store, tenant="acme") for _ in range(50)]
        for log in logs:
            await log.create()
            assert await log.suspend(first_event(), wake_time=time.now()) is None
        lease = Lease(owner="two", seconds=15)
        calls = [each.store.wake(lease, *log.name) for log in logs for each in (one, other)]
        looks = [each.store.recover(lease, limit=10) for each in (one, other)]
        woken, found = await asyncio.gather(asyncio.gather(*calls), asyncio.gather(*looks))
        taken = [recovery.execution.execution_id for recovery in woken if recovery is not None]
        taken += [recovery.execution.execution_id for recoveries in found for recovery in recoveries]
        assert sorted(taken) == sorted(log.name[1] for log in logs)
        assert {(await one.store.find(*log.name)).state for log in logs} == {ExecutionState.RUNNING}


@pytest.mark.usefixtures("patient_pool")
async def test_two_processes_let_one_start_and_one_event_win(postgres_url: str, tmp_path: Path, time: Time) -> None:
    async with open_one(postgres_url, tmp_path, time) as one, open_one(postgres_url, tmp_path, time) as other:
        lease = Lease(owner="two", seconds=15)
        claim = SessionClaim(session_id="s", expire_time=time.now() + timedelta(seconds=1000))
        for round_number in range(10):
            logs = [HandWrittenLog.new(each.store, tenant="acme") for each in (one, other) for _ in range(8)]
            for log in logs:
                log.execution = replace(log.execution, session_id="s")
            starts = [log.store.create(log.execution, digest="d", plan="", lease=lease, session=claim) for log in logs]
            outcomes = await asyncio.gather(*starts, return_exceptions=True)
            (log,) = [log for log, how in zip(logs, outcomes, strict=True) if not isinstance(how, TurnLeasedError)]
            assert (await one.store.sessions.find("acme", "s")).revision == 2 * round_number + 1
            assert await log.suspend(first_event()) is None
            events = [LoggedEvent(sequence=2, create_time=time.now(), event=step(str(number))) for number in range(8)]
            wakes = [each.store.wake(lease, *log.name, event=event) for each in (one, other) for event in events]
            (found,) = [recovery for recovery in await asyncio.gather(*wakes) if recovery is not None]
            assert list(await other.store.read(*log.name)) == list(found.events)
            log.go_on(found)
            assert await log.write(log.result()) is None
        assert (await other.store.sessions.find("acme", "s")).execution_count == 10


async def test_a_whole_batch_is_told_whatever_its_size(postgres_url: str, tmp_path: Path, time: Time) -> None:
    async with open_one(postgres_url, tmp_path, time) as one:
        logs = [HandWrittenLog.new(one.store, tenant="acme") for _ in range(200)]
        for log in logs:
            await log.create()
        last = asyncio.Event()
        with one.store.watch(logs[-1].execution.execution_id, lambda _change: last.set()):
            assert set(await one.store.append([log.part(first_event()) for log in logs])) == {None}
            await last.wait()


async def test_a_part_that_cannot_be_stored_keeps_no_other_from_being_taken(
    postgres_url: str, tmp_path: Path, time: Time
) -> None:
    async with open_one(postgres_url, tmp_path, time) as one:
        bad, good = (HandWrittenLog.new(one.store, tenant="acme") for _ in range(2))
        for log in (bad, good):
            await log.create()
        refused, taken = await one.store.append([bad.part(step("\ud800")), good.part(step("fine"))])
        assert isinstance(refused, InternalError)
        assert taken is None


async def test_a_crash_of_the_server_heals_and_watchers_look_again(tmp_path: Path, time: Time) -> None:
    with running_postgres() as server:
        url = server.new_database()
        migrate_stores(url=url, data_dir="")
        async with open_one(url, tmp_path, time) as one:
            log = HandWrittenLog.new(one.store, tenant="acme")
            await log.create()
            assert await log.write(first_event()) is None
            told = asyncio.Event()
            with one.store.watch(log.execution.execution_id, lambda _change: told.set()):
                await asyncio.to_thread(server.stop)
                with pytest.raises(StoreUnavailableError) as caught:
                    await log.write(step())
                assert caught.value.retry_after_s
                await asyncio.to_thread(server.start)
                await told.wait()
            part = log.part(step("after"))
            while True:
                try:
                    assert list(await one.store.append([part])) == [None]
                    break
                except StoreUnavailableError:
                    continue
            await asyncio.to_thread(server.restart)
            # Every idle connection is closed now. A reader does not notice it.
            assert [event.sequence for event in await one.store.read(*log.name)] == [1, 2]


async def test_the_password_is_in_no_message_and_no_log(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    url = postgres.new_database()
    for wrong in (url.replace("secret-of-postgres", "not-the-password"), url.replace("127.0.0.1", "127.0.0.1:1,x")):
        with pytest.raises(SettingsError) as caught:
            await PostgresPool.open(wrong)
        assert "password" not in caught.value.message
        assert "secret-of" not in caught.value.full_message + caplog.text
        assert "not-the" not in caught.value.full_message + caplog.text


async def test_an_empty_database_is_refused_until_it_is_migrated(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    with pytest.raises(SettingsError, match="has no tables yet") as caught:
        await PostgresPool.open(url)
    assert "`reasond migrate`" in caught.value.remedy
    with pytest.raises(SettingsError, match="has no tables yet"):
        examine_stores(url=url, data_dir="")
    await asyncio.gather(*(asyncio.to_thread(migrate_stores, url=url, data_dir="") for _ in range(3)))
    assert "PostgreSQL" in examine_stores(url=url, data_dir="")


async def test_leases_run_by_the_clock_of_the_database(postgres_url: str, tmp_path: Path, time: Time) -> None:
    async with open_one(postgres_url, tmp_path, time) as one:
        log = HandWrittenLog.new(one.store, tenant="acme")
        await log.create()
        await time.advance(10**6)
        assert list(await one.store.recover(Lease(owner="two", seconds=1), limit=9)) == []
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
            await connection.execute("UPDATE executions SET lease_until = lease_until - 16")
        assert len(await one.store.recover(Lease(owner="two", seconds=1), limit=9)) == 1


async def test_a_full_disk_is_told_to_every_writer_and_keeps_no_reader_out(
    postgres_url: str, tmp_path: Path, time: Time
) -> None:
    async with open_one(postgres_url, tmp_path, time) as one:
        logs = [HandWrittenLog.new(one.store, tenant="acme") for _ in range(2)]
        for log in logs:
            await log.create()
            assert await log.write(first_event()) is None
        async with (
            await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection,
            refusing(connection, table="entries", code="53100"),
        ):
            refused = await one.store.append([log.part(step()) for log in logs])
            assert [type(error) for error in refused] == [StoreFullError, StoreFullError]
            assert [event.sequence for event in await one.store.read(*logs[0].name)] == [1]
        assert list(await one.store.append([log.part(step()) for log in logs])) == [None, None]


async def test_a_recovery_on_a_connection_that_is_dead_is_repeated(
    postgres_url: str, tmp_path: Path, time: Time
) -> None:
    async with open_one(postgres_url, tmp_path, time) as one:
        log = HandWrittenLog.new(one.store, tenant="acme")
        await log.create()
        await one.pass_time(16)
        async with await psycopg.AsyncConnection.connect(postgres_url, autocommit=True) as connection:
            await connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE pid <> pg_backend_pid() AND datname = current_database()"
            )
        found = await one.store.recover(Lease(owner="two", seconds=15), limit=9)
        assert [(recovery.execution.execution_id, recovery.fence) for recovery in found] == [
            (log.execution.execution_id, 2)
        ]


async def test_an_id_of_another_tenant_is_refused(postgres_url: str, tmp_path: Path, time: Time) -> None:
    async with open_one(postgres_url, tmp_path, time) as one:
        log = HandWrittenLog.new(one.store, tenant="acme")
        await log.create()
        twin = HandWrittenLog(store=one.store, execution=replace(log.execution, tenant="globex"))
        with pytest.raises(InternalError):
            await twin.create()
        assert list((await one.store.read_checkpoint(*log.name)).records) == []
