"""Measure how the searches of repairs use their candidates, with proposers of controlled accuracy: `make bench`.

Prints tables and writes results/repair_search.json beside this file, and the pictures and tables of
repair_search.md here. No language model takes part: the figures say how the searches use a budget of candidates,
nothing about any model.

- The cases are those of `benchmarks.repair_cases`: functions of Python's standard library with one or two faults.
- A proposer repairs each fault that is left with a fixed probability, by a hash of case, seed and number of the
  candidate; if it repairs none, its candidate has one of 30 other edits. A candidate that refines another one keeps
  what is repaired there, and not its wrong edit: that is the most that a search can gain from refining. One that is
  told of wrong edits makes none of them again, and all else in proportion: that is the most that notes can give.
- The search is that of the server (`repair.repair_run`) with its gate, keys, vote and held-out check. Its outside is
  made here: no prompts, no sandbox, no git. Tests are really run, once for each different code of a case; what came of
  them is then looked up.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import hashlib
import json
import math
import random
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from benchmarks.drawing import line_chart
from benchmarks.machine import circumstances
from benchmarks.pages import put_between
from benchmarks.repair_cases import PATH, Case, Laboratory, build_cases, key_of_source
from reasond_server.repair.results.gate import compare_with_baseline, judge_candidate
from reasond_server.repair.results.outcomes import Baseline, CheckOutcome, Critique
from reasond_server.repair.search.activities import CandidateOrder, PatchCheck, RepairCandidate
from reasond_server.repair.search.repair_policy import RepairParameters
from reasond_server.repair.search.repair_run import RepairOutcome, RepairRun
from reasond_server.repair.search.voting import write_change
from reasond_server.types import Budget, Usage
from reasond_server.types.repairs import CheckRole, CheckStatus, RepairSearch, TestOutcome

HERE: Final = Path(__file__).resolve().parent
RESULTS: Final = HERE / "results" / "repair_search.json"
PAGE: Final = HERE / "repair_search.md"
PICTURES: Final = {
    1: HERE.parent / "docs" / "guides" / "repair_search_one_fault.svg",
    2: HERE.parent / "docs" / "guides" / "repair_search_two_faults.svg",
}
DRAWN: Final = {1: (0.2, 0.05, 0.5), 2: (0.5, 0.2, 0.05)}
"""The accuracies in the order of a picture: those of the second one are dashed, those of the third one are dotted."""
BEGIN: Final = "<!-- figures: written by benchmarks.repair_search -->"
END: Final = "<!-- end of figures -->"
PACKAGES: Final = ("reasond-server",)
ACCURACIES: Final = (0.05, 0.2, 0.5)
BUDGETS: Final = (5, 10, 25, 50, 100, 200)
SEEDS: Final = 5
FAULTS: Final = (1, 2)
ALL: Final = 10_000
CHECK: Final = "tests"
PATIENT: Final = RepairParameters(
    max_reflection_depth=10, patience=1000, min_improvement_delta=0.0, max_checks=100_000, num_candidates=5
)
"""What no search ends early with: its budget is all that bounds it."""
METHODS: Final[Mapping[str, RepairParameters]] = {
    "greedy": replace(PATIENT, search=RepairSearch.GREEDY),
    "best of n": replace(PATIENT, search=RepairSearch.BEST_OF_N),
    "refine_beam": replace(PATIENT, search=RepairSearch.REFINE_BEAM),
    "lats": replace(PATIENT, search=RepairSearch.LATS),
    "refine_beam, defaults": RepairParameters(max_checks=100_000),
}
LEARNING: Final[Mapping[str, RepairParameters]] = {
    "best of n, notes": replace(PATIENT, search=RepairSearch.BEST_OF_N, take_notes=True),
    "tournament": replace(PATIENT, search=RepairSearch.TOURNAMENT),
}
"""Searches that are told of failed candidates: measured when they are asked for, and not in the results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """The results of one method with one budget, over all cases and seeds.

    Attributes:
        solved: share of runs whose patch was accepted, which includes the held-out tests.
        error: the standard error of `solved`, over cases: the seeds of one case are not independent runs.
        overfit: share of runs whose winner passed the visible tests and failed held-out ones.
        candidates: candidates on the average; `most` in any run.
    """

    faults: int
    accuracy: float
    method: str
    budget: int
    solved: float
    error: float
    overfit: float
    candidates: float
    most: int


