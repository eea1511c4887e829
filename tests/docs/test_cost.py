"""What docs/measured.md says in words agrees with the results of the benchmarks, and so do the pictures."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from benchmarks import bounded_vs_plain, repair_search
from scripts import figures
from scripts.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

PICTURES = sorted((ROOT / "docs").rglob("*.svg"))


def test_windows_always_send_more_tokens_than_one_pass() -> None:
    assert all(row["tokens_pct"] < 0 for row in figures.read("bounded_vs_plain")["rows"])


def test_pictures_that_benchmarks_draw_are_those_of_their_results() -> None:
    savings = [bounded_vs_plain.Row(**row) for row in figures.read("bounded_vs_plain")["rows"]]
    assert bounded_vs_plain.PICTURE.read_text(encoding="utf-8") == bounded_vs_plain.draw(savings)
    curves = [repair_search.Curve(**row) for row in figures.read("repair_search")["rows"]]
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
