"""Critics of packages: discovery, what they may return, and which of it is new."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.errors.base import SettingsError
from reasond_server.repair.critics.critic_port import CRITICS, MAX_FINDINGS, find_new, require_findings
from reasond_server.types.repairs import Finding, Severity
from tests.repairing import source_files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.types.repairs import SourceFile


class Style:
    name = "style"

    async def review(self, files: Mapping[str, SourceFile], changes: Mapping[str, bytes | None]) -> Sequence[Finding]:
        return () if files or changes else []


class Loud(Style):
    name = "Loud Critic"


class Absent:
    name = "absent"


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=f"{__name__}:{value}", group=CRITICS.group)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("absent", "Absent", "gives no critic: Absent is no critic"),
        ("loud", "Loud", "does not match"),
        ("lint", "Style", "which is built in"),
    ],
)
def test_start_up_names_what_cannot_be_loaded(name: str, value: str, words: str) -> None:
    installed = [point(name, value)]
    with pytest.raises(SettingsError) as caught:
        CRITICS.load([name], installed=installed)
    assert words in caught.value.message
    assert repr(name) in caught.value.message


def finding(line: int = 1, rule_id: str = "R1", path: str = "a.py", severity: Severity = Severity.LOW) -> Finding:
    return Finding(rule_id=rule_id, severity=severity, path=path, line=line, message="m")


@pytest.mark.parametrize("returned", [None, "text", [1], {"a": 1}, (finding(), None)])
def test_what_is_no_sequence_of_findings_is_refused(returned: Any) -> None:
    with pytest.raises(TypeError, match="sequence of findings"):
        require_findings(returned, ["a.py"])


def test_findings_are_bounded_the_worst_are_kept_and_other_files_are_left_out() -> None:
    many = [finding(rule_id="r" * 500) for _ in range(MAX_FINDINGS)]
    kept = require_findings([*many, finding(severity=Severity.HIGH), finding(path="b.py")], ["a.py"])
    assert len(kept) == MAX_FINDINGS
    assert kept[0].severity is Severity.HIGH
    assert len(kept[1].rule_id) == 100


def test_a_finding_whose_line_only_moved_is_not_new() -> None:
    files = source_files({"a.py": "x = 1\ny = bad\n"})
    changes = {"a.py": b"\n\nx = 1\n  y = bad\ny = bad\nz = bad\n"}
    originals = [finding(2)]
    found = [finding(4), finding(5), finding(6), finding(4, rule_id="R2")]
    new = find_new(found, originals, files=files, changes=changes)
    assert [(one.line, one.rule_id) for one in new] == [(5, "R1"), (6, "R1"), (4, "R2")]


def test_findings_in_a_new_file_or_past_its_end_are_new() -> None:
    new = find_new([finding(1), finding(99), finding(0)], [], files={}, changes={"a.py": b"x"})
    assert len(new) == 3
