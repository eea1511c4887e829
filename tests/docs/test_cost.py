"""What docs/guides/cost.md says in words agrees with the figures beside it, and pictures are those of the results."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks import bounded_vs_plain, repair_search
from reasond_server.config.settings import Settings
from scripts import cost_docs
from scripts.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PAGE = (ROOT / cost_docs.PAGE).read_text(encoding="utf-8")
GAMES = cost_docs.read("search_budget")["games"]["rows"]
PICTURES = sorted((ROOT / "docs").rglob("*.svg"))


def leader(insight: float, budget: int) -> str:
    rows = [row for row in GAMES if (row["insight"], row["budget"]) == (insight, budget)]
    best: dict[str, Any] = max(rows, key=lambda row: row["solved"])
    return str(best["method"])


def test_the_default_size_of_a_preview_holds_failures_and_the_rows_asked_for() -> None:
    default = Settings().turns.context.preview_tokens
    assert f"`preview_tokens = {default}`" in PAGE
    recall = cost_docs.read("turn_previews")["recall"]
    whole = {row["form"] for row in recall if row["way"] == f"preview of {default}" and row["asked"] == 1}
    assert whole == {row["form"] for row in recall} - {"UUID"}
    assert all(row["failures"] == 1 for row in recall if row["way"] == f"preview of {default}")
    assert [row["asked"] for row in recall if (row["form"], row["way"]) == ("UUID", "preview of 2048")] == [1]
    assert "need 2048" in " ".join(PAGE.split())


@pytest.mark.parametrize("insight", [0.95, 0.75])
def test_with_a_small_budget_sampling_and_choosing_leads(insight: float) -> None:
    assert {leader(insight, budget) for budget in (1000, 2000)} == {"best of n"}


def test_with_a_weak_judge_and_a_large_budget_voting_leads() -> None:
    assert {leader(0.75, budget) for budget in (8000, 16_000)} == {"vote"}


def test_windows_always_send_more_tokens_than_one_pass() -> None:
    assert all(row["tokens_pct"] < 0 for row in cost_docs.read("bounded_vs_plain")["rows"])


def test_no_window_is_larger_than_its_limit() -> None:
    for run in cost_docs.read("window_bars")["runs"]:
        assert max(sum(window.values()) for window in run["windows"]) <= run["chunk_size"]


def test_pictures_that_benchmarks_draw_are_those_of_their_results() -> None:
    savings = [bounded_vs_plain.Row(**row) for row in cost_docs.read("bounded_vs_plain")["rows"]]
    assert bounded_vs_plain.PICTURE.read_text(encoding="utf-8") == bounded_vs_plain.draw(savings)
    curves = [repair_search.Curve(**row) for row in cost_docs.read("repair_search")["rows"]]
    for faults, picture in repair_search.PICTURES.items():
        assert picture.read_text(encoding="utf-8") == repair_search.draw(curves, faults)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_picture_has_a_title_its_text_as_text_both_themes_and_nothing_foreign(picture: Path) -> None:
    text = picture.read_text(encoding="utf-8")
    assert re.search(r"<title>[^<]{10,}</title>", text)
    assert text.count("<text") > 5
    assert "prefers-color-scheme:dark" in text
    assert not re.search(r"<(?:script|image|use|foreignObject)\b|href|url\(", text)
    assert json.dumps(text).count("http") == 1  # the name space
