"""Event logs in PostgreSQL, for any number of server processes."""

from __future__ import annotations

import asyncio
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
from reasond_server.eventlog.stored.clearing import (
    CHANNEL,
    NOTIFY,
    ClearedDatabase,
    build_grown_notices,
    build_notice,
    notify_grown,
)
from reasond_server.eventlog.stored.postgres_takeover import RECOVER, WAKE, WAKE_WITH, take_over
from reasond_server.eventlog.stored.rows import (
    HEAD_COLUMNS,
    choose_plan,
    encode_part,
    execution_columns,
    find_owner,
    is_whole,
    notice_columns,
    read_head,
    waking_columns,
)
from reasond_server.eventlog.stored.sql_store import FORGOTTEN_KEPT_S, SqlExecutionStore, TenantRooms
from reasond_server.storage.transactions import NOW, Job, PostgresTransactions, Values, bind, fetch, perform_job

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from datetime import datetime

    from reasond_server.eventlog.store import Append, Lease, Recovery, SessionClaim, SessionStore, StoreRoom
    from reasond_server.eventlog.stored.rows import PartRow
    from reasond_server.storage.postgres_pool import PgConnection, PostgresPool
    from reasond_server.types import Execution, LoggedEvent

_OPEN = frozenset({"running", "suspended"})
# The holder of a request id may be removed between the two statements that look for it.
_TRIES = 3
_LOCKING = "FOR UPDATE"

_CREATE = f"""
INSERT INTO executions (tenant, execution_id, body, state, strategy, finish_reason, create_time, expire_time, version,
    last_sequence, size, fence, lease_owner, lease_until, is_cancel_requested, is_keep_requested, plan,
    kind, wake_time, session_id)
SELECT :tenant, :execution_id, :body, :state, :strategy, :finish_reason, :create_time, :expire_time::float8, :version,
    :last_sequence, :size, 1, :owner, {NOW} + :seconds, FALSE, FALSE, :plan,
    :kind, :wake_time::float8, :session_id
"""
_CREATE_FREE = f"{_CREATE} ON CONFLICT DO NOTHING RETURNING execution_id"
_CREATE_CLAIMING = f"""
WITH held AS ({sql.CLAIM}), made AS ({_CREATE} WHERE EXISTS (SELECT 1 FROM held) ON CONFLICT DO NOTHING)
SELECT execution_id FROM held
"""  # noqa: S608 - constants of ours
_APPEND = f"""
WITH part AS (
    SELECT * FROM unnest(:tenants::text[], :names::text[], :versions::bigint[], :fences::bigint[], :added::bigint[],
        :befores::bigint[], :lasts::bigint[], :sizes::bigint[], :bodies::text[], :states::text[], :reasons::text[],
        :expiries::float8[], :ends::bool[], :drops::bool[], :strategies::text[], :create_times::float8[],
        :plans::text[], :owners::text[], :seconds::float8[], :kinds::text[], :wake_times::float8[],
        :plans_dropped::bool[])
    AS p (tenant, execution_id, version, fence, added, before, last, size, body, state, reason, expiry, ends, drops,
        strategy, create_time, plan, owner, seconds, kind, wake_time, drops_plan)
), made AS (
    INSERT INTO executions (tenant, execution_id, body, state, strategy, finish_reason, create_time, expire_time,
        version, last_sequence, size, fence, lease_owner, lease_until, is_cancel_requested, is_keep_requested, plan,
        kind, wake_time)
    SELECT tenant, execution_id, body, state, strategy, reason, create_time, expiry, added, last,
        size + length(plan), 1, owner,
        {NOW} + seconds, FALSE, FALSE, plan, kind, wake_time
    FROM part WHERE plan IS NOT NULL ON CONFLICT DO NOTHING
    RETURNING tenant, execution_id
), updated AS (
    UPDATE executions e SET body = p.body, state = p.state, finish_reason = p.reason, expire_time = p.expiry,
        version = p.version + p.added, last_sequence = p.last, size = e.size + p.size,
        plan = CASE WHEN p.drops_plan THEN '' ELSE e.plan END, wake_time = p.wake_time,
        lease_owner = CASE WHEN p.state = 'suspended' THEN '' ELSE e.lease_owner END
    FROM part p
    WHERE p.plan IS NULL
        AND e.tenant = p.tenant AND e.execution_id = p.execution_id AND e.version = p.version AND e.fence = p.fence
        AND e.state = 'running' AND e.last_sequence = p.before AND (p.ends OR e.size + p.size <= :largest)
    RETURNING e.tenant, e.execution_id, p.drops
), taken AS (
    SELECT tenant, execution_id FROM made UNION ALL SELECT tenant, execution_id FROM updated
), dropped AS (
    DELETE FROM entries d USING updated t
    WHERE t.drops AND d.tenant = t.tenant AND d.execution_id = t.execution_id AND d.sequence IS NULL
), written AS (
    INSERT INTO entries (tenant, execution_id, position, sequence, key, body)
    SELECT t.tenant, t.execution_id, n.position, n.sequence, n.key, n.body
    FROM unnest(:entry_names::text[], :positions::bigint[], :sequences::bigint[], :keys::text[], :texts::text[])
        AS n (execution_id, position, sequence, key, body)
    JOIN taken t ON t.execution_id = n.execution_id
)
SELECT execution_id, (SELECT count(pg_notify(:channel, notice)) FROM unnest(:notices::text[]) AS notice) FROM taken
"""  # noqa: S608 - a constant of ours
_HEAD = f"SELECT {HEAD_COLUMNS} FROM executions WHERE tenant = :tenant AND execution_id = :execution_id"  # noqa: S608 - constants of ours
_BODIES = """
SELECT position, body FROM entries
WHERE tenant = :tenant AND execution_id = :execution_id AND position > :version
"""
_RENEW = f"""
UPDATE executions SET lease_until = {NOW} + :seconds
FROM unnest(:names::text[], :fences::bigint[]) AS held (name, known_fence)
WHERE execution_id = name AND fence = known_fence AND lease_owner = :owner AND state = 'running'
RETURNING execution_id, is_cancel_requested, is_keep_requested
"""  # noqa: S608 - constants of ours
_FORGET = """
WITH old AS (
    SELECT tenant, execution_id FROM executions WHERE expire_time <= :now
    ORDER BY expire_time LIMIT :limit FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM executions e USING old o WHERE e.tenant = o.tenant AND e.execution_id = o.execution_id
    RETURNING e.tenant, e.execution_id
)
INSERT INTO forgotten (tenant, execution_id, forget_time) SELECT tenant, execution_id, :now FROM gone
ON CONFLICT DO NOTHING
"""
_FORGET_SESSIONS = f"""
DELETE FROM sessions WHERE (tenant, session_id) IN ({sql_sessions.EXPIRED} FOR UPDATE SKIP LOCKED)
"""  # noqa: S608 - a constant of ours


