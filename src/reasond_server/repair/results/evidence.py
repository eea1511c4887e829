"""What the model is shown of a candidate that did not pass: failing tests, then traces, then findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reasond_server.repair.results.reported_tests import MAX_EVIDENCE_BYTES, escape_text, shorten
from reasond_server.types.repairs import CheckRole, CheckStatus, Severity, TestOutcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from reasond_server.repair.results.outcomes import CheckOutcome
    from reasond_server.types.repairs import Finding

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
    told = [
        outcome
        for outcome in outcomes
        if outcome.role is not CheckRole.HELD_OUT and outcome.status in {CheckStatus.FAILED, CheckStatus.TIMED_OUT}
    ]
    lines = [line for outcome in told for line in _list_failures(outcome)]
    listed = "\n".join(("Failed:", *lines)) if lines else ""
    found = "\n".join(("New findings:", *_list_findings(findings))) if findings else ""
    parts = [shorten(listed, _MAX_LIST_BYTES)]
    room = MAX_EVIDENCE_BYTES - len(parts[0].encode()) - min(len(found.encode()), _MAX_LIST_BYTES) - 2 * len("\n\n")
    traced = [outcome for outcome in told if outcome.evidence]
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
