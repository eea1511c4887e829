"""Opens the stores of logs, agents and snapshots at the address that the operator gave."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from reasond_server.agents.directory import MemoryAgentDirectory
from reasond_server.errors.base import SettingsError
from reasond_server.eventlog.memory import MemoryExecutionStore
from reasond_server.eventlog.quotas import NO_SHARE, TenantShare
from reasond_server.snapshots.memory_snapshots import MemorySnapshotStore
from reasond_server.snapshots.snapshot_store import SnapshotQuota
from reasond_server.storage.store_clock import STEADY, Steadiness, StoreClock, open_clock
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from reasond_server.agents.directory import AgentDirectory
    from reasond_server.base.clock import Clock
    from reasond_server.eventlog.quotas import TenantQuota
    from reasond_server.eventlog.store import ExecutionStore
    from reasond_server.snapshots.snapshot_store import SnapshotStore
    from reasond_server.storage.transactions import Transactions

MEMORY_URL: Final = "memory:"
FILE_NAME: Final = "reasond.db"
_SQLITE: Final = "sqlite:///"
_IN_MEMORY: Final = "in memory: executions end with the process"
_POSTGRES: Final = ("postgresql://", "postgres://")
_QUOTA: Final = SnapshotQuota()


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


async def open_stores(
    *,
    url: str,
    data_dir: str,
    now: Callable[[], datetime],
    monotonic: Callable[[], float],
    max_executions: int,
    max_bytes: int,
    max_agents: int,
    max_agents_per_tenant: int | None = None,
    asks_database_time: bool = False,
    steadiness: Steadiness = STEADY,
    tenant_share: TenantShare = NO_SHARE,
    synchronous: str = "normal",
    max_file_bytes: int = 0,
    snapshot_quota: SnapshotQuota = _QUOTA,
    stores_content: bool = True,
) -> Stores:
    """Open the stores at `url`: "memory:", "sqlite:///path", "postgresql://…", or empty for a file in `data_dir`.

    `max_agents` limits the agents of all tenants together, `max_agents_per_tenant` those of each (None: no limit).
    `max_executions` and `max_bytes` limit the memory store; `synchronous` and `max_file_bytes` apply to SQLite.
    `now` is the clock of this machine; with `asks_database_time` PostgreSQL tells the time instead. `tenant_share`
    bounds the open executions of each tenant, `snapshot_quota` its snapshots. Without `stores_content` snapshots are
    kept in memory only.

    Raises:
        SettingsError: the database cannot be used, with the reason and the remedy.
    """
    if url == MEMORY_URL:
        return memory_stores(
            now=now,
            monotonic=monotonic,
            max_executions=max_executions,
            max_bytes=max_bytes,
            max_agents=max_agents,
            max_agents_per_tenant=max_agents_per_tenant,
            steadiness=steadiness,
            tenant_share=tenant_share,
            snapshot_quota=snapshot_quota,
        )
    in_memory = None if stores_content else MemorySnapshotStore(quota=snapshot_quota)
    if url.startswith(_POSTGRES):
        return await _postgres_stores(
            url,
            now=None if asks_database_time else now,
            monotonic=monotonic,
            steadiness=steadiness,
            quota=tenant_share.quota_of(),
            max_agents=max_agents,
            max_agents_per_tenant=max_agents_per_tenant,
            snapshot_quota=snapshot_quota,
            snapshots=in_memory,
        )
    return await _sqlite_stores(
        file_of(url, data_dir),
        now=now,
        monotonic=monotonic,
        steadiness=steadiness,
        quota=tenant_share.quota_of(max_bytes=max_file_bytes or None),
        max_agents=max_agents,
        max_agents_per_tenant=max_agents_per_tenant,
        synchronous=synchronous,
        max_file_bytes=max_file_bytes,
        snapshot_quota=snapshot_quota,
        snapshots=in_memory,
    )


def memory_stores(
    *,
    now: Callable[[], datetime],
    monotonic: Callable[[], float],
    max_executions: int,
    max_bytes: int,
    max_agents: int,
    max_agents_per_tenant: int | None = None,
    steadiness: Steadiness = STEADY,
    tenant_share: TenantShare = NO_SHARE,
    snapshot_quota: SnapshotQuota = _QUOTA,
) -> Stores:
    """Return stores in memory, which are lost when the process ends."""
    clock = StoreClock(
        source=lambda: now().timestamp(), elapsed=steadiness.elapsed or monotonic, hold_s=steadiness.hold_s
    )
    executions = MemoryExecutionStore(
        max_executions=max_executions,
        max_bytes=max_bytes,
        now=clock.expiry_now,
        monotonic=monotonic,
        quota=tenant_share.quota_of(max_executions=max_executions, max_bytes=max_bytes),
    )
    agents = MemoryAgentDirectory(
        max_agents=max_agents, max_agents_per_tenant=max_agents_per_tenant, now=clock.expiry_now
    )
    snapshots = MemorySnapshotStore(quota=snapshot_quota)
    return Stores(executions=executions, agents=agents, snapshots=snapshots, place=_IN_MEMORY, clock=clock)


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
    from reasond_server.storage.sqlite_file import migrate_file  # noqa: PLC0415 - only where a file is used

    path = file_of(url, data_dir)
    migrate_file(path)
    return f"{path} has the schema of this release"


def examine_stores(*, url: str, data_dir: str) -> str:
    """Return in words where the store is and its state, without changing anything.

    Raises:
        SettingsError: a server could not use the store.
    """
    if url == MEMORY_URL:
        return _IN_MEMORY
    from reasond_server.storage.revisions import SchemaState, require_current  # noqa: PLC0415 - as above

    if url.startswith(_POSTGRES):
        _require_driver()
        from reasond_server.storage.postgres_pool import describe_address, read_database_state  # noqa: PLC0415 - an extra

        require_current(read_database_state(url), where=describe_address(url))
        return f"PostgreSQL, {describe_address(url)}"
    from reasond_server.storage.sqlite_file import read_file_state  # noqa: PLC0415 - as above

    path = file_of(url, data_dir)
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


def file_of(url: str, data_dir: str) -> Path:
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


async def _sqlite_stores(
    path: Path,
    *,
    now: Callable[[], datetime],
    monotonic: Callable[[], float],
    steadiness: Steadiness,
    quota: TenantQuota,
    max_agents: int,
    max_agents_per_tenant: int | None,
    synchronous: str,
    max_file_bytes: int,
    snapshot_quota: SnapshotQuota,
    snapshots: SnapshotStore | None,
) -> Stores:
    # Imported here: a server that stores in memory needs none of it.
    from reasond_server.agents.stored_directory import SqliteAgentRows, StoredAgentDirectory  # noqa: PLC0415 - as above
    from reasond_server.eventlog.stored.sqlite_store import SqliteExecutionStore  # noqa: PLC0415 - as above
    from reasond_server.snapshots.stored import StoredSnapshotStore  # noqa: PLC0415 - as above
    from reasond_server.storage.sqlite_file import SqliteFile  # noqa: PLC0415 - as above
    from reasond_server.storage.transactions import SqliteTransactions  # noqa: PLC0415 - as above

    file = await SqliteFile.open(path, synchronous=synchronous, max_file_bytes=max_file_bytes)
    transactions = SqliteTransactions(file)
    try:
        clock = await open_clock(
            transactions, now=now, elapsed=steadiness.elapsed or monotonic, hold_s=steadiness.hold_s
        )
        executions = SqliteExecutionStore(file=file, now=clock.expiry_now, monotonic=monotonic, quota=quota)
        await executions.expire_leases()
    except BaseException:
        await file.aclose()
        raise
    agents = StoredAgentDirectory(
        rows=SqliteAgentRows(file),
        max_agents=max_agents,
        max_agents_per_tenant=max_agents_per_tenant,
        now=clock.expiry_now,
    )
    return Stores(
        executions=executions,
        agents=agents,
        snapshots=snapshots or StoredSnapshotStore(rows=transactions, quota=snapshot_quota),
        transactions=transactions,
        place=f"SQLite, {path}",
        clock=clock,
        is_in_place=lambda: file.is_in_place,
    )


async def _postgres_stores(
    url: str,
    *,
    now: Callable[[], datetime] | None,
    monotonic: Callable[[], float],
    steadiness: Steadiness,
    quota: TenantQuota,
    max_agents: int,
    max_agents_per_tenant: int | None,
    snapshot_quota: SnapshotQuota,
    snapshots: SnapshotStore | None,
) -> Stores:
    _require_driver()
    from reasond_server.agents.stored_directory import (  # noqa: PLC0415 - an extra
        PostgresAgentRows,
        StoredAgentDirectory,
    )
    from reasond_server.eventlog.stored.postgres_store import PostgresExecutionStore  # noqa: PLC0415 - an extra
    from reasond_server.snapshots.stored import StoredSnapshotStore  # noqa: PLC0415 - an extra
    from reasond_server.storage.postgres_pool import PostgresPool, describe_address  # noqa: PLC0415 - an extra
    from reasond_server.storage.transactions import PostgresTransactions  # noqa: PLC0415 - an extra

    pool = await PostgresPool.open(url)
    transactions = PostgresTransactions(pool)
    try:
        clock = await open_clock(
            transactions, now=now, elapsed=steadiness.elapsed or monotonic, hold_s=steadiness.hold_s
        )
    except BaseException:
        await pool.aclose()
        raise
    executions = PostgresExecutionStore(pool=pool, now=clock.expiry_now, monotonic=monotonic, quota=quota)
    await executions.listen()
    agents = StoredAgentDirectory(
        rows=PostgresAgentRows(pool),
        max_agents=max_agents,
        max_agents_per_tenant=max_agents_per_tenant,
        now=clock.expiry_now,
    )
    return Stores(
        executions=executions,
        agents=agents,
        snapshots=snapshots or StoredSnapshotStore(rows=transactions, quota=snapshot_quota),
        transactions=transactions,
        place=f"PostgreSQL, {describe_address(url)}",
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
