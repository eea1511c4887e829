"""What critics found as JSON text, as the journal of a run keeps it; long texts are compressed."""

from __future__ import annotations

import base64
import json
import zlib
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from reasond_server.repair.results.outcomes import CheckOutcome
from reasond_server.types.repairs import CheckRole, CheckStatus, Finding, Severity, TestOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

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
