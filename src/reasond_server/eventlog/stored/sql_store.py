"""Shared by the stores in SQLite and PostgreSQL: SQL with `:name` parameters, and calls of a single statement.

Also the quotas of tenants: counted every few seconds, and close to a bound for each execution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

from reasond_server.errors.base import InternalError
from reasond_server.eventlog.contract import Watchers, build_expired_error, build_not_found_error, require_same_session
from reasond_server.eventlog.store import Change, Checkpoint, Claim, ExecutionFilter, Lease, Record, SessionClaim
from reasond_server.eventlog.stored.codec import decode_event, encode_execution
from reasond_server.eventlog.stored.rows import decode_kept, execution_columns, is_storable, require_storable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime

    from reasond_server.eventlog.contract import TenantQuota
    from reasond_server.storage.transactions import Job, Values
    from reasond_server.types import Execution, LoggedEvent


HAS_PASSED: Final = "SELECT 1 FROM forgotten WHERE tenant = :tenant AND execution_id = :execution_id"
FIND: Final = "SELECT body, expire_time FROM executions WHERE tenant = :tenant AND execution_id = :execution_id"
PLAN: Final = "SELECT plan, expire_time FROM executions WHERE tenant = :tenant AND execution_id = :execution_id"
KEPT: Final = """
SELECT e.plan, e.expire_time, n.key, n.body
FROM executions e
LEFT JOIN entries n ON n.tenant = e.tenant AND n.execution_id = e.execution_id AND n.sequence IS NULL
WHERE e.tenant = :tenant AND e.execution_id = :execution_id
ORDER BY n.position
"""
# The position of an event is never below its sequence, so the key on the position finds where to begin.
READ: Final = """
SELECT e.expire_time, n.sequence, n.body
FROM executions e
LEFT JOIN entries n ON n.tenant = e.tenant AND n.execution_id = e.execution_id
    AND n.position > :after AND n.sequence > :after
WHERE e.tenant = :tenant AND e.execution_id = :execution_id
ORDER BY n.position LIMIT :limit
"""
_PAGE_OF: Final = """
SELECT body, expire_time FROM executions
WHERE tenant = :tenant AND (expire_time IS NULL OR expire_time > :now) {narrowed}
    AND (:strategy = '' OR strategy = :strategy) AND (:finish_reason = '' OR finish_reason = :finish_reason)
    AND (:kind = '' OR kind = :kind OR kind = :or_kind)
    AND create_time >= :since AND create_time < :until
    AND (create_time < :before_time OR (create_time = :before_time AND execution_id < :before_id))
