"""The evidence for the model: order, bounds, and what is never in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.repair.results.gate import write_evidence
from reasond_server.repair.results.outcomes import CheckOutcome
from reasond_server.repair.results.reported_tests import MAX_EVIDENCE_BYTES
from reasond_server.types.repairs import CheckRole, CheckStatus, Finding, Severity, TestOutcome

if TYPE_CHECKING:
    from collections.abc import Mapping


def fail_check(
    name: str,
    *,
    role: CheckRole = CheckRole.REPRODUCE,
    trace: str = "",
    more: Mapping[str, TestOutcome] | None = None,
    **named: TestOutcome,
) -> CheckOutcome:
    tests = {**named, **(more or {})}
    return CheckOutcome(
        name=name, role=role, status=CheckStatus.FAILED, tests=tests, evidence=trace or f"trace of {name}", exit_code=1
    )


def finding(severity: Severity, rule_id: str, path: str = "a.py") -> Finding:
    return Finding(rule_id=rule_id, severity=severity, path=path, line=3, message="bad\u202e thing")


def test_failing_tests_come_first_then_traces_then_findings_the_worst_first() -> None:
    text = write_evidence(
        [fail_check("one", a=TestOutcome.FAILED, b=TestOutcome.MISSING, c=TestOutcome.SKIPPED, d=TestOutcome.PASSED)],
        [finding(Severity.LOW, "E501"), finding(Severity.HIGH, "F821")],
    )
    assert text == (
        "Failed:\n- one: a\n- one: b (did not run)\n- one: c (was skipped)\n\n"
        "What the check one printed:\ntrace of one\n\n"
        "New findings:\n- a.py:3: F821 bad\\u202e thing\n- a.py:3: E501 bad\\u202e thing"
    )


def test_a_check_without_tests_shows_its_exit_code() -> None:
    assert write_evidence([fail_check("one")], ()).startswith("Failed:\n- one: exit code 1\n\n")


def test_held_out_checks_are_never_in_it() -> None:
    assert not write_evidence([fail_check("secret", role=CheckRole.HELD_OUT, hidden=TestOutcome.FAILED)], ())


def test_it_is_bounded_whatever_fails() -> None:
    checks = [
        fail_check(f"check{n}", trace="ä" * 4096, more={f"{'t' * 400}{i}": TestOutcome.FAILED for i in range(300)})
        for n in range(20)
    ]
    findings = [finding(Severity.LOW, f"E{n}", path="p" * 500) for n in range(1000)]
    text = write_evidence(checks, findings)
    assert len(text.encode()) <= MAX_EVIDENCE_BYTES
    assert "What the check check0 printed" in text
    assert "New findings:" in text
