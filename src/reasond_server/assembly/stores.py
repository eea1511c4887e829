"""Opens the stores of logs, agents and snapshots at the address that the operator gave, and looks at them every second.

A look says whether the files are in their places, how far the clock is off, and how full the store is.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from reasond_server.agents.directory import AgentDirectory
from reasond_server.errors.base import ReasondError, SettingsError
from reasond_server.eventlog.contract import NO_SHARE, TenantShare
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore, SqliteExecutionStore
from reasond_server.snapshots.snapshot_store import SnapshotQuota, SnapshotStore
from reasond_server.storage.revisions import SchemaState, require_current
from reasond_server.storage.sqlite_file import SqliteFile, migrate_file, open_memory, read_file_state
from reasond_server.storage.store_clock import STEADY, Steadiness, StoreClock, open_clock
from reasond_server.storage.transactions import (
    MemoryTransactions,
    PostgresTransactions,
    SqliteTransactions,
    Transactions,
)
from reasond_server.telemetry.observers import UNSEEN_STORE, StoreFacts
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from reasond_server.base.clock import Clock
    from reasond_server.eventlog.store import ExecutionStore

_LOOK_S: Final = 1.0
_MEASURED_EVERY: Final = 5
_FULL: Final = 0.98
_ROOM_AGAIN: Final = 0.95
_log = logging.getLogger("reasond.app")


class StoreWatch:
    """Calls `set_usable` with whether `stores` can be written, whenever that changes, and keeps their clock.

    Attributes:
        facts: how the store was last seen.
    """

    def __init__(self, stores: Stores, *, set_usable: Callable[[bool], None]) -> None:
        self._stores = stores
        self._set_usable = set_usable
        self._is_in_place = True
        self._is_answering = True
        self._is_full = False
        self.facts: StoreFacts = UNSEEN_STORE

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        looks = 0
        while True:
            await asyncio.sleep(_LOOK_S)
            await self._look_at_files()
            looks += 1
            if looks % _MEASURED_EVERY == 0 and self._is_in_place:
                await self._measure()

    async def _measure(self) -> None:
        fill, was_answering = self.facts.fill, self._is_answering
        try:
            await self._stores.clock.keep()
            fill = await self._stores.executions.room.read_fill()
            self._is_answering = True
        except ReasondError as error:
            self._is_answering = False
            if was_answering:
                _log.error("the store cannot be read and written; not ready: %s", error.full_message)
        except Exception:  # noqa: BLE001 - the task has no caller that could handle it
            self._is_answering = False
            _log.exception("the store could not be looked at; not ready")
        if self._is_answering is not was_answering:
            if self._is_answering:
                _log.info("the store answers again")
            self._report()
        self.facts = StoreFacts(fill=fill, clock_jump_s=self._stores.clock.jump_s)
        is_full = fill >= (_ROOM_AGAIN if self._is_full else _FULL)
        if is_full is not self._is_full:
            self._is_full = is_full
            _log.warning(
                "the store is full; not ready" if is_full else "the store has room again", extra={"fill": fill}
            )
            self._report()

    def _report(self) -> None:
        self._set_usable(self._is_in_place and self._is_answering and not self._is_full)

    async def _look_at_files(self) -> None:
        is_in_place = self._stores.is_in_place()
        if is_in_place is self._is_in_place:
            return
        self._is_in_place = is_in_place
        self._report()
        if is_in_place:
            _log.info("the store is in its place again")
            return
        _log.error("a file of the store was deleted, replaced or cut; not ready until it is back")
        if self._stores.transactions is not None:
            # What is committed in a deleted write-ahead log only would end with this process.
            with suppress(ReasondError):
                await self._stores.transactions.erase()


MEMORY_URL: Final = "memory:"
FILE_NAME: Final = "reasond.db"
_SQLITE: Final = "sqlite:///"
_QUOTAS_IN_MEMORY: Final = 4
_IN_MEMORY: Final = "in memory: executions end with the process"
_POSTGRES: Final = ("postgresql://", "postgres://")


@value
class Stores:
    """The stores of executions, agents and snapshots, in one database; `place` describes in words where it is.

    Snapshots are in memory where no content is to be stored. `transactions` reach the database of the others. What is
    stored is stamped, and expires, by `clock`.
    `is_in_place` returns whether the database still exists, without a query; False means that nothing can be stored.
    """

    executions: ExecutionStore
    agents: AgentDirectory
    snapshots: SnapshotStore
    place: str
    clock: StoreClock
    is_in_place: Callable[[], bool] = lambda: True
    transactions: Transactions | None = None

    def time_of(self, clock: Clock) -> Clock:
        """Return `clock` with the time of the stores, which stamps what is stored in them."""
        return replace(clock, now=self.clock.now, expiry=self.clock.expiry_now)

    async def aclose(self) -> None:
        """Close the stores; no method may be called afterwards."""
        await self.executions.aclose()


@value
class StoreOptions:
    """Where stores are opened, and what they may hold.

    Attributes:
        url: "memory:", "sqlite:///path", "postgresql://…", or empty for a file in `data_dir`.
        now: the clock of this machine; with `asks_database_time` PostgreSQL tells the time instead.
        max_bytes: the largest size of the database of executions in memory.
        max_agents: most agents of all tenants together, and `max_agents_per_tenant` of each (None: no limit).
        tenant_share: bounds the open executions of each tenant.
        synchronous: applies to SQLite; `max_file_bytes` bounds its file, and in PostgreSQL what executions hold.
        snapshot_quota: bounds the snapshots of each tenant.
        stores_content: if false, snapshots are kept in memory only.
    """

    url: str
    data_dir: str = ""
    now: Callable[[], datetime]
    monotonic: Callable[[], float]
    max_bytes: int
    max_agents: int
    max_agents_per_tenant: int | None = None
    asks_database_time: bool = False
    steadiness: Steadiness = STEADY
    tenant_share: TenantShare = NO_SHARE
    synchronous: str = "normal"
    max_file_bytes: int = 0
    snapshot_quota: SnapshotQuota = SnapshotQuota()
    stores_content: bool = True

    @property
    def elapsed(self) -> Callable[[], float]:
        """Seconds that pass evenly."""
        return self.steadiness.elapsed or self.monotonic


async def open_stores(options: StoreOptions) -> Stores:
    """Open the stores.

    Raises:
        SettingsError: the database cannot be used, with the reason and the remedy.
    """
    if options.url == MEMORY_URL:
        return open_memory_stores(options)
    if options.url.startswith(_POSTGRES):
        return await _open_postgres_stores(options)
    return await _open_sqlite_stores(options)


def open_memory_stores(options: StoreOptions) -> Stores:
    """Return stores that end with the process."""
    clock = StoreClock(
        source=lambda: options.now().timestamp(), elapsed=options.elapsed, hold_s=options.steadiness.hold_s
    )
    executions = MemoryExecutionStore(
        max_bytes=options.max_bytes,
        now=clock.expiry_now,
        monotonic=options.monotonic,
        quota=options.tenant_share.build_quota(store_bytes=options.max_bytes),
    )
    return _build_stores(options, executions, None, clock, place=_IN_MEMORY)


def migrate_stores(*, url: str, data_dir: str) -> str:
    """Migrate the database at `url` to the schema of this release; return in words what was done.

    Raises:
        SettingsError: the database cannot be reached, is in use, or a later release migrated it.
    """
    if url == MEMORY_URL:
        return "the store in memory has no schema"
    if url.startswith(_POSTGRES):
        _require_driver()
        from reasond_server.storage.postgres_pool import describe_address, migrate_database  # noqa: PLC0415 - an extra

        migrate_database(url)
        return f"the database {describe_address(url)} has the schema of this release"

    path = find_store_file(url, data_dir)
    migrate_file(path)
    return f"{path} has the schema of this release"


def examine_stores(*, url: str, data_dir: str) -> str:
    """Return in words where the store is and its state, without changing anything.

    Raises:
        SettingsError: a server could not use the store.
    """
    if url == MEMORY_URL:
        return _IN_MEMORY

    if url.startswith(_POSTGRES):
        _require_driver()
        from reasond_server.storage.postgres_pool import describe_address, read_database_state  # noqa: PLC0415 - an extra

        require_current(read_database_state(url), where=describe_address(url))
        return f"PostgreSQL, {describe_address(url)}"

    path = find_store_file(url, data_dir)
    state = read_file_state(path)
    if state is not SchemaState.EMPTY:
        require_current(state, where=str(path))
    return f"SQLite, {path}" + (" (made at the first start)" if state is SchemaState.EMPTY else "")


def require_driver(url: str) -> None:
    """Refuse an address of PostgreSQL if its driver is missing; opens no connection.

    Raises:
        SettingsError: the driver is not installed.
    """
    if url.startswith(_POSTGRES):
        _require_driver()


def find_store_file(url: str, data_dir: str) -> Path:
    """Return the SQLite file that `url` names; without a name, the default file in `data_dir`.

    Raises:
        SettingsError: `url` has an unknown form.
    """
    if not url:
        state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
        return (Path(data_dir) if data_dir else Path(state) / "reasond").expanduser() / FILE_NAME
    if not url.startswith(_SQLITE) or len(url) == len(_SQLITE):
        raise SettingsError(
            "[store] url is of no known form",
            remedy='Write "memory:", "sqlite:///path/to/file", "postgresql://user:password@host/database" or "".',
        )
    return Path(url.removeprefix(_SQLITE)).expanduser()


async def _open_sqlite_stores(options: StoreOptions) -> Stores:
    path, bound = find_store_file(options.url, options.data_dir), options.max_file_bytes
    file = await SqliteFile.open(path, synchronous=options.synchronous, max_file_bytes=bound)
    transactions = SqliteTransactions(file)
    try:
        clock = await open_clock(
            transactions, now=options.now, elapsed=options.elapsed, hold_s=options.steadiness.hold_s
        )
        quota = options.tenant_share.build_quota(store_bytes=bound)
        executions = SqliteExecutionStore(file=file, now=clock.expiry_now, monotonic=options.monotonic, quota=quota)
        await executions.expire_leases()
    except BaseException:
        await file.aclose()
        raise
    stores = _build_stores(options, executions, transactions, clock, place=f"SQLite, {path}")
    return replace(stores, is_in_place=lambda: file.is_in_place and not file.find_foreign_log())


async def _open_postgres_stores(options: StoreOptions) -> Stores:
    _require_driver()
    from reasond_server.eventlog.stored.postgres_store import PostgresExecutionStore  # noqa: PLC0415 - an extra
    from reasond_server.storage.postgres_pool import PostgresPool, describe_address  # noqa: PLC0415 - an extra

    pool = await PostgresPool.open(options.url)
    transactions = PostgresTransactions(pool)
    now = None if options.asks_database_time else options.now
    try:
        clock = await open_clock(transactions, now=now, elapsed=options.elapsed, hold_s=options.steadiness.hold_s)
    except BaseException:
        await pool.aclose()
        raise
    bound = options.max_file_bytes
    executions = PostgresExecutionStore(
        pool=pool,
        now=clock.expiry_now,
        monotonic=options.monotonic,
        quota=options.tenant_share.build_quota(store_bytes=bound),
        max_bytes=bound,
    )
    await executions.listen()
    place = f"PostgreSQL, {describe_address(options.url)}"
    return _build_stores(options, executions, transactions, clock, place=place)


def _build_stores(
    options: StoreOptions,
    executions: ExecutionStore,
    transactions: Transactions | None,
    clock: StoreClock,
    *,
    place: str,
) -> Stores:
    """Return the stores of one database; without `transactions` the others are in memory, too."""
    quota, snapshot_rows = options.snapshot_quota, transactions
    if snapshot_rows is None or not options.stores_content:
        quota = replace(quota, max_bytes_of_all=_QUOTAS_IN_MEMORY * quota.max_bytes)
        snapshot_rows = MemoryTransactions(open_memory())
    directory = AgentDirectory(
        rows=transactions or snapshot_rows,
        max_agents=options.max_agents,
        max_agents_per_tenant=options.max_agents_per_tenant,
        now=clock.expiry_now,
    )
    return Stores(
        executions=executions,
        agents=directory,
        snapshots=SnapshotStore(rows=snapshot_rows, quota=quota),
        transactions=transactions,
        place=place,
        clock=clock,
    )


def _require_driver() -> None:
    """Refuse PostgreSQL if its driver is missing."""
    missing = [name for name in ("psycopg", "psycopg_pool") if importlib.util.find_spec(name) is None]
    if missing:
        raise SettingsError(
            f"[store] url names PostgreSQL, but {' and '.join(missing)} cannot be imported",
            remedy="Install reasond-server[postgres].",
        )
