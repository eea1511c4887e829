"""The figures on the pages of tree_of_thought and self_consistency are those of the benchmark's results."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REPORT = json.loads((ROOT / "benchmarks" / "results" / "search_budget.json").read_text(encoding="utf-8"))


def page(name: str) -> str:
    return (ROOT / "docs" / "strategies" / f"{name}.md").read_text(encoding="utf-8")


def test_success_by_budget_is_as_measured() -> None:
    rows = REPORT["games"]["rows"]
    lines = page("tree_of_thought").splitlines()
    for method in dict.fromkeys(row["method"] for row in rows):
        for insight in dict.fromkeys(row["insight"] for row in rows):
            found = [row for row in rows if (row["method"], row["insight"]) == (method, insight)]
            shares = " | ".join(f"{row['solved']:.1%}" for row in sorted(found, key=lambda row: row["budget"]))
            assert f"| {method} | {shares} |" in lines


def test_noise_and_costs_are_as_measured() -> None:
    text = page("tree_of_thought")
    games = REPORT["games"]
    tables = games["seeds"] > 1 and f"Solved, of {games['puzzles']} puzzles with {games['seeds']} seeds each"
    assert tables
    assert text.count(tables) == len({row["insight"] for row in games["rows"]})
    assert f"is at most {100 * max(row['error'] for row in games['rows']):.1f} points" in text
    rows = {(row["method"], row["insight"], row["budget"]): row for row in games["rows"]}
    first, beam = rows["best first, value", 0.95, 8000], rows["beam, value", 0.95, 8000]
    assert f"at 8,000 tokens it solves {first['solved']:.1%}, the beam {beam['solved']:.1%}" in text
    vote, value = rows["beam, vote", 0.95, 16_000], rows["beam, value", 0.95, 16_000]
    assert f"{vote['tokens']:,} tokens on the average, with `value` {value['tokens']:,}" in " ".join(text.split())


def test_the_conclusions_of_the_page_are_beyond_the_noise() -> None:
    rows = {(row["method"], row["insight"], row["budget"]): row for row in REPORT["games"]["rows"]}
    methods = dict.fromkeys(method for method, _, _ in rows)
    for insight in (0.95, 0.75):
        for budget in (1000, 2000):
            best, *others = sorted((rows[method, insight, budget]["solved"] for method in methods), reverse=True)
            assert rows["best of n", insight, budget]["solved"] == best
            assert best > others[0]
    for budget in (8000, 16_000):
        searches = [rows[method, 0.75, budget]["solved"] for method in methods if "," in method]
        assert rows["vote", 0.75, budget]["solved"] > max(searches) + 0.2


def test_votes_and_margins_are_as_measured() -> None:
    text = page("self_consistency")
    for row in REPORT["votes"]["rows"]:
        shares = " | ".join(f"{row[name]:.1%}" for name in ("accuracy", "precision", "coverage"))
        assert f"| {row['samples']} | {row['min_agreement']:g} | {shares} | {row['calls']:.2f} |" in text
    for row in REPORT["votes"]["calibration"]:
        assert f"| {row['margin_to']:g} | {row['answers']} | {row['right']:.1%} |" in text


def test_more_budget_does_not_make_a_search_worse_beyond_the_noise() -> None:
    rows = {(row["method"], row["insight"], row["budget"]): row for row in REPORT["games"]["rows"]}
    budgets = sorted({budget for _, _, budget in rows})
    for method, insight in dict.fromkeys((method, insight) for method, insight, _ in rows if "," in method):
        curve = [rows[method, insight, budget] for budget in budgets]
        for less, more in pairwise(curve):
            assert more["solved"] >= less["solved"] - 2 * max(less["error"], more["error"])
