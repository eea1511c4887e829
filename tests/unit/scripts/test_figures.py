from __future__ import annotations

from scripts.figures import (
    DECLARED,
    PERFORMANCE,
    RESULTS,
    Table,
    goal_lines,
    profile_lines,
    read,
    saving_rows,
    search_rows,
    server_lines,
)
from scripts.pages import ROOT

WHERE = {
    "date": "2026-11-21",
    "python": "CPython 3.11.7",
    "system": "Linux",
    "machine": "x86_64",
    "processors": 2,
    "packages": {"openai": "3.52.0"},
    "event_loop": "uvloop",
}
MEASURED = "Measured on 2026-11-21: 2 processors, Linux x86_64, CPython 3.11.7, uvloop; openai 3.52.0."


def test_a_table_stands_below_what_it_was_measured_on_and_above_its_goals() -> None:
    goal = {"what": "per_token", "bound": "at most", "goal": 45.0, "measured": 74.4, "is_met": False}
    shown = Table("any", " | ms | share", "{name} | {ms:,.0f} ({ratio:.2f}) | {share:.2f}")
    report = {
        "circumstances": WHERE,
        "rows": [{"name": "a|b", "ms": 1234.5, "ratio": 0.5, "share": None}],
        "goals": [goal],
    }
    assert shown.lines(report) == [
        MEASURED,
        "",
        "|  | ms | share |",
        "| --- | --- | --- |",
        "| a\\|b | 1,234 (0.50) |  |",
        "",
        "| goal |  | measured |  |",
        "| --- | --- | --- | --- |",
        "| per token | at most 45 | 74.400 | missed |",
    ]


def test_a_further_table_of_a_report_repeats_neither_machine_nor_goals() -> None:
    shown = Table("any", "n", "{n}", "more", is_first=False)
    assert shown.lines({"more": [{"n": 1}]}) == ["| n |", "| --- |", "| 1 |"]


def test_the_load_of_the_machine_is_told_where_it_was_taken() -> None:
    report = {"circumstances": WHERE, "load_before": 0.94, "load_after": 1.1, "rows": []}
    first, *_ = Table("any", "n", "{n}").lines(report)
    assert first == f"{MEASURED} The load of the machine went from 0.9 to 1.1."


def test_a_goal_in_words_is_shown_as_it_is() -> None:
    goal = {"what": "errors", "goal": "<= 4", "measured": 1.25, "is_met": True}
    assert goal_lines([goal])[-1] == "| errors | &lt;= 4 | 1.25 | met |"
    assert goal_lines([]) == []


def layer(name: str, calls: float, share: float) -> dict[str, object]:
    return {"layer": name, "calls": calls, "share": share}


def test_the_profile_has_every_layer_of_each_path_and_their_sums() -> None:
    unary = {"layers": [layer("llm", 10, 0.25), layer("core", 1005, 0.75)]}
    stream = {"layers": [layer("llm", 2.5, 1), layer("dust", 0.1, 0.001)]}
    lines = profile_lines({"circumstances": WHERE, "paths": {"unary": unary, "stream": stream}})
    assert [line for line in lines if line.startswith("| ") and "---" not in line] == [
        "| layer | unary call | event of a stream |",
        "| llm | 10, 25% | 2.5, 100% |",
        "| core | 1,005, 75% |  |",
        "| all | 1,015 | 2.6 |",
    ]


def test_the_searches_of_repairs_are_shown_at_one_budget() -> None:
    row = {"method": "best of n", "budget": 25, "faults": 2, "accuracy": 0.05, "solved": 0.5}
    others = [{**row, "budget": 50}, {**row, "method": "best of n, defaults"}]
    assert search_rows({"rows": [row, *others]}) == [{"search": "BEST_OF_N", "of_2_5": 0.5}]


def test_what_the_server_costs_is_told_with_its_program() -> None:
    lines = server_lines()
    assert len(lines) == len(DECLARED["server"]) + 2
    assert lines[2].endswith("| `unary` |")


def test_savings_are_those_of_one_configuration() -> None:
    row = {"chunk_size": 8192, "carryover_size": 1024, "mode": "tail", "windows": 2}
    assert saving_rows({"rows": [row, {**row, "mode": "hybrid"}, {**row, "carryover_size": 4096}]}) == [row]


def test_the_committed_results_name_no_machine_and_no_path() -> None:
    for path in RESULTS.glob("*.json"):
        assert set(read(path.stem)["circumstances"]) == set(WHERE)
        assert "/home" not in path.read_text(encoding="utf-8")


def test_the_page_names_every_program_and_no_other() -> None:
    _, programs = (ROOT / PERFORMANCE).read_text(encoding="utf-8").split("## Programs")
    files = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    named = {word for word in programs.split("`") if word.isidentifier()}
    assert named == files
