"""The sessions of the store in SQLite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reasond_server.eventlog.store import Change
from reasond_server.eventlog.stored import sql_sessions as sql
from reasond_server.eventlog.stored.sql_sessions import SqlSessions
from reasond_server.eventlog.stored.sql_store import CLAIMED, EXISTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from sqlite3 import Connection

    from reasond_server.eventlog.contract import Watchers
    from reasond_server.eventlog.store import Claim, SessionClaim
    from reasond_server.eventlog.stored.rows import PartRow
    from reasond_server.eventlog.stored.sql_store import Database
    from reasond_server.storage.sqlite_file import SqliteFile


class SqliteSessions(SqlSessions):
    """A SessionStore in a `SqliteFile`."""

    def __init__(
        self, *, database: Database, now: Callable[[], datetime], file: SqliteFile, watchers: Watchers
    ) -> None:
        super().__init__(database=database, now=now)
        self._file = file
        self._watchers = watchers

    async def delete(self, tenant: str, session_id: str) -> None:
        """See SessionStore. No file contains the content afterwards, as after a deletion of an execution."""
        await self.find(tenant, session_id)
        values = {"tenant": tenant, "session_id": session_id}

        def job(connection: Connection) -> list[str]:
            sql.require_closed(session_id, connection.execute(sql.OPEN_ONE, values).fetchall())
            names = [name for (name,) in connection.execute(sql.DELETE_EXECUTIONS, values).fetchall()]
            connection.execute(sql.DELETE, values)
            return names

        await self._file.write(job, then=lambda names: self._watchers.notify(names, Change.GREW))
        await self._file.erase()


def create_in_session(
    connection: Connection,
    session: SessionClaim,
    values: dict[str, Any],
    *,
    create: Callable[[Connection, dict[str, Any]], Claim],
) -> Claim:
    """Create an execution with `create` in a session, unless its request id stands for another one."""
    if connection.execute(EXISTS, values).fetchone():
        return create(connection, values)
    claimed = connection.execute(CLAIMED, values).fetchone() if values["request_id"] else None
    if claimed is not None and claimed[0] != values["inherits"]:
        return create(connection, values)
    values = values | sql.build_claim_columns(session)
    row = connection.execute(sql.LOCK, values).fetchone()
    other = connection.execute(sql.OPEN_ONE, values).fetchall()
    entered = sql.enter(session, row, other, now=values["now"])
    claim = create(connection, values)
    if claim.execution_id == values["execution_id"]:
        connection.execute(sql.MAKE, values)
        connection.execute(sql.ENTER, values | entered)
        connection.execute(sql.KEEP, values)
    return claim


def leave_sessions(connection: Connection, rows: Sequence[PartRow], *, now: float) -> None:
    """Free the sessions of the executions that have ended with `rows`."""
    for row in rows:
        if row.leaves_session:
            values = sql.build_leave_columns(row, now=now)
            connection.execute(sql.leave_statement(row), values)
            connection.execute(sql.KEEP, values)
