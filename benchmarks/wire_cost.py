"""Measure a call over each wire beside the same call over gRPC, and beside a bare uvicorn that answers a POST.

Prints a table and writes results/wire_cost.json beside this file. Every round measures every side, in turn; the figure
is the median over the rounds of the ratio within a round. One server answers all wires, with the middleware of
`benchmarks.unary`. There are 16 callers; the load client (loading.py) runs on the other processor.

    gRPC                Reason, chain_of_thought, a model that answers at once in the process, event log in memory
    JSON-RPC            reasoning.execute of the same question, answered with its trace
    uvicorn echo        uvicorn alone: reads the body and sends an answer of the same size
    chat completions    POST /v1/chat/completions of the same question, with the model `reasond/chain_of_thought`
    responses           POST /v1/responses likewise
    messages            POST /v1/messages likewise
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import uvicorn

from benchmarks.instant import InstantModel
from benchmarks.loading import GrpcCall, HttpCall, http_post, load
from benchmarks.machine import make_goal, new_event_loop, pin, two_processors, write_report
from benchmarks.serving import ServerProcess, be_measured, running, serve_until_told
from benchmarks.unary import ANSWER_BYTES, PATH, QUESTION_BYTES, request_message
from benchmarks.upstream import text_of
from reasond_server.assembly import app
from reasond_server.testing import running_server

RESULTS = Path(__file__).resolve().parent / "results" / "wire_cost.json"
PACKAGES = ("reasond-server", "grpcio", "protobuf", "uvicorn", "httptools", "pydantic")
MODULE: Final = "benchmarks.wire_cost"
RPC_PATH: Final = "/api/v1/jsonrpc"
ROUNDS: Final = 5
CALLERS: Final = 16
CALLS: Final = 3000
MICRO: Final = 1_000_000
GRPC, JSONRPC, ECHO = "gRPC", "JSON-RPC", "uvicorn echo"
# The sides of other products' clients, with the path and what a request has beside the model.
FACADES: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "chat completions": ("/v1/chat/completions", {}),
    "responses": ("/v1/responses", {}),
    "messages": ("/v1/messages", {"max_tokens": 4096}),
}
GOAL, FACADE_GOAL = 2.5, 1.25
SETTINGS: Final = {"REASOND__STORE__URL": "memory:", "REASOND__LIMITS__REQUESTS_PER_MINUTE": "1000000000"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one side in one round: the server's processor time per call, calls per second, latencies."""

    cpu_us: float
    per_second: float
    p50_ms: float
    p99_ms: float


Round = dict[str, Figures]


def question() -> bytes:
    """Return the JSON-RPC request of all callers."""
    params = {"query": text_of(QUESTION_BYTES), "strategy": "chain_of_thought"}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": params}).encode()


def ask_facade(path: str, **more: Any) -> bytes:  # noqa: ANN401 - any JSON
    """Return the request of all callers to a path of another product's clients."""
    text = text_of(QUESTION_BYTES)
    asked = {"input": text} if path.endswith("responses") else {"messages": [{"role": "user", "content": text}]}
    return json.dumps({"model": "reasond/chain_of_thought", **asked, **more}).encode()


async def serve_reasond() -> None:
    """Serve all wires."""
    async with running_server(model=InstantModel(), environ=SETTINGS) as listening:
        # As `reasond serve` does.
        app.tune_garbage_collection()
        http = listening.http.removeprefix("http://")
        await serve_until_told(target=listening.grpc, http=http, token=listening.token)


