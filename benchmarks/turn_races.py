"""Resume one waiting agent twice at the same time, in reasond and beside it: how often does the next tool run?

Prints a table and writes results/turn_races.json beside this file. An agent waits for the answer to one tool call. Two
worker processes on the same store get the same answer at the same time and go on; then the model calls a tool with an
effect (`benchmarks/race_sides.py` has the agents). The goal is one effect. reasond works over PostgreSQL; LangGraph has
its checkpoints in SQLite; pydantic-ai and openai-agents leave the state to the caller, who keeps it in a file.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.machine import circumstances
from benchmarks.peer_environments import LANGGRAPH, OPENAI_AGENTS, PYDANTIC_AI, ROOT, install_peer
from benchmarks.processes import environment
from benchmarks.race_sides import AGENTS, DONE, GRAPH, OURS, PYDANTIC
from reasond_server.stores import migrate_stores
from tests.engines.postgres import running_postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

RESULTS = Path(__file__).resolve().parent / "results" / "turn_races.json"
PACKAGES = ("reasond-server", "psycopg")
RACES: Final = 3
WORKERS: Final = 2
LIMIT_S: Final = 300.0


def run_race(python: Path, side: str, place: str, effects: Path) -> dict[str, Any]:
    """Start an agent, resume it in two processes at once, and return the effects and what the workers said."""
    command = [str(python), "-m", "benchmarks.race_sides", side]
    environ = environment(LANGSMITH_TRACING="false", OPENAI_AGENTS_DISABLE_TRACING="1")
    subprocess.run([*command, "start", place, str(effects)], cwd=ROOT, env=environ, check=True, timeout=LIMIT_S)
    with ExitStack() as stack:
        workers = [
            stack.enter_context(
                subprocess.Popen(
                    [*command, "resume", place, str(effects)],
                    cwd=ROOT,
                    env=environ,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(WORKERS)
        ]
        for worker in workers:
            if worker.stdout is None or not worker.stdout.readline():
                raise SystemExit(f"{side} did not start")
        for worker in workers:
            if worker.stdin is not None:
                worker.stdin.write("go\n")
                worker.stdin.flush()
        said = [json.loads(worker.communicate(timeout=LIMIT_S)[0]) for worker in workers]
    lines = effects.read_text(encoding="utf-8").splitlines() if effects.exists() else []
    return {"effects": len(lines), "said": said}


def race_side(name: str, python: Path, folder: Path, place_of: Callable[[Path], str], races: int) -> dict[str, Any]:
    """Return the effects of each race of one side, and how many workers got the answer."""
    effects: list[int] = []
    errors: set[str] = set()
    answers = 0
    for number in range(races):
        own = folder / f"{name}{number}"
        own.mkdir()
        found = run_race(python, name, place_of(own), own / "effects")
        effects.append(found["effects"])
        answers += sum(one.get("answer") == DONE for one in found["said"])
        errors.update(one["error"] for one in found["said"] if "error" in one)
    return {"side": name, "effects": effects, "answers": answers, "workers": WORKERS * races, "errors": sorted(errors)}


def report_of(races: int) -> dict[str, Any]:
    """Make the environments, run the races, and return the report."""
    peers = {PYDANTIC: PYDANTIC_AI, AGENTS: OPENAI_AGENTS, GRAPH: LANGGRAPH}
    made = {name: install_peer(peer) for name, peer in peers.items()}
    rows: list[dict[str, Any]] = []
    versions: dict[str, str] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(running_postgres())

        def new_database(_folder: Path) -> str:
            url = server.new_database()
            migrate_stores(url=url, data_dir="")
            return url

        rows.append(race_side(OURS, Path(sys.executable), folder, new_database, races))
        for name, one in made.items():
            rows.append(race_side(name, one.python, folder, str, races))
            versions |= one.versions
    return {"circumstances": circumstances(PACKAGES), "races": races, "peers": versions, "rows": rows}


def tell(rows: Sequence[dict[str, Any]]) -> None:
    """Print the rows."""
    for row in rows:
        times = ", ".join(map(str, row["effects"]))
        print(f"{row['side']:<14} the next tool ran {times} times; {row['answers']} of {row['workers']} got the answer")
        for error in row["errors"]:
            print(f"{'':<14} {error}")


def main() -> int:
    """Race, print and write the results; return 1 if reasond had another number of effects than one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--races", type=int, default=RACES, help="races of each side (%(default)s)")
    report = report_of(max(1, parser.parse_args().races))
    print(", ".join(f"{name} {version}" for name, version in report["peers"].items()))
    tell(report["rows"])
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")
    return 0 if set(report["rows"][0]["effects"]) == {1} else 1


if __name__ == "__main__":
    sys.exit(main())
