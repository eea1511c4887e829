"""Measure `reasond eval` over 1,000 questions: questions a second, and the memory of command and server on the way.

Prints a table and writes results/evaluating.json beside this file. The model is another process that answers at once
with 2 KB. Memory is flat if what is resident hardly grows from the first quarter of the questions to the last.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.machine import make_goal, two_processors, write_report
from benchmarks.serving import ServerProcess, running
from benchmarks.upstream import running_upstream

RESULTS = Path(__file__).resolve().parent / "results" / "evaluating.json"
PACKAGES = ("reasond-server", "grpcio", "protobuf", "openai")
MODEL: Final = "fake?bytes=2048"
AT_ONCE: Final = 32
PARTS: Final = 4
MEBI: Final = 2**20
LOOK_S: Final = 0.05
GROWTH: Final = 1.25
"""Most growth of what is resident, from the first quarter to the end."""


def evaluate(server: ServerProcess, folder: Path, questions: int) -> list[dict[str, Any]]:
    """Run the command and return a row for each quarter of the questions."""
    file = folder / "set.jsonl"
    rows = [json.dumps({"question": f"What is {one} and {one}?", "answer": str(2 * one)}) for one in range(questions)]
    file.write_text("\n".join(rows), encoding="utf-8")
    environ = {**os.environ, "REASOND_TARGET": server.target, "REASOND_TOKEN": str(server.told["token"])}
    command = [sys.executable, "-m", "reasond_server", "eval", str(file), "--way", "direct", "--at-once", str(AT_ONCE)]
    begun, record = time.monotonic(), folder / "set.jsonl.trials.jsonl"
    found: list[dict[str, Any]] = []
    with subprocess.Popen(
        command, env=environ, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        own = ServerProcess(process, {})
        while len(found) < PARTS and process.poll() is None:
            time.sleep(LOOK_S)
            ended = record.read_bytes().count(b"\n") if record.exists() else 0
            if ended >= (len(found) + 1) * questions // PARTS:
                memory = {"command_mib": own.resident_bytes() / MEBI, "server_mib": server.resident_bytes() / MEBI}
                found.append({"questions": ended, "seconds": time.monotonic() - begun, **memory})
        if process.wait() or len(found) < PARTS:
            raise SystemExit(f"the command ended with {process.returncode} after {found}")
    return [{name: round(value, 2) for name, value in row.items()} for row in found]


def check(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the goals: what is resident at the end, as a share of the first quarter."""
    return [
        make_goal(f"growth of the {side}", "at most", GROWTH, round(rows[-1][key] / rows[0][key], 3))
        for side, key in (("command", "command_mib"), ("server", "server_mib"))
    ]


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--questions", type=int, default=1000, help="questions of the set (%(default)s)")
    options = parser.parse_args()
    core, other = two_processors()
    with ExitStack() as stack:
        base_url = stack.enter_context(running_upstream(core=other))
        server = stack.enter_context(running("benchmarks.upstream_wait", base_url, "--model", MODEL, core=core))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rows = evaluate(server, folder, options.questions)
    for row in rows:
        speed = row["questions"] / row["seconds"]
        memory = f"{row['command_mib']:.0f} MiB the command, {row['server_mib']:.0f} MiB the server"
        print(f"{row['questions']:>6} questions in {row['seconds']:6.1f} s ({speed:.0f}/s): {memory}")
    write_report(RESULTS, PACKAGES, at_once=AT_ONCE, rows=rows, goals=check(rows))


if __name__ == "__main__":
    main()
