"""Measure the response time of the command, and the start time, memory and growth of the server: `make bench`.

Prints a table and writes results/startup.json beside this file; with `--readme` it measures nothing and writes the
figures of that file into README.md, between its markers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.loading import GrpcCall, load
from benchmarks.machine import new_event_loop, write_report
from benchmarks.pages import put_between
from reasond.v1 import reasoning_service_pb2
from reasond_server.agents.cards import parse_card
from reasond_server.agents.directory import AgentDirectory
from reasond_server.reasoning.configuration import StrategyConfiguration
from reasond_server.reasoning.registry import StrategyRegistry
from reasond_server.reasoning.strategy_selection import SelectionInputs, select
from reasond_server.storage.sqlite_file import open_memory
from reasond_server.storage.transactions import MemoryTransactions
from reasond_server.strategies.chain_of_thought import ChainOfThought

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).resolve().parent / "results" / "startup.json"
README = ROOT / "README.md"
BEGIN, END = "<!-- numbers:begin -->", "<!-- numbers:end -->"
COMMAND = str(Path(sys.executable).with_name("reasond"))
PACKAGES = ("reasond-server", "grpcio", "protobuf", "pydantic", "uvicorn", "typer")
PATH = "/reasond.v1.ReasoningService/Reason"
MEMORY, SQLITE = "memory:", "sqlite:///{folder}/bench.db"
CALLS, CALLERS = 10_000, 16
RUNS = 5
STRATEGIES = 100
AGENTS = 1000
TENANT = "bench"
# Each agent offers all strategies, and the request needs the last one.
_CHOICES = 1000
LIMIT_S = 60.0
WHEELS_LIMIT_S = 1200.0
POLL_S = 0.002
KIBI = 1024
MEGA = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One figure: the median of `runs`, in `unit`, and the goal that it must stay below."""

    name: str
    median: float
    lowest: float
    highest: float
    unit: str
    runs: int
    goal: float

    @property
    def is_met(self) -> bool:
        """Whether the median is below the goal."""
        return self.median < self.goal


def measure_of(name: str, values: list[float], *, unit: str, goal: float) -> Measure:
    """Return the figure of several runs."""
    return Measure(
        name=name,
        median=round(statistics.median(values), 3),
        lowest=round(min(values), 3),
        highest=round(max(values), 3),
        unit=unit,
        runs=len(values),
        goal=goal,
    )


def clean_environment() -> dict[str, str]:
    """Return the environment without user settings that would change the measurement."""
    foreign = ("REASOND", "OPENAI_", "PYTHON")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "REASOND__SERVER__GRPC_ADDRESS": "127.0.0.1:0", "REASOND__SERVER__HTTP_ADDRESS": "127.0.0.1:0"}


def time_of(*arguments: str) -> float:
    """Return the seconds from the start to the end of a command that must succeed."""
    begun = time.perf_counter()
    subprocess.run(
        [COMMAND, *arguments],
        env=clean_environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,  # and no timeout: waiting with one looks every 50 ms only
    )
    return time.perf_counter() - begun


