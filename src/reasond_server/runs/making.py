"""Puts runs together: new ones, those that take a cancelled one's place, and those that another process left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import ValidationError

from reasond_server.errors import InternalError, ReasondError
from reasond_server.llm.metering import MeteredModel, TokenAccount
from reasond_server.logs.log import RunLog
from reasond_server.logs.redaction import redacted
from reasond_server.logs.stored.codec import detail_digest
from reasond_server.runs.replay.calibration import calibration_of, fork_of
from reasond_server.runs.replay.journal import Journal
from reasond_server.runs.replay.plan import Plan, PlanError, decode_plan, encode_plan, nonces, without_plan
from reasond_server.runs.replay.spending import Spending
from reasond_server.runs.run import Assignment, Run
from reasond_server.telemetry.observers import UNOBSERVED
from reasond_server.types import (
    NOTHING,
    ExecutionFailure,
    ExecutionStarted,
    FinishReason,
    Iteration,
    Metrics,
    Result,
)
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from reasond_server.clock import Clock
    from reasond_server.llm.model import ChatModel, TokenCounter
    from reasond_server.logs.leases import Tenure
    from reasond_server.logs.store import Creation, Record, Recovery
    from reasond_server.logs.writer import LogWriter
    from reasond_server.strategies.strategy import ReasoningStrategy
    from reasond_server.telemetry.observers import WorkObserver
    from reasond_server.types import Execution, Json, Usage


AccountOf = Callable[[str, str, str], TokenAccount | None]
"""Returns the budget that a tenant's subject has for an execution; None where nothing bounds its tokens."""


def no_account(_tenant: str, _subject: str, _execution_id: str) -> TokenAccount | None:
    """Bound nobody's tokens."""
    return None


