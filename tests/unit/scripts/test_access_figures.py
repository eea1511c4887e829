from scripts.access_figures import access_cost_lines

REPORT = {
    "rounds": 3,
    "load": {"turns": 15, "calls": 500, "callers": 16},
    "rows": [
        {"server": "open", "wire": "gRPC", "cpu_us": 1000.4, "ratio": 1.0, "least": 1.0, "most": 1.0},
        {"server": "limits, Redis", "wire": "gRPC", "cpu_us": 1500.0, "ratio": 1.5, "least": 1.25, "most": 1.75},
    ],
    "round_trips": {"limits, Redis": 2.0},
    "goals": [{"what": "budgets, gRPC", "goal": 1.25, "measured": 1.3, "is_met": False}],
}


def test_each_server_has_a_row_and_a_goal_that_is_missed_is_told() -> None:
    lines = access_cost_lines(REPORT, "Measured here.")
    text = " ".join(lines)
    assert "3 rounds of 15 turns of 500 calls by 16 callers: a round has new servers" in text
    assert "each turn compared with the same turn of the open server. Measured here." in text
    rows = [[part.strip() for part in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    assert ["open", "1,000, 1.00 (1.00-1.00)", ""] in rows
    assert ["limits, Redis", "1,500, 1.50 (1.25-1.75)", "2"] in rows
    assert ["budgets, gRPC", "1.25", "1.3", "missed"] in rows
