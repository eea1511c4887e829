"""Starts, tracks and stops executions: each runs in its own task, and an RPC only follows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, TypeGuard

from reasond_server.base.asyncio_tasks import finish_though_cancelled
from reasond_server.base.clock import Clock
from reasond_server.errors.base import show
from reasond_server.errors.executions import CursorExpiredError, ExecutionNotFoundError
from reasond_server.errors.limits import OverloadedError, StoreUnavailableError
from reasond_server.errors.request import RequestIdReusedError
from reasond_server.eventlog.leases import Sweep, Tenure, sweep_nothing
from reasond_server.eventlog.store import Append, Claim, Creation, ExecutionStore, Lease
from reasond_server.eventlog.writer import LogWriter, tell_nobody
from reasond_server.runs.admission import Admission, Place, Releasable
from reasond_server.runs.live_runs import LiveRuns, Load, RunnerLimits
from reasond_server.runs.phase import Trigger
from reasond_server.runs.plan import PlanError, decode_plan
from reasond_server.runs.recorded_calls import ReplayError
from reasond_server.runs.recovery import Recoverer
from reasond_server.runs.run_driver import Driver
from reasond_server.runs.run_factory import AccountOf, Predecessor, RunFactory, no_account, no_tenure
from reasond_server.runs.run_journal import sum_spent
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.types import Execution, ExecutionState, LoggedEvent, TextDelta

if TYPE_CHECKING:
    from reasond_server.llm.model import ChatModel
    from reasond_server.runs.run import Run, Work
    from reasond_server.runs.run_factory import PreparedRun, WorkKind
    from reasond_server.telemetry.spans import Tracing

_SHORTEST_TURN_S = 5.0


@dataclass(slots=True)
class _Turn:
    """The turn among concurrent calls with the same request id, and how many wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    wanted: int = 0

    async def come(self, *, within_s: float) -> None:
        """Wait for the turn."""
        try:
            async with asyncio.timeout(within_s):
                await self.lock.acquire()
        except TimeoutError:
            raise OverloadedError("The same request is being started and waits for a place", remedy="Retry.") from None


def is_standing(held: Execution | None) -> TypeGuard[Execution]:
    """Return whether an execution can answer a request: it exists and was not cancelled."""
    return held is not None and held.state is not ExecutionState.CANCELLED


class RequestIds:
    """Finds the execution of a request id (AIP-155); `runs` are the active runs of this process."""

    def __init__(self, *, store: ExecutionStore, runs: Mapping[str, Run], queue_timeout_s: float) -> None:
        self._store = store
        self._runs = runs
        self._queue_timeout_s = queue_timeout_s
        self._turns: dict[tuple[str, str], _Turn] = {}

    @asynccontextmanager
    async def take_turn(self, tenant: str, request_id: str) -> AsyncGenerator[None, None]:
        """Admit calls with the same request id one at a time, so that only the first of them needs a place.

        Raises:
            OverloadedError: the call before takes too long.
        """
        if not request_id:
            yield
            return
        turn = self._turns.setdefault((tenant, request_id), _Turn())
        turn.wanted += 1
        try:
            await turn.come(within_s=max(self._queue_timeout_s, _SHORTEST_TURN_S))
            try:
                yield
            finally:
                turn.lock.release()
        finally:
            turn.wanted -= 1
            if not turn.wanted:
                del self._turns[tenant, request_id]

    async def find_known(self, tenant: str, request_id: str, digest: str) -> Execution | None:
        """Return the execution that a request id stands for; None if it has to be started.

        Raises:
            RequestIdReusedError: the request id stands for another request.
        """
        claim = await self._store.find_claim(tenant, request_id) if request_id else None
        if claim is None:
            return None
        held = await self.find_holder(claim, tenant, request_id=request_id, digest=digest)
        return held if is_standing(held) else None

    async def find_holder(self, claim: Claim, tenant: str, *, request_id: str, digest: str) -> Execution | None:
        """Return the execution that has the request id; if it is being cancelled, wait for that. None if it is deleted.

        Raises:
            RequestIdReusedError: it was started for another request.
        """
        if claim.digest != digest:
            raise RequestIdReusedError(
                f"The request id {show(request_id)} was used before with another request",
                remedy="Send the same request again, or a new request id.",
                metadata={"execution_id": claim.execution_id},
            )
        going = self._runs.get(claim.execution_id)
        if going is not None and (going.is_cancelled or going.error is not None):
            # Its caller has left, or it failed without cost: the retry wants a new execution, not the end of this one.
            await going.wait_for_end()
        try:
            return await self._store.find(tenant, claim.execution_id)
        except (ExecutionNotFoundError, CursorExpiredError):
            return None

    async def find_predecessor(self, held: Execution | None) -> Predecessor | None:
        """Return what a new execution inherits from the cancelled one that has its request id."""
        if held is None:
            return None
        kept = await self._store.read_checkpoint(held.tenant, held.execution_id)
        try:
            plan = decode_plan(kept.plan)
            sum_spent(kept.records)
        except (PlanError, ReplayError):
            plan = None
        return Predecessor(execution=held, plan=plan, records=kept.records)


