from __future__ import annotations

import json

import pytest

from scripts.pages import ROOT
from scripts.performance_docs import (
    PATH,
    RESULTS,
    adapter_lines,
    deltas_lines,
    log_cost_lines,
    make_page,
    micros,
    slow_readers_lines,
    startup_lines,
    streams_lines,
)

WHERE = {
    "date": "2026-11-21",
    "python": "CPython 3.11.7",
    "system": "Linux",
    "machine": "x86_64",
    "processors": 2,
    "packages": {"openai": "3.52.0"},
    "event_loop": "uvloop",
}
ADAPTER = {
    "circumstances": WHERE,
    "rounds": 7,
    "meanings": {"chunk": "a hundredth"},
    "rows": [
        {"what": "chunk", "client": "openai create()", "microseconds": 96.25, "ratio": 1.0},
        {"what": "chunk", "client": "reasond", "microseconds": 1234.5, "ratio": 0.2},
    ],
    "goals": [{"what": "chunk", "ratio": 0.2, "goal": 0.1}, {"what": "call", "ratio": 0.6, "goal": 0.6}],
}
DELTAS = {
    "circumstances": WHERE,
    "load": {"streams": 64, "tokens": 200, "gap_ms": 10.0, "rounds": 5},
    "rows": [
        {
            "name": "delta_flush_ms = 30",
            "cpu_us_per_token": 74.4,
            "ratio": 0.57,
            "messages_per_s": 2156.0,
            "first_text_ms": 35.0,
        }
    ],
}


def test_a_line_stands_for_one_thing_and_a_column_for_one_client() -> None:
    lines = adapter_lines(ADAPTER)
    assert "|  | openai create() | reasond |" in lines
    assert "| chunk | 96.2 (1.000) | 1,234 (0.200) |" in lines
    assert "- chunk: a hundredth." in lines


def test_a_goal_that_is_missed_is_called_missed() -> None:
    lines = adapter_lines(ADAPTER)
    assert "| chunk | 0.1 | 0.200 | missed |" in lines
    assert "| call | 0.6 | 0.600 | met |" in lines


def test_the_windows_are_compared_in_a_table() -> None:
    assert "| `delta_flush_ms = 30` | 74 | 0.57 | 2,156 | 35 |" in deltas_lines(DELTAS)


def test_a_goal_stands_below_its_table_once_the_results_have_it() -> None:
    goal = {"what": "per token", "bound": "at most", "goal": 45.0, "measured": 74.4, "is_met": False}
    assert not any("goal" in line for line in deltas_lines(DELTAS))
    assert "| per token | at most 45 | 74.400 | missed |" in deltas_lines({**DELTAS, "goals": [goal]})


def test_every_part_says_what_it_was_measured_on() -> None:
    startup = {"circumstances": WHERE, "measures": [{"name": "`x`", "median": 1.5, "unit": "s", "goal": 2}]}
    stores = {
        name: {**json.loads((ROOT / RESULTS / f"{name}.json").read_text("utf-8")), "circumstances": WHERE}
        for name in ("log_cost", "streams", "slow_readers")
    }
    parts = (
        log_cost_lines(stores["log_cost"]),
        streams_lines(stores["streams"]),
        slow_readers_lines(stores["slow_readers"]),
    )
    for lines in (adapter_lines(ADAPTER), deltas_lines(DELTAS), startup_lines(startup), *parts):
        assert any("Linux x86_64, CPython 3.11.7, uvloop; openai 3.52.0." in line for line in lines)
    text = make_page({"adapter": ADAPTER, "deltas": DELTAS, "startup": startup, **stores})
    assert "| `x` | 1.5 s | 2 s |" in text


def test_what_other_programs_are_part_of_stands_in_the_page_once_it_was_measured() -> None:
    names = ("adapter", "deltas", "log_cost", "streams", "slow_readers", "startup")
    reports = {name: json.loads((ROOT / RESULTS / f"{name}.json").read_text("utf-8")) for name in names}
    mixed = {"circumstances": WHERE, "callers": 100, "seconds": 60.0, "rows": [], "goals": []}
    assert "All strategies at once" not in make_page(reports)
    assert "All strategies at once" in make_page({**reports, "mixed_load": mixed})


@pytest.mark.parametrize(("value", "shown"), [(0.04, "0.0"), (99.94, "99.9"), (100.4, "100"), (16750.7, "16,751")])
def test_microseconds_are_shown_as_precisely_as_they_were_measured(value: float, shown: str) -> None:
    assert micros(value) == shown


def test_the_committed_results_name_no_machine_and_no_path() -> None:
    for path in (ROOT / RESULTS).glob("*.json"):
        report = json.loads(path.read_text(encoding="utf-8"))
        assert set(report["circumstances"]) == set(WHERE)
        assert "/home" not in path.read_text(encoding="utf-8")
    assert (ROOT / PATH).read_text(encoding="utf-8").startswith("<!-- Made by `make docs` from benchmarks/results/.")
