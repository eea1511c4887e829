"""Measure a ReAct run of reasond beside the same run of LangGraph, LangChain and pydantic-ai: processor time per run.

Prints a table and writes results/agent_loops.json beside this file. A run is two model calls and one tool call, against
one upstream process that answers at once (`benchmarks/loop_sides.py` has the loops). Each peer runs in its own process
and environment. reasond runs in two ways: its core without a listener, and `reasond serve` called over gRPC with tokens
verified and the access log on. The two model calls alone, made by reasond's client and by aiohttp, show their share of
a run. The measured process has one processor; upstream and client have the other. Rounds alternate between the sides;
ratios are medians over the rounds of the ratio within a round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.loading import GrpcCall, load
from benchmarks.loop_sides import ANSWER_BYTES, OURS, OVER_AIOHTTP, OVER_POST, QUESTION, model_settings
from benchmarks.machine import circumstances, new_event_loop, pin, two_processors
from benchmarks.peer_environments import LANGGRAPH, PYDANTIC_AI, ROOT, install_peer, installed_ours
from benchmarks.processes import end_children_on_sigterm, environment, reasond
from benchmarks.upstream import running_upstream
from reasond.v1 import reasoning_service_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from benchmarks.peer_environments import Installed
    from benchmarks.processes import Reasond

RESULTS = Path(__file__).resolve().parent / "results" / "agent_loops.json"
PACKAGES = ("reasond-server", "grpcio", "openai", "aiohttp", "pydantic")
PATH: Final = "/reasond.v1.ReasoningService/Reason"
ROUNDS: Final = 5
OVER_GRPC: Final = "reasond, gRPC"
GRAPH, CHAIN, PYDANTIC = "LangGraph create_react_agent", "LangChain create_agent", "pydantic-ai"
# Enough runs for about a second of processor time: the peers' runs take longer.
RUNS: Final = {OVER_GRPC: 400, OURS: 400, GRAPH: 120, CHAIN: 120, PYDANTIC: 120, OVER_POST: 400, OVER_AIOHTTP: 1600}
AT_ONCE: Final = (1, 16)
GOALS: Final = {GRAPH: 5.0, PYDANTIC: 6.0}
MILLI: Final = 1000
STOP_LIMIT_S: Final = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A peer's processor time per run, divided by ours over gRPC; it must reach the goal."""

    what: str
    ratio: float
    goal: float

    @property
    def is_met(self) -> bool:
        """Whether the ratio reaches the goal."""
        return self.ratio >= self.goal


