"""Decisions at the start of a repair: its parameters, as JSON in its plan; and digests by which events are compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, replace
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from reasond_server.base.violations import list_violations, suggest_nearest
from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidConfigError
from reasond_server.repair.search.repair_policy import RepairParameters, RepairPolicy
from reasond_server.runs.plan import PlanError, build_foreign_plan_error, read_work
from reasond_server.types import Budget, Event, Json, build_row, write_value
from reasond_server.types.repairs import (
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
from reasond_server.types.values import value

_SIMILARITY: Final = "deduplication_similarity"
_NO_SIMILARITY: Final = (
    "is refused: a right fix nearly always is more than 95 % similar to the fault, so it would be deleted; equal code "
    "is recognised by its syntax tree"
)
_NAMES: Final = tuple(each.name for each in fields(RepairParameters))
_PARAMETERS: Final = TypeAdapter(RepairParameters)


def resolve_parameters(asked: Mapping[str, object], policy: RepairPolicy) -> RepairParameters:
    """Return the parameters of a request that asks for `asked`, by name.

    Raises:
        InvalidConfigError: with one violation for each parameter that is unknown, of the wrong type, out of its bounds
            or over the operator's ceiling.
    """
    known = {name: value for name, value in asked.items() if name in _NAMES}
    problems = [each for name in asked if name not in known for each in _find_in_name(name)]
    problems += _find_over_ceilings(known, policy)
    try:
        parameters = _PARAMETERS.validate_python(asdict(policy.defaults) | known)
    except ValidationError as error:
        problems += list_violations(error)
        raise _refuse(problems, asked) from None
    if problems:
        raise _refuse(problems, asked)
    return parameters


def describe_parameters(parameters: RepairParameters) -> Json:
    """Return the parameters as JSON; those without a value are left out."""
    return {name: value for name, value in asdict(parameters).items() if value is not None}


def read_parameters(row: Json) -> RepairParameters:
    """Return the parameters that `describe_parameters` described. Raises KeyError, TypeError or ValueError."""
    return RepairParameters(**{**row, "search": RepairSearch(row["search"])})


def _refuse(problems: list[Violation], asked: Mapping[str, object]) -> InvalidConfigError:
    """Return the error that names the last problem of each parameter, in the order of the request."""
    found = {each.field: Violation(field=f"config.{each.field}", description=each.description) for each in problems}
    return InvalidConfigError.of(*(found[name] for name in asked if name in found))


def _find_in_name(name: str) -> Iterator[Violation]:
    if name == _SIMILARITY:
        yield Violation(field=name, description=_NO_SIMILARITY)
    else:
        text = f"is no parameter of a repair{suggest_nearest(name, _NAMES)}"
        yield Violation(field=name, description=text)


def _find_over_ceilings(asked: Mapping[str, object], policy: RepairPolicy) -> Iterator[Violation]:
    for name, ceiling in policy.ceilings.items():
        value = asked.get(name)
        if isinstance(value, int | float) and value > ceiling:
            text = f"must be at most {ceiling:g}, which the operator allows, got {show(value)}"
            yield Violation(field=name, description=text)


@value
class RepairAssignment:
    """A repair as it was decided when it was started; the files of `task` are in its snapshot."""

    task: RepairTask
    parameters: RepairParameters


def digest_event(event: Event) -> bytes:
    """Return a digest of what an event says; the time that it took differs when it is repeated."""
    row = _to_json(event)
    text = json.dumps({type(event).__name__: {**row, "elapsed_s": 0}}, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _to_json(what: Any) -> Json:  # noqa: ANN401 - any value of the domain
    """Return a value as JSON."""
    row: Json = json.loads(json.dumps(build_row(what), default=write_value))
    return row


def describe_assignment(assignment: RepairAssignment) -> Json:
    """Return an assignment as JSON."""
    return {"repair": _to_json(assignment.task), "parameters": describe_parameters(assignment.parameters)}


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


def read_planned_repair(plan: str) -> RepairTask | None:
    """Return what was asked for, with its parameters; None if the plan is not kept, or another version wrote it."""
    try:
        assignment = read_assignment(read_work(plan))
    except PlanError:
        return None
    return replace(assignment.task, config=describe_parameters(assignment.parameters))


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
