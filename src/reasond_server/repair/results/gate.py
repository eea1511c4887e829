"""The gate: which candidates are right, and how good the others are, from what checks and critics found. Pure.

In order: edits apply; they parse; the checks of the role REPRODUCE pass; those of the role REGRESSION pass what they
passed on the original, and run every test of it; no new finding is HIGH. The score only ranks what does not pass; the
smallest diff is chosen by who compares solutions.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal

from reasond_server.repair.results.outcomes import Baseline, CheckOutcome, Critique
from reasond_server.repair.results.reported_tests import AS_A_WHOLE, MAX_EVIDENCE_BYTES, escape_text, shorten
from reasond_server.types.repairs import CandidateVerdict, CheckReport, CheckRole, CheckStatus, Severity, TestOutcome

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from reasond_server.types.repairs import Finding


TAMPERING: Final = "tampering"
"""Name of the critic that looks for what misleads checks; its rules begin with it."""
SignRule = Literal[
    "exit",
    "runner",
    "introspection",
    "dynamic_code",
    "arguments",
    "patching",
    "comparison",
    "test_files",
    "known_cases",
    "standard_module",
]
"""The rules of signs; that of a finding has `tampering.` before it."""
_MAX_TESTS: Final = 40
_MAX_FINDINGS: Final = 20
_MAX_LIST_BYTES: Final = 2 * 1024
_LEAST_TRACE_BYTES: Final = 64
_WORST_FIRST: Final = tuple(Severity)
_REMARKS: Final = {TestOutcome.MISSING: " (did not run)", TestOutcome.SKIPPED: " (was skipped)"}


def write_evidence(outcomes: Iterable[CheckOutcome], findings: Sequence[Finding]) -> str:
    """Return the evidence for the model, at most MAX_EVIDENCE_BYTES; empty if there is none.

    Held-out checks and those that could not be run are left out.
    """
    relevant = [
        outcome
        for outcome in outcomes
        if outcome.role is not CheckRole.HELD_OUT and outcome.status in {CheckStatus.FAILED, CheckStatus.TIMED_OUT}
    ]
    lines = [line for outcome in relevant for line in _list_failures(outcome)]
    listed = "\n".join(("Failed:", *lines)) if lines else ""
    found = "\n".join(("New findings:", *_list_findings(findings))) if findings else ""
    parts = [shorten(listed, _MAX_LIST_BYTES)]
    room = MAX_EVIDENCE_BYTES - len(parts[0].encode()) - min(len(found.encode()), _MAX_LIST_BYTES) - 2 * len("\n\n")
    traced = [outcome for outcome in relevant if outcome.evidence]
    for index, outcome in enumerate(traced):
        share = room // (len(traced) - index)
        title = f"What the check {outcome.name} printed:\n"
        if share < len(title) + _LEAST_TRACE_BYTES:
            break
        part = title + shorten(outcome.evidence, share - len(title) - len("\n\n"))
        parts.append(part)
        room -= len(part.encode()) + len("\n\n")
    parts.append(shorten(found, _MAX_LIST_BYTES))
    return shorten("\n\n".join(part for part in parts if part), MAX_EVIDENCE_BYTES)


def _list_failures(outcome: CheckOutcome) -> Iterator[str]:
    failed = [(test_id, found) for test_id, found in outcome.tests.items() if found is not TestOutcome.PASSED]
    for test_id, found in failed[:_MAX_TESTS]:
        yield f"- {outcome.name}: {test_id}{_REMARKS.get(found, '')}"
    if len(failed) > _MAX_TESTS:
        yield f"- {outcome.name}: {len(failed) - _MAX_TESTS} more"
    if outcome.reason:
        yield f"- {outcome.name}: {outcome.reason}"
    elif not failed:
        yield f"- {outcome.name}: exit code {outcome.exit_code}"


def _list_findings(findings: Sequence[Finding]) -> Iterator[str]:
    worst = sorted(findings, key=lambda one: _WORST_FIRST.index(one.severity))
    for one in worst[:_MAX_FINDINGS]:
        yield f"- {escape_text(one.path)}:{one.line}: {one.rule_id} {escape_text(one.message)}"
    if len(findings) > _MAX_FINDINGS:
        yield f"- {len(findings) - _MAX_FINDINGS} more"


MOST_BEFORE_THE_GATE: Final = 84.0
"""Highest score of a candidate that does not pass the gate; a threshold of 85 can never accept it."""
REVIEW_WARNING: Final = (
    "Tests and static analysis disagreed in more than 2 rounds: candidates that passed every test had new findings. "
    "Let a person review the patch."
)

_TESTS_SHARE: Final = 0.75
_FINDINGS_SHARE: Final = 0.25
_PENALTIES: Final = {Severity.HIGH: 25, Severity.MEDIUM: 10, Severity.LOW: 3}
_MAX_FAILED_IDS: Final = 100
_MAX_DISAGREEMENTS: Final = 2
_WITHOUT_RESULT: Final = (CheckStatus.TIMED_OUT, CheckStatus.UNKNOWN)


def counts(name: str, baseline: Baseline) -> bool:
    """Return whether a check can say something of candidates.

    One cannot that was flaky as a whole, or whose tests all were; nor can a check of the role REGRESSION that passed
    nothing on the original.
    """
    before = baseline.outcomes[name]
    if name in baseline.flaky:
        return False
    if before.role is not CheckRole.REGRESSION:
        return not before.tests or len(find_flaky(before, baseline)) < len(before.tests)
    if not before.tests:
        return before.status is CheckStatus.PASSED
    return TestOutcome.PASSED in _find_required(before, before, find_flaky(before, baseline)).values()


def find_flaky(outcome: CheckOutcome, baseline: Baseline) -> frozenset[str]:
    """Return the ids of the tests of `outcome` that are flaky."""
    return frozenset(test_id for test_id in outcome.tests if f"{outcome.name}::{test_id}" in baseline.flaky)


def compare_with_baseline(outcome: CheckOutcome, baseline: Baseline) -> CheckOutcome:
    """Return `outcome` of a candidate with the tests alone that it has to pass; absent ones are MISSING.

    It is PASSED if all of them passed and nothing else speaks against it. The role REGRESSION asks for what passed on
    the original, the others ask for every test. Flaky tests are left out.
    """
    before = baseline.outcomes[outcome.name]
    if outcome.status in _WITHOUT_RESULT:
        return outcome
    flaky = find_flaky(before, baseline) | find_flaky(outcome, baseline)
    required = _find_required(outcome, before, flaky)
    reason = outcome.reason or _find_contradiction(outcome, before)
    is_without_tests = not outcome.tests and not before.tests
    is_held = all(found is TestOutcome.PASSED for found in required.values()) and not reason
    is_passed = outcome.status is CheckStatus.PASSED if is_without_tests else is_held and bool(required)
    return replace(
        outcome, tests=required, reason=reason, status=CheckStatus.PASSED if is_passed else CheckStatus.FAILED
    )


def report_candidate(outcome: CheckOutcome) -> CheckReport:
    """Return an outcome of `compare_with_baseline` for callers."""
    failed = [test_id for test_id, found in outcome.tests.items() if found is not TestOutcome.PASSED]
    return CheckReport(
        name=outcome.name,
        role=outcome.role,
        status=outcome.status,
        total=len(outcome.tests),
        passed=len(outcome.tests) - len(failed),
        failed=tuple(failed[:_MAX_FAILED_IDS]),
        evidence=outcome.evidence,
        exit_code=outcome.exit_code,
        elapsed_s=outcome.elapsed_s,
        cpu_s=outcome.cpu_s,
    )


def report_baseline(baseline: Baseline) -> Sequence[CheckReport]:
    """Return how the checks ended on the original, for callers; skipped and flaky tests are not counted."""
    return tuple(report_candidate(_keep_counted(outcome, baseline)) for outcome in baseline.outcomes.values())


def list_faults(baseline: Baseline) -> Sequence[CheckOutcome]:
    """Return how the checks of the role REPRODUCE ended on the original, which is what the model is to mend.

    What fails in the role REGRESSION is not asked for, and of held-out checks nobody tells the model.
    """
    return tuple(
        _keep_counted(outcome, baseline)
        for outcome in baseline.outcomes.values()
        if outcome.role is CheckRole.REPRODUCE and counts(outcome.name, baseline)
    )


def _keep_counted(outcome: CheckOutcome, baseline: Baseline) -> CheckOutcome:
    """Return an outcome on the original without its skipped and flaky tests."""
    flaky = find_flaky(outcome, baseline)
    counted = {
        test_id: found
        for test_id, found in outcome.tests.items()
        if test_id not in flaky and found is not TestOutcome.SKIPPED
    }
    return replace(outcome, tests=counted)


def judge_candidate(outcomes: Iterable[CheckOutcome], findings: Sequence[Finding], baseline: Baseline) -> Critique:
    """Return what `outcomes`, each from `compare_with_baseline`, and the new `findings` say of a candidate.

    Outcomes of held-out checks are left out: nothing that the search learns may come from them.
    """
    visible = [outcome for outcome in outcomes if outcome.role is not CheckRole.HELD_OUT]
    verdict = _decide([outcome.status for outcome in visible], findings, is_checked=baseline.is_visible)
    percent = measure_passes(visible, baseline) if baseline.is_visible else 100.0
    return Critique(
        verdict=verdict,
        score=compute_score(percent, findings, has_passed=verdict is CandidateVerdict.PASSED),
        is_solution=verdict is CandidateVerdict.PASSED,
        pass_percent=percent,
        signature=_sign(visible, baseline),
        evidence=write_evidence(visible, findings),
        reports=tuple(report_candidate(outcome) for outcome in visible),
        repeats=sum(outcome.runs - 1 for outcome in visible),
        findings=tuple(findings),
    )


def rate_findings(findings: Iterable[Finding]) -> float:
    """Return what findings leave of 100."""
    return max(0.0, 100.0 - sum(_PENALTIES[finding.severity] for finding in findings))


def compute_score(pass_percent: float, findings: Iterable[Finding], *, has_passed: bool) -> float:
    """Return the score: three quarters are tests, one quarter is what new findings leave of 100."""
    score = _TESTS_SHARE * pass_percent + _FINDINGS_SHARE * rate_findings(findings)
    return score if has_passed else min(score, MOST_BEFORE_THE_GATE)


def list_signs(findings: Iterable[Finding]) -> Sequence[Finding]:
    """Return the findings that are lines which could mislead checks."""
    return [one for one in findings if one.rule_id.startswith(f"{TAMPERING}.")]


def apply_rulings(findings: Sequence[Finding], rulings: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings as an operator wants MEDIUM signs: "review" as they are, "refuse" as HIGH, "allow" not at all.

    `rulings` are by rule, or by "all" for those that it does not name.
    """
    signs = {id(one) for one in list_signs(findings) if one.severity is Severity.MEDIUM}
    for one in findings:
        ruling = rulings.get(one.rule_id.rpartition(".")[2], rulings.get("all")) if id(one) in signs else None
        if ruling != "allow":
            yield replace(one, severity=Severity.HIGH) if ruling == "refuse" else one


