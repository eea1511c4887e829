"""Measure how a run's depth affects the server's memory: 5, 50 and 500 windows, in memory and in SQLite.

Prints a table, writes results/depth_memory.json beside this file and a table of docs/strategies/bounded_context.md. For
each store and depth, a `reasond serve --dev` process answers once, and then answers --runs times the same question
about a text that it reads in so many windows; its resident memory is read after each run. A text of more windows is
also longer, so another process reads the longest one again in a few large windows: both have the text in common, but
not the depth.

The resident memory of a process is more than the memory in use: Python and the C library keep freed memory in several
pools for the next run. So the first runs take more than later ones, and only growth after them is a leak.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.long_input import PARAGRAPH, QUESTION, text_of
from benchmarks.machine import circumstances
from benchmarks.pages import put_between
from benchmarks.startup import COMMAND, clean_environment

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

RESULTS = Path(__file__).resolve().parent / "results" / "depth_memory.json"
PAGE = Path(__file__).resolve().parents[1] / "docs" / "strategies" / "bounded_context.md"
BEGIN, END = "<!-- begin: benchmarks.depth_memory -->", "<!-- end: benchmarks.depth_memory -->"
STORES = ("sqlite", "memory")
DEPTHS = (5, 50, 500)
RUNS = 10
SMALL, LARGE = 1280, 16_384
CARRYOVER = 512
# Number of paragraphs that fit into one window of SMALL.
PARAGRAPHS_PER_WINDOW = 6
START_LIMIT_S = 60.0
CALL_LIMIT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Resident memory of one server in KiB: after its first answer, after each run, and at its peak."""

    store: str
    chunk_size: int
    windows: int
    text_kb: int
    before_kb: int
    after_kb: Sequence[int]
    peak_kb: int

    @property
    def second_half_kb(self) -> float:
        """The median of the last third of the runs minus the median of the third before, in KiB."""
        third = max(1, len(self.after_kb) // 3)
        last, earlier = self.after_kb[-third:], self.after_kb[-2 * third : -third] or self.after_kb
        return statistics.median(last) - statistics.median(earlier)


def resident_kb(pid: int, what: str = "VmRSS") -> int:
    """Return the resident memory of a process in KiB, or with VmHWM its peak."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{what}:"))


@contextmanager
def server(store: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Run a server process with the demo model; yield its id and the content of its ready file."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.json"
        url = "memory:" if store == "memory" else f"sqlite:///{folder}/reasond.db"
        process = subprocess.Popen(
            [COMMAND, "serve", "--dev", "--ready-file", str(ready)],
            env={**clean_environment(), "REASOND__SERVER__DRAIN_DELAY_S": "0", "REASOND__STORE__URL": url},
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            begun = time.perf_counter()
            while not ready.exists():
                if process.poll() is not None or time.perf_counter() - begun > START_LIMIT_S:
                    raise SystemExit("the server did not get ready")
                time.sleep(0.05)
            yield process.pid, json.loads(ready.read_text(encoding="utf-8"))
        finally:
            process.terminate()
            process.wait(START_LIMIT_S)


def measure_depth(store: str, depth: int, chunk_size: int, runs: int) -> Row:
    """Let a server read a text of about `depth` windows of SMALL, `runs` times."""
    import reasond  # noqa: PLC0415 - the client, which only this part needs

    config = reasond.BoundedContextConfig(chunk_size=chunk_size, carryover_size=CARRYOVER, max_segments=4096)
    text = "\n".join(PARAGRAPH.format(day) for day in range(depth * PARAGRAPHS_PER_WINDOW))
    with server(store) as (pid, where), reasond.Client(where["grpc"], token=where["token"]) as client:
        client.reason(QUESTION, material=text_of(4000), config=config)
        before, after, windows = resident_kb(pid), [], 0
        for _ in range(runs):
            result = client.reason(QUESTION, material=text, config=config, timeout_s=CALL_LIMIT_S)
            windows = result.metrics.bounded_context.total_iterations
            after.append(resident_kb(pid))
        row = Row(
            store=store,
            chunk_size=chunk_size,
            windows=windows,
            text_kb=len(text) // 1024,
            before_kb=before,
            after_kb=after,
            peak_kb=resident_kb(pid, "VmHWM"),
        )
    print(f"    {asdict(row)} {row.second_half_kb:+.0f}", flush=True)
    return row


def page_lines(rows: Sequence[Row]) -> list[str]:
    """Return the lines of the page's table."""
    return [
        "| store | C | windows | text, KiB | before, MiB | first run | last run | highest | last third, KiB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *(
            f"| {row.store} | {row.chunk_size} | {row.windows} | {row.text_kb:,} | {row.before_kb / 1024:.1f} "
            f"| {row.after_kb[0] / 1024:.1f} | {row.after_kb[-1] / 1024:.1f} | {row.peak_kb / 1024:.1f} "
            f"| {row.second_half_kb:+,.0f} |"
            for row in rows
        ),
    ]


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=RUNS, help="runs of each row (%(default)s)")
    chosen = parser.parse_args()
    rows = []
    for store in STORES:
        rows += [measure_depth(store, depth, SMALL, max(1, chosen.runs)) for depth in DEPTHS]
        rows.append(measure_depth(store, DEPTHS[-1], LARGE, max(1, chosen.runs)))
    report = {
        "circumstances": circumstances(("reasond-server",)),
        "load": round(os.getloadavg()[0], 1),
        "runs": chosen.runs,
        "rows": [asdict(row) for row in rows],
    }
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")
    put_between(PAGE, BEGIN, END, "\n".join(["", *page_lines(rows), ""]))


if __name__ == "__main__":
    main()
