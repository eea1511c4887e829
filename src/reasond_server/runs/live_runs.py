"""The active runs of this process by execution id; how many it may run at once, and its present load."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager, suppress
from dataclasses import field
from datetime import timedelta
from typing import TYPE_CHECKING

from reasond_server.runs.phase import Trigger
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reasond_server.eventlog.mailbox import Mailbox
    from reasond_server.runs.run import Run


@value
class RunnerLimits:
    """How many executions a runner runs at once, how long it keeps ended ones, and how long it waits.

    Attributes:
        max_concurrent: how many executions run at once.
        max_queued: how many wait for a place, each for `queue_timeout_s` seconds at most.
        retention_s: how many seconds an ended execution is kept, unless `tenant_retention_s` names its tenant.
        lease_s: how many seconds a lease lasts.
        reattach_s: how many seconds a run without subscribers waits for one before it is cancelled. This holds for runs
            that were taken over without `keep_running`, and for runs without records whose caller may ask again.
        unwinding_s: how many seconds work may take to clean up once it is stopped.
        records_content: whether texts are stored.
        records_prompts: whether the prompts and replies of model calls are stored as well.
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
    records_prompts: bool = False

    @property
    def records_calls(self) -> bool:
        """Whether model calls are stored: their texts are content."""
        return self.records_prompts and self.records_content

    def find_retention(self, tenant: str) -> timedelta:
        """Return how long ended executions of `tenant` are kept."""
        return timedelta(seconds=self.tenant_retention_s.get(tenant, self.retention_s))


@value
class Load:
    """The number of executions that hold a place, of those that wait for one, and of all places.

    The other figures only grow: the seconds for which places were in use, over all places; the requests that got a
    place, and that were refused because the server was full; the tokens that model calls were charged.
    """

    running: int
    queued: int
    places: int
    busy_s: float
    begun: int
    refused: int
    tokens: int


class LiveRuns:
    """The active runs of this process, `by_id`, and the mailboxes that wait for runs of other processes."""

    def __init__(self) -> None:
        self.by_id: dict[str, Run] = {}
        self._waiting: dict[str, dict[Mailbox, None]] = {}

    def notify(self, execution_id: str) -> None:
        """Notify the mailboxes that wait for an execution that this process runs it now."""
        for mailbox in self._waiting.get(execution_id, ()):
            mailbox.notify_growth()

    def notify_all(self) -> None:
        """Notify every mailbox that waits, because nothing is taken over any more."""
        for execution_id in self._waiting:
            self.notify(execution_id)

    @contextmanager
    def await_run(self, execution_id: str, mailbox: Mailbox) -> Iterator[None]:
        """While the context lasts, notify `mailbox` when this process takes the execution over from another one."""
        waiting = self._waiting.setdefault(execution_id, {})
        waiting[mailbox] = None
        try:
            yield
        finally:
            waiting.pop(mailbox, None)
            if not waiting and self._waiting.get(execution_id) is waiting:
                del self._waiting[execution_id]

    def read_fences(self) -> Mapping[str, int]:
        """Return the fences of the active runs that the store knows, by execution id."""
        runs = self.by_id.items()
        return {name: run.log.fence for name, run in runs if run.log.is_created and run.log.error is None}

    def prolong(self, fences: Mapping[str, int], since_s: float) -> None:
        """Record that a request that began at `since_s` renewed the leases of `fences`."""
        for name, fence in fences.items():
            run = self.by_id.get(name)
            if run is not None and run.tenure is not None and run.log.fence == fence:
                run.tenure.prolong(since_s)

    def lose(self, execution_id: str) -> None:
        """Leave an execution that another process has taken over."""
        self._stop(execution_id, Trigger.LOSE)

    def cancel(self, execution_id: str) -> None:
        """Stop an execution whose cancellation was requested."""
        self._stop(execution_id, Trigger.CANCEL)

    def keep(self, execution_id: str) -> None:
        """Let an execution run although it has no subscriber."""
        run = self.by_id.get(execution_id)
        if run is not None:
            run.subscribers.keep()

    async def wait_for_commits(self, tenant: str, *, within_s: float) -> None:
        """Wait, `within_s` seconds at most, until the store has the starts and ends that no call waited for.

        Without this, a caller that already has a result might not find its execution.
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
        """Wait until no run is active, `timeout_s` seconds at most."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for run in tuple(self.by_id.values()):
                    await run.wait_for_end()

    def _stop(self, execution_id: str, trigger: Trigger) -> None:
        run = self.by_id.get(execution_id)
        if run is not None:
            run.stop(trigger)
