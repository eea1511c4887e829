"""Quotas of tenants in a database: counted every few seconds, close to a bound for each execution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from reasond_server.eventlog.stored.rows import is_storable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from reasond_server.eventlog.quotas import TenantQuota
    from reasond_server.eventlog.stored.sql_store import Database

_COUNT: Final = """
SELECT kind, state, count(*), coalesce(sum(size), 0) FROM executions
WHERE tenant = :tenant AND state IN ('running', 'suspended') GROUP BY kind, state
"""
_COUNT_OTHERS: Final = """
SELECT coalesce(sum(size), 0) FROM executions WHERE tenant <> :tenant AND state IN ('running', 'suspended')
"""
_COUNTED_EVERY_S: Final = 5.0
_MOST_KNOWN: Final = 10_000
# Counted again after so many bytes of a new execution; most have fewer.
_LARGE_BYTES: Final = 1024 * 1024


@dataclass(slots=True)
class _Room:
    """How many executions may surely begin until `until_s` without another count."""

    left: int
    until_s: float


class TenantRooms:
    """The `StoreRoom` of a database; between two counts only the executions that this process admits are known.

    `read_fill` is absent where nobody tells how much room the server of the database has.
    """

    def __init__(
        self,
        *,
        quota: TenantQuota,
        database: Database,
        monotonic: Callable[[], float],
        read_fill: Callable[[], Awaitable[float]] | None = None,
    ) -> None:
        self._quota = quota
        self._database = database
        self._monotonic = monotonic
        self._read_fill = read_fill
        self._rooms: dict[tuple[str, str], _Room] = {}

    async def read_fill(self) -> float:
        """See StoreRoom."""
        return 0.0 if self._read_fill is None else await self._read_fill()

    async def require(self, tenant: str, kind: str) -> None:
        """See StoreRoom."""
        if not self._quota.is_bounded or not is_storable(tenant, kind):
            return
        room = self._rooms.get((tenant, kind))
        if room is None or room.left < 1 or self._monotonic() >= room.until_s:
            room = await self._count(tenant, kind)
        room.left -= 1

    async def _count(self, tenant: str, kind: str) -> _Room:
        quota, rows = self._quota, await self._database.select(_COUNT, {"tenant": tenant})
        executions = sum(count for _, _, count, _ in rows)
        waiting = {of: count for of, state, count, _ in rows if state == "suspended"}
        open_bytes = sum(int(size) for _, _, _, size in rows)
        if quota.store_bytes is not None:
            ((others,),) = await self._database.select(_COUNT_OTHERS, {"tenant": tenant})
            quota = quota.beside(executions=0, open_bytes=int(others))
        quota.require_room(kind=kind, executions=executions, waiting=waiting, open_bytes=open_bytes)
        # An execution of this kind may wait later on.
        own = sum(count for of, _, count, _ in rows if of == kind)
        bounds = [
            None if quota.executions is None else quota.executions - executions,
            None if quota.waiting is None else max(1, quota.waiting - own),
            None if quota.max_bytes is None else 1 + (quota.max_bytes - open_bytes) // _LARGE_BYTES,
        ]
        if len(self._rooms) >= _MOST_KNOWN:
            self._rooms.clear()
        room = _Room(
            left=min(bound for bound in bounds if bound is not None), until_s=self._monotonic() + _COUNTED_EVERY_S
        )
        self._rooms[tenant, kind] = room
        return room
