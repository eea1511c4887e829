"""Room in a SQLite database: what has expired goes, and in a full file what has ended before its time."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, TypeVar

from reasond_server.errors.limits import StoreFullError
from reasond_server.eventlog.stored import sql_sessions
from reasond_server.eventlog.stored.sql_store import FORGOTTEN_KEPT_S

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from sqlite3 import Connection

    from reasond_server.storage.transactions import SqliteDatabase


ResultT = TypeVar("ResultT")

_log = logging.getLogger("reasond.executions")
REMOVED_AT_ONCE: Final = 1000
# Above this share of `max_file_bytes` what has ended makes room before the file is full, so much of it at once.
HIGH_SHARE: Final = 0.85
REMOVED_SHARE: Final = 0.05
_TRIES: Final = 5
_EXPIRED: Final = "SELECT tenant, execution_id FROM executions WHERE expire_time <= ? ORDER BY expire_time LIMIT ?"
# Of the tenant that has most, so that one that fills the file takes nothing from the others.
OLDEST_OF_LARGEST: Final = """
SELECT tenant, execution_id FROM (
    SELECT tenant, execution_id, expire_time, sum(size) OVER (ORDER BY expire_time, execution_id) - size AS before
    FROM executions
    WHERE expire_time IS NOT NULL AND tenant = (
        SELECT tenant FROM executions GROUP BY tenant HAVING count(expire_time) > 0 ORDER BY sum(size) DESC LIMIT 1)
) AS ended
WHERE before < :wanted ORDER BY expire_time LIMIT :limit
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
                if not await self._remove_expired(REMOVED_AT_ONCE) and not await self._remove_oldest():
                    raise
        return await self._file.write(job, then=then)

    async def clear(self, *, limit: int) -> int:
        """Remove up to `limit` expired executions, or else keep some room; return how many had expired."""
        removed = await self._remove_expired(limit)
        if not removed and await self._file.read_share() > HIGH_SHARE:
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
        """Remove a twentieth of the file: what ended first of the tenant that has most; return how many executions."""
        now, wanted = self._now().timestamp(), REMOVED_SHARE * await self._file.read_size()

        def job(connection: Connection) -> int:
            names = connection.execute(OLDEST_OF_LARGEST, {"wanted": wanted, "limit": REMOVED_AT_ONCE}).fetchall()
            _remove(connection, names, now)
            return len(names)

        removed = await self._commit(job)
        if removed:
            _log.warning("the store is full: what has ended made room", extra={"executions": removed})
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
