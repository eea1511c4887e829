"""The page about hardening lists exactly the refusals that the tests check."""

from __future__ import annotations

from pathlib import Path

from tests.integration.test_refusals import REFUSED

PAGE = (Path(__file__).parents[2] / "docs" / "operations" / "hardening.md").read_text(encoding="utf-8")


def test_the_table_of_refusals_has_exactly_the_configurations_that_are_tried() -> None:
    section = PAGE.partition("## What is not served\n")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]
    told = {name: tuple(words.strip("`").split("` · `")) for name, words in rows}
    assert told == {name: case.says for name, case in REFUSED.items()}
    assert len(rows) == len(told)
