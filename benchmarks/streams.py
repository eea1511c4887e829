"""Measure streams and unary calls on each store: cost per event, delay of a step, cost of a call.

Prints a table and writes results/streams.json beside this file. A server in a process of its own runs strategies that
need no model; clients of this process follow them over gRPC. Rounds alternate between memory, an SQLite file and,
if it is installed, a PostgreSQL started by this benchmark:

    flood   16 streams of 400 steps of 1 KB as fast as they come: the server's processor time per event, and the same
            messages from a bare grpc.aio server that has them ready
    paced   32 streams of 50 steps, one every 20 ms: from the end of a step until the client has it
    unary   300 calls of Reason without request id, one after the other: processor time and wall time per call
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc

from benchmarks.machine import make_goal, new_event_loop, pin, two_processors, write_report
from benchmarks.serving import ServerProcess, migrate_store, running, serve_until_told
from reasond.v1 import reasoning_service_pb2, reasoning_service_pb2_grpc
from reasond_server.assembly import app
from reasond_server.strategies.strategy import Outcome, ReasoningStrategy, RunContext, Step, StrategyConfig
from reasond_server.testing import running_server
from reasond_server.types import CustomMetrics, FinishReason, Task, Thought
from tests.engines.postgres import is_postgres_here, running_postgres

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.strategies.strategy import StrategyEvent

RESULTS = Path(__file__).resolve().parent / "results" / "streams.json"
PACKAGES = ("reasond-server", "grpcio", "protobuf", "sqlalchemy", "psycopg")
MODULE: Final = "benchmarks.streams"
ROUNDS: Final = 5
FLOOD_STREAMS, FLOOD_STEPS = 16, 400
PACED_STREAMS, PACED_STEPS, GAP_S = 32, 50, 0.02
UNARY_CALLS, UNARY_WARM = 300, 50
MICRO = 1_000_000
MILLI = 1000
TEXT: Final = "a step of a few words, as strategies write them; " * 20
BARE: Final = "bare"
BARE_GOAL: Final = 2.0


class Steps(ReasoningStrategy[StrategyConfig]):
    """Takes as many steps as the query says, `gap_s` seconds apart; each contains its completion time."""

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
    """The figures of one round on one store; each name gives the unit."""

    cpu_us_per_event: float
    bare_ratio: float
    bare_us: float
    events_per_core_s: float
    latency_p50_ms: float
    latency_p99_ms: float
    unary_cpu_us: float
    unary_p50_ms: float


async def serve_bare() -> None:
    """Serve the minimum that grpc.aio and the generated code can do: the requested number of prebuilt messages."""
    message = reasoning_service_pb2.ReasonIterationsResponse(execution_id="0" * 32, sequence=1)
    message.iteration.thought.text = f"{time.monotonic()} {TEXT}"

    class Bare(reasoning_service_pb2_grpc.ReasoningServiceServicer):
        async def ReasonIterations(  # type: ignore[override]  # noqa: N802 - grpc.aio takes coroutines that write
            self,
            request: reasoning_service_pb2.ReasonIterationsRequest,
            context: Any,  # noqa: ANN401 - no type
        ) -> None:
            for _ in range(json.loads(request.task.query)[0]):
                await context.write(message)

    server = grpc.aio.server()
    reasoning_service_pb2_grpc.add_ReasoningServiceServicer_to_server(Bare(), server)  # type: ignore[abstract]  # only one of its methods is called
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await serve_until_told(target=f"127.0.0.1:{port}")
    await server.stop(0)


async def serve(store_url: str) -> None:
    """Serve, and answer every line on standard input with the processor time so far, in nanoseconds."""
    environ = {"REASOND__STORE__URL": store_url, "REASOND__SERVER__HTTP_ADDRESS": ""}
    async with running_server(strategies=[Steps()], environ=environ) as listening:
        # As `reasond serve` does.
        app.tune_garbage_collection()
        await serve_until_told(target=listening.grpc, token=listening.token)


async def follow(stub: Any, server: ServerProcess, query: str) -> list[float]:  # noqa: ANN401 - a generated stub
    """Follow one execution to its end; return the delay of each step in seconds."""
    request = reasoning_service_pb2.ReasonIterationsRequest(keep_running=True)
    request.task.query, request.task.strategy = query, "steps"
    events = stub.ReasonIterations(request, metadata=server.metadata)
    return [time.monotonic() - completed_at(event) async for event in events if event.HasField("iteration")]


def completed_at(event: Any) -> float:  # noqa: ANN401 - a generated message
    """Return the completion time that a step contains."""
    return float(event.iteration.thought.text.partition(" ")[0])


async def flood(stub: Any, server: ServerProcess, *, beside: int) -> float:  # noqa: ANN401 - a generated stub
    """Return the processor time per event in seconds; each stream has `beside` events that are not steps."""
    await follow(stub, server, json.dumps([50, 0]))
    begun = server.cpu_s()
    floods = (follow(stub, server, json.dumps([FLOOD_STEPS, 0])) for _ in range(FLOOD_STREAMS))
    events = sum(len(late) + beside for late in await asyncio.gather(*floods))
    return (server.cpu_s() - begun) / events


async def measure_bare(server: ServerProcess) -> float:
    """Return the bare server's processor time per message, in microseconds."""
    async with grpc.aio.insecure_channel(server.target) as channel:
        stub: Any = reasoning_service_pb2_grpc.ReasoningServiceStub(channel)
        return await flood(stub, server, beside=0) * MICRO


