"""Measure what tokens, limits and budgets cost a call, as a share of the same call without them: `make bench`.

Prints a table and writes results/access_cost.json beside this file. The calls are a unary Reason over gRPC and
`reasoning.execute` over JSON-RPC, on a model that answers at once in the server's process. The figure is the server's
processor time per call.

  open     the token is not checked, every caller has every permission, no audit log, no limits
  tokens   the token is verified (and cached for a minute), permissions are checked, decisions are audited
  limits   in addition: requests per minute and hour, concurrent executions
  budgets  in addition: tokens per minute and per day, reserved and settled

Limits and budgets are kept in memory, and in a real Redis that runs beside the load client. MONITOR counts the commands
that Redis receives.

Every round starts new server processes, because two processes of the same program differ by some per cent for as long
as they live. After warming up, the servers take turns of a fraction of a second, every other turn in reverse order.
Each turn is divided by the same turn of `open`, so that other load on the machine affects both; the median of the turns
is the figure of the round. The report has the median, the least and the greatest of the rounds. `open` is the same
program with the same settings and the same answers; the code that passes the caller on and starts a decision stays in,
about 20 function calls. `--profile` prints the function calls per call instead, which do not depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import logging
import os
import pstats
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
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
    from collections.abc import AsyncGenerator, Iterator

    from reasond_server.access.token_verifier import TokenVerifier

RESULTS = Path(__file__).resolve().parent / "results" / "access_cost.json"
PACKAGES = ("reasond-server", "grpcio", "pyjwt", "redis")
MODULE: Final = "benchmarks.access_cost"
ROUNDS: Final = 7
TURNS: Final = 15
CALLS: Final = 160
CALLERS: Final = 16
WATCHED_CALLS: Final = 50
PROFILED_CALLS: Final = 1000
# A server is warm when its best new turn takes more than this share of its best turn before.
STEADY: Final = 0.97
WARMING_TURNS, MOST_WARMINGS = 3, 10
QUESTION_BYTES, ANSWER_BYTES = 2048, 1024
GOAL: Final = 1.25
MOST_ROUND_TRIPS: Final = 2
MICRO: Final = 1_000_000
OPEN, TOKENS, LIMITS, BUDGETS = "open", "tokens", "limits", "budgets"
SHARED_LIMITS, SHARED_BUDGETS, SHARED_BUDGETS_ALONE = "limits, Redis", "budgets, Redis", "budgets alone, Redis"
WIRES: Final = ("gRPC", "JSON-RPC")
Round = Mapping[tuple[str, str], Sequence[float]]
"""Microseconds of processor time of a call in each turn, by server and wire."""
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
    """Accepts every token, unchecked, as one principal with all permissions."""

    def __init__(self) -> None:
        self._principal = Principal(subject="developer", tenant="sub:developer", permissions=frozenset({"admin"}))

    async def verify(self, token: str) -> Principal:
        """Return that principal."""
        del token
        return self._principal


async def serve(name: str, settings: str, dump: str) -> None:
    """Run the server called `name`, with settings as JSON; write a profile to `dump` if it names a file."""
    values = {**PLAIN, **json.loads(settings)}
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:  # noqa: ASYNC230 - nothing else runs yet
        configure(nowhere, is_human=False)
        server = Server(load_settings(None, values), environ=values, dev=True, model=InstantModel())
        if name == OPEN:
            verifier = cast("TokenVerifier", Everybody())
            server._verification = replace(server._verification, verifier=verifier)  # noqa: SLF001 - no public setting turns access control off
            logging.getLogger("reasond.audit").disabled = True
        listening = await server.start()
        profile = cProfile.Profile(time.process_time) if dump else None
        if profile is not None:
            profile.enable()
        try:
            await serve_until_told(target=listening.grpc, http=listening.http, token=listening.token)
        finally:
            if profile is not None:
                profile.disable()
                profile.dump_stats(dump)
            await server.stop()


def call_of(server: ServerProcess, wire: str) -> tuple[str, GrpcCall | HttpCall]:
    """Return the target and the call."""
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


async def measure_one(server: ServerProcess, wire: str, calls: int) -> float:
    """Return the processor time of one call in microseconds."""
    target, call = call_of(server, wire)
    begun = server.cpu_s()
    await load(target, call, callers=CALLERS, total=calls)
    return (server.cpu_s() - begun) / calls * MICRO


async def warm_up(server: ServerProcess, wire: str, calls: int) -> None:
    """Call a server until it gets no faster."""
    best = await measure_one(server, wire, calls)
    for _ in range(MOST_WARMINGS):
        found = min([await measure_one(server, wire, calls) for _ in range(WARMING_TURNS)])
        if found > STEADY * best:
            return
        best = found


async def round_trips(server: ServerProcess, url: str) -> float:
    """Return the round trips to Redis of one call, which makes one model call; commands inside scripts do not count."""
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


def settings_of(redis_url: str) -> dict[str, Mapping[str, str]]:
    """Return the settings of each server."""
    shared = {"REASOND__LIMITS__STORAGE": "redis", "REASOND__LIMITS__REDIS_URL": redis_url}
    return {
        OPEN: {},
        TOKENS: {},
        LIMITS: RATES,
        BUDGETS: {**RATES, **TOKEN_LIMITS},
        SHARED_LIMITS: {**RATES, **shared},
        SHARED_BUDGETS: {**RATES, **TOKEN_LIMITS, **shared},
        SHARED_BUDGETS_ALONE: {**TOKEN_LIMITS, **shared},
    }


def servers_of(stack: ExitStack, redis_url: str, core: int, *, has_redis: bool) -> dict[str, ServerProcess]:
    """Start all servers, or only those without Redis."""
    return {
        name: stack.enter_context(running(MODULE, name, json.dumps(values), "", core=core))
        for name, values in settings_of(redis_url).items()
        if has_redis or "Redis" not in name
    }


def rows_of(rounds: Sequence[Round]) -> Iterator[dict[str, Any]]:
    """Yield the medians of the rounds, and of their ratios to the open server."""
    for name, wire in dict.fromkeys(key for one in rounds for key in one):
        cpu = statistics.median(statistics.median(one[name, wire]) for one in rounds)
        ratios = sorted(ratio_of(one, name, wire) for one in rounds)
        yield {
            "server": name,
            "wire": wire,
            "cpu_us": round(cpu, 1),
            "ratio": round(statistics.median(ratios), 3),
            "least": round(ratios[0], 3),
            "most": round(ratios[-1], 3),
        }


def ratio_of(one: Round, name: str, wire: str) -> float:
    """Return the median of a server's turns, each over the same turn of the open server."""
    turns = zip(one[name, wire], one[OPEN, wire], strict=True)
    return statistics.median(own / plain for own, plain in turns)


