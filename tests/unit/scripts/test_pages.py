from __future__ import annotations

import sys
from pathlib import Path

import pytest

from scripts import pages


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(sys, "argv", ["docs"])
    return tmp_path


def test_pages_are_written_once(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = {Path("docs/a.md"): "a\n", Path("docs/b.md"): "b\n"}
    assert pages.write_or_check(made, description="") == 0
    assert (root / "docs" / "b.md").read_text("utf-8") == "b\n"
    assert pages.write_or_check(made, description="") == 0
    assert "wrote 0 of 2" in capsys.readouterr().out


def test_a_check_names_what_is_out_of_date_and_writes_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["docs", "--check"])
    (root / "a.md").write_text("old\n", encoding="utf-8")
    assert pages.write_or_check({Path("a.md"): "new\n"}, description="") == 1
    assert "a.md: out of date, run: make docs" in capsys.readouterr().out
    assert pages.write_or_check({Path("a.md"): "old\n"}, description="") == 0


def test_a_file_that_is_no_longer_generated_is_named_and_removed(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = root / "gone.py"
    gone.touch()
    monkeypatch.setattr(sys, "argv", ["generate", "--check"])
    assert pages.write_or_check({}, description="", command="make generate", known=[Path("gone.py")]) == 1
    assert "gone.py: no longer generated, run: make generate" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["generate"])
    assert pages.write_or_check({}, description="", known=[Path("gone.py")]) == 0
    assert not gone.exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("two\n  lines", "two lines"),
        ("an <answer> tag", "an &lt;answer> tag"),
        ("code `<answer>` stays", "code `<answer>` stays"),
        ("a | b and `a|b`", r"a \| b and `a\|b`"),
    ],
)
def test_a_cell_cannot_break_its_table(text: str, expected: str) -> None:
    assert pages.cell(text) == expected
