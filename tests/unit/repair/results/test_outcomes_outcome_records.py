"""What the journal keeps of outcomes and findings."""

from __future__ import annotations

from reasond_server.repair.results.outcomes import (
    CheckOutcome,
    read_findings,
    read_outcome,
    write_findings,
    write_outcome,
)
from reasond_server.types.repairs import CheckRole, CheckStatus, Finding, Severity, TestOutcome


def outcome(count: int) -> CheckOutcome:
    return CheckOutcome(
        name="unit",
        role=CheckRole.HELD_OUT,
        status=CheckStatus.FAILED,
        tests={f"tests.test_{n}::test_ä": TestOutcome.FAILED for n in range(count)},
        fingerprints={f"tests.test_{n}::test_ä": "0123456789abcdef" for n in range(count)},
        evidence="trace",
        reason="why",
        exit_code=1,
        elapsed_s=0.5,
        cpu_s=0.25,
    )


def test_outcomes_come_back_as_they_were_and_large_ones_are_packed() -> None:
    for count in (0, 3, 5000):
        assert read_outcome(write_outcome(outcome(count))) == outcome(count)
    assert len(write_outcome(outcome(5000))) < 50_000


def test_findings_come_back_as_they_were() -> None:
    findings = tuple(
        Finding(rule_id="F821", severity=severity, path="a.py", line=n, message="no \u202e name")
        for n in range(100)
        for severity in Severity
    )
    assert read_findings(write_findings(findings)) == findings
    assert read_findings(write_findings(())) == ()
