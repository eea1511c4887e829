"""Measure 100 callers of a model that takes 200 ms: throughput, latency and memory, compared with the possible maximum.

Prints a table and writes results/upstream_wait.json beside this file. The model is another process that answers after
200 ms, so 100 callers that repeat their call at once can get 500 answers a second. The same load client also calls the
model directly in the same rounds; that result is the maximum of this machine. Servers have one processor; the load
client (loading.py) and the model have the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.loading import GrpcCall, HttpCall, Load, http_post, load
from benchmarks.machine import make_goal, new_event_loop, pin, two_processors, write_report
from benchmarks.serving import ServerProcess, be_measured, running, serve_until_told
from benchmarks.unary import PATH, request_message
from benchmarks.upstream import running_upstream, text_of
from reasond_server.assembly import app
from reasond_server.testing import running_server

RESULTS = Path(__file__).resolve().parent / "results" / "upstream_wait.json"
PACKAGES = ("reasond-server", "grpcio", "protobuf", "openai", "aiohttp")
MODULE: Final = "benchmarks.upstream_wait"
ROUNDS: Final = 5
CALLERS: Final = 100
CALLS: Final = 2000
LATENCY_MS: Final = 200
MODEL: Final = f"fake?bytes=2048&latency_ms={LATENCY_MS}"
IDEAL: Final = CALLERS * 1000 / LATENCY_MS
MEBI: Final = 2**20
OURS, DIRECT = "reasond", "the model itself"
GOALS: Final = (("throughput_share", "at least", 0.96), ("p99_ms", "at most", 240.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one side in one round; `throughput_share` is relative to the ideal, CPU time is the server's."""

    per_second: float
    throughput_share: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    resident_mib: float


def figures_of(found: Load, *, cpu_s: float = 0.0, resident_bytes: int = 0) -> Figures:
    """Return a load as figures; they include the wait for the first and the last answer of each caller."""
    return Figures(
        per_second=found.per_second,
        throughput_share=found.per_second / IDEAL,
        p50_ms=found.percentile_ms(50),
        p99_ms=found.percentile_ms(99),
        cpu_us=cpu_s / found.calls * 1e6,
        resident_mib=resident_bytes / MEBI,
    )


async def serve(base_url: str, *, model: str) -> None:
    """Serve reasond in front of the model."""
    environ = {
        "REASOND__SERVER__HTTP_ADDRESS": "",
        "REASOND__STORE__URL": "memory:",
        "REASOND__LIMITS__REQUESTS_PER_MINUTE": "1000000000",
        "REASOND__REASONING__PERFORMANCE__MAX_CONCURRENT_REQUESTS": "200",
        "REASOND__LLM__PROVIDER": "openai",
        "REASOND__LLM__MAX_CONCURRENCY": "200",
        "REASOND__LLM__BASE_URL": base_url,
        "REASOND__LLM__MODEL": model,
    }
    async with running_server(environ=environ) as listening:
        # As `reasond serve` does.
        app.tune_garbage_collection()
        await serve_until_told(target=listening.grpc, token=listening.token)


async def one_round(server: ServerProcess, base_url: str, calls: int) -> dict[str, Figures]:
    """Call the server and the model."""
    ours = GrpcCall(path=PATH, metadata=server.metadata, message=request_message(), least=1024)
    begun = server.cpu_s()
    found = await load(server.target, ours, callers=CALLERS, total=calls)
    cpu_s = server.cpu_s() - begun
    direct = await load(base_url.removeprefix("http://").removesuffix("/v1"), question(), callers=CALLERS, total=calls)
    return {
        OURS: figures_of(found, cpu_s=cpu_s, resident_bytes=server.resident_bytes()),
        DIRECT: figures_of(direct),
    }


def question() -> HttpCall:
    """Return a model request like those of our server."""
    messages = [{"role": "user", "content": text_of(2300)}]
    body = {"model": MODEL, "messages": messages, "max_tokens": 4096}
    return http_post("/v1/chat/completions", json.dumps(body).encode(), least=2048)


def rounds_of(stack: ExitStack, options: argparse.Namespace) -> list[dict[str, Figures]]:
    """Start everything and measure `options.rounds` rounds after a warm-up round."""
    core, other = two_processors()
    pin(other)
    base_url = stack.enter_context(running_upstream(core=other))
    server = stack.enter_context(running(MODULE, base_url, core=core))
    runner = stack.enter_context(asyncio.Runner(loop_factory=new_event_loop))
    calls = max(CALLERS, int(CALLS * options.scale) // CALLERS * CALLERS)
    runner.run(one_round(server, base_url, CALLERS))
    return [runner.run(one_round(server, base_url, calls)) for _ in range(options.rounds)]


def rows_of(rounds: Sequence[dict[str, Figures]]) -> list[dict[str, Any]]:
    """Return the medians."""
    rows = []
    for side in (OURS, DIRECT):
        found = [asdict(one[side]) for one in rounds]
        medians = {key: round(statistics.median(one[key] for one in found), 3) for key in found[0]}
        rows.append({"side": side, **medians})
    return rows


def goals_of(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return our server's goals."""
    ours = next(row for row in rows if row["side"] == OURS)
    return [make_goal(what, bound, goal, ours[what]) for what, bound, goal in GOALS]


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count (%(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="calls of a round, as a share of the usual number")
    parser.add_argument("--core", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--serve", metavar="URL", help=argparse.SUPPRESS)
    parser.add_argument("--model", default=MODEL, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        be_measured(serve(options.serve, model=options.model), core=options.core)
        return
    with ExitStack() as stack:
        rows = rows_of(rounds_of(stack, options))
    for row in rows:
        print(
            f"{row['side']:<17} {row['per_second']:6.1f}/s ({row['throughput_share']:.3f} of {IDEAL:.0f})  p50 "
            f"{row['p50_ms']:.1f} p99 {row['p99_ms']:.1f} ms  {row['cpu_us']:.0f} us CPU a call  "
            f"{row['resident_mib']:.0f} MiB"
        )
    load_of = {"rounds": options.rounds, "callers": CALLERS, "calls": CALLS, "latency_ms": LATENCY_MS}
    write_report(RESULTS, PACKAGES, load=load_of, rows=rows, goals=goals_of(rows))


if __name__ == "__main__":
    main()
