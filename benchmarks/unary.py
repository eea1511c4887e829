"""Compare a unary call of Reason with a bare grpc.aio echo of the same payload, and with a bare `create()`.

Prints a table and writes results/unary.json beside this file. Every round measures every side at every number of
callers, in turn; the figure is the median over the rounds of the ratio within a round.

    echo          a grpc.aio server with the same messages: parses the request, returns the response, nothing else
    memory        reasond: token verified (and remembered), permission, limit by caller, validation, chain_of_thought on
                  a model that answers at once in its process, event log in memory, access and audit log as JSON
    SQLite, PostgreSQL   the same with that store
    one model call       the same with a model in another process that answers at once
    create()             the `openai` package calling that model, nothing around it

Servers have one processor, the load client (loading.py) and the model the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import grpc

from benchmarks.instant import InstantModel
from benchmarks.loading import GrpcCall, load
from benchmarks.machine import make_goal, new_event_loop, pin, two_processors, write_report
from benchmarks.serving import ServerProcess, be_measured, migrate_store, running, serve_until_told
from benchmarks.upstream import running_upstream, text_of
from reasond.v1 import reasoning_service_pb2, reasoning_service_pb2_grpc
from reasond_server.assembly import app
from reasond_server.testing import running_server
from tests.engines.postgres import is_postgres_here, running_postgres

RESULTS = Path(__file__).resolve().parent / "results" / "unary.json"
PACKAGES = ("reasond-server", "grpcio", "protobuf", "openai", "sqlalchemy", "psycopg")
MODULE: Final = "benchmarks.unary"
PATH: Final = "/reasond.v1.ReasoningService/Reason"
ROUNDS: Final = 5
CALLERS: Final = (1, 16, 64)
CALLS: Final = {1: 1500, 16: 3000, 64: 3000}
STORE_CALLERS: Final = 16
QUESTION_BYTES, ANSWER_BYTES = 2048, 1024
MODEL: Final = "fake?bytes=2048"
MICRO: Final = 1_000_000
ECHO, MEMORY, SQLITE, POSTGRES = "echo", "memory", "SQLite", "PostgreSQL"
ONE_CALL, CREATE = "one model call", "create()"
SETTINGS: Final = {
    "REASOND__SERVER__HTTP_ADDRESS": "",
    "REASOND__LIMITS__REQUESTS_PER_MINUTE": "1000000000",
    "REASOND__METRICS__ADDRESS": "127.0.0.1:0",
}
GOALS: Final = {
    "requests per second over the echo's, 16 callers": ("at least", 0.70),
    "processor time of one model call over create()'s": ("at most", 0.6),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one side in one round: processor time of the server per call, calls per second, latencies."""

    cpu_us: float
    per_second: float
    p50_ms: float
    p99_ms: float


Round = dict[tuple[str, int], Figures]


def request_message() -> bytes:
    """Return the request of all callers."""
    request = reasoning_service_pb2.ReasonRequest()
    request.task.query, request.task.strategy = text_of(QUESTION_BYTES), "chain_of_thought"
    return request.SerializeToString()


async def serve_echo(response: str) -> None:
    """Serve the minimum that grpc.aio and the generated code can do: the answer `response` (hexadecimal)."""
    message = reasoning_service_pb2.ReasonResponse.FromString(bytes.fromhex(response))

    class Echo(reasoning_service_pb2_grpc.ReasoningServiceServicer):
        async def Reason(self, request: Any, context: Any) -> Any:  # noqa: ANN401, N802 - generated code has no types
            del request, context
            return message

    server = grpc.aio.server()
    reasoning_service_pb2_grpc.add_ReasoningServiceServicer_to_server(Echo(), server)  # type: ignore[abstract]  # only one of its methods is called
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await serve_until_told(target=f"127.0.0.1:{port}")
    await server.stop(0)


async def serve_reasond(settings: str) -> None:
    """Serve reasond with these settings as JSON; without a model in them it uses the instant model."""
    environ: Mapping[str, str] = json.loads(settings)
    model = None if "REASOND__LLM__BASE_URL" in environ else InstantModel()
    async with running_server(model=model, environ={**SETTINGS, **environ}) as listening:
        # As `reasond serve` does.
        app.tune_garbage_collection()
        await serve_until_told(target=listening.grpc, token=listening.token)


