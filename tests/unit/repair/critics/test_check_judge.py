"""The critics of one repair, with checks that really run as plain processes."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.errors.base import InternalError
from reasond_server.errors.repairs import CheckUnusableError, NotReproducedError
from reasond_server.repair.critics.linting import find_ruff
from reasond_server.types.repairs import CandidateVerdict, CheckRole, CheckStatus, Finding, ResultFormat, Severity
from tests.repairing import (
    ENVIRONMENT,
    LocalRunner,
    ScriptedRunner,
    broken_sandbox,
    build_critics,
    check,
    end_job,
    junit,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from reasond_server.sandbox.sandbox import Job, JobOutcome

RUNNER = """
import sys
path = sys.argv[1]
try:
    exec(open(path).read())
    tests = [value for name, value in list(globals().items()) if name.startswith("test_")]
    for test in tests:
        test()
    print(f"ok 1 - {path}")
except Exception as error:
    print(f"not ok 1 - {path}\\n  ---\\n  error: {error!r}\\n  ...")
    sys.exitcode = 1
print("1..1")
sys.exit(getattr(sys, "exitcode", 0))
"""
TAP = ("python", "-S", "runner.py")
FILES = {
    "runner.py": RUNNER,
    "calc.py": "def add(a, b):\n    return a - b\n\n\ndef twice(a):\n    return 2 * a\n",
    "test_add.py": "from calc import add\n\n\ndef test_add():\n    assert add(1, 2) == 3, add(1, 2)\n",
    "test_twice.py": "from calc import twice\n\n\ndef test_twice():\n    assert twice(2) == 4\n",
    "held.py": "from calc import add\nassert add(2, 2) == 4\n",
}
RIGHT = {"calc.py": FILES["calc.py"].replace("a - b", "a + b").encode()}
WRONG = {"calc.py": FILES["calc.py"].replace("a - b", "b - a").encode()}
OVERFIT = {"calc.py": FILES["calc.py"].replace("a - b", "3").encode()}
CHECKS = (
    check("fault", *TAP, "test_add.py", format=ResultFormat.TAP),
    check("others", *TAP, "test_twice.py", role=CheckRole.REGRESSION, format=ResultFormat.TAP),
    check("hidden", "python", "-S", "held.py", role=CheckRole.HELD_OUT, format=ResultFormat.EXIT_CODE),
)


async def test_a_right_candidate_passes_and_a_wrong_one_shows_why() -> None:
    critics = build_critics(FILES, CHECKS, linter=find_ruff())
    baseline = await critics.measure_baseline()
    assert {name: one.status for name, one in baseline.outcomes.items()} == {
        "fault": CheckStatus.FAILED,
        "others": CheckStatus.PASSED,
        "hidden": CheckStatus.FAILED,
    }
    assert baseline.is_reproduced
    assert all(2.0 <= limit <= 60.0 for limit in baseline.timeouts_s.values())
    right = await critics.judge(RIGHT)
    assert (right.verdict, right.is_solution, right.score) == (CandidateVerdict.PASSED, True, 100.0)
    wrong = await critics.judge(WRONG)
    assert (wrong.verdict, wrong.is_solution) == (CandidateVerdict.FAILED, False)
    assert "fault: test_add.py" in wrong.evidence
    assert "AssertionError(1)" in wrong.evidence
    assert right.signature != wrong.signature
    assert [report.name for report in wrong.reports] == ["fault", "others"]
    assert not critics.warnings
    assert critics.checks_run == 10
    assert critics.check_cpu_s > 0


async def test_a_check_that_hangs_on_the_original_costs_its_limit_once() -> None:
    runner = ScriptedRunner(end_job(137, "went to sleep", exceeded="wall_s"))
    baseline = await build_critics(FILES, CHECKS[:1], sandbox=runner).measure_baseline()
    assert (len(runner.jobs), baseline.is_reproduced) == (1, True)
    assert not baseline.flaky


async def test_held_out_checks_judge_the_winner_alone() -> None:
    critics = build_critics(FILES, CHECKS)
    await critics.measure_baseline()
    overfit = await critics.judge(OVERFIT)
    assert overfit.is_solution
    assert "hidden" not in repr(overfit)
    assert [one.status for one in await critics.judge_held_out(OVERFIT)] == [CheckStatus.FAILED]
    assert [one.status for one in await critics.judge_held_out(RIGHT)] == [CheckStatus.PASSED]


async def test_a_new_high_finding_keeps_a_candidate_from_the_gate_and_an_old_one_does_not() -> None:
    files = FILES | {"calc.py": FILES["calc.py"] + "\n\ndef broken():\n    return undefined\n"}
    critics = build_critics(files, CHECKS[:2], linter=find_ruff())
    await critics.measure_baseline()
    fixed = files["calc.py"].replace("a - b", "a + b")
    assert (await critics.judge({"calc.py": ("# moved\n" + fixed).encode()})).is_solution
    critique = await critics.judge({"calc.py": fixed.replace("2 * a", "2 * a if a else other").encode()})
    assert not critique.is_solution
    assert [one.rule_id for one in critique.findings] == ["F821"]


async def test_without_ruff_there_is_a_warning_and_tests_decide() -> None:
    critics = build_critics(FILES, CHECKS[:1])
    await critics.measure_baseline()
    assert (await critics.judge(RIGHT | {"notes.txt": b"x"})).is_solution
    assert [warning.split(":")[0] for warning in critics.warnings] == [
        "Static analysis was left out",
        "Static analysis covers Python alone; the other changed files were judged by checks only.",
    ]


async def test_what_passes_on_the_original_is_not_reproduced() -> None:
    files = FILES | {"calc.py": RIGHT["calc.py"].decode()}
    with pytest.raises(NotReproducedError, match="'fault', 'others', 'hidden'"):
        await build_critics(files, CHECKS).measure_baseline()
    critics = build_critics(files, CHECKS, allow_unreproduced=True)
    assert not (await critics.measure_baseline()).is_reproduced


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (("no-such-program",), "its command is not there"),
        (("python", "-c", "print('usage: x')"), "write {report}"),
        (("python", "-c", "print('usage: x')", "{report}"), "wrote no report"),
        (("python", "-m", "pytest", "--junitxml={report}", "nowhere.py"), "names no test"),
    ],
)
async def test_a_check_that_cannot_be_used_is_refused(argv: Sequence[str], why: str) -> None:
    with pytest.raises(CheckUnusableError, match=why):
        await build_critics(FILES, [check("fault", *argv)]).measure_baseline()


async def test_nothing_is_judged_before_the_baseline() -> None:
    critics = build_critics(FILES, CHECKS)
    with pytest.raises(InternalError):
        await critics.judge(RIGHT)


async def test_flaky_tests_are_told_and_do_not_count() -> None:
    reports = [junit(a="failed", b="passed"), junit(a="failed", b="failed"), junit(a="passed", b="failed")]
    sandbox = ScriptedRunner(*(end_job(1, report=report) for report in reports))
    critics = build_critics(FILES, [check("fault")], sandbox=sandbox)
    baseline = await critics.measure_baseline()
    assert baseline.flaky == {"fault::t::b"}
    assert (await critics.judge(RIGHT)).is_solution
    assert "fault::t::b" in critics.warnings[0]


async def test_no_more_checks_run_at_once_than_the_server_permits() -> None:
    running = most = 0

    class Counting(LocalRunner):
        async def run(self, job: Job) -> JobOutcome:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            return end_job(1, report=junit(a="failed"))(job)

    permits = asyncio.Semaphore(2)
    checks = [check(f"c{n}") for n in range(8)]
    both = [build_critics(FILES, checks, sandbox=Counting(), permits=permits) for _ in range(2)]
    await asyncio.gather(*(critics.measure_baseline() for critics in both))
    assert most == 2


async def test_every_run_of_a_check_is_an_effect_and_a_recorded_one_is_not_repeated() -> None:
    records: dict[tuple[str, str, int], str] = {}

    def journal() -> Callable[[str, str, Callable[[], Awaitable[str]]], Awaitable[str]]:
        counts: dict[tuple[str, str], int] = {}

        async def perform(kind: str, digest: str, run: Callable[[], Awaitable[str]]) -> str:
            counts[kind, digest] = counts.get((kind, digest), 0) + 1
            key = (kind, digest, counts[kind, digest])
            if key not in records:
                records[key] = await run()
            return records[key]

        return perform

    async def live(sandbox: Any) -> Any:
        critics = build_critics(FILES, CHECKS, sandbox=sandbox, perform=journal(), linter=find_ruff())
        baseline = await critics.measure_baseline()
        return baseline, await critics.judge(WRONG), await critics.judge_held_out(RIGHT), critics.check_cpu_s

    first = await live(LocalRunner())
    again = LocalRunner()
    assert await live(again) == first
    assert not again.jobs


async def test_a_repair_that_is_cancelled_leaves_no_check_waiting() -> None:
    begun, left = asyncio.Event(), asyncio.Event()

    class Endless(LocalRunner):
        async def run(self, job: Job) -> JobOutcome:
            self.jobs.append(job)
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                left.set()
            raise AssertionError

    permits = asyncio.Semaphore(1)
    task = asyncio.create_task(build_critics(FILES, CHECKS, sandbox=Endless(), permits=permits).measure_baseline())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert left.is_set()
    assert not permits.locked()


async def test_the_worst_cost_is_what_judging_one_candidate_can_take() -> None:
    critics = build_critics(FILES, CHECKS, environment=replace(ENVIRONMENT))
    await critics.measure_baseline()
    assert critics.worst_cost == {"checks": 2, "check_cpu_s": 120.0}


async def test_a_run_that_says_nothing_and_the_one_after_it_both_count() -> None:
    failing = end_job(1, report=junit(a="failed"))
    sandbox = ScriptedRunner(failing, failing, broken_sandbox())
    critics = build_critics(FILES, [check("fault")], sandbox=sandbox)
    await critics.measure_baseline()
    critique = await critics.judge(RIGHT)
    assert critique.verdict is CandidateVerdict.UNKNOWN
    assert (len(critique.reports), critique.repeats) == (1, 1)
    assert critics.checks_run == len(sandbox.jobs) == 4


async def test_what_fails_now_and_then_has_to_pass_as_often_as_the_original_was_run() -> None:
    passed, failed = end_job(report=junit(a="passed")), end_job(1, report=junit(a="failed"))
    runner = ScriptedRunner(passed, failed, passed, passed, passed, *[passed] * 4, failed)
    critics = build_critics(FILES, [check("fault")], sandbox=runner)
    baseline = await critics.measure_baseline()
    assert (baseline.is_reproduced, len(runner.jobs)) == (True, 5)
    assert critics.worst_cost["checks"] == 5
    critique = await critics.judge(RIGHT)
    assert (critique.verdict, len(runner.jobs), critique.repeats) == (CandidateVerdict.FAILED, 10, 4)


async def test_without_checks_static_analysis_alone_judges_and_reported_findings_have_to_go() -> None:
    files = {"calc.py": "def add(a, b):\n    return a + c\n"}
    reported = [Finding(rule_id="F821", severity=Severity.HIGH, path="calc.py", line=2, message="undefined name")]
    critics = build_critics(files, (), linter=find_ruff(), reported=reported)
    await critics.measure_baseline()
    right = await critics.judge({"calc.py": b"def add(a, b):\n    return a + b\n"})
    assert (right.verdict, right.is_solution, right.score, right.reports) == (CandidateVerdict.PASSED, True, 100, ())
    for text in (b"def add(a, b):\n    return a + d\n", b"# moved\ndef add(a, b):\n    return a + c\n"):
        wrong = await critics.judge({"calc.py": text})
        assert not wrong.is_solution
        assert wrong.score < 85
    assert "reported, and still there" in wrong.evidence
    assert any("nothing was run" in warning for warning in critics.warnings)
