"""The limits of coverage: what the workers measured is added up, and what is below a limit is named."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from scripts import line_coverage

if TYPE_CHECKING:
    from pathlib import Path

ERRORS = "src/reasond_server/errors/base.py"
OTHER = "src/reasond_server/assembly/app.py"


def make_file(name: str, lines: list[int], *, of: int) -> dict[str, Any]:
    """Return what SlipCover writes of a file with the lines 1 to `of`."""
    missing = [line for line in range(1, of + 1) if line not in lines]
    file = {"executed_lines": lines, "missing_lines": missing, "executed_branches": [], "missing_branches": []}
    summary = {"covered_lines": len(lines), "missing_lines": len(missing), "percent_covered": 100 * len(lines) / of}
    return {
        "meta": {"software": "slipcover", "version": "1.1.0", "branch_coverage": True, "show_contexts": False},
        "files": {name: {**file, "summary": summary}},
        "summary": summary,
    }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(line_coverage, "ROOT", tmp_path)
    monkeypatch.setattr(line_coverage, "FOLDER", tmp_path)
    return tmp_path


def write(folder: Path, worker: str, found: dict[str, Any]) -> None:
    (folder / f"{worker}.json").write_text(json.dumps(found), encoding="utf-8")


def test_what_two_workers_ran_counts_together(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, "gw0", make_file(ERRORS, [1, 2], of=4))
    write(folder, "gw1", make_file(ERRORS, [3, 4], of=4))
    assert line_coverage.main() == 0
    assert "100.0 %" in capsys.readouterr().out


def test_less_than_the_limit_fails_and_tells_both(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, "gw0", make_file(OTHER, list(range(1, 91)), of=100))
    assert line_coverage.main() == 1
    assert "90.0 % are covered; at least 95 % must be" in capsys.readouterr().out


def test_one_gap_where_none_may_be_fails_and_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder, "gw0", make_file(ERRORS, list(range(1, 100)), of=100))
    assert line_coverage.main() == 1
    shown = capsys.readouterr().out
    assert f"{ERRORS}  100" in shown
    assert f"{ERRORS} must be covered fully" in shown


@pytest.mark.usefixtures("folder")
def test_nothing_measured_is_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    assert line_coverage.main() == 1
    assert "nothing was measured" in capsys.readouterr().out


def test_a_branch_that_leaves_the_function_is_written_so() -> None:
    file = {"missing_lines": [3], "missing_branches": [[3, 4], [7, 9], [8, 0]]}
    assert line_coverage.find_gaps(file) == ["3", "7->9", "8->exit"]
