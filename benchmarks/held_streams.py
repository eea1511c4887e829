"""Hold thousands of streams open on one server: memory per stream, nothing lost, memory when they have ended.

Prints a table and writes results/held_streams.json beside this file. Each row has its own server process, which keeps
executions in memory and has tokens, limits, metrics and logs as in production. The client (loading.py) opens 100
streams on each connection and reads every event. Resident memory is read twice: after 200 streams have ended, and when
all streams are open and silent, or in the middle of their text.

    idle         `ReasonIterations` with chain_of_thought, each its own run, whose model in the server's process waits
    over HTTP    the same with the model in another process: each run holds a connection to it
    followers    streams that resume one run, which waits
    active       streams with deltas, whose model writes a piece of text every 100 ms

Nothing is lost if every stream ends with its result and its sequence numbers have no gap; for active streams, if in
addition all text arrived. The report has the medians of the rounds and the total of the losses.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from benchmarks.instant import PIECE, HeldModel, PacedModel
from benchmarks.loading import GrpcCall, Kept, load
from benchmarks.machine import new_event_loop, pin, two_processors, write_report
from benchmarks.serving import ServerProcess, be_measured, running, serve_until_told
from benchmarks.upstream import running_upstream
from reasond.v1 import reasoning_service_pb2
from reasond_server.assembly import app
from reasond_server.testing import running_server

RESULTS = Path(__file__).resolve().parent / "results" / "held_streams.json"
PACKAGES = ("reasond-server", "grpcio", "protobuf", "openai", "aiohttp")
MODULE: Final = "benchmarks.held_streams"
PATH: Final = "/reasond.v1.ReasoningService/ReasonIterations"
IDLE, OVER_HTTP, FOLLOWERS, ACTIVE = "idle", "over HTTP", "followers", "active"
STREAMS: Final = {IDLE: 5000, OVER_HTTP: 5000, FOLLOWERS: 5000, ACTIVE: 500}
# A round takes some three minutes.
ROUNDS: Final = 2
GOAL_KIB: Final = 40.0
ON_EACH: Final = 100
WARM: Final = 200
PIECES, GAP_S = 100, 0.1
HELD_S: Final = 45
OPEN_LIMIT_S: Final = 120.0
END_LIMIT_S: Final = 180.0
SETTLE_S: Final = 2.0
POLL_S: Final = 0.05
KIBI: Final = 1024
SETTINGS: Final = {
    "REASOND__SERVER__HTTP_ADDRESS": "",
    "REASOND__METRICS__ADDRESS": "127.0.0.1:0",
    "REASOND__SERVER__MAX_CONCURRENT_STREAMS": "1000",
    "REASOND__SERVER__MAX_GRPC_CONNECTIONS": "1000",
    "REASOND__SERVER__MAX_PENDING_CALLS": "20000",
    "REASOND__REASONING__PERFORMANCE__MAX_CONCURRENT_REQUESTS": "6000",
    "REASOND__REASONING__PERFORMANCE__MAX_QUEUED_REQUESTS": "6000",
    "REASOND__REASONING__PERFORMANCE__QUEUE_TIMEOUT_MS": "60000",
    "REASOND__LIMITS__REQUESTS_PER_MINUTE": "1000000000",
    "REASOND__STORE__URL": "memory:",
    "REASOND__STORE__MAX_EXECUTIONS": "6000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The memory of one kind of stream, in KiB (1,024 bytes) per stream, beyond that of the server without streams."""

    kind: str
    streams: int
    before_mib: float
    kib_per_stream: float
    after_kib_per_stream: float
    lost: int


def request_of(kind: str, execution_id: str = "") -> reasoning_service_pb2.ReasonIterationsRequest:
    """Return the request of every stream of this kind."""
    request = reasoning_service_pb2.ReasonIterationsRequest(include_deltas=kind == ACTIVE)
    if execution_id:
        request.resume.execution_id = execution_id
    else:
        request.task.query, request.task.strategy = "Why does glass take light apart?", "chain_of_thought"
    return request


def call_of(server: ServerProcess, message: reasoning_service_pb2.ReasonIterationsRequest) -> GrpcCall:
    """Return the call of a stream."""
    return GrpcCall(path=PATH, metadata=server.metadata, message=message.SerializeToString())


