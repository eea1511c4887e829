"""Decisions at the start of a repair, as JSON in its plan; and digests of its events, to compare them."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from reasond_server.repair.service.parameters import describe_parameters, read_parameters
from reasond_server.runs.plan import build_foreign_plan_error
from reasond_server.types import Budget, build_row
from reasond_server.types.repairs import (
    Check,
    CheckRole,
    CriticReport,
    Finding,
    RepairGoal,
    RepairTask,
    ResultFormat,
    Severity,
    SuiteOutcome,
)
from reasond_server.types.values import value

if TYPE_CHECKING:
    from reasond_server.repair.search.repair_policy import RepairParameters
    from reasond_server.types import Event, Json


@value
class RepairAssignment:
    """A repair as it was decided when it was started; the files of `task` are in its snapshot."""

    task: RepairTask
    parameters: RepairParameters


def digest_event(event: Event) -> bytes:
    """Return a digest of what an event says; the time that it took differs when it is repeated."""
    row = _as_json(event)
    text = json.dumps({type(event).__name__: {**row, "elapsed_s": 0}}, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _as_json(what: Any) -> Json:  # noqa: ANN401 - any value of the domain
    """Return a value as JSON."""
    row: Json = json.loads(json.dumps(build_row(what), default=_plain))
    return row


def _plain(found: object) -> object:
    return dict(found) if hasattr(found, "keys") else str(found)  # type: ignore[call-overload]  # a mapping has keys


def describe_assignment(assignment: RepairAssignment) -> Json:
    """Return an assignment as JSON."""
    return {"repair": _as_json(assignment.task), "parameters": describe_parameters(assignment.parameters)}


def read_assignment(row: Any) -> RepairAssignment:  # noqa: ANN401 - JSON of any version
    """Return the assignment that `describe_assignment` described.

    Raises:
        PlanError: another version of the server wrote it.
    """
    try:
        task = row["repair"]
        report = task["report"]
        return RepairAssignment(
            task=RepairTask(
                **{
                    **task,
                    "goal": RepairGoal(task["goal"]),
                    "checks": tuple(_read_check(each) for each in task["checks"]),
                    "report": CriticReport(
                        issues=tuple(
                            Finding(**{**each, "severity": Severity(each["severity"])}) for each in report["issues"]
                        ),
                        test_outcomes=tuple(SuiteOutcome(**each) for each in report["test_outcomes"]),
                    ),
                    "files": (),
                    "editable": tuple(task["editable"]),
                    "budget": Budget(**task["budget"]),
                }
            ),
            parameters=read_parameters(row["parameters"]),
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        raise build_foreign_plan_error() from None


def _read_check(row: Json) -> Check:
    form = row["format"]
    return Check(
        **{
            **row,
            "role": CheckRole(row["role"]),
            "argv": tuple(row["argv"]),
            "format": None if form is None else ResultFormat(form),
        }
    )
