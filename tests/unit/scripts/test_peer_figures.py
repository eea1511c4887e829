from __future__ import annotations

from typing import Any

from scripts.peer_figures import agent_loops_lines, history_lines, mixed_load_lines, peers_lines

WHERE = "Measured somewhere."
SIDE = {
    "p50_ms": 1.234,
    "p99_ms": 2.0,
    "added_p50_ms": 0.9,
    "added_p99_ms": 1.6,
    "per_second": 1612.3,
    "cpu_ms": 0.61,
    "idle_mb": 110.2,
    "loaded_mb": 121.7,
}
PEERS: dict[str, Any] = {
    "rounds": 5,
    "callers": 16,
    "rows": [{"side": "direct", **SIDE}, {"side": "reasond, gRPC", **SIDE}],
    "goals": [
        {"what": "added", "ratio": 0.14, "goal": 0.1, "is_at_least": False, "is_quoted": False, "is_met": False},
        {"what": "faster", "ratio": 31.5, "goal": 25, "is_at_least": True, "is_quoted": True, "is_met": True},
    ],
    "installed": {"LiteLLM proxy": {"versions": {"litellm": "1.106.2"}, "megabytes": 598.4, "distributions": 97}},
    "quoted": {"optillm": {"per_second": 50.0, "p50_ms": 19.6, "idle_mb": 1078.0, "installed_mb": 7600.0}},
}
LOOPS: dict[str, Any] = {
    "rounds": 5,
    "peers": {"langgraph": "1.2.22"},
    "rows": [
        {
            "side": "LangGraph",
            "at_once": 16,
            "cpu_ms": 5.0,
            "runs_per_core_s": 200.0,
            "over_grpc": 4.5,
            "over_in_process": 6.0,
        }
    ],
    "goals": [{"what": "LangGraph, 16 at once", "ratio": 4.5, "goal": 5.0, "is_met": False}],
}
MIXED: dict[str, Any] = {
    "callers": 100,
    "seconds": 60.0,
    "rows": [
        {
            "strategy": "react",
            "runs_per_s": 10.5,
            "model_calls_per_run": 1.0,
            "p50_ms": 1893.4,
            "p99_ms": 3906.6,
            "alone_p50_ms": 254.5,
            "slowdown": 7.44,
            "least_share": 0.95,
            "errors": 0,
        }
    ],
    "goals": [{"what": "errors", "goal": "= 0", "value": 0, "is_met": True}],
}


def test_what_a_side_adds_is_told_for_all_but_the_straight_way() -> None:
    lines = peers_lines(PEERS, WHERE)
    assert "| direct | 1.23 |  | 1,612 |  |  |" in lines
    assert "| reasond, gRPC | 1.23 | 0.90 (1.60) | 1,612 | 0.61 | 110, 122 |" in lines


def test_goals_say_on_which_side_of_the_bound_they_lie_and_what_is_quoted() -> None:
    lines = peers_lines(PEERS, WHERE)
    assert "| added | at most 0.1 | 0.14 | missed |" in lines
    assert "| faster (quoted) | at least 25 | 31.50 | met |" in lines


def test_figures_of_an_earlier_measurement_are_marked_so() -> None:
    lines = peers_lines(PEERS, WHERE)
    assert "- LiteLLM proxy: litellm 1.106.2; 598 MB installed, 97 distributions." in lines
    assert any(line.startswith("- optillm, not taken in this run: 19.6 ms") for line in lines)


def test_frameworks_are_set_beside_both_ways_to_reasond() -> None:
    lines = agent_loops_lines(LOOPS, WHERE)
    assert "| LangGraph | 16 | 5.00 | 200 | 4.50 | 6.00 |" in lines
    assert "| CPU of LangGraph, 16 at once, over reasond's through gRPC | at least 5 | 4.50 | missed |" in lines
    assert any("Peers: langgraph 1.2.22." in line for line in lines)


def test_each_strategy_has_a_row_and_each_judgement_its_bound() -> None:
    lines = mixed_load_lines(MIXED, WHERE)
    assert "| `react` | 10.50 | 1.0 | 1,893 | 3,907 | 254 | 7.44 | 0.95 | 0 |" in lines
    assert "| errors | = 0 | 0 | met |" in lines


def test_a_long_history_is_told_only_where_it_was_measured() -> None:
    assert history_lines({}) == []
    assert history_lines({"history": [{"client": "reasond", "ratio": 1.48}]}) == []


def test_the_goal_of_a_history_is_judged_by_a_conversation_that_goes_on_and_the_other_row_stands_beside_it() -> None:
    found = {"client": "reasond", "ratio": 1.123, "unsent_ratio": 1.5}
    lines = history_lines({"history": [found], "history_goal": {"ratio": 1.123, "goal": 1.2}})
    assert "| reasond | 1.12 | 1.50 |" in lines
    assert any(line.endswith("at most 1.2, measured 1.12, met.") for line in lines)
    missed = history_lines({"history": [found], "history_goal": {"ratio": 1.25, "goal": 1.2}})
    assert any(line.endswith("measured 1.25, missed.") for line in missed)