class ScriptedOutside:
    """The outside of a repair of one case, with a proposer of controlled accuracy; see `RepairActivities`."""

    def __init__(self, case: Case, bench: Bench, *, accuracy: float, seed: int) -> None:
        self._case = case
        self._bench = bench
        self._accuracy = accuracy
        self._seed = seed
        self._stages = {"": 0}
        self._sources: dict[str, str] = {}
        self.warnings: Sequence[str] = ()
        self.checks_run = 2
        self.check_cpu_s = 0.0
        self.worst_cost: Mapping[str, float] = {"checks": 1.0}

    @property
    def candidates(self) -> int:
        """How many candidates were asked for."""
        return len(self._sources)

    async def measure_baseline(self) -> Baseline:
        """Return how the visible tests end on the faulty code."""
        return self._bench.find_baseline(self._case)

    def bound_tokens(self, order: CandidateOrder) -> int:  # noqa: ARG002 - the port's form
        """Return no tokens: nothing is written."""
        return 0

    async def generate(self, order: CandidateOrder) -> RepairCandidate:
        """Return the next candidate of the proposer."""
        case, stage = self._case, self._stages[order.parent_id]
        lot = random.Random(f"{case.name}:{self._seed}:{order.number}")  # noqa: S311 - a benchmark, no secret
        left = [1 << place for place in range(case.faults) if not stage >> place & 1]
        wrong = case.wrong[stage]
        if order.notes:
            changes = {each: write_change(self._bench.make_diff(case.stages[0], each)) for each in wrong}
            wrong = [each for each in wrong if changes[each] not in order.notes] or wrong
        accuracy = self._accuracy / (self._accuracy + (1 - self._accuracy) * len(wrong) / len(case.wrong[stage]))
        repaired = stage | sum(fault for fault in left if lot.random() < accuracy)
        source = case.stages[repaired] if repaired != stage else lot.choice(wrong)
        self._stages[order.candidate_id] = repaired
        self._sources[order.candidate_id] = source
        return RepairCandidate(
            candidate_id=order.candidate_id,
            number=order.number,
            parent_id=order.parent_id,
            depth=order.depth,
            key=key_of_source(source),
            changes={PATH: source.encode()},
            diff=self._bench.make_diff(case.stages[0], source),
            usage=Usage(model_calls=1),
        )

    async def judge(self, candidate: RepairCandidate) -> Critique:
        """Return what the gate says of the visible tests."""
        return self._bench.judge(self._case, self._sources[candidate.candidate_id])

    async def validate(self, candidate: RepairCandidate) -> PatchCheck:
        """Return the diff: that patches apply is shown elsewhere."""
        return PatchCheck(patch=candidate.diff)

    async def judge_held_out(self, candidate: RepairCandidate) -> Sequence[CheckOutcome]:
        """Return how the held-out tests end."""
        tests = self._case.held_out
        failing = self._bench.laboratory.list_failing(self._sources[candidate.candidate_id], tests)
        status = CheckStatus.FAILED if failing else CheckStatus.PASSED
        return [CheckOutcome(name="held-out", role=CheckRole.HELD_OUT, status=status)]


