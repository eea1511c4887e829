"""The runs at work in this process, by execution; how much a process does at once, and how busy it is."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from reasond_server.runs.phase import Trigger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reasond_server.logs.mailbox import Mailbox
    from reasond_server.runs.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerLimits:
    """How much a runner does at once, and how long what it leaves is kept or waited for.

    Attributes:
        max_concurrent: how many executions run at once.
        max_queued: how many wait for a place, each for `queue_timeout_s` at most.
        retention_s: how long what ended is kept, unless `tenant_retention_s` says otherwise for its tenant.
        lease_s: how long a lease lasts.
        reattach_s: how long a run that was taken over and that nobody asked to keep waits for somebody to come back;
            so does one whose calls are not on record and whose caller may ask again.
        unwinding_s: how long work may take to clean up once it is stopped.
        records_content: whether texts are kept.
    """

    max_concurrent: int
    retention_s: float
    tenant_retention_s: Mapping[str, float] = field(default_factory=dict)
    max_queued: int = 0
    queue_timeout_s: float = 0.0
    lease_s: float = 15.0
    reattach_s: float = 30.0
    unwinding_s: float = 2.0
    records_content: bool = True

    def retention_of(self, tenant: str) -> timedelta:
        """Return how long executions of `tenant` are kept after their end."""
        return timedelta(seconds=self.tenant_retention_s.get(tenant, self.retention_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Executions that hold a place, those that wait for one, and how many places there are."""

    running: int
    queued: int
    places: int


class LiveRuns:
    """The runs at work here, `by_id`; and who waits for one that another process works on."""

    def __init__(self) -> None:
        self.by_id: dict[str, Run] = {}
        self._waiting: dict[str, dict[Mailbox, None]] = {}

    def notify(self, execution_id: str) -> None:
        """Tell who waits for an execution that it is at work here now."""
        for mailbox in self._waiting.get(execution_id, ()):
            mailbox.notify_growth()

    @contextmanager
    def await_run(self, execution_id: str, mailbox: Mailbox) -> Iterator[None]:
        """Let `mailbox` hear when this process goes on with an execution of another one, while the context lasts."""
        waiting = self._waiting.setdefault(execution_id, {})
        waiting[mailbox] = None
        try:
            yield
        finally:
            waiting.pop(mailbox, None)
            if not waiting and self._waiting.get(execution_id) is waiting:
                del self._waiting[execution_id]

    def read_fences(self) -> Mapping[str, int]:
        """Return the fences of what is at work here and is in the store."""
        runs = self.by_id.items()
        return {name: run.log.fence for name, run in runs if run.log.is_created and run.log.error is None}

    def prolong(self, fences: Mapping[str, int], since_s: float) -> None:
        """Note whose leases were renewed, by a request that began at `since_s`."""
        for name, fence in fences.items():
            run = self.by_id.get(name)
            if run is not None and run.tenure is not None and run.log.fence == fence:
                run.tenure.prolong(since_s)

    def lose(self, execution_id: str) -> None:
        """Leave an execution that another process has taken over."""
        self._stop(execution_id, Trigger.LOSE)

    def cancel(self, execution_id: str) -> None:
        """Stop an execution that somebody wants stopped."""
        self._stop(execution_id, Trigger.CANCEL)

    def keep(self, execution_id: str) -> None:
        """Let an execution go on when nobody follows it."""
        run = self.by_id.get(execution_id)
        if run is not None:
            run.subscribers.keep()

    async def wait_for_commits(self, tenant: str, *, within_s: float) -> None:
        """Wait until what began or ended here and was not waited for is in the store, but not for long.

        Its caller may know the result already and ask for it.
        """
        late = [
            run.log
            for run in self.by_id.values()
            if run.identity.tenant == tenant and (not run.log.is_created or run.log.has_ended)
        ]
        if late:
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    for log in late:
                        await log.wait_for_commit()

    async def wait_for_ends(self, timeout_s: float) -> None:
        """Wait until nothing is at work any more, for so many seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for run in tuple(self.by_id.values()):
                    await run.wait_for_end()

    def _stop(self, execution_id: str, trigger: Trigger) -> None:
        run = self.by_id.get(execution_id)
        if run is not None:
            run.stop(trigger)
