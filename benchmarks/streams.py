"""Measure streams and unary calls on each store: events per second and core, how late a step comes, what a call costs.

Prints a table and writes results/streams.json beside this file. A server in a process of its own runs strategies that
need no model; clients of this process follow them over gRPC. Three rounds alternate between memory, an SQLite file and,
where it is installed, a PostgreSQL of this benchmark's own:

    flood   16 streams of 400 steps as fast as they come: the server's processor time per event
    paced   32 streams of 50 steps, one every 20 ms: from the end of a step until the client has it
    unary   300 calls of Reason without request id, one after the other: processor time and wall time per call
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc

from benchmarks.machine import circumstances, new_event_loop, pin, two_processors
from reasond.v1 import reasoning_service_pb2, reasoning_service_pb2_grpc
from reasond_server.executions.opening import migrate_stores
from reasond_server.strategies.strategy import Outcome, ReasoningStrategy, RunContext, Step, StrategyConfig
from reasond_server.testing import running_server
from reasond_server.types import CustomMetrics, FinishReason, Thought
from tests.engines.postgres import is_postgres_here, running_postgres

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from reasond_server.strategies.strategy import StrategyEvent
    from reasond_server.types import Task

RESULTS = Path(__file__).resolve().parent / "results" / "streams.json"
PACKAGES = ("reasond-server", "grpcio", "protobuf", "sqlalchemy", "psycopg")
ROUNDS: Final = 3
FLOOD_STREAMS, FLOOD_STEPS = 16, 400
PACED_STREAMS, PACED_STEPS, GAP_S = 32, 50, 0.02
UNARY_CALLS, UNARY_WARM = 300, 50
STOP_LIMIT_S = 20.0
MICRO = 1_000_000
MILLI = 1000
TEXT: Final = "a step of a few words, as strategies write them; " * 8


class Steps(ReasoningStrategy[StrategyConfig]):
    """Takes as many steps as the query says, `gap_s` seconds apart; each says when it was completed."""

    name = "steps"
    description = "Takes steps."
    config_type = StrategyConfig
    is_replayable = True

    async def run(self, task: Task, context: RunContext[StrategyConfig]) -> AsyncGenerator[StrategyEvent, None]:
        """Take the steps."""
        del context
        count, gap_s = json.loads(task.query)
        metrics = CustomMetrics(data={})
        for _ in range(count):
            if gap_s:
                await asyncio.sleep(gap_s)
            yield Step(detail=Thought(text=f"{time.monotonic()} {TEXT}"), answer_found=False, metrics=metrics)
        yield Outcome(answer="done", finish_reason=FinishReason.ANSWERED, metrics=metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one round on one store took; times in the unit that the name says."""

    cpu_us_per_event: float
    events_per_core_s: float
    latency_p50_ms: float
    latency_p99_ms: float
    unary_cpu_us: float
    unary_p50_ms: float


async def serve(store_url: str) -> None:
    """Serve, and answer every line on standard input with the processor time so far, in nanoseconds."""
    environ = {"REASOND__STORE__URL": store_url, "REASOND__SERVER__HTTP_ADDRESS": ""}
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def answer() -> None:
        if os.read(sys.stdin.fileno(), 1):
            print(time.process_time_ns(), flush=True)
        else:
            ended.set()

    async with running_server(strategies=[Steps()], environ=environ) as listening:
        print(json.dumps({"target": listening.grpc, "token": listening.token}), flush=True)
        loop.add_reader(sys.stdin, answer)
        await ended.wait()


class ServerProcess:
    """A server that is measured from outside."""

    def __init__(self, process: subprocess.Popen[str], told: dict[str, str]) -> None:
        self._process = process
        self.target = told["target"]
        self.metadata = (("authorization", f"Bearer {told['token']}"),)

    def cpu_s(self) -> float:
        """Return the processor time that it has taken so far."""
        if self._process.stdin is None or self._process.stdout is None:
            raise SystemExit("the server has no pipes")
        self._process.stdin.write("?")
        self._process.stdin.flush()
        return int(self._process.stdout.readline()) / 1e9


