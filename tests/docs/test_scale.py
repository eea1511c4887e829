"""The page about scale has the figures of the results, and the simulation behaves as a queue does."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.fleet import Costs, Fleet, simulate

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operations" / "scale.md").read_text(encoding="utf-8")
RESULTS = ROOT / "benchmarks" / "results"
COSTS = Costs(transaction_s=0.001, event_s=0.0001, notice_s=0.00001, look_s=0.0001)


def test_the_page_has_the_costs_that_were_measured() -> None:
    found = json.loads((RESULTS / "one_postgres.json").read_text("utf-8"))
    for batch, row in found["batches"].items():
        assert f"| {batch} | {row['database_us_per_event']} |" in PAGE
    assert f"costs {found['reads']['database_us_per_event']} microseconds" in PAGE
    heard = [str(row["database_us_per_event"]) for row in found["listeners"].values()]
    assert f"{heard[0]}, {heard[1]} and {heard[2]} microseconds" in " ".join(PAGE.split())


def test_the_page_has_the_rows_of_the_simulation() -> None:
    for row in json.loads((RESULTS / "fleet.json").read_text("utf-8"))["cases"]:
        cells = (
            f"{row['executions_per_day']:,.0f}",
            *(row["databases"], row["servers"], f"{row['events_per_s_at_peak']:.0f}"),
            *(f"{row['peak_share']:.2f}", f"{row['mean_share']:.2f}", f"{row['commit_p99_s'] * 1000:.1f}"),
        )
        assert f"| {' | '.join(map(str, cells))} |" in PAGE


def test_the_same_seed_gives_the_same_day_and_more_load_more_work_and_waits() -> None:
    few = Fleet(servers=3, processors=1, executions_per_day=1e5)
    many = Fleet(servers=3, processors=1, executions_per_day=4e6)
    assert simulate(few, COSTS) == simulate(few, COSTS)
    assert simulate(many, COSTS).peak_share > 5 * simulate(few, COSTS).peak_share
    assert simulate(many, COSTS).commit_p99_s > simulate(few, COSTS).commit_p99_s


def test_two_databases_share_the_load() -> None:
    one = simulate(Fleet(servers=8, executions_per_day=1e6), COSTS)
    two = simulate(Fleet(servers=8, executions_per_day=1e6, databases=2), COSTS)
    assert 0.4 < two.peak_share / one.peak_share < 0.6