class Bench:
    """What is worked out once and looked up then: tests, critiques and diffs."""

    def __init__(self) -> None:
        self.laboratory = Laboratory()
        self._diffs: dict[tuple[str, str], str] = {}
        self._baselines: dict[str, Baseline] = {}
        self._critiques: dict[tuple[str, str], Critique] = {}

    def make_diff(self, old: str, new: str) -> str:
        """Return a unified diff."""
        if (old, new) not in self._diffs:
            lines = difflib.unified_diff(old.splitlines(keepends=True), new.splitlines(keepends=True), PATH, PATH, n=1)
            self._diffs[old, new] = "".join(lines)
        return self._diffs[old, new]

    def find_baseline(self, case: Case) -> Baseline:
        """Return how the visible tests end on the faulty code."""
        if case.name not in self._baselines:
            outcome = self._run_visible(case, case.stages[0])
            self._baselines[case.name] = Baseline(outcomes={CHECK: outcome}, is_reproduced=True)
        return self._baselines[case.name]

    def judge(self, case: Case, source: str) -> Critique:
        """Return what the gate says of a source."""
        key = case.name, key_of_source(source)
        if key not in self._critiques:
            baseline = self.find_baseline(case)
            outcome = compare_with_baseline(self._run_visible(case, source), baseline)
            self._critiques[key] = judge_candidate([outcome], (), baseline)
        return self._critiques[key]

    def prepare(self, cases: Sequence[Case]) -> None:
        """Run the tests of everything that proposers may propose, so that processes that are forked later know it."""
        for case in cases:
            for source in {*case.stages, *(source for wrong in case.wrong for source in wrong)}:
                if self.judge(case, source).is_solution:
                    self.laboratory.run(source, case.held_out)

    def _run_visible(self, case: Case, source: str) -> CheckOutcome:
        values = self.laboratory.run(source, case.visible)
        failing = [test for test, wanted in case.visible.items() if values.get(test) != wanted]
        ids = {test: f"test {place}" for place, test in enumerate(case.visible)}
        shown = [f"{test} is {values.get(test, 'never reached')}, not {case.visible[test]}" for test in failing]
        return CheckOutcome(
            name=CHECK,
            role=CheckRole.REPRODUCE,
            status=CheckStatus.FAILED if failing else CheckStatus.PASSED,
            tests={ids[test]: TestOutcome.FAILED if test in failing else TestOutcome.PASSED for test in case.visible},
            fingerprints={ids[test]: _digest(values.get(test, "")) for test in failing},
            evidence="\n".join(shown)[:4000],
            exit_code=1 if failing else 0,
        )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


async def run_case(
    case: Case, bench: Bench, *, method: str, budget: int, accuracy: float, seed: int
) -> tuple[RepairOutcome, int]:
    """Return what came of one repair, and how many candidates it took."""
    outside = ScriptedOutside(case, bench, accuracy=accuracy, seed=seed)
    run = RepairRun(
        parameters=replace({**METHODS, **LEARNING}[method], max_candidates=budget, seed=seed),
        budget=Budget(),
        activities=outside,
        emit=lambda _: None,
        pause=_go_on,
    )
    outcome = await run.work()
    if outcome is None or outside.candidates > budget:
        raise SystemExit(f"{method} made {outside.candidates} of {budget} candidates")
    return outcome, outside.candidates


async def _go_on() -> bool:
    return False


async def measure_curve(cases: Sequence[Case], bench: Bench, *, method: str, accuracy: float) -> list[Curve]:
    """Let a method work on all cases with all seeds and budgets.

    A run that was accepted is not repeated with larger budgets: the budget decides nothing before it is reached.
    """
    rows: list[Curve] = []
    accepted: dict[tuple[int, int], tuple[RepairOutcome, int]] = {}
    for budget in BUDGETS:
        solved, overfit, used = [0] * len(cases), 0, []
        for (place, case), seed in product(enumerate(cases), range(SEEDS)):
            outcome, candidates = accepted.get((place, seed)) or await run_case(
                case, bench, method=method, budget=budget, accuracy=accuracy, seed=seed
            )
            if outcome.is_accepted:
                accepted[place, seed] = outcome, candidates
            solved[place] += outcome.is_accepted
            overfit += any("fails held-out ones" in warning for warning in outcome.warnings)
            used.append(candidates)
        rows.append(
            Curve(
                faults=cases[0].faults,
                accuracy=accuracy,
                method=method,
                budget=budget,
                solved=round(sum(solved) / len(used), 4),
                error=round(statistics.stdev(solved) / SEEDS / math.sqrt(len(cases)), 4),
                overfit=round(overfit / len(used), 4),
                candidates=round(statistics.fmean(used), 2),
                most=max(used),
            )
        )
    return rows


