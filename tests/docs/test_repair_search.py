"""The page of the searches of repairs agrees with the benchmark's results, and the results with what it promises."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise, product
from pathlib import Path

from benchmarks.repair_search import ACCURACIES, BEGIN, BUDGETS, END, FAULTS, METHODS, PICTURES, Curve, page_lines

ROOT = Path(__file__).resolve().parents[2]
REPORT = json.loads((ROOT / "benchmarks" / "results" / "repair_search.json").read_text(encoding="utf-8"))
ROWS = [Curve(**row) for row in REPORT["rows"]]


def test_the_tables_are_as_measured() -> None:
    page = (ROOT / "benchmarks" / "repair_search.md").read_text(encoding="utf-8")
    shown = page.partition(BEGIN)[2].partition(END)[0]
    assert shown.strip() == "\n".join(page_lines(REPORT)).strip()


def test_every_search_was_measured_at_every_budget_with_five_seeds() -> None:
    found = Counter((row.faults, row.accuracy, row.method, row.budget) for row in ROWS)
    assert found == Counter(product(FAULTS, ACCURACIES, METHODS, BUDGETS))
    assert REPORT["seeds"] == 5
    assert REPORT["cases"]["1"] >= 150


def test_each_picture_shows_the_four_searches_with_every_accuracy() -> None:
    drawn = list(METHODS)[:4]
    for picture in PICTURES.values():
        text = picture.read_text(encoding="utf-8")
        missing = [
            f"{search}, {each:g}" for search, each in product(drawn, ACCURACIES) if f">{search}, {each:g}<" not in text
        ]
        assert not missing, picture.name


def test_no_search_made_more_candidates_than_its_budget() -> None:
    assert all(row.most <= row.budget for row in ROWS)


def test_more_candidates_never_solve_less() -> None:
    curves: dict[tuple[int, float, str], list[Curve]] = {}
    for row in ROWS:
        curves.setdefault((row.faults, row.accuracy, row.method), []).append(row)
    for curve in curves.values():
        for less, more in pairwise(sorted(curve, key=lambda row: row.budget)):
            assert more.solved >= less.solved - 2 * max(less.error, more.error)
