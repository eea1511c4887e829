"""Event logs in one SQLite database, a file or in memory, for one server process."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.errors.limits import StoreFullError
from reasond_server.eventlog.contract import (
    LARGEST_LOG_BYTES,
    UNBOUNDED,
    TenantQuota,
    Watchers,
    build_id_taken_error,
    build_log_full_error,
    find_refusal,
    may_repeat,
    may_wake,
)
from reasond_server.eventlog.store import Change, Claim, Renewal
from reasond_server.eventlog.stored import sql_sessions
from reasond_server.eventlog.stored import sql_store as sql
from reasond_server.eventlog.stored.clearing import ClearedFile
from reasond_server.eventlog.stored.rows import (
    HEAD_COLUMNS,
    TAKEOVER_COLUMNS,
    VERSION_COLUMN,
    LogTakeover,
    StoredHead,
    build_recovery,
    build_takeover_row,
    creation_columns,
    encode_part,
    execution_columns,
    find_owner,
    is_whole,
    notice_columns,
    read_head,
    waking_columns,
    write_woken_body,
)
from reasond_server.eventlog.stored.sql_store import SqlExecutionStore, TenantRooms
from reasond_server.storage.sqlite_memory import SqliteMemory
from reasond_server.storage.transactions import Job, SqliteDatabase, Values, run_job
from reasond_server.types import Execution, ExecutionState, LoggedEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime
    from sqlite3 import Connection

    from reasond_server.eventlog.store import Append, Lease, Recovery, SessionClaim, SessionStore, StoreRoom
    from reasond_server.eventlog.stored.rows import PartRow

_CREATE = """
INSERT INTO executions (tenant, execution_id, body, state, strategy, finish_reason, create_time, expire_time, version,
    last_sequence, size, fence, lease_owner, lease_until, is_cancel_requested, is_keep_requested, plan,
    kind, wake_time, session_id)
VALUES (:tenant, :execution_id, :body, :state, :strategy, :finish_reason, :create_time, :expire_time, :version,
    :last_sequence, :size, 1, :owner, :until, FALSE, FALSE, :plan, :kind, :wake_time, :session_id)
ON CONFLICT DO NOTHING
"""
_HEAD = f"SELECT {HEAD_COLUMNS} FROM executions WHERE tenant = ? AND execution_id = ?"  # noqa: S608 - a constant
# Only the log that the part expects is changed, so that it need not be read before.
_GROW = """
UPDATE executions SET body = :body, version = :version, last_sequence = :last_sequence, size = size + :size {ending}
WHERE tenant = :tenant AND execution_id = :execution_id AND version = :from_version AND fence = :fence
    AND state = 'running' AND last_sequence = :from_sequence AND (size + :size <= :largest OR :is_last)
"""
# An update rewrites the entries of all indexes whose columns it names, even if their values stay.
_UPDATE = _GROW.format(ending="")
_UPDATE_ENDING = _GROW.format(
    ending=""", state = :state, finish_reason = :finish_reason, expire_time = :expire_time, wake_time = :wake_time,
    plan = CASE WHEN :drops_plan THEN '' ELSE plan END,
    lease_owner = CASE WHEN :is_suspended THEN '' ELSE lease_owner END"""
)
_INSERT = "INSERT INTO entries (tenant, execution_id, position, sequence, key, body) VALUES (?, ?, ?, ?, ?, ?)"
_DROP = "DELETE FROM entries WHERE tenant = ? AND execution_id = ? AND sequence IS NULL"
_BODIES = "SELECT position, body FROM entries WHERE tenant = ? AND execution_id = ? AND position > ?"
_FREE = f"""
SELECT * FROM (
    SELECT tenant, execution_id, FALSE, FALSE FROM executions
    WHERE state = 'running' AND lease_until <= :now_s ORDER BY lease_until, execution_id LIMIT :limit)
UNION ALL
SELECT * FROM (
    SELECT tenant, execution_id, TRUE, coalesce(wake_time <= :now, FALSE) FROM executions
    WHERE state = 'suspended' AND {sql.WAKE_TIME} <= :now ORDER BY {sql.WAKE_TIME}, execution_id LIMIT :limit)