class _PoolDatabase:
    """Runs the statements of `SqlExecutionStore` on a pool of connections."""

    locking = _LOCKING

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool

    async def select(self, statement: str, values: Mapping[str, object]) -> Sequence[Sequence[Any]]:
        """See Database."""
        return await self._pool.run(lambda connection: fetch(connection, statement, values))

    async def change(
        self, statement: str, values: Mapping[str, object], change: Change | None = None
    ) -> Sequence[Sequence[Any]]:
        """See Database."""

        async def job(connection: PgConnection) -> Sequence[Sequence[Any]]:
            async with connection.transaction():
                rows = await fetch(connection, statement, values)
                if rows and change is not None:
                    notice = {"channel": CHANNEL, "payload": build_notice(change, [name for (name,) in rows])}
                    await connection.execute(bind(NOTIFY), notice)
            return rows

        return await self._pool.run(job, repeats=False)

    async def remove(self, begin: Callable[[], Job[Sequence[str]]]) -> None:
        """See Database."""

        async def job(connection: PgConnection) -> None:
            async with connection.transaction():
                await notify_grown(connection, await perform_job(connection, begin))

        await self._pool.run(job)


class PostgresExecutionStore(SqlExecutionStore):
    """An ExecutionStore over a `PostgresPool`; the database's clock measures leases.

    LISTEN/NOTIFY reports the writes of one process to the watchers in all processes; after a lost connection all
    watchers get GREW.
    """

    is_durable = True
    is_shared = True

    def __init__(
        self,
        *,
        pool: PostgresPool,
        now: Callable[[], datetime],
        monotonic: Callable[[], float],
        largest_log_bytes: int = LARGEST_LOG_BYTES,
        quota: TenantQuota = UNBOUNDED,
        max_bytes: int = 0,
    ) -> None:
        super().__init__(
            database=_PoolDatabase(pool), watchers=Watchers(), now=now, largest_log_bytes=largest_log_bytes
        )
        self._cleared = ClearedDatabase(database=self._database, max_bytes=max_bytes, monotonic=monotonic)
        self.room: StoreRoom = TenantRooms(
            quota=quota, database=self._database, monotonic=monotonic, read_fill=self._cleared.read_fill
        )
        self.sessions: SessionStore = sql_sessions.SqlSessions(database=self._database, now=now)
        self._pool = pool

    async def listen(self) -> None:
        """Start to receive notices of changes; called once, at the start."""

        def pass_on(payload: str) -> None:
            change, _, names = payload.partition(" ")
            if change in set(Change):
                self._watchers.notify(names.split(" "), Change(change))

        await self._pool.listen(CHANNEL, pass_on, missed=self._watchers.notify_all)

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
        create = partial(sql.create_execution, insert=_insert, locking=_LOCKING)

        def begin() -> Job[Claim]:
            if session is None:
                return create(values)
            return sql_sessions.create_in_session(session, values, create=create, locking=_LOCKING)

        if session is None and not values["inherits"]:
            # One statement, which needs no transaction.
            return await self._pool.run(lambda connection: perform_job(connection, begin))
        try:
            return await PostgresTransactions(self._pool).change(begin)
        except sql_sessions.AnsweredError as error:
            return error.claim

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        """See ExecutionStore."""
        now = self._now().timestamp()
        outcomes: list[ReasondError | None] = [None] * len(batch)
        rows: dict[int, PartRow] = {}
        for index, part in enumerate(batch):
            try:
                rows[index] = encode_part(part)
            except InternalError as error:
                outcomes[index] = error

        async def job(connection: PgConnection) -> dict[int, ReasondError | None]:
            rounds = _group_in_rounds(rows)
            if len(rounds) == 1 and not any(row.leaves_session or row.part.notices for row in rows.values()):
                return await _append_different(connection, rounds[0], largest=self._largest, now=now)
            async with connection.transaction():
                return {
                    index: outcome
                    for indexes in rounds
                    for index, outcome in (
                        await _append_different(connection, indexes, largest=self._largest, now=now)
                    ).items()
                }

        if rows:
            try:
                for index, outcome in (await self._pool.run(job)).items():
                    outcomes[index] = outcome
            except StoreFullError as error:
                return [error for _ in batch]
        return outcomes

    async def renew(self, lease: Lease, fences: Mapping[str, int]) -> Renewal:
        """See ExecutionStore."""
        values = {
            "names": list(fences),
            "fences": list(fences.values()),
            "owner": lease.owner,
            "seconds": lease.seconds,
        }
        held = {row[0]: (row[1], row[2]) for row in await self._database.select(_RENEW, values)}
        return Renewal.of(fences, held)

    async def recover(self, lease: Lease, *, limit: int) -> Sequence[Recovery]:
        """See ExecutionStore."""
        values = {"limit": limit, "now": self._now().timestamp(), "owner": lease.owner, "seconds": lease.seconds}
        return await self._pool.run(lambda connection: take_over(connection, RECOVER, values))

    async def wake(
        self, lease: Lease, tenant: str, execution_id: str, *, event: LoggedEvent | None = None
    ) -> Recovery | None:
        """See ExecutionStore."""
        if not may_wake(await self.find(tenant, execution_id), event):
            return None
        name = {"tenant": tenant, "execution_id": execution_id}
        values = name | {"owner": lease.owner, "seconds": lease.seconds}
        if event is None:
            taken = await self._pool.run(lambda connection: take_over(connection, WAKE, values))
            return taken[0] if taken else None
        # In a thread, because an event may hold megabytes of results.
        values |= await asyncio.to_thread(waking_columns, event, largest=self._largest)
        taken = await self._pool.run(
            lambda connection: take_over(connection, WAKE_WITH, values, sequence=event.sequence)
        )
        if not taken and may_wake(await self.find(tenant, execution_id), event):
            raise build_log_full_error(self._largest)
        return taken[0] if taken else None

    async def announce(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        notice = {"channel": CHANNEL, "payload": build_notice(Change.FOLLOWED, [execution_id])}
        if await self._rows.exists(tenant, execution_id):
            await self._database.select(NOTIFY, notice)

    async def forget(self, *, limit: int) -> int:
        """See ExecutionStore; what has ended also goes before its time where `max_bytes` is nearly reached."""
        now = self._now().timestamp()
        values = {"now": now, "limit": limit, "oldest": now - FORGOTTEN_KEPT_S}

        async def job(connection: PgConnection) -> int:
            await connection.execute(bind("DELETE FROM forgotten WHERE forget_time < :oldest"), values)
            await connection.execute(bind(_FORGET_SESSIONS), values)
            return (await connection.execute(bind(_FORGET), values)).rowcount

        removed = await self._pool.run(job)
        if not removed:
            await self._cleared.clear(now)
        return removed

    async def aclose(self) -> None:
        """See ExecutionStore."""
        await self._pool.aclose()


async def _append_different(
    connection: PgConnection, rows: Mapping[int, PartRow], *, largest: int, now: float
) -> dict[int, ReasondError | None]:
    """Append parts of different logs in one statement, free sessions, add notices; then explain what was refused."""
    good = {index: row for index, row in rows.items() if is_whole(row, largest=largest)}
    # A log that is created only now cannot have watchers.
    grown = [row.part.execution.execution_id for row in good.values() if row.part.creation is None and row.events]
    values = _build_columns(good.values()) | {
        "largest": largest,
        "channel": CHANNEL,
        "notices": build_grown_notices(grown),
    }
    taken = {name for name, _ in await fetch(connection, _APPEND, values)} if good else set()
    ended = [row for row in good.values() if row.leaves_session and row.part.execution.execution_id in taken]
    await perform_job(connection, partial(sql_sessions.leave_sessions, ended, now=now))
    told = [notice for row in good.values() if row.part.execution.execution_id in taken for notice in row.part.notices]
    if told:
        async with connection.cursor() as cursor:
            await cursor.executemany(bind(sql.ADD_NOTICE), notice_columns(told, now=now))
    return {
        index: None
        if index in good and row.part.execution.execution_id in taken
        else await _explain_refusal(connection, row, largest=largest)
        for index, row in rows.items()
    }


async def _explain_refusal(connection: PgConnection, row: PartRow, *, largest: int) -> ReasondError | None:
    """Return why the log refused `row`; None if it holds `row` already."""
    execution = row.part.execution
    name = {"tenant": execution.tenant, "execution_id": execution.execution_id, "version": row.part.version}
    found = await fetch(connection, _HEAD, name)
    head = read_head(found[0]) if found else None
    if head is not None and may_repeat(row.part, head.head) and head.body == row.body:
        kept = dict(await fetch(connection, _BODIES, name))
        if kept == {entry.position: entry.body for entry in row.entries}:
            return None
    refused = find_refusal(row.part, row.events, head.head if head else None, size=row.size, largest=largest)
    if refused is None and row.part.creation is not None:
        return build_id_taken_error(execution.execution_id)
    return refused or InternalError(f"the log of {execution.execution_id} changed while it was written")


def _insert(values: Values) -> Job[Claim | None]:
    """Insert the execution and its claim; return the claim of another execution if that has the request id."""
    statement = _CREATE_CLAIMING if values["request_id"] else _CREATE_FREE
    for _ in range(_TRIES):
        if (yield statement, values):
            return None
        if not values["request_id"]:
            if not (yield sql.EXISTS, values):
                raise InternalError("an execution of another tenant has the same id")
            return None
        if held := (yield sql.CLAIMED, values):
            return Claim(execution_id=held[0][0], digest=held[0][1])
    raise InternalError("a request id changed hands whenever it was asked for")


def _group_in_rounds(rows: Mapping[int, PartRow]) -> list[dict[int, PartRow]]:
    """Return the parts in rounds, in order; no round has two parts of the same log."""
    rounds: list[dict[int, PartRow]] = []
    seen: dict[str, int] = {}
    for index, row in rows.items():
        name = row.part.execution.execution_id
        turn = seen.get(name, 0)
        seen[name] = turn + 1
        if turn == len(rounds):
            rounds.append({})
        rounds[turn][index] = row
    return rounds


def _build_columns(rows: Iterable[PartRow]) -> dict[str, object]:
    """Return the parts and their entries column by column."""
    rows = list(rows)
    executions = [execution_columns(row.part.execution) for row in rows]
    creations = [row.part.creation for row in rows]
    entries = [(row.part.execution.execution_id, entry) for row in rows for entry in row.entries]
    return {
        "tenants": [row["tenant"] for row in executions],
        "names": [row["execution_id"] for row in executions],
        "versions": [row.part.version for row in rows],
        "fences": [row.part.fence for row in rows],
        "added": [len(row.part.entries) for row in rows],
        "befores": [row.first_sequence for row in rows],
        "lasts": [row["last_sequence"] for row in executions],
        "sizes": [row.size for row in rows],
        "bodies": [row.body for row in rows],
        "states": [row["state"] for row in executions],
        "reasons": [row["finish_reason"] for row in executions],
        "expiries": [row["expire_time"] for row in executions],
        "ends": [row["state"] not in _OPEN for row in executions],
        "drops": [row.drops_records for row in rows],
        "plans_dropped": [row.drops_plan for row in rows],
        "strategies": [row["strategy"] for row in executions],
        "create_times": [row["create_time"] for row in executions],
        "plans": [
            None if creation is None else choose_plan(row) for row, creation in zip(rows, creations, strict=True)
        ],
        "owners": [find_owner(row) for row in rows],
        "seconds": [creation.lease.seconds if creation else 0.0 for creation in creations],
        "kinds": [row["kind"] for row in executions],
        "wake_times": [row["wake_time"] for row in executions],
        "entry_names": [name for name, _ in entries],
        "positions": [entry.position for _, entry in entries],
        "sequences": [entry.sequence for _, entry in entries],
        "keys": [entry.key for _, entry in entries],
        "texts": [entry.body for _, entry in entries],
    }
