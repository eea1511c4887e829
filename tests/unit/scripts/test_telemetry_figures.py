from __future__ import annotations

from scripts.telemetry_figures import telemetry_cost_lines


def test_what_telemetry_adds_is_told_for_calls_and_for_events() -> None:
    calls = [{"side": "nothing", "cpu_us": 1000.0, "more_us": 0.0, "ratio": 1.0}]
    events = [{"side": "traced, kept", "cpu_us": 0.5, "more_us": 0.25, "ratio": 2.0}]
    lines = telemetry_cost_lines({"rounds": 7, "calls": calls, "events": events}, "Here.")
    assert "| nothing | 1,000.00 | +0.00 | 1.00 |" in lines
    assert "| traced, kept | 0.50 | +0.25 | 2.00 |" in lines
