"""Transactions that are written once for SQLite and PostgreSQL: jobs that yield statements and are sent their rows."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, TypeVar
from weakref import finalize

if TYPE_CHECKING:
    from sqlite3 import Connection

    from reasond_server.storage.postgres_pool import PgConnection, PostgresPool


# The clock of the database server: the clocks of the processes differ.
NOW: Final = "extract(epoch FROM clock_timestamp())::float8"


async def fetch(connection: PgConnection, statement: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
    """Return the rows that `statement` returns."""
    cursor = await connection.execute(bind(statement), values)
    return await cursor.fetchall()


@cache
def bind(statement: str) -> bytes:
    """Return `statement` with its `:name` parameters in psycopg's form; `::` stays a cast."""
    return re.sub(r"(?<!:):([a-z_]+)", r"%(\1)s", statement.strip()).encode()


ResultT = TypeVar("ResultT")
Rows: TypeAlias = Sequence[Sequence[Any]]
Values: TypeAlias = Mapping[str, object]
Job: TypeAlias = Generator[tuple[str, Values | Sequence[Values]], Rows, ResultT]
"""A transaction: yields statements, and is sent their rows; a statement with several values returns none."""

_STATEMENTS_AT_ONCE: Final = 100


class Transactions(Protocol):
    """Access to a database; parameters are written `:name`."""

    async def select(self, statement: str, values: Values) -> Rows:
        """Return the rows that a query finds."""

    async def change(self, begin: Callable[[], Job[ResultT]], *, repeats: bool = True) -> ResultT:
        """Run a job in a transaction; it is begun again if the connection is lost, unless `repeats` is false."""

    async def erase(self) -> None:
        """Overwrite what was deleted, where the database can."""


class SqliteDatabase(Protocol):
    """A SQLite database, in a file or in memory, for one process."""

    async def write(self, job: Callable[[Connection], ResultT], *, then: Callable[[ResultT], None]) -> ResultT:
        """Run `job` in its own transaction; call `then` on the event loop after the commit, whoever waits for it.

        Raises:
            StoreFullError: the disk is full, or the bound of the database is reached.
            StoreUnavailableError: the database cannot be reached.
        """

    async def read(self, job: Callable[[Connection], ResultT]) -> ResultT:
        """Run `job`, which only reads, in its own transaction. Raises StoreUnavailableError as `write`."""

    async def read_size(self) -> int:
        """Return the bytes that are in use."""

    async def read_share(self) -> float:
        """Return the share of the bound of the database that is in use; 0 without a bound."""

    async def read_share_of_disk(self) -> float:
        """Return the share that the database has of itself and of what is free on its disk; 0 in memory."""

    async def erase(self) -> None:
        """Overwrite what was deleted."""

    async def aclose(self) -> None:
        """Wait for running jobs, and close the database."""


class SqliteTransactions:
    """Transactions in a SQLite database."""

    def __init__(self, file: SqliteDatabase) -> None:
        self._file = file

    async def select(self, statement: str, values: Values) -> Rows:
        """See Transactions."""
        return await self._file.read(lambda connection: connection.execute(statement, dict(values)).fetchall())

    async def change(self, begin: Callable[[], Job[ResultT]], *, repeats: bool = True) -> ResultT:
        """See Transactions; a file has no connection that could be lost."""
        del repeats

        return await self._file.write(lambda connection: run_job(connection, begin), then=lambda _: None)

    async def erase(self) -> None:
        """See Transactions."""
        await self._file.erase()


class MemoryTransactions:
    """Transactions in a database in memory, which is gone when nobody refers to them any more."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        finalize(self, connection.close)

    async def select(self, statement: str, values: Values) -> Rows:
        """See Transactions."""
        with self._lock:
            return self._connection.execute(statement, dict(values)).fetchall()

    async def change(self, begin: Callable[[], Job[ResultT]], *, repeats: bool = True) -> ResultT:
        """See Transactions. In a thread, because it may write many rows; it ends also for a caller who has gone."""
        del repeats
        return await asyncio.to_thread(self._run, begin)

    async def erase(self) -> None:
        """See Transactions: nothing of what is in memory is written to a disk."""

    def _run(self, begin: Callable[[], Job[ResultT]]) -> ResultT:
        with self._lock, self._connection:
            self._connection.execute("BEGIN")
            return run_job(self._connection, begin)


class PostgresTransactions:
    """Transactions behind a `PostgresPool`."""

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool

    async def select(self, statement: str, values: Values) -> Rows:
        """See Transactions."""
        return await self._pool.run(lambda connection: _execute(connection, statement, values))

    async def change(self, begin: Callable[[], Job[ResultT]], *, repeats: bool = True) -> ResultT:
        """See Transactions."""

        async def work(connection: PgConnection) -> ResultT:
            async with connection.transaction():
                return await perform_job(connection, begin)

        return await self._pool.run(work, repeats=repeats)

    async def erase(self) -> None:
        """See Transactions: PostgreSQL does it when it vacuums."""


def run_job(connection: Connection, begin: Callable[[], Job[ResultT]]) -> ResultT:
    """Run a job in the open transaction of SQLite."""
    job, rows = begin(), None
    while True:
        try:
            statement, values = next(job) if rows is None else job.send(rows)
        except StopIteration as end:
            result: ResultT = end.value
            return result
        if isinstance(values, Mapping):
            rows = connection.execute(statement, dict(values)).fetchall()
        else:
            rows = connection.executemany(statement, values).fetchall()


async def perform_job(connection: PgConnection, begin: Callable[[], Job[ResultT]]) -> ResultT:
    """Run a job in the open transaction of PostgreSQL, or each of its statements in its own if none is open."""
    job, rows = begin(), None
    while True:
        try:
            statement, values = next(job) if rows is None else job.send(rows)
        except StopIteration as end:
            result: ResultT = end.value
            return result
        rows = await _execute(connection, statement, values)


async def _execute(connection: PgConnection, statement: str, values: Values | Sequence[Values]) -> Rows:
    if isinstance(values, Mapping):
        # As text a content would have twice its size.
        cursor = await connection.execute(bind(statement), values, binary=True)
        return [] if cursor.description is None else await cursor.fetchall()
    async with connection.cursor() as cursor:
        for first in range(0, len(values), _STATEMENTS_AT_ONCE):
            await cursor.executemany(bind(statement), values[first : first + _STATEMENTS_AT_ONCE])
    return []