async def measure(server: ServerProcess, bare_us: float) -> Figures:
    """Measure one server in all three ways; `bare_us` is the bare server's time per message."""
    async with grpc.aio.insecure_channel(server.target) as channel:
        stub: Any = reasoning_service_pb2_grpc.ReasoningServiceStub(channel)
        event_s = await flood(stub, server, beside=2)
        paced = (follow(stub, server, json.dumps([PACED_STEPS, GAP_S])) for _ in range(PACED_STREAMS))
        late_ms = sorted(MILLI * one for each in await asyncio.gather(*paced) for one in each)
        unary_cpu_us, unary_p50_ms = await unary(stub, server)
    cuts = statistics.quantiles(late_ms, n=100, method="inclusive")
    return Figures(
        cpu_us_per_event=event_s * MICRO,
        bare_ratio=event_s * MICRO / bare_us,
        bare_us=bare_us,
        events_per_core_s=1 / event_s,
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


def rounds(stack: ExitStack, folder: Path, count: int) -> dict[str, list[Figures]]:
    """Measure every store in turn, several times."""
    measured, other = two_processors()
    pin(other)
    postgres = stack.enter_context(running_postgres()) if is_postgres_here() else None
    figures: dict[str, list[Figures]] = {}
    for number in range(count):
        urls = {"memory": "memory:", "SQLite": f"sqlite:///{folder / f'{number}.db'}"}
        if postgres is not None:
            urls["PostgreSQL"] = postgres.new_database()
            migrate_store(urls["PostgreSQL"])
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            with running(MODULE, BARE, core=measured) as server:
                bare_us = runner.run(measure_bare(server))
            for name, url in urls.items():
                with running(MODULE, url, core=measured) as server:
                    figures.setdefault(name, []).append(runner.run(measure(server, bare_us)))
    return figures


def row_of(name: str, found: list[Figures], memory: Figures) -> dict[str, Any]:
    """Return the medians of one store, and the cost of a unary call compared with one in memory."""
    median = medians(found)
    return {
        "store": name,
        **{key: round(value, 3) for key, value in asdict(median).items()},
        "unary_ratio": round(median.unary_cpu_us / memory.unary_cpu_us, 3),
        "unary_wall_ratio": round(median.unary_p50_ms / memory.unary_p50_ms, 3),
    }


def goals_of(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the goals for events of the memory store compared with bare messages."""
    ratio = next(row["bare_ratio"] for row in rows if row["store"] == "memory")
    what = "CPU of an event over a bare message's, memory"
    return [make_goal(what, "at most", BARE_GOAL, ratio)]


def medians(found: list[Figures]) -> Figures:
    """Return the median of each figure."""
    return Figures(**{key: statistics.median(asdict(one)[key] for one in found) for key in asdict(found[0])})


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count (%(default)s)")
    parser.add_argument("--core", type=int, default=-1, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        pin(arguments.core)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve_bare() if arguments.serve == BARE else serve(arguments.serve))
        return
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        figures = rounds(stack, Path(name), max(1, arguments.rounds))
    memory = medians(figures["memory"])
    rows = [row_of(name, found, memory) for name, found in figures.items()]
    for row in rows:
        print(
            f"{row['store']:<11} {row['events_per_core_s']:7,.0f} events/s per core, {row['bare_ratio']:.2f} times the "
            "CPU of a bare message, a step comes after "
            f"{row['latency_p50_ms']:.2f} ms (p99 {row['latency_p99_ms']:.2f}); unary "
            f"{row['unary_cpu_us']:.0f} us, {row['unary_p50_ms']:.2f} ms, {row['unary_ratio']:.2f} times memory"
        )
    load = {
        "rounds": arguments.rounds,
        "flood_streams": FLOOD_STREAMS,
        "flood_steps": FLOOD_STEPS,
        "paced_streams": PACED_STREAMS,
        "paced_gap_ms": GAP_S * MILLI,
        "unary_calls": UNARY_CALLS,
    }
    write_report(RESULTS, PACKAGES, load=load, rows=rows, goals=goals_of(rows))


if __name__ == "__main__":
    main()