def measure_passes(outcomes: Iterable[CheckOutcome], baseline: Baseline) -> float:
    """Return the share of required tests that passed in percent; a check without single tests counts as one.

    A check without a result counts as it ended on the original, since slow is not wrong. Where the exit code
    contradicts the report, none of its tests counts as passed.
    """
    passed = total = 0
    for outcome in outcomes:
        ended = outcome
        if outcome.status in _WITHOUT_RESULT:
            ended = compare_with_baseline(baseline.outcomes[outcome.name], baseline)
        total += max(len(ended.tests), 1)
        if ended.status is CheckStatus.PASSED:
            passed += max(len(ended.tests), 1)
        elif not ended.reason:
            passed += sum(found is TestOutcome.PASSED for found in ended.tests.values())
    return 100.0 * passed / total if total else 0.0


def is_disputed(critique: Critique) -> bool:
    """Return whether every check passed and only new findings keep the candidate from the gate."""
    has_passed = bool(critique.reports) and all(report.status is CheckStatus.PASSED for report in critique.reports)
    return has_passed and bool(critique.findings) and not critique.is_solution


def needs_review(rounds: Iterable[Iterable[Critique]]) -> bool:
    """Return whether tests and findings disagreed in more than 2 rounds; then REVIEW_WARNING belongs to the result."""
    return sum(any(is_disputed(critique) for critique in one) for one in rounds) > _MAX_DISAGREEMENTS


