from __future__ import annotations

from scripts.profile_figures import before_after_lines, call_profile_lines, removed_lines


def layer(name: str, calls: float, share: float) -> dict[str, object]:
    return {"layer": name, "calls": calls, "share": share}


def rows_of(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("| ") and "---" not in line]


def test_the_profile_has_every_layer_of_either_side_of_each_path_and_their_sums() -> None:
    unary = {"before": [layer("JSON", 1000, 1)], "after": [layer("llm", 10, 0.25), layer("core", 5, 0.75)]}
    stream = {"before": [layer("llm", 4.25, 1)], "after": [layer("llm", 2.5, 1), layer("dust", 0.1, 0.001)]}
    lines = call_profile_lines({"paths": {"unary": unary, "stream": stream}}, "Here.")
    assert rows_of(lines) == [
        "| layer | unary call | event of a stream |",
        "| llm | 0 → 10, 25% | 4.2 → 2.5, 100% |",
        "| core | 0 → 5.0, 75% |  |",
        "| JSON | 1,000 → 0 |  |",
        "| all | 1,000 → 15 | 4.2 → 2.6 |",
    ]
    assert "- unary call: core 75%, llm 25%." in lines


def test_what_a_change_gave_is_shown_where_it_is_more_than_runs_differ() -> None:
    totals = {"a": {"unary": 2000.0, "stream": 100.0}, "b": {"unary": 1500.0, "stream": 99.5}, "c": {"unary": 1600.0}}
    changes = [
        {"commit": "b", "before": "a", "what": "No task."},
        {"commit": "c", "before": "b", "what": "Metrics."},
        {"commit": "d", "before": "c", "what": "Not measured."},
    ]
    lines = removed_lines({"changes": changes, "totals": totals}, "Here.")
    assert rows_of(lines)[1:] == ["| No task. | -500 |  |", "| Metrics. | +100 |  |"]


def test_what_it_gave_is_told_of_each_path_that_was_measured() -> None:
    row = {"path": "stream", "before_us": 1234.5, "after_us": 61.2, "share": 0.05}
    lines = before_after_lines({"before": "abc", "rounds": 5, "rows": [row]}, "Here.")
    assert rows_of(lines) == ["| path | before | now | share |", "| event of a stream | 1,234 | 61 | 0.05 |"]
    assert any("abc and of today's" in line for line in lines)
