"""What the stores in SQLite and PostgreSQL share: everything that is one statement."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from reasond_server.errors import InternalError
from reasond_server.logs.appending import LARGEST_LOG_BYTES, no_longer_kept, not_found
from reasond_server.logs.store import Change, Claim, Kept, Record
from reasond_server.logs.stored import statements as sql
from reasond_server.logs.stored.codec import decode_event, decode_execution
from reasond_server.logs.stored.rows import is_storable
from reasond_server.logs.watching import Watchers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime

    from reasond_server.logs.store import ExecutionFilter
    from reasond_server.types import Execution, LoggedEvent

_UNLIMITED = 2**31 - 1
FORGOTTEN_KEPT_S = 30 * 86_400.0
"""How long the id of a forgotten execution is remembered, in seconds."""


class SqlExecutionStore(ABC):
    """An ExecutionStore over a database; `now` (UTC) decides what is past its time.

    One log holds at most `largest_log_bytes` of JSON. Ids of forgotten executions are remembered for 30 days.
    """

    def __init__(self, *, now: Callable[[], datetime], largest_log_bytes: int = LARGEST_LOG_BYTES) -> None:
        self._now = now
        self._largest = largest_log_bytes
        self._watchers = Watchers()

    @abstractmethod
    async def _select(self, statement: str, values: Mapping[str, object]) -> Sequence[Sequence[Any]]:
        """Return the rows that `statement` finds."""

    @abstractmethod
    async def _change(
        self, statement: str, values: Mapping[str, object], change: Change | None = None
    ) -> Sequence[Sequence[Any]]:
        """Run `statement`, which returns execution ids, in a transaction; tell `change` to who watches those."""

    async def claimed(self, tenant: str, request_id: str) -> Claim | None:
        """See ExecutionStore."""
        if not is_storable(tenant, request_id):
            return None
        values = {"tenant": tenant, "request_id": request_id, "now": self._now().timestamp()}
        rows = await self._select(sql.CLAIMED, values)
        return Claim(execution_id=rows[0][0], digest=rows[0][1]) if rows else None

    async def kept(self, tenant: str, execution_id: str) -> Kept:
        """See ExecutionStore."""
        rows = await self._selected(sql.KEPT, tenant, execution_id, expiry=1)
        records = [Record(key=key, body=body) for _, _, key, body in rows if body is not None]
        return Kept(plan=rows[0][0], records=records)

    async def release(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        await self.find(tenant, execution_id)
        await self._change(sql.RELEASE, {"tenant": tenant, "execution_id": execution_id})

    async def find(self, tenant: str, execution_id: str) -> Execution:
        """See ExecutionStore."""
        rows = await self._selected(sql.FIND, tenant, execution_id, expiry=1)
        return decode_execution(rows[0][0])

    async def read(
        self, tenant: str, execution_id: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[LoggedEvent]:
        """See ExecutionStore; what comes before an event that cannot be read is returned without it."""
        extra = {"after": after, "limit": _UNLIMITED if limit is None else limit}
        rows = await self._selected(sql.READ, tenant, execution_id, expiry=0, **extra)
        events: list[LoggedEvent] = []
        for _, sequence, body in rows:
            try:
                events += [] if sequence is None else [decode_event(sequence, body)]
            except InternalError:
                if not events:
                    raise
                break
        return events

    async def page(
        self, tenant: str, wanted: ExecutionFilter, *, size: int, before: tuple[float, str] | None
    ) -> Sequence[Execution]:
        """See ExecutionStore."""
        before_time, before_id = before or (math.inf, "")
        if not is_storable(tenant, wanted.strategy, wanted.kind, before_id):
            return []
        values = {
            "tenant": tenant,
            "now": self._now().timestamp(),
            "strategy": wanted.strategy,
            "finish_reason": wanted.finish_reason.value if wanted.finish_reason else "",
            "kind": wanted.kind,
            "before_time": before_time,
            "before_id": before_id,
            "size": size,
        }
        return [decode_execution(body) for (body,) in await self._select(sql.PAGE, values)]

    async def delete(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        await self._changed(sql.DELETE, tenant, execution_id, Change.GREW)

    async def request_cancel(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        await self._changed(sql.REQUEST_CANCEL, tenant, execution_id, Change.CANCEL_REQUESTED)

    async def request_keep(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        await self._changed(sql.REQUEST_KEEP, tenant, execution_id, Change.KEEP_REQUESTED)

    def watch(self, execution_id: str, notify: Callable[[Change], None]) -> AbstractContextManager[None]:
        """See ExecutionStore."""
        return self._watchers.watch(execution_id, notify)

    async def _exists(self, tenant: str, execution_id: str) -> bool:
        """Return whether there is such an execution for this tenant."""
        if not is_storable(tenant, execution_id):
            return False
        return bool(await self._select(sql.EXISTS, {"tenant": tenant, "execution_id": execution_id}))

    async def _selected(
        self, statement: str, tenant: str, execution_id: str, *, expiry: int, **extra: object
    ) -> Sequence[Sequence[Any]]:
        """Return the rows of an execution that is still kept; column `expiry` tells until when."""
        if not is_storable(tenant, execution_id):
            raise not_found(execution_id)
        rows = await self._select(statement, {"tenant": tenant, "execution_id": execution_id, **extra})
        if not rows:
            # Also where a LIMIT of 0 hides a row: `find` tells the difference.
            return await self._missing(tenant, execution_id, is_limited=extra.get("limit") == 0)
        if rows[0][expiry] is not None and rows[0][expiry] <= self._now().timestamp():
            raise no_longer_kept(execution_id)
        return rows

    async def _changed(self, statement: str, tenant: str, execution_id: str, change: Change) -> None:
        values = {"tenant": tenant, "execution_id": execution_id, "now": self._now().timestamp()}
        if not is_storable(tenant, execution_id):
            raise not_found(execution_id)
        if not await self._change(statement, values, change):
            await self.find(tenant, execution_id)
            raise not_found(execution_id)

    async def _missing(self, tenant: str, execution_id: str, *, is_limited: bool) -> Sequence[Sequence[Any]]:
        if is_limited:
            await self.find(tenant, execution_id)
            return []
        if await self._select(sql.HAS_PASSED, {"tenant": tenant, "execution_id": execution_id}):
            raise no_longer_kept(execution_id)
        raise not_found(execution_id)