def _decide(statuses: Collection[CheckStatus], findings: Iterable[Finding], *, is_checked: bool) -> CandidateVerdict:
    if CheckStatus.FAILED in statuses or any(finding.severity is Severity.HIGH for finding in findings):
        return CandidateVerdict.FAILED
    if CheckStatus.TIMED_OUT in statuses:
        return CandidateVerdict.TIMED_OUT
    if (is_checked and not statuses) or CheckStatus.UNKNOWN in statuses:
        return CandidateVerdict.UNKNOWN
    return CandidateVerdict.PASSED


def _find_required(outcome: CheckOutcome, before: CheckOutcome, flaky: Collection[str]) -> Mapping[str, TestOutcome]:
    """Return the outcomes of the tests that `outcome` has to pass, those of the original first."""
    is_regression = before.role is CheckRole.REGRESSION
    broken = {test_id for test_id, found in before.tests.items() if _is_broken_whole(test_id, found)}
    passed = [test_id for test_id, found in outcome.tests.items() if found is TestOutcome.PASSED]
    repaired = {whole for test_id in passed for whole in _list_wholes(test_id) if whole in broken} if broken else set()
    required: dict[str, TestOutcome] = {}
    for test_id, was in before.tests.items():
        found = outcome.tests.get(test_id, TestOutcome.MISSING)
        if test_id in flaky:
            continue
        if was is TestOutcome.SKIPPED:
            if found in {TestOutcome.FAILED, TestOutcome.PASSED} and not is_regression:
                required[test_id] = found
        elif is_regression and was is not TestOutcome.PASSED:
            continue
        elif test_id in broken:
            required[test_id] = TestOutcome.PASSED if test_id in repaired else TestOutcome.MISSING
        else:
            required[test_id] = found
    for test_id, found in outcome.tests.items():
        is_known = test_id in flaky or (before.tests.get(test_id, TestOutcome.SKIPPED) is not TestOutcome.SKIPPED)
        if is_known or found is TestOutcome.SKIPPED or test_id in required:
            continue
        # What could not even be loaded on the original is no regression; anything else that fails newly is one.
        if not is_regression or (found is TestOutcome.FAILED and broken.isdisjoint(_list_wholes(test_id))):
            required[test_id] = found
    return required