async def serve_echo(size: int) -> None:
    """Serve an application that reads the body and sends `size` bytes of JSON."""
    body = json.dumps({"answer": text_of(max(1, size - len('{"answer": ""}')))}).encode()
    start = {
        "type": "http.response.start",
        "status": 200,
        "headers": [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))],
    }

    async def echo(_scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - ASGI's own types
        while (await receive()).get("more_body"):
            pass
        await send(start)
        await send({"type": "http.response.body", "body": body})

    server = uvicorn.Server(uvicorn.Config(echo, port=0, log_config=None, access_log=False, lifespan="off", ws="none"))
    serving = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    await serve_until_told(target=f"127.0.0.1:{port}")
    server.should_exit = True
    await serving


async def answer_bytes(server: ServerProcess, call: HttpCall) -> int:
    """Return the size of a whole answer in bytes."""
    host, _, port = server.told["http"].rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(call.request)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    answer = json.loads(await reader.readexactly(length))
    writer.close()
    if len(answer["result"]["answer"]) < ANSWER_BYTES:
        raise SystemExit(f"{answer} is no answer")
    return length


async def measure_one(server: ServerProcess, target: str, call: GrpcCall | HttpCall, calls: int) -> Figures:
    """Put load on one side."""
    await load(target, call, callers=CALLERS, total=max(CALLERS, calls // 10))
    begun = server.cpu_s()
    found = await load(target, call, callers=CALLERS, total=calls)
    cpu_s = server.cpu_s() - begun
    return Figures(
        cpu_us=cpu_s / calls * MICRO,
        per_second=found.per_second,
        p50_ms=found.percentile_ms(50),
        p99_ms=found.percentile_ms(99),
    )


def rounds_of(stack: ExitStack, options: argparse.Namespace) -> list[Round]:
    """Start the servers and measure all sides `options.rounds` times, every other round in reverse order."""
    core, other = two_processors()
    pin(other)
    server = stack.enter_context(running(MODULE, "reasond", core=core))
    runner = stack.enter_context(asyncio.Runner(loop_factory=new_event_loop))
    post = http_post(RPC_PATH, question(), headers=server.metadata, least=ANSWER_BYTES)
    size = runner.run(answer_bytes(server, post))
    echo = stack.enter_context(running(MODULE, "echo", str(size), core=core))
    grpc_call = GrpcCall(path=PATH, metadata=server.metadata, message=request_message(), least=ANSWER_BYTES)
    sides: dict[str, tuple[ServerProcess, str, GrpcCall | HttpCall]] = {
        GRPC: (server, server.target, grpc_call),
        JSONRPC: (server, server.told["http"], post),
        ECHO: (echo, echo.target, post),
        **{
            name: (
                server,
                server.told["http"],
                http_post(path, ask_facade(path, **more), headers=server.metadata, least=ANSWER_BYTES),
            )
            for name, (path, more) in FACADES.items()
        },
    }
    calls = int(CALLS * options.scale)
    return [
        {name: runner.run(measure_one(*sides[name], calls)) for name in list(sides)[:: 1 if number % 2 else -1]}
        for number in range(options.rounds)
    ]


def rows_of(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Return the medians; a ratio compares a side with gRPC in the same round."""
    rows = []
    for name in (GRPC, JSONRPC, ECHO, *FACADES):
        found = [asdict(one[name]) for one in rounds]
        medians = {key: round(statistics.median(one[key] for one in found), 3) for key in found[0]}
        cpu = statistics.median(one[name].cpu_us / one[GRPC].cpu_us for one in rounds)
        rate = statistics.median(one[name].per_second / one[GRPC].per_second for one in rounds)
        rows.append({"side": name, **medians, "cpu_ratio": round(cpu, 3), "rate_ratio": round(rate, 3)})
    return rows


def goals_of(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Return the goals of our sides."""
    rate = statistics.median(one[JSONRPC].per_second / one[GRPC].per_second for one in rounds)
    shares = {name: statistics.median(one[name].cpu_us / one[JSONRPC].cpu_us for one in rounds) for name in FACADES}
    return [
        make_goal("calls per second over gRPC's", "at least", GOAL, round(rate, 3)),
        *(
            make_goal(f"processor time of {name} over JSON-RPC's", "at most", FACADE_GOAL, round(share, 3))
            for name, share in shares.items()
        ),
    ]


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count (%(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="calls of a round, as a share of the usual number")
    parser.add_argument("--core", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        be_measured(
            serve_echo(int(options.serve[1])) if options.serve[0] == "echo" else serve_reasond(), core=options.core
        )
        return
    with ExitStack() as stack:
        rounds = rounds_of(stack, options)
    rows = rows_of(rounds)
    for row in rows:
        print(
            f"{row['side']:<17} {row['cpu_us']:7.1f} us CPU ({row['cpu_ratio']:.2f} of gRPC) "
            f"{row['per_second']:8,.0f}/s ({row['rate_ratio']:.2f} of gRPC)  "
            f"p50 {row['p50_ms']:.3f} p99 {row['p99_ms']:.3f} ms"
        )
    load_of = {"rounds": options.rounds, "callers": CALLERS, "question_bytes": QUESTION_BYTES}
    write_report(RESULTS, PACKAGES, load=load_of, rows=rows, goals=goals_of(rounds))


if __name__ == "__main__":
    main()
