"""Requests of repairs: every bad field is named once, with its limit and the way out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reasond_server.errors.request import InvalidConfigError, InvalidRequestError
from reasond_server.repair.search.repair_policy import RepairParameters, RepairPolicy
from reasond_server.repair.service.repair_service import check_repair, require_covered_checks
from reasond_server.types import Budget
from reasond_server.types.repairs import (
    Check,
    CheckRole,
    CriticReport,
    Finding,
    RepairGoal,
    RepairTask,
    Severity,
    SourceFile,
    SuiteOutcome,
)

POLICY = RepairPolicy(enabled=True, commands={"unit": ("pytest", "-q")})
TESTS = Check(name="tests", role=CheckRole.REPRODUCE, argv=("pytest", "-q"))
FILE = SourceFile(path="a.py", content=b"x = 1\n")
FINDING = Finding(rule_id="F821", severity=Severity.LOW, path="a.py", line=1, message="undefined name")
GOOD = RepairTask(files=[FILE], environment="python", checks=[TESTS])
PLAN = RepairTask(goal=RepairGoal.PLAN, description="Design a cache")


def find(task: RepairTask, *, may_use_commands: bool = True, request_id: str = "") -> list[tuple[str, str]]:
    try:
        check_repair(
            task,
            policy=POLICY,
            environments={"python", "node"},
            may_use_commands=may_use_commands,
            request_id=request_id,
        )
    except InvalidRequestError as error:
        return [(each.field, each.description) for each in error.violations]
    return []


@pytest.mark.parametrize(
    "task",
    [
        GOOD,
        PLAN,
        replace(PLAN, files=[FILE]),
        replace(GOOD, files=(), snapshot_id="snap-1"),
        replace(GOOD, checks=[Check(name="a", role=CheckRole.REGRESSION, command="unit")]),
    ],
)
def test_good_tasks_pass(task: RepairTask) -> None:
    assert find(task) == []


@pytest.mark.parametrize(
    ("task", "field", "words"),
    [
        (replace(GOOD, files=()), "files", "is required"),
        (replace(GOOD, snapshot_id="s"), "snapshot_id", "must be empty where files are sent"),
        (replace(GOOD, files=(), snapshot_id="ü"), "snapshot_id", "printable ASCII"),
        (replace(GOOD, environment=""), "environment", "is required; environments of this server: node, python"),
        (replace(GOOD, environment="pyton"), "environment", "did you mean 'python'?"),
        (replace(GOOD, description="a\0b"), "description", "NUL"),
        (replace(PLAN, description=""), "description", "between 1 and 100000"),
        (replace(PLAN, checks=[TESTS]), "checks", "must be empty for a plan"),
        (replace(GOOD, checks=()), "checks", "at least one entry of the role REPRODUCE or REGRESSION"),
        (replace(GOOD, checks=[replace(TESTS, role=CheckRole.HELD_OUT)]), "checks", "at least one entry"),
        (replace(GOOD, checks=[TESTS] * 21), "checks", "at most 20 entries, got 21"),
        (replace(GOOD, checks=[replace(TESTS, name="Tests")]), "checks[0].name", "small letter"),
        (replace(GOOD, checks=[replace(TESTS, argv=())]), "checks[0].argv", "or a command of this server (unit)"),
        (replace(GOOD, checks=[replace(TESTS, command="unit")]), "checks[0].command", "must be empty"),
        (replace(GOOD, checks=[replace(TESTS, argv=(), command="unti")]), "checks[0].command", "did you mean 'unit'?"),
        (replace(GOOD, checks=[replace(TESTS, argv=("x",) * 65)]), "checks[0].argv", "at most 64 entries, got 65"),
        (replace(GOOD, checks=[replace(TESTS, argv=("",))]), "checks[0].argv[0]", "between 1 and 4096"),
        (replace(GOOD, checks=[replace(TESTS, argv=("x", "a\0"))]), "checks[0].argv[1]", "NUL"),
        (replace(GOOD, checks=[replace(TESTS, timeout_s=-1)]), "checks[0].timeout", "between 0 and 3600 seconds"),
        (replace(GOOD, checks=[replace(TESTS, timeout_s=float("nan"))]), "checks[0].timeout", "got nan"),
        (replace(GOOD, editable=[""]), "editable[0]", "between 1 and 1024"),
        (replace(GOOD, editable=["x"] * 101), "editable", "at most 100 entries, got 101"),
        (replace(GOOD, budget=Budget(max_model_calls=0)), "budget.max_model_calls", "at least 1"),
        (
            replace(
                GOOD, report=CriticReport(test_outcomes=[SuiteOutcome(suite_name="a", is_passed=True, coverage=101)])
            ),
            "report.test_outcomes[0].coverage",
            "between 0 and 100, got 101",
        ),
        (
            replace(
                GOOD,
                report=CriticReport(
                    issues=[Finding(rule_id="r", severity=Severity.LOW, path="p", line=-1, message="m")]
                ),
            ),
            "report.issues[0].line",
            "at least 0, got -1",
        ),
    ],
)
def test_a_bad_field_is_named_with_its_limit(task: RepairTask, field: str, words: str) -> None:
    found = find(task)
    assert [name for name, _ in found] == [field]
    assert words in found[0][1]


def test_two_checks_need_two_names() -> None:
    assert [field for field, _ in find(replace(GOOD, checks=[TESTS, TESTS]))] == ["checks[0].name", "checks[1].name"]


def test_own_commands_need_their_permission_and_named_ones_do_not() -> None:
    assert find(GOOD, may_use_commands=False) == [
        (
            "checks[0].argv",
            "needs the permission repair:commands; without it name a command of this server (unit)",
        )
    ]
    assert find(replace(GOOD, checks=[replace(TESTS, argv=(), command="unit")]), may_use_commands=False) == []


def test_all_problems_are_named_at_once() -> None:
    task = replace(GOOD, files=(), environment="", checks=(), editable=[""])
    fields = [field for field, _ in find(task, request_id="\n")]
    assert fields == ["files", "environment", "checks", "editable[0]", "request_id"]


def test_bounds_that_do_not_cover_the_checks_of_one_candidate_are_refused_before_any_is_run() -> None:
    task = replace(GOOD, checks=[TESTS, replace(TESTS, name="hidden", role=CheckRole.HELD_OUT)])
    require_covered_checks(task, RepairParameters(max_checks=12, max_check_cpu_s=360.0), most_cpu_s=60.0)
    with pytest.raises(InvalidConfigError) as caught:
        require_covered_checks(task, RepairParameters(max_checks=11, max_check_cpu_s=359.0), most_cpu_s=60.0)
    runs, cpu_s = caught.value.violations
    assert (runs.field, cpu_s.field) == ("config.max_checks", "config.max_check_cpu_s")
    assert runs.description.startswith("must be at least 12 for 2 checks, got 11: each is run twice on the original")
    assert cpu_s.description.startswith("must be at least 360 for 2 checks, got 359: each is run twice")


@pytest.mark.parametrize(
    "told",
    [
        {"report": CriticReport(issues=[FINDING])},
        {"report": CriticReport(test_outcomes=[SuiteOutcome(suite_name="unit", is_passed=False)])},
        {"config": {"allow_unreproduced": True}},
    ],
)
def test_static_analysis_alone_is_a_choice(told: Any) -> None:
    """Seed 004: its first input is a snippet with a CriticReport, and no check."""
    assert not find(replace(GOOD, checks=(), **told))
