"""Complete results of checks and critics; the events show parts of them."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from typing import Any, Final

from reasond_server.types.repairs import (
    CandidateVerdict,
    CheckReport,
    CheckRole,
    CheckStatus,
    Finding,
    Severity,
    TestOutcome,
)
from reasond_server.types.values import value

MOST_RUNS: Final = 2
"""A run of a check that says nothing about the code is made once more; both together keep its processor time."""


@value
class CheckOutcome:
    """How one or two runs of a check ended; see MOST_RUNS.

    `tests` are outcomes by the id of the test; a check that reports no single tests has none. `fingerprints` identify
    by id how a test failed, whatever times and addresses its message holds; the empty id is a check without tests.
    `evidence` is what it printed about failures, at most 8 KiB. `reason` says why an UNKNOWN one could not be run, or
    what apart from its tests speaks against one that FAILED, such as a report that cannot be read. `runs` is their
    number.
    """

    name: str
    role: CheckRole
    status: CheckStatus
    tests: Mapping[str, TestOutcome] = field(default_factory=dict)
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    evidence: str = ""
    reason: str = ""
    exit_code: int = 0
    elapsed_s: float = 0.0
    cpu_s: float = 0.0
    runs: int = 1


@value
class Baseline:
    """The checks on the original code: `outcomes` by name of the check, and what follows for candidates.

    `flaky` are tests, as `check::test id`, that differed in two runs and do not count; the name of a check alone is one
    that differed as a whole. `timeouts_s` are the limits of the checks by name. `repeats` are checks, by name, that
    candidates have to pass so often, because they do not fail each time on the original. `warnings` are for the caller.
    """

    outcomes: Mapping[str, CheckOutcome]
    flaky: frozenset[str] = frozenset()
    timeouts_s: Mapping[str, float] = field(default_factory=dict)
    repeats: Mapping[str, int] = field(default_factory=dict)
    is_reproduced: bool = True
    warnings: Sequence[str] = ()

    @property
    def is_visible(self) -> bool:
        """Whether there are checks that the search may see; else candidates are judged by static analysis alone."""
        return any(outcome.role is not CheckRole.HELD_OUT for outcome in self.outcomes.values())


@value
class Critique:
    """What the critics say of one candidate.

    Attributes:
        verdict: the judgement as a whole.
        score: 0-100; at most 84 while the gate is not passed.
        pass_percent: the share of tests that passed, 0-100.
        is_solution: whether it passes the whole gate.
        signature: equal for candidates that behave alike; empty if nothing was run.
        evidence: failing tests, traces and findings in words for the model, at most 8 KiB; empty if there are none.
        reports: the checks, for callers.
        repeats: runs of checks beyond the first of each.
        findings: the findings that the original does not have.
    """

    verdict: CandidateVerdict
    score: float
    is_solution: bool
    pass_percent: float = 0.0
    signature: str = ""
    evidence: str = ""
    reports: Sequence[CheckReport] = ()
    repeats: int = 0
    findings: Sequence[Finding] = ()


_LONG: Final = 2 * 1024
_PACKED: Final = "zlib"


def write_outcome(outcome: CheckOutcome) -> str:
    """Return a CheckOutcome as JSON text."""
    return _pack({one.name: getattr(outcome, one.name) for one in fields(outcome)})


def read_outcome(text: str) -> CheckOutcome:
    """Return the CheckOutcome that `write_outcome` wrote."""
    row = _unpack(text)
    row["role"], row["status"] = CheckRole(row["role"]), CheckStatus(row["status"])
    row["tests"] = {test_id: TestOutcome(outcome) for test_id, outcome in row["tests"].items()}
    return CheckOutcome(**row)


def write_findings(findings: Sequence[Finding]) -> str:
    """Return findings as JSON text."""
    return _pack([[one.rule_id, one.severity, one.path, one.line, one.message] for one in findings])


def read_findings(text: str) -> Sequence[Finding]:
    """Return the findings that `write_findings` wrote."""
    return tuple(
        Finding(rule_id=rule_id, severity=Severity(severity), path=path, line=line, message=message)
        for rule_id, severity, path, line, message in _unpack(text)
    )


def _pack(content: object) -> str:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    if len(text) <= _LONG:
        return text
    packed = base64.b85encode(zlib.compress(text.encode("utf-8", "replace"))).decode()
    return json.dumps({_PACKED: packed})


def _unpack(text: str) -> Any:  # noqa: ANN401 - any JSON value
    content = json.loads(text)
    if isinstance(content, dict) and content.keys() == {_PACKED}:
        content = json.loads(zlib.decompress(base64.b85decode(content[_PACKED])))
    return content