__all__ = ["CarryOver", "Clock", "Runner", "RunnerLimits"]

CarryOver = Callable[[str, str, str, int], Awaitable[Releasable | None]]
"""Renews the permit of a run that was taken over; arguments: tenant, subject, name of the permit, fence."""

_NATURAL_SHARE_OF_GRACE = 0.8
_LAST_COMMITS_S = 5.0
# An attempt fails only if another caller made the same request at the same moment.
_MOST_ATTEMPTS = 10


async def carry_nothing(_tenant: str, _subject: str, _permit: str, _fence: int) -> None:
    """Return None: executions at once are not limited."""


class Runner:
    """Starts executions and drives them to their end, with or without subscribers.

    `kinds` restore the work that other processes left behind. `begin` starts the upkeep: leases, recovery, retention,
    and `sweep` for what is stored beside the logs. `tell` adds to what is appended whom it is told.
    `request_ids` finds known requests, `runs` holds the active runs.
    """

    def __init__(
        self,
        *,
        store: ExecutionStore,
        model: ChatModel,
        clock: Clock,
        limits: RunnerLimits,
        kinds: Sequence[WorkKind] = (),
        account_of: AccountOf = no_account,
        carry_over: CarryOver = carry_nothing,
        observer: Observer = UNOBSERVED,
        tracing: Tracing | None = None,
        sweep: Sweep = sweep_nothing,
        tell: Callable[[Append], Append] = tell_nobody,
    ) -> None:
        self._store = store
        self._model_name = model.name
        self._clock = clock
        self._limits = limits
        self.runs = LiveRuns()
        self.request_ids = RequestIds(store=store, runs=self.runs.by_id, queue_timeout_s=limits.queue_timeout_s)
        self._lease = Lease(owner=clock.new_id(), seconds=limits.lease_s)
        self._admission = _open_admission(limits, clock, observer)
        self._writer = LogWriter(store=store, random=clock.random, tell=tell, observer=observer)
        new_tenure = partial(Tenure, lease_s=limits.lease_s, monotonic=clock.monotonic)
        self._factory = RunFactory(
            model=model,
            clock=clock,
            writer=self._writer,
            kinds={each.kind: each for each in kinds},
            limits=limits,
            is_durable=store.is_durable,
            account_of=account_of,
            new_tenure=new_tenure if store.is_shared else no_tenure,
            observer=observer,
        )
        self._driver = Driver(
            runs=self.runs,
            store=store,
            clock=clock,
            limits=limits,
            owner=self._lease.owner,
            observer=observer,
            is_cut_off=self._is_cut_off,
            tracing=tracing,
        )
        self._recoverer = Recoverer(
            store=store,
            lease=self._lease,
            clock=clock,
            runs=self.runs,
            factory=self._factory,
            driver=self._driver,
            admission=self._admission,
            limits=limits,
            carry_over=carry_over,
            observer=observer,
            sweep=sweep,
        )

    @property
    def is_draining(self) -> bool:
        """Whether no new execution is started."""
        return self._admission.is_draining

    @property
    def load(self) -> Load:
        """How busy this process is."""
        admission = self._admission
        return Load(
            running=admission.running,
            queued=admission.queued,
            places=self._limits.max_concurrent,
            busy_s=admission.busy_s,
            begun=admission.begun,
            refused=admission.refused,
            tokens=self._factory.tokens,
        )

    def begin(self) -> None:
        """Start the upkeep, which looks for abandoned executions at once and then every third of a lease."""
        self._recoverer.lease_keeper.begin()

    def find_live(self, execution_id: str) -> Run | None:
        """Return the run of an execution that is active in this process; None if there is none."""
        return self.runs.by_id.get(execution_id)

    def shape_delta(self, execution: Execution, delta: TextDelta) -> TextDelta:
        """Return text of an execution in the form of its kind of work."""
        return self._factory.shape_delta(execution, delta, self.runs.by_id.get(execution.execution_id))

    async def find_place(self, tenant: str, *, within_s: float | None = None) -> Place:
        """Return a place for an execution, if necessary after a wait of at most `within_s` seconds.

        Callers get the place before they prepare an execution, so that a refusal costs no preparation.

        Raises:
            DrainingError: the server is shutting down.
            OverloadedError: the limit of running or waiting executions is reached.
            StoreUnavailableError: the store cannot be reached.
        """
        self._admission.require_open()
        await self._writer.wait_for_capacity()
        return await self._admission.enter(tenant, within_s=within_s)

    async def start(self, work: Work, *, place: Place | None = None) -> Execution:
        """Start an execution, or return the one that the request id stands for.

        If no run takes `place`, the caller keeps it.

        Raises:
            DrainingError: the server is shutting down.
            OverloadedError: the limit of running executions is reached.
            RequestIdReusedError: the request id stands for another request.
            StoreFullError: there is no room for another log, or not for another one of this tenant.
            StoreUnavailableError: the store cannot be reached.
            TurnLeasedError: another execution of its session is open.
            EtagMismatchError: its session has another revision than the request asks for.
        """
        request = work.request
        if place is None:
            with await self.find_place(request.tenant) as own:
                return await self.start(work, place=own)
        await self._store.room.require(request.tenant, work.kind)
        if not request.can_be_resumed:
            return self._start_unresumable(work, place)
        prepared = self._factory.prepare(work)
        for _ in range(_MOST_ATTEMPTS):
            execution, since_s = self._describe(work), self._clock.monotonic()
            claim = await self._create_whole(execution, prepared, place)
            if claim.execution_id == execution.execution_id:
                run = self._factory.make(prepared, execution, inherited=claim.inherited)
                return self._recoverer.begin(run, place, since_s=since_s).identity
            held = await self.request_ids.find_holder(
                claim, request.tenant, request_id=request.request_id, digest=request.digest
            )
            if is_standing(held):
                return held
            prepared = self._factory.prepare(work, await self.request_ids.find_predecessor(held))
        raise OverloadedError("Too many callers make the same request", remedy="Retry.")

    async def wake(self, tenant: str, execution_id: str, *, event: LoggedEvent | None = None) -> bool:
        """Resume a suspended execution in this process; return False if it is not suspended (any more).

        An `event` is appended when it is taken, and must have the next sequence of its log. Of all callers that append
        one after the same event, one gets True.

        Raises: as `find_place`, and as `ExecutionStore.wake`.
        """
        with await self.find_place(tenant) as place:
            return await self._wake_whole(tenant, execution_id, place, event)

    async def stop_suspended(self, tenant: str, execution_id: str) -> None:
        """End a suspended execution as cancelled, even without a free place. Raises as `ExecutionStore.find`."""
        await self._store.request_cancel(tenant, execution_id)
        with self._admission.force() as place:
            await self._wake_whole(tenant, execution_id, place)
        run = self.find_live(execution_id)
        if run is not None:
            await run.wait_for_end()

    async def drain(self, *, grace_s: float) -> None:
        """Admit no further execution and end the running ones within `grace_s` seconds.

        For most of that time they may end by themselves, then they stop at their next step, then at once. If the store
        is durable, executions that can be resumed are not cancelled: another process, or the next server on the same
        store, resumes them.
        """
        self.begin_drain()
        await self.runs.wait_for_ends(grace_s * _NATURAL_SHARE_OF_GRACE)
        for run in self.runs.by_id.values():
            run.leaves_at_checkpoint = self._stop_for_others(run)
        await self.runs.wait_for_ends(grace_s * (1 - _NATURAL_SHARE_OF_GRACE))
        await self.stop()

    def begin_drain(self) -> None:
        """Refuse new executions from now on, and send away who waits for runs of other processes."""
        self._admission.drain()
        self.runs.notify_all()

    async def stop(self) -> None:
        """Stop all runs and wait until their logs have ended or are left to other processes."""
        self.begin_drain()
        for run in tuple(self.runs.by_id.values()):
            run.stop(self._stop_for_others(run))
        await self.runs.wait_for_ends(2 * self._limits.unwinding_s + _LAST_COMMITS_S)
        for run in tuple(self.runs.by_id.values()):
            run.log.close(StoreUnavailableError("The server was shut down before the store could be reached"))
        await self.runs.wait_for_ends(self._limits.unwinding_s)
        await self._recoverer.aclose(within_s=self._limits.unwinding_s)
        await self._writer.aclose(within_s=_LAST_COMMITS_S)
        await self._recoverer.lease_keeper.aclose()

    def _stop_for_others(self, run: Run) -> Trigger:
        """Return the trigger that stops a run when this process ends."""
        return Trigger.HAND_OVER if self._store.is_durable and run.journal is not None else Trigger.CANCEL

    def _is_cut_off(self, run: Run) -> bool:
        """Return whether the event loop ends without a call of `stop`; if so, stop `run` as `stop` does."""
        if not self._recoverer.lease_keeper.is_cut_off:
            return False
        run.stop(self._stop_for_others(run))
        return True

    def _describe(self, work: Work) -> Execution:
        return Execution(
            execution_id=self._clock.new_id(),
            tenant=work.request.tenant,
            state=ExecutionState.RUNNING,
            kind=work.kind,
            strategy=work.name,
            strategy_source=work.source,
            model=self._model_name if work.request.model is None else work.request.model.name,
            create_time=self._clock.now(),
            request_id=work.request.request_id,
            session_id="" if work.request.session is None else work.request.session.session_id,
            question=work.request.question if self._limits.records_content else "",
            client=work.request.subject,
            wire=work.request.wire,
        )

    async def _create(self, execution: Execution, prepared: PreparedRun) -> Claim:
        earlier = prepared.predecessor
        return await self._store.create(
            execution,
            digest=prepared.work.request.digest,
            plan=str(prepared.plan),
            lease=self._lease,
            inherits="" if earlier is None else earlier.execution.execution_id,
            session=prepared.work.request.session,
        )

    async def _create_whole(self, execution: Execution, prepared: PreparedRun, place: Place) -> Claim:
        """Create an execution and its run completely, even if the caller is cancelled meanwhile.

        A committed execution without a run would count as left behind, and another process would resume it for nobody.
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
                    run = self._factory.make(prepared, execution, inherited=claim.inherited)
                    self._recoverer.begin(run, place, since_s=since_s)
                    run.subscribers.lose_first(may_return=bool(execution.request_id))
            raise

    async def _wake_whole(self, tenant: str, execution_id: str, place: Place, event: LoggedEvent | None = None) -> bool:
        """Wake an execution completely, even if the caller is cancelled meanwhile: a leased execution needs a run."""
        waking = self._recoverer.wake(tenant, execution_id, place, event)
        return await finish_though_cancelled(waking, name=f"waking of {execution_id}")

    def _start_unresumable(self, work: Work, place: Place) -> Execution:
        """Start a run for a caller that cannot come back for it, without waiting for any commit.

        A run that ends within 20 ms is created and ended in one commit, after its caller got the answer.
        """
        prepared = self._factory.prepare(work)
        creation = Creation(plan=prepared.plan, lease=self._lease)
        run = self._factory.make(prepared, self._describe(work), creation=creation)
        self._writer.gather(run.log)
        return self._recoverer.begin(run, place, since_s=self._clock.monotonic()).identity


def _open_admission(limits: RunnerLimits, clock: Clock, observer: Observer) -> Admission:
    return Admission(
        max_running=limits.max_concurrent,
        max_queued=limits.max_queued,
        queue_timeout_s=limits.queue_timeout_s,
        observer=observer,
        monotonic=clock.monotonic,
    )
