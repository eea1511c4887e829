"""Checks the requests of repairs, once for all transports; the comments of repairs.proto state the limits.

Nothing is stored before these checks. They name the fields of a request without what holds it: `checks[0].argv`.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from reasond_server.base.violations import suggest_nearest
from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidConfigError, InvalidRequestError
from reasond_server.repair.results.outcomes import MOST_RUNS
from reasond_server.requests.task_checks import find_in_budget, find_in_id, find_in_text, find_in_words
from reasond_server.types.repairs import CheckRole, RepairGoal

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from reasond_server.repair.search.repair_policy import RepairParameters, RepairPolicy
    from reasond_server.types.repairs import Check, CriticReport, RepairTask

MAX_CHECKS: Final = 20
MAX_ARGUMENTS: Final = 64
MAX_ARGUMENT_CHARACTERS: Final = 4_096
MAX_PATTERNS: Final = 100
MAX_PATTERN_CHARACTERS: Final = 1_024
MAX_ISSUES: Final = 100
MAX_ISSUE_CHARACTERS: Final = 2_000
MAX_TIMEOUT_S: Final = 3_600.0
_LEAST_RUNS: Final = 3
"""How often each check is run at least: twice on the original code, and once on a candidate."""
_CHECK_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}\Z")


def check_repair(
    task: RepairTask,
    *,
    policy: RepairPolicy,
    environments: Collection[str],
    may_use_commands: bool,
    request_id: str = "",
    in_files: Sequence[Violation] = (),
) -> None:
    """Refuse a task that exceeds the limits, or names what this server does not have.

    `environments` are the names of those of the server; `may_use_commands` says whether checks may bring their own
    commands; `in_files` is what was found in the files.

    Raises:
        InvalidRequestError: with one violation for each problem.
    """
    found = [
        *_in_description(task),
        *_in_code(task),
        *in_files,
        *_in_environment(task, environments),
        *_in_checks(task, policy, may_use_commands=may_use_commands),
        *_in_report(task.report),
        *_in_patterns(task.editable),
        *find_in_budget(task.budget),
        *find_in_id("request_id", request_id),
    ]
    if found:
        raise InvalidRequestError.of(*found)


def require_covered_checks(task: RepairTask, parameters: RepairParameters, *, most_cpu_s: float) -> None:
    """Refuse bounds that do not cover the checks of the original code and of one candidate.

    `most_cpu_s` is the most processor time in seconds that one check may take.

    Raises:
        InvalidConfigError: with one violation for each bound.
    """
    count = len(task.checks)
    runs, cpu_s = _LEAST_RUNS * MOST_RUNS * count, _LEAST_RUNS * most_cpu_s * count
    why = "each is run twice on the original code and once on a candidate"
    found = []
    if parameters.max_checks < runs:
        text = f"must be at least {runs} for {count} checks, got {parameters.max_checks}: {why}, and once more where "
        found.append(Violation(field="config.max_checks", description=text + "a run says nothing"))
    if parameters.max_check_cpu_s < cpu_s:
        text = f"must be at least {cpu_s:g} for {count} checks, got {parameters.max_check_cpu_s:g}: {why}, and may "
        found.append(Violation(field="config.max_check_cpu_s", description=f"{text}take {most_cpu_s:g} s each time"))
    if found:
        raise InvalidConfigError.of(*found)


def _in_description(task: RepairTask) -> Iterator[Violation]:
    if task.goal is RepairGoal.PLAN or task.description:
        yield from find_in_words("description", task.description)


def _in_code(task: RepairTask) -> Iterator[Violation]:
    if task.files and task.snapshot_id:
        yield Violation(field="snapshot_id", description="must be empty where files are sent")
    elif task.goal is RepairGoal.FIX and not task.files and not task.snapshot_id:
        yield Violation(field="files", description="is required: send the files, or the id of a snapshot")
    yield from find_in_id("snapshot_id", task.snapshot_id)


def _in_environment(task: RepairTask, environments: Collection[str]) -> Iterator[Violation]:
    if task.goal is RepairGoal.PLAN and not task.environment:
        return
    if not task.environment:
        known = ", ".join(sorted(environments)) or "none"
        yield Violation(field="environment", description=f"is required; environments of this server: {known}")
    elif task.environment not in environments:
        hint = suggest_nearest(task.environment, environments)
        text = f"is no environment of this server, got {show(task.environment)}{hint}"
        yield Violation(field="environment", description=text)


def _in_checks(task: RepairTask, policy: RepairPolicy, *, may_use_commands: bool) -> Iterator[Violation]:
    checks = task.checks
    if task.goal is RepairGoal.PLAN:
        if checks:
            yield Violation(field="checks", description="must be empty for a plan, of which nothing is run")
        return
    if len(checks) > MAX_CHECKS:
        yield Violation(field="checks", description=f"must have at most {MAX_CHECKS} entries, got {len(checks)}")
        return
    if not any(check.role is not CheckRole.HELD_OUT for check in checks):
        text = "must have at least one entry of the role REPRODUCE or REGRESSION, which says when the code is right"
        yield Violation(field="checks", description=text)
    counts = Counter(check.name for check in checks)
    for index, check in enumerate(checks):
        field = f"checks[{index}]"
        if not _CHECK_NAME.match(check.name):
            text = f"must begin with a small letter and have at most 64 of a-z, 0-9, _ and -, got {show(check.name)}"
            yield Violation(field=f"{field}.name", description=text)
        elif counts[check.name] > 1:
            text = f"{show(check.name)} is the name of {counts[check.name]} checks; rename all but one"
            yield Violation(field=f"{field}.name", description=text)
        yield from _in_command(field, check, policy, may_use_commands=may_use_commands)
        if not 0 <= check.timeout_s <= MAX_TIMEOUT_S:
            text = f"must be between 0 and {MAX_TIMEOUT_S:g} seconds, got {check.timeout_s:g}"
            yield Violation(field=f"{field}.timeout", description=text)


def _in_command(field: str, check: Check, policy: RepairPolicy, *, may_use_commands: bool) -> Iterator[Violation]:
    known = ", ".join(sorted(policy.commands)) or "none"
    if check.argv and check.command:
        yield Violation(field=f"{field}.command", description="must be empty where argv is sent")
    elif not check.argv and not check.command:
        yield Violation(field=f"{field}.argv", description=f"is required, or a command of this server ({known})")
    elif check.command and check.command not in policy.commands:
        hint = suggest_nearest(check.command, policy.commands)
        text = f"is no command of this server, got {show(check.command)}{hint}"
        yield Violation(field=f"{field}.command", description=text)
    elif check.argv and not may_use_commands:
        text = f"needs the permission repair:commands; without it name a command of this server ({known})"
        yield Violation(field=f"{field}.argv", description=text)
    elif len(check.argv) > MAX_ARGUMENTS:
        text = f"must have at most {MAX_ARGUMENTS} entries, got {len(check.argv)}"
        yield Violation(field=f"{field}.argv", description=text)
    for place, argument in enumerate(check.argv[:MAX_ARGUMENTS]):
        least = 0 if place else 1
        yield from find_in_text(f"{field}.argv[{place}]", argument, least=least, most=MAX_ARGUMENT_CHARACTERS)


def _in_report(report: CriticReport) -> Iterator[Violation]:
    for name, entries in (("issues", report.issues), ("test_outcomes", report.test_outcomes)):
        if len(entries) > MAX_ISSUES:
            text = f"must have at most {MAX_ISSUES} entries, got {len(entries)}; send the worst ones"
            yield Violation(field=f"report.{name}", description=text)
    for index, issue in enumerate(report.issues[:MAX_ISSUES]):
        field = f"report.issues[{index}]"
        for name, text in (("rule_id", issue.rule_id), ("path", issue.path), ("message", issue.message)):
            yield from find_in_text(f"{field}.{name}", text, most=MAX_ISSUE_CHARACTERS)
        if issue.line < 0:
            yield Violation(field=f"{field}.line", description=f"must be at least 0, got {issue.line}")
    for index, suite in enumerate(report.test_outcomes[:MAX_ISSUES]):
        field = f"report.test_outcomes[{index}]"
        yield from find_in_text(f"{field}.suite_name", suite.suite_name, most=MAX_ISSUE_CHARACTERS)
        if not 0 <= suite.coverage <= 100:  # noqa: PLR2004 - percent
            yield Violation(field=f"{field}.coverage", description=f"must be between 0 and 100, got {suite.coverage:g}")


def _in_patterns(patterns: Sequence[str]) -> Iterator[Violation]:
    if len(patterns) > MAX_PATTERNS:
        yield Violation(field="editable", description=f"must have at most {MAX_PATTERNS} entries, got {len(patterns)}")
    for index, pattern in enumerate(patterns[:MAX_PATTERNS]):
        yield from find_in_text(f"editable[{index}]", pattern, least=1, most=MAX_PATTERN_CHARACTERS)
