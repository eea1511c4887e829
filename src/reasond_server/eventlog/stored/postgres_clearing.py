"""Room in a database of PostgreSQL, by what its executions hold; its sessions, and its notices of changes.

In a full database what has ended goes before its time.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from reasond_server.errors.base import InternalError
from reasond_server.eventlog.store import Change
from reasond_server.eventlog.stored import sql_sessions
from reasond_server.eventlog.stored.sql_sessions import SqlSessions
from reasond_server.eventlog.stored.sql_store import CLAIMED, EXISTS
from reasond_server.eventlog.stored.sqlite_clearing import (
    HIGH_SHARE,
    OLDEST_OF_LARGEST,
    REMOVED_AT_ONCE,
    REMOVED_SHARE,
)
from reasond_server.storage.transactions import bind, fetch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from datetime import datetime

    from reasond_server.eventlog.store import Claim, SessionClaim
    from reasond_server.eventlog.stored.rows import PartRow
    from reasond_server.eventlog.stored.sql_store import Database
    from reasond_server.storage.postgres_pool import PgConnection, PostgresPool

CHANNEL = "reasond_executions"
# PostgreSQL accepts 8,000 bytes in one notice; an id is assumed to take at most 128.
_IDS_PER_NOTICE = 60
NOTIFY = "SELECT pg_notify(:channel, :payload)"


async def notify_grown(connection: PgConnection, names: Sequence[str]) -> None:
    """Notify the watchers of these executions, in all processes, when the transaction commits."""
    for payload in build_grown_notices(names):
        await connection.execute(bind(NOTIFY), {"channel": CHANNEL, "payload": payload})


def build_grown_notices(names: Sequence[str]) -> list[str]:
    """Return the notices that these executions have new events."""
    return [
        build_notice(Change.GREW, names[start : start + _IDS_PER_NOTICE])
        for start in range(0, len(names), _IDS_PER_NOTICE)
    ]


def build_notice(change: Change, names: Iterable[str]) -> str:
    """Return the notice of a change of these executions."""
    return " ".join((change.value, *names))


_LOCK = f"{sql_sessions.LOCK} FOR UPDATE"
# The session may be deleted between the statement that makes it and the one that locks it.
_TRIES = 3


_Create: TypeAlias = "Callable[[PgConnection, dict[str, Any]], Awaitable[Claim]]"


class PostgresSessions(SqlSessions):
    """A SessionStore over a `PostgresPool`."""

    def __init__(self, *, database: Database, now: Callable[[], datetime], pool: PostgresPool) -> None:
        super().__init__(database=database, now=now)
        self._pool = pool

    async def delete(self, tenant: str, session_id: str) -> None:
        """See SessionStore."""
        await self.find(tenant, session_id)
        values = {"tenant": tenant, "session_id": session_id}

        async def job(connection: PgConnection) -> None:
            async with connection.transaction():
                await fetch(connection, _LOCK, values)
                sql_sessions.require_closed(session_id, await fetch(connection, sql_sessions.OPEN_ONE, values))
                names = [name for (name,) in await fetch(connection, sql_sessions.DELETE_EXECUTIONS, values)]
                await connection.execute(bind(sql_sessions.DELETE), values)
                await notify_grown(connection, names)

        await self._pool.run(job)


class _AnsweredError(Exception):
    """Undoes the transaction: the request was known, and its claim is the answer."""

    def __init__(self, claim: Claim) -> None:
        super().__init__()
        self.claim = claim


async def create_in_session(
    connection: PgConnection, session: SessionClaim, values: dict[str, Any], *, create: _Create
) -> Claim:
    """Create an execution with `create` in a session, unless its request id stands for another one."""
    try:
        async with connection.transaction():
            return await _create_whole(
                connection, session, values | sql_sessions.build_claim_columns(session), create=create
            )
    except _AnsweredError as error:
        return error.claim


async def _create_whole(
    connection: PgConnection, session: SessionClaim, values: dict[str, Any], *, create: _Create
) -> Claim:
    row = await _lock(connection, values)
    # Only now, because another call with the same request id may have had the lock before.
    is_repeated = await fetch(connection, EXISTS, values)
    held = await fetch(connection, CLAIMED, values) if values["request_id"] else []
    if is_repeated or (held and held[0][0] != values["inherits"]):
        raise _AnsweredError(await create(connection, values))
    entered = sql_sessions.enter(
        session, row, await fetch(connection, sql_sessions.OPEN_ONE, values), now=values["now"]
    )
    claim = await create(connection, values)
    if claim.execution_id != values["execution_id"]:
        raise _AnsweredError(claim)
    await connection.execute(bind(sql_sessions.ENTER), values | entered)
    await connection.execute(bind(sql_sessions.KEEP), values)
    return claim


async def _lock(connection: PgConnection, values: dict[str, Any]) -> Sequence[Any]:
    """Return the row of the session, which nobody else changes until the transaction ends."""
    for _ in range(_TRIES):
        await connection.execute(bind(sql_sessions.MAKE), values)
        if rows := await fetch(connection, _LOCK, values):
            return rows[0]
    raise InternalError("a session was deleted whenever it was asked for")


async def leave_sessions(connection: PgConnection, rows: Sequence[PartRow], *, now: float) -> None:
    """Free the sessions of the executions that have ended with `rows`, in the open transaction."""
    for row in rows:
        values = sql_sessions.build_leave_columns(row, now=now)
        await connection.execute(bind(sql_sessions.leave_statement(row)), values)
        await connection.execute(bind(sql_sessions.KEEP), values)


_log = logging.getLogger("reasond.executions")
_MEASURED_EVERY_S: Final = 30.0
_CLEARING_TRIES: Final = 5
_SIZE: Final = "SELECT coalesce(sum(size), 0)::bigint FROM executions"
_FORGET_OLDEST: Final = f"""
WITH old AS ({OLDEST_OF_LARGEST}), gone AS (
    DELETE FROM executions e USING old o WHERE e.tenant = o.tenant AND e.execution_id = o.execution_id
    RETURNING e.tenant, e.execution_id
)
INSERT INTO forgotten (tenant, execution_id, forget_time) SELECT tenant, execution_id, :now FROM gone
ON CONFLICT DO NOTHING RETURNING execution_id
"""  # noqa: S608 - a constant of ours


class ClearedDatabase:
    """Keeps the executions of `database` below `max_bytes` together; 0 sets no bound, and nothing is measured.

    The server of the database tells nobody how much room it has, and its files do not shrink with what was deleted, so
    that the sizes of the logs are added up.
    """

    def __init__(self, *, database: Database, max_bytes: int, monotonic: Callable[[], float]) -> None:
        self._database = database
        self._max_bytes = max_bytes
        self._monotonic = monotonic
        self._fill = 0.0
        self._until_s = 0.0

    async def read_fill(self) -> float:
        """See StoreRoom; measured every half a minute."""
        if self._max_bytes and self._monotonic() >= self._until_s:
            await self._measure()
        return self._fill

    async def clear(self, now: float) -> None:
        """Remove what ended first of the tenant that has most until a fifth is free, if less than 15 % are."""
        if not self._max_bytes:
            return
        for _ in range(_CLEARING_TRIES):
            over = await self._measure() - HIGH_SHARE
            if over <= 0:
                return
            wanted = int((over + REMOVED_SHARE) * self._max_bytes)
            values = {"wanted": wanted, "limit": REMOVED_AT_ONCE, "now": now}
            removed = await self._database.change(_FORGET_OLDEST, values)
            if not removed:
                return
            _log.warning("the store is full: what has ended made room", extra={"executions": len(removed)})

    async def _measure(self) -> float:
        ((size,),) = await self._database.select(_SIZE, {})
        self._fill, self._until_s = int(size) / self._max_bytes, self._monotonic() + _MEASURED_EVERY_S
        return self._fill