ORDER BY create_time DESC, execution_id DESC LIMIT :size
"""
# As in the index of the executions of a session.
_IN_SESSION: Final = "AND session_id <> '' AND session_id = :session_id"
# An equality of its own, so that the database uses the index of the states.
_IN_STATE: Final = "AND state = :state"
_PAGES: Final = {
    (in_session, in_state): _PAGE_OF.format(
        narrowed=f"{_IN_SESSION if in_session else ''} {_IN_STATE if in_state else ''}"
    )
    for in_session in (False, True)
    for in_state in (False, True)
}
CLAIMED: Final = """
SELECT c.execution_id, c.digest FROM claims c
JOIN executions e ON e.tenant = c.tenant AND e.execution_id = c.execution_id
WHERE c.tenant = :tenant AND c.request_id = :request_id AND (e.expire_time IS NULL OR e.expire_time > :now)
"""
RELEASE: Final = """
DELETE FROM claims WHERE tenant = :tenant AND execution_id = :execution_id RETURNING execution_id
"""
DELETE: Final = """
DELETE FROM executions
WHERE tenant = :tenant AND execution_id = :execution_id AND (expire_time IS NULL OR expire_time > :now)
RETURNING execution_id
"""
REQUEST_CANCEL: Final = """
UPDATE executions SET is_cancel_requested = TRUE
WHERE tenant = :tenant AND execution_id = :execution_id AND (expire_time IS NULL OR expire_time > :now)
RETURNING execution_id
"""
REQUEST_KEEP: Final = """
UPDATE executions SET is_keep_requested = TRUE
WHERE tenant = :tenant AND execution_id = :execution_id AND (expire_time IS NULL OR expire_time > :now)
RETURNING execution_id
"""
# Gives a log to the caller, without the end of the lease, which each database computes in its own way.
TAKE: Final = "state = 'running', wake_time = NULL, fence = fence + 1, lease_owner = :owner"
# Exactly the expression of the index; otherwise the database does not use the index.
WAKE_TIME: Final = "CASE WHEN is_cancel_requested THEN 0 ELSE wake_time END"
# Counts the event that wakes an execution.
WAKE_WITH: Final = "version = version + 1, last_sequence = last_sequence + 1, size = size + :added"
IS_NEXT: Final = "last_sequence = :sequence - 1 AND size + :added <= :largest"
ADD_EVENT: Final = """
INSERT INTO entries (tenant, execution_id, position, sequence, key, body)
VALUES (:tenant, :execution_id, :position, :sequence, '', :event)
"""
SET_BODY: Final = "UPDATE executions SET body = :body WHERE tenant = :tenant AND execution_id = :execution_id"
EXISTS: Final = "SELECT 1 FROM executions WHERE tenant = :tenant AND execution_id = :execution_id"
_COPY: Final = """
INSERT INTO entries (tenant, execution_id, position, sequence, key, body)
SELECT tenant, :execution_id, row_number() OVER (ORDER BY position), NULL, key, body
FROM entries WHERE tenant = :tenant AND execution_id = :inherits AND sequence IS NULL
ON CONFLICT DO NOTHING
"""
_PARENT: Final = """
SELECT count(*), CAST(coalesce(sum(length(key) + length(body)), 0) AS bigint)
FROM entries WHERE tenant = :tenant AND execution_id = :inherits AND sequence IS NULL
"""
_INHERITED: Final = """
SELECT count(*) FROM entries WHERE tenant = :tenant AND execution_id = :execution_id AND sequence IS NULL
"""
_IS_CANCELLED: Final = """
SELECT 1 FROM executions WHERE tenant = :tenant AND execution_id = :inherits AND state = 'cancelled'
"""
DETACH: Final = """
UPDATE executions SET session_id = ''
WHERE tenant = :tenant AND execution_id = :execution_id AND state IN ('running', 'suspended')
RETURNING execution_id
"""
# A request id is free if no execution has it, or if that execution has expired or is the one to inherit from.
CLAIM: Final = """
INSERT INTO claims (tenant, request_id, execution_id, digest)
VALUES (:tenant, :request_id, :execution_id, :digest)
ON CONFLICT (tenant, request_id) DO UPDATE SET execution_id = excluded.execution_id, digest = excluded.digest
WHERE claims.execution_id IN (excluded.execution_id, :inherits) OR EXISTS (
    SELECT 1 FROM executions e
    WHERE e.tenant = claims.tenant AND e.execution_id = claims.execution_id AND e.expire_time <= :now)
