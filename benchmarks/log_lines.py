"""Measure what a line of the access log costs: our two forms, and the standard library's with JSON.

Prints a table and writes results/log_lines.json beside this file. All formatters write the same fields to a stream that
discards them. The figure is the processor time per line, including the creation of the record. The formatters take
turns; the table shows the medians of the rounds.
"""

from __future__ import annotations

import argparse
import io
import json
import logging
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.machine import circumstances
from reasond_server.telemetry.logs import human_formatter, json_formatter
from reasond_server.telemetry.propagation import parse_traceparent
from reasond_server.telemetry.scope import Scope, enter

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results" / "log_lines.json"
PACKAGES = ("reasond-server", "pydantic-core")
LINES = 20_000
ROUNDS = 7
METHOD = "/reasond.v1.ReasoningService/Reason"
FIELDS = {"method": METHOD, "code": "OK", "reason": "", "duration_ms": 1.234, "subject": "alice"}
_OWN = frozenset(vars(logging.makeLogRecord({})))


class _Nowhere(io.StringIO):
    """A stream that discards everything."""

    def write(self, text: str) -> int:
        return len(text)


class Plain(logging.Formatter):
    """The standard library and `json`, without redaction: a typical short formatter."""

    def format(self, record: logging.LogRecord) -> str:
        """Return `record` as JSON."""
        fields = {name: value for name, value in vars(record).items() if name not in _OWN}
        scope = {"trace_id": "a" * 32, "span_id": "b" * 16, "call_id": "c" * 32, "execution_id": "d" * 32}
        line = {"time": self.formatTime(record), "level": record.levelname, "message": record.getMessage()}
        return json.dumps({**line, "logger": record.name, **fields, **scope})


def forms() -> Mapping[str, logging.Formatter]:
    """Return the formatters to compare, by name."""
    return {
        "reasond, JSON": json_formatter(),
        "reasond, for a person": human_formatter(),
        "logging and json, nothing redacted": Plain(),
    }


def cost_us(formatter: logging.Formatter) -> float:
    """Return the processor time of a line in microseconds."""
    log, handler = logging.Logger("reasond.grpc", logging.INFO), logging.StreamHandler(_Nowhere())  # noqa: LOG001 - not in the tree of loggers
    handler.setFormatter(formatter)
    log.addHandler(handler)
    began_ns = time.process_time_ns()
    for _ in range(LINES):
        log.info("%s %s", METHOD, "OK", extra=dict(FIELDS))
    return (time.process_time_ns() - began_ns) / LINES / 1000


def import_ms(name: str) -> float:
    """Return the processor time that importing `name` adds to the import of the server, in milliseconds."""
    code = f"import time, reasond_server.app; t = time.process_time(); import {name}; print(time.process_time() - t)"
    found = [subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=ROOT) for _ in range(3)]
    return statistics.median(float(one.stdout) for one in found) * 1000


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    enter(Scope(call_id="c" * 32, execution_id="d" * 32, trace=parse_traceparent(f"00-{'a' * 32}-{'b' * 16}-01")))
    compared = forms()
    taken: dict[str, list[float]] = {name: [] for name in compared}
    for _ in range(rounds):
        for name, formatter in compared.items():
            taken[name].append(cost_us(formatter))
    medians = {name: round(statistics.median(values), 2) for name, values in taken.items()}
    imports = {name: round(import_ms(name), 1) for name in ("reasond_server.telemetry.logs",)}
    for name, value in medians.items():
        print(f"{name:<44}{value:8.2f} us of CPU per line")
    for name, value in imports.items():
        print(f"import {name:<37}{value:8.1f} ms of CPU beside reasond_server.app")
    content = {"cpu_us_per_line": medians, "import_cpu_ms": imports, "rounds": rounds, "lines": LINES}
    RESULTS.write_text(
        json.dumps({**content, "circumstances": circumstances(PACKAGES)}, indent=2) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
