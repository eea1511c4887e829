"""Room in a database of PostgreSQL, by what its executions hold, and its notices of changes.

In a full database what has ended goes before its time.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from reasond_server.eventlog.store import Change
from reasond_server.eventlog.stored.sqlite_clearing import (
    HIGH_SHARE,
    OLDEST_OF_LARGEST,
    REMOVED_AT_ONCE,
    REMOVED_SHARE,
)
from reasond_server.storage.transactions import bind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from reasond_server.eventlog.stored.sql_store import Database
    from reasond_server.storage.postgres_pool import PgConnection

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
