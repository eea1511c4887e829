"""Measure how long a repair stands still when its server is killed: `make bench`.

Prints a line for each kill and writes results/repair_resume.json beside this file. Servers, database and sandbox are
real processes with default settings; the embedded demo model proposes edits that never repair, so that a repair lasts.
A server is ended by SIGKILL while candidates are checked. Measured is the time from there to the first event that the
killed server did not log: the end of its lease, the start of the repair from its journal, and the work in flight again.

- PostgreSQL: another server on the same database takes the repair over.
- SQLite: the server is started again at once; its start is part of the time.
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
from contextlib import AsyncExitStack, aclosing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import reasond
from benchmarks.machine import circumstances
from reasond.v1.execution_pb2 import ExecutionCursor
from reasond.v1.repairs_pb2 import CHECK_ROLE_REPRODUCE, Check
from reasond_server.stores import migrate_stores
from tests.engines.postgres import is_postgres_here, running_postgres
from tests.engines.served import serving

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from reasond.v1.repair_service_pb2 import RepairStepsResponse
    from reasond.v1.repairs_pb2 import RepairTask
    from tests.engines.served import Served

RESULTS: Final = Path(__file__).parent / "results" / "repair_resume.json"
PACKAGES: Final = ("reasond-server",)
KILLS: Final = 5
MOST_S: Final = 20.0
KILLED_AFTER: Final = 20
PATIENCE_S: Final = 300.0
CODE: Final = (
    "def place(values, wanted):\n    low, high = 0, len(values) - 1\n    while low <= high:\n"
    "        middle = (low + high) // 2\n        if values[middle] == wanted:\n            return middle\n"
    "        if values[middle] < wanted:\n            low = middle + 1\n        else:\n            high = middle - 1\n"
    "    return -1\n"
)
TEST: Final = "import time\nfrom places import place\n\ntime.sleep(0.2)\nassert place([1, 2, 4], 4) == 'never'\n"
ENVIRON: Final = {
    "REASOND__REPAIR__ENABLED": "true",
    "REASOND__REPAIR__ENVIRONMENTS__TESTS__PRESET": "python",
    "REASOND__REPAIR__ENVIRONMENTS__TESTS__FORMAT": "exit_code",
}


def make_task() -> RepairTask:
    """Return a repair of which no candidate is accepted."""
    return reasond.repair_task(
        "place finds the wrong place",
        files={"places.py": CODE, "test_places.py": TEST},
        environment="tests",
        checks=[Check(name="tests", role=CHECK_ROLE_REPRODUCE, argv=("python3", "test_places.py"))],
        config={"search": "best_of_n", "max_candidates": 60, "patience": 1000},
    )


async def follow(served: Served, source: RepairTask | ExecutionCursor) -> AsyncGenerator[RepairStepsResponse, None]:
    """Yield the logged events of a repair as a server tells them."""
    async with (
        reasond.AsyncClient(served.grpc, token=served.token) as client,
        aclosing(client.repair_steps(source, keep_running=True, timeout_s=PATIENCE_S)) as events,
    ):
        async for each in events:
            if each.WhichOneof("event") not in {"delta", "heartbeat"}:
                yield each


async def kill_one(folder: Path, url: str, *, has_other: bool) -> float:
    """Return the seconds from the end of a server to the first event of the one that goes on."""
    environ: Mapping[str, str] = {**ENVIRON, "REASOND__STORE__URL": url}
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(serving(folder, "first", environ))
        second = await stack.enter_async_context(serving(folder, "second", environ)) if has_other else None
        seen: list[RepairStepsResponse] = []
        async with aclosing(follow(first, make_task())) as events:
            async for each in events:
                seen.append(each)
                if len(seen) == KILLED_AFTER:
                    break
            first.process.kill()
            began_s, killed = time.perf_counter(), datetime.now(UTC)
            first.process.wait()
        if second is None:
            second = await stack.enter_async_context(serving(folder, "second", environ))
        cursor = ExecutionCursor(execution_id=seen[-1].execution_id, after_sequence=seen[-1].sequence)
        async with aclosing(follow(second, cursor)) as events:
            async for each in events:
                if each.create_time.ToDatetime(UTC) > killed:
                    return time.perf_counter() - began_s
    raise SystemExit("the repair ended before its server was killed")


async def measure(kills: int) -> list[dict[str, Any]]:
    """Return a row for each store."""
    rows = []
    for store in ("PostgreSQL", "SQLite") if is_postgres_here() else ("SQLite",):
        took = []
        for _ in range(kills):
            with tempfile.TemporaryDirectory() as folder:
                took.append(await _measure_one(Path(folder), store))
            print(f"{store}: {took[-1]:.1f} s", flush=True)
        rows.append({"store": store, "median_s": round(statistics.median(took), 1), "most_s": round(max(took), 1)})
    return rows


async def _measure_one(folder: Path, store: str) -> float:
    if store == "SQLite":
        return await kill_one(folder, f"sqlite:///{folder}/reasond.db", has_other=False)
    with running_postgres() as server:
        url = server.new_database()
        migrate_stores(url=url, data_dir="")
        return await kill_one(folder, url, has_other=True)


def main() -> int:
    """Measure, print and write the results; return 1 if the goal is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=KILLS, help="kills with each store (%(default)s)")
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    rows = asyncio.run(measure(options.kills))
    report = {
        "circumstances": circumstances(PACKAGES),
        "load_before": round(load_before, 1),
        "load_after": round(os.getloadavg()[0], 1),
        "kills": options.kills,
        "most_s": MOST_S,
        "rows": rows,
    }
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")
    return 0 if all(row["most_s"] < MOST_S for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
