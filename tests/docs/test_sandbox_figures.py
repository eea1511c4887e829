"""The figures on the page of the sandbox are those of the benchmarks, and within their goals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = " ".join((ROOT / "docs" / "operations" / "sandbox.md").read_text(encoding="utf-8").split())


def read_results(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "rows", "figure"), [("sandbox_overhead", "measures", "p50_ms"), ("repair_cancel", "rows", "p99_ms")]
)
def test_a_figure_of_each_level_is_as_measured_and_within_its_goal(name: str, rows: str, figure: str) -> None:
    report = read_results(name)
    levels = {row["level"]: row[figure] for row in report[rows]}
    assert f"{levels['bwrap']} ms with `bwrap`, {levels['landlock']} ms with `landlock`" in PAGE
    assert max(levels.values()) <= report["goal_ms"]


def test_the_pace_and_the_load_are_as_measured() -> None:
    first, second = (row["candidates_per_s_per_core"] for row in read_results("sandbox_overhead")["measures"])
    assert f"Each processor got through {first} and {second} candidates per second" in PAGE
    report = read_results("repair_cancel")
    assert f"a load of {report['load_before']} to {report['load_after']}." in PAGE
    assert {row["cancels"] for row in report["rows"]} == {100}