@contextmanager
def looping(made: Installed, side: str, *, base_url: str, core: int) -> Iterator[Callable[[int, int], float]]:
    """Run a side in its environment while the context lasts."""
    command = [str(made.python), "-m", "benchmarks.loop_sides", side, base_url, str(core)]
    environ = environment(LANGSMITH_TRACING="false")
    with subprocess.Popen(
        command, cwd=ROOT, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        if process.stdin is None or process.stdout is None:
            raise SystemExit("the side has no pipes")
        read, write = process.stdout, process.stdin

        def took(runs: int, at_once: int) -> float:
            write.write(f"{runs} {at_once}\n")
            write.flush()
            line = read.readline()
            if not line:
                raise SystemExit(f"{side} ended")
            return float(json.loads(line)["cpu_s"])

        try:
            if not read.readline():
                raise SystemExit(f"{side} did not start")
            yield took
        finally:
            write.close()
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def call_server(serving: Reasond) -> Callable[[int, int], float]:
    """Return the side that calls a server over gRPC and measures the server's processor time."""
    request = reasoning_service_pb2.ReasonRequest()
    request.task.query, request.task.strategy = QUESTION, "react"
    request.task.react.allow_tool_use = True
    call = GrpcCall(path=PATH, metadata=serving.metadata, message=request.SerializeToString(), least=ANSWER_BYTES)

    def took(runs: int, at_once: int) -> float:
        begun = serving.running.cpu_s()
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(load(serving.grpc, call, callers=at_once, total=runs))
        return serving.running.cpu_s() - begun

    return took


def rounds_of(sides: Mapping[str, Callable[[int, int], float]], rounds: int) -> list[dict[tuple[str, int], float]]:
    """Return the milliseconds of processor time per run, by side and number of concurrent runs, after a warm-up."""
    for name, took in sides.items():
        took(RUNS[name] // 2, AT_ONCE[-1])
    names = list(sides)
    return [
        {
            (name, at_once): MILLI * sides[name](RUNS[name], at_once) / RUNS[name]
            for at_once in AT_ONCE
            for name in names[:: 1 if number % 2 else -1]
        }
        for number in range(rounds)
    ]


def rows_of(rounds: Sequence[Mapping[tuple[str, int], float]]) -> list[dict[str, Any]]:
    """Return the medians of each side at each number of concurrent runs."""
    rows = []
    for name, at_once in rounds[0]:
        cpu_ms = statistics.median(one[name, at_once] for one in rounds)
        rows.append(
            {
                "side": name,
                "at_once": at_once,
                "cpu_ms": round(cpu_ms, 3),
                "runs_per_core_s": round(MILLI / cpu_ms, 1),
                "over_grpc": round(ratio(rounds, name, OVER_GRPC, at_once), 2),
                "over_in_process": round(ratio(rounds, name, OURS, at_once), 2),
            }
        )
    return sorted(rows, key=lambda row: (row["at_once"], row["cpu_ms"]))


def ratio(rounds: Sequence[Mapping[tuple[str, int], float]], name: str, other: str, at_once: int) -> float:
    """Return the median over the rounds of one side's processor time over another's."""
    return statistics.median(one[name, at_once] / one[other, at_once] for one in rounds)


def goals_of(rounds: Sequence[Mapping[tuple[str, int], float]]) -> list[Goal]:
    """Return reasond's goals over gRPC at each number of concurrent runs."""
    return [
        Goal(what=f"{name}, {at_once} at once", ratio=round(ratio(rounds, name, OVER_GRPC, at_once), 3), goal=goal)
        for name, goal in GOALS.items()
        for at_once in AT_ONCE
    ]


def report_of(rounds: int) -> dict[str, Any]:
    """Make the environments, measure every side, and return the report."""
    ours = installed_ours()
    graph, typed = install_peer(LANGGRAPH), install_peer(PYDANTIC_AI)
    environments = {GRAPH: graph, CHAIN: graph, PYDANTIC: typed, OURS: ours, OVER_POST: ours, OVER_AIOHTTP: ours}
    core, other = two_processors()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        base_url = stack.enter_context(running_upstream(core=other))
        pin(other)
        settings = {"REASOND__TOOLS__ENABLED": '["calculator"]', **model_settings(base_url)}
        serving = stack.enter_context(reasond(ours.program("reasond"), core=core, folder=folder, settings=settings))
        sides = {OVER_GRPC: call_server(serving)}
        for name, made in environments.items():
            sides[name] = stack.enter_context(looping(made, name, base_url=base_url, core=core))
        figures = rounds_of(sides, rounds)
    return {
        "circumstances": circumstances(PACKAGES),
        "rounds": rounds,
        "peers": {**graph.versions, **typed.versions},
        "rows": rows_of(figures),
        "goals": [{**asdict(goal), "is_met": goal.is_met} for goal in goals_of(figures)],
    }


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count (%(default)s)")
    options = parser.parse_args()
    end_children_on_sigterm()
    report = report_of(max(1, options.rounds))
    for row in report["rows"]:
        print(
            f"{row['at_once']:>3} at once  {row['side']:<30} {row['cpu_ms']:7.2f} ms CPU per run, "
            f"{row['runs_per_core_s']:7.1f} runs/s per core, {row['over_grpc']:5.2f} of gRPC, "
            f"{row['over_in_process']:5.2f} of in process"
        )
    for goal in report["goals"]:
        verdict = "met" if goal["is_met"] else "MISSED"
        print(f"goal: {goal['what']}, over reasond through gRPC >= {goal['goal']:g}: {goal['ratio']:.2f}, {verdict}")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