async def create_calls(base_url: str, calls: int) -> None:
    """Make calls with the openai package, 16 concurrently; print the processor time per call in microseconds."""
    import openai  # noqa: PLC0415 - only this process needs it

    client = openai.AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0)
    left = iter(range(calls))
    messages: Any = [{"role": "system", "content": text_of(200)}, {"role": "user", "content": text_of(QUESTION_BYTES)}]

    async def one_after_the_other() -> None:
        for _ in left:
            await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=4096, temperature=0.7)

    await client.chat.completions.create(model=MODEL, messages=messages, max_tokens=4096, temperature=0.7)
    begun, at = time.process_time_ns(), time.perf_counter()
    await asyncio.gather(*(one_after_the_other() for _ in range(STORE_CALLERS)))
    took = {"cpu_us": (time.process_time_ns() - begun) / calls / 1000, "seconds": time.perf_counter() - at}
    print(json.dumps(took), flush=True)
    await client.close()


async def answer_of(server: ServerProcess) -> bytes:
    """Return a whole answer, received by a real client, as the pattern of all answers."""
    async with grpc.aio.insecure_channel(server.target) as channel:
        ask: Any = channel.unary_unary(PATH)
        answer: bytes = await ask(request_message(), metadata=server.metadata)
    answered = reasoning_service_pb2.ReasonResponse.FromString(answer).reasoning
    if len(answered.answer) < ANSWER_BYTES:
        raise SystemExit(f"{answered} is no answer")
    return answer


