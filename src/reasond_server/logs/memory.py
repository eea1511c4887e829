"""The store in memory, which is lost when the process ends: bounded in number, bytes and time."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from reasond_server.errors import StoreFullError
from reasond_server.logs.contract import (
    LARGEST_LOG_BYTES,
    Head,
    Watchers,
    build_expired_error,
    build_id_taken_error,
    build_not_found_error,
    events_of,
    find_refusal,
    may_repeat,
)
from reasond_server.logs.sizes import size_of
from reasond_server.logs.store import Change, Checkpoint, Claim, Creation, Record, Recovery, Renewal
from reasond_server.types import ExecutionState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime

    from reasond_server.errors import ReasondError
    from reasond_server.logs.store import Append, ExecutionFilter, Lease
    from reasond_server.types import Execution, LoggedEvent

_FORGOTTEN_KEPT = 10_000
# The heap of expiry times is cleaned once it has this many entries more than twice the number of logs.
_STALE_ENDS = 1000


@dataclass(slots=True)
class _Log:
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

    def take(self, lease: Lease, *, now_s: float) -> Recovery:
        """Give the log to the owner of `lease`."""
        was_suspended = not self.is_running
        if was_suspended:
            self.execution = replace(self.execution, state=ExecutionState.RUNNING, wake_time=None)
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


class _LogTable:
    """The logs by id, with indexes to find those to remove: bounded in number, bytes and time."""

    def __init__(
        self, *, max_executions: int, max_bytes: int, now: Callable[[], datetime], monotonic: Callable[[], float]
    ) -> None:
        self.max_bytes = max_bytes
        self.size = 0
        self.logs: dict[str, _Log] = {}
        self.claims: dict[tuple[str, str], str] = {}
        self._max_executions = max_executions
        self._largest_log = max(max_bytes, LARGEST_LOG_BYTES)
        self._now = now
        self._monotonic = monotonic
        # In the order in which they ended, which is the order of removal. Kept apart from the running ones, so that
        # `make_room` need not pass over them.
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._forgotten: OrderedDict[str, str] = OrderedDict()
        # A heap, so that no call has to look at every log.
        self._expiring: list[tuple[datetime, str]] = []

    def append(self, part: Append) -> ReasondError | None:
        """Append one part, or return the error that refuses it."""
        name = part.execution.execution_id
        log = self.logs.get(name)
        if log is not None and log.execution.tenant != part.execution.tenant:
            log = None
        head = log.head() if log else None
        if log is not None and head is not None and may_repeat(part, head) and _repeats(part, log):
            return None
        refused = find_refusal(part, head, size=part.size, largest=self._largest_log)
        if refused is None and part.creation is not None:
            log, refused = self._create(part.execution, part.creation)
        if refused is not None or log is None:
            return refused
        events = events_of(part)
        log.events += events
        if len(events) < len(part.entries):
            log.records = log.records or []
            log.records += [entry for entry in part.entries if isinstance(entry, Record)]
        log.execution = part.execution
        log.version += len(part.entries)
        log.size += part.size
        self.size += part.size
        if part.execution.expire_time is not None:
            self._expire_at(part.execution.expire_time, name)
        if part.execution.state is ExecutionState.SUSPENDED:
            # The copy frees the spare capacity of the list.
            log.owner, log.lease_until, log.events = "", 0.0, [*log.events]
        elif part.execution.state.has_ended:
            self._end(log, keeps_records=part.keeps_records)
        return None

    def _create(self, execution: Execution, creation: Creation) -> tuple[_Log | None, ReasondError | None]:
        """Return a new log, or the error that refuses it."""
        if execution.execution_id in self.logs:
            return None, build_id_taken_error(execution.execution_id)
        try:
            self.make_room(for_new=1)
        except StoreFullError as error:
            return None, error
        return self.add(execution, creation), None

    def add(
        self, execution: Execution, creation: Creation, *, digest: str = "", records: Sequence[Record] = ()
    ) -> _Log:
        """Add a new log that begins with `records`."""
        log = _Log(
            execution=execution,
            digest=digest,
            plan=creation.plan,
            owner=creation.lease.owner,
            lease_until=self._monotonic() + creation.lease.seconds,
            records=[*records] or None,
            version=len(records),
            size=len(creation.plan) + sum(map(size_of, records)),
        )
        self.logs[execution.execution_id] = log
        self.size += log.size
        return log

    def _end(self, log: _Log, *, keeps_records: bool) -> None:
        """Drop what only a running execution needs."""
        if not keeps_records:
            freed = len(log.plan) + sum(map(size_of, log.records or ()))
            log.plan, log.records = "", None
            log.size -= freed
            self.size -= freed
        self._ended[log.execution.execution_id] = None

    def find_cancelled(self, tenant: str, execution_id: str) -> _Log | None:
        """Return the log of a cancelled execution, from which a new one can inherit; None if there is none."""
        log = self.logs.get(execution_id)
        if log is None or log.execution.tenant != tenant or log.execution.state is not ExecutionState.CANCELLED:
            return None
        return log

    def claim_of(self, execution_id: str) -> Claim:
        """Return the claim of an execution that the table holds."""
        log = self.logs[execution_id]
        return Claim(execution_id=execution_id, digest=log.digest)

    def find(self, tenant: str, execution_id: str) -> _Log:
        """Return the log. Raises as `ExecutionStore.find`."""
        log = self.logs.get(execution_id)
        if log is not None and log.execution.tenant == tenant:
            return log
        if self._forgotten.get(execution_id) == tenant:
            raise build_expired_error(execution_id)
        raise build_not_found_error(execution_id)

    def remove(self, execution_id: str) -> _Log:
        """Remove a log that the table holds, with its request id."""
        log = self.logs.pop(execution_id)
        self._ended.pop(execution_id, None)
        self.size -= log.size
        self.release(log.execution)
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
        now, forgotten, expiring = self._now(), 0, self._expiring
        while expiring and expiring[0][0] <= now and (limit is None or forgotten < limit):
            _, execution_id = heapq.heappop(expiring)
            if execution_id in self.logs:
                self._forget(execution_id)
                forgotten += 1
        return forgotten

    def _expire_at(self, moment: datetime, execution_id: str) -> None:
        """Schedule the removal of a log at `moment`."""
        if len(self._expiring) > 2 * len(self.logs) + _STALE_ENDS:
            self._expiring = [(at, name) for at, name in self._expiring if name in self.logs]
            heapq.heapify(self._expiring)
        heapq.heappush(self._expiring, (moment, execution_id))

    def make_room(self, *, for_new: int, sparing: str = "") -> None:
        """Remove the executions that ended longest ago until there is room for `for_new` more."""
        while len(self.logs) + for_new > self._max_executions or self.size > self.max_bytes:
            oldest = next((name for name in self._ended if name != sparing), None)
            if oldest is None and for_new:
                raise StoreFullError(
                    f"The store holds {len(self.logs)} running executions and has no room for another",
                    remedy="Wait until one has ended, or raise [store] max_executions or max_bytes.",
                    metadata={"max_executions": str(self._max_executions), "max_bytes": str(self.max_bytes)},
                )
            if oldest is None:
                return
            self._forget(oldest)


class MemoryExecutionStore:
    """Holds at most `max_executions` and about `max_bytes`; removes the executions that ended longest ago first.

    An ended execution is kept until its `expire_time`. A running execution is never removed, but its log may grow only
    to `max_bytes` or 64 MiB, whichever is more. The ids of the last 10,000 removed executions are remembered, so that a
    late reader gets CursorExpiredError. `monotonic` (seconds) measures leases; without it `now` does.
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
    ) -> None:
        self._now = now
        self._monotonic = monotonic or (lambda: now().timestamp())
        self._table = _LogTable(max_executions=max_executions, max_bytes=max_bytes, now=now, monotonic=self._monotonic)
        self._logs = self._table.logs
        self._watchers = Watchers()

    async def find_claim(self, tenant: str, request_id: str) -> Claim | None:
        """See ExecutionStore."""
        self._table.forget_expired()
        holder = self._table.claims.get((tenant, request_id))
        return None if holder is None else self._table.claim_of(holder)

    async def read_checkpoint(self, tenant: str, execution_id: str) -> Checkpoint:
        """See ExecutionStore."""
        self._table.forget_expired()
        log = self._table.find(tenant, execution_id)
        return Checkpoint(plan=log.plan, records=tuple(log.records or ()))

    async def create(self, execution: Execution, *, digest: str, plan: str, lease: Lease, inherits: str = "") -> Claim:
        """See ExecutionStore."""
        self._table.forget_expired()
        key, name = (execution.tenant, execution.request_id), execution.execution_id
        parent = self._table.find_cancelled(execution.tenant, inherits)
        holder = self._table.claims.get(key) if execution.request_id else None
        if (made := self._logs.get(name)) is not None:
            return replace(self._table.claim_of(name), inherited=len(made.records or ()))
        if holder is not None and (parent is None or holder != inherits):
            return self._table.claim_of(holder)
        records = tuple(parent.records or ()) if parent else ()
        self._table.make_room(for_new=1, sparing=inherits)
        self._table.add(execution, Creation(plan=plan, lease=lease), digest=digest, records=records)
        if execution.request_id:
            self._table.claims[key] = name
        return replace(self._table.claim_of(name), inherited=len(records))

    async def release(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        self._table.release(self._table.find(tenant, execution_id).execution)

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        """See ExecutionStore."""
        if any(part.creation is not None for part in batch):
            self._table.forget_expired()
        refusals = [self._table.append(part) for part in batch]
        if self._table.size > self._table.max_bytes:
            self._table.make_room(for_new=0, sparing=batch[-1].execution.execution_id)
        grown = dict.fromkeys(
            part.execution.execution_id
            for part, refused in zip(batch, refusals, strict=True)
            if refused is None and self._watchers.has_watcher(part.execution.execution_id) and events_of(part)
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
            and (not wanted.kind or log.execution.kind == wanted.kind)
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
        held: dict[str, _Log] = {}
        for execution_id, fence in fences.items():
            log = self._logs.get(execution_id)
            if log is not None and log.is_running and (log.owner, log.fence) == (lease.owner, fence):
                log.lease_until = until
                held[execution_id] = log
        return Renewal(
            lost=[execution_id for execution_id in fences if execution_id not in held],
            cancel_requested=[execution_id for execution_id, log in held.items() if log.is_cancel_requested],
            keep_requested=[execution_id for execution_id, log in held.items() if log.is_keep_requested],
        )

    async def recover(self, lease: Lease, *, limit: int) -> Sequence[Recovery]:
        """See ExecutionStore."""
        now, now_s = self._now(), self._monotonic()
        found = sorted(
            (log for log in self._logs.values() if log.may_be_taken(now=now, now_s=now_s)),
            key=lambda log: (log.lease_until, log.execution.execution_id),
        )
        return [log.take(lease, now_s=now_s) for log in found[:limit]]

    async def wake(self, lease: Lease, tenant: str, execution_id: str) -> Recovery | None:
        """See ExecutionStore."""
        self._table.forget_expired()
        log = self._table.find(tenant, execution_id)
        if log.execution.state is not ExecutionState.SUSPENDED:
            return None
        return log.take(lease, now_s=self._monotonic())

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
        return self._table.forget_expired(limit=limit)

    def watch(self, execution_id: str, notify: Callable[[Change], None]) -> AbstractContextManager[None]:
        """See ExecutionStore."""
        return self._watchers.watch(execution_id, notify)

    async def aclose(self) -> None:
        """See ExecutionStore."""


def _repeats(part: Append, log: _Log) -> bool:
    """Return whether `part` repeats the last append of the log; `may_repeat` holds already."""
    if part.execution != log.execution:
        return False
    events = events_of(part)
    return not events or log.events[-len(events) :] == events


def _place(execution: Execution) -> tuple[float, str]:
    """Return the sort key of the order of creation: create time in seconds, and id."""
    return execution.create_time.timestamp(), execution.execution_id