def no_tenure() -> None:
    """Count nothing: no other process can take over what this one is at work on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predecessor:
    """A cancelled execution whose place a new one takes; `plan` is None where it cannot be made again."""

    execution: Execution
    plan: Plan | None
    records: Sequence[Record]


@value
class Prepared:
    """What is decided before an execution is created: `plan` is kept with it."""

    assignment: Assignment
    plan: str
    nonce: str
    counter: TokenCounter
    is_recoverable: bool
    predecessor: Predecessor | None = None


class Maker:
    """Makes runs that call `model` and write through `writer`.

    Without `records_content` nothing that callers, model or tools wrote is kept, and no run can be gone on with. In a
    store that is not durable only a retry of the same request can go on with what was cancelled. `new_tenure` makes
    what a run that others may take over counts its lease with.
    """

    def __init__(
        self,
        *,
        model: ChatModel,
        clock: Clock,
        writer: LogWriter,
        find_strategy: Callable[[str], ReasoningStrategy[Any]],
        records_content: bool,
        is_durable: bool,
        account_of: AccountOf = no_account,
        new_tenure: Callable[[], Tenure | None] = no_tenure,
        observer: WorkObserver = UNOBSERVED,
    ) -> None:
        self._new_tenure = new_tenure
        self._account_of = account_of
        self._observer = observer
        self._model = model
        self._clock = clock
        self._writer = writer
        self._find_strategy = find_strategy
        self._records_content = records_content
        self._is_durable = is_durable

    def prepare(self, assignment: Assignment, predecessor: Predecessor | None = None) -> Prepared:
        """Decide on what a run depends on; the same as in its predecessor, if it has one."""
        earlier = predecessor.plan if predecessor is not None else None
        calibration: Json = {} if earlier is None else earlier.calibration
        counter = self._counter(calibration)
        nonce = self._clock.new_nonce() if earlier is None else earlier.nonce
        obstacle = self._obstacle(assignment)
        return Prepared(
            assignment=assignment,
            plan=without_plan(obstacle) if obstacle else _plan_of(assignment, nonce, calibration_of(counter)),
            nonce=nonce,
            counter=counter,
            is_recoverable=not obstacle,
            predecessor=predecessor,
        )

    def fresh(
        self, prepared: Prepared, execution: Execution, *, inherited: int = 0, creation: Creation | None = None
    ) -> Run:
        """Return the run of a new execution, with its first event appended; its log has `inherited` records already.

        With a `creation` the execution is not in the store, and its log is not open.
        """
        assignment, earlier = prepared.assignment, prepared.predecessor
        if earlier is not None and inherited != len(earlier.records):
            # Deleted between the look at its records and the copy of them: nothing is left to go on from.
            earlier = None
        records: Sequence[Record] = ()
        links: Sequence[str] = ()
        if earlier is not None and earlier.plan is not None:
            records = earlier.records if prepared.is_recoverable else ()
            links = (earlier.plan.trace,)
        log = self._log(execution, version=inherited)
        log.is_open, log.creation = creation is None, creation
        log.events.is_for_one_answer = not assignment.can_be_resumed
        log.keeps_records = prepared.is_recoverable and bool(execution.request_id)
        run = self._run(
            assignment=assignment,
            log=log,
            counter=prepared.counter,
            nonce=prepared.nonce,
            began_s=self._clock.monotonic(),
            records=records,
            before=NOTHING if earlier is None else earlier.execution.usage,
            is_recoverable=prepared.is_recoverable,
            inherited=() if earlier is None else (_inheritance(earlier.execution),),
            links=links,
        )
        started = ExecutionStarted(
            strategy=assignment.strategy.name,
            strategy_source=assignment.strategy_source,
            model=self._model.name,
            config=assignment.shown_config,
        )
        log.append(started, now=execution.create_time, usage=run.usage)
        return run

    def revived(self, recovery: Recovery) -> Run:
        """Return the run that goes on with what another process left behind.

        Raises:
            PlanError: that cannot be.
            ReplayError: its records cannot be read.
        """
        if recovery.damage:
            raise PlanError("its log is damaged")
        plan = decode_plan(recovery.plan)
        execution = recovery.execution
        assignment = self._assignment_of(plan, execution)
        log = self._log(execution, version=recovery.version, fence=recovery.fence)
        log.keeps_records = bool(execution.request_id)
        elapsed_s = (self._clock.now() - execution.create_time).total_seconds()
        run = self._run(
            assignment=assignment,
            log=log,
            counter=self._counter(plan.calibration),
            nonce=plan.nonce,
            began_s=self._clock.monotonic() - max(0.0, elapsed_s),
            records=recovery.records,
            before=execution.usage,
            is_recoverable=True,
            known=[
                detail_digest(logged.event.detail) for logged in recovery.events if isinstance(logged.event, Iteration)
            ],
            is_takeover=True,
        )
        if not recovery.events:
            log.append(_started(execution, plan.config), now=self._clock.now(), usage=run.usage)
        return run

    def write_off(self, recovery: Recovery, error: ReasondError, *, keep_s: Callable[[str], Any]) -> RunLog:
        """End a log that nobody can go on with: FAILED, with what it has; return the log."""
        execution, now = recovery.execution, self._clock.now()
        log = self._log(execution, version=recovery.version, fence=recovery.fence)
        if not execution.last_sequence:
            log.append(_started(execution, {}), now=now, usage=execution.usage)
        last = recovery.events[-1].create_time if recovery.events else execution.create_time
        result = Result(
            execution_id=execution.execution_id,
            answer="",
            strategy_used=execution.strategy,
            strategy_source=execution.strategy_source,
            finish_reason=FinishReason.FAILED,
            metrics=Metrics(usage=execution.usage, execution_time_s=(last - execution.create_time).total_seconds()),
            warnings=tuple(self._model.warnings),
            model=execution.model,
            error=ExecutionFailure(reason=error.reason, message=error.full_message),
        )
        expire_time = now + keep_s(execution.tenant)
        log.end(result, now=now, usage=execution.usage, finish_reason=FinishReason.FAILED, expire_time=expire_time)
        return log

    def _run(
        self,
        *,
        assignment: Assignment,
        log: RunLog,
        counter: TokenCounter,
        nonce: str,
        began_s: float,
        records: Sequence[Record],
        before: Usage,
        is_recoverable: bool,
        known: Sequence[bytes] = (),
        inherited: Sequence[str] = (),
        links: Sequence[str] = (),
        is_takeover: bool = False,
    ) -> Run:
        limit_s, monotonic = assignment.limit_s, self._clock.monotonic
        # What nobody goes on with is never called for by two, whoever holds its lease.
        tenure = self._new_tenure() if is_recoverable else None
        model = MeteredModel(
            model=self._model,
            budget=assignment.task.budget,
            time_left=lambda: None if limit_s is None else limit_s - (monotonic() - began_s),
            counter=counter,
            account=self._account_of(assignment.tenant, assignment.subject, log.execution.execution_id),
            on_spent=self._observer.spending(assignment.strategy.name, self._model.name),
            wait_for_lease=None if tenure is None else tenure.wait_for_lease,
            observer=self._observer,
            monotonic=monotonic,
        )
        journal = None
        if is_recoverable:
            # The run is not there yet, and needs the journal to be: what it spent is asked when something is written.
            journal = Journal(
                records=records, write=lambda record: log.record(record, usage=spending.total), recorder=log
            )
        spending = Spending(model=model, before=before, recorded=NOTHING if journal is None else journal.spent)
        return Run(
            assignment=assignment,
            log=log,
            model=model,
            spending=spending,
            new_nonce=nonces(nonce),
            began_s=began_s,
            journal=journal,
            tenure=tenure,
            known=known,
            inherited=inherited,
            links=links,
            is_takeover=is_takeover,
        )

    def _counter(self, calibration: Json) -> TokenCounter:
        return fork_of(self._model.counter, calibration)

    def _log(self, execution: Execution, *, version: int = 0, fence: int = 1) -> RunLog:
        return RunLog(
            execution=execution,
            submit=self._writer.submit,
            version=version,
            fence=fence,
            store_as=None if self._records_content else redacted,
        )

    def _obstacle(self, assignment: Assignment) -> str:
        """Return what will keep other processes from going on with a run; empty where nothing does."""
        if not assignment.can_be_resumed:
            return "nobody could have come back for its result"
        if not self._is_durable and not assignment.request_id:
            return "its store was gone with the server"
        if not self._records_content:
            return "its content was not kept ([store] record_content)"
        if not assignment.strategy.is_replayable:
            return f"the strategy {assignment.strategy.name!r} cannot go on from its steps"
        return ""

    def _assignment_of(self, plan: Plan, execution: Execution) -> Assignment:
        try:
            strategy = self._find_strategy(plan.strategy)
        except ReasondError:
            raise PlanError(f"the strategy {plan.strategy!r} is not enabled here any more") from None
        if not strategy.is_replayable:
            raise PlanError(f"the strategy {plan.strategy!r} cannot go on from its steps")
        try:
            config = strategy.config_type.model_validate_json(json.dumps(plan.config))
        except ValidationError:
            raise PlanError(f"the strategy {plan.strategy!r} does not take its configuration any more") from None
        return Assignment(
            tenant=execution.tenant,
            task=plan.task,
            strategy=strategy,
            strategy_source=plan.source,
            config=config,
            shown_config=plan.config,
            request_id=execution.request_id,
            keep_running=plan.keep_running,
            is_unary=plan.is_unary,
            time_limit_s=plan.limit_s,
            subject=plan.subject,
            trace=plan.trace,
            permit=plan.permit,
        )


def failure_of(error: InternalError) -> InternalError:
    """Return what the caller of an execution is told that cannot be gone on with."""
    return InternalError(
        f"The server that worked on this execution went down, and no other can go on: {error.message}",
        remedy="What was done until then is kept. Start the task again, with another request id if it had one.",
    )


def _plan_of(assignment: Assignment, nonce: str, calibration: Json) -> str:
    plan = Plan(
        task=assignment.task,
        strategy=assignment.strategy.name,
        source=assignment.strategy_source,
        config=assignment.shown_config,
        nonce=nonce,
        limit_s=assignment.time_limit_s,
        keep_running=assignment.keep_running,
        has_request_id=bool(assignment.request_id),
        is_unary=assignment.is_unary,
        subject=assignment.subject,
        permit=assignment.permit,
        calibration=calibration,
        trace=assignment.trace,
    )
    return encode_plan(plan)


def _started(execution: Execution, config: Json) -> ExecutionStarted:
    return ExecutionStarted(
        strategy=execution.strategy, strategy_source=execution.strategy_source, model=execution.model, config=config
    )


def _inheritance(earlier: Execution) -> str:
    usage = earlier.usage
    return (
        f"This request was begun as execution {earlier.execution_id}, which was cancelled: the {usage.total_tokens} "
        f"tokens in {usage.model_calls} model calls that it spent are part of the usage, and calls that it had "
        "completed were not made again."
    )