RETURNING execution_id
"""
ADD_NOTICE: Final = """
INSERT INTO notices (endpoint, notice_id, tenant, execution_id, sequence, body, create_time, due_time, attempts)
VALUES (:endpoint, :notice_id, :tenant, :execution_id, :sequence, :body, :now, :now, 0) ON CONFLICT DO NOTHING
"""
LOG: Final = """
SELECT key, sequence, body FROM entries
WHERE tenant = :tenant AND execution_id = :execution_id ORDER BY position
"""

_UNLIMITED = 2**31 - 1
FORGOTTEN_KEPT_S = 30 * 86_400.0
"""How long the id of a removed execution is remembered, in seconds."""


class Database(Protocol):
    """Runs the statements; `locking` ends those that lock the rows that they read."""

    locking: str

    async def select(self, statement: str, values: Mapping[str, object]) -> Sequence[Sequence[Any]]:
        """Return the rows that `statement` finds."""

    async def change(
        self, statement: str, values: Mapping[str, object], change: Change | None = None
    ) -> Sequence[Sequence[Any]]:
        """Run `statement`, which returns execution ids, in a transaction; notify their watchers of `change`."""

    async def remove(self, begin: Callable[[], Job[Sequence[str]]]) -> None:
        """Run a job that removes executions, and returns their ids, in a transaction; notify their watchers."""


def build_creation(
    execution: Execution,
    session: SessionClaim | None,
    *,
    digest: str,
    plan: str,
    lease: Lease,
    inherits: str,
    now: float,
) -> dict[str, Any]:
    """Return the parameters of the statements that create an execution, in `session` if there is one."""
    require_storable(execution)
    require_same_session(execution, session)
    return execution_columns(execution) | {
        "body": encode_execution(execution),
        "request_id": execution.request_id,
        "digest": digest,
        "inherits": inherits,
        "now": now,
        "owner": lease.owner,
        "seconds": lease.seconds,
        "plan": plan,
        "version": 0,
        "size": len(plan),
    }


def create_execution(
    values: Mapping[str, Any], *, insert: Callable[[Values], Job[Claim | None]], locking: str
) -> Job[Claim]:
    """Store a new execution; return the claim on its request id, which may be another execution's.

    `insert` writes the execution and its claim, or returns the claim of the execution that has the request id.
    """
    own = Claim(execution_id=values["execution_id"], digest=values["digest"])
    inherits = bool(values["inherits"])
    if inherits and not (yield f"{_IS_CANCELLED} {locking}", values):
        values = {**values, "inherits": ""}
    if values["inherits"]:
        ((version, size),) = yield _PARENT, values
        values = {**values, "version": version, "size": values["size"] + size}
    holder = yield from insert(values)
    if holder is not None or not inherits:
        return holder or own
    if values["inherits"]:
        yield _COPY, values
    # Counted in the new log, because a repeated creation may find the parent already deleted.
    ((inherited,),) = yield _INHERITED, values
    return replace(own, inherited=inherited)


class KeptExecutions:
    """Reads and changes the rows of executions that have not expired; `now` is the clock (UTC)."""

    def __init__(self, *, database: Database, now: Callable[[], datetime]) -> None:
        self._database = database
        self._now = now

    async def exists(self, tenant: str, execution_id: str) -> bool:
        """Return whether there is such an execution for this tenant."""
        if not is_storable(tenant, execution_id):
            return False
        return bool(await self._database.select(EXISTS, {"tenant": tenant, "execution_id": execution_id}))

    async def select_kept(
        self, statement: str, tenant: str, execution_id: str, *, expiry: int, **extra: object
    ) -> Sequence[Sequence[Any]]:
        """Return the rows of an execution that has not expired; column number `expiry` holds its expire time."""
        if not is_storable(tenant, execution_id):
            raise build_not_found_error(execution_id)
        rows = await self._database.select(statement, {"tenant": tenant, "execution_id": execution_id, **extra})
        if not rows:
            # A LIMIT of 0 also returns no row; `find` then checks that the execution exists.
            return await self._explain_missing(tenant, execution_id, is_limited=extra.get("limit") == 0)
        if rows[0][expiry] is not None and rows[0][expiry] <= self._now().timestamp():
            raise build_expired_error(execution_id)
        return rows

    async def change(self, statement: str, tenant: str, execution_id: str, change: Change) -> None:
        """Run a statement on an execution that has not expired, and notify its watchers of the `change`."""
        values = {"tenant": tenant, "execution_id": execution_id, "now": self._now().timestamp()}
        if not is_storable(tenant, execution_id):
            raise build_not_found_error(execution_id)
        if not await self._database.change(statement, values, change):
            await self.select_kept(FIND, tenant, execution_id, expiry=1)
            raise build_not_found_error(execution_id)

    async def _explain_missing(self, tenant: str, execution_id: str, *, is_limited: bool) -> Sequence[Sequence[Any]]:
        if is_limited:
            await self.select_kept(FIND, tenant, execution_id, expiry=1)
            return []
        if await self._database.select(HAS_PASSED, {"tenant": tenant, "execution_id": execution_id}):
            raise build_expired_error(execution_id)
        raise build_not_found_error(execution_id)


class SqlExecutionStore:
    """An ExecutionStore over a database, without the methods that differ between databases.

    One log holds at most `largest_log_bytes` of JSON. Ids of removed executions are remembered for 30 days;
    in a full SQLite file the latest.
    """

    def __init__(
        self, *, database: Database, watchers: Watchers, now: Callable[[], datetime], largest_log_bytes: int
    ) -> None:
        self._database = database
        self._watchers = watchers
        self._now = now
        self._largest = largest_log_bytes
        self._rows = KeptExecutions(database=database, now=now)

    async def find_claim(self, tenant: str, request_id: str) -> Claim | None:
        """See ExecutionStore."""
        if not is_storable(tenant, request_id):
            return None
        values = {"tenant": tenant, "request_id": request_id, "now": self._now().timestamp()}
        rows = await self._database.select(CLAIMED, values)
        return Claim(execution_id=rows[0][0], digest=rows[0][1]) if rows else None

    async def read_checkpoint(self, tenant: str, execution_id: str, *, with_records: bool = True) -> Checkpoint:
        """See ExecutionStore."""
        if not with_records:
            rows = await self._rows.select_kept(PLAN, tenant, execution_id, expiry=1)
            return Checkpoint(plan=rows[0][0], records=())
        rows = await self._rows.select_kept(KEPT, tenant, execution_id, expiry=1)
        records = [Record(key=key, body=body) for _, _, key, body in rows if body is not None]
        return Checkpoint(plan=rows[0][0], records=records)

    async def release(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        execution, name = await self.find(tenant, execution_id), {"tenant": tenant, "execution_id": execution_id}
        await self._database.change(RELEASE, name)
        if execution.session_id and not execution.state.has_ended:
            await self._database.change(DETACH, name)

    async def find(self, tenant: str, execution_id: str) -> Execution:
        """See ExecutionStore."""
        rows = await self._rows.select_kept(FIND, tenant, execution_id, expiry=1)
        return decode_kept(*rows[0])

    async def read(
        self, tenant: str, execution_id: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[LoggedEvent]:
        """See ExecutionStore; if an event cannot be read, only the events before it are returned."""
        extra = {"after": after, "limit": _UNLIMITED if limit is None else limit}
        rows = await self._rows.select_kept(READ, tenant, execution_id, expiry=0, **extra)
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
        if not is_storable(tenant, wanted.strategy, wanted.kind, wanted.session_id, before_id):
            return []
        values: dict[str, object] = {
            "tenant": tenant,
            "now": self._now().timestamp(),
            "strategy": wanted.strategy,
            "finish_reason": wanted.finish_reason.value if wanted.finish_reason else "",
            "since": wanted.created_since.timestamp() if wanted.created_since else -math.inf,
            "until": wanted.created_until.timestamp() if wanted.created_until else math.inf,
            "kind": wanted.kind,
            "or_kind": wanted.or_kind,
            "before_time": before_time,
            "before_id": before_id,
            "size": size,
        }
        values |= {"session_id": wanted.session_id} if wanted.session_id else {}
        values |= {"state": wanted.state.value} if wanted.state else {}
        statement = _PAGES[bool(wanted.session_id), wanted.state is not None]
        return [decode_kept(*row) for row in await self._database.select(statement, values)]

    async def delete(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        await self._rows.change(DELETE, tenant, execution_id, Change.GREW)

    async def request_cancel(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        await self._rows.change(REQUEST_CANCEL, tenant, execution_id, Change.CANCEL_REQUESTED)

    async def request_keep(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        await self._rows.change(REQUEST_KEEP, tenant, execution_id, Change.KEEP_REQUESTED)

    def watch(self, execution_id: str, notify: Callable[[Change], None]) -> AbstractContextManager[None]:
        """See ExecutionStore."""
        return self._watchers.watch(execution_id, notify)


_COUNT: Final = """
SELECT kind, state, count(*), coalesce(sum(size), 0) FROM executions
WHERE tenant = :tenant AND state IN ('running', 'suspended') GROUP BY kind, state
"""
# Each state by itself, so that the partial index of the state is read and not the whole table.
_COUNT_OTHERS: Final = """
SELECT coalesce(sum(size), 0) FROM (
    SELECT tenant, size FROM executions WHERE state = 'running' UNION ALL
    SELECT tenant, size FROM executions WHERE state = 'suspended'
) AS open WHERE tenant <> :tenant
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
        waiting = {of: count for of, state, count, _ in rows if state == "suspended"}
        open_bytes = sum(int(size) for _, _, _, size in rows)
        if quota.store_bytes is not None:
            ((others,),) = await self._database.select(_COUNT_OTHERS, {"tenant": tenant})
            quota = quota.beside(int(others))
        quota.require_room(kind=kind, waiting=waiting, open_bytes=open_bytes)
        # An execution of this kind may wait later on.
        own = sum(count for of, _, count, _ in rows if of == kind)
        bounds = [
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
