"""One run of a check: its command, its limits, how it ends, and what says nothing about the code."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.repair.results.check_runner import CheckRunner
from reasond_server.sandbox.sandbox import SandboxLimits
from reasond_server.types.repairs import CheckStatus, ResultFormat, TestOutcome
from tests.repairing import ENVIRONMENT, FolderTree, ScriptedRunner, broken_sandbox, check, end_job, junit, source_files

if TYPE_CHECKING:
    from reasond_server.repair.results.outcomes import CheckOutcome


PYTHON_STACK = """dots ..Fatal Python error: Aborted

Current thread 0x7f (most recent call first):
  File "/workspace/calc.py", line 4 in add
  File "/workspace/tests/test_calc.py", line 9 in test_add
  File "/usr/lib/python3/site-packages/_pytest/python.py", line 159 in call
"""
GO_STACK = """SIGQUIT: quit

goroutine 7 [chan receive]:
example.com/m.Add(...)
\t/workspace/m.go:5
example.com/m.TestAdd(0xc0)
\t/workspace/m_test.go:7 +0x2d
"""


def runner(sandbox: ScriptedRunner, **limits: Any) -> CheckRunner:
    environment = replace(ENVIRONMENT, limits=SandboxLimits(**limits))
    tree = FolderTree(source_files({"calc.py": ""}))
    return CheckRunner(sandbox=sandbox, environment=environment, tree=tree, permits=asyncio.Semaphore(1))


async def run(*outcomes: Any, form: ResultFormat | None = None) -> tuple[CheckOutcome, ScriptedRunner]:
    sandbox = ScriptedRunner(*outcomes)
    return await runner(sandbox).run(check("unit", format=form), {}, limit_s=7.0), sandbox


async def test_the_report_has_a_new_name_in_each_run_that_nobody_can_guess() -> None:
    sandbox = ScriptedRunner(end_job(report=junit(a="passed")))
    checks = runner(sandbox)
    for _ in range(2):
        outcome = await checks.run(check("unit"), {}, limit_s=7.0)
        assert outcome.status is CheckStatus.PASSED
    names = [job.collect[0] for job in sandbox.jobs]
    assert len(set(names)) == 2
    assert all(len(name) > 32 and "/" not in name for name in names)
    assert [job.argv[-1] for job in sandbox.jobs] == [f"--junitxml={name}" for name in names]
    assert sandbox.jobs[0].limits.wall_s == 7.0


@pytest.mark.parametrize(
    ("code", "report", "status"),
    [
        (0, junit(a="passed", b="skipped"), CheckStatus.PASSED),
        (1, junit(a="passed", b="failed"), CheckStatus.FAILED),
        (0, junit(a="passed", b="failed"), CheckStatus.FAILED),
        (1, junit(a="passed"), CheckStatus.FAILED),
        (0, None, CheckStatus.FAILED),
        (0, "<testsuite/>", CheckStatus.FAILED),
        (139, None, CheckStatus.FAILED),
    ],
)
async def test_only_a_report_without_failures_and_exit_code_0_together_pass(
    code: int, report: str | None, status: CheckStatus
) -> None:
    outcome, _ = await run(end_job(code, report=report))
    assert outcome.status is status


async def test_what_cannot_be_read_says_why() -> None:
    outcome, _ = await run(end_job(2, "usage: pytest\x1b[0m"))
    assert (outcome.status, outcome.exit_code, outcome.evidence) == (CheckStatus.FAILED, 2, "usage: pytest")
    assert "wrote no report" in outcome.reason


async def test_a_command_that_names_no_report_is_told_how() -> None:
    sandbox = ScriptedRunner(end_job(0, "2 passed"))
    outcome = await runner(sandbox).run(check("unit", "pytest"), {}, limit_s=7.0)
    assert outcome.status is CheckStatus.FAILED
    assert "{report}" in outcome.reason


@pytest.mark.parametrize("limit", ["wall_s", "cpu_s"])
async def test_a_limit_of_time_is_timed_out_and_not_failed(limit: str) -> None:
    outcome, sandbox = await run(end_job(137, "so far", exceeded=limit))
    assert (outcome.status, outcome.evidence) == (CheckStatus.TIMED_OUT, "so far")
    assert len(sandbox.jobs) == 1


@pytest.mark.parametrize("limit", ["memory_bytes", "processes", "disk_bytes"])
async def test_a_limit_that_the_code_itself_reached_is_a_failure_that_says_which(limit: str) -> None:
    outcome, sandbox = await run(end_job(1, exceeded=limit, report=junit(a="passed")))
    assert (outcome.status, outcome.exit_code >= 128, dict(outcome.tests)) == (CheckStatus.FAILED, True, {})
    assert "than its limit" in outcome.reason
    assert len(sandbox.jobs) == 1


async def test_what_says_nothing_about_the_code_is_tried_once_more() -> None:
    outcome, sandbox = await run(broken_sandbox(), end_job(report=junit(a="passed")))
    assert (outcome.status, outcome.runs, len(sandbox.jobs)) == (CheckStatus.PASSED, 2, 2)
    outcome, sandbox = await run(broken_sandbox())
    assert (outcome.status, outcome.runs, len(sandbox.jobs)) == (CheckStatus.UNKNOWN, 2, 2)
    assert "no namespace" not in outcome.reason
    outcome, sandbox = await run(end_job(137), end_job(137))
    assert (outcome.status, len(sandbox.jobs), outcome.cpu_s) == (CheckStatus.UNKNOWN, 2, 0.5)
    assert sandbox.jobs[1].limits.cpu_s == sandbox.jobs[0].limits.cpu_s - 0.25


async def test_a_check_with_an_exit_code_alone_that_was_killed_is_unknown() -> None:
    outcome, _ = await run(end_job(137), form=ResultFormat.EXIT_CODE)
    assert outcome.status is CheckStatus.UNKNOWN


async def test_results_in_the_output_have_room_and_no_report() -> None:
    outcome, sandbox = await run(end_job(0, "1..1\nok 1 - a"), form=ResultFormat.TAP)
    assert outcome.tests == {"a": TestOutcome.PASSED}
    assert not sandbox.jobs[0].collect
    assert sandbox.jobs[0].limits.output_bytes == 4 * 1024 * 1024


async def test_equal_failures_show_equal_evidence_though_the_report_is_called_otherwise() -> None:
    def answer(job: Any) -> Any:
        return end_job(3, f"wrote {job.collect[0]}", report=junit(a="passed"))(job)

    first, _ = await run(answer)
    second, _ = await run(answer)
    assert first.evidence == second.evidence == "wrote {report}"


@pytest.mark.parametrize(
    ("timeout_s", "baseline_s", "limit_s"),
    [(0, 0.01, 2.0), (0, 1.0, 10.0), (0, 100.0, 300.0), (5, 100.0, 5.0), (1000, 0.1, 400.0)],
)
def test_the_limit_is_ten_times_the_baseline_within_bounds_or_what_the_client_asks_for(
    timeout_s: float, baseline_s: float, limit_s: float
) -> None:
    checks = runner(ScriptedRunner(end_job()), wall_s=400.0)
    assert checks.limit_later(check("a", timeout_s=timeout_s), baseline_s=baseline_s, least_s=2.0) == limit_s


def test_no_limit_is_over_that_of_the_environment() -> None:
    checks = runner(ScriptedRunner(end_job()), wall_s=60.0)
    assert checks.limit_later(check("a"), baseline_s=100.0, least_s=2.0) == 60.0
    assert checks.limit_first(check("a", timeout_s=3.0)) == 3.0
    assert checks.limit_first(check("a")) == 60.0


@pytest.mark.parametrize(
    ("printed", "told"),
    [
        (PYTHON_STACK, "calc.py add, called from tests/test_calc.py:9 test_add"),
        (GO_STACK, "m.go, called from m_test.go:7"),
    ],
)
async def test_a_hang_says_where_the_code_was(printed: str, told: str) -> None:
    outcome, _ = await run(end_job(137, output=printed, exceeded="wall_s"))
    assert outcome.status is CheckStatus.TIMED_OUT
    assert f"When its time was over, the code was at {told}." in outcome.evidence
    # A loop is left at another line each time, and equal hangs shall have equal evidence.
    moved, _ = await run(end_job(137, output=printed.replace("line 4", "line 3"), exceeded="wall_s"))
    assert moved.evidence == outcome.evidence


async def test_lines_that_the_code_printed_itself_are_no_place_of_a_hang() -> None:
    outcome, _ = await run(end_job(137, output="/workspace/calc.py:3: warning", exceeded="wall_s"))
    assert outcome.evidence == "/workspace/calc.py:3: warning"
