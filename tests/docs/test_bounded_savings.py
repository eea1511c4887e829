"""The tables of benchmarks/bounded_savings.md agree with the code, the benchmarks and earlier figures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.bounded_vs_plain import page_lines
from tests.docs.savings_table import at, depth_rows, first_reaching, threshold_rows

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "benchmarks" / "bounded_savings.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results"


@pytest.mark.parametrize(
    ("chunk_size", "carryover_size", "windows", "figures"),
    [
        (8192, 4096, 2, (-36, 19, 8, 21, 32)),
        (8192, 4096, 5, (-73, 48.5, 40, 53, 65)),
        (8192, 4096, 10, (-91, 68, 64, 73, 81)),
        (8192, 4096, 20, (-101, 82, 80, 85, 90)),
        (8192, 4096, 32, (-105, 88, 87, 90, 94)),
        (8192, 1024, 5, (-16, 62, 73, 74, None)),
        (8192, 1024, 10, (None, None, 86, 86, None)),
        (16384, 8192, 5, (None, 49, 42, 54, None)),
        (16384, 8192, 10, (None, None, 65, None, None)),
    ],
)
def test_with_the_prompt_outside_the_window_earlier_figures_are_reproduced(
    chunk_size: int, carryover_size: int, windows: int, figures: tuple[float | None, ...]
) -> None:
    """The figures are tokens, tokens against re-prompting, attention, KV reads and peak; None if unknown."""
    point = at(chunk_size, carryover_size, windows=windows, is_prompt_inside=False)
    one = point.single_pass
    found = (one.tokens_pct, point.reprompt.tokens_pct, one.attention_pct, one.kv_read_pct, one.peak_context_pct)
    known = [(mine, theirs) for mine, theirs in zip(found, figures, strict=True) if theirs is not None]
    assert [mine for mine, _ in known] == pytest.approx([theirs for _, theirs in known], abs=0.6)


@pytest.mark.parametrize(
    ("carryover_size", "figure", "half", "most"),
    [
        (4096, "reprompt", 28.7, 168),
        (4096, "attention", 32.8, 180),
        (4096, "kv_read", 24.6, 131),
        (1024, "reprompt", 29.7, 166),
        (1024, "attention", 22.5, 109),
        (1024, "kv_read", 22.5, 101),
    ],
)
def test_the_lengths_where_half_and_nine_tenths_are_saved_agree_with_earlier_figures(
    carryover_size: int, figure: str, half: float, most: float
) -> None:
    reached = [
        first_reaching(share, figure, 8192, carryover_size, is_prompt_inside=False) or 0 for share in (50.0, 90.0)
    ]
    assert [one / 1000 for one in reached] == [pytest.approx(half, abs=0.06), pytest.approx(most, abs=0.6)]


def test_the_page_of_measured_figures_has_the_thresholds() -> None:
    measured = (ROOT / "docs" / "measured.md").read_text(encoding="utf-8")
    assert "\n".join(threshold_rows()) in measured


@pytest.mark.parametrize("row", [*threshold_rows(), *depth_rows()])
def test_the_page_has_every_row(row: str) -> None:
    assert row in PAGE


def test_the_measured_rows_are_those_of_the_benchmark() -> None:
    report = json.loads((RESULTS / "bounded_vs_plain.json").read_text(encoding="utf-8"))
    assert "\n".join(page_lines(report)) in PAGE
