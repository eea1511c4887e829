"""Measure a well-behaved client's latency and the server's memory during attacks by others: `make bench`.

Prints a table and writes results/attacks.json beside this file. A real `reasond serve --dev` runs on loopback. Each
attack comes from its own process (see `benchmarks.hostile`) and lasts `--seconds`. Meanwhile one client calls over gRPC
and one over HTTP, 20 times a second each, both with a token and on persistent connections. `--only WORD` runs the
attacks whose name contains the word.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx

from benchmarks import hostile
from benchmarks.machine import new_event_loop, write_report
from reasond.v1 import execution_pb2, reasoning_service_pb2, reasoning_service_pb2_grpc

RESULTS = Path(__file__).resolve().parent / "results" / "attacks.json"
PACKAGES = ("reasond-server", "grpcio", "protobuf", "pydantic", "pydantic-core", "uvicorn", "httptools")
COMMAND = str(Path(sys.executable).with_name("reasond"))
LIMIT_S = 60.0
PACE_S = 0.05
QUERY = "What is six times seven?"
MILLI, KIBI, MEGA = 1000, 1024, 1_000_000
NONE = "none"
MOST_CHARACTERS = 200
# The server's memory must stay below this during every attack; docs/operations/hardening.md lists its parts.
MEMORY_BOUND_MB = 1024.0


@dataclass(slots=True)
class Seen:
    """The results of the well-behaved clients' calls."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {"grpc": [], "http": []})
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One attack: latency of calls over both wires in milliseconds, processor time and memory of the server.

    `server_cpu_s` includes the cost of the well-behaved calls: compare it with the row without an attack.
    """

    attack: str
    tries: int
    grpc_p50_ms: float
    grpc_p99_ms: float
    http_p50_ms: float
    http_p99_ms: float
    longest_ms: float
    calls: int
    failed: int
    first_failure: str
    server_cpu_s: float
    peak_mb: float
    after_mb: float

    @property
    def is_met(self) -> bool:
        """Whether every well-behaved call was answered and memory stayed within its bound."""
        return not self.failed and self.peak_mb < MEMORY_BOUND_MB


@contextmanager
def server(**more: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Run a development server with `more` in its environment; yield its process id and its addresses."""
    with tempfile.TemporaryDirectory() as folder:
        ready = Path(folder) / "ready.json"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("REASOND", "OPENAI_"))}
        chosen = {
            "REASOND__SERVER__GRPC_ADDRESS": "127.0.0.1:0",
            "REASOND__SERVER__HTTP_ADDRESS": "127.0.0.1:0",
            "REASOND__SERVER__DRAIN_DELAY_S": "0",
            "REASOND__SERVER__DRAIN_GRACE_S": "1",
        }
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(
                [COMMAND, "serve", "--dev", "--ready-file", str(ready)],
                env={**kept, **chosen, **more},
                cwd=folder,
                stdout=log,
                stderr=log,
            )
        try:
            begun = time.monotonic()
            while not ready.exists():
                if process.poll() is not None or time.monotonic() - begun > LIMIT_S:
                    raise SystemExit("the server did not get ready")
                time.sleep(0.01)
            yield process.pid, json.loads(ready.read_text("utf-8"))
            process.send_signal(signal.SIGTERM)
            process.wait(LIMIT_S)
        finally:
            process.kill()
            process.wait()


def resident_mb(process_id: int) -> float:
    """Return the resident memory of a process in megabytes."""
    for line in Path(f"/proc/{process_id}/status").read_text("ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * KIBI / MEGA
    raise SystemExit("the server has ended")


def processor_s(process_id: int) -> float:
    """Return the processor seconds that a process has taken."""
    times = Path(f"/proc/{process_id}/stat").read_text("ascii").rpartition(")")[2].split()[11:13]
    return sum(map(int, times)) / os.sysconf("SC_CLK_TCK")


async def behave(addresses: Mapping[str, str], seen: Seen, until: float) -> None:
    """Call over both wires at a steady pace, one call after the other on each."""
    request = reasoning_service_pb2.ReasonRequest(task=execution_pb2.ReasoningTask(query=QUERY))
    metadata = [("authorization", f"Bearer {addresses['token']}")]
    http = addresses["http"].removeprefix("http://")
    body = json.loads(hostile.execute(query=QUERY, auth_token=addresses["token"]))
    async with (
        grpc.aio.insecure_channel(addresses["grpc"]) as channel,
        httpx.AsyncClient(base_url=f"http://{http}", timeout=LIMIT_S, trust_env=False) as client,
    ):
        stub: Any = reasoning_service_pb2_grpc.ReasoningServiceStub(channel)

        async def over_grpc() -> None:
            await stub.Reason(request, metadata=metadata, timeout=LIMIT_S)

        async def over_http() -> None:
            answer = (await client.post("/api/v1/jsonrpc", json=body)).json()
            if "result" not in answer:
                seen.failures.append(f"http: {answer['error']['message']}"[:MOST_CHARACTERS])

        await asyncio.gather(
            _repeat("grpc", over_grpc, seen, until),
            _repeat("http", over_http, seen, until),
        )


async def _repeat(wire: str, call: Callable[[], Awaitable[None]], seen: Seen, until: float) -> None:
    while time.monotonic() < until:
        begun = time.perf_counter()
        try:
            await call()
        except (grpc.aio.AioRpcError, httpx.HTTPError) as error:
            told = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.aio.AioRpcError) else repr(error)
            seen.failures.append(f"{wire}: {told}"[:MOST_CHARACTERS])
        seen.seconds[wire].append(time.perf_counter() - begun)
        await asyncio.sleep(PACE_S)


