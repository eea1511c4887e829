from __future__ import annotations

from typing import Any

from scripts.scale_figures import held_streams_lines, scale_lines

WHERE = "Measured somewhere."
HELD = {"resident_mb": 341.9, "files": 169, "threads": 31}
SIDE = {"per_cpu_s": 1267.6, "database_cpu_us": 383.2, "per_second": 169.6, "rate_ratio": 1.0}
SCALE: dict[str, Any] = {
    "load": {"rounds": 5, "calls": 3000, "callers": 32},
    "rows": [{"workers": 1, "ratio": 1.0, **SIDE}, {"workers": 2, "ratio": 0.953, **SIDE}],
    "soak": {"seconds": 180.0, "callers": 20, "done": {"ask": 1770}, "errors": 3, "early": HELD, "late": HELD},
    "goals": [{"what": "errors in the mix", "goal": "= 0", "measured": 3, "is_met": False}],
}
STREAMS: dict[str, Any] = {
    "rounds": 2,
    "rows": [{"kind": "idle", "streams": 5000, "kib_per_stream": 46.04, "after_kib_per_stream": 53.1, "lost": 2}],
    "goals": [{"what": "KiB per stream, idle", "goal": "<= 40", "measured": 39.5, "is_met": True}],
}


def test_two_workers_stand_beside_one_with_their_ratio_and_what_the_mix_did() -> None:
    lines = scale_lines(SCALE, WHERE)
    assert "| 2 | 1,268 | 0.95 | 383 | 170 | 1.00 |" in lines
    assert "| the end | 341.9 | 169 | 31 |" in lines
    assert "time. Done: ask 1,770; 3 errors. What all processes of the server held:" in lines
    assert lines[-1] == "| errors in the mix | = 0 | 3 | missed |"


def test_a_stream_that_waits_is_told_with_its_memory_and_what_was_lost() -> None:
    lines = held_streams_lines(STREAMS, WHERE)
    assert "| idle | 5,000 | 46.0 | 53.1 | 2 |" in lines
    assert lines[-1] == "| KiB per stream, idle | &lt;= 40 | 39.5 | met |"