LIMIT :limit
"""  # noqa: S608 - constants of ours
_TAKE = f"""
UPDATE executions SET {sql.TAKE}, lease_until = :until
WHERE tenant = :tenant AND execution_id = :execution_id AND state = :state
RETURNING {TAKEOVER_COLUMNS}
"""  # noqa: S608 - constants of ours
_WAKE_WITH = f"""
UPDATE executions SET {sql.TAKE}, lease_until = :until, {sql.WAKE_WITH}
WHERE tenant = :tenant AND execution_id = :execution_id AND state = :state AND {sql.IS_NEXT}
RETURNING {TAKEOVER_COLUMNS}
"""  # noqa: S608 - constants of ours
_RENEW = """
UPDATE executions SET lease_until = ?
WHERE execution_id = ? AND fence = ? AND lease_owner = ? AND state = 'running'
RETURNING is_cancel_requested, is_keep_requested
"""


@dataclass(slots=True)
class _Outcome:
    """The outcome of a batch: the refusals in order, and the executions that got new events."""

    refusals: list[ReasondError | None]
    grown: dict[str, None]


class _FileDatabase:
    """Runs the statements of `SqlExecutionStore` on a file, which has one writer at a time."""

    locking = ""

    def __init__(self, file: SqliteDatabase, watchers: Watchers) -> None:
        self._file = file
        self._watchers = watchers

    async def select(self, statement: str, values: Mapping[str, object]) -> Sequence[Sequence[Any]]:
        """See Database."""
        return await self._file.read(lambda connection: connection.execute(statement, dict(values)).fetchall())

    async def change(
        self, statement: str, values: Mapping[str, object], change: Change | None = None
    ) -> Sequence[Sequence[Any]]:
        """See Database."""

        def job(connection: Connection) -> Sequence[Sequence[Any]]:
            return connection.execute(statement, dict(values)).fetchall()

        def tell(rows: Sequence[Sequence[Any]]) -> None:
            if change is not None:
                self._watchers.notify([name for (name,) in rows], change)

        return await self._file.write(job, then=tell)

    async def remove(self, begin: Callable[[], Job[Sequence[str]]]) -> None:
        """See Database. No file contains the content afterwards, as after a deletion of an execution."""
        await self._file.write(
            lambda connection: run_job(connection, begin),
            then=lambda names: self._watchers.notify(names, Change.GREW),
        )
        await self._file.erase()


class SqliteExecutionStore(SqlExecutionStore):
    """An ExecutionStore in a `SqliteDatabase`; `monotonic` (seconds) measures leases.

    The lock of the file ensures that no other process writes; therefore the leases of an earlier process have expired
    when `open` returns.
    """

    is_durable = True
    is_shared = False

    def __init__(
        self,
        *,
        file: SqliteDatabase,
        now: Callable[[], datetime],
        monotonic: Callable[[], float],
        largest_log_bytes: int = LARGEST_LOG_BYTES,
        quota: TenantQuota = UNBOUNDED,
    ) -> None:
        watchers = Watchers()
        database = _FileDatabase(file, watchers)
        super().__init__(database=database, watchers=watchers, now=now, largest_log_bytes=largest_log_bytes)
        self._cleared = ClearedFile(file=file, now=now)
        self.room: StoreRoom = TenantRooms(
            quota=quota, database=database, monotonic=monotonic, read_fill=self._cleared.read_fill
        )
        self.sessions: SessionStore = sql_sessions.SqlSessions(database=database, now=now)
        self._file = file
        self._monotonic = monotonic

    async def expire_leases(self) -> None:
        """Expire every lease, because the processes that held them have ended; called once, at the start."""
        statement = "UPDATE executions SET lease_until = -1e300 WHERE state = 'running'"
        await self._file.write(lambda connection: connection.execute(statement).close(), then=_do_nothing)

    async def create(
        self,
        execution: Execution,
        *,
        digest: str,
        plan: str,
        lease: Lease,
        inherits: str = "",
        session: SessionClaim | None = None,
    ) -> Claim:
        """See ExecutionStore."""
        now = self._now().timestamp()
        values = sql.build_creation(
            execution, session, digest=digest, plan=plan, lease=lease, inherits=inherits, now=now
        )
        values["until"] = self._monotonic() + values["seconds"]
        create = partial(sql.create_execution, insert=_insert, locking="")

        def begin() -> Job[Claim]:
            if session is None:
                return create(values)
            return sql_sessions.create_in_session(session, values, create=create, locking="")

        try:
            return await self._cleared.write(lambda connection: run_job(connection, begin), then=_do_nothing)
        except sql_sessions.AnsweredError as error:
            return error.claim

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        """See ExecutionStore."""
        rows: list[PartRow | ReasondError] = []
        for part in batch:
            try:
                rows.append(encode_part(part))
            except InternalError as error:
                rows.append(error)
        now, now_s = self._now().timestamp(), self._monotonic()

        try:
            outcome = await self._cleared.write(
                lambda connection: _append_all(connection, rows, self._largest, now=now, now_s=now_s),
                then=lambda outcome: self._watchers.notify(outcome.grown, Change.GREW),
            )
        except StoreFullError as error:
            return [error for _ in batch]
        return outcome.refusals

    async def renew(self, lease: Lease, fences: Mapping[str, int]) -> Renewal:
        """See ExecutionStore."""
        until = self._monotonic() + lease.seconds

        def job(connection: Connection) -> dict[str, tuple[bool, bool]]:
            held = {}
            for name, fence in fences.items():
                row = connection.execute(_RENEW, (until, name, fence, lease.owner)).fetchone()
                if row is not None:
                    held[name] = (bool(row[0]), bool(row[1]))
            return held

        return Renewal.of(fences, await self._file.write(job, then=_do_nothing))

    async def recover(self, lease: Lease, *, limit: int) -> Sequence[Recovery]:
        """See ExecutionStore."""
        now_s = self._monotonic()
        wanted = {"now": self._now().timestamp(), "now_s": now_s}

        def job(connection: Connection) -> list[Recovery]:
            free = connection.execute(_FREE, wanted | {"limit": limit}).fetchall()
            taken = [
                _take_over(
                    connection,
                    LogTakeover(
                        tenant=tenant, execution_id=name, was_suspended=bool(was_suspended), is_due=bool(is_due)
                    ),
                    lease,
                    now_s=now_s,
                )
                for tenant, name, was_suspended, is_due in free
            ]
            return [one for one in taken if one is not None]

        # Read first: a query that finds nothing must not wait for the writer or occupy it.
        if not await self._file.read(lambda connection: connection.execute(_FREE, wanted | {"limit": 1}).fetchall()):
            return []
        return await self._file.write(job, then=_do_nothing)

    async def wake(
        self, lease: Lease, tenant: str, execution_id: str, *, event: LoggedEvent | None = None
    ) -> Recovery | None:
        """See ExecutionStore."""
        if not may_wake(await self.find(tenant, execution_id), event):
            return None
        now_s = self._monotonic()
        sequence = None if event is None else event.sequence
        takeover = LogTakeover(tenant=tenant, execution_id=execution_id, was_suspended=True, waking_sequence=sequence)

        def job(connection: Connection) -> Recovery | None:
            # Encoded here, because an event may hold megabytes of results.
            extra = {} if event is None else waking_columns(event, largest=self._largest)
            return _take_over(connection, takeover, lease, now_s=now_s, extra=extra)

        def tell(recovery: Recovery | None) -> None:
            if recovery is not None and event is not None:
                self._watchers.notify((execution_id,), Change.GREW)

        recovery = await self._cleared.write(job, then=tell)
        if recovery is None and event is not None and may_wake(await self.find(tenant, execution_id), event):
            raise build_log_full_error(self._largest)
        return recovery

    async def announce(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        if await self._rows.exists(tenant, execution_id):
            self._watchers.notify((execution_id,), Change.FOLLOWED)

    async def delete(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore. No file contains the content afterwards: pages are overwritten and the WAL is emptied."""
        await super().delete(tenant, execution_id)
        await self._file.erase()

    async def forget(self, *, limit: int) -> int:
        """See ExecutionStore; what has ended also goes before its time where `max_file_bytes` is nearly reached."""
        return await self._cleared.clear(limit=limit)

    async def aclose(self) -> None:
        """See ExecutionStore."""
        await self._file.aclose()


