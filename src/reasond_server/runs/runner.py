"""Starts, tracks and stops executions: each works in a task of its own, and the RPC only follows."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from reasond_server.clock import Clock
from reasond_server.errors import OverloadedError, ReasondError, StoreUnavailableError, StrategyNotFoundError, shown
from reasond_server.logs.leases import Tenure, Upkeep
from reasond_server.logs.store import Change, Creation, Lease
from reasond_server.logs.writer import LogWriter
from reasond_server.runs.admission import Admission, Leavable, Place
from reasond_server.runs.bounds import Load, RunnerLimits
from reasond_server.runs.driving import Driver
from reasond_server.runs.leaving import log_end, tell_left
from reasond_server.runs.making import AccountOf, Maker, failure_of, no_account, no_tenure
from reasond_server.runs.replay.plan import PlanError
from reasond_server.runs.replay.recorded import ReplayError
from reasond_server.runs.request_ids import RequestIds, stands
from reasond_server.runs.run import Run, Stop
from reasond_server.telemetry.observers import UNOBSERVED
from reasond_server.tools.toolbox import NO_TOOLS
from reasond_server.types import Execution, ExecutionState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reasond_server.llm.model import ChatModel
    from reasond_server.logs.mailbox import Mailbox
    from reasond_server.logs.store import Claim, ExecutionStore, Recovery
    from reasond_server.runs.making import Prepared
    from reasond_server.runs.run import Assignment
    from reasond_server.strategies.strategy import ReasoningStrategy
    from reasond_server.telemetry.observers import WorkObserver
    from reasond_server.telemetry.spans import Tracing
    from reasond_server.tools.toolbox import ToolSource

__all__ = ["CarryOver", "Clock", "Runner", "RunnerLimits"]

CarryOver = Callable[[str, str, str, int], Awaitable[Leavable | None]]
"""Returns the right to go on for a tenant's subject, from the name of the permit it was admitted by, and the fence."""

_log = logging.getLogger("reasond.executions")
_NATURAL_SHARE_OF_GRACE = 0.8
_LAST_COMMITS_S = 5.0
# Each is lost to another caller who made the same request at the same moment.
_MOST_ATTEMPTS = 10


async def _nothing_to_carry(_tenant: str, _subject: str, _permit: str, _fence: int) -> None:
    """Bound nobody's executions at once."""


def _no_strategy(name: str) -> ReasoningStrategy[Any]:
    raise StrategyNotFoundError(f"Strategy not found: {shown(name)}")


@dataclass(frozen=True, slots=True)
class _Leased:
    """What `logs.leases.LeasedRuns` asks for."""

    read_fences: Callable[[], Mapping[str, int]]
    count_room: Callable[[], int]
    adopt: Callable[[Recovery, float], None]
    prolong: Callable[[Mapping[str, int], float], None]
    lose: Callable[[str], None]
    cancel: Callable[[str], None]
    keep: Callable[[str], None]


