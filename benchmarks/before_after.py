"""Measure the processor time of the hot paths beside that of an earlier state of the server, in the same run.

Prints a table and writes results/before_after.json beside this file. Function calls (`benchmarks.call_profile`) are the
same on every machine, but they do not show what a call costs, and the profiler misses some; so this benchmark measures
processor time. It checks the earlier state out into a temporary worktree and runs the server with the benchmark
programs of that state, so that neither need know the other's modules. Both servers are loaded in turn, every other
round in reverse order, and started anew several times, because one start of a server differs from the next by up to a
twentieth. The figure is the median of the ratios within a round. It needs the history of the repository; `--before`
names another commit to compare with.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from benchmarks.call_profile import PACKAGES, PATHS, addresses_of, serve_path, target_of
from benchmarks.loading import load
from benchmarks.machine import new_event_loop, pin, two_processors, write_report
from benchmarks.serving import ROOT, ServerProcess, be_measured, running, serve_until_told
from benchmarks.upstream import running_upstream
from reasond_server.assembly import app

RESULTS = Path(__file__).resolve().parent / "results" / "before_after.json"
MODULE: Final = "benchmarks.before_after"
BEFORE: Final = "85a6e82a"
"""The last commit before the server was built anew in rooms, values of one kind and errors of one form."""
STARTS: Final = 5
ROUNDS: Final = 3
MICRO: Final = 1_000_000
LIMIT_S: Final = 600


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """Make a worktree of the repository at `commit` that lasts as long as the context."""
    git = ("git", "-C", str(ROOT), "worktree")
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run([*git, "add", "--detach", str(tree), commit], check=True, capture_output=True, timeout=LIMIT_S)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True, timeout=LIMIT_S)


async def serve(name: str, base_url: str) -> None:
    """Serve until told to stop, with the garbage collector set as `reasond serve` sets it."""
    async with serve_path(name, base_url) as server:
        app.tune_garbage_collection()
        await serve_until_told(**addresses_of(server))


async def cpu_us_of(server: ServerProcess, name: str, calls: int) -> float:
    """Return the processor time of one part of a call under the path's load, in microseconds."""
    path = PATHS[name]
    begun = server.cpu_s()
    await load(target_of(server, name), path.call_of(server), callers=path.callers, total=calls)
    return (server.cpu_s() - begun) / calls / path.parts * MICRO


def measure_one(name: str, before: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one path on both servers; `before` is the checkout of the earlier one."""
    path = PATHS[name]
    calls = max(path.callers, int(path.calls * options.scale) // path.callers * path.callers)
    core, other = two_processors()
    pin(other)
    rounds: list[Sequence[float]] = []
    with ExitStack() as stack:
        base_url = stack.enter_context(running_upstream(core=other))
        runner = stack.enter_context(asyncio.Runner(loop_factory=new_event_loop))
        for _ in range(options.starts):
            rounds += measure_start(
                name, (before, ROOT), base_url, runner, calls=calls, rounds=options.rounds, core=core
            )
    return {
        "path": name,
        "before_us": round(statistics.median(one[0] for one in rounds), 1),
        "after_us": round(statistics.median(one[1] for one in rounds), 1),
        "share": round(statistics.median(one[1] / one[0] for one in rounds), 3),
    }


def measure_start(
    name: str,
    trees: Sequence[Path],
    base_url: str,
    runner: asyncio.Runner,
    *,
    calls: int,
    rounds: int,
    core: int,
) -> list[Sequence[float]]:
    """Start the server of each of the `trees`, and return what a call cost each of them in each round."""
    with ExitStack() as stack:
        servers = [stack.enter_context(running(MODULE, name, base_url, core=core, tree=each)) for each in trees]
        for server in servers:
            runner.run(cpu_us_of(server, name, calls))
        found: list[Sequence[float]] = []
        for number in range(rounds):
            turn = [runner.run(cpu_us_of(server, name, calls)) for server in servers[:: -1 if number % 2 else 1]]
            found.append(turn[:: -1 if number % 2 else 1])
    return found


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--before", default=BEFORE, metavar="COMMIT", help="the earlier state (%(default)s)")
    parser.add_argument("--starts", type=int, default=STARTS, help="starts of both servers (%(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each start (%(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="calls of a round, as a share of the usual number")
    parser.add_argument("--path", nargs="+", choices=list(PATHS), default=list(PATHS), help="fewer write nothing")
    parser.add_argument("--core", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=2, metavar=("PATH", "URL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        be_measured(serve(*options.serve), core=options.core)
        return
    rows = []
    with worktree(options.before) as tree:
        for name in options.path:
            row = measure_one(name, tree, options)
            rows.append(row)
            print(f"{name:<10} {row['before_us']:8.1f} -> {row['after_us']:8.1f} us, {row['share']:.3f}", flush=True)
    if options.path != list(PATHS) or options.before != BEFORE:
        return
    write_report(RESULTS, PACKAGES, before=BEFORE, rounds=options.starts * options.rounds, rows=rows)


if __name__ == "__main__":
    main()
