"""Makes runs: new ones, those that replace a cancelled one, and those that another process left behind.

A run that servers in succession took over without getting further ends, because it may have ended them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from reasond_server.errors.executions import NotResumableError
from reasond_server.eventlog.contents import redact
from reasond_server.eventlog.log import RunLog
from reasond_server.eventlog.store import Creation, Record, Recovery
from reasond_server.llm.metered_model import MeteredModel, TokenAccount
from reasond_server.runs.accounts import Accounts, fork_counter, read_calibration
from reasond_server.runs.effects import Effects
from reasond_server.runs.plan import (
    Plan,
    PlanError,
    decode_plan,
    derive_nonce,
    encode_obstacle,
    encode_plan,
    encode_unresumable,
)
from reasond_server.runs.recorded_calls import CallRecorder
from reasond_server.runs.run import SEGMENT_KEY, Run, Work
from reasond_server.runs.run_journal import RunJournal
from reasond_server.runs.run_trace import RunTrace
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.types import NOTHING, Event, Execution, ExecutionFailure, FinishReason, Json, TextDelta, Usage
from reasond_server.types.values import value

if TYPE_CHECKING:
    from reasond_server.base.clock import Clock
    from reasond_server.errors.base import ReasondError
    from reasond_server.eventlog.leases import Tenure
    from reasond_server.eventlog.writer import LogWriter
    from reasond_server.llm.model import ChatModel, TokenCounter
    from reasond_server.runs.live_runs import RunnerLimits
    from reasond_server.runs.work import WorkRequest


def measure_work(
    recovery: Recovery, is_pause: Callable[[Event], bool], now: datetime, *, lease_s: float | None
) -> tuple[float, Record | None]:
    """Return the seconds that count against the time limit until `now`, and the record of the takeover if it is one.

    The times after an event that `is_pause`, until the next event, do not count. With `lease_s` the times in which no
    process had the execution do not count either. The store does not know when a process ended: after the last entry
    that it wrote, its lease of `lease_s` seconds counts at most. So of a silent work that took longer, and was lost,
    the rest is not counted; it can be repeated only as often as the limit has leases.
    """
    elapsed_s = (now - recovery.execution.create_time).total_seconds() - _sum_sleep(recovery, is_pause, now)
    takeovers = read_takeovers(recovery)
    idle_s = takeovers[-1].idle_s if takeovers and lease_s is not None else 0.0
    if recovery.was_suspended:
        return max(0.0, elapsed_s - idle_s), None
    if lease_s is not None and recovery.events and not is_pause(recovery.events[-1].event):
        seen = max([recovery.events[-1].create_time, *(one.time for one in takeovers[-1:])])
        idle_s += max(0.0, (now - seen).total_seconds() - lease_s)
    return max(0.0, elapsed_s - idle_s), write_takeover(recovery, time=now, idle_s=idle_s)


def _sum_sleep(recovery: Recovery, is_pause: Callable[[Event], bool], now: datetime) -> float:
    """Return the seconds from each event that suspended the execution until the next event, or until now."""
    ends = [*(logged.create_time for logged in recovery.events[1:]), now]
    return sum(
        max(0.0, (end - logged.create_time).total_seconds())
        for logged, end in zip(recovery.events, ends, strict=False)
        if is_pause(logged.event)
    )


MAX_FRUITLESS_TAKEOVERS: Final = 2
"""After so many takeovers without anything written since, an execution is given up."""

_KEY: Final = "taken"
"""The beginning of the key of the record."""


@value
class Takeover:
    """When an execution was taken over, the seconds until then in which no process had it, and the entries before."""

    time: datetime
    idle_s: float
    entries: int


def write_takeover(recovery: Recovery, *, time: datetime, idle_s: float) -> Record:
    """Return the record to append when the execution of `recovery` is gone on with."""
    # A log without events gets its first one before.
    entries = recovery.version + (not recovery.events)
    body = {"at": time.isoformat(), "idle_s": idle_s, "entries": entries}
    return Record(key=f"{_KEY}::{recovery.fence}", body=json.dumps(body))


def read_takeovers(recovery: Recovery) -> Sequence[Takeover]:
    """Return the takeovers of this execution, oldest first; those of an execution that it replaced are left out."""
    bodies = [json.loads(record.body) for record in recovery.records if record.key.partition("::")[0] == _KEY]
    takeovers = [
        Takeover(time=datetime.fromisoformat(one["at"]), idle_s=one["idle_s"], entries=one["entries"]) for one in bodies
    ]
    return [one for one in takeovers if one.time >= recovery.execution.create_time]


def count_fruitless_takeovers(recovery: Recovery) -> int:
    """Return how many takeovers at the end of a log have nothing but takeovers after them."""
    entries, count = recovery.version - 1, 0
    for takeover in reversed(read_takeovers(recovery)):
        if takeover.entries != entries:
            break
        entries, count = entries - 1, count + 1
    return count


# The usual length of a remark without the texts of the work.

AccountOf = Callable[[str, str, str], TokenAccount | None]
"""Returns the token account of a tenant's subject for an execution; None if its tokens are not limited."""