@contextmanager
def running(store_url: str, *, core: int) -> Iterator[ServerProcess]:
    """Run a server on that store and processor."""
    command = [sys.executable, "-m", "benchmarks.streams", "--serve", store_url, "--core", str(core)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdin is None or process.stdout is None:
            raise SystemExit("the server has no pipes")
        try:
            yield ServerProcess(process, json.loads(process.stdout.readline() or "{}"))
        finally:
            process.stdin.close()
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()


async def followed(stub: Any, server: ServerProcess, query: str) -> list[float]:  # noqa: ANN401 - a generated stub
    """Follow one execution to its end; return how late each step came, in seconds."""
    request = reasoning_service_pb2.ReasonIterationsRequest(keep_running=True)
    request.task.query, request.task.strategy = query, "steps"
    events = stub.ReasonIterations(request, metadata=server.metadata)
    return [time.monotonic() - completed_at(event) async for event in events if event.HasField("iteration")]


def completed_at(event: Any) -> float:  # noqa: ANN401 - a generated message
    """Return when a step was completed, as it says itself."""
    return float(event.iteration.thought.text.partition(" ")[0])


async def measure(server: ServerProcess) -> Figures:
    """Measure one server in all three ways."""
    async with grpc.aio.insecure_channel(server.target) as channel:
        stub: Any = reasoning_service_pb2_grpc.ReasoningServiceStub(channel)
        await followed(stub, server, json.dumps([50, 0]))
        begun = server.cpu_s()
        floods = (followed(stub, server, json.dumps([FLOOD_STEPS, 0])) for _ in range(FLOOD_STREAMS))
        events = sum(len(late) + 2 for late in await asyncio.gather(*floods))
        cpu_s = server.cpu_s() - begun
        paced = (followed(stub, server, json.dumps([PACED_STEPS, GAP_S])) for _ in range(PACED_STREAMS))
        late_ms = sorted(MILLI * one for each in await asyncio.gather(*paced) for one in each)
        unary_cpu_us, unary_p50_ms = await unary(stub, server)
    cuts = statistics.quantiles(late_ms, n=100, method="inclusive")
    return Figures(
        cpu_us_per_event=cpu_s / events * MICRO,
        events_per_core_s=events / cpu_s,
        latency_p50_ms=cuts[49],
        latency_p99_ms=cuts[98],
        unary_cpu_us=unary_cpu_us,
        unary_p50_ms=unary_p50_ms,
    )


async def unary(stub: Any, server: ServerProcess) -> tuple[float, float]:  # noqa: ANN401 - a generated stub
    """Return the processor time of a unary call in microseconds and its median wall time in milliseconds."""
    request = reasoning_service_pb2.ReasonRequest()
    request.task.query, request.task.strategy = json.dumps([1, 0]), "steps"
    for _ in range(UNARY_WARM):
        await stub.Reason(request, metadata=server.metadata)
    begun, taken = server.cpu_s(), []
    for _ in range(UNARY_CALLS):
        at = time.perf_counter()
        await stub.Reason(request, metadata=server.metadata)
        taken.append(MILLI * (time.perf_counter() - at))
    return (server.cpu_s() - begun) / UNARY_CALLS * MICRO, statistics.median(taken)


def rounds(stack: ExitStack, folder: Path) -> dict[str, list[Figures]]:
    """Measure every store in turn, several times."""
    measured, other = two_processors()
    pin(other)
    postgres = stack.enter_context(running_postgres()) if is_postgres_here() else None
    figures: dict[str, list[Figures]] = {}
    for number in range(ROUNDS):
        urls = {"memory": "memory:", "SQLite": f"sqlite:///{folder / f'{number}.db'}"}
        if postgres is not None:
            urls["PostgreSQL"] = postgres.new_database()
            migrate_stores(url=urls["PostgreSQL"], data_dir="")
        for name, url in urls.items():
            with running(url, core=measured) as server, asyncio.Runner(loop_factory=new_event_loop) as runner:
                figures.setdefault(name, []).append(runner.run(measure(server)))
    return figures


def row_of(name: str, found: list[Figures], memory: Figures) -> dict[str, Any]:
    """Return the medians of one store, and what a unary call costs beside one in memory."""
    median = medians(found)
    return {
        "store": name,
        **{key: round(value, 3) for key, value in asdict(median).items()},
        "unary_ratio": round(median.unary_cpu_us / memory.unary_cpu_us, 3),
        "unary_wall_ratio": round(median.unary_p50_ms / memory.unary_p50_ms, 3),
    }


def medians(found: list[Figures]) -> Figures:
    """Return the median of each figure."""
    return Figures(**{key: statistics.median(asdict(one)[key] for one in found) for key in asdict(found[0])})


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, default=-1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        pin(arguments.core)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve(arguments.serve))
        return
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        figures = rounds(stack, Path(name))
    memory = medians(figures["memory"])
    rows = [row_of(name, found, memory) for name, found in figures.items()]
    for row in rows:
        print(
            f"{row['store']:<11} {row['events_per_core_s']:7,.0f} events/s per core, a step comes after "
            f"{row['latency_p50_ms']:.2f} ms (p99 {row['latency_p99_ms']:.2f}); unary "
            f"{row['unary_cpu_us']:.0f} us, {row['unary_p50_ms']:.2f} ms, {row['unary_ratio']:.2f} times memory"
        )
    load = {
        "rounds": ROUNDS,
        "flood_streams": FLOOD_STREAMS,
        "flood_steps": FLOOD_STEPS,
        "paced_streams": PACED_STREAMS,
        "paced_gap_ms": GAP_S * MILLI,
        "unary_calls": UNARY_CALLS,
    }
    report = {"circumstances": circumstances(PACKAGES), "load": load, "rows": rows}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
