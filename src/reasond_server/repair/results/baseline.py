"""The checks on the original code: what fails there, what is flaky, and how long candidates may take. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from reasond_server.errors.base import show
from reasond_server.errors.repairs import CheckUnusableError, NotReproducedError
from reasond_server.repair.results.gate import counts, find_flaky
from reasond_server.repair.results.outcomes import Baseline, CheckOutcome
from reasond_server.types.repairs import Check, CheckRole, CheckStatus, TestOutcome
from reasond_server.types.values import value

_NOT_EXECUTABLE: Final = (126, 127)
_FIRST_SIGNAL: Final = 128
_MAX_LAST_LINES: Final = 8
_MAX_LAST_CHARACTERS: Final = 800
_MAX_NAMED: Final = 10
_UNCHECKED: Final = (
    "No check was sent, so nothing was run: candidates were judged by static analysis alone. Let a person review the "
    "patch, or send a check."
)


@value
class CheckRuns:
    """The runs of a check on the original; `others` are made where its two runs differ and nothing else fails."""

    check: Check
    first: CheckOutcome
    second: CheckOutcome
    others: Sequence[CheckOutcome] = ()


def conclude_baseline(
    runs: Sequence[CheckRuns], *, timeouts_s: Mapping[str, float], allow_unreproduced: bool = False
) -> Baseline:
    """Return the baseline that follows from two runs of every check.

    Raises:
        CheckUnusableError: a check cannot be run, or its result cannot be read, in both runs.
        NotReproducedError: no check of the role REPRODUCE fails, and `allow_unreproduced` is false.
    """
    outcomes: dict[str, CheckOutcome] = {}
    flaky: list[str] = []
    repeats = {one.check.name: len(one.others) + 2 for one in runs if one.others}
    for one in runs:
        first, second = _find_obstacle(one.first), _find_obstacle(one.second)
        if first and second:
            raise _refuse(one, second)
        if one.others:
            outcomes[one.check.name] = min((one.first, one.second, *one.others), key=_rank)
            continue
        outcomes[one.check.name] = _combine(one)
        flaky.extend(_find_differences(one, has_obstacle=bool(first or second)))
    baseline = Baseline(outcomes=outcomes, flaky=frozenset(flaky), timeouts_s=timeouts_s, repeats=repeats)
    failing = [outcome.name for outcome in outcomes.values() if _is_failing(outcome, baseline)]
    is_reproduced = any(outcomes[name].role is CheckRole.REPRODUCE for name in failing)
    if not is_reproduced and not allow_unreproduced and baseline.is_visible:
        raise NotReproducedError(
            f"No check of the role REPRODUCE fails on the original code; these were run twice: {_name(list(outcomes))}"
            + (f". Flaky, and left out: {_name(flaky)}" if flaky else ""),
            remedy="Send a check that fails on this code each time, or set allow_unreproduced.",
        )
    baseline = replace(baseline, is_reproduced=is_reproduced)
    return replace(baseline, warnings=tuple(_warn(baseline, flaky)))


def needs_more_runs(runs: Sequence[CheckRuns]) -> Sequence[CheckRuns]:
    """Return the checks of the role REPRODUCE whose two runs differ, if none fails in both: they decide then."""
    checks = [one for one in runs if one.check.role is CheckRole.REPRODUCE]
    if any(_find_obstacle(one.first) or _find_obstacle(one.second) for one in checks):
        return ()
    differing = [one for one in checks if _find_differences(one, has_obstacle=False)]
    stable = [
        _is_failing(_combine(one), Baseline(outcomes={}, flaky=frozenset(_find_differences(one, has_obstacle=False))))
        for one in checks
    ]
    return () if any(stable) else differing


def _rank(outcome: CheckOutcome) -> tuple[bool, int]:
    """Return the sort key of runs that tells most first: the one with most failures."""
    failed = sum(found is TestOutcome.FAILED for found in outcome.tests.values())
    return (outcome.status is CheckStatus.PASSED, -failed)


def _find_obstacle(outcome: CheckOutcome) -> str:
    """Return why a run on the original says nothing about the code; empty if it does."""
    if outcome.status is CheckStatus.UNKNOWN:
        return outcome.reason
    if outcome.status is CheckStatus.TIMED_OUT or outcome.tests:
        return ""
    if outcome.exit_code in _NOT_EXECUTABLE:
        return "its command is not there or cannot be executed"
    # A process that a signal ended crashed, which may be the very fault.
    return outcome.reason if outcome.exit_code < _FIRST_SIGNAL else ""


def _refuse(one: CheckRuns, obstacle: str) -> CheckUnusableError:
    outcome = one.second
    lines = outcome.evidence.splitlines()[-_MAX_LAST_LINES:]
    last = "\n".join(lines)[-_MAX_LAST_CHARACTERS:]
    printed = f". It printed last:\n{last}" if last else ". It printed nothing"
    command = show(" ".join(one.check.argv))
    return CheckUnusableError(
        f"The check {show(one.check.name)} says nothing of the original code: {obstacle}. Its command was {command}, "
        f"its exit code {outcome.exit_code}{printed}",
        remedy="Mend the command, or the format that it reports in, so that it runs in the environment that was named.",
        metadata={"check": one.check.name, "exit_code": str(outcome.exit_code)},
    )


def _combine(one: CheckRuns) -> CheckOutcome:
    """Return the first run that tells something, with the longer time and without fingerprints that differed."""
    first, second = one.first, one.second
    if _find_obstacle(first):
        first, second = second, first
    stable = {test_id: mark for test_id, mark in first.fingerprints.items() if second.fingerprints.get(test_id) == mark}
    elapsed_s = max(first.elapsed_s, second.elapsed_s)
    return replace(first, fingerprints=stable, elapsed_s=elapsed_s, cpu_s=max(first.cpu_s, second.cpu_s))


def _find_differences(one: CheckRuns, *, has_obstacle: bool) -> Sequence[str]:
    """Return what differed in the two runs: `check::test id`, or the name of the check where all of it did."""
    name, first, second = one.check.name, one.first, one.second
    has_no_tests = not first.tests or not second.tests
    if has_obstacle or (has_no_tests and (first.status is not second.status or first.tests != second.tests)):
        return [name]
    ids = dict.fromkeys((*first.tests, *second.tests))
    return [f"{name}::{test_id}" for test_id in ids if first.tests.get(test_id) is not second.tests.get(test_id)]


def _is_failing(outcome: CheckOutcome, baseline: Baseline) -> bool:
    """Return whether a check fails on the original in both runs, apart from its flaky tests."""
    if outcome.name in baseline.flaky or outcome.status is CheckStatus.PASSED:
        return False
    failed = {test_id for test_id, found in outcome.tests.items() if found is TestOutcome.FAILED}
    return not failed or bool(failed - find_flaky(outcome, baseline))


def _warn(baseline: Baseline, flaky: Sequence[str]) -> Sequence[str]:
    warnings = []
    if flaky:
        warnings.append(f"Flaky on the original code, so they do not count: {_name(flaky)}.")
    if baseline.repeats:
        often = _name([f"{name} ({count} runs)" for name, count in baseline.repeats.items()])
        warnings.append(
            f"What fails on the original does not fail each time, so candidates run it more often: {often}."
        )
    silent = [name for name in baseline.outcomes if name not in baseline.flaky and not counts(name, baseline)]
    if silent:
        warnings.append(f"These checks pass nothing on the original code, so they hold nothing: {_name(silent)}.")
    if not baseline.is_visible:
        warnings.append(_UNCHECKED)
    elif not baseline.is_reproduced:
        warnings.append("No check of the role REPRODUCE fails on the original code, so none shows a repair.")
    return warnings


def _name(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return (", ".join(show(name) for name in names[:_MAX_NAMED]) or "none") + more
