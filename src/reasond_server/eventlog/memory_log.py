"""One log of the store in memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from reasond_server.eventlog.contract import Head
from reasond_server.eventlog.store import Record, Recovery
from reasond_server.types import ExecutionState

if TYPE_CHECKING:
    from datetime import datetime

    from reasond_server.eventlog.store import Lease
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
