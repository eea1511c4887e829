"""The logs of the store in memory, with indexes to find those to remove."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from reasond_server.errors.limits import StoreFullError
from reasond_server.eventlog.contract import (
    LARGEST_LOG_BYTES,
    Head,
    build_expired_error,
    build_id_taken_error,
    build_log_full_error,
    build_not_found_error,
    find_refusal,
    may_repeat,
    select_events,
)
from reasond_server.eventlog.memory_sessions import SessionTable
from reasond_server.eventlog.quotas import UNBOUNDED, TenantQuota
from reasond_server.eventlog.sizes import estimate_size
from reasond_server.eventlog.store import Claim, Creation, Record, Recovery
from reasond_server.types import ExecutionState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from reasond_server.errors.base import ReasondError
    from reasond_server.eventlog.memory_sessions import SessionRow
    from reasond_server.eventlog.store import Append, Lease, SessionClaim
    from reasond_server.types import Execution, LoggedEvent


@dataclass(slots=True, kw_only=True)
class KeptLog:
    """One execution with its entries, their approximate size in bytes, and its lease."""

    execution: Execution
    digest: str
    plan: str
    owner: str
    lease_until: float
    events: list[LoggedEvent] = field(default_factory=list)
    # None instead of an empty list, which takes 56 bytes: thousands may be suspended.
    records: list[Record] | None = None
    version: int = 0
    fence: int = 1
    size: int = 0
    is_cancel_requested: bool = False
    is_keep_requested: bool = False

    @property
    def is_running(self) -> bool:
        """Whether the execution has neither ended nor been suspended."""
        return self.execution.state is ExecutionState.RUNNING

    def may_be_taken(self, *, now: datetime, now_s: float) -> bool:
        """Return whether `recover` may return it."""
        if self.is_running:
            return self.lease_until <= now_s
        if self.execution.state is not ExecutionState.SUSPENDED:
            return False
        wake_time = self.execution.wake_time
        return self.is_cancel_requested or (wake_time is not None and wake_time <= now)

    def take(
        self, lease: Lease, *, now_s: float, now: datetime | None = None, event: LoggedEvent | None = None
    ) -> Recovery:
        """Give the log to the owner of `lease` and append `event`; `now` tells whether a wake time has come."""
        was_suspended, wake_time = not self.is_running, self.execution.wake_time
        if was_suspended:
            self.execution = replace(self.execution, state=ExecutionState.RUNNING, wake_time=None)
        if event is not None:
            self.execution = replace(self.execution, last_sequence=event.sequence)
            self.events.append(event)
            self.version += 1
        self.owner, self.lease_until = lease.owner, now_s + lease.seconds
        self.fence += 1
        return Recovery(
            execution=self.execution,
            plan=self.plan,
            events=tuple(self.events),
            records=tuple(self.records or ()),
            version=self.version,
            fence=self.fence,
            is_cancel_requested=self.is_cancel_requested,
            is_keep_requested=self.is_keep_requested,
            was_suspended=was_suspended,
            is_due=was_suspended and now is not None and wake_time is not None and wake_time <= now,
            has_waking_event=event is not None,
        )

    def head(self) -> Head:
        """Return the head of the log."""
        return Head(
            version=self.version,
            fence=self.fence,
            last_sequence=len(self.events),
            size=self.size,
            state=self.execution.state,
        )


@dataclass(slots=True)
class _TenantLogs:
    """The open executions of one tenant, their bytes, how many of each kind wait, and what has ended."""

    executions: int = 0
    open_bytes: int = 0
    ended_bytes: int = 0
    waiting: dict[str, int] = field(default_factory=dict)
    # In the order in which they ended.
    ended: OrderedDict[str, None] = field(default_factory=OrderedDict)


class TenantTable:
    """Counts what the tenants have; `quota` bounds what each has open.

    Attributes:
        size: the bytes of all logs, and of whatever else is added to it.
        open_executions: the number of all open executions.
        open_bytes: their bytes.
        ended: all executions that have ended, in that order.
    """

    def __init__(self, quota: TenantQuota) -> None:
        self.size = 0
        self.open_executions = 0
        self.open_bytes = 0
        self.ended: OrderedDict[str, None] = OrderedDict()
        self._quota = quota
        self._tenants: dict[str, _TenantLogs] = {}
        # The tenants that have more than their quota, what has ended included: at most a few.
        self._hogs: dict[str, None] = {}

    def require_room(self, tenant: str, kind: str) -> None:
        """See `StoreRoom.require`."""
        has = self._tenants.get(tenant)
        if has is not None:
            self._find_quota(has).require_room(
                kind=kind, executions=has.executions, waiting=has.waiting, open_bytes=has.open_bytes
            )

    def _find_quota(self, has: _TenantLogs) -> TenantQuota:
        return self._quota.beside(
            executions=self.open_executions - has.executions, open_bytes=self.open_bytes - has.open_bytes
        )

    def require_bytes(self, tenant: str, added: int) -> None:
        """Refuse `added` bytes to a tenant whose open executions have too many.

        Raises:
            TenantQuotaError: it has no room for them.
        """
        has = self._tenants[tenant]
        self._find_quota(has).require_bytes(has.open_bytes, added=added)

    def add(self, log: KeptLog) -> None:
        """Count an open log without bytes."""
        self._tenants.setdefault(log.execution.tenant, _TenantLogs()).executions += 1
        self.open_executions += 1

    def grow(self, log: KeptLog, size: int) -> None:
        """Count `size` bytes more of an open log; fewer if it is below 0."""
        log.size += size
        self.size += size
        self.open_bytes += size
        self._tenants[log.execution.tenant].open_bytes += size
        self._see_share(log.execution.tenant)

    def count_waiting(self, log: KeptLog, by: int) -> None:
        """Count `by` more suspended executions of the kind and the tenant of `log`."""
        waiting, kind = self._tenants[log.execution.tenant].waiting, log.execution.kind
        waiting[kind] = waiting.get(kind, 0) + by

    def end(self, log: KeptLog) -> None:
        """Count a log as ended."""
        name, has = log.execution.execution_id, self._tenants[log.execution.tenant]
        self.ended[name] = has.ended[name] = None
        self._close(has, log.size)
        has.ended_bytes += log.size

    def _close(self, has: _TenantLogs, size: int) -> None:
        has.executions -= 1
        has.open_bytes -= size
        self.open_executions -= 1
        self.open_bytes -= size

    def remove(self, log: KeptLog) -> None:
        """Count a log no more."""
        name, tenant = log.execution.execution_id, log.execution.tenant
        has = self._tenants[tenant]
        self.size -= log.size
        if log.execution.state.has_ended:
            del self.ended[name], has.ended[name]
            has.ended_bytes -= log.size
        else:
            self._close(has, log.size)
            if not log.is_running:
                self.count_waiting(log, -1)
        self._see_share(tenant)
        if not has.executions and not has.ended:
            del self._tenants[tenant]
            self._hogs.pop(tenant, None)

    def find_oldest_ended(self, *, sparing: str) -> str | None:
        """Return the ended execution that is to go first, but not `sparing`; None if there is none.

        Those of a tenant that has more than its quota go before those that ended longest ago.
        """
        return next((name for name in self._list_ended() if name != sparing), None)

    def _list_ended(self) -> Iterator[str]:
        for tenant in self._hogs:
            yield from self._tenants[tenant].ended
        yield from self.ended

    def _see_share(self, tenant: str) -> None:
        """Note whether the tenant has more than its quota."""
        has, quota = self._tenants[tenant], self._quota
        if (quota.executions is not None and has.executions + len(has.ended) > quota.executions) or (
            quota.max_bytes is not None and has.open_bytes + has.ended_bytes > quota.max_bytes
        ):
            self._hogs[tenant] = None
        else:
            self._hogs.pop(tenant, None)


_FORGOTTEN_KEPT = 10_000
# The heap of expiry times is cleaned once it has this many entries more than twice the number of logs.
_STALE_ENDS = 1000


@dataclass(eq=False, kw_only=True)
class LogTable:
    """The logs by id, with indexes to find those to remove: bounded in number, bytes and time."""

    max_executions: int
    max_bytes: int
    now: Callable[[], datetime]
    monotonic: Callable[[], float]
    quota: TenantQuota = UNBOUNDED

    def __post_init__(self) -> None:
        self.tenants = TenantTable(self.quota)
        self.logs: dict[str, KeptLog] = {}
        self.claims: dict[tuple[str, str], str] = {}
        self.largest_log = max(self.max_bytes, LARGEST_LOG_BYTES)
        self._forgotten: OrderedDict[str, str] = OrderedDict()
        # A heap, so that no call has to look at every log.
        self._expiring: list[tuple[datetime, str]] = []
        self.sessions = SessionTable(
            max_sessions=self.max_executions,
            max_per_tenant=self.quota.executions,
            find=self.find_execution,
            now=self.now,
        )

    def append(self, part: Append) -> ReasondError | None:
        """Append one part, or return the error that refuses it."""
        name = part.execution.execution_id
        log = self.logs.get(name)
        if log is not None and log.execution.tenant != part.execution.tenant:
            log = None
        head = log.head() if log else None
        if log is not None and head is not None and may_repeat(part, head) and _repeats(part, log):
            return None
        events = select_events(part)
        refused = find_refusal(part, events, head, size=part.size, largest=self.largest_log)
        if refused is None and part.creation is not None:
            log, refused = self._create(part.execution, part.creation)
        if refused is not None or log is None:
            return refused
        count = len(part.entries)
        log.events += events
        if len(events) < count:
            log.records = log.records or []
            log.records += [entry for entry in part.entries if isinstance(entry, Record)]
        log.execution = part.execution
        log.version += count
        self.tenants.grow(log, part.size)
        if part.execution.expire_time is not None:
            self._expire_at(part.execution.expire_time, name)
        if part.execution.state is ExecutionState.SUSPENDED:
            # The copy frees the spare capacity of the list.
            log.owner, log.lease_until, log.events = "", 0.0, [*log.events]
            self.tenants.count_waiting(log, 1)
        elif part.execution.state.has_ended:
            self._end(log, keeps_records=part.keeps_records, keeps_plan=part.keeps_plan)
            if part.execution.session_id:
                self.tenants.size += self.sessions.leave(part.execution, part.session_end)
                self._keep_with_session(part.execution)
        return None

    def _create(self, execution: Execution, creation: Creation) -> tuple[KeptLog | None, ReasondError | None]:
        """Return a new log, or the error that refuses it."""
        if execution.execution_id in self.logs:
            return None, build_id_taken_error(execution.execution_id)
        try:
            self.make_room(for_new=1, tenant=execution.tenant, kind=execution.kind)
        except StoreFullError as error:
            return None, error
        return self.add(execution, creation), None

    def add(
        self, execution: Execution, creation: Creation, *, digest: str = "", records: Sequence[Record] = ()
    ) -> KeptLog:
        """Add a new log that begins with `records`."""
        log = KeptLog(
            execution=execution,
            digest=digest,
            plan=creation.plan,
            owner=creation.lease.owner,
            lease_until=self.monotonic() + creation.lease.seconds,
            records=[*records] or None,
            version=len(records),
        )
        self.logs[execution.execution_id] = log
        self.tenants.add(log)
        self.tenants.grow(log, len(creation.plan) + (sum(map(estimate_size, records)) if records else 0))
        return log

    def require_room(self, log: KeptLog, size: int) -> None:
        """Count `size` bytes that are added to a log.

        Raises:
            StoreFullError: the log, or its tenant, has no room for them.
        """
        if log.size + size > self.largest_log:
            raise build_log_full_error(self.largest_log)
        self.tenants.require_bytes(log.execution.tenant, size)
        self.tenants.grow(log, size)

    def _end(self, log: KeptLog, *, keeps_records: bool, keeps_plan: bool) -> None:
        """Drop what only a running execution needs."""
        if not keeps_records:
            freed = 0 if log.records is None else sum(map(estimate_size, log.records))
            log.records = None
            if not keeps_plan:
                freed += len(log.plan)
                log.plan = ""
            self.tenants.grow(log, -freed)
        self.tenants.end(log)

    def find_execution(self, execution_id: str) -> Execution | None:
        """Return an execution of any tenant; None if the table does not hold it."""
        log = self.logs.get(execution_id)
        return None if log is None else log.execution

    def find_cancelled(self, tenant: str, execution_id: str) -> KeptLog | None:
        """Return the log of a cancelled execution, from which a new one can inherit; None if there is none."""
        log = self.logs.get(execution_id)
        if log is None or log.execution.tenant != tenant or log.execution.state is not ExecutionState.CANCELLED:
            return None
        return log

    def claim_of(self, execution_id: str) -> Claim:
        """Return the claim of an execution that the table holds."""
        log = self.logs[execution_id]
        return Claim(execution_id=execution_id, digest=log.digest)

    def find(self, tenant: str, execution_id: str) -> KeptLog:
        """Return the log. Raises as `ExecutionStore.find`."""
        log = self.logs.get(execution_id)
        if log is not None and log.execution.tenant == tenant:
            return log
        if self._forgotten.get(execution_id) == tenant:
            raise build_expired_error(execution_id)
        raise build_not_found_error(execution_id)

    def remove(self, execution_id: str) -> KeptLog:
        """Remove a log that the table holds, with its request id."""
        log = self.logs.pop(execution_id)
        self.tenants.remove(log)
        self.release(log.execution)
        if log.execution.session_id:
            self.sessions.detach(log.execution)
        return log

    def release(self, execution: Execution) -> None:
        """Release the request id of `execution`, unless another execution has it by now."""
        key = (execution.tenant, execution.request_id)
        if self.claims.get(key) == execution.execution_id:
            del self.claims[key]

    def _forget(self, execution_id: str) -> None:
        self._forgotten[execution_id] = self.remove(execution_id).execution.tenant
        if len(self._forgotten) > _FORGOTTEN_KEPT:
            self._forgotten.popitem(last=False)

    def forget_expired(self, limit: int | None = None) -> int:
        """Remove up to `limit` expired executions; return how many."""
        now, forgotten, expiring = self.now(), 0, self._expiring
        while expiring and expiring[0][0] <= now and (limit is None or forgotten < limit):
            _, execution_id = heapq.heappop(expiring)
            log = self.logs.get(execution_id)
            # An execution of a session is kept longer than it was planned at its end.
            if log is not None and log.execution.expire_time is not None and log.execution.expire_time <= now:
                self._forget(execution_id)
                forgotten += 1
        return forgotten

    def enter_session(self, execution: Execution, claim: SessionClaim) -> None:
        """Let a new execution enter its session, which it may do."""
        self.tenants.size += self.sessions.enter(execution, claim)
        self._keep_with_session(execution)

    def _keep_with_session(self, execution: Execution) -> None:
        """Keep the ended executions of a session as long as the session."""
        row, now = self.sessions.row_of(execution), self.now()
        if row is None:
            return
        until = row.session.expire_time
        for name in row.executions:
            log = self.logs[name]
            planned = log.execution.expire_time
            if planned is not None and now < planned < until:
                log.execution = replace(log.execution, expire_time=until)
                self._expire_at(until, name)

    def remove_session(self, row: SessionRow, *, remembers: bool = True) -> None:
        """Remove a session without open execution, and its executions; it `remembers` their ids unless told not to."""
        for name in [*row.executions]:
            if remembers:
                self._forget(name)
            else:
                self.remove(name)
        self.tenants.size -= self.sessions.remove(row)

    def _expire_at(self, moment: datetime, execution_id: str) -> None:
        """Schedule the removal of a log at `moment`."""
        if len(self._expiring) > 2 * len(self.logs) + _STALE_ENDS:
            self._expiring = [(at, name) for at, name in self._expiring if name in self.logs]
            heapq.heapify(self._expiring)
        heapq.heappush(self._expiring, (moment, execution_id))

    def make_room(
        self, *, for_new: int, tenant: str = "", kind: str = "", sparing: str = "", session_id: str = ""
    ) -> None:
        """Remove executions that have ended until there is room for `for_new` more of `kind` for `tenant`.

        Those of a tenant that has more than its share go first, and then those that ended longest ago. If that is not
        enough, the sessions go that were updated longest ago, except the one with this id.
        """
        if for_new:
            self.tenants.require_room(tenant, kind)
        while len(self.logs) + for_new > self.max_executions or self.tenants.size > self.max_bytes:
            oldest = self.tenants.find_oldest_ended(sparing=sparing)
            unused = self.sessions.find_oldest(sparing=session_id) if oldest is None else None
            if oldest is None and unused is None and for_new:
                raise StoreFullError(
                    f"The store holds {len(self.logs)} running executions and has no room for another",
                    remedy="Wait until one has ended, or raise [store] max_executions or max_bytes.",
                    metadata={"max_executions": str(self.max_executions), "max_bytes": str(self.max_bytes)},
                )
            if oldest is not None:
                self._forget(oldest)
            elif unused is not None:
                self.remove_session(unused)
            else:
                return

    def make_room_in_session(self, execution: Execution, claim: SessionClaim, *, sparing: str) -> None:
        """Make room for a new execution in a session. Raises as `ExecutionStore.create`."""
        self.sessions.require_entry(execution.tenant, claim)
        self.tenants.require_room(execution.tenant, execution.kind)
        surplus = self.sessions.find_surplus(execution.tenant, claim.session_id)
        if surplus is not None:
            self.remove_session(surplus)
        self.make_room(
            for_new=1, tenant=execution.tenant, kind=execution.kind, sparing=sparing, session_id=claim.session_id
        )


def _repeats(part: Append, log: KeptLog) -> bool:
    """Return whether `part` repeats the last append of the log; `may_repeat` holds already."""
    known = log.execution
    if known.session_id:
        # The session may have prolonged it since.
        known = replace(known, expire_time=part.execution.expire_time)
    if part.execution != known:
        return False
    events = select_events(part)
    return not events or log.events[-len(events) :] == events