def report_of(rows: Sequence[Mapping[str, Any]], trips: Mapping[str, float], rounds: int) -> dict[str, Any]:
    """Return the report that is written to the results file."""
    goals = [
        {"what": f"{row['server']}, {row['wire']}", "goal": GOAL, "measured": row["ratio"]}
        for row in rows
        if row["server"] == BUDGETS
    ]
    goals += [
        {"what": "round trips of a model call", "goal": MOST_ROUND_TRIPS, "measured": found}
        for name, found in trips.items()
        if name == SHARED_BUDGETS_ALONE
    ]
    return {
        "circumstances": circumstances(PACKAGES),
        "rounds": rounds,
        "load": {"turns": TURNS, "calls": CALLS, "callers": CALLERS},
        "rows": list(rows),
        "round_trips": dict(trips),
        "goals": [{**goal, "is_met": goal["measured"] <= goal["goal"]} for goal in goals],
    }


async def round_of(servers: Mapping[str, ServerProcess], calls: int) -> Round:
    """Return the processor time of a call in every turn."""
    found: dict[tuple[str, str], list[float]] = {}
    for wire in WIRES:
        for server in servers.values():
            await warm_up(server, wire, calls)
        for turn in range(TURNS):
            for name in list(servers)[:: -1 if turn % 2 else 1]:
                found.setdefault((name, wire), []).append(await measure_one(servers[name], wire, calls))
    return found


async def main_async(options: argparse.Namespace) -> dict[str, Any]:
    """Start the servers and measure them."""
    core, other = two_processors()
    pin(other)
    rounds: list[Round] = []
    async with running_redis() as redis:
        for _ in range(options.rounds):
            with ExitStack() as stack:
                servers = servers_of(stack, redis.url, core, has_redis=not options.memory)
                rounds.append(await round_of(servers, options.calls))
                if len(rounds) == options.rounds:
                    shared = [name for name in servers if "Redis" in name]
                    trips = {name: await round_trips(servers[name], redis.url) for name in shared}
    return report_of(list(rows_of(rounds)), trips, options.rounds)


async def calls_of(name: str, values: Mapping[str, str], wire: str) -> float:
    """Return the function calls of one call, counted in a server that does nothing else."""
    core, other = two_processors()
    pin(other)
    with tempfile.TemporaryDirectory() as folder:
        dump = str(Path(folder) / "profile")
        with running(MODULE, name, json.dumps(values), dump, core=core) as server:
            target, call = call_of(server, wire)
            await load(target, call, callers=CALLERS, total=PROFILED_CALLS)
        stats = pstats.Stats(dump)
        return float(stats.total_calls) / PROFILED_CALLS  # type: ignore[attr-defined]  # pstats has this attribute


async def profile_all() -> None:
    """Print the function calls per call of the servers that need no Redis."""
    settings = {name: values for name, values in settings_of("").items() if "Redis" not in name}
    for wire in WIRES:
        plain = await calls_of(OPEN, settings[OPEN], wire)
        for name, values in settings.items():
            found = await calls_of(name, values, wire)
            print(f"{wire:<9} {name:<22} {found:8.1f} function calls  {found / plain:.3f} of open")


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds, each with new servers (%(default)s)")
    parser.add_argument("--calls", type=int, default=CALLS, help="calls of a turn; another number writes nothing")
    parser.add_argument(
        "--profile", action="store_true", help="count function calls, which a busy machine does not alter"
    )
    parser.add_argument("--memory", action="store_true", help="leave Redis out; writes nothing")
    parser.add_argument("--core", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        if options.serve is not None:
            pin(options.core)
            runner.run(serve(*options.serve))
            return
        if options.profile:
            runner.run(profile_all())
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
    if options.calls == CALLS and not options.memory:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
