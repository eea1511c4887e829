"""Measure how soon no process of a repair's check is left after the repair was cancelled: `make bench`.

Prints a line for each level and writes results/repair_cancel.json beside this file. Server and sandbox are real. The
check forks twice and hangs. The time begins with the call of CancelExecution and ends when `/proc` shows no process
with the name of the check's script, which is another one in each repair; one look at `/proc` is included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import reasond
from benchmarks.machine import circumstances
from reasond import Check
from reasond.v1.execution_pb2 import FINISH_REASON_CANCELLED
from tests.engines.served import serving

if TYPE_CHECKING:
    from tests.engines.served import Served

RESULTS: Final = Path(__file__).parent / "results" / "repair_cancel.json"
PACKAGES: Final = ("reasond-server",)
LEVELS: Final = ("bwrap", "landlock")
CANCELS: Final = 100
GOAL_MS: Final = 500.0
LIMIT_S: Final = 60.0
MILLI: Final = 1000
PROCESSES: Final = 4
HANG: Final = "import os, time\nos.fork()\nos.setsid() if os.fork() == 0 else None\ntime.sleep(600)\n"
ENVIRON: Final = {
    "REASOND__REPAIR__ENABLED": "true",
    "REASOND__REPAIR__CRITIC_TIMEOUT_MS": "60000",
    "REASOND__REPAIR__ENVIRONMENTS__TESTS__PRESET": "python",
    "REASOND__REPAIR__ENVIRONMENTS__TESTS__FORMAT": "exit_code",
}


def count_processes(script: str) -> int:
    """Return how many processes have a script among their arguments."""
    found = 0
    for place in Path("/proc").iterdir():
        try:
            found += place.name.isdecimal() and script.encode() in (place / "cmdline").read_bytes()
        except OSError:  # It has just ended.
            continue
    return found


async def await_processes(script: str, least: int, most: int) -> None:
    """Wait until so many processes have a script."""
    async with asyncio.timeout(LIMIT_S):
        while not least <= count_processes(script) <= most:  # noqa: ASYNC110 - processes of others
            await asyncio.sleep(0.001)


async def cancel_one(client: reasond.AsyncClient, script: str) -> float:
    """Return the seconds from the call that cancels a repair to the end of the last process of its check."""
    check = Check(name="tests", argv=("python3", script), role=reasond.CheckRole.CHECK_ROLE_REPRODUCE)
    task = reasond.repair_task("it hangs", files={script: HANG, "a.py": ""}, environment="tests", checks=[check])
    async with aclosing(client.repair_steps(task, keep_running=True, timeout_s=LIMIT_S)) as events:
        execution_id = (await anext(events)).execution_id
        await await_processes(script, PROCESSES, sys.maxsize)
        began_s = time.perf_counter()
        done = await client.cancel_execution(execution_id)
        await await_processes(script, 0, 0)
        took_s = time.perf_counter() - began_s
    if done.finish_reason != FINISH_REASON_CANCELLED:
        raise SystemExit(f"a repair was not cancelled: {done}")
    return took_s


async def measure(served: Served, level: str, cancels: int) -> dict[str, Any]:
    """Return the figures of one level, in milliseconds."""
    async with reasond.AsyncClient(served.grpc, token=served.token) as client:
        took = [await cancel_one(client, f"hang_{os.getpid()}_{number}.py") for number in range(cancels)]
    cuts = statistics.quantiles(took, n=100, method="inclusive")
    p50, p99, longest = (round(each * MILLI, 1) for each in (cuts[49], cuts[98], max(took)))
    return {"level": level, "cancels": cancels, "p50_ms": p50, "p99_ms": p99, "longest_ms": longest}


async def measure_all(cancels: int) -> list[dict[str, Any]]:
    """Return a row for each level; print it."""
    rows = []
    for level in LEVELS:
        with tempfile.TemporaryDirectory() as folder:
            environ = {**ENVIRON, "REASOND__REPAIR__SANDBOX__LEVEL": level}
            async with serving(Path(folder), "server", environ) as served:
                rows.append(await measure(served, level, cancels))
        print(rows[-1], flush=True)
    return rows


def main() -> int:
    """Measure, print and write the results; return 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cancels", type=int, default=CANCELS, help="cancels at each level (%(default)s)")
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    rows = asyncio.run(measure_all(options.cancels))
    report = {
        "circumstances": circumstances(PACKAGES),
        "load_before": round(load_before, 1),
        "load_after": round(os.getloadavg()[0], 1),
        "goal_ms": GOAL_MS,
        "rows": rows,
    }
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")
    return 0 if all(row["p99_ms"] < GOAL_MS for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
