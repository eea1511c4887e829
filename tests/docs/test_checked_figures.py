"""The figures on the pages of best_of_n and self_refine are those of the benchmark's results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROWS = json.loads((ROOT / "benchmarks" / "results" / "checked_answers.json").read_text(encoding="utf-8"))["rows"]


@pytest.mark.parametrize("method", ["best_of_n", "self_refine"])
def test_the_table_of_a_page_is_as_measured(method: str) -> None:
    page = (ROOT / "docs" / "strategies" / f"{method}.md").read_text(encoding="utf-8").splitlines()
    for size in sorted({row["size"] for row in ROWS if row["method"] == method}):
        votes = [row for row in ROWS if row["method"] == "self_consistency" and row["size"] == size]
        rows = [row for row in ROWS if row["method"] == method and row["size"] == size]
        shown = [f"{row['right']:.1%} ({row['calls']:.2f})" for row in [*votes * (method == "best_of_n"), *rows]]
        assert f"| {size} | {' | '.join(shown)} |" in page


def test_the_conclusions_of_the_pages_hold_in_the_figures() -> None:
    right = {(row["method"], row["insight"], row["size"]): row["right"] for row in ROWS}
    vote = right["self_consistency", None, 9]
    assert right["best_of_n", 0.5, 9] < right["best_of_n", 0.6, 9] < vote < right["best_of_n", 0.75, 9]
    assert right["best_of_n", 0.9, 9] > vote + 0.1
    assert right["best_of_n", 0.9, 1] == 0.48
    for insight in (0.75, 0.9):
        first = right["self_refine", insight, 1] - 0.48
        assert first > (right["self_refine", insight, 5] - 0.48) / 2