def messages_of(received: bytearray) -> Iterator[reasoning_service_pb2.ReasonIterationsResponse]:
    """Yield the messages of one stream."""
    at = 0
    while at < len(received):
        size = int.from_bytes(received[at + 1 : at + 5], "big")
        yield reasoning_service_pb2.ReasonIterationsResponse.FromString(bytes(received[at + 5 : at + 5 + size]))
        at += 5 + size


def is_whole(received: bytearray, kind: str) -> bool:
    """Return whether a stream received its whole log in order, and all text if it requested deltas."""
    sequence, text, last = 0, "", ""
    for message in messages_of(received):
        last = message.WhichOneof("event") or ""
        if last == "delta":
            text += message.delta.text
        elif last != "heartbeat":
            if message.sequence != sequence + 1:
                return False
            sequence = message.sequence
    return last == "completed" and (kind != ACTIVE or text.count(PIECE) == PIECES)


async def until_open(kept: Kept, streams: int) -> None:
    """Wait until every stream has received something."""
    async with asyncio.timeout(OPEN_LIMIT_S):
        while sum(map(len, kept)) < streams:  # noqa: ASYNC110 - the protocol class has no event
            await asyncio.sleep(POLL_S)


async def wait_for_rest(server: ServerProcess) -> int:
    """Return the server's resident bytes once they no longer grow."""
    before = 0
    while (now := server.resident_bytes()) > before:
        before = now
        await asyncio.sleep(SETTLE_S)
    return now


async def warm(server: ServerProcess, kind: str, gate: Path) -> None:
    """Serve some streams to their end, so that the cost of the first ones is not counted for any stream."""
    call = call_of(server, request_of(kind))
    if kind in {OVER_HTTP, ACTIVE}:
        await load(server.target, call, callers=WARM, total=WARM, on_each=ON_EACH)
        return
    gate.touch()  # noqa: ASYNC240 - a file in a temporary folder
    await load(server.target, call, callers=WARM, total=WARM, on_each=ON_EACH)
    gate.unlink()  # noqa: ASYNC240 - a file in a temporary folder


async def begin_runs(server: ServerProcess, kind: str) -> reasoning_service_pb2.ReasonIterationsRequest:
    """Return the request of every stream; for followers, first start the run, which continues without them."""
    request = request_of(kind)
    if kind != FOLLOWERS:
        return request
    request.keep_running = True
    async with grpc.aio.insecure_channel(server.target) as channel:
        ask: Any = channel.unary_stream(
            PATH,
            request_serializer=reasoning_service_pb2.ReasonIterationsRequest.SerializeToString,
            response_deserializer=reasoning_service_pb2.ReasonIterationsResponse.FromString,
        )
        stream = ask(request, metadata=server.metadata)
        first = await stream.read()
        stream.cancel()
    return request_of(kind, first.execution_id)


async def measure_one(server: ServerProcess, kind: str, gate: Path, streams: int) -> Row:
    """Open the streams, hold them open, and let them end."""
    await warm(server, kind, gate)
    await asyncio.sleep(SETTLE_S)
    before = await wait_for_rest(server)
    kept: Kept = []
    call = call_of(server, await begin_runs(server, kind))
    holding = asyncio.create_task(load(server.target, call, callers=streams, total=streams, on_each=ON_EACH, kept=kept))
    try:
        opening = asyncio.create_task(until_open(kept, streams))
        await asyncio.wait({holding, opening}, return_when=asyncio.FIRST_COMPLETED)
        opening.cancel()
        if holding.done():
            raise SystemExit(f"{kind}: the streams ended before all were open: {holding.exception()}")
        during = server.resident_bytes() if kind == ACTIVE else await wait_for_rest(server)
        gate.touch()  # noqa: ASYNC240 - a file in a temporary folder
        async with asyncio.timeout(END_LIMIT_S):
            await holding
    finally:
        holding.cancel()
        gate.unlink(missing_ok=True)  # noqa: ASYNC240 - a file in a temporary folder
    await asyncio.sleep(SETTLE_S)
    received = [one for connection in kept for one in connection.values()]
    whole = sum(is_whole(one, kind) for one in received)
    return Row(
        kind=kind,
        streams=streams,
        before_mib=round(before / KIBI**2, 1),
        kib_per_stream=round((during - before) / streams / KIBI, 1),
        after_kib_per_stream=round((server.resident_bytes() - before) / streams / KIBI, 1),
        lost=streams - whole,
    )


