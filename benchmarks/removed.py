"""Count the function calls that each change to a hot path took away: the commit beside the one before it.

Prints a table and writes results/removed.json beside this file. The server of each commit is checked out into a
temporary worktree and profiled by today's benchmarks/call_profile.py, except for the path `token`. Commits that are
already in the file are not profiled again. It needs the history of the repository.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.call_profile import PACKAGES
from benchmarks.machine import circumstances

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results" / "removed.json"
LIMIT_S: Final = 600
SCALE: Final = 0.5
PATHS: Final = ("unary", "jsonrpc", "stream", "upstream")
CHANGES: Final = (
    ("94b5ff4", "The memory store looks at what expires next instead of at every log (130 us a call at 1,000 logs)."),
    (
        "ac5a2bd",
        "A unary run is created by its first append, with others of the same 20 ms, and not by a task of its own.",
    ),
    ("92be681", "Added: metrics for Prometheus."),
    ("e821c9d", "Limits in memory make no task for each request; fewer copies, draws and timers on the way."),
    ("c447691", "A run that is over and its log hold each other no more: 39 objects a call less for the collector."),
    ("dedb5af", "Protobuf messages are written in place instead of being built apart and copied."),
    ("7149b67", "JSON-RPC watches for a client's departure only in calls that take more than 30 ms."),
    ("6b9dc0e", "Later requests to a model are copies of the first with their own body and trace."),
    ("54534a1", "A line of the access log looks neither for its caller nor at a record's own fields."),
    ("0a698de", "The openai package writes requests and one aiohttp session sends them, without httpx2 on the way."),
    (
        "0917bb4",
        "A model call passes through two generators instead of six; its history is encoded and digested once.",
    ),
    ("4f0a4be", "One timer for each stream instead of one for each message."),
    ("a072a76", "A unary call is one line less in the log; assignments are made once."),
    ("2866c84", "Sizes of entries are taken once, executions copied once instead of six times."),
    ("8c0b2f6", "The library `limits` counts requests again: its windows, over a storage without tasks."),
    (
        "3f2874b",
        "Limits and budgets in memory: no task for a place, tokens counted only where the count bounds something.",
    ),
    ("19f0a79", "Generic handlers alone serve methods: one task waits for the next call, not one for each method."),
    ("3f1293c", "Lines of every call go straight to the handler that writes JSON."),
    ("a0cd87b", "Headers are read once, before the message; handlers are wrapped once, results written in place."),
    ("1e614aa", "A series of a metric is found by a look into a dictionary."),
    ("47dc015", "A run works in one task; another one sees it out only where it has to be stopped from outside."),
    ("2880139", "Model calls are watched where they are metered: two generators fewer."),
    ("fc5f15d", "What no request changes is resolved once, text that nobody reads is not kept."),
    ("1da605c", "A JSON-RPC call runs in its request's task; headers are taken apart once, an answer is one write."),
    ("cb41518", "A dictionary of six addresses instead of Starlette's router."),
    ("4fd716f", "Plain JSON of a step is copied without being written; sizes ask a class for its fields once."),
    ("14ede98", "Plain fields of what a strategy reports are looked at once."),
    ("d92c2da", "A model call is one generator; what came of an answer is read at once, a message is written once."),
    ("127f04b", "Headers of HTTP are read where somebody asks, a body is held once and looked at once."),
    ("7efa3e7", "A connection cancels what is worked on for a client that leaves: no timer and no task looks for it."),
    (
        "50911ce",
        "Values that are made for every call set their fields directly (the profiler does not see those calls).",
    ),
    ("3b6cbfa", "A reply is read up to what could be a tag or a fence, not line by line."),
    ("4723365", "The end of an answer that came with its last bytes is not read for; its decoder makes no generators."),
    (
        "6295bad",
        "The collector looks after 30,000 new objects instead of 10,000; usage that the upstream reports is right.",
    ),
)
"""Commits and their changes, oldest first."""


def git(*arguments: str) -> str:
    """Return the output of git."""
    told = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True, timeout=LIMIT_S)
    return told.stdout.strip()


@contextmanager
def worktree(commit: str = "HEAD") -> Iterator[Path]:
    """Make a worktree of the repository at `commit` that lasts as long as the context."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        git("worktree", "add", "--detach", str(tree), commit)
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def sources_of(tree: Path) -> str:
    """Return the PYTHONPATH of the server checked out in `tree`."""
    return os.pathsep.join(str(tree / part) for part in ("src", "clients/python/src"))


def totals_of(tree: Path, commit: str) -> dict[str, float]:
    """Return the function calls of each path on the server of that commit."""
    subprocess.run(["git", "checkout", "-q", "--detach", commit], cwd=tree, check=True, timeout=LIMIT_S)
    command = [sys.executable, "-m", "benchmarks.call_profile", "--totals", "--scale", str(SCALE), "--path", *PATHS]
    environ = {**os.environ, "PYTHONPATH": sources_of(tree)}
    told = subprocess.run(
        command, cwd=ROOT, env=environ, check=True, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S
    )
    totals: dict[str, float] = json.loads(told.stdout.splitlines()[-1])
    return totals


def main() -> None:
    """Profile the commits that are not in the file yet, print and write the results."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    report: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"totals": {}}
    totals = report["totals"]
    changes = [
        {"commit": one, "before": git("rev-parse", "--short=7", f"{one}^"), "what": what} for one, what in CHANGES
    ]
    with worktree() as tree:
        for commit in dict.fromkeys(change[when] for change in changes for when in ("before", "commit")):
            if commit not in totals:
                totals[commit] = totals_of(tree, commit)
                print(commit, totals[commit], flush=True)
                report = {"circumstances": circumstances(PACKAGES), "changes": changes, "totals": totals}
                RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")
    for change in changes:
        before, after = totals[change["before"]], totals[change["commit"]]
        gave = ", ".join(f"{path} {after[path] - before[path]:+.1f}" for path in PATHS)
        print(f"{change['commit']} {gave}: {change['what']}")
    report = {"circumstances": circumstances(PACKAGES), "changes": changes, "totals": totals}
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
