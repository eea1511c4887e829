"""Room in a database: what has expired goes, and in a full one what has ended before its time.

The room of a file is its size; that of a database of PostgreSQL is what its executions hold, and its notices of changes
are here too.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

from reasond_server.errors.limits import StoreFullError
from reasond_server.eventlog.store import Change
from reasond_server.eventlog.stored import sql_sessions
from reasond_server.eventlog.stored.sql_store import FORGOTTEN_KEPT_S, Database
from reasond_server.storage.transactions import SqliteDatabase, bind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime
    from sqlite3 import Connection

    from reasond_server.storage.postgres_pool import PgConnection

ResultT = TypeVar("ResultT")

_log = logging.getLogger("reasond.executions")
_REMOVED_AT_ONCE: Final = 1000
# Above this share of `max_file_bytes` what has ended makes room before the file is full, so much of it at once.
_HIGH_SHARE: Final = 0.85
_REMOVED_SHARE: Final = 0.05
_TRIES: Final = 5
_EXPIRED: Final = "SELECT tenant, execution_id FROM executions WHERE expire_time <= ? ORDER BY expire_time LIMIT ?"
# Of the tenant that has most, so that one that fills the file takes nothing from the others.
_OLDEST_OF_LARGEST: Final = """
SELECT tenant, execution_id FROM (
    SELECT tenant, execution_id, sum(size) OVER (ORDER BY expire_time, execution_id) - size AS before
    FROM (
        SELECT tenant, execution_id, expire_time, size FROM executions
        WHERE expire_time IS NOT NULL AND tenant = (
            SELECT tenant FROM executions GROUP BY tenant HAVING count(expire_time) > 0 ORDER BY sum(size) DESC LIMIT 1)
        ORDER BY expire_time, execution_id LIMIT :limit
    ) AS ended
) AS oldest
WHERE before < :wanted
"""
# An id and its place in two indexes; the ids of thirty days would fill a store whose executions come and go.
_ID_BYTES: Final = 200
_OLDEST_IDS: Final = """
DELETE FROM forgotten WHERE rowid IN (
    SELECT rowid FROM forgotten WHERE rowid <= (SELECT max(rowid) FROM forgotten) - :kept ORDER BY rowid LIMIT :limit)
"""


class ClearedFile:
    """Keeps room in `file`; `now` is the time by which executions expire (UTC)."""

    def __init__(self, *, file: SqliteDatabase, now: Callable[[], datetime]) -> None:
        self._file = file
        self._now = now

    async def write(self, job: Callable[[Connection], ResultT], *, then: Callable[[ResultT], None]) -> ResultT:
        """Run `job` as `SqliteDatabase.write` does; while the file is full, what has ended makes room."""
        for _ in range(_TRIES):
            try:
                return await self._file.write(job, then=then)
            except StoreFullError:
                if not await self._remove_expired(_REMOVED_AT_ONCE) and not await self._remove_oldest():
                    raise
        return await self._file.write(job, then=then)

    async def clear(self, *, limit: int) -> int:
        """Remove up to `limit` expired executions, or else keep some room; return how many had expired."""
        removed = await self._remove_expired(limit)
        if not removed and await self._file.read_share() > _HIGH_SHARE:
            await self._remove_oldest()
        return removed

    async def read_fill(self) -> float:
        """See StoreRoom."""
        return max(await self._file.read_share(), await self._file.read_share_of_disk())

    async def _remove_expired(self, limit: int) -> int:
        now = self._now().timestamp()
        if not await self._file.read(lambda connection: _has_expired(connection, now)):
            return 0

        def job(connection: Connection) -> int:
            names = connection.execute(_EXPIRED, (now, limit)).fetchall()
            connection.execute("DELETE FROM forgotten WHERE forget_time < ?", (now - FORGOTTEN_KEPT_S,))
            _remove(connection, names, now)
            old = connection.execute(sql_sessions.EXPIRED, {"now": now, "limit": limit}).fetchall()
            connection.executemany("DELETE FROM sessions WHERE tenant = ? AND session_id = ?", old)
            return len(names)

        return await self._commit(job)

    async def _remove_oldest(self) -> int:
        """Remove a twentieth of the file: what ended first of the tenant that has most; return how much went.

        The ids that are noted take as much at most: the oldest of more go, too.
        """
        now, wanted = self._now().timestamp(), _REMOVED_SHARE * await self._file.read_size()

        def job(connection: Connection) -> int:
            ids = {"kept": int(wanted / _ID_BYTES), "limit": _REMOVED_AT_ONCE}
            passed = connection.execute(_OLDEST_IDS, ids).rowcount
            names = connection.execute(_OLDEST_OF_LARGEST, {"wanted": wanted, "limit": _REMOVED_AT_ONCE}).fetchall()
            _remove(connection, names, now)
            return len(names) + passed

        removed = await self._commit(job)
        if removed:
            _log.warning("the store is full: what has ended made room", extra={"removed": removed})
        return removed

    async def _commit(self, job: Callable[[Connection], int]) -> int:
        removed = await self._file.write(job, then=lambda _: None)
        await self._file.erase()
        return removed


def _remove(connection: Connection, names: Sequence[Sequence[Any]], now: float) -> None:
    """Remove executions, and then note their ids, because a full file has no room before."""
    connection.executemany("DELETE FROM executions WHERE tenant = ? AND execution_id = ?", names)
    passed = [(*name, now) for name in names]
    connection.executemany("INSERT OR REPLACE INTO forgotten VALUES (?, ?, ?)", passed)


def _has_expired(connection: Connection, now: float) -> bool:
    """Return whether an execution or a session has expired."""
    expired = connection.execute(sql_sessions.EXPIRED, {"now": now, "limit": 1}).fetchall()
    return bool(expired) or bool(connection.execute(_EXPIRED, (now, 1)).fetchall())


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


_MEASURED_EVERY_S: Final = 30.0
_CLEARING_TRIES: Final = 5
_SIZE: Final = "SELECT coalesce(sum(size), 0)::bigint FROM executions"
_FORGET_OLDEST: Final = f"""
WITH old AS ({_OLDEST_OF_LARGEST}), gone AS (
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
            over = await self._measure() - _HIGH_SHARE
            if over <= 0:
                return
            wanted = int((over + _REMOVED_SHARE) * self._max_bytes)
            values = {"wanted": wanted, "limit": _REMOVED_AT_ONCE, "now": now}
            removed = await self._database.change(_FORGET_OLDEST, values)
            if not removed:
                return
            _log.warning("the store is full: what has ended made room", extra={"executions": len(removed)})

    async def _measure(self) -> float:
        ((size,),) = await self._database.select(_SIZE, {})
        self._fill, self._until_s = int(size) / self._max_bytes, self._monotonic() + _MEASURED_EVERY_S
        return self._fill