async def serve(kind: str, gate: str, base_url: str) -> None:
    """Serve with the model of this kind of stream."""
    environ, model = dict(SETTINGS), None
    if kind == OVER_HTTP:
        # Streams must wait for the model, not for a connection to it.
        environ |= {
            "REASOND__LLM__PROVIDER": "openai",
            "REASOND__LLM__MAX_CONCURRENCY": "10000",
            "REASOND__LLM__MODEL": f"fake?bytes=2048&latency_ms={HELD_S * 1000}",
            "REASOND__LLM__BASE_URL": base_url,
        }
    else:
        model = PacedModel(pieces=PIECES, gap_s=GAP_S) if kind == ACTIVE else HeldModel(Path(gate))
    async with running_server(model=model, environ=environ) as listening:
        # As `reasond serve` does.
        app.tune_garbage_collection()
        await serve_until_told(target=listening.grpc, token=listening.token)


def row_of(kind: str, streams: int, base_url: str) -> Row:
    """Start a server and measure one kind of stream."""
    core, other = two_processors()
    pin(other)
    with ExitStack() as stack:
        gate = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "gate"
        server = stack.enter_context(running(MODULE, kind, str(gate), base_url, core=core))
        runner = stack.enter_context(asyncio.Runner(loop_factory=new_event_loop))
        return runner.run(measure_one(server, kind, gate, streams))


def median_of(rounds: Sequence[Row]) -> Row:
    """Return the medians of one kind of stream, and the total number of streams that lost anything."""
    return Row(
        kind=rounds[0].kind,
        streams=rounds[0].streams,
        before_mib=round(statistics.median(row.before_mib for row in rounds), 1),
        kib_per_stream=round(statistics.median(row.kib_per_stream for row in rounds), 1),
        after_kib_per_stream=round(statistics.median(row.after_kib_per_stream for row in rounds), 1),
        lost=sum(row.lost for row in rounds),
    )


def rows_of(rounds: int, kinds: Sequence[str], scale: float, base_url: str) -> list[Row]:
    """Return a row for each kind of stream after all rounds; every measurement starts a new server."""
    found: dict[str, list[Row]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind in kinds:
            row = row_of(kind, max(ON_EACH, int(STREAMS[kind] * scale)), base_url)
            print(
                f"{row.kind:<10} {row.streams:>5} streams: {row.kib_per_stream:6.1f} KiB each "
                f"beyond {row.before_mib} MiB, "
                f"{row.after_kib_per_stream:.1f} after their end, {row.lost} lost something",
                flush=True,
            )
            found[kind].append(row)
    return [median_of(each) for each in found.values()]


def goals_of(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the goals and whether the rows meet them."""
    goals = [
        {
            "what": f"KiB per stream, {row.kind}",
            "goal": f"<= {GOAL_KIB:g}",
            "measured": row.kib_per_stream,
            "is_met": row.kib_per_stream <= GOAL_KIB,
        }
        for row in rows
        if row.kind in {IDLE, FOLLOWERS}
    ]
    lost = sum(row.lost for row in rows)
    return [*goals, {"what": "streams that lost anything", "goal": "= 0", "measured": lost, "is_met": lost == 0}]


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count (%(default)s)")
    parser.add_argument("--kinds", nargs="+", default=list(STREAMS), choices=list(STREAMS), help="fewer write nothing")
    parser.add_argument("--scale", type=float, default=1.0, help="streams, as a share of the usual number")
    parser.add_argument("--core", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        be_measured(serve(*options.serve), core=options.core)
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with running_upstream(core=two_processors()[1]) as base_url:
        rows = rows_of(options.rounds, options.kinds, options.scale, base_url)
    goals = goals_of(rows)
    for goal in goals:
        print(f"goal: {goal['what']} {goal['goal']}: {goal['measured']:g}, {'met' if goal['is_met'] else 'MISSED'}")
    if options.scale != 1 or options.kinds != list(STREAMS):
        return
    write_report(RESULTS, PACKAGES, rounds=options.rounds, rows=[asdict(row) for row in rows], goals=goals)


if __name__ == "__main__":
    main()
