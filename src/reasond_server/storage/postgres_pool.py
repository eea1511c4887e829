"""A pool of connections to PostgreSQL, and one connection that listens; loaded only if PostgreSQL is configured."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg import errors as refusals
from psycopg.conninfo import conninfo_to_dict
from psycopg_pool import AsyncConnectionPool, PoolClosed, PoolTimeout

from reasond_server.base.asyncio_tasks import end_task
from reasond_server.errors.base import InternalError, SettingsError, show
from reasond_server.errors.limits import StoreFullError, StoreUnavailableError
from reasond_server.storage.migration_runner import upgrade_schema
from reasond_server.storage.revisions import TABLES, VERSION_TABLE, SchemaState, read_schema_state, require_current

ResultT = TypeVar("ResultT")
PgConnection: TypeAlias = "psycopg.AsyncConnection[tuple[Any, ...]]"

_log = logging.getLogger("reasond.storage")
_STATEMENT_TIMEOUT_MS: Final = 10_000
_CONNECT_TIMEOUT_S: Final = 2
_FIRST_WAIT_S: Final = 0.1
_LONGEST_WAIT_S: Final = 2.0
_MAX_CONNECTIONS: Final = 8
_PROBE_INTERVAL_S: Final = 30.0
_KEEPALIVE: Final[dict[str, Any]] = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
# A read-only server is a standby: a fresh connection can reach the primary.
_LOST: Final = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    refusals.ReadOnlySqlTransaction,
    PoolTimeout,
    PoolClosed,
)
_MIGRATION_LOCK: Final = 7_263_150_921


class PostgresPool:
    """Connections to one database; each statement is a transaction unless the job begins one. Made by `open`."""

    def __init__(self, pool: AsyncConnectionPool[PgConnection], *, conninfo: str, probe_interval_s: float) -> None:
        self._pool = pool
        self._probe_interval_s = probe_interval_s
        self._conninfo = conninfo
        self._listener: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, conninfo: str, *, probe_interval_s: float = _PROBE_INTERVAL_S) -> PostgresPool:
        """Connect; the schema must be that of this release.

        The listening connection is probed after `probe_interval_s` seconds without a notification.

        Raises:
            SettingsError: the address is malformed, no server answers, it refuses the login, or the schema differs.
        """
        state = await asyncio.to_thread(read_database_state, conninfo)
        require_current(state, where=describe_address(conninfo))
        pool: AsyncConnectionPool[PgConnection] = AsyncConnectionPool(
            conninfo,
            min_size=1,
            max_size=_MAX_CONNECTIONS,
            kwargs={"autocommit": True, "connect_timeout": _CONNECT_TIMEOUT_S, **_KEEPALIVE},
            configure=_configure,
            open=False,
            name="reasond",
            timeout=_CONNECT_TIMEOUT_S,
            reconnect_timeout=_CONNECT_TIMEOUT_S,
        )
        await pool.open()
        return cls(pool, conninfo=conninfo, probe_interval_s=probe_interval_s)

    async def run(self, job: Callable[[PgConnection], Awaitable[ResultT]], *, repeats: bool = True) -> ResultT:
        """Run `job` on a connection; if the connection is lost and `repeats` is set, run it again on a fresh one.

        Raises:
            StoreUnavailableError: the server cannot be reached, or the connection was lost during the job.
            StoreFullError: the disk of the server is full.
            InternalError: the server refused the statement.
        """
        try:
            try:
                return await self._run_job(job)
            except _LOST as error:
                if not repeats or isinstance(error, (PoolTimeout, refusals.QueryCanceled, refusals.DiskFull)):
                    raise
                # After a restart of the server all idle connections are dead; this replaces them.
                await self._pool.check()
                return await self._run_job(job)
        except refusals.DiskFull as error:
            raise StoreFullError("The disk of the database is full", remedy="Free space there.") from error
        except _LOST as error:
            raise _build_unavailable_error() from error
        except psycopg.Error as error:
            raise InternalError("the database refused a statement") from error

    async def listen(self, channel: str, notify: Callable[[str], None], *, missed: Callable[[], None]) -> None:
        """Call `notify` with every payload on `channel` from now on, and `missed` whenever payloads may be lost."""
        ready = asyncio.Event()
        self._listener = asyncio.create_task(self._listen(channel, notify, missed, ready), name="PostgreSQL listener")
        with suppress(TimeoutError):
            async with asyncio.timeout(_CONNECT_TIMEOUT_S):
                await ready.wait()

    async def aclose(self) -> None:
        """Close all connections."""
        if self._listener is not None:
            await end_task(self._listener)
        await self._pool.close()

    async def _run_job(self, job: Callable[[PgConnection], Awaitable[ResultT]]) -> ResultT:
        async with self._pool.connection() as connection:
            return await job(connection)

    async def _listen(
        self, channel: str, notify: Callable[[str], None], missed: Callable[[], None], ready: asyncio.Event
    ) -> None:
        wait_s, was_ready = _FIRST_WAIT_S, False
        while True:
            try:
                async with self._open_listener(channel) as connection:
                    ready.set()
                    wait_s = _FIRST_WAIT_S
                    if was_ready:
                        missed()
                    was_ready = True
                    await _forward_notices(connection, notify, probe_interval_s=self._probe_interval_s)
            except (psycopg.Error, OSError):
                _log.warning("lost the connection that hears of changes", extra={"retry_in_s": wait_s})
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)

    @asynccontextmanager
    async def _open_listener(self, channel: str) -> AsyncGenerator[PgConnection, None]:
        connection = await psycopg.AsyncConnection.connect(
            self._conninfo, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S, **_KEEPALIVE
        )
        try:
            await connection.execute(f"LISTEN {channel}".encode())
            yield connection
        finally:
            await connection.close()


def read_database_state(conninfo: str) -> SchemaState:
    """Return the state of the database's schema. Raises the same errors as `PostgresPool.open`."""
    with _connect(conninfo) as connection:
        return _read_state(connection)


