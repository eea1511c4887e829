"""Taking logs over in PostgreSQL: those that no process writes, and suspended ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.eventlog.stored import sql_store as sql
from reasond_server.eventlog.stored.clearing import notify_grown
from reasond_server.eventlog.stored.rows import (
    TAKEOVER_COLUMNS,
    VERSION_COLUMN,
    LogTakeover,
    build_recovery,
    build_takeover_row,
    write_woken_body,
)
from reasond_server.storage.transactions import NOW, bind, fetch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.eventlog.store import Recovery
    from reasond_server.storage.postgres_pool import PgConnection

_TAKE = f"UPDATE executions e SET {sql.TAKE}, lease_until = {NOW} + :seconds"  # noqa: S608 - constants of ours
RECOVER = f"""
WITH orphan AS (
    SELECT tenant, execution_id, FALSE AS was_suspended, FALSE AS is_due FROM executions
    WHERE state = 'running' AND lease_until <= {NOW}
    ORDER BY lease_until, execution_id LIMIT :limit FOR UPDATE SKIP LOCKED
), sleeper AS (
    SELECT tenant, execution_id, TRUE AS was_suspended, coalesce(wake_time <= :now, FALSE) AS is_due FROM executions
    WHERE state = 'suspended' AND {sql.WAKE_TIME} <= :now
    ORDER BY {sql.WAKE_TIME}, execution_id LIMIT :limit FOR UPDATE SKIP LOCKED
), free AS (
    SELECT * FROM orphan UNION ALL SELECT * FROM sleeper LIMIT :limit
)
{_TAKE} FROM free f WHERE e.tenant = f.tenant AND e.execution_id = f.execution_id
RETURNING e.tenant, e.execution_id, f.was_suspended, f.is_due, {TAKEOVER_COLUMNS}
"""  # noqa: S608 - constants of ours
WAKE = f"""
{_TAKE} WHERE tenant = :tenant AND execution_id = :execution_id AND state = 'suspended'
RETURNING tenant, execution_id, TRUE, FALSE, {TAKEOVER_COLUMNS}
"""
WAKE_WITH = f"""
{_TAKE}, {sql.WAKE_WITH}
WHERE tenant = :tenant AND execution_id = :execution_id AND state = 'suspended' AND {sql.IS_NEXT}
RETURNING tenant, execution_id, TRUE, FALSE, {TAKEOVER_COLUMNS}
"""


async def take_over(
    connection: PgConnection, statement: str, values: Mapping[str, object], *, sequence: int | None = None
) -> list[Recovery]:
    """Return the logs that `statement` takes over, except those that are left to a later release.

    With a `sequence`, `values` hold the event that is appended with it.
    """
    taken = []
    async with connection.transaction():
        for tenant, execution_id, was_suspended, is_due, *head in await fetch(connection, statement, values):
            name = {"tenant": tenant, "execution_id": execution_id}
            if sequence is not None:
                await connection.execute(bind(sql.ADD_EVENT), {**values, "position": head[VERSION_COLUMN]})
                await notify_grown(connection, [execution_id])
            if was_suspended:
                head[0] = write_woken_body(head[0], sequence)
                await connection.execute(bind(sql.SET_BODY), name | {"body": head[0]})
            takeover = LogTakeover(
                tenant=tenant,
                execution_id=execution_id,
                was_suspended=was_suspended,
                is_due=is_due,
                waking_sequence=sequence,
            )
            one = build_recovery(build_takeover_row(takeover, head, await fetch(connection, sql.LOG, name)))
            if one is not None:
                taken.append(one)
    return taken