def measure(
    cases: Mapping[int, Sequence[Case]], bench: Bench, *, methods: Sequence[str], processes: int
) -> list[Curve]:
    """Measure the curves of `methods` in processes that are forked from this one, which knows how all tests end."""
    work = list(product(cases, methods, ACCURACIES))
    _SHARED.update(cases=cases, bench=bench)
    with ProcessPoolExecutor(processes, mp_context=get_context("fork")) as pool:
        rows = []
        for curves in pool.map(_measure_forked, work):
            rows += curves
            print_curve(curves)
        return rows


_SHARED: Final[dict[str, Any]] = {}
"""What forked processes inherit."""


def _measure_forked(part: tuple[int, str, float]) -> list[Curve]:
    faults, method, accuracy = part
    cases, bench = _SHARED["cases"][faults], _SHARED["bench"]
    return asyncio.run(measure_curve(cases, bench, method=method, accuracy=accuracy))


def print_curve(curves: Sequence[Curve]) -> None:
    """Print a line of the table."""
    one = curves[0]
    shares = "".join(f"{row.solved:8.1%}" for row in curves)
    print(f"{one.faults} fault(s), accuracy {one.accuracy:4.2f}, {one.method:<22}{shares}", flush=True)


def page_lines(report: Mapping[str, Any]) -> list[str]:
    """Return the lines between the markers of the page."""
    rows = [Curve(**row) for row in report["rows"]]
    lines = []
    for faults, accuracy in dict.fromkeys((row.faults, row.accuracy) for row in rows):
        count = report["cases"][str(faults)]
        words = "one fault" if faults == 1 else f"{faults} faults"
        lines += [
            (
                f"Solved, of {count} cases with {words} and {report['seeds']} seeds each, by a proposer of accuracy"
                f" {accuracy:g}, by budget of candidates:"
            ),
            "",
            f"| | {' | '.join(str(budget) for budget in BUDGETS)} | made | overfit |",
            f"| --- | {' | '.join('---' for _ in BUDGETS)} | --- | --- |",
        ]
        for method in METHODS:
            mine = [row for row in rows if (row.faults, row.accuracy, row.method) == (faults, accuracy, method)]
            shares = " | ".join(f"{row.solved:.1%}" for row in mine)
            lines.append(f"| {method} | {shares} | {mine[-1].candidates:.1f} | {mine[-1].overfit:.1%} |")
        lines.append("")
    error = 100 * max(row.error for row in rows)
    lines += [
        f"The standard error of a share, over cases, is at most {error:.1f} points. No run made more candidates than",
        f"its budget. `made` is how many a run with {BUDGETS[-1]} made on the average. `overfit` is the share of these",
        "runs whose winner passed the tests that the search saw and failed the held-out ones: such a patch is returned",
        "as not accepted.",
        "",
        *compare_lines(rows),
    ]
    return lines


def compare_lines(rows: Sequence[Curve]) -> list[str]:
    """Return where LATS is better than best of n by more than two standard errors, where worse, and where neither."""
    by_place = {(row.faults, row.accuracy, row.method, row.budget): row for row in rows}
    titles = {
        1: "LATS solves more than best of n, by more than two standard errors of the difference:",
        -1: "LATS solves less than best of n, by more than two standard errors of the difference:",
        0: "LATS is not told apart from best of n:",
    }
    lines = []
    for sign, title in titles.items():
        places = []
        for faults, accuracy in product(FAULTS, ACCURACIES):
            pairs = [[by_place[faults, accuracy, name, each] for name in ("lats", "best of n")] for each in BUDGETS]
            budgets = [str(lats.budget) for lats, flat in pairs if _compare(lats, flat) == sign]
            words = "one fault" if faults == 1 else f"{faults} faults"
            places += [f"{words}, accuracy {accuracy:g}, budget {', '.join(budgets)}"] if budgets else []
        lines += [f"- {title}", *(f"  - {place}" for place in places or ["nowhere"])]
    return lines