async def measure_one(server: ServerProcess, *, callers: int, calls: int) -> Figures:
    """Put load on one server."""
    call = GrpcCall(path=PATH, metadata=server.metadata, message=request_message(), least=ANSWER_BYTES)
    await load(server.target, call, callers=callers, total=max(callers, calls // 10))
    begun = server.cpu_s()
    found = await load(server.target, call, callers=callers, total=calls)
    cpu_s = server.cpu_s() - begun
    return Figures(
        cpu_us=cpu_s / calls * MICRO,
        per_second=found.per_second,
        p50_ms=found.percentile_ms(50),
        p99_ms=found.percentile_ms(99),
    )


def measured_create(base_url: str, *, core: int, calls: int) -> Figures:
    """Let the openai package make the calls, in a process on the servers' processor."""
    with running(MODULE, CREATE, base_url, str(calls), core=core) as process:
        cpu_us, seconds = process.told["cpu_us"], process.told["seconds"]
    return Figures(cpu_us=cpu_us, per_second=calls / seconds, p50_ms=0.0, p99_ms=0.0)


def plan_of(servers: Mapping[str, ServerProcess]) -> list[tuple[str, int]]:
    """Return the sides of a round: every server with 16 callers, the echo and the memory side also with 1 and 64."""
    return [(name, callers) for callers in CALLERS for name in servers if callers == 16 or name in {ECHO, MEMORY}]  # noqa: PLR2004 - STORE_CALLERS


def rounds_of(stack: ExitStack, folder: Path, options: argparse.Namespace) -> list[Round]:
    """Start all servers and measure them `options.rounds` times, every other round in reverse order."""
    core, other = two_processors()
    pin(other)
    base_url = stack.enter_context(running_upstream(core=other))
    stores = {MEMORY: "memory:", SQLITE: f"sqlite:///{folder / 'unary.db'}"}
    if POSTGRES in options.sides and is_postgres_here():
        stores[POSTGRES] = stack.enter_context(running_postgres()).new_database()
        migrate_store(stores[POSTGRES])
    settings = {name: {"REASOND__STORE__URL": url} for name, url in stores.items()}
    settings[ONE_CALL] = {
        "REASOND__STORE__URL": "memory:",
        "REASOND__LLM__PROVIDER": "openai",
        "REASOND__LLM__BASE_URL": base_url,
        "REASOND__LLM__MODEL": MODEL,
    }
    settings = {name: values for name, values in settings.items() if name in options.sides}
    servers = {
        name: stack.enter_context(running(MODULE, "reasond", json.dumps(values), core=core))
        for name, values in settings.items()
    }
    runner = stack.enter_context(asyncio.Runner(loop_factory=new_event_loop))
    if ECHO in options.sides:
        answer = runner.run(answer_of(servers[MEMORY]))
        servers[ECHO] = stack.enter_context(running(MODULE, ECHO, answer.hex(), core=core))
    rounds: list[Round] = []
    for number in range(options.rounds):
        figures: Round = {}
        for name, callers in plan_of(servers)[:: 1 if number % 2 else -1]:
            calls = int(CALLS[callers] * options.scale)
            figures[name, callers] = runner.run(measure_one(servers[name], callers=callers, calls=calls))
        if CREATE in options.sides:
            calls = int(600 * options.scale)
            figures[CREATE, STORE_CALLERS] = measured_create(base_url, core=core, calls=calls)
        rounds.append(figures)
    return rounds


def rows_of(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """Return the medians; ratios are to the echo, for a model call to `create()`, in the same round."""
    rows = []
    for name, callers in dict.fromkeys(key for one in rounds for key in one):
        found = [one[name, callers] for one in rounds]
        base = CREATE if name in {ONE_CALL, CREATE} else ECHO
        cpu = ratios(rounds, (name, callers), (base, callers), lambda one: one.cpu_us)
        rate = ratios(rounds, (name, callers), (base, callers), lambda one: one.per_second)
        medians = {key: round(statistics.median(asdict(one)[key] for one in found), 3) for key in asdict(found[0])}
        rows.append({"side": name, "callers": callers, **medians, "base": base, "cpu_ratio": cpu, "rate_ratio": rate})
    return rows


def ratios(
    rounds: Sequence[Round], ours: tuple[str, int], base: tuple[str, int], figure: Callable[[Figures], float]
) -> float | None:
    """Return the median of the ratios within the rounds; None if the other side was not measured."""
    if any(base not in one for one in rounds):
        return None
    return round(statistics.median(figure(one[ours]) / figure(one[base]) for one in rounds), 3)


def goals_of(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return our server's goals."""
    found = {(row["side"], row["callers"]): row for row in rows}
    measures = ((MEMORY, "rate_ratio"), (ONE_CALL, "cpu_ratio"))
    goals = []
    for (what, (bound, goal)), (side, figure) in zip(GOALS.items(), measures, strict=True):
        row = found.get((side, STORE_CALLERS))
        if row is not None and row[figure] is not None:
            goals.append(make_goal(what, bound, goal, row[figure]))
    return goals


def print_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the figures as a table."""
    for row in rows:
        ratio = "" if row["cpu_ratio"] is None else f"CPU {row['cpu_ratio']:.2f}, rate {row['rate_ratio']:.2f} of "
        print(
            f"{row['side']:<15} {row['callers']:>3} callers {row['cpu_us']:8.1f} us CPU {row['per_second']:8,.0f}/s  "
            f"p50 {row['p50_ms']:7.3f} p99 {row['p99_ms']:7.3f} ms  {ratio}{row['base'] if ratio else ''}"
        )


def serve(arguments: Sequence[str], core: int) -> None:
    """Run one of the measured processes."""
    kind, *rest = arguments
    if kind == ECHO:
        be_measured(serve_echo(*rest), core=core)
    elif kind == CREATE:
        be_measured(create_calls(rest[0], int(rest[1])), core=core)
    else:
        be_measured(serve_reasond(*rest), core=core)


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    sides = [ECHO, MEMORY, SQLITE, POSTGRES, ONE_CALL, CREATE]
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count (%(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="calls of a round, as a share of the usual number")
    parser.add_argument("--sides", nargs="+", default=sides, choices=sides, help="leave others out; writes nothing")
    parser.add_argument("--core", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve, options.core)
        return
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        rounds = rounds_of(stack, Path(name), options)
    rows = rows_of(rounds)
    print_rows(rows)
    if options.sides != sides:
        return
    load_of = {"rounds": len(rounds), "question_bytes": QUESTION_BYTES, "answer_bytes": ANSWER_BYTES}
    write_report(RESULTS, PACKAGES, load=load_of, rows=rows, goals=goals_of(rows))


if __name__ == "__main__":
    main()