def migrate_database(conninfo: str) -> None:
    """Migrate the database to the schema of this release; concurrent migrations run one after the other.

    Raises:
        SettingsError: as in `PostgresPool.open`, or a later release has already migrated the database.
    """
    import sqlalchemy as sa  # noqa: PLC0415 - a server whose schema is current never needs it

    # psycopg opens the connection instead of SQLAlchemy, so that every form of address works.
    engine = sa.create_engine("postgresql+psycopg://", creator=lambda: _connect(conninfo), poolclass=sa.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
        driver: Any = connection.connection.driver_connection
        state = _read_state(driver)
        if state in {state.EMPTY, state.BEHIND}:
            upgrade_schema(connection)
        else:
            require_current(state, where=describe_address(conninfo))


def describe_address(conninfo: str) -> str:
    """Return host and database of an address, without secrets."""
    try:
        parts = conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError:
        return "postgresql"
    return f"{parts.get('dbname', '')} at {parts.get('host', 'the local socket')}"


def _connect(conninfo: str) -> psycopg.Connection[tuple[Any, ...]]:
    try:
        return psycopg.connect(conninfo, connect_timeout=_CONNECT_TIMEOUT_S)
    except psycopg.ProgrammingError as error:
        raise SettingsError(
            "[store] url is no address of PostgreSQL", remedy="Write postgresql://user:password@host/database."
        ) from error
    except psycopg.OperationalError as error:
        raise SettingsError(
            f"The database {show(describe_address(conninfo))} cannot be reached, or refused the user",
            remedy="Check that it runs, and host, user, password and database in [store] url.",
        ) from error


def _read_state(connection: psycopg.Connection[tuple[Any, ...]]) -> SchemaState:
    # A schema may hold tables of other programs, so only the names that reasond needs are read.
    rows = connection.execute(
        "SELECT tablename FROM pg_tables WHERE schemaname = ANY (current_schemas(FALSE)) AND tablename = ANY (%s)",
        [[VERSION_TABLE, *TABLES]],
    )
    names, row = {name for (name,) in rows}, None
    if VERSION_TABLE in names:
        row = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}".encode()).fetchone()  # noqa: S608 - a constant
    return read_schema_state(names, None if row is None else row[0])


async def _configure(connection: PgConnection) -> None:
    """Bound the time of one statement."""
    await connection.execute(f"SET statement_timeout = {_STATEMENT_TIMEOUT_MS}".encode())


async def _forward_notices(connection: PgConnection, notify: Callable[[str], None], *, probe_interval_s: float) -> None:
    """Forward notifications until the connection is lost; if none arrive, a probe detects the loss."""
    while True:
        async for notice in connection.notifies(timeout=probe_interval_s):
            notify(notice.payload)
        await connection.execute("SELECT 1")


def _build_unavailable_error() -> StoreUnavailableError:
    return StoreUnavailableError(
        "The database cannot be reached",
        remedy="Retry after the time given; it reconnects by itself.",
    )
