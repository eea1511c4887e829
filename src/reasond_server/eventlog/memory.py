"""The store in memory, which is lost when the process ends: bounded in number, bytes and time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from reasond_server.eventlog.contract import (
    Watchers,
    build_session_not_found_error,
    may_wake,
    require_same_session,
    select_events,
)
from reasond_server.eventlog.memory_table import LogTable
from reasond_server.eventlog.quotas import UNBOUNDED
from reasond_server.eventlog.sizes import estimate_size
from reasond_server.eventlog.store import Change, Checkpoint, Claim, Creation, Renewal
from reasond_server.types import ExecutionState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime

    from reasond_server.errors.base import ReasondError
    from reasond_server.eventlog.quotas import TenantQuota
    from reasond_server.eventlog.store import (
        Append,
        ExecutionFilter,
        Lease,
        Recovery,
        SessionClaim,
        SessionStore,
        StoreRoom,
    )
    from reasond_server.types import Execution, LoggedEvent, Session


class MemoryExecutionStore:
    """Holds at most `max_executions` and about `max_bytes`; removes the executions that ended longest ago first.

    `quota` bounds the open executions of each tenant. A tenant that has more than that, what has ended included, is the
    first to lose what has ended.

    An ended execution is kept until its `expire_time`. A running execution is never removed, but its log may grow only
    to `max_bytes` or 64 MiB, whichever is more. The ids of the last 10,000 removed executions are remembered, so that a
    late reader gets CursorExpiredError. `monotonic` (seconds) measures leases; without it `now` does.

    There are at most `max_executions` sessions, and their states count as bytes. A session is removed to make room only
    if it has no open execution: the one that was updated longest ago first, with its executions.
    """

    is_durable = False
    is_shared = False

    def __init__(
        self,
        *,
        max_executions: int,
        max_bytes: int,
        now: Callable[[], datetime],
        monotonic: Callable[[], float] | None = None,
        quota: TenantQuota = UNBOUNDED,
    ) -> None:
        self._now = now
        self._monotonic = monotonic or (lambda: now().timestamp())
        self._table = LogTable(
            max_executions=max_executions, max_bytes=max_bytes, now=now, monotonic=self._monotonic, quota=quota
        )
        self._logs = self._table.logs
        self._watchers = Watchers()
        self.sessions: SessionStore = MemorySessions(table=self._table, watchers=self._watchers)
        self.room: StoreRoom = MemoryRoom(self._table)

    async def find_claim(self, tenant: str, request_id: str) -> Claim | None:
        """See ExecutionStore."""
        self._table.forget_expired()
        holder = self._table.claims.get((tenant, request_id))
        return None if holder is None else self._table.claim_of(holder)

    async def read_checkpoint(self, tenant: str, execution_id: str, *, with_records: bool = True) -> Checkpoint:
        """See ExecutionStore."""
        self._table.forget_expired()
        log = self._table.find(tenant, execution_id)
        return Checkpoint(plan=log.plan, records=tuple(log.records or ()) if with_records else ())

    async def create(
        self,
        execution: Execution,
        *,
        digest: str,
        plan: str,
        lease: Lease,
        inherits: str = "",
        session: SessionClaim | None = None,
    ) -> Claim:
        """See ExecutionStore."""
        require_same_session(execution, session)
        self._table.forget_expired()
        key, name = (execution.tenant, execution.request_id), execution.execution_id
        parent = self._table.find_cancelled(execution.tenant, inherits)
        holder = self._table.claims.get(key) if execution.request_id else None
        if (made := self._logs.get(name)) is not None:
            return replace(self._table.claim_of(name), inherited=len(made.records or ()))
        if holder is not None and (parent is None or holder != inherits):
            return self._table.claim_of(holder)
        records = tuple(parent.records or ()) if parent else ()
        if session is None:
            self._table.make_room(for_new=1, tenant=execution.tenant, kind=execution.kind, sparing=inherits)
        else:
            self._table.make_room_in_session(execution, session, sparing=inherits)
        self._table.add(execution, Creation(plan=plan, lease=lease), digest=digest, records=records)
        if session is not None:
            self._table.enter_session(execution, session)
        if execution.request_id:
            self._table.claims[key] = name
        claim = self._table.claim_of(name)
        return replace(claim, inherited=len(records)) if records else claim

    async def release(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        execution = self._table.find(tenant, execution_id).execution
        self._table.release(execution)
        if execution.session_id and not execution.state.has_ended:
            self._table.sessions.detach(execution)

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        """See ExecutionStore."""
        if any(part.creation is not None for part in batch):
            self._table.forget_expired()
        refusals = [self._table.append(part) for part in batch]
        if self._table.tenants.size > self._table.max_bytes:
            self._table.make_room(for_new=0, sparing=batch[-1].execution.execution_id)
        grown = dict.fromkeys(
            part.execution.execution_id
            for part, refused in zip(batch, refusals, strict=True)
            if refused is None and self._watchers.has_watcher(part.execution.execution_id) and select_events(part)
        )
        self._watchers.notify(grown, Change.GREW)
        return refusals

    async def find(self, tenant: str, execution_id: str) -> Execution:
        """See ExecutionStore."""
        self._table.forget_expired()
        return self._table.find(tenant, execution_id).execution

    async def read(
        self, tenant: str, execution_id: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[LoggedEvent]:
        """See ExecutionStore."""
        self._table.forget_expired()
        until = None if limit is None else after + limit
        return self._table.find(tenant, execution_id).events[after:until]

    async def page(
        self, tenant: str, wanted: ExecutionFilter, *, size: int, before: tuple[float, str] | None
    ) -> Sequence[Execution]:
        """See ExecutionStore."""
        self._table.forget_expired()
        found = [
            log.execution
            for log in self._logs.values()
            if log.execution.tenant == tenant
            and (not wanted.strategy or log.execution.strategy == wanted.strategy)
            and (wanted.finish_reason is None or log.execution.finish_reason is wanted.finish_reason)
            and (wanted.state is None or log.execution.state is wanted.state)
            and (wanted.created_since is None or log.execution.create_time >= wanted.created_since)
            and (wanted.created_until is None or log.execution.create_time < wanted.created_until)
            and (not wanted.kind or log.execution.kind in {wanted.kind, wanted.or_kind})
            and (not wanted.session_id or log.execution.session_id == wanted.session_id)
            and (before is None or _place(log.execution) < before)
        ]
        return sorted(found, key=_place, reverse=True)[:size]

    async def delete(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        self._table.forget_expired()
        self._table.find(tenant, execution_id)
        self._table.remove(execution_id)
        self._watchers.notify((execution_id,), Change.GREW)

    async def renew(self, lease: Lease, fences: Mapping[str, int]) -> Renewal:
        """See ExecutionStore."""
        until = self._monotonic() + lease.seconds
        held: dict[str, tuple[bool, bool]] = {}
        for execution_id, fence in fences.items():
            log = self._logs.get(execution_id)
            if log is not None and log.is_running and (log.owner, log.fence) == (lease.owner, fence):
                log.lease_until = until
                held[execution_id] = (log.is_cancel_requested, log.is_keep_requested)
        return Renewal.of(fences, held)

    async def recover(self, lease: Lease, *, limit: int) -> Sequence[Recovery]:
        """See ExecutionStore."""
        now, now_s = self._now(), self._monotonic()
        found = sorted(
            (log for log in self._logs.values() if log.may_be_taken(now=now, now_s=now_s)),
            key=lambda log: (log.lease_until, log.execution.execution_id),
        )
        for log in found[:limit]:
            if not log.is_running:
                self._table.tenants.count_waiting(log, -1)
        return [log.take(lease, now_s=now_s, now=now) for log in found[:limit]]

    async def wake(
        self, lease: Lease, tenant: str, execution_id: str, *, event: LoggedEvent | None = None
    ) -> Recovery | None:
        """See ExecutionStore."""
        self._table.forget_expired()
        log = self._table.find(tenant, execution_id)
        if not may_wake(log.execution, event):
            return None
        if event is not None:
            self._table.require_room(log, estimate_size(event))
        self._table.tenants.count_waiting(log, -1)
        recovery = log.take(lease, now_s=self._monotonic(), event=event)
        if event is not None:
            self._watchers.notify((execution_id,), Change.GREW)
        return recovery

    async def request_cancel(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        self._table.forget_expired()
        self._table.find(tenant, execution_id).is_cancel_requested = True
        self._watchers.notify((execution_id,), Change.CANCEL_REQUESTED)

    async def request_keep(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        self._table.forget_expired()
        self._table.find(tenant, execution_id).is_keep_requested = True
        self._watchers.notify((execution_id,), Change.KEEP_REQUESTED)

    async def announce(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        log = self._logs.get(execution_id)
        if log is not None and log.execution.tenant == tenant:
            self._watchers.notify((execution_id,), Change.FOLLOWED)

    async def forget(self, *, limit: int) -> int:
        """See ExecutionStore."""
        forgotten = self._table.forget_expired(limit=limit)
        for row in self._table.sessions.find_expired(limit=limit):
            self._table.remove_session(row)
        return forgotten

    def watch(self, execution_id: str, notify: Callable[[Change], None]) -> AbstractContextManager[None]:
        """See ExecutionStore."""
        return self._watchers.watch(execution_id, notify)

    async def aclose(self) -> None:
        """See ExecutionStore."""


class MemoryRoom:
    """See `StoreRoom`."""

    def __init__(self, table: LogTable) -> None:
        self._table = table

    async def require(self, tenant: str, kind: str) -> None:
        """See StoreRoom."""
        self._table.tenants.require_room(tenant, kind)

    async def read_fill(self) -> float:
        """See StoreRoom."""
        table, tenants = self._table, self._table.tenants
        open_count = len(table.logs) - len(tenants.ended)
        return max(open_count / table.max_executions, tenants.open_bytes / table.max_bytes)


class MemorySessions:
    """See `SessionStore`."""

    def __init__(self, *, table: LogTable, watchers: Watchers) -> None:
        self._table = table
        self._watchers = watchers

    async def find(self, tenant: str, session_id: str) -> Session:
        """See SessionStore."""
        session = self._table.sessions.find(tenant, session_id)
        if session is None:
            raise build_session_not_found_error(session_id)
        return session

    async def page(self, tenant: str, *, size: int, before: tuple[float, str] | None) -> Sequence[Session]:
        """See SessionStore."""
        found = self._table.sessions.page(tenant)
        places = [(session.update_time.timestamp(), session.session_id, session) for session in found]
        earlier = [(time, name, session) for time, name, session in places if before is None or (time, name) < before]
        return [session for _, _, session in sorted(earlier, key=lambda place: place[:2], reverse=True)[:size]]

    async def delete(self, tenant: str, session_id: str) -> None:
        """See SessionStore."""
        row = self._table.sessions.find_closed(tenant, session_id)
        names = [*row.executions]
        self._table.remove_session(row, remembers=False)
        self._watchers.notify(names, Change.GREW)

    async def count_suspended(self, kind: str) -> int:
        """See SessionStore."""
        found = (log.execution for log in self._table.logs.values())
        return sum(one.state is ExecutionState.SUSPENDED and one.kind == kind for one in found)


def _place(execution: Execution) -> tuple[float, str]:
    """Return the sort key of the order of creation: create time in seconds, and id."""
    return execution.create_time.timestamp(), execution.execution_id
