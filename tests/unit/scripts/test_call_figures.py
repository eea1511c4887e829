from __future__ import annotations

from scripts.call_figures import goal_lines, jsonrpc_lines, unary_lines, upstream_wait_lines

ROW = {"cpu_us": 1234.5, "per_second": 2000.0, "p50_ms": 1.5, "p99_ms": 2.25, "cpu_ratio": 0.5, "rate_ratio": 2.0}
GOAL = {"what": "throughput_share", "bound": "at least", "goal": 0.96, "measured": 0.5, "is_met": False}


def test_a_side_of_the_unary_table_says_what_it_is_compared_with() -> None:
    alone = {**ROW, "side": "alone", "callers": 1, "base": "echo", "cpu_ratio": None, "rate_ratio": None}
    rows = [{**ROW, "side": "memory", "callers": 16, "base": "echo"}, alone]
    report = {"rows": rows, "goals": [GOAL], "load": {"question_bytes": 2048, "rounds": 5}}
    lines = unary_lines(report, "Here.")
    assert "| memory | 16 | 1,234 | 2,000 | 1.50 | 2.25 | 0.50 | 2.00 | echo |" in lines
    assert "| alone | 1 | 1,234 | 2,000 | 1.50 | 2.25 |  |  | echo |" in lines


def test_the_other_tables_show_figures_and_goals() -> None:
    report = {"rows": [{**ROW, "side": "gRPC"}], "goals": [GOAL], "load": {"callers": 16, "rounds": 5}}
    assert "| gRPC | 1,234 (0.50) | 2,000 (2.00) | 1.50 | 2.25 |" in jsonrpc_lines(report, "Here.")
    row = {**ROW, "side": "reasond", "throughput_share": 0.96, "resident_mib": 80.0}
    bare = {**row, "side": "the model itself", "cpu_us": 0.0, "resident_mib": 0.0}
    load = {"callers": 100, "calls": 2000, "latency_ms": 200, "rounds": 5}
    lines = upstream_wait_lines({"rows": [row, bare], "goals": [GOAL], "load": load}, "Here.")
    assert "| reasond | 2000 (0.960) | 2 | 2 | 1,234 | 80 |" in lines
    assert "| the model itself | 2000 (0.960) | 2 | 2 |  |  |" in lines
    assert "| throughput share | at least 0.96 | 0.500 | missed |" in goal_lines([GOAL])
