"""Activities of a repair's workflow: each is done once per execution, however often it is tried."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from temporalio import activity
from temporalio.exceptions import ApplicationError

from reasond_server.base.asyncio_tasks import end_task
from reasond_server.engines.packing import BATCH, CALL, RECORD, ActivityReply, ActivityRequest, pack, unpack
from reasond_server.engines.workflow import (
    BOUND_TOKENS,
    CHECKS,
    COMMIT,
    FINALIZE,
    GENERATE,
    MEASURE_BASELINE,
    MODELS,
    REFLECT,
    SCORE,
    VALIDATE,
)
from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.errors.executions import ExecutionNotFoundError
from reasond_server.errors.limits import StoreUnavailableError, TokenBudgetExhaustedError
from reasond_server.errors.model import ModelFailedError
from reasond_server.eventlog.store import ExecutionStore, Record
from reasond_server.llm.metered_model import MeteredModel
from reasond_server.repair.edits.patches import validate_patch
from reasond_server.repair.results.outcomes import Baseline
from reasond_server.repair.search.activities import PatchCheck, RepairCandidate
from reasond_server.repair.search.repair_site import RepairSite, perform_once
from reasond_server.repair.service.assignments import RepairAssignment, read_assignment
from reasond_server.repair.service.engine import RepairOrder
from reasond_server.runs.accounts import fork_counter
from reasond_server.runs.effects import Effects
from reasond_server.runs.recorded_calls import CALL_KEY, CallRecorder, write_error_row
from reasond_server.runs.run_journal import JournaledModel, RunJournal
from reasond_server.runs.run_trace import RunTrace
from reasond_server.types import Budget
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime

    from reasond_server.eventlog.stored.payload_store import PayloadStore
    from reasond_server.llm.model import ChatModel
    from reasond_server.repair.critics.check_judge import Critics
    from reasond_server.repair.search.candidate_writer import CandidateWriter
    from reasond_server.repair.service.workbench import Workbench
    from reasond_server.runs.run_factory import AccountOf
    from reasond_server.telemetry.observers import Observer
    from reasond_server.types.repairs import SourceFile

_BEAT_S: Final = 2.0
_log = logging.getLogger("reasond.engines")


class RecordWriter:
    """Keeps the records of an execution beside its log, which only the process with the lease may write."""

    def __init__(self, payloads: PayloadStore, order: RepairOrder) -> None:
        self._payloads = payloads
        self._order = order
        self._new: dict[str, bytes] = {}
        self.calls: dict[str, str] = {}

    async def open_journal(self) -> RunJournal:
        """Return a journal with all records of the execution."""
        kept = await self._payloads.list(self._order.tenant, self._order.execution_id, RECORD)
        records = [Record(key=name.removeprefix(RECORD), body=body.decode()) for name, body in kept.items()]
        return RunJournal(records=records, write=self._write, sink=self)

    async def open_calls(self, now: Callable[[], datetime]) -> CallRecorder:
        """Return what keeps the model calls of this activity, beside those of attempts at it that died."""
        part = f"{activity.info().activity_id}/"
        kept = await self._payloads.list(self._order.tenant, self._order.execution_id, f"{CALL}{part}")
        self.calls = {f"{CALL_KEY}{name.removeprefix(CALL)}": body.decode() for name, body in kept.items()}
        records = [Record(key=key, body=body) for key, body in self.calls.items()]
        return CallRecorder(
            records=records, write=self._write_call, now=now, most=self._order.kept_characters, part=part
        )

    async def wait_for_room(self) -> None:
        """Keep what was written."""
        await self.flush()

    async def flush(self) -> None:
        """Keep what was written."""
        new = dict(self._new)
        if new:
            await self._payloads.put(self._order.tenant, self._order.execution_id, new)
        # Only now: what could not be kept is kept by the next flush.
        for name in new:
            self._new.pop(name, None)

    def _write(self, record: Record) -> None:
        self._new[f"{RECORD}{record.key}"] = record.body.encode()

    def _write_call(self, record: Record) -> None:
        self.calls[record.key] = record.body
        self._new[f"{CALL}{record.key.removeprefix(CALL_KEY)}"] = record.body.encode()


class Attempt:
    """One attempt at an activity: the repair, its code, and what it calls and runs, recorded.

    Args:
        order: the repair.
        assignment: its task, with the commands that its checks stand for, and its parameters.
        journal: the records of the execution.
        files: the code by path.
        records: keeps the records.
    """

    def __init__(
        self,
        *,
        order: RepairOrder,
        assignment: RepairAssignment,
        journal: RunJournal,
        files: dict[str, SourceFile],
        records: RecordWriter,
    ) -> None:
        self.order = order
        self.assignment = assignment
        self.journal = journal
        self.records = records
        self.files = files
        self.model: MeteredModel | None = None
        self.critics: Critics | None = None
        effects = Effects(nonce=order.nonce, tenant=order.tenant, journal=journal)

        async def perform(kind: str, digest: str, make: Callable[[], Awaitable[str]]) -> str:
            return await perform_once(effects, kind, digest, make)

        self.site = RepairSite(
            tenant=order.tenant,
            execution_id=order.execution_id,
            nonce=order.nonce,
            trace=RunTrace(),
            publish=lambda _index, _text: None,
            wait_for_room=_return,
            perform=perform,
        )

    def add_cost(self, reply: ActivityReply) -> ActivityReply:
        """Return the reply with what the attempt has cost, and what its critics warn of."""
        if self.model is not None:
            return replace(reply, usage=self.model.usage, lost_tokens=self.model.lost_tokens, calls=self.records.calls)
        if self.critics is None:
            return reply
        return replace(
            reply,
            level=self.critics.level,
            checks=self.critics.checks_run,
            check_cpu_s=self.critics.check_cpu_s,
            warnings=tuple(self.critics.warnings),
        )


async def _return() -> None:
    """Return: nothing has to be waited for."""


@value
class RepairWorker:
    """The activities of repairs, for the queues that a process works on.

    Args:
        store: the logs; an activity of an execution that has ended does nothing.
        payloads: what is kept beside them.
        workbench: opens the code.
        model: writes candidates; None in a process that only runs checks.
        has_own_model: whether `model` is not that of the server, so that its counter knows nothing of the order.
        account_of: the accounts of callers.
        observer: receives what is spent.
    """

    store: ExecutionStore
    payloads: PayloadStore
    workbench: Workbench
    model: ChatModel | None
    has_own_model: bool
    account_of: AccountOf
    observer: Observer

    def list_activities(self, queue: str) -> Sequence[Callable[..., Any]]:
        """Return the activities of a queue."""
        if queue == CHECKS:
            return [self.measure_baseline, self.judge, self.validate, self.judge_held_out]
        assert queue == MODELS  # noqa: S101 - there are two
        return [self.bound_tokens, self.generate, self.reflect, self.commit]

    @activity.defn(name=MEASURE_BASELINE)
    async def measure_baseline(self, order: bytes, baseline: bytes, request: bytes) -> bytes:  # noqa: ARG002 - the form of all
        """Run all checks on the original code, twice."""

        async def work(critics: Critics) -> ActivityReply:
            return ActivityReply(baseline=await critics.measure_baseline(), worst_cost=critics.worst_cost)

        return await self._judge(order, baseline, work)

    @activity.defn(name=SCORE)
    async def judge(self, order: bytes, baseline: bytes, request: bytes) -> bytes:
        """Let the critics judge a candidate."""

        async def work(critics: Critics) -> ActivityReply:
            return ActivityReply(critique=await critics.judge(_read_candidate(request).changes))

        return await self._judge(order, baseline, work)

    @activity.defn(name=VALIDATE)
    async def validate(self, order: bytes, baseline: bytes, request: bytes) -> bytes:  # noqa: ARG002 - the form of all
        """Make the patch of a candidate and try it."""

        async def work(attempt: Attempt) -> ActivityReply:
            candidate = _read_candidate(request)
            problem = await validate_patch(
                attempt.files, candidate.changes, candidate.diff, parent=self.workbench.folder
            )
            return ActivityReply(patch=PatchCheck(patch=candidate.diff, problem=problem))

        return await self._perform(order, work)

    @activity.defn(name=FINALIZE)
    async def judge_held_out(self, order: bytes, baseline: bytes, request: bytes) -> bytes:
        """Run the held-out checks on the winner."""

        async def work(critics: Critics) -> ActivityReply:
            return ActivityReply(outcomes=await critics.judge_held_out(_read_candidate(request).changes))

        return await self._judge(order, baseline, work)

    @activity.defn(name=BOUND_TOKENS)
    async def bound_tokens(self, order: bytes, baseline: bytes, request: bytes) -> bytes:  # noqa: ARG002 - the form of all
        """Count the most tokens of a candidate."""

        async def work(writer: CandidateWriter) -> ActivityReply:
            return ActivityReply(bounds=await asyncio.to_thread(writer.bound_any))

        return await self._write(order, baseline, work)

    @activity.defn(name=GENERATE)
    async def generate(self, order: bytes, baseline: bytes, request: bytes) -> bytes:
        """Ask the model for a candidate made from the original."""
        asked = unpack(ActivityRequest, request)

        async def work(writer: CandidateWriter) -> ActivityReply:
            assert asked.order is not None  # noqa: S101 - as the workflow sends it
            return ActivityReply(candidate=await writer.generate(asked.order))

        return await self._write(order, baseline, work, budget=asked.budget)

    @activity.defn(name=REFLECT)
    async def reflect(self, order: bytes, baseline: bytes, request: bytes) -> bytes:
        """Ask the model for a candidate that refines another one, with what the critics said of that."""
        return await self.generate(order, baseline, request)

    @activity.defn(name=COMMIT)
    async def commit(self, order: bytes, number: str, batch: bytes) -> None:
        """Keep a batch for the process with the log; a batch with the same number is not overwritten."""
        repair = unpack(RepairOrder, order)
        await self.payloads.put(repair.tenant, repair.execution_id, {f"{BATCH}{number}": batch})

    async def _judge(
        self,
        order: bytes,
        baseline: bytes,
        work: Callable[[Critics], Awaitable[ActivityReply]],
    ) -> bytes:
        async def judge(attempt: Attempt) -> ActivityReply:
            async with self.workbench.open_critics(attempt.site, attempt.assignment, attempt.files) as critics:
                attempt.critics = critics
                if baseline:
                    critics.resume_from(unpack(Baseline, baseline))
                return await work(critics)

        return await self._perform(order, judge)

    async def _write(
        self,
        order: bytes,
        baseline: bytes,
        work: Callable[[CandidateWriter], Awaitable[ActivityReply]],
        *,
        budget: Budget = Budget(),  # noqa: B008 - a value
    ) -> bytes:
        async def write(attempt: Attempt) -> ActivityReply:
            is_kept = attempt.order.kept_characters > 0
            recorder = await attempt.records.open_calls(self.workbench.clock.now) if is_kept else None
            attempt.model = self._meter(attempt.order, budget, recorder)
            model = JournaledModel(model=attempt.model, journal=attempt.journal)
            writer = self.workbench.make_writer(attempt.site, model, attempt.assignment, attempt.files)
            await writer.show(unpack(Baseline, baseline))
            try:
                return await work(writer)
            except TokenBudgetExhaustedError:
                if not attempt.model.lost_tokens:
                    raise
                # The search goes on with what is left for other candidates.
                raise ModelFailedError(
                    "The model gave no answer, and the tokens of one candidate cover no second attempt"
                ) from None

        return await self._perform(order, write)

    def _meter(self, order: RepairOrder, budget: Budget, recorder: CallRecorder | None) -> MeteredModel:
        """Return the model for one activity, which may spend its `budget`."""
        if self.model is None:
            raise InternalError("this worker has no model; it must not work on the queue of models")
        counter = self.model.counter
        return MeteredModel(
            model=self.model,
            budget=budget,
            counter=counter if self.has_own_model else fork_counter(counter, order.calibration),
            account=self.account_of(order.tenant, order.subject, order.execution_id),
            observer=self.observer,
            on_call=None if recorder is None else recorder.note,
        )

    async def _perform(self, packed: bytes, work: Callable[[Attempt], Awaitable[ActivityReply]]) -> bytes:
        """Do the work of an activity while its execution goes on, and return the packed reply.

        An error of the repair is a reply; an error of the infrastructure is raised, and the activity tried again.
        """
        order = unpack(RepairOrder, packed)
        attempt: Attempt | None = None
        writer = RecordWriter(self.payloads, order)

        async def do() -> ActivityReply:
            nonlocal attempt
            assignment = self.workbench.write_out_commands(read_assignment(order.assignment))
            files = dict(await self.workbench.load(order.tenant, assignment.task))
            journal = await writer.open_journal()
            attempt = Attempt(order=order, assignment=assignment, journal=journal, files=files, records=writer)
            try:
                return attempt.add_cost(await work(attempt))
            finally:
                await writer.flush()

        try:
            return pack(await self._work_while_wanted(order, do))
        except (ApplicationError, StoreUnavailableError):
            raise
        except ReasondError as error:
            failure = error
        except Exception:  # noqa: BLE001 - trying again would not help
            _log.exception("an activity failed", extra={"execution_id": order.execution_id})
            failure = InternalError("internal error")
        reply = ActivityReply(error=write_error_row(failure))
        return pack(reply if attempt is None else attempt.add_cost(reply))

    async def _work_while_wanted(self, order: RepairOrder, do: Callable[[], Awaitable[ActivityReply]]) -> ActivityReply:
        """Do the work, and tell the cluster that it goes on; stop it at once when the execution ends."""
        async with AsyncExitStack() as stack:
            changed = asyncio.Event()
            stack.enter_context(self.store.watch(order.execution_id, lambda _: changed.set()))
            await self._require_open(order)
            work = asyncio.ensure_future(do())
            stack.push_async_callback(end_task, work)
            over = asyncio.create_task(self._wait_for_end(order, changed))
            stack.push_async_callback(end_task, over)
            while not work.done() and not over.done():
                activity.heartbeat()
                await asyncio.wait({work, over}, timeout=_BEAT_S, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                over.result()
                raise _build_over_error()
            return work.result()

    async def _wait_for_end(self, order: RepairOrder, changed: asyncio.Event) -> None:
        while True:
            await changed.wait()
            changed.clear()
            await self._require_open(order)

    async def _require_open(self, order: RepairOrder) -> None:
        """Refuse to work for an execution that has ended or was deleted.

        Raises:
            ApplicationError: it has; the cluster does not try again.
        """
        try:
            execution = await self.store.find(order.tenant, order.execution_id)
        except ExecutionNotFoundError:
            raise _build_over_error() from None
        if execution.state.has_ended:
            raise _build_over_error()


def _build_over_error() -> ApplicationError:
    return ApplicationError("the execution is over", type="ExecutionOver", non_retryable=True)


def _read_candidate(request: bytes) -> RepairCandidate:
    candidate = unpack(ActivityRequest, request).candidate
    assert candidate is not None  # noqa: S101 - as the workflow sends it
    return candidate