def no_account(_tenant: str, _subject: str, _execution_id: str) -> TokenAccount | None:
    """Limit no tokens."""
    return None


def no_tenure() -> None:
    """Return None: no other process can take over the runs of this one, so no lease has to be watched."""


@value
class Predecessor:
    """A cancelled execution that a new one replaces; `plan` is None if it cannot be decoded."""

    execution: Execution
    plan: Plan | None
    records: Sequence[Record]


class WorkKind(Protocol):
    """One kind of work: restores the work that other processes left behind.

    Attributes:
        kind: its name in the store.
        is_timed_at_work: whether the time limit counts only the time in which a process had the execution; otherwise
            the time in between counts as well, as it does for the caller.
    """

    kind: str
    is_timed_at_work: bool
    keeps_plan: bool

    def revive(self, plan: Plan, recovery: Recovery) -> Work:
        """Return the work that resumes from the stored plan and log.

        Raises:
            PlanError: it cannot be resumed.
        """

    def shape_delta(self, delta: TextDelta, run: Run | None) -> TextDelta:
        """Return the text as followers of this kind get it; `run` is None if it is not active in this process."""

    def is_pause(self, event: Event) -> bool:
        """Return whether `event` suspends an execution: the time until the next event is not its working time."""

    def write_off(self, recovery: Recovery, failure: ExecutionFailure, *, warnings: Sequence[str]) -> Sequence[Event]:
        """Return the events that end a log as FAILED if it cannot be resumed, with the first event if it is missing."""


@value
class PreparedRun:
    """The decisions made before an execution is created; `plan` is stored with it."""

    work: Work
    plan: str
    nonce: str
    mark: str
    counter: TokenCounter
    is_recoverable: bool
    predecessor: Predecessor | None = None


