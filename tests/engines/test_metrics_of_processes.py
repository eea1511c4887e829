"""Metrics of several processes are added up in any of them; a dead process leaves its counts, but not its gauges."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from reasond_server.telemetry.exposition import FOLDER_VARIABLE, forget_process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def counting(folder: Path, calls: int) -> Iterator[subprocess.Popen[str]]:
    """Run a process that has counted `calls` calls."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.engines.metrics_process", str(calls)],
        cwd=ROOT,
        env={**os.environ, FOLDER_VARIABLE: str(folder)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "counted\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def read(process: subprocess.Popen[str]) -> Mapping[str, float]:
    """Return the metrics that a process exposes, by series."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("read\n")
    process.stdin.flush()
    found = {}
    while (line := process.stdout.readline()) != "# EOF\n":
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            found[name] = float(value)
    return found


CALLS = 'reasond_calls_total{code="OK",method="Reason",transport="grpc"}'
DURATIONS = 'reasond_call_duration_seconds_count{code="OK",method="Reason",transport="grpc"}'
BELOW_40_MS = 'reasond_call_duration_seconds_bucket{code="OK",le="0.04",method="Reason",transport="grpc"}'


def test_two_processes_are_added_up_and_a_dead_one_leaves_its_counts_only(tmp_path: Path) -> None:
    with counting(tmp_path, 3) as first:
        with counting(tmp_path, 4) as second:
            both = read(first)
            assert (both[CALLS], both[DURATIONS], both[BELOW_40_MS]) == (7, 7, 7)
            assert (both["reasond_processes"], both["reasond_ready"], both["reasond_executions_running"]) == (2, 2, 4)
            assert read(second) == both
        forget_process(second.pid, str(tmp_path))
        left = read(first)
        assert (left[CALLS], left[DURATIONS]) == (7, 7)
        assert (left["reasond_processes"], left["reasond_ready"], left["reasond_executions_running"]) == (1, 1, 2)
