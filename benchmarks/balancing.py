"""Measure short calls to three servers of which one is busy with long ones, by how a client balances them.

Prints a table and, for the client in Go, writes results/balancing.json beside this file. Each server has eight places
and a model that takes 100 ms; of the busy one, seven places are held by executions that last as long as the
measurement. The client is grpc-go (balancing/main.go) or grpc-js (balancing/balancing.mjs): in turn, by the load that a
stream or the trailers of its calls report, and, as the ideal, in turn over the two servers that are not busy. Each
policy has three servers of its own in this process, and all are measured at the same time: what else the machine does
delays them alike. The calls come by chance, and those of the first seconds are not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import reasond
from benchmarks.machine import make_goal, write_report
from reasond_server.testing import FunctionModel, Reply, running_server
from scripts.typescript_client import prepare_client
from tests.clients.scenario_servers import COMMON, mint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.assembly.app import Listening
    from reasond_server.llm.model import ChatRequest

FOLDER: Final = Path(__file__).resolve().parent
RESULTS: Final = FOLDER / "results" / "balancing.json"
PACKAGES: Final = ("reasond-server", "grpcio", "protobuf")
PLACES: Final = 8
HELD: Final = 7
SHORT_S: Final = 0.1
RATE: Final = 40
LONG: Final = "a long question"
ENVIRON: Final = {
    "REASOND__AUTH__KEYS": COMMON["REASOND__AUTH__KEYS"],
    "REASOND__SERVER__HTTP_ADDRESS": "",
    "REASOND__SERVER__LOAD_REPORTS": "both",
    "REASOND__STORE__URL": "memory:",
    "REASOND__LIMITS__REQUESTS_PER_MINUTE": "1000000000",
    "REASOND__REASONING__PERFORMANCE__MAX_CONCURRENT_REQUESTS": str(PLACES),
}
IDEAL, TURNS, STREAM, TRAILERS = "ideal", "round robin", "load by a stream", "load by trailers"
_BY_LOAD: Final[Mapping[str, Any]] = {"blackoutPeriod": "3s", "weightUpdatePeriod": "1s"}
POLICIES: Final[Mapping[str, Any]] = {
    IDEAL: {"round_robin": {}},
    TURNS: {"round_robin": {}},
    STREAM: {"weighted_round_robin": {**_BY_LOAD, "enableOobLoadReport": True, "oobReportingPeriod": "1s"}},
    TRAILERS: {"weighted_round_robin": _BY_LOAD},
}
GOAL: Final = 1.2


def reply(request: ChatRequest) -> Reply:
    """Answer a short question after 100 ms, and a long one never."""
    hold = asyncio.Event()
    if LONG not in request.messages[-1].content:
        asyncio.get_running_loop().call_later(SHORT_S, hold.set)
    return Reply(text="<answer>42</answer>", hold=hold)


def find_percentile_ms(took_ms: Sequence[float], percent: int) -> float:
    """Return the time that `percent` of the calls did not exceed."""
    return sorted(took_ms)[min(len(took_ms) - 1, len(took_ms) * percent // 100)]


async def measure(
    client: Sequence[str | Path], policy: str, servers: Sequence[Listening], options: argparse.Namespace
) -> dict[str, Any]:
    """Run the client over the servers, of which the first is busy, and return a row; the ideal leaves that out."""
    used = servers[1:] if policy == IDEAL else servers
    process = await asyncio.create_subprocess_exec(
        *(*client, "--policy", json.dumps(POLICIES[policy]), "--token", mint("balancing"), "--rate", str(RATE)),
        *("--targets", ",".join(each.grpc for each in used), "--counted", f"{options.seconds}s"),
        *("--warm-up", f"{options.warm_up}s"),
        stdout=subprocess.PIPE,
    )
    written, _ = await process.communicate()
    if process.returncode:
        sys.exit(f"the client ended with {process.returncode}")
    told = json.loads(written)
    return {
        "policy": policy,
        "calls": len(told["took_ms"]),
        "failed": told["failed"],
        "busy_share": told["calls"].get(servers[0].grpc, 0) / max(1, len(told["took_ms"])),
        "p50_ms": find_percentile_ms(told["took_ms"], 50),
        "p99_ms": find_percentile_ms(told["took_ms"], 99),
    }


async def start_servers(stack: AsyncExitStack) -> list[Listening]:
    """Start three servers, and hold places of the first."""
    model = FunctionModel(reply)
    servers = [await stack.enter_async_context(running_server(model=model, environ=ENVIRON)) for _ in range(3)]
    busy = await stack.enter_async_context(reasond.AsyncClient(servers[0].grpc, token=servers[0].token))
    for _ in range(HELD):
        stack.callback(asyncio.create_task(busy.reason(LONG, timeout_s=3600)).cancel)
    return servers


async def measure_all(client: Sequence[str | Path], options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all policies at the same time."""
    async with AsyncExitStack() as stack:
        sets = {policy: await start_servers(stack) for policy in POLICIES}
        return await asyncio.gather(*(measure(client, policy, sets[policy], options) for policy in POLICIES))


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=60, help="seconds that count for each policy (%(default)s)")
    parser.add_argument("--warm-up", type=int, default=20, help="seconds before, which do not count (%(default)s)")
    parser.add_argument("--client", choices=("go", "node"), default="go", help="which gRPC balances (%(default)s)")
    options = parser.parse_args()
    if options.client == "node":
        prepare_client()
        rows = asyncio.run(measure_all(("node", FOLDER / "balancing" / "balancing.mjs"), options))
    else:
        with tempfile.TemporaryDirectory() as folder:
            client = Path(folder) / "balancing"
            subprocess.run(["go", "build", "-o", str(client), "."], cwd=FOLDER / "balancing", check=True)
            rows = asyncio.run(measure_all((client,), options))
    ideal = rows[0]["p99_ms"]
    for row in rows:
        row["of_ideal"] = row["p99_ms"] / ideal
        print(
            "{policy:<17} {calls} calls, {busy_share:6.1%} at the busy server, {failed} failed  "
            "p50 {p50_ms:.0f} p99 {p99_ms:.0f} ms, {of_ideal:.2f} of the ideal".format(**row)
        )
    goals = [make_goal(f"p99 over the ideal, {row['policy']}", "at most", GOAL, row["of_ideal"]) for row in rows[2:]]
    if options.client != "go":
        return
    write_report(RESULTS, PACKAGES, rows=rows, goals=goals)


if __name__ == "__main__":
    main()