@dataclass(eq=False, kw_only=True)
class RunFactory:
    """Makes runs that call `model` and write through `writer`; `kinds` restore work.

    If `limits` forbid to store content, no text of callers, model or tools is stored, and no run can be resumed. In a
    store that is not durable, only a retry of the same request can resume a cancelled run. `new_tenure` makes the
    tenure of a run that other processes may take over.
    """

    model: ChatModel
    clock: Clock
    writer: LogWriter
    kinds: Mapping[str, WorkKind]
    limits: RunnerLimits
    is_durable: bool
    account_of: AccountOf = no_account
    new_tenure: Callable[[], Tenure | None] = no_tenure
    observer: Observer = UNOBSERVED

    def __post_init__(self) -> None:
        self.tokens = 0
        """The tokens that all model calls were charged."""
        self._mark_key = self.clock.new_nonce()
        self._plan_keepers = {
            name for name, kind in self.kinds.items() if self.limits.records_content and kind.keeps_plan
        }

    def prepare(self, work: Work, predecessor: Predecessor | None = None) -> PreparedRun:
        """Make the decisions that a run depends on; with a predecessor they are the same as there."""
        earlier = predecessor.plan if predecessor is not None else None
        calibration: Json = {} if earlier is None else earlier.calibration
        counter = fork_counter(self._choose_model(work).counter, calibration)
        nonce = self.clock.new_nonce() if earlier is None else earlier.nonce
        mark = self._choose_mark(work.request, nonce) if earlier is None else earlier.mark or nonce
        obstacle = self._find_obstacle(work)
        return PreparedRun(
            work=work,
            plan=self._note_unresumable(work, obstacle)
            if obstacle
            else _write_plan(work, nonce=nonce, mark=mark, calibration=read_calibration(counter)),
            nonce=nonce,
            mark=mark,
            counter=counter,
            is_recoverable=not obstacle,
            predecessor=predecessor,
        )

    def _count_spending(self, strategy: str, model: str) -> Callable[[Usage], None]:
        """Return what is called with the usage that each call of a model is charged."""
        observe = self.observer.spending(strategy, model)

        def count(usage: Usage) -> None:
            self.tokens += usage.total_tokens
            observe(usage)

        return count

    def _choose_mark(self, request: WorkRequest, nonce: str) -> str:
        """Return the mark of a new run: that of the runs of its tenant whose prompts begin alike, else `nonce`.

        So model servers read that beginning once. Only this process knows the key of these marks.
        """
        if not request.prompts_begin_with:
            return nonce
        return derive_nonce(self._mark_key, f"{request.tenant}\0{request.prompts_begin_with}")

    def make(
        self, prepared: PreparedRun, execution: Execution, *, inherited: int = 0, creation: Creation | None = None
    ) -> Run:
        """Return the run of a new execution, with its first event appended; its log already has `inherited` records.

        With a `creation` the execution is not yet in the store, its log is not open, and no caller can resume it.
        """
        work, earlier = prepared.work, prepared.predecessor
        if earlier is not None and inherited != len(earlier.records):
            # It was deleted after its records were read and before they were copied: there is nothing to resume from.
            earlier = None
        records: Sequence[Record] = ()
        links: Sequence[str] = ()
        if earlier is not None and earlier.plan is not None:
            records = earlier.records if prepared.is_recoverable else ()
            links = (earlier.plan.trace,)
        before = NOTHING if earlier is None else earlier.execution.usage
        log = self._open_log(execution, version=inherited)
        log.is_open, log.creation = creation is None, creation
        log.events.is_for_one_answer = creation is not None
        log.keeps_records = prepared.is_recoverable and bool(execution.request_id)
        run = self._build(
            work=work,
            log=log,
            counter=prepared.counter,
            nonce=prepared.nonce,
            mark=prepared.mark,
            began_s=self.clock.monotonic(),
            records=records,
            before=before,
            is_recoverable=prepared.is_recoverable,
            inherited=() if earlier is None else (_describe_inheritance(earlier.execution),),
            trace=RunTrace(links=links),
        )
        log.append(work.begin(run), now=execution.create_time, usage=before)
        return run

    def knows(self, execution: Execution) -> bool:
        """Return whether this process knows the execution's kind of work."""
        return execution.kind in self.kinds

    def shape_delta(self, execution: Execution, delta: TextDelta, run: Run | None) -> TextDelta:
        """Return the text in the form of the execution's kind of work."""
        kind = self.kinds.get(execution.kind)
        return delta if kind is None else kind.shape_delta(delta, run)

    def revive(self, recovery: Recovery) -> Run:
        """Return a run that resumes an execution that another process left behind.

        Raises:
            PlanError: it cannot be resumed.
            ReplayError: its records cannot be read.
        """
        if recovery.damage:
            raise PlanError("its log is damaged")
        plan = decode_plan(recovery.plan)
        execution = recovery.execution
        kind = self.kinds[execution.kind]
        work = kind.revive(plan, recovery)
        log = self._open_log(execution, version=recovery.version, fence=recovery.fence)
        log.keeps_records = bool(execution.request_id)
        now = self.clock.now()
        lease_s = self.limits.lease_s if kind.is_timed_at_work else None
        elapsed_s, taken = measure_work(recovery, kind.is_pause, now, lease_s=lease_s)
        run = self._build(
            work=work,
            log=log,
            counter=fork_counter(self._choose_model(work).counter, plan.calibration),
            nonce=plan.nonce,
            mark=plan.mark or plan.nonce,
            began_s=self.clock.monotonic() - elapsed_s,
            records=recovery.records,
            before=execution.usage,
            is_recoverable=True,
            trace=RunTrace(
                links=_find_segment(recovery.records),
                is_takeover=not recovery.was_suspended,
                is_woken=recovery.was_suspended,
            ),
        )
        if not recovery.events:
            log.append(work.begin(run), now=now, usage=run.accounts.usage)
        if taken is not None:
            log.record(taken, usage=run.accounts.usage)
        if not recovery.was_suspended and count_fruitless_takeovers(recovery) >= MAX_FRUITLESS_TAKEOVERS:
            gone = f"{MAX_FRUITLESS_TAKEOVERS} servers that went on with it ended before it got any further"
            run.ending = build_resume_error(PlanError(f"{gone}; their logs may say why"))
        return run

    def write_off(self, recovery: Recovery, error: ReasondError) -> RunLog:
        """End a log that cannot be resumed as FAILED, with the events that it has; return the log."""
        execution, now = recovery.execution, self.clock.now()
        log = self._open_log(execution, version=recovery.version, fence=recovery.fence)
        failure = ExecutionFailure(reason=error.reason, message=error.full_message)
        *first, last = self.kinds[execution.kind].write_off(recovery, failure, warnings=self.model.warnings)
        for event in first:
            log.append(event, now=now, usage=execution.usage)
        log.end(
            last,
            now=now,
            usage=execution.usage,
            finish_reason=FinishReason.FAILED,
            expire_time=now + self.limits.find_retention(execution.tenant),
        )
        return log

    def _build(
        self,
        *,
        work: Work,
        log: RunLog,
        counter: TokenCounter,
        nonce: str,
        mark: str,
        began_s: float,
        records: Sequence[Record],
        before: Usage,
        is_recoverable: bool,
        trace: RunTrace,
        inherited: Sequence[str] = (),
    ) -> Run:
        request, monotonic = work.request, self.clock.monotonic
        limit_s = request.limit_s
        # No other process resumes a run that is not recoverable, so it needs no tenure.
        tenure = self.new_tenure() if is_recoverable else None
        wait_for_lease = None if tenure is None else tenure.wait_for_lease

        def write(record: Record) -> None:
            # The usage is read at each write, because it is not known before the accounts exist.
            log.record(record, usage=accounts.usage)

        model = MeteredModel(
            model=self._choose_model(work),
            budget=request.budget,
            time_left=lambda: None if limit_s is None else limit_s - (monotonic() - began_s),
            counter=counter,
            account=self.account_of(request.tenant, request.subject, log.execution.execution_id),
            spending=partial(self._count_spending, work.name),
            wait_for_lease=wait_for_lease,
            observer=self.observer,
            monotonic=monotonic,
            on_call=CallRecorder(records=records, write=write, now=self.clock.now).note if log.keeps_calls else None,
        )
        journal = None
        if is_recoverable:
            journal = RunJournal(records=records, write=write, sink=log)
        accounts = Accounts(
            model=model,
            monotonic=monotonic,
            began_s=began_s,
            limit_s=limit_s,
            cleanup_s=self.limits.unwinding_s,
            before=before,
            journal=journal,
            inherited=inherited,
        )
        return Run(
            work=work,
            log=log,
            accounts=accounts,
            effects=Effects(nonce=nonce, tenant=request.tenant, journal=journal, wait_for_lease=wait_for_lease),
            mark=mark,
            trace=trace,
            journal=journal,
            tenure=tenure,
        )

    def _choose_model(self, work: Work) -> ChatModel:
        return work.request.model or self.model

    def _open_log(self, execution: Execution, *, version: int = 0, fence: int = 1) -> RunLog:
        log = RunLog(
            execution=execution,
            submit=self.writer.submit,
            version=version,
            fence=fence,
            store_as=None if self.limits.records_content else redact,
        )
        log.keeps_plan = execution.kind in self._plan_keepers
        log.keeps_calls = self.limits.records_calls
        return log

    def _note_unresumable(self, work: Work, obstacle: str) -> str:
        """Return the plan of an execution that no other process can resume."""
        if work.kind not in self._plan_keepers:
            return encode_obstacle(obstacle)
        return encode_unresumable(obstacle, work.describe())

    def _find_obstacle(self, work: Work) -> str:
        """Return the reason why other processes cannot resume a run; empty if they can."""
        request = work.request
        if not request.can_be_resumed:
            return "nobody could have come back for its result"
        if not self.is_durable and not request.request_id and not work.may_suspend:
            return "its store was gone with the server"
        if not self.limits.records_content:
            return "its content was not kept ([store] record_content)"
        return work.obstacle


