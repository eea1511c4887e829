"""Repairs as a kind of work: what another process reads of them, and how a repair ends that stopped before its end."""

from __future__ import annotations

import json

import pytest

from reasond_server.errors.executions import NotResumableError
from reasond_server.repair.search.repair_policy import RepairParameters
from reasond_server.repair.service.assignments import (
    RepairAssignment,
    describe_assignment,
    digest_event,
    read_assignment,
)
from reasond_server.types import NOTHING, Budget
from reasond_server.types.repairs import (
    CandidateStatus,
    CandidateStep,
    Check,
    CheckRole,
    CriticReport,
    Finding,
    RepairGoal,
    RepairSearch,
    RepairTask,
    ResultFormat,
    Severity,
    SuiteOutcome,
)

ASSIGNMENT = RepairAssignment(
    task=RepairTask(
        description="mend it",
        goal=RepairGoal.FIX,
        snapshot_id="abc",
        environment="python",
        checks=(
            Check(name="a", role=CheckRole.REPRODUCE, argv=("pytest", "-q"), format=ResultFormat.JUNIT, timeout_s=3.5),
            Check(name="b", role=CheckRole.HELD_OUT, command="unit"),
        ),
        report=CriticReport(
            issues=(Finding(rule_id="F821", severity=Severity.HIGH, path="a.py", line=3, message="undefined"),),
            test_outcomes=(SuiteOutcome(suite_name="all", is_passed=False, coverage=12.5),),
        ),
        editable=("tests/*",),
        budget=Budget(max_total_tokens=1000, max_elapsed_s=1.5),
    ),
    parameters=RepairParameters(search=RepairSearch.LATS, seed=1),
)


def test_an_assignment_is_read_as_it_was_described() -> None:
    assert read_assignment(json.loads(json.dumps(describe_assignment(ASSIGNMENT)))) == ASSIGNMENT


@pytest.mark.parametrize("key", ["repair", "parameters"])
def test_an_assignment_of_another_version_is_refused(key: str) -> None:
    row = describe_assignment(ASSIGNMENT)
    for other in ({}, {**row, key: None}, {**row, key: {**row[key], "unknown": 1}}):
        with pytest.raises(NotResumableError):
            read_assignment(other)


def make_candidate(*, elapsed_s: float = 1.0, problem: str = "") -> CandidateStep:
    return CandidateStep(
        candidate_id="cand-1",
        parent_id="",
        reflection_depth=1,
        status=CandidateStatus.PROPOSED,
        usage=NOTHING,
        elapsed_s=elapsed_s,
        problem=problem,
    )


def test_a_repeated_event_is_recognised_whatever_time_it_took() -> None:
    assert digest_event(make_candidate()) == digest_event(make_candidate(elapsed_s=2.0))
    assert digest_event(make_candidate()) != digest_event(make_candidate(problem="x"))