@contextmanager
def running(store: str, more: Mapping[str, str] | None = None) -> Iterator[tuple[float, int, dict[str, str]]]:
    """Run `reasond serve --dev` with that store; yield the seconds until it was ready, its process id and addresses.

    `more` are further variables of its environment.
    """
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.json"
        settings = {
            "REASOND__SERVER__DRAIN_DELAY_S": "0",
            "REASOND__STORE__URL": store.format(folder=folder),
            **(more or {}),
        }
        begun = time.perf_counter()
        process = subprocess.Popen(
            [COMMAND, "serve", "--dev", "--ready-file", str(ready)],
            env={**clean_environment(), **settings},
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while not ready.exists():
                if process.poll() is not None or time.perf_counter() - begun > LIMIT_S:
                    raise SystemExit("the server did not get ready")
                time.sleep(POLL_S)
            seconds = time.perf_counter() - begun
            yield seconds, process.pid, json.loads(ready.read_text(encoding="utf-8"))
            process.send_signal(signal.SIGTERM)
            process.wait(LIMIT_S)
        finally:
            process.kill()
            process.wait()


def start_server(store: str) -> tuple[float, float]:
    """Return the seconds from the server's start until it is ready, and its resident megabytes then."""
    with running(store) as (seconds, process_id, _):
        return seconds, resident_megabytes(process_id)


def measure_growth(store: str) -> tuple[float, float]:
    """Return the megabytes by which a server grows over its first 10,000 calls of `Reason`, and over the next 10,000.

    The calls come from 16 callers. The first ones fill caches and load what is loaded when it is needed.
    """
    request = reasoning_service_pb2.ReasonRequest()
    request.task.query, request.task.strategy = "How much is six times seven?", "chain_of_thought"
    with running(store) as (_, process_id, told):
        metadata = (("authorization", f"Bearer {told['token']}"),)
        call = GrpcCall(path=PATH, metadata=metadata, message=request.SerializeToString())
        sizes = [resident_megabytes(process_id)]
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            for _ in range(2):
                runner.run(load(told["grpc"], call, callers=CALLERS, total=CALLS))
                sizes.append(resident_megabytes(process_id))
        return sizes[1] - sizes[0], sizes[2] - sizes[1]


def resident_megabytes(process_id: int) -> float:
    """Return the resident memory of a process in megabytes (millions of bytes)."""
    shown = subprocess.run(
        ["ps", "-o", "rss=", "-p", str(process_id)], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    return int(shown.stdout) * KIBI / MEGA


def repeat(run: Callable[[], Any], times: int) -> list[Any]:
    """Return the results of `times` runs, after a warm-up run that fills the caches."""
    run()
    return [run() for _ in range(times)]


def wheels_megabytes() -> tuple[float, int]:
    """Return the size of the wheels of the base install, in millions of bytes, and their number."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--wheel-dir", folder]
        projects = (ROOT / "clients" / "python", ROOT)
        constraints = ("-c", str(ROOT / "constraints.txt"))
        subprocess.run([*command, *constraints, *map(str, projects)], check=True, timeout=WHEELS_LIMIT_S)
        sizes = [wheel.stat().st_size for wheel in Path(folder).glob("*.whl")]
    return sum(sizes) / MEGA, len(sizes)


def _strategies() -> list[ChainOfThought]:
    return [type(f"Strategy{number}", (ChainOfThought,), {"name": f"s{number:03d}"})() for number in range(STRATEGIES)]


async def _directory() -> AgentDirectory:
    """Return a directory in memory that is full of agents."""
    directory = AgentDirectory(rows=MemoryTransactions(open_memory()), max_agents=AGENTS, now=lambda: datetime.now(UTC))
    offered = ", ".join(f'"reasoning.strategy.s{number:03d}"' for number in range(STRATEGIES))
    card = parse_card(f'{{"capabilities": [{offered}]}}', max_bytes=65_536)
    for number in range(AGENTS):
        await directory.register(tenant=TENANT, agent_id=f"a{number}", parsed=card)
    return directory


async def selections_ms(times: int) -> list[float]:
    """Return the mean milliseconds of one selection, `times` times: look-up of the agent, choice and parameters."""
    registry = StrategyRegistry(_strategies())
    configuration = StrategyConfiguration(registry=registry, tables={})
    directory = await _directory()
    last = f"s{STRATEGIES - 1:03d}"
    taken = []
    for _ in range(times):
        begun = time.perf_counter()
        for number in range(_CHOICES):
            agent = await directory.get(tenant=TENANT, agent_id=f"a{number % AGENTS}")
            selection = select(SelectionInputs(requested=last, offered=agent.strategies), registry)
            configuration.resolve(selection.strategy, request={"temperature": 0.5})
        taken.append(1000 * (time.perf_counter() - begun) / _CHOICES)
    return taken


def measure() -> list[Measure]:
    """Measure everything."""
    helps = repeat(lambda: time_of("--help"), 10)
    starts = repeat(lambda: start_server(MEMORY), RUNS)
    kept = repeat(lambda: start_server(SQLITE), RUNS)
    grown = [measure_growth(SQLITE) for _ in range(RUNS)]
    demos = repeat(lambda: time_of("demo"), RUNS)
    wheels, count = wheels_megabytes()
    selections = f"choosing among {STRATEGIES} strategies for one of {AGENTS:,} agents, parameters included"
    return [
        measure_of("`reasond --help`", [1000 * one for one in helps], unit="ms", goal=150),
        measure_of("`reasond serve --dev`, from process start to ready", [one[0] for one in starts], unit="s", goal=1),
        measure_of("the same with a new SQLite file", [one[0] for one in kept], unit="s", goal=1),
        measure_of("resident memory when ready", [one[1] for one in starts], unit="MB", goal=100),
        measure_of("the same with SQLite", [one[1] for one in kept], unit="MB", goal=100),
        measure_of(f"growth over the first {CALLS:,} calls, with SQLite", [one[0] for one in grown], unit="MB", goal=5),
        measure_of(f"growth over the next {CALLS:,} calls, with SQLite", [one[1] for one in grown], unit="MB", goal=1),
        measure_of(f"wheels of the base install, {count} of them", [wheels], unit="MB", goal=42),
        measure_of(selections, repeat(lambda: asyncio.run(selections_ms(1))[0], RUNS), unit="ms", goal=1),
        measure_of("`reasond demo`, from start to end", demos, unit="s", goal=30),
    ]


def print_table(measures: list[Measure]) -> None:
    """Print the figures as a table."""
    width = max(len(one.name) for one in measures)
    for one in measures:
        verdict = "met" if one.is_met else "MISSED"
        extent = f"{show_figure(one.lowest, one.unit)} to {show_figure(one.highest, one.unit)}, {one.runs} runs"
        goal = f"goal < {one.goal:g} {one.unit}: {verdict}"
        print(f"{one.name:<{width}}  {show_figure(one.median, one.unit):>8}  {goal} ({extent})")


def show_figure(value: float, unit: str) -> str:
    """Return a figure with its unit: two decimal places for seconds and for values below ten, none for others."""
    return f"{value:.2f} {unit}" if unit == "s" or value < 10 else f"{value:.0f} {unit}"  # noqa: PLR2004 - as said


def block(report: Mapping[str, Any]) -> str:
    """Return the lines between the README's markers, a selection of the figures."""
    where = report["circumstances"]
    rows = [
        f"| {one['name']} | {show_figure(one['median'], one['unit'])} | < {one['goal']:g} {one['unit']} |"
        for one in report["measures"]
        if "SQLite" not in one["name"] and "choosing" not in one["name"] and "wheels" not in one["name"]
    ]
    machine = f"{where['processors']} processors, {where['system']} {where['machine']}, {where['python']}"
    note = f"Medians by `make bench` on {machine}, grpcio {where['packages']['grpcio']}, {where['event_loop']}"
    note = f"{note}, demo model; {where['date']}."
    return "\n".join(["| measured | median | goal |", "| --- | --- | --- |", *rows, "", note])


def main() -> None:
    """Measure, or write the saved figures into the README."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--readme", action="store_true", help="measure nothing, write the last figures into README.md")
    if parser.parse_args().readme:
        report = json.loads(RESULTS.read_text(encoding="utf-8"))
        put_between(README, BEGIN, END, block(report))
        return
    measures = measure()
    print_table(measures)
    write_report(RESULTS, PACKAGES, measures=[asdict(one) for one in measures])


if __name__ == "__main__":
    main()