def build_resume_error(error: NotResumableError) -> NotResumableError:
    """Make the error for the caller of an execution that cannot be resumed."""
    return NotResumableError(
        f"The server that worked on this execution went down, and no other can go on: {error.message}",
        remedy="What was done until then is kept. Start the task again, with another request id if it had one.",
    )


def _find_segment(records: Sequence[Record]) -> Sequence[str]:
    """Return the trace context of the last life that suspended the execution, if that one was traced."""
    return [str(json.loads(record.body)["trace"]) for record in records if record.key == SEGMENT_KEY][-1:]


def _write_plan(work: Work, *, nonce: str, mark: str, calibration: Json) -> str:
    request = work.request
    plan = Plan(
        nonce=nonce,
        mark="" if mark == nonce else mark,
        work=work.describe(),
        limit_s=request.time_limit_s,
        keep_running=request.keep_running,
        has_request_id=bool(request.request_id),
        is_unary=request.is_unary,
        subject=request.subject,
        permit=request.permit,
        calibration=calibration,
        trace=request.trace,
    )
    return encode_plan(plan)


def _describe_inheritance(earlier: Execution) -> str:
    usage = earlier.usage
    return (
        f"This request was begun as execution {earlier.execution_id}, which was cancelled: the {usage.total_tokens} "
        f"tokens in {usage.model_calls} model calls that it spent are part of the usage, and calls that it had "
        "completed were not made again."
    )
