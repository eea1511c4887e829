"""The sessions of the store in PostgreSQL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from reasond_server.errors.base import InternalError
from reasond_server.eventlog.stored import sql_sessions as sql
from reasond_server.eventlog.stored.postgres_notices import notify_grown
from reasond_server.eventlog.stored.sql_sessions import SqlSessions
from reasond_server.eventlog.stored.sql_store import CLAIMED, EXISTS
from reasond_server.storage.transactions import bind, fetch

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from reasond_server.eventlog.store import Claim, SessionClaim
    from reasond_server.eventlog.stored.rows import PartRow
    from reasond_server.eventlog.stored.sql_store import Database
    from reasond_server.storage.postgres_pool import PgConnection, PostgresPool

_LOCK = f"{sql.LOCK} FOR UPDATE"
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
                sql.require_closed(session_id, await fetch(connection, sql.OPEN_ONE, values))
                names = [name for (name,) in await fetch(connection, sql.DELETE_EXECUTIONS, values)]
                await connection.execute(bind(sql.DELETE), values)
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
            return await _create_whole(connection, session, values | sql.build_claim_columns(session), create=create)
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
    entered = sql.enter(session, row, await fetch(connection, sql.OPEN_ONE, values), now=values["now"])
    claim = await create(connection, values)
    if claim.execution_id != values["execution_id"]:
        raise _AnsweredError(claim)
    await connection.execute(bind(sql.ENTER), values | entered)
    await connection.execute(bind(sql.KEEP), values)
    return claim


async def _lock(connection: PgConnection, values: dict[str, Any]) -> Sequence[Any]:
    """Return the row of the session, which nobody else changes until the transaction ends."""
    for _ in range(_TRIES):
        await connection.execute(bind(sql.MAKE), values)
        if rows := await fetch(connection, _LOCK, values):
            return rows[0]
    raise InternalError("a session was deleted whenever it was asked for")


async def leave_sessions(connection: PgConnection, rows: Sequence[PartRow], *, now: float) -> None:
    """Free the sessions of the executions that have ended with `rows`, in the open transaction."""
    for row in rows:
        values = sql.build_leave_columns(row, now=now)
        await connection.execute(bind(sql.leave_statement(row)), values)
        await connection.execute(bind(sql.KEEP), values)