def _is_broken_whole(test_id: str, found: TestOutcome) -> bool:
    return test_id.endswith(AS_A_WHOLE) and found is TestOutcome.FAILED


def _list_wholes(test_id: str) -> Iterator[str]:
    """Yield the ids of the files and packages to which a test may belong."""
    for place, char in enumerate(test_id):
        if char in "./:":
            yield test_id[:place] + AS_A_WHOLE


def _find_contradiction(outcome: CheckOutcome, before: CheckOutcome) -> str:
    """Return what is wrong with an exit code that no failed test explains; empty if nothing is."""
    if not outcome.tests or not outcome.exit_code or TestOutcome.FAILED in outcome.tests.values():
        return ""
    is_as_before = outcome.exit_code == before.exit_code and TestOutcome.FAILED not in before.tests.values()
    if before.role is CheckRole.REGRESSION and is_as_before:
        return ""
    return f"it ended with exit code {outcome.exit_code} although its report names no failed test"


def _sign(outcomes: Sequence[CheckOutcome], baseline: Baseline) -> str:
    """Return what is equal for candidates that behave alike; empty if nothing ran, or nobody knows how it ended."""
    if not outcomes or any(outcome.status is CheckStatus.UNKNOWN for outcome in outcomes):
        return ""
    rows = []
    for outcome in sorted(outcomes, key=lambda one: one.name):
        before = baseline.outcomes[outcome.name]
        # A failure that looked different in two runs on the original tells nothing by its text.
        unstable = {test_id for test_id in before.tests if test_id not in before.fingerprints}
        unstable -= {test_id for test_id, found in before.tests.items() if found is not TestOutcome.FAILED}
        tests = [
            (test_id, found, "" if test_id in unstable else outcome.fingerprints.get(test_id, ""))
            for test_id, found in sorted(outcome.tests.items())
        ]
        whole = "" if outcome.tests else outcome.fingerprints.get("", "")
        rows.append((outcome.name, outcome.status, outcome.reason, whole, tests))
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:32]