class MemoryExecutionStore(SqliteExecutionStore):
    """An ExecutionStore that ends with the process; it holds `max_bytes` at most, or any number if that is 0."""

    is_durable = False

    def __init__(
        self,
        *,
        now: Callable[[], datetime],
        monotonic: Callable[[], float],
        max_bytes: int = 0,
        quota: TenantQuota = UNBOUNDED,
    ) -> None:
        super().__init__(file=SqliteMemory(max_bytes), now=now, monotonic=monotonic, quota=quota)


def _take_over(
    connection: Connection,
    takeover: LogTakeover,
    lease: Lease,
    *,
    now_s: float,
    extra: Mapping[str, object] | None = None,
) -> Recovery | None:
    """Give a log to the owner of `lease`; None if another owner has it by now, or if it is left to a later release.

    `extra` are the parameters of an event that is appended.
    """
    extra = extra or {}
    name = {"tenant": takeover.tenant, "execution_id": takeover.execution_id}
    state = ExecutionState.SUSPENDED if takeover.was_suspended else ExecutionState.RUNNING
    holder = {"owner": lease.owner, "until": now_s + lease.seconds, "state": state.value}
    head = connection.execute(_WAKE_WITH if extra else _TAKE, {**name, **holder, **extra}).fetchone()
    if head is None:
        return None
    if extra:
        connection.execute(sql.ADD_EVENT, {**name, **extra, "position": head[VERSION_COLUMN]})
    if takeover.was_suspended:
        head = (write_woken_body(head[0], takeover.waking_sequence), *head[1:])
        connection.execute(sql.SET_BODY, name | {"body": head[0]})
    return build_recovery(build_takeover_row(takeover, head, connection.execute(sql.LOG, name).fetchall()))


