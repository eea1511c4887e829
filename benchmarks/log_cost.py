"""Measure what storing an event costs in each store: memory, SQLite and PostgreSQL, one at a time and in batches.

Prints a table and writes results/log_cost.json beside this file. One process appends steps of 2,000 characters to many
logs, as the runner's writer does. The figures are its processor time per event, threads included, and the time of an
append. PostgreSQL runs on the same machine. Then two writers race for the same sequence number of a log.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.machine import circumstances, new_event_loop
from reasond_server.stores import MEMORY_URL, migrate_stores, open_stores
from tests.engines.postgres import is_postgres_here, running_postgres
from tests.stores.logs import HandWrittenLog, first_event, step

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from reasond_server.logs.store import ExecutionStore

RESULTS = Path(__file__).resolve().parent / "results" / "log_cost.json"
PACKAGES = ("reasond-server", "sqlalchemy", "psycopg")
BATCHES = (1, 8, 64)
EVENTS = 640
ROUNDS = 5
RACES = 1000
TEXT = "step by step " * 154


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one round, per event and per append."""

    cpu_us_per_event: float
    append_ms: float


async def one_round(store: ExecutionStore, batch: int) -> Figures:
    """Append EVENTS steps, in batches of `batch`, each step to its own log."""
    logs = [HandWrittenLog.new(store, tenant="bench") for _ in range(batch)]
    for log in logs:
        await log.create()
    await store.append([log.part(first_event()) for log in logs])
    for log in logs:
        log.took(log.part(first_event()))
    waits = []
    cpu_ns = time.process_time_ns()
    for index in range(EVENTS // batch):
        parts = [log.part(step(TEXT, index=index)) for log in logs]
        begun = time.perf_counter()
        refusals = await store.append(parts)
        waits.append(time.perf_counter() - begun)
        for log, part, refused in zip(logs, parts, refusals, strict=True):
            if refused is not None:
                raise refused
            log.took(part)
    cpu_ns = time.process_time_ns() - cpu_ns
    return Figures(cpu_us_per_event=cpu_ns / 1000 / EVENTS, append_ms=1000 * statistics.median(waits))


async def races(store: ExecutionStore) -> dict[str, int]:
    """Let two writers append at the same sequence number RACES times; return how often none, one or both succeeded."""
    log = HandWrittenLog.new(store, tenant="bench")
    await log.create()
    wins = [0, 0, 0]
    for race in range(RACES):
        parts = [log.part(step(f"{race} by {writer}")) for writer in "ab"]
        outcomes = await asyncio.gather(*(store.append([part]) for part in parts))
        winners = [part for part, (refused,) in zip(parts, outcomes, strict=True) if refused is None]
        wins[len(winners)] += 1
        for winner in winners[:1]:
            log.took(winner)
    return {"races": RACES, "none_won": wins[0], "one_won": wins[1], "both_won": wins[2]}


@asynccontextmanager
async def open_store(url: str, folder: Path, *, synchronous: str = "normal") -> AsyncGenerator[ExecutionStore, None]:
    """Open the store at `url`."""
    stores = await open_stores(
        url=url,
        data_dir=str(folder),
        now=lambda: datetime.now(UTC),
        monotonic=time.monotonic,
        max_executions=1_000_000,
        max_bytes=2**33,
        max_agents=1,
        synchronous=synchronous,
    )
    try:
        yield stores.executions
    finally:
        await stores.aclose()


async def measure(urls: Mapping[str, str], folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Return the medians of every store and batch; the stores alternate, and a first round is a warm-up."""
    async with AsyncExitStack() as stack:
        stores = {
            name: await stack.enter_async_context(
                open_store(url, folder / str(number), synchronous="full" if "full" in name else "normal")
            )
            for number, (name, url) in enumerate(urls.items())
        }
        found: dict[tuple[str, int], list[Figures]] = {}
        for number in range(rounds + 1):
            for name, store in stores.items():
                for batch in BATCHES:
                    figures = await one_round(store, batch)
                    if number:
                        found.setdefault((name, batch), []).append(figures)
        return [await row_of(name, store, found) for name, store in stores.items()]


async def row_of(name: str, store: ExecutionStore, found: Mapping[tuple[str, int], list[Figures]]) -> dict[str, Any]:
    """Return the figures of one store."""
    batches = {
        str(batch): {
            "cpu_us_per_event": round(statistics.median(one.cpu_us_per_event for one in found[name, batch]), 1),
            "append_ms": round(statistics.median(one.append_ms for one in found[name, batch]), 3),
        }
        for batch in BATCHES
    }
    return {"name": name, "batches": batches, **await races(store)}


def print_rows(rows: list[dict[str, Any]]) -> None:
    """Print the figures as a table."""
    for row in rows:
        cells = [
            f"{batch:>2}: {one['cpu_us_per_event']:>6.1f} us/event, {one['append_ms']:.2f} ms"
            for batch, one in row["batches"].items()
        ]
        print(f"    {row['name']:<24} {'   '.join(cells)}   both won {row['both_won']} of {row['races']} races")


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count (%(default)s)")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = {"memory": MEMORY_URL, "SQLite": "", "SQLite, synchronous full": ""}
        if is_postgres_here():
            server = stack.enter_context(running_postgres())
            urls["PostgreSQL"] = server.new_database()
            migrate_stores(url=urls["PostgreSQL"], data_dir="")
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            rows = runner.run(measure(urls, folder, max(1, options.rounds)))
    print_rows(rows)
    load = {"events": EVENTS, "characters": len(TEXT), "rounds": options.rounds}
    report = {"circumstances": circumstances(PACKAGES), "load": load, "rows": rows}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
