"""The store that lives and dies with the process: bounded in number, bytes and time."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from reasond_server.errors import StoreFullError
from reasond_server.logs.appending import (
    LARGEST_LOG_BYTES,
    Head,
    events_of,
    id_taken,
    may_repeat,
    no_longer_kept,
    not_found,
    refusal,
)
from reasond_server.logs.sizes import size_of
from reasond_server.logs.store import Change, Claim, Creation, Kept, Record, Recovery, Renewal
from reasond_server.logs.watching import Watchers
from reasond_server.types import ExecutionState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from datetime import datetime

    from reasond_server.errors import ReasondError
    from reasond_server.logs.store import Append, ExecutionFilter, Lease
    from reasond_server.types import Execution, LoggedEvent

_FORGOTTEN_KEPT = 10_000
# Ends of logs that are gone already are swept out once they are this many more than there are logs.
_STALE_ENDS = 1000


@dataclass(slots=True)
class _Log:
    """One execution with its entries, their approximate size in bytes, and who may write it until when."""

    execution: Execution
    digest: str
    plan: str
    owner: str
    lease_until: float
    events: list[LoggedEvent] = field(default_factory=list)
    # An empty list takes 56 bytes, and thousands may be suspended.
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
        """Return whether `recover` returns it."""
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
        """Return what decides whether the log takes more."""
        return Head(
            version=self.version,
            fence=self.fence,
            last_sequence=len(self.events),
            size=self.size,
            state=self.execution.state,
        )


class MemoryExecutionStore:
    """Keeps at most `max_executions` and about `max_bytes`; forgets what ended longest ago first.

    What ended is kept until its `expire_time`; a running execution is never forgotten, but its log grows to
    `max_bytes` or 64 MiB at most, whichever is more. The ids of the last 10,000 forgotten ones are remembered, so
    that a late reader is told that it came too late. `monotonic` (seconds) measures leases; without it `now` does.
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
        self._max_executions = max_executions
        self._max_bytes = max_bytes
        self._largest_log = max(max_bytes, LARGEST_LOG_BYTES)
        self._now = now
        self._monotonic = monotonic or (lambda: now().timestamp())
        self._logs: dict[str, _Log] = {}
        # In the order in which they ended, which is the order of being forgotten; apart, because who asks for room must
        # not pay for passing all that run.
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._claims: dict[tuple[str, str], str] = {}
        self._forgotten: OrderedDict[str, str] = OrderedDict()
        # A heap: who asks for anything must not pay for looking at every log.
        self._expiring: list[tuple[datetime, str]] = []
        self._watchers = Watchers()
        self._size = 0

    async def claimed(self, tenant: str, request_id: str) -> Claim | None:
        """See ExecutionStore."""
        self._forget_expired()
        holder = self._claims.get((tenant, request_id))
        return None if holder is None else self._claim(holder)

    async def kept(self, tenant: str, execution_id: str) -> Kept:
        """See ExecutionStore."""
        self._forget_expired()
        log = self._log(tenant, execution_id)
        return Kept(plan=log.plan, records=tuple(log.records or ()))

    async def create(self, execution: Execution, *, digest: str, plan: str, lease: Lease, inherits: str = "") -> Claim:
        """See ExecutionStore."""
        self._forget_expired()
        key, name = (execution.tenant, execution.request_id), execution.execution_id
        parent = self._cancelled(execution.tenant, inherits)
        holder = self._claims.get(key) if execution.request_id else None
        if (made := self._logs.get(name)) is not None:
            return replace(self._claim(name), inherited=len(made.records or ()))
        if holder is not None and (parent is None or holder != inherits):
            return self._claim(holder)
        records = tuple(parent.records or ()) if parent else ()
        self._make_room(for_new=1, sparing=inherits)
        self._keep(execution, Creation(plan=plan, lease=lease), digest=digest, records=records)
        if execution.request_id:
            self._claims[key] = name
        return replace(self._claim(name), inherited=len(records))

    async def release(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        self._release(self._log(tenant, execution_id).execution)

    async def append(self, batch: Sequence[Append]) -> Sequence[ReasondError | None]:
        """See ExecutionStore."""
        if any(part.creation is not None for part in batch):
            self._forget_expired()
        refusals = [self._append(part) for part in batch]
        if self._size > self._max_bytes:
            self._make_room(for_new=0, sparing=batch[-1].execution.execution_id)
        grown = dict.fromkeys(
            part.execution.execution_id
            for part, refused in zip(batch, refusals, strict=True)
            if refused is None and self._watchers.are_watching(part.execution.execution_id) and events_of(part)
        )
        self._watchers.tell(grown, Change.GREW)
        return refusals

    async def find(self, tenant: str, execution_id: str) -> Execution:
        """See ExecutionStore."""
        self._forget_expired()
        return self._log(tenant, execution_id).execution

    async def read(
        self, tenant: str, execution_id: str, *, after: int = 0, limit: int | None = None
    ) -> Sequence[LoggedEvent]:
        """See ExecutionStore."""
        self._forget_expired()
        until = None if limit is None else after + limit
        return self._log(tenant, execution_id).events[after:until]

    async def page(
        self, tenant: str, wanted: ExecutionFilter, *, size: int, before: tuple[float, str] | None
    ) -> Sequence[Execution]:
        """See ExecutionStore."""
        self._forget_expired()
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
        self._forget_expired()
        self._log(tenant, execution_id)
        self._remove(execution_id)
        self._watchers.tell((execution_id,), Change.GREW)

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
            cancelled=[execution_id for execution_id, log in held.items() if log.is_cancel_requested],
            kept=[execution_id for execution_id, log in held.items() if log.is_keep_requested],
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
        self._forget_expired()
        log = self._log(tenant, execution_id)
        if log.execution.state is not ExecutionState.SUSPENDED:
            return None
        return log.take(lease, now_s=self._monotonic())

    async def request_cancel(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        self._forget_expired()
        self._log(tenant, execution_id).is_cancel_requested = True
        self._watchers.tell((execution_id,), Change.CANCEL_REQUESTED)

    async def request_keep(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        self._forget_expired()
        self._log(tenant, execution_id).is_keep_requested = True
        self._watchers.tell((execution_id,), Change.KEEP_REQUESTED)

    async def announce(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        log = self._logs.get(execution_id)
        if log is not None and log.execution.tenant == tenant:
            self._watchers.tell((execution_id,), Change.FOLLOWED)

    async def forget(self, *, limit: int) -> int:
        """See ExecutionStore."""
        return self._forget_expired(limit=limit)

    def watch(self, execution_id: str, notify: Callable[[Change], None]) -> AbstractContextManager[None]:
        """See ExecutionStore."""
        return self._watchers.watch(execution_id, notify)

    async def aclose(self) -> None:
        """See ExecutionStore."""

    def _append(self, part: Append) -> ReasondError | None:
        """Take one part, or return why not."""
        name = part.execution.execution_id
        log = self._logs.get(name)
        if log is not None and log.execution.tenant != part.execution.tenant:
            log = None
        head = log.head() if log else None
        if log is not None and head is not None and may_repeat(part, head) and _repeats(part, log):
            return None
        refused = refusal(part, head, size=part.size, largest=self._largest_log)
        if refused is None and part.creation is not None:
            log, refused = self._created(part.execution, part.creation)
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
        self._size += part.size
        if part.execution.expire_time is not None:
            self._expire_at(part.execution.expire_time, name)
        if part.execution.state is ExecutionState.SUSPENDED:
            # What it has room for beyond its events is given back.
            log.owner, log.lease_until, log.events = "", 0.0, [*log.events]
        elif part.execution.state.has_ended:
            self._end(log, keeps_records=part.keeps_records)
        return None

    def _created(self, execution: Execution, creation: Creation) -> tuple[_Log | None, ReasondError | None]:
        """Return a new log, or why there is none."""
        if execution.execution_id in self._logs:
            return None, id_taken(execution.execution_id)
        try:
            self._make_room(for_new=1)
        except StoreFullError as error:
            return None, error
        return self._keep(execution, creation), None

    def _keep(
        self, execution: Execution, creation: Creation, *, digest: str = "", records: Sequence[Record] = ()
    ) -> _Log:
        """Keep a new log that begins with `records`."""
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
        self._logs[execution.execution_id] = log
        self._size += log.size
        return log

    def _end(self, log: _Log, *, keeps_records: bool) -> None:
        """Let go of what only a running execution needs."""
        if not keeps_records:
            freed = len(log.plan) + sum(map(size_of, log.records or ()))
            log.plan, log.records = "", None
            log.size -= freed
            self._size -= freed
        self._ended[log.execution.execution_id] = None

    def _cancelled(self, tenant: str, execution_id: str) -> _Log | None:
        """Return the log that can be inherited from, if it can."""
        log = self._logs.get(execution_id)
        if log is None or log.execution.tenant != tenant or log.execution.state is not ExecutionState.CANCELLED:
            return None
        return log

    def _claim(self, execution_id: str) -> Claim:
        log = self._logs[execution_id]
        return Claim(execution_id=execution_id, digest=log.digest)

    def _log(self, tenant: str, execution_id: str) -> _Log:
        log = self._logs.get(execution_id)
        if log is not None and log.execution.tenant == tenant:
            return log
        if self._forgotten.get(execution_id) == tenant:
            raise no_longer_kept(execution_id)
        raise not_found(execution_id)

    def _remove(self, execution_id: str) -> _Log:
        log = self._logs.pop(execution_id)
        self._ended.pop(execution_id, None)
        self._size -= log.size
        self._release(log.execution)
        return log

    def _release(self, execution: Execution) -> None:
        """Give the request id of `execution` up, unless another execution has it by now."""
        key = (execution.tenant, execution.request_id)
        if self._claims.get(key) == execution.execution_id:
            del self._claims[key]

    def _forget(self, execution_id: str) -> None:
        self._forgotten[execution_id] = self._remove(execution_id).execution.tenant
        if len(self._forgotten) > _FORGOTTEN_KEPT:
            self._forgotten.popitem(last=False)

    def _forget_expired(self, limit: int | None = None) -> int:
        now, forgotten, expiring = self._now(), 0, self._expiring
        while expiring and expiring[0][0] <= now and (limit is None or forgotten < limit):
            _, execution_id = heapq.heappop(expiring)
            if execution_id in self._logs:
                self._forget(execution_id)
                forgotten += 1
        return forgotten

    def _expire_at(self, moment: datetime, execution_id: str) -> None:
        """Have a log forgotten then."""
        if len(self._expiring) > 2 * len(self._logs) + _STALE_ENDS:
            self._expiring = [(at, name) for at, name in self._expiring if name in self._logs]
            heapq.heapify(self._expiring)
        heapq.heappush(self._expiring, (moment, execution_id))

    def _make_room(self, *, for_new: int, sparing: str = "") -> None:
        """Forget what ended longest ago until the bounds hold with `for_new` executions more."""
        while len(self._logs) + for_new > self._max_executions or self._size > self._max_bytes:
            oldest = next((name for name in self._ended if name != sparing), None)
            if oldest is None and for_new:
                raise StoreFullError(
                    f"The store holds {len(self._logs)} running executions and has no room for another",
                    remedy="Wait until one has ended, or raise [store] max_executions or max_bytes.",
                    metadata={"max_executions": str(self._max_executions), "max_bytes": str(self._max_bytes)},
                )
            if oldest is None:
                return
            self._forget(oldest)


def _repeats(part: Append, log: _Log) -> bool:
    """Return whether `part`, which can be what the log was given last, is that."""
    if part.execution != log.execution:
        return False
    events = events_of(part)
    return not events or log.events[-len(events) :] == events


def _place(execution: Execution) -> tuple[float, str]:
    """Return where an execution stands in the order of creation."""
    return execution.create_time.timestamp(), execution.execution_id