def _insert(values: Values) -> Job[Claim | None]:
    """Insert the execution and its claim; return the claim of another execution if that has the request id."""
    if values["request_id"]:
        # The execution's row may be missing until the commit.
        yield "PRAGMA defer_foreign_keys = ON", {}
        if not (yield sql.CLAIM, values):
            holder, digest = (yield sql.CLAIMED, values)[0]
            return Claim(execution_id=holder, digest=digest)
    if not (yield f"{_CREATE} RETURNING execution_id", values) and not (yield sql.EXISTS, values):
        raise InternalError("an execution of another tenant has the same id")
    return None


def _append_all(
    connection: Connection, rows: Sequence[PartRow | ReasondError], largest: int, *, now: float, now_s: float
) -> _Outcome:
    """Write every part that its log accepts, in order, and find out why others are refused."""
    outcome, taken = _Outcome(refusals=[], grown={}), []
    for row in rows:
        if isinstance(row, ReasondError):
            outcome.refusals.append(row)
        elif is_whole(row, largest=largest) and _write_head(connection, row, largest, now_s):
            outcome.refusals.append(None)
            taken.append(row)
        else:
            outcome.refusals.append(_explain_refusal(connection, row, largest))
    _write_entries(connection, taken)
    if notices := [notice for row in taken for notice in row.part.notices]:
        connection.executemany(sql.ADD_NOTICE, notice_columns(notices, now=now))
    run_job(connection, partial(sql_sessions.leave_sessions, taken, now=now))
    outcome.grown |= dict.fromkeys(row.part.execution.execution_id for row in taken if row.events)
    return outcome


def _write_head(connection: Connection, row: PartRow, largest: int, now_s: float) -> bool:
    """Change or create the execution of `row` if its log is as the part expects; return whether it is."""
    part, execution = row.part, row.part.execution
    if part.creation is not None:
        lease = {"owner": find_owner(row), "until": now_s + part.creation.lease.seconds}
        return connection.execute(_CREATE, creation_columns(row) | lease).rowcount > 0
    values: dict[str, object] = {
        "tenant": execution.tenant,
        "execution_id": execution.execution_id,
        "body": row.body,
        "version": part.version + len(part.entries),
        "last_sequence": execution.last_sequence,
        "size": row.size,
        "from_version": part.version,
        "from_sequence": row.first_sequence,
        "fence": part.fence,
        "largest": largest,
        "is_last": execution.state.has_ended,
    }
    if execution.state is ExecutionState.RUNNING:
        return connection.execute(_UPDATE, values).rowcount > 0
    is_suspended = execution.state is ExecutionState.SUSPENDED
    values |= execution_columns(execution) | {"drops_plan": row.drops_plan, "is_suspended": is_suspended}
    return connection.execute(_UPDATE_ENDING, values).rowcount > 0


def _explain_refusal(connection: Connection, row: PartRow, largest: int) -> ReasondError | None:
    """Return why the log refuses `row`; None if it holds `row` already."""
    execution = row.part.execution
    found = connection.execute(_HEAD, (execution.tenant, execution.execution_id)).fetchone()
    head = read_head(found) if found else None
    if head is not None and _is_repeated(connection, row, head):
        return None
    refused = find_refusal(row.part, row.events, head.head if head else None, size=row.size, largest=largest)
    return refused or build_id_taken_error(execution.execution_id)


def _is_repeated(connection: Connection, row: PartRow, head: StoredHead) -> bool:
    """Return whether `row` is already the last append of the log."""
    if not may_repeat(row.part, head.head) or row.body != head.body:
        return False
    execution = row.part.execution
    values = (execution.tenant, execution.execution_id, row.part.version)
    kept = {row[0]: row[1] for row in connection.execute(_BODIES, values)}
    return kept == {entry.position: entry.body for entry in row.entries}


def _write_entries(connection: Connection, rows: Sequence[PartRow]) -> None:
    """Write the entries of parts whose heads are written."""
    entries, dropping = [], []
    for row in rows:
        name = (row.part.execution.tenant, row.part.execution.execution_id)
        entries += [(*name, entry.position, entry.sequence, entry.key, entry.body) for entry in row.entries]
        if row.drops_records and row.part.creation is None:
            dropping.append(name)
    for statement, values in ((_INSERT, entries), (_DROP, dropping)):
        if values:
            connection.executemany(statement, values)


def _do_nothing(_result: object) -> None:
    """Do nothing: there is nobody to notify."""
