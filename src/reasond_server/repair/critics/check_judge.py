"""The critics of one repair: the checks on the original, on candidates and on the winner, and static analysis."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from reasond_server.errors.base import InternalError
from reasond_server.repair.critics.code_reviews import Reviews, digest_changes, perform_directly
from reasond_server.repair.critics.linting import LintCritic
from reasond_server.repair.critics.tampering import TamperingCritic
from reasond_server.repair.edits.python_sources import is_python
from reasond_server.repair.results.baseline import CheckRuns, conclude_baseline, needs_more_runs
from reasond_server.repair.results.check_runner import CheckRunner
from reasond_server.repair.results.gate import apply_rulings, compare_with_baseline, counts, judge_candidate
from reasond_server.repair.results.outcomes import Baseline, CheckOutcome, Critique, read_outcome, write_outcome
from reasond_server.search.waves import run_wave
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.types.repairs import Check, CheckRole, CheckStatus, Finding, ResultFormat, SourceFile

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from reasond_server.repair.critics.code_reviews import Perform
    from reasond_server.repair.critics.critic_port import Critic
    from reasond_server.sandbox.sandbox import ExecutionEnvironment, Sandbox, SourceTree

ResultT = TypeVar("ResultT")
CHECK: Final = "check"
"""Kind of the effect of one run of a check."""
_MORE_RUNS: Final = 3
"""Further runs on the original of a check that does not fail each time and decides."""

_NO_LINT: Final = "Static analysis was left out: ruff is not installed on this server (extra `repair`)."
_PYTHON_ONLY: Final = "Static analysis covers Python alone; the other changed files were judged by checks only."


class Critics:
    """Judges the candidates of one repair.

    Args:
        sandbox: runs the checks.
        environment: where they run.
        tree: the files of the snapshot on the disk.
        files: the same files by path.
        checks: all checks of the task, each with its `argv`.
        permits: bounds the runs of checks of the whole server (`max_parallel_checks`).
        critic_timeout_ms: the least time limit of a check.
        allow_unreproduced: whether it is no error that no check fails on the original.
        linter: absolute path of ruff; None leaves static analysis out, with a warning.
        critics: further critics, which packages have added.
        reported: what the client's report names; where a critic still finds it, a candidate has not mended it.
        signs: what the operator wants of lines that could mislead checks; see `apply_rulings`.
        perform: makes each run of a check, and each review, an effect of the run.
        observer: receives each run of a check that was really made.

    Attributes:
        level: the level of the sandbox.
        checks_run: how many runs of checks were made, recorded ones included.
        check_cpu_s: their processor time.
    """

    def __init__(
        self,
        *,
        sandbox: Sandbox,
        environment: ExecutionEnvironment,
        tree: SourceTree,
        files: Mapping[str, SourceFile],
        checks: Sequence[Check],
        permits: asyncio.Semaphore,
        critic_timeout_ms: int = 2000,
        allow_unreproduced: bool = False,
        linter: Path | None = None,
        critics: Sequence[Critic] = (),
        reported: Sequence[Finding] = (),
        signs: Mapping[str, str] | None = None,
        perform: Perform = perform_directly,
        observer: Observer = UNOBSERVED,
    ) -> None:
        self.level = sandbox.level
        self._observer = observer
        self._runner = CheckRunner(sandbox=sandbox, environment=environment, tree=tree, permits=permits)
        self._cpu_limit_s = environment.limits.cpu_s
        self._checks = {check.name: check for check in checks}
        self._least_s = critic_timeout_ms / 1000
        self._allow_unreproduced = allow_unreproduced
        self._has_linter = linter is not None
        self._perform = perform
        self._signs = signs or {}
        forms = {check.format or environment.format for check in checks if check.role is not CheckRole.HELD_OUT}
        tampering = TamperingCritic(are_tests_named=forms <= {ResultFormat.JUNIT, ResultFormat.GO_JSON})
        lint = [LintCritic(program=linter, sandbox=sandbox, tree=tree, permits=permits)] if linter else []
        self._reviews = Reviews(critics=[*lint, tampering, *critics], files=files, perform=perform, reported=reported)
        self._baseline: Baseline | None = None
        self._has_other_files = False
        self._has_python = any(is_python(path) for path in files)
        self.checks_run = 0
        self.check_cpu_s = 0.0

    @property
    def warnings(self) -> Sequence[str]:
        """What the caller should know of what was judged so far."""
        return (
            *(self._baseline.warnings if self._baseline else ()),
            *((_NO_LINT,) if self._has_python and not self._has_linter else ()),
            *((_PYTHON_ONLY,) if self._has_other_files else ()),
            *self._reviews.warnings,
        )

    @property
    def worst_cost(self) -> Mapping[str, float]:
        """The most that judging one candidate takes, in the resources of `search.Cost`; to be reserved before."""
        repeats = self._require_baseline().repeats
        count = sum(repeats.get(check.name, 1) for check in self._list_checks(is_held_out=False))
        return {"checks": count, "check_cpu_s": count * self._cpu_limit_s}

    async def measure_baseline(self) -> Baseline:
        """Run every check twice on the original and return what follows for candidates.

        One that did not end in time is not run again: that would cost its limit twice and tell nothing new.

        Raises:
            CheckUnusableError: a check cannot be run, or its result cannot be read.
            NotReproducedError: no check of the role REPRODUCE fails.
        """
        checks = list(self._checks.values())
        pairs = list(await _run_all([partial(self._run_twice, check) for check in checks]))
        for pair in needs_more_runs(pairs):
            run = partial(self._run, pair.check, {}, limit_s=self._runner.limit_first(pair.check))
            pairs[pairs.index(pair)] = replace(pair, others=[await run() for _ in range(_MORE_RUNS)])
        self._baseline = conclude_baseline(
            pairs,
            timeouts_s={pair.check.name: self._limit_candidates(pair) for pair in pairs},
            allow_unreproduced=self._allow_unreproduced,
        )
        return self._baseline

    def resume_from(self, baseline: Baseline) -> None:
        """Judge by a baseline that was measured before."""
        self._baseline = baseline

    async def judge(self, changes: Mapping[str, bytes | None]) -> Critique:
        """Return what checks and critics say of the original with `changes`; held-out checks are not run.

        Raises:
            InternalError: the baseline was not measured.
        """
        baseline = self._require_baseline()
        self._has_other_files |= any(not is_python(path) for path in changes)
        checks = self._list_checks(is_held_out=False)
        outcomes: list[CheckOutcome] = []
        findings: list[Finding] = []

        async def run_checks() -> None:
            outcomes.extend(await _run_all([partial(self._run_compared, check, changes) for check in checks]))

        async def review() -> None:
            findings.extend(apply_rulings(await self._reviews.find_new(changes), self._signs))

        await _run_all([run_checks, review])
        return judge_candidate(outcomes, findings, baseline)

    async def judge_held_out(self, changes: Mapping[str, bytes | None]) -> Sequence[CheckOutcome]:
        """Return how the held-out checks end on the original with `changes`; none if there are none that count.

        Only the winner may be judged so, once, and nothing of it may reach the model.

        Raises:
            InternalError: the baseline was not measured.
        """
        self._require_baseline()
        checks = self._list_checks(is_held_out=True)
        return await _run_all([partial(self._run_compared, check, changes) for check in checks])

    async def _run_twice(self, check: Check) -> CheckRuns:
        run = partial(self._run, check, {}, limit_s=self._runner.limit_first(check))
        first = await run()
        second = first if first.status is CheckStatus.TIMED_OUT else await run()
        return CheckRuns(check=check, first=first, second=second)

    def _require_baseline(self) -> Baseline:
        if self._baseline is None:
            raise InternalError("candidates were judged before the baseline was measured")
        return self._baseline

    def _list_checks(self, *, is_held_out: bool) -> Sequence[Check]:
        """Return the checks that say something of candidates: the held-out ones, or those that the search may see."""
        baseline = self._require_baseline()
        return [
            check
            for check in self._checks.values()
            if (check.role is CheckRole.HELD_OUT) is is_held_out and counts(check.name, baseline)
        ]

    def _limit_candidates(self, pair: CheckRuns) -> float:
        longest_s = max(pair.first.elapsed_s, pair.second.elapsed_s)
        return self._runner.limit_later(pair.check, baseline_s=longest_s, least_s=self._least_s)

    async def _run_compared(self, check: Check, changes: Mapping[str, bytes | None]) -> CheckOutcome:
        baseline = self._require_baseline()
        run = partial(self._run, check, changes, limit_s=baseline.timeouts_s[check.name])
        outcome = compare_with_baseline(await run(), baseline)
        for _ in range(1, baseline.repeats.get(check.name, 1)):
            if outcome.status is not CheckStatus.PASSED:
                break
            again = compare_with_baseline(await run(), baseline)
            outcome = replace(
                again,
                runs=outcome.runs + again.runs,
                cpu_s=outcome.cpu_s + again.cpu_s,
                elapsed_s=outcome.elapsed_s + again.elapsed_s,
            )
        return outcome

    async def _run(self, check: Check, changes: Mapping[str, bytes | None], *, limit_s: float) -> CheckOutcome:
        """Run a check as an effect; the limit is no part of its digest, because it depends on times."""
        row = [check.name, check.role, list(check.argv), check.format, digest_changes(changes)]
        digest = hashlib.sha256(json.dumps(row).encode()).hexdigest()

        async def run() -> str:
            outcome = await self._runner.run(check, changes, limit_s=limit_s)
            self._observer.check_ended(self.level.value, outcome.status.value, outcome.elapsed_s)
            return write_outcome(outcome)

        outcome = read_outcome(await self._perform(CHECK, digest, run))
        self.checks_run += outcome.runs
        self.check_cpu_s += outcome.cpu_s
        return outcome


async def _run_all(calls: Sequence[Callable[[], Awaitable[ResultT]]]) -> Sequence[ResultT]:
    """Return the results of all `calls` in order; the permits bound how many run at once."""
    return await run_wave(calls, at_once=max(len(calls), 1), failures=())