def _compare(one: Curve, other: Curve) -> int:
    """Return 1 or -1 if one curve is better or worse than the other beyond the noise, else 0."""
    noise = 2 * math.hypot(one.error, other.error)
    gain = one.solved - other.solved
    return int(gain > noise) - int(gain < -noise)


def draw(rows: Sequence[Curve], faults: int) -> str:
    """Return the chart of success by budget for cases with so many faults."""
    series = {}
    for accuracy in DRAWN[faults]:
        for method in list(METHODS)[:4]:
            mine = [row for row in rows if (row.faults, row.accuracy, row.method) == (faults, accuracy, method)]
            series[f"{method}, {accuracy:g}"] = [(float(row.budget), 100 * row.solved) for row in mine]
    return line_chart(
        series,
        title=f"Solved in per cent, cases with {faults} fault(s), by accuracy of the proposer",
        x_title="budget of candidates",
        dashed=lambda name: name.endswith(f", {DRAWN[faults][1]:g}"),
        dotted=lambda name: name.endswith(f", {DRAWN[faults][2]:g}"),
        ticks=BUDGETS,
    )


def write_down(report: Mapping[str, Any]) -> None:
    """Write the results, the pictures and the page's tables."""
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")
    rows = [Curve(**row) for row in report["rows"]]
    for faults, picture in PICTURES.items():
        picture.write_text(draw(rows, faults), encoding="utf-8")
    put_between(PAGE, BEGIN, END, "\n".join(["", *page_lines(report), ""]))


def add_kept(measured: Sequence[Curve], cases: Mapping[str, int]) -> list[Curve]:
    """Return the rows that were measured and, of other searches, those of the results, in the order of the tables."""
    report = json.loads(RESULTS.read_text(encoding="utf-8"))
    new = {row.method for row in measured}
    if len(new) < len(METHODS) and report["cases"] != cases:
        raise SystemExit(f"the results are of other cases ({report['cases']}): measure every search again")
    rows = [*measured, *(row for row in (Curve(**each) for each in report["rows"]) if row.method not in new)]
    methods = list(METHODS)
    return sorted(rows, key=lambda row: (row.faults, row.accuracy, methods.index(row.method), row.budget))


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--cases", type=int, help="most cases of each kind; then no results are written")
    parser.add_argument(
        "--only",
        choices=[*METHODS, *LEARNING],
        action="append",
        help="a search to measure; of others the results are kept",
    )
    asked = parser.parse_args()
    if asked.cases == 1:
        parser.error("--cases must be at least 2, or there is no standard error")
    bench = Bench()
    cases = {faults: build_cases(bench.laboratory, faults=faults, limit=asked.cases or ALL) for faults in FAULTS}
    print(f"{' and '.join(f'{len(found)} cases with {faults} fault(s)' for faults, found in cases.items())}")
    for found in cases.values():
        bench.prepare(found)
    print(f"{bench.laboratory.runs} runs of tests")
    rows = measure(cases, bench, methods=asked.only or list(METHODS), processes=asked.processes)
    if asked.cases is not None or not METHODS.keys() >= set(asked.only or ()):
        return
    counts = {str(faults): len(found) for faults, found in cases.items()}
    report = {
        "circumstances": circumstances(PACKAGES),
        "cases": counts,
        "modules": {str(faults): dict(Counter(case.module for case in found)) for faults, found in cases.items()},
        "test_runs": bench.laboratory.runs,
        "seeds": SEEDS,
        "rows": [asdict(row) for row in add_kept(rows, counts)],
    }
    write_down(report)


if __name__ == "__main__":
    main()
