"""Compare two workers with one on the same PostgreSQL, then let a mix of callers use the two for some minutes.

Prints a table and writes results/scale.json beside this file. `reasond serve --workers 1` and `--workers 2` run at the
same time, each on a database of its own in one PostgreSQL that the benchmark starts; rounds alternate between them.
No process is pinned to a processor: on a machine with two processors the client, the model, the database and the
servers share them. So the claimed figure is calls per second of the server's processor time, including the
supervisor's. The database's processor time per call is reported too.

The mix: callers who wait for the answer, who follow a stream to its end, who leave it in the middle, who cut it and
resume it on another connection, and who cancel a run. Memory and open files are read after a third of the time and at
the end.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import reasond as client_library
from benchmarks.loading import GrpcCall, load
from benchmarks.machine import new_event_loop, write_report
from benchmarks.processes import Reasond, Running, end_children_on_sigterm, reasond
from benchmarks.unary import ANSWER_BYTES, PATH, request_message
from benchmarks.upstream import running_upstream
from reasond_server.assembly.stores import migrate_stores
from tests.engines.postgres import running_postgres

RESULTS = Path(__file__).resolve().parent / "results" / "scale.json"
PACKAGES = ("reasond-server", "grpcio", "protobuf", "openai", "sqlalchemy", "psycopg")
ROUNDS: Final = 5
CALLS: Final = 3000
CALLERS, ON_EACH = 32, 2
GOAL: Final = 0.95
SOAK_S: Final = 180.0
SOAK_CALLERS_EACH: Final = 4
QUERY: Final = "Why does glass take light apart into its colours?"
FAST: Final = "fake?bytes=2048"
SLOW: Final = "fake?bytes=2048&chunks=20&gap_ms=10"
MICRO: Final = 1_000_000
# Limits of growth of a server with two workers, from a third of the soak to its end.
MOST_GROWTH_MB, MOST_NEW_FILES = 30.0, 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The figures of one side in one round: calls per second, and per second of the server's processor time."""

    per_cpu_s: float
    per_second: float
    cpu_us: float
    database_cpu_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Resources that all processes of a server hold at one time."""

    resident_mb: float
    files: int
    threads: int


@contextmanager
def serving(stack: ExitStack, workers: int, store: str, base_url: str, model: str) -> Iterator[Reasond]:
    """Run `reasond serve --workers N` as in production."""
    migrate_stores(url=store, data_dir="")
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    settings = {
        "REASOND__SERVER__WORKERS": str(workers),
        "REASOND__SERVER__SO_REUSEPORT": "false",
        "REASOND__METRICS__ADDRESS": "127.0.0.1:0",
        "REASOND__LLM__PROVIDER": "openai",
        "REASOND__LLM__MODEL": model,
        "REASOND__LLM__BASE_URL": base_url,
        "REASOND__LLM__API_KEY_ENV": "",
    }
    program = str(Path(sys.executable).with_name("reasond"))
    with reasond(program, core=-1, folder=folder, store=store, settings=settings) as found:
        yield found


async def measure_one(server: Reasond, database: Running, calls: int) -> Figures:
    """Put load on one server."""
    call = GrpcCall(path=PATH, metadata=server.metadata, message=request_message(), least=ANSWER_BYTES)
    await load(server.grpc, call, callers=CALLERS, total=max(CALLERS, calls // 10), on_each=ON_EACH)
    begun, database_begun = server.running.cpu_s(), database.cpu_s()
    found = await load(server.grpc, call, callers=CALLERS, total=calls, on_each=ON_EACH)
    cpu_s, database_s = server.running.cpu_s() - begun, database.cpu_s() - database_begun
    return Figures(
        per_cpu_s=calls / cpu_s,
        per_second=found.per_second,
        cpu_us=cpu_s / calls * MICRO,
        database_cpu_us=database_s / calls * MICRO,
    )


async def rounds_of(
    servers: Mapping[int, Reasond], database: Running, rounds: int, calls: int
) -> list[dict[int, Figures]]:
    """Measure both sides in turn; every other round is in reverse order."""
    found = []
    for number in range(rounds):
        order = list(servers)[:: 1 if number % 2 else -1]
        one = {workers: await measure_one(servers[workers], database, calls) for workers in order}
        print(f"round {number + 1}: {one[2].per_cpu_s / one[1].per_cpu_s:.3f}", flush=True)
        found.append(one)
    return found


def rows_of(rounds: Sequence[Mapping[int, Figures]]) -> list[dict[str, Any]]:
    """Return the medians, and for two workers the median of the ratios within the rounds."""
    rows = []
    for workers in (1, 2):
        found = [asdict(one[workers]) for one in rounds]
        medians = {name: round(statistics.median(one[name] for one in found), 1) for name in found[0]}
        ratios = [one[workers].per_cpu_s / one[1].per_cpu_s for one in rounds]
        rates = [one[workers].per_second / one[1].per_second for one in rounds]
        row = {"workers": workers, **medians, "ratio": round(statistics.median(ratios), 3)}
        rows.append({**row, "rate_ratio": round(statistics.median(rates), 3)})
    return rows


def held_by(server: Running) -> Held:
    """Return the resources that the supervisor and its workers hold."""
    files = threads = 0
    for one in server.processes():
        files += sum(1 for _ in Path(f"/proc/{one}/fd").iterdir())
        threads += sum(1 for _ in Path(f"/proc/{one}/task").iterdir())
    return Held(resident_mb=round(server.resident_mb(), 1), files=files, threads=threads)


class Mix:
    """Callers of five kinds; counts the actions of each and every unexpected error."""

    def __init__(self, server: Reasond) -> None:
        self._server = server
        self.done: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()

    @property
    def kinds(self) -> Sequence[Callable[[client_library.AsyncClient], Awaitable[None]]]:
        """The actions of the callers."""
        return (self.ask, self.follow, self.leave, self.resume, self.cancel)

    def client(self) -> client_library.AsyncClient:
        """Return a client with its own connection, to whichever worker the system picks."""
        return client_library.AsyncClient(
            target=self._server.grpc, token=self._server.token, options={"grpc.use_local_subchannel_pool": 1}
        )

    async def call(self, kind: Callable[[client_library.AsyncClient], Awaitable[None]], until: float) -> None:
        """Repeat one action; use a new connection after every 20 times."""
        while time.monotonic() < until:
            async with self.client() as client:
                for _ in range(20):
                    try:
                        await kind(client)
                    except client_library.ReasondError as error:
                        self.errors[f"{kind.__name__}: {error}"[:200]] += 1
                    else:
                        self.done[kind.__name__] += 1
                    if time.monotonic() >= until:
                        return

    async def ask(self, client: client_library.AsyncClient) -> None:
        """Send a request and wait for the answer."""
        await client.reason(QUERY)

    async def follow(self, client: client_library.AsyncClient) -> None:
        """Follow a run to its end."""
        async with client.reason_iterations(QUERY, include_deltas=True) as stream:
            async for _ in stream:
                pass
            self._require_result(stream)

    async def leave(self, client: client_library.AsyncClient) -> None:
        """Leave a run in the middle, which cancels it."""
        async with client.reason_iterations(QUERY, include_deltas=True) as stream:
            async for event in stream:
                if event.WhichOneof("event") == "delta":
                    break

    async def resume(self, client: client_library.AsyncClient) -> None:
        """Leave a run that keeps running, and follow it over another connection."""
        async with client.reason_iterations(QUERY, keep_running=True) as stream:
            await anext(aiter(stream))
            execution_id, sequence = stream.execution_id, stream.last_sequence
        async with self.client() as another, another.resume(execution_id, after_sequence=sequence) as stream:
            async for _ in stream:
                pass
            self._require_result(stream)

    async def cancel(self, client: client_library.AsyncClient) -> None:
        """Cancel a run over another connection, and check that its result says so."""
        async with client.reason_iterations(QUERY, keep_running=True) as stream:
            await anext(aiter(stream))
            async with self.client() as another:
                await another.cancel_execution(stream.execution_id)
            async for _ in stream:
                pass
            self._require_result(stream)

    def _require_result(self, stream: client_library.AsyncReasoningStream) -> None:
        if stream.result is None:
            self.errors["a stream ended without a result"] += 1


async def soak_server(server: Reasond, seconds: float) -> dict[str, Any]:
    """Let the mix use the server for `seconds`."""
    mix = Mix(server)
    until = time.monotonic() + seconds
    callers = [asyncio.create_task(mix.call(kind, until)) for kind in mix.kinds for _ in range(SOAK_CALLERS_EACH)]
    await asyncio.sleep(seconds / 3)
    early = held_by(server.running)
    late = early
    while time.monotonic() < until - 1:
        await asyncio.sleep(1)
        late = held_by(server.running)
    await asyncio.gather(*callers)
    for what, times in mix.errors.items():
        print(f"soak: {times} times {what}")
    return {
        "seconds": seconds,
        "callers": len(callers),
        "done": dict(mix.done),
        "errors": sum(mix.errors.values()),
        "early": asdict(early),
        "late": asdict(late),
    }


def goals_of(rows: Sequence[Mapping[str, Any]], soak: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the goals and whether the figures meet them."""
    growth = round(soak["late"]["resident_mb"] - soak["early"]["resident_mb"], 1)
    files = soak["late"]["files"] - soak["early"]["files"]
    ratio = rows[1]["ratio"]
    return [
        {
            "what": "calls per second of processor time, two workers over one",
            "goal": f">= {GOAL:g}",
            "measured": ratio,
            "is_met": ratio >= GOAL,
        },
        {"what": "errors in the mix", "goal": "= 0", "measured": soak["errors"], "is_met": soak["errors"] == 0},
        {
            "what": "MB that two workers grow by in the last two thirds of the mix",
            "goal": f"<= {MOST_GROWTH_MB:g}",
            "measured": growth,
            "is_met": growth <= MOST_GROWTH_MB,
        },
        {
            "what": "open files that they grow by",
            "goal": f"<= {MOST_NEW_FILES}",
            "measured": files,
            "is_met": files <= MOST_NEW_FILES,
        },
    ]


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count (%(default)s)")
    parser.add_argument("--calls", type=int, default=CALLS, help="calls of a round and side (%(default)s)")
    parser.add_argument("--soak-seconds", type=float, default=SOAK_S, help="how long the mix lasts (%(default)g)")
    options = parser.parse_args()
    end_children_on_sigterm()
    with ExitStack() as stack:
        base_url = stack.enter_context(running_upstream(core=-1))
        postgres = stack.enter_context(running_postgres())
        database = Running(process_id=postgres.process_id, ready_s=0.0)
        runner = stack.enter_context(asyncio.Runner(loop_factory=new_event_loop))
        with ExitStack() as sides:
            servers = {
                workers: sides.enter_context(serving(sides, workers, postgres.new_database(), base_url, FAST))
                for workers in (1, 2)
            }
            rows = rows_of(runner.run(rounds_of(servers, database, options.rounds, options.calls)))
        with ExitStack() as sides:
            server = sides.enter_context(serving(sides, 2, postgres.new_database(), base_url, SLOW))
            soak = runner.run(soak_server(server, options.soak_seconds))
    for row in rows:
        print(
            f"{row['workers']} workers: {row['per_cpu_s']:7.1f} calls per CPU second ({row['cpu_us']:.0f} us), "
            f"{row['per_second']:7.1f}/s; database {row['database_cpu_us']:.0f} us; ratio {row['ratio']:.3f}, "
            f"rate {row['rate_ratio']:.2f}"
        )
    print(f"mix: {soak['done']}, {soak['errors']} errors; {soak['early']} -> {soak['late']}")
    goals = goals_of(rows, soak)
    for goal in goals:
        print(f"goal: {goal['what']} {goal['goal']}: {goal['measured']:g}, {'met' if goal['is_met'] else 'MISSED'}")
    load_of = {"rounds": options.rounds, "calls": options.calls, "callers": CALLERS}
    write_report(RESULTS, PACKAGES, load=load_of, rows=rows, soak=soak, goals=goals)


if __name__ == "__main__":
    main()
