"""Repairs as a kind of work: repeated from the journal after a crash, so that no call and no check is made twice."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from reasond_server.errors.base import InternalError
from reasond_server.eventlog.store import Record, Recovery
from reasond_server.repair.edits.patches import validate_patch
from reasond_server.repair.search.activities import AllActivities, PatchCheck, RepairCandidate
from reasond_server.repair.search.plan_run import PlanRun
from reasond_server.repair.search.repair_run import RepairOutcome, RepairRun
from reasond_server.repair.search.repair_site import build_site
from reasond_server.repair.search.repair_spans import trace_scoring, trace_validation
from reasond_server.repair.service.assignments import (
    describe_assignment,
    describe_parameters,
    digest_event,
    read_assignment,
)
from reasond_server.repair.service.engine import BatchedRepair, RepairEngine, RepairOrder
from reasond_server.repair.service.workbench import Workbench, Workshop
from reasond_server.runs.accounts import read_calibration
from reasond_server.runs.phase import LEAVES, Phase
from reasond_server.runs.recorded_calls import MOST_CHARACTERS_OF_RUN
from reasond_server.runs.run_journal import JournaledModel, RepeatedSteps
from reasond_server.runs.work import RunEnding, WorkRequest
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.types import Event, ExecutionFailure, FinishReason, Json, StrategySource, TextDelta
from reasond_server.types.kinds import settle_sequences
from reasond_server.types.repairs import (
    CandidateStep,
    CritiqueStep,
    ReflectionStep,
    Repair,
    RepairDelta,
    RepairGoal,
    RepairStarted,
    SandboxLevel,
    Verification,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Collection, Mapping, Sequence
    from pathlib import Path

    from reasond_server.base.clock import Clock
    from reasond_server.llm.model import ChatModel
    from reasond_server.repair.critics.check_judge import Critics
    from reasond_server.repair.results.outcomes import Baseline, CheckOutcome, Critique
    from reasond_server.repair.search.candidate_writer import CandidateWriter
    from reasond_server.repair.search.repair_policy import RepairPolicy
    from reasond_server.repair.service.assignments import RepairAssignment
    from reasond_server.runs.plan import Plan
    from reasond_server.runs.run import Run
    from reasond_server.runs.run_trace import RunTrace
    from reasond_server.snapshots.snapshot_keeper import SnapshotKeeper
    from reasond_server.types.repairs import SourceFile


@dataclass(eq=False, kw_only=True)
class LocalActivities:
    """See `RepairActivities`.

    Args:
        writer: writes candidates.
        critics: judge them; they journal their checks. None for a plan.
        files: the code by path.
        trace: the trace of the run.
        folder: where patches are tried; None: in that of the system.
    """

    writer: CandidateWriter
    critics: Critics | None
    files: Mapping[str, SourceFile]
    trace: RunTrace
    folder: Path | None = None

    def __post_init__(self) -> None:
        self.bound_tokens = self.writer.bound_tokens
        self.generate = self.writer.generate
        self.write_plan = self.writer.write_plan
        self.score_plans = self.writer.score_plans

    @property
    def warnings(self) -> Sequence[str]:
        """What the caller should know of what the critics did so far."""
        return () if self.critics is None else self.critics.warnings

    @property
    def checks_run(self) -> int:
        """Runs of checks so far."""
        return 0 if self.critics is None else self.critics.checks_run

    @property
    def check_cpu_s(self) -> float:
        """The processor time of the checks in seconds."""
        return 0.0 if self.critics is None else self.critics.check_cpu_s

    @property
    def worst_cost(self) -> Mapping[str, float]:
        """The most that judging one candidate takes."""
        return {} if self.critics is None else self.critics.worst_cost

    async def prepare_plan(self) -> None:
        """Choose what the prompts of a plan show."""
        await self.writer.show(None)

    async def measure_baseline(self) -> Baseline:
        """Run all checks on the original code, and choose what prompts show of it."""
        baseline = await self._require_critics().measure_baseline()
        await self.writer.show(baseline)
        return baseline

    def _require_critics(self) -> Critics:
        if self.critics is None:
            raise InternalError("nothing of a plan is run")
        return self.critics

    async def judge(self, candidate: RepairCandidate) -> Critique:
        """Let the critics judge a candidate."""
        with trace_scoring(self.trace) as made:
            critique = await self._require_critics().judge(candidate.changes)
            made.scores.append(critique.score)
        return critique

    async def validate(self, candidate: RepairCandidate) -> PatchCheck:
        """See whether the diff of a candidate applies and gives exactly its files."""
        with trace_validation(self.trace, candidate_id=candidate.candidate_id) as made:
            problem = await validate_patch(self.files, candidate.changes, candidate.diff, parent=self.folder)
            made.is_valid = not problem
        return PatchCheck(patch=candidate.diff, problem=problem)

    async def judge_held_out(self, candidate: RepairCandidate) -> Sequence[CheckOutcome]:
        """Run the held-out checks on a candidate."""
        return await self._require_critics().judge_held_out(candidate.changes)


REPAIR: Final = "repair"
"""The name of this kind of work."""
_NO_CONTENT: Final = "the server keeps no content ([store] record_content), so the code is gone"


class RepairKind:
    """Makes the work of repairs: new work, or restored work that another process left behind.

    Args:
        clock: times of events.
        policy: the operator's decisions.
        snapshots: keeps the code.
        workshop: where checks run.
        model: the model of repairs, if it is not that of the server.
        observer: receives what happens to repairs.
        engine: works repairs out elsewhere; None: they are worked out in this process, as plans always are.
    """

    kind: str = REPAIR
    keeps_plan: bool = True
    is_timed_at_work: bool = False

    def __init__(
        self,
        *,
        clock: Clock,
        policy: RepairPolicy,
        snapshots: SnapshotKeeper,
        workshop: Workshop,
        model: ChatModel | None = None,
        observer: Observer = UNOBSERVED,
        engine: RepairEngine | None = None,
        records_content: bool = True,
    ) -> None:
        self.records_content = records_content
        self.engine = engine
        self.workbench = Workbench(
            clock=clock, policy=policy, snapshots=snapshots, workshop=workshop, observer=observer
        )
        self.clock = clock
        self.policy = policy
        self.snapshots = snapshots
        self.workshop = workshop
        self.model = model
        self.observer = observer

    def create(self, assignment: RepairAssignment, request: WorkRequest) -> RepairWork:
        """Return new work."""
        return RepairWork(kind=self, assignment=assignment, request=request)

    def revive(self, plan: Plan, recovery: Recovery) -> RepairWork:
        """Return work that repeats the recorded calls and the logged events, and then continues.

        Raises:
            PlanError: the plan was written by another version of the server.
        """
        assignment = read_assignment(plan.work)
        return RepairWork(
            kind=self,
            assignment=assignment,
            request=plan.to_request(recovery.execution, budget=assignment.task.budget),
            known=[digest_event(logged.event) for logged in recovery.events],
            known_records=frozenset(record.key for record in recovery.records),
        )

    @asynccontextmanager
    async def open_activities(
        self, run: Run, model: ChatModel, assignment: RepairAssignment
    ) -> AsyncIterator[AllActivities]:
        """Return a context with the activities over the code of a repair, which is on the disk meanwhile.

        Raises:
            SnapshotNotFoundError: the code is not kept any more.
            SandboxUnavailableError: no sandbox works here.
            NotResumableError: the environment, or a command, is not configured any more.
        """
        bench = self.workbench
        assignment = bench.write_out_commands(assignment)
        site = build_site(run)
        files = await bench.load(site.tenant, assignment.task)
        make = partial(LocalActivities, files=files, trace=site.trace, folder=bench.folder)
        writer = bench.make_writer(site, model, assignment, files)
        if assignment.task.goal is RepairGoal.PLAN:
            yield make(writer=writer, critics=None)
            return
        async with bench.open_critics(site, assignment, files) as critics:
            yield make(writer=writer, critics=critics)

    def shape_delta(self, delta: TextDelta, run: Run | None) -> RepairDelta:  # noqa: ARG002 - the port's form
        """Return the text as that of a repair."""
        return RepairDelta(iteration_index=delta.iteration_index, text=delta.text)

    def is_pause(self, event: Event) -> bool:  # noqa: ARG002 - the port's form
        """Return False: repairs do not suspend."""
        return False

    def write_off(self, recovery: Recovery, failure: ExecutionFailure, *, warnings: Sequence[str]) -> Sequence[Event]:
        """Return the end of a repair that cannot be resumed, after its first event if that is missing."""
        execution = recovery.execution
        last = recovery.events[-1].create_time if recovery.events else execution.create_time
        began = next((each.event for each in recovery.events if isinstance(each.event, RepairStarted)), None)
        result = Repair(
            execution_id=execution.execution_id,
            goal=RepairGoal.FIX if began is None else began.goal,
            patch="",
            is_accepted=False,
            verification=Verification.NONE,
            level=SandboxLevel.OFF if began is None else began.level,
            finish_reason=FinishReason.FAILED,
            model=execution.model,
            usage=execution.usage,
            elapsed_s=(last - execution.create_time).total_seconds(),
            warnings=tuple(warnings),
            error=failure,
        )
        if execution.last_sequence:
            return [result]
        start = RepairStarted(
            goal=RepairGoal.FIX,
            model=execution.model,
            environment="",
            level=SandboxLevel.OFF,
            snapshot_id="",
            config={},
        )
        return [start, result]


class RepairWork:
    """The work on one repair; see `runs.run.Work`.

    `known` are digests of the events that earlier lives logged: the work repeats them, and they are compared.
    `known_records` are the keys of what they recorded.
    """

    def __init__(
        self,
        *,
        kind: RepairKind,
        assignment: RepairAssignment,
        request: WorkRequest,
        known: Sequence[bytes] = (),
        known_records: Collection[str] = (),
    ) -> None:
        self.kind = self.name = REPAIR
        self.source = StrategySource.REQUEST
        self.agent = ""
        self.request = request
        self.may_suspend = False
        # The first event is appended by the runner, so it does not count.
        self.steps = RepeatedSteps(known[1:])
        self.metrics = None
        self._kind = kind
        self._assignment = assignment
        self._activities: AllActivities | BatchedRepair | None = None
        self._progress: RepairRun | PlanRun | BatchedRepair | None = None
        self._candidates = 0
        self._known_records = known_records
        self._outcome: RepairOutcome | None = None

    @property
    def obstacle(self) -> str:
        """Why no other process could resume it, in words; empty if one can."""
        return "" if self._kind.records_content else _NO_CONTENT

    def describe(self) -> Json:
        """Return the task without its files, and the parameters."""
        return describe_assignment(self._assignment)

    def begin(self, run: Run) -> Event:
        """Return the first event."""
        task = self._assignment.task
        return RepairStarted(
            goal=task.goal,
            model=self._name_model(run),
            environment=task.environment,
            level=self._level,
            snapshot_id=task.snapshot_id,
            config=describe_parameters(self._assignment.parameters),
        )

    async def work(self, run: Run) -> None:
        """Work the repair out; see `runs.run.Work`.

        Raises:
            SnapshotNotFoundError: the code is not kept any more.
            ReasondError: the repair failed.
        """
        engine, is_fix = self._kind.engine, self._assignment.task.goal is RepairGoal.FIX
        try:
            outcome = await (self._work_here(run) if engine is None or not is_fix else self._work_on(engine, run))
        finally:
            self._kind.observer.candidates_changed(-self._candidates)
        if outcome is None:
            return
        if outcome.is_early:
            self._kind.observer.terminated_early()
        self._outcome = outcome
        self.steps.close()
        run.report_end(RunEnding(finish_reason=outcome.finish_reason, warnings=tuple(outcome.warnings)))

    async def _work_here(self, run: Run) -> RepairOutcome | None:
        """Work the repair out in this process."""
        run.effects.is_replayed = True
        if self._kind.model is not None:
            run.accounts.model.switch_to(self._kind.model)
        model: ChatModel = run.accounts.model
        if run.journal is not None:
            model = JournaledModel(model=run.accounts.model, journal=run.journal)
        async with self._kind.open_activities(run, model, self._assignment) as activities:
            self._activities = activities
            self._progress = progress = self._make_run(run, activities)
            return await progress.work()

    async def _work_on(self, engine: RepairEngine, run: Run) -> RepairOutcome | None:
        """Let an engine work the repair out; it goes on there if the run leaves this process."""
        most = self._assignment.parameters.max_candidates
        order = RepairOrder(
            tenant=run.identity.tenant,
            subject=self.request.subject,
            execution_id=run.identity.execution_id,
            nonce=run.effects.nonce,
            assignment=self.describe(),
            calibration={} if self._kind.model else read_calibration(run.accounts.model.counter),
            kept_characters=MOST_CHARACTERS_OF_RUN // most if run.log.keeps_calls else 0,
        )
        self._activities = self._progress = progress = BatchedRepair(
            append=partial(self._append, run),
            record=partial(self._record, run),
            charge=run.accounts.charge_again,
            pause=partial(self._pause, run),
        )
        try:
            return await progress.work(engine.work_out(order))
        finally:
            if progress.is_over:
                engine.forget(order)
            elif run.cause not in LEAVES:
                await engine.stop(order)

    def conclude(self, run: Run, ending: RunEnding) -> Repair:
        """Return the last event: the outcome, or of a repair that was stopped the best candidate so far."""
        accounts, task, progress = run.accounts, self._assignment.task, self._progress
        outcome = self._outcome
        if outcome is None and progress is not None:
            outcome = progress.summarize(ending.finish_reason)
        outcome = outcome or RepairOutcome(finish_reason=ending.finish_reason)
        activities = self._activities
        changes = self.steps.list_changes(run.journal, execution_id=run.identity.execution_id)
        own = [each for each in outcome.warnings if each not in ending.warnings]
        own += [] if activities is None else activities.warnings
        result = Repair(
            execution_id=run.identity.execution_id,
            goal=task.goal,
            patch=outcome.patch,
            is_accepted=outcome.is_accepted,
            verification=outcome.verification,
            level=self._level,
            finish_reason=ending.finish_reason,
            model=outcome.model or self._name_model(run),
            usage=accounts.usage,
            elapsed_s=accounts.elapsed_s,
            final_candidate_id=outcome.final_candidate_id,
            total_iterations=0 if progress is None else len(progress.rounds),
            checks=0 if activities is None else activities.checks_run,
            check_cpu_s=0.0 if activities is None else activities.check_cpu_s,
            vote=outcome.vote,
            ranking=outcome.ranking,
            reflection_summary=() if progress is None else progress.rounds,
            warnings=(*accounts.warnings, *changes, *own, *ending.warnings),
            error=ending.to_failure(),
            suspect_lines=outcome.suspect_lines,
        )
        return settle_sequences(result)

    def leave(self, run: Run) -> None:  # noqa: ARG002 - as the protocol has it
        """Report nothing: what the observers of runs get says all."""
        self._activities = self._progress = None

    @property
    def _level(self) -> SandboxLevel:
        if isinstance(self._progress, BatchedRepair) and self._progress.level is not None:
            return self._progress.level
        return SandboxLevel.OFF if self._assignment.task.goal is RepairGoal.PLAN else self._kind.workshop.sandbox.level

    def _name_model(self, run: Run) -> str:
        return run.identity.model if self._kind.model is None else self._kind.model.name

    def _make_run(self, run: Run, activities: AllActivities) -> RepairRun | PlanRun:
        """Return the run of the goal."""
        task, parameters = self._assignment.task, self._assignment.parameters
        if task.goal is RepairGoal.PLAN:
            return PlanRun(
                parameters=parameters,
                budget=task.budget,
                activities=activities,
                emit=partial(self._append, run),
                pause=partial(self._pause, run),
            )
        return RepairRun(
            parameters=parameters,
            budget=task.budget,
            activities=activities,
            emit=partial(self._append, run),
            pause=partial(self._pause, run),
        )

    async def _pause(self, run: Run) -> bool:
        """Wait while the log has no room; return whether the work has to stop here."""
        if not run.log.has_room:
            await run.log.wait_for_room()
        return run.leaves_at_checkpoint is not None and run.reach_checkpoint()

    def _append(self, run: Run, event: Event) -> None:
        """Append an event, unless an earlier life already logged it: then the logged one stays.

        After the run was stopped nothing is appended: another process may go on with it.
        """
        if run.phase is not Phase.WORKING:
            return
        index = self.steps.count
        is_known = self.steps.new_count < 0
        if is_known:
            self.steps.compare(digest_event(event))
        self.steps.add()
        run.trace.end_step(None if is_known else {"reasond.step.index": index})
        if not is_known:
            run.append(settle_sequences(event), now=self._kind.clock.now())
            self._observe(event)

    def _record(self, run: Run, key: str, body: str) -> None:
        """Append a record, unless an earlier life of the run already did."""
        if run.phase is Phase.WORKING and key not in self._known_records:
            run.log.record(Record(key=key, body=body), usage=run.accounts.usage)

    def _observe(self, event: Event) -> None:
        observer = self._kind.observer
        if isinstance(event, CandidateStep):
            self._candidates += 1
            observer.candidates_changed(1)
        elif isinstance(event, CritiqueStep):
            observer.candidate_scored(event.score)
        elif isinstance(event, ReflectionStep):
            observer.iteration_ended()
