"""Failures of statements, listeners and addresses, caused by a real server."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import psycopg
import pytest

from reasond_server.errors.base import InternalError, SettingsError
from reasond_server.errors.limits import StoreFullError, StoreUnavailableError
from reasond_server.storage.postgres_pool import (
    PgConnection,
    PostgresPool,
    describe_address,
    migrate_database,
    read_database_state,
)
from tests.engines.postgres import PostgresServer, running_postgres

LISTENER = "query LIKE 'LISTEN%' AND datname = current_database()"
POOLED = "pid <> pg_backend_pid() AND datname = current_database()"


@pytest.fixture
async def pool(postgres_url: str) -> AsyncGenerator[PostgresPool, None]:
    """A pool for an empty database with the schema of this release."""
    pool = await PostgresPool.open(postgres_url, probe_interval_s=0.01)
    yield pool
    await pool.aclose()


class Job:
    """Runs a statement and counts its calls."""

    def __init__(self, statement: str) -> None:
        self._statement = statement.encode()
        self.runs = 0

    async def __call__(self, connection: PgConnection) -> list[tuple[Any, ...]]:
        self.runs += 1
        return await (await connection.execute(self._statement)).fetchall()


async def admin(url: str, statement: str) -> None:
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        await connection.execute(statement.encode())


async def end(url: str, which: str) -> None:
    """End connections as an operator would do."""
    await admin(url, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {which}")  # noqa: S608 - constants


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("53100", StoreFullError),
        ("57P03", StoreUnavailableError),
        ("40P01", StoreUnavailableError),
        ("25006", StoreUnavailableError),
        ("23505", InternalError),
    ],
)
async def test_each_refusal_of_the_server_has_its_error_without_its_words(
    pool: PostgresPool, code: str, error: type[Exception]
) -> None:
    job = Job(f"DO $$ BEGIN RAISE EXCEPTION 'foreign words' USING ERRCODE = '{code}'; END $$")
    with pytest.raises(error) as caught:
        await pool.run(job)
    assert "foreign" not in str(caught.value)


async def test_a_full_disk_is_not_asked_twice_and_a_statement_that_takes_too_long_neither(pool: PostgresPool) -> None:
    full = Job("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '53100'; END $$")
    with pytest.raises(StoreFullError):
        await pool.run(full)
    late = Job("SELECT set_config('statement_timeout', '1', false), pg_sleep(0); SELECT pg_sleep(60)")
    with pytest.raises(StoreUnavailableError):
        await pool.run(late)
    assert (full.runs, late.runs) == (1, 1)


class CutOff(Job):
    """A job whose connection the server ends during the first call."""

    async def __call__(self, connection: PgConnection) -> list[tuple[Any, ...]]:
        if not self.runs:
            self.runs += 1
            await connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return await super().__call__(connection)


async def test_what_may_be_repeated_is_repeated_on_a_new_connection_and_nothing_else_is(pool: PostgresPool) -> None:
    again, once = CutOff("SELECT 1"), CutOff("SELECT 1")
    assert await pool.run(again) == [(1,)]
    with pytest.raises(StoreUnavailableError) as caught:
        await pool.run(once, repeats=False)
    assert caught.value.retry_after_s
    assert (again.runs, once.runs) == (2, 1)


async def test_a_listener_that_is_cut_off_says_so_and_hears_again(pool: PostgresPool, postgres_url: str) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    missed = asyncio.Event()
    await pool.listen("of_a_test", heard.put_nowait, missed=missed.set)
    await admin(postgres_url, "NOTIFY of_a_test, 'one'")
    assert await heard.get() == "one"
    assert not missed.is_set()
    await end(postgres_url, LISTENER + " OR query = 'SELECT 1'")
    await missed.wait()
    await admin(postgres_url, "NOTIFY of_a_test, 'two'")
    assert await heard.get() == "two"


async def test_a_listener_waits_for_a_server_that_is_away() -> None:
    with running_postgres() as server:
        url = server.new_database()
        migrate_database(url)
        pool = await PostgresPool.open(url)
        await asyncio.to_thread(server.stop)
        heard: asyncio.Queue[str] = asyncio.Queue()
        await pool.listen("of_a_test", heard.put_nowait, missed=lambda: None)
        await asyncio.to_thread(server.start)
        while heard.empty():
            await admin(url, "NOTIFY of_a_test, 'at last'")
        assert await heard.get() == "at last"
        await pool.aclose()
        with pytest.raises(StoreUnavailableError):
            await pool.run(Job("SELECT 1"))


async def test_what_a_later_release_migrated_is_left_alone(postgres: PostgresServer) -> None:
    url = postgres.new_database()
    migrate_database(url)
    await admin(url, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(SettingsError, match="migrated by a later release"):
        migrate_database(url)
    with pytest.raises(SettingsError, match="migrated by a later release"):
        await PostgresPool.open(url)


def test_an_address_is_shown_without_its_secrets() -> None:
    assert describe_address("postgresql://ann:s3cret@db.example:5433/mine?sslpassword=x") == "mine at db.example"
    assert describe_address("postgresql:///mine") == "mine at the local socket"
    assert describe_address("postgresql://ann:s3cret@db.example/mine?nonsense=1") == "postgresql"


def test_an_address_that_is_none_is_refused_with_the_form_that_is_meant() -> None:
    with pytest.raises(SettingsError, match="no address of PostgreSQL") as caught:
        read_database_state("postgresql://ann:s3cret@db.example/mine?nonsense=1")
    assert "s3cret" not in caught.value.full_message
    assert "postgresql://user:password@host/database" in caught.value.remedy
