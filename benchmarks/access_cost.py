"""Measure what tokens, limits and budgets cost a call, as a share of the same call without them: `make bench`.

Prints a table and writes results/access_cost.json beside this file. A unary Reason over gRPC, and `reasoning.execute`
over JSON-RPC, on a model that answers at once in the server's process; what counts is the processor time of the server
per call. Every round measures every server in turn, every other round in reverse; ratios are taken within a round.

    open       the token is not looked at, everybody may everything, no audit log, no limits
    tokens     the token is verified (and remembered for a minute), permissions are asked, decisions are audited
    limits     besides: requests per minute and hour, executions at once
    budgets    besides: tokens per minute and per day, reserved and settled

limits and budgets in memory and in a real Redis beside the load client. What Redis is asked is counted by MONITOR.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import statistics
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from redis.asyncio import Redis

from benchmarks.instant import InstantModel
from benchmarks.loading import GrpcCall, HttpCall, http_post, load
from benchmarks.machine import circumstances, new_event_loop, pin, two_processors
from benchmarks.serving import ServerProcess, running, serve_until_told
from benchmarks.upstream import text_of
from reasond.v1 import reasoning_service_pb2
from reasond_server.app import Server
from reasond_server.config import load as load_settings
from reasond_server.telemetry.logs import configure
from reasond_server.types import Principal
from tests.engines.redis_server import running_redis

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

    from reasond_server.access.verifying import TokenVerifier

RESULTS = Path(__file__).resolve().parent / "results" / "access_cost.json"
PACKAGES = ("reasond-server", "grpcio", "pyjwt", "redis")
MODULE: Final = "benchmarks.access_cost"
ROUNDS: Final = 11
CALLS: Final = 500
CALLERS: Final = 16
WATCHED_CALLS: Final = 50
QUESTION_BYTES, ANSWER_BYTES = 2048, 1024
GOAL: Final = 1.25
MOST_ROUND_TRIPS: Final = 2
MICRO: Final = 1_000_000
OPEN, TOKENS, LIMITS, BUDGETS = "open", "tokens", "limits", "budgets"
SHARED_LIMITS, SHARED_BUDGETS, SHARED_BUDGETS_ALONE = "limits, Redis", "budgets, Redis", "budgets alone, Redis"
WIRES: Final = ("gRPC", "JSON-RPC")
PLAIN: Final = {
    "REASOND_CONFIG": os.devnull,
    "REASOND__SERVER__GRPC_ADDRESS": "127.0.0.1:0",
    "REASOND__SERVER__HTTP_ADDRESS": "127.0.0.1:0",
    "REASOND__SERVER__DRAIN_DELAY_S": "0",
}
RATES: Final = {
    "REASOND__LIMITS__REQUESTS_PER_MINUTE": "1000000000",
    "REASOND__LIMITS__REQUESTS_PER_HOUR": "1000000000",
    "REASOND__LIMITS__CONCURRENT_REQUESTS": "1000",
}
TOKEN_LIMITS: Final = {
    "REASOND__LIMITS__TOKENS_PER_MINUTE": "1000000000",
    "REASOND__LIMITS__TOKENS_PER_DAY": "1000000000",
}


class Everybody:
    """Takes anybody for one principal who may everything, without a look at the token."""

    async def verify(self, token: str) -> Principal:
        """Return that principal."""
        del token
        return Principal(subject="anybody", tenant="anybody", permissions=frozenset({"admin"}))


async def serve(name: str, settings: str) -> None:
    """Be the server called `name`, with settings as JSON."""
    values = {**PLAIN, **json.loads(settings)}
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:  # noqa: ASYNC230 - nothing else runs yet
        configure(nowhere, is_human=False)
        server = Server(load_settings(None, values), environ=values, dev=True, model=InstantModel())
        if name == OPEN:
            verifier = cast("TokenVerifier", Everybody())
            server._verification = replace(server._verification, verifier=verifier)  # noqa: SLF001 - nobody else has a server without access
            logging.getLogger("reasond.audit").disabled = True
        listening = await server.start()
        try:
            await serve_until_told(target=listening.grpc, http=listening.http, token=listening.token)
        finally:
            await server.stop()


def call_of(server: ServerProcess, wire: str) -> tuple[str, GrpcCall | HttpCall]:
    """Return where to call and what."""
    if wire == WIRES[0]:
        request = reasoning_service_pb2.ReasonRequest()
        request.task.query, request.task.strategy = text_of(QUESTION_BYTES), "chain_of_thought"
        path = "/reasond.v1.ReasoningService/Reason"
        message = request.SerializeToString()
        return server.target, GrpcCall(path=path, metadata=server.metadata, message=message, least=ANSWER_BYTES)
    params = {"query": text_of(QUESTION_BYTES), "strategy": "chain_of_thought"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": params}
    request_of = http_post("/api/v1/jsonrpc", json.dumps(body).encode(), headers=server.metadata, least=ANSWER_BYTES)
    return str(server.told["http"]).removeprefix("http://"), request_of


async def measured(server: ServerProcess, wire: str, calls: int) -> float:
    """Return the processor time of one call in microseconds."""
    target, call = call_of(server, wire)
    await load(target, call, callers=CALLERS, total=max(CALLERS, calls // 10))
    begun = server.cpu_s()
    await load(target, call, callers=CALLERS, total=calls)
    return (server.cpu_s() - begun) / calls * MICRO


async def round_trips(server: ServerProcess, url: str) -> float:
    """Return what Redis is asked for one call, which makes one model call; what scripts do is no round trip."""
    target, call = call_of(server, WIRES[0])
    await load(target, call, callers=1, total=1)
    async with Redis.from_url(url) as client, Redis.from_url(url) as marker, client.monitor() as monitor:
        await load(target, call, callers=1, total=WATCHED_CALLS)
        await marker.echo("the end")
        return sum([1 async for _ in _until_the_end(monitor)]) / WATCHED_CALLS


async def _until_the_end(monitor: Any) -> AsyncGenerator[str]:  # noqa: ANN401 - the package has no types
    async for command in monitor.listen():
        words = str(command["command"])
        if words.startswith("ECHO"):
            return
        if command["client_type"] != "lua" and not words.startswith(("CLIENT", "HELLO", "MONITOR")):
            yield words


def servers_of(stack: ExitStack, redis_url: str, core: int) -> dict[str, ServerProcess]:
    """Start them all."""
    shared = {"REASOND__LIMITS__STORAGE": "redis", "REASOND__LIMITS__REDIS_URL": redis_url}
    settings: dict[str, Mapping[str, str]] = {
        OPEN: {},
        TOKENS: {},
        LIMITS: RATES,
        BUDGETS: {**RATES, **TOKEN_LIMITS},
        SHARED_LIMITS: {**RATES, **shared},
        SHARED_BUDGETS: {**RATES, **TOKEN_LIMITS, **shared},
        SHARED_BUDGETS_ALONE: {**TOKEN_LIMITS, **shared},
    }
    return {
        name: stack.enter_context(running(MODULE, name, json.dumps(values), core=core))
        for name, values in settings.items()
    }


def rows_of(rounds: Sequence[Mapping[tuple[str, str], float]]) -> Iterator[dict[str, Any]]:
    """Yield the medians, and those of the ratios to the open server within a round."""
    for name, wire in dict.fromkeys(key for one in rounds for key in one):
        cpu = statistics.median(one[name, wire] for one in rounds)
        ratios = sorted(one[name, wire] / one[OPEN, wire] for one in rounds)
        yield {
            "server": name,
            "wire": wire,
            "cpu_us": round(cpu, 1),
            "ratio": round(statistics.median(ratios), 3),
            "least": round(ratios[0], 3),
            "most": round(ratios[-1], 3),
        }


def report_of(rows: Sequence[Mapping[str, Any]], trips: Mapping[str, float], rounds: int) -> dict[str, Any]:
    """Return what is written down."""
    goals = [
        {"what": f"{row['server']}, {row['wire']}", "goal": GOAL, "measured": row["ratio"]}
        for row in rows
        if row["server"] == BUDGETS
    ]
    goals.append(
        {"what": "round trips of a model call", "goal": MOST_ROUND_TRIPS, "measured": trips[SHARED_BUDGETS_ALONE]}
    )
    return {
        "circumstances": circumstances(PACKAGES),
        "rounds": rounds,
        "load": {"calls": CALLS, "callers": CALLERS},
        "rows": list(rows),
        "round_trips": dict(trips),
        "goals": [{**goal, "is_met": goal["measured"] <= goal["goal"]} for goal in goals],
    }


async def measure(servers: Mapping[str, ServerProcess], url: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure everything."""
    plan = [(name, wire) for wire in WIRES for name in servers]
    rounds = []
    for number in range(options.rounds):
        ordered = plan[:: -1 if number % 2 else 1]
        rounds.append({(name, wire): await measured(servers[name], wire, options.calls) for name, wire in ordered})
    shared = [name for name in servers if "Redis" in name]
    trips = {name: await round_trips(servers[name], url) for name in shared}
    return report_of(list(rows_of(rounds)), trips, options.rounds)


async def main_async(options: argparse.Namespace) -> dict[str, Any]:
    """Start what is measured, and measure it."""
    core, other = two_processors()
    pin(other)
    async with running_redis() as redis:
        with ExitStack() as stack:
            return await measure(servers_of(stack, redis.url, core), redis.url, options)


def main() -> None:
    """Measure, print and write down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count (%(default)s)")
    parser.add_argument("--calls", type=int, default=CALLS, help="calls of a round; another number writes nothing")
    parser.add_argument("--core", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        if options.serve is not None:
            pin(options.core)
            runner.run(serve(*options.serve))
            return
        report = runner.run(main_async(options))
    for row in report["rows"]:
        spread = f"{row['least']:.2f}-{row['most']:.2f}"
        print(
            f"{row['wire']:<9} {row['server']:<22} {row['cpu_us']:8.1f} us CPU  {row['ratio']:.3f} ({spread}) of open"
        )
    for name, trips in report["round_trips"].items():
        print(f"{name:<32} {trips:.2f} round trips per call")
    for goal in report["goals"]:
        verdict = "met" if goal["is_met"] else "MISSED"
        print(f"goal: {goal['what']} at most {goal['goal']:g}: {goal['measured']:.3f}, {verdict}")
    if options.calls == CALLS:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