async def _watch(process_id: int, until: float) -> float:
    """Return the greatest resident memory of the server until that time."""
    peak = 0.0
    while time.monotonic() < until:
        peak = max(peak, resident_mb(process_id))
        await asyncio.sleep(PACE_S)
    return peak


def _attack(name: str, target: hostile.Target, seconds: float, tries: Any, begun: Any) -> None:  # noqa: ANN401 - a shared value of multiprocessing
    begun.set()
    tries.value = hostile.run(name, target, seconds)


async def measure(name: str, *, process_id: int, addresses: Mapping[str, str], seconds: float) -> Measure:
    """Attack for `seconds` and measure."""
    spawn = multiprocessing.get_context("spawn")
    tries = spawn.Value("q", 0)
    begun = spawn.Event()
    target = hostile.Target(
        grpc=addresses["grpc"],
        http=addresses["http"].removeprefix("http://"),
        token=addresses["token"],
    )
    attacker = None if name == NONE else spawn.Process(target=_attack, args=(name, target, seconds, tries, begun))
    if attacker is not None:
        attacker.start()
        await asyncio.to_thread(begun.wait, LIMIT_S)
    seen, used = Seen(), processor_s(process_id)
    try:
        # One more second, so that the figures include the after-effects of an attack.
        until = time.monotonic() + seconds + 1.0
        _, peak = await asyncio.gather(behave(addresses, seen, until), _watch(process_id, until))
    finally:
        if attacker is not None:
            await asyncio.to_thread(attacker.join, LIMIT_S)
            attacker.kill()
    taken = {"server_cpu_s": round(processor_s(process_id) - used, 2), "peak_mb": peak}
    return measure_one(name, seen, tries=tries.value, taken={**taken, "after_mb": resident_mb(process_id)})


def measure_one(name: str, seen: Seen, *, tries: int, taken: Mapping[str, float]) -> Measure:
    """Return the figures of one attack."""
    cuts = {
        wire: [round(cut * MILLI, 1) for cut in statistics.quantiles(found, n=100, method="inclusive")]
        for wire, found in seen.seconds.items()
    }
    every = [*seen.seconds["grpc"], *seen.seconds["http"]]
    return Measure(
        attack=name,
        tries=tries,
        grpc_p50_ms=cuts["grpc"][49],
        grpc_p99_ms=cuts["grpc"][98],
        http_p50_ms=cuts["http"][49],
        http_p99_ms=cuts["http"][98],
        longest_ms=round(max(every) * MILLI, 1),
        calls=len(every),
        failed=len(seen.failures),
        first_failure=seen.failures[0] if seen.failures else "",
        server_cpu_s=taken["server_cpu_s"],
        peak_mb=round(taken["peak_mb"], 1),
        after_mb=round(taken["after_mb"], 1),
    )


def line_of(one: Measure) -> str:
    """Return a line of the table."""
    return (
        f"{one.attack:<42} {one.tries:>8} {one.grpc_p50_ms:>8.1f} {one.grpc_p99_ms:>8.1f} {one.http_p50_ms:>8.1f} "
        f"{one.http_p99_ms:>8.1f} {one.longest_ms:>8.1f} {one.failed:>4}/{one.calls:<5} {one.server_cpu_s:>6.2f} "
        f"{one.peak_mb:>7.0f} {one.after_mb:>6.0f}  {'met' if one.is_met else 'MISSED'}"
    )


def main() -> None:
    """Attack, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="run the attacks whose name holds this word; writes no results")
    parser.add_argument("--seconds", type=float, default=5.0, help="how long each attack lasts")
    chosen = parser.parse_args()
    names = [name for name in (NONE, *hostile.attacks()) if chosen.only.lower() in name.lower()]
    heads = ("attack", "tries", "g p50", "g p99", "h p50", "h p99", "longest", "failed", "cpu s", "peak MB", "after")
    print("{:<42} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>10} {:>6} {:>7} {:>6}".format(*heads), flush=True)
    measures = []
    for name in names:
        # A new server for each attack, so that the after-effects of one are not in the figures of the next.
        with server() as (process_id, addresses), asyncio.Runner(loop_factory=new_event_loop) as runner:
            found = measure(name, process_id=process_id, addresses=addresses, seconds=chosen.seconds)
            measures.append(runner.run(found))
        print(line_of(measures[-1]), flush=True)
        if measures[-1].failed:
            print(f"  {measures[-1].first_failure}", flush=True)
    if not chosen.only:
        write_report(RESULTS, PACKAGES, measures=[asdict(one) for one in measures])


if __name__ == "__main__":
    main()
