"""The activities of a repair within the process that works it out: calls and checks go through the run's journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from reasond_server.errors.base import InternalError
from reasond_server.repair.edits.patches import validate_patch
from reasond_server.repair.search.activities import PatchCheck
from reasond_server.repair.search.repair_spans import trace_scoring, trace_validation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from reasond_server.repair.critics.check_judge import Critics
    from reasond_server.repair.results.outcomes import Baseline, CheckOutcome, Critique
    from reasond_server.repair.search.activities import RepairCandidate
    from reasond_server.repair.search.candidate_writer import CandidateWriter
    from reasond_server.runs.run_trace import RunTrace
    from reasond_server.types.snapshots import SourceFile


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