class Runner:
    """Starts executions and drives them to their end, whether or not anybody follows.

    `find_strategy` returns a strategy by name, for runs that another process left behind; it raises where there is
    none. `begin` starts the upkeep: leases, recovery, retention. `request_ids` tells which requests are known.
    """

    def __init__(
        self,
        *,
        store: ExecutionStore,
        model: ChatModel,
        clock: Clock,
        limits: RunnerLimits,
        tools: ToolSource = NO_TOOLS,
        find_strategy: Callable[[str], ReasoningStrategy[Any]] = _no_strategy,
        account_of: AccountOf = no_account,
        carry_over: CarryOver = _nothing_to_carry,
        observer: WorkObserver = UNOBSERVED,
        tracing: Tracing | None = None,
    ) -> None:
        self._observer = observer
        self._carry_over = carry_over
        self._store = store
        self._model_name = model.name
        self._clock = clock
        self._limits = limits
        self._runs: dict[str, Run] = {}
        self.request_ids = RequestIds(store=store, runs=self._runs, queue_timeout_s=limits.queue_timeout_s)
        self._waiting: dict[str, dict[Mailbox, None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._lease = Lease(owner=clock.new_id(), seconds=limits.lease_s)
        self._admission = Admission(
            max_running=limits.max_concurrent,
            max_queued=limits.max_queued,
            queue_timeout_s=limits.queue_timeout_s,
            observer=observer,
        )
        self._writer = LogWriter(store=store, random=clock.random, observer=observer)
        new_tenure = partial(Tenure, lease_s=limits.lease_s, monotonic=clock.monotonic)
        self._maker = Maker(
            model=model,
            clock=clock,
            writer=self._writer,
            find_strategy=find_strategy,
            records_content=limits.records_content,
            is_durable=store.is_durable,
            account_of=account_of,
            new_tenure=new_tenure if store.is_shared else no_tenure,
            observer=observer,
        )
        self._driver = Driver(
            clock=clock,
            tools=tools,
            retention_of=limits.retention_of,
            unwinding_s=limits.unwinding_s,
            is_cut_off=self._is_cut_off,
            tracing=tracing,
        )
        self._upkeep = self._new_upkeep()

    def _new_upkeep(self) -> Upkeep:
        return Upkeep(
            store=self._store,
            lease=self._lease,
            random=self._clock.random,
            monotonic=self._clock.monotonic,
            runs=_Leased(
                read_fences=self._fences,
                count_room=lambda: 0 if self.is_draining else self._admission.free_places,
                adopt=self._adopt,
                prolong=self._prolong,
                lose=lambda execution_id: self._stop(execution_id, Stop.LOST),
                cancel=lambda execution_id: self._stop(execution_id, Stop.CANCELLED),
                keep=self._keep,
            ),
        )

    @property
    def is_draining(self) -> bool:
        """Whether nothing new is started any more."""
        return self._admission.is_draining

    @property
    def load(self) -> Load:
        """How busy it is."""
        admission = self._admission
        return Load(running=admission.running, queued=admission.queued, places=self._limits.max_concurrent)

    def begin(self) -> None:
        """Look at once for executions that nobody works on, and again and again from now on."""
        self._upkeep.begin()

    def live(self, execution_id: str) -> Run | None:
        """Return the run of an execution that is at work in this process."""
        return self._runs.get(execution_id)

    @contextmanager
    def awaiting(self, execution_id: str, mailbox: Mailbox) -> Iterator[None]:
        """Let `mailbox` hear when this process goes on with an execution of another one, while the context lasts."""
        waiting = self._waiting.setdefault(execution_id, {})
        waiting[mailbox] = None
        try:
            yield
        finally:
            waiting.pop(mailbox, None)
            if not waiting and self._waiting.get(execution_id) is waiting:
                del self._waiting[execution_id]

    async def written(self, tenant: str, *, within_s: float) -> None:
        """Wait until what began or ended here unseen is in the store, but not for long.

        Its caller may know the result already and ask for it.
        """
        logs = [run.log for run in self._runs.values() if run.identity.tenant == tenant]
        if late := [log for log in logs if not log.is_created or log.has_ended]:
            with suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    for log in late:
                        await log.wait_for_commit()

    async def place(self, tenant: str, *, within_s: float | None = None) -> Place:
        """Return a place for an execution, after a wait if need be: preparing costs nothing where there is none.

        Raises:
            DrainingError: the server is shutting down.
            OverloadedError: as many executions run, or wait, as may.
            StoreUnavailableError: the store cannot be reached.
        """
        self._admission.require_open()
        await self._writer.wait_for_capacity()
        return await self._admission.enter(tenant, within_s=within_s)

    async def start(self, assignment: Assignment, *, place: Place | None = None) -> Execution:
        """Start an execution, or return the one that the request id stands for.

        A `place` that no run takes stays its caller's.

        Raises:
            DrainingError: the server is shutting down.
            OverloadedError: as many executions run as may.
            RequestIdReusedError: the request id stands for another request.
            StoreFullError: there is no room for another log.
            StoreUnavailableError: the store cannot be reached.
        """
        if place is None:
            with await self.place(assignment.tenant) as own:
                return await self.start(assignment, place=own)
        if not assignment.can_be_resumed:
            return self._start_unseen(assignment, place)
        prepared = self._maker.prepare(assignment)
        for _ in range(_MOST_ATTEMPTS):
            execution, since_s = self._new_execution(assignment), self._clock.monotonic()
            claim = await self._create_whole(execution, prepared, place)
            if claim.execution_id == execution.execution_id:
                run = self._maker.fresh(prepared, execution, inherited=claim.inherited)
                return self._begin(run, place, since_s=since_s).identity
            held = await self.request_ids.held_by(
                claim, assignment.tenant, request_id=assignment.request_id, digest=assignment.digest
            )
            if stands(held):
                return held
            prepared = self._maker.prepare(assignment, await self.request_ids.predecessor(held))
        raise OverloadedError("Too many callers make the same request", remedy="Retry.")

    async def drain(self, *, grace_s: float) -> None:
        """Admit nothing more and see the running executions out within `grace_s` seconds.

        They may end by themselves for most of that time, then stop at their next step, then at once. Where the store
        outlives this process, those that somebody could come back for are left to another one, or to the next start
        on the same store, instead of being cancelled.
        """
        self.begin_drain()
        await self._wait_for_all(grace_s * _NATURAL_SHARE_OF_GRACE)
        for run in self._runs.values():
            run.stops_at_step = self._stop_for_others(run)
        await self._wait_for_all(grace_s * (1 - _NATURAL_SHARE_OF_GRACE))
        await self.stop()

    def begin_drain(self) -> None:
        """Refuse new executions from now on."""
        self._admission.drain()

    async def stop(self) -> None:
        """Stop everything that runs and wait until the logs have ended, or are left to other processes."""
        self.begin_drain()
        for run in tuple(self._runs.values()):
            run.stop(self._stop_for_others(run))
        await self._wait_for_all(2 * self._limits.unwinding_s + _LAST_COMMITS_S)
        for run in tuple(self._runs.values()):
            run.log.close(StoreUnavailableError("The server was shut down before the store could be reached"))
        await self._wait_for_all(self._limits.unwinding_s)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._limits.unwinding_s)
        await self._writer.aclose(within_s=_LAST_COMMITS_S)
        await self._upkeep.aclose()

    async def _wait_for_all(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                for run in tuple(self._runs.values()):
                    await run.ended()

    def _stop_for_others(self, run: Run) -> Stop:
        """Return how a run is stopped when this process ends."""
        return Stop.HANDED_OVER if self._store.is_durable and run.journal is not None else Stop.CANCELLED

    def _is_cut_off(self, run: Run) -> bool:
        """Stop `run` as `stop` does where the event loop ends without that; return whether it does."""
        if not self._upkeep.is_cut_off:
            return False
        run.stop(self._stop_for_others(run))
        return True

    def _stop(self, execution_id: str, reason: Stop) -> None:
        run = self._runs.get(execution_id)
        if run is not None:
            run.stop(reason)

    def _keep(self, execution_id: str) -> None:
        run = self._runs.get(execution_id)
        if run is not None:
            run.keep()

    def _fences(self) -> Mapping[str, int]:
        """Return what is at work here, and is in the store."""
        return {name: run.log.fence for name, run in self._runs.items() if run.log.is_created and run.log.error is None}

    def _new_execution(self, assignment: Assignment) -> Execution:
        return Execution(
            execution_id=self._clock.new_id(),
            tenant=assignment.tenant,
            state=ExecutionState.RUNNING,
            strategy=assignment.strategy.name,
            strategy_source=assignment.strategy_source,
            model=self._model_name,
            create_time=self._clock.now(),
            request_id=assignment.request_id,
        )

    async def _create(self, execution: Execution, prepared: Prepared) -> Claim:
        earlier = prepared.predecessor
        return await self._store.create(
            execution,
            digest=prepared.assignment.digest,
            plan=prepared.plan,
            lease=self._lease,
            inherits="" if earlier is None else earlier.execution.execution_id,
        )

    async def _create_whole(self, execution: Execution, prepared: Prepared, place: Place) -> Claim:
        """Create an execution even where the caller is cancelled meanwhile; then its run ends as cancelled.

        What was committed without a run would be taken for left behind, and be gone on with for nobody.
        """
        since_s = self._clock.monotonic()
        creating = asyncio.create_task(self._create(execution, prepared), name=f"creation of {execution.execution_id}")
        try:
            return await asyncio.shield(creating)
        except asyncio.CancelledError:
            while not creating.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([creating])
            if not creating.cancelled() and creating.exception() is None:
                claim = creating.result()
                if claim.execution_id == execution.execution_id:
                    run = self._maker.fresh(prepared, execution, inherited=claim.inherited)
                    self._begin(run, place, since_s=since_s).cancel()
            raise

    def _start_unseen(self, assignment: Assignment, place: Place) -> Execution:
        """Start a run for which its caller could not come back: nothing that is written of it is waited for.

        What ends within a moment is created and written down in one go, after its caller was answered.
        """
        prepared = self._maker.prepare(assignment)
        creation = Creation(plan=prepared.plan, lease=self._lease)
        run = self._maker.fresh(prepared, self._new_execution(assignment), creation=creation)
        self._writer.gather(run.log)
        return self._begin(run, place, since_s=self._clock.monotonic()).identity

    def _begin(self, run: Run, place: Place, *, since_s: float) -> Run:
        """Let `run` work; its lease was asked for at `since_s`."""
        name = run.identity.execution_id
        if run.tenure is not None:
            run.tenure.begin(since_s, ask=self._upkeep.hurry, end=run.fence)
        place.take()
        run.place, run.patience_s = place, self._limits.reattach_s
        self._runs[name] = run
        run.driver = asyncio.create_task(self._drive(run), name=f"execution {name}")
        return run

    async def _drive(self, run: Run) -> None:
        """Let the strategy work and see the run out; once it is stopped from outside another task does that."""
        own = run.driver
        run.on_over = partial(self._take_over, run)
        with self._store.watch(run.identity.execution_id, partial(self._heard, run)):
            await self._driver.work(run)
        if run.driver is not own or own is None:
            return
        seeing_out = self._see_out(run, has_stopped=True)
        if own.cancelling():
            # By the strategy, or because the loop ends: neither may cut short what comes now, or be kept waiting by it.
            run.driver = asyncio.create_task(seeing_out, name=f"end of {run.identity.execution_id}")
        else:
            await seeing_out

    def _take_over(self, run: Run) -> None:
        """Stop the strategy of `run` from a task that it cannot keep waiting."""
        if run.driver is not None:
            name = f"end of {run.identity.execution_id}"
            run.driver = asyncio.create_task(self._stop_work(run, run.driver), name=name)

    async def _stop_work(self, run: Run, work: asyncio.Task[None]) -> None:
        await self._see_out(run, has_stopped=await self._driver.stop(run, work))

    async def _see_out(self, run: Run, *, has_stopped: bool) -> None:
        """Write down how a run ended, and let go of it; not before what was written is committed."""
        try:
            await self._driver.finish(run, has_stopped=has_stopped)
        except asyncio.CancelledError:
            # By a timer that the strategy left behind, or because the loop ends.
            run.driver = asyncio.create_task(self._let_go_settled(run), name=f"end of {run.identity.execution_id}")
            raise
        await self._let_go(run)

    async def _let_go_settled(self, run: Run) -> None:
        await run.log.wait_for_commit()
        await self._let_go(run)

    async def _let_go(self, run: Run) -> None:
        """Give back what the run held, and forget it."""
        name = run.identity.execution_id
        try:
            if run.stop_reason is Stop.HANDED_OVER:
                await self._give_back(name, run.log.fence)
            elif run.is_free_failure and run.identity.request_id:
                await self._release(run)
        finally:
            # In this order: followers that wake up must find the run gone, or they would wait for more.
            del self._runs[name]
            if run.place is not None:
                run.place.leave()
            run.end()
            tell_left(run, self._observer)
            log_end(run)

    def _heard(self, run: Run, change: Change) -> None:
        if change is Change.CANCEL_REQUESTED:
            run.cancel()
        elif change is Change.KEEP_REQUESTED:
            run.keep()
        elif change is Change.FOLLOWED:
            run.await_follower(within_s=self._limits.reattach_s)

    async def _release(self, run: Run) -> None:
        """Let the same request start anew: it failed before anything was spent or done."""
        try:
            await self._store.release(run.identity.tenant, run.identity.execution_id)
        except ReasondError:
            _log.warning("a request id could not be given back; it stands for a failed execution")

    async def _give_back(self, execution_id: str, fence: int) -> None:
        """Let another process go on at once."""
        try:
            await self._store.renew(Lease(owner=self._lease.owner, seconds=0), {execution_id: fence})
        except ReasondError:
            _log.warning("a lease could not be given back; it runs out by itself")

    def _prolong(self, fences: Mapping[str, int], since_s: float) -> None:
        """Note whose leases were renewed, by a request that began at `since_s`."""
        for name, fence in fences.items():
            run = self._runs.get(name)
            if run is not None and run.tenure is not None and run.log.fence == fence:
                run.tenure.prolong(since_s)

    def _adopt(self, recovery: Recovery, since_s: float) -> None:
        """Go on with what a process left behind, or end it where that cannot be."""
        name = recovery.execution.execution_id
        own = self._runs.get(name)
        if own is not None:
            # This process was out of touch for longer than its lease lasted, and is its own heir.
            own.stop(Stop.LOST)
            self._spawn(self._adopt_after(own, recovery, since_s), name=f"adoption of {name}")
            return
        try:
            run = self._maker.revived(recovery)
        except (PlanError, ReplayError) as error:
            self._maker.write_off(recovery, failure_of(error), keep_s=self._limits.retention_of)
            self._observer.run_recovered("written_off")
            return
        self._observer.run_recovered("resumed")
        if recovery.is_keep_requested:
            run.keep()
        if not run.keeps_running:
            run.await_follower(within_s=self._limits.reattach_s)
        place = self._admission.force()
        self._begin(run, place, since_s=since_s)
        self._spawn(self._count(run, place, recovery.fence), name=f"permit of {name}")
        for mailbox in self._waiting.get(name, ()):
            mailbox.notify_growth()

    async def _count(self, run: Run, place: Place, fence: int) -> None:
        """Let a run that was taken over count among those that its caller may have at once."""
        assignment = run.assignment
        name = assignment.permit or run.identity.execution_id
        try:
            place.keep(await self._carry_over(assignment.tenant, assignment.subject, name, fence))
        except ReasondError as error:
            _log.warning("an execution goes on uncounted: %s", error.message, extra={"execution_id": name})

    def _spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _adopt_after(self, own: Run, recovery: Recovery, since_s: float) -> None:
        await own.ended()
        name = recovery.execution.execution_id
        if self.is_draining:
            await self._give_back(name, recovery.fence)
        elif name not in self._runs:
            self._adopt(recovery, since_s)
