"""Resumes executions that other processes left behind, and renews the leases of this process."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reasond_server.errors.base import ReasondError
from reasond_server.eventlog.leases import LeaseKeeper, Sweep
from reasond_server.runs.phase import Phase, Trigger
from reasond_server.runs.plan import PlanError
from reasond_server.runs.recorded_calls import ReplayError
from reasond_server.runs.run_factory import RunFactory, build_resume_error

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from reasond_server.base.clock import Clock
    from reasond_server.eventlog.store import ExecutionStore, Lease, Recovery
    from reasond_server.runs.admission import Admission, Place, Releasable
    from reasond_server.runs.live_runs import LiveRuns, RunnerLimits
    from reasond_server.runs.run import Run
    from reasond_server.runs.run_driver import Driver
    from reasond_server.telemetry.observers import Observer
    from reasond_server.types import LoggedEvent

_log = logging.getLogger("reasond.executions")


@dataclass(eq=False, kw_only=True)
class Recoverer:
    """Adopts executions whose process has ended; `lease_keeper` looks for them every third of a lease.

    `carry_over` renews the permit with which the caller was admitted, so that the run also counts in this process.
    """

    store: ExecutionStore
    lease: Lease
    clock: Clock
    runs: LiveRuns
    factory: RunFactory
    driver: Driver
    admission: Admission
    limits: RunnerLimits
    carry_over: Callable[[str, str, str, int], Awaitable[Releasable | None]]
    observer: Observer
    sweep: Sweep

    def __post_init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self.lease_keeper = LeaseKeeper(
            store=self.store,
            lease=self.lease,
            random=self.clock.random,
            monotonic=self.clock.monotonic,
            runs=self.runs,
            handler=self,
            sweep=self.sweep,
        )

    def begin(self, run: Run, place: Place, *, since_s: float) -> Run:
        """Start `run`; its lease was requested at `since_s` (seconds of the monotonic clock)."""
        if run.tenure is not None:
            run.tenure.begin(since_s, ask=self.lease_keeper.hurry, end=run.fence)
        place.take()
        run.place, run.subscribers.patience_s = place, self.limits.reattach_s
        run.advance(Trigger.BEGIN)
        run.driver = asyncio.create_task(self.driver.drive(run), name=f"execution {run.identity.execution_id}")
        self.runs.by_id[run.identity.execution_id] = run
        return run

    async def wake(self, tenant: str, execution_id: str, place: Place, event: LoggedEvent | None = None) -> bool:
        """Resume a suspended execution in `place` and append `event`; return whether it was taken.

        Raises: as the store does.
        """
        since_s = self.clock.monotonic()
        recovery = await self.store.wake(self.lease, tenant, execution_id, event=event)
        if recovery is not None:
            self.adopt(recovery, since_s, place)
        return recovery is not None

    async def aclose(self, *, within_s: float) -> None:
        """Wait for the open tasks, `within_s` seconds at most."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=within_s)

    def count_room(self) -> int:
        """See RecoveryHandler."""
        return 0 if self.admission.is_draining else self.admission.free_places

    def adopt(self, recovery: Recovery, since_s: float, place: Place | None = None) -> None:
        """Resume an abandoned or suspended execution, in `place` if given; end it if it cannot be resumed.

        The lease was requested at `since_s`. If no run takes `place`, the caller keeps it.
        """
        name = recovery.execution.execution_id
        own = self.runs.by_id.get(name)
        if own is not None:
            if own.phase is not Phase.SUSPENDED:
                # This process lost contact for longer than its lease lasted, and has now taken over its own run.
                own.stop(Trigger.LOSE)
            self._spawn(self._adopt_after(own, recovery, since_s), name=f"adoption of {name}")
            return
        if not self.factory.knows(recovery.execution):
            _log.warning("an execution of kind %r is left to other processes", recovery.execution.kind)
            return
        try:
            run = self.factory.revive(recovery)
        except (PlanError, ReplayError) as error:
            self.factory.write_off(recovery, build_resume_error(error))
            self.observer.run_recovered("written_off")
            return
        if not recovery.was_suspended:
            self.observer.run_recovered("resumed")
        if recovery.is_keep_requested:
            run.subscribers.keep()
        if not run.subscribers.keeps_running:
            run.subscribers.await_one(within_s=self.limits.reattach_s)
        place = self.admission.force() if place is None else place
        self.begin(run, place, since_s=since_s)
        self.runs.notify(name)
        if recovery.is_cancel_requested:
            run.cancel()
        self._spawn(self._count(run, place, recovery.fence), name=f"permit of {name}")

    async def _adopt_after(self, own: Run, recovery: Recovery, since_s: float) -> None:
        await own.wait_for_end()
        name = recovery.execution.execution_id
        if self.admission.is_draining:
            await self.driver.give_back(name, recovery.fence)
        elif name not in self.runs.by_id:
            self.adopt(recovery, since_s)

    async def _count(self, run: Run, place: Place, fence: int) -> None:
        """Count a run that was taken over towards its caller's limit of executions at once."""
        request = run.work.request
        name = request.permit or run.identity.execution_id
        try:
            place.keep(await self.carry_over(request.tenant, request.subject, name, fence))
        except ReasondError as error:
            _log.warning("an execution goes on uncounted: %s", error.message, extra={"execution_id": name})

    def _spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
