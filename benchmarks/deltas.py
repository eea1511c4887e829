"""Measure what streaming text to clients costs, with and without the flush window of `[server] delta_flush_ms`.

Prints a table and writes results/deltas.json beside this file. A server in a process of its own runs `chain_of_thought`
over a model that writes one token every 10 ms; 64 clients of this process follow it over gRPC and ask for deltas. What
counts is the processor time of the server per token and the messages that it sends per second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import reasond
from benchmarks.machine import circumstances, new_event_loop, pin, two_processors
from reasond_server import app
from reasond_server.llm.counting import WordPieceCounter
from reasond_server.llm.model import Finished, ModelFinish, Text
from reasond_server.testing import running_server
from reasond_server.types import Usage

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from reasond_server.llm.model import ChatRequest, Message, ModelEvent, TokenCounter

RESULTS = Path(__file__).resolve().parent / "results" / "deltas.json"
PACKAGES = ("reasond-server", "grpcio", "protobuf")
ROUNDS = 5
STREAMS = 64
TOKENS = 200
GAP_S = 0.01
WINDOWS_MS = (0, 30)
NO_DELTAS = "no deltas asked for"
STOP_LIMIT_S = 10.0
GOAL_US = 45.0


class PacedModel:
    """Writes one token every `GAP_S` seconds, whatever it is asked, and keeps to that schedule."""

    name = "paced"
    warnings: Sequence[str] = ()
    context_window = None

    @property
    def counter(self) -> TokenCounter:
        """Counts word pieces."""
        return WordPieceCounter()

    @property
    def has_native_tools(self) -> bool:
        """Whether it takes tools: no."""
        return False

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        """Return what the counter counts."""
        return self.counter.count_prompt(messages)

    async def aclose(self) -> None:
        """Nothing is held open."""

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Write the tokens."""
        del request
        loop = asyncio.get_running_loop()
        due = loop.time()
        for number in range(TOKENS):
            yield Text(text=f"word{number:03} ")
            due += GAP_S
            await asyncio.sleep(max(0.0, due - loop.time()))
        yield Finished(reason=ModelFinish.STOP, usage=Usage(input_tokens=1, output_tokens=TOKENS, model_calls=1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one round of one way took: of the server and of the streams."""

    cpu_us_per_token: float
    messages_per_s: float
    first_text_ms: float
    seconds: float


async def serve(window_ms: int) -> None:
    """Serve, and answer every line on standard input with the processor time so far, in nanoseconds."""
    environ = {"REASOND__SERVER__DELTA_FLUSH_MS": str(window_ms), "REASOND__SERVER__HTTP_ADDRESS": ""}
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()

    def answer() -> None:
        if os.read(sys.stdin.fileno(), 1):
            print(time.process_time_ns(), flush=True)
        else:
            ended.set()

    async with running_server(model=PacedModel(), environ=environ) as listening:
        # As `reasond serve` does.
        app.spare_collector()
        print(json.dumps({"target": listening.grpc, "token": listening.token}), flush=True)
        loop.add_reader(sys.stdin, answer)
        await ended.wait()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """A server that is measured from outside."""

    process: subprocess.Popen[str]
    target: str
    token: str

    def cpu_ns(self) -> int:
        """Return the processor time that it has taken so far."""
        if self.process.stdin is None or self.process.stdout is None:
            raise SystemExit("the server has no pipes")
        self.process.stdin.write("?")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@contextmanager
def running(window_ms: int, *, core: int) -> Iterator[ServerProcess]:
    """Run a server with that window on processor `core`."""
    command = [sys.executable, "-m", "benchmarks.deltas", "--serve", str(window_ms), "--core", str(core)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if process.stdin is None or process.stdout is None:
            raise SystemExit("the server has no pipes")
        try:
            yield ServerProcess(process=process, **json.loads(process.stdout.readline() or "{}"))
        finally:
            process.stdin.close()
            try:
                process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()


async def follow(client: reasond.AsyncClient, *, include_deltas: bool) -> tuple[int, float]:
    """Follow one execution to its end; return its messages and the milliseconds until the first text."""
    begun, messages, first_ms = time.perf_counter(), 0, 0.0
    async with client.reason_iterations(
        "Why is the sky blue?", strategy="chain_of_thought", include_deltas=include_deltas
    ) as stream:
        async for event in stream:
            messages += 1
            if not first_ms and event.HasField("delta" if include_deltas else "iteration"):
                first_ms = 1000 * (time.perf_counter() - begun)
    return messages, first_ms


async def one_round(server: ServerProcess, *, include_deltas: bool, streams: int = STREAMS) -> Figures:
    """Follow `streams` executions at once."""
    async with reasond.AsyncClient(server.target, token=server.token) as client:
        await client.list_strategies()
        cpu_ns, begun = server.cpu_ns(), time.perf_counter()
        ends = await asyncio.gather(*(follow(client, include_deltas=include_deltas) for _ in range(streams)))
        seconds = time.perf_counter() - begun
        cpu_ns = server.cpu_ns() - cpu_ns
    return Figures(
        cpu_us_per_token=cpu_ns / 1000 / (streams * TOKENS),
        messages_per_s=sum(messages for messages, _ in ends) / seconds,
        first_text_ms=statistics.median(first_ms for _, first_ms in ends),
        seconds=seconds,
    )


async def measure(servers: dict[int, ServerProcess], rounds: int) -> dict[str, list[Figures]]:
    """Return the figures of every way, alternating, after a round that does not count."""
    for server in servers.values():
        await one_round(server, include_deltas=True, streams=8)
    found: dict[str, list[Figures]] = {NO_DELTAS: [], **{name_of(window_ms): [] for window_ms in servers}}
    for _ in range(rounds):
        for window_ms, server in servers.items():
            found[name_of(window_ms)].append(await one_round(server, include_deltas=True))
        found[NO_DELTAS].append(await one_round(servers[WINDOWS_MS[0]], include_deltas=False))
    return found


def name_of(window_ms: int) -> str:
    """Return how the table names a window."""
    return f"delta_flush_ms = {window_ms}"


def rows_of(found: dict[str, list[Figures]]) -> list[dict[str, Any]]:
    """Return the medians; `ratio` is the processor time to that without a window, in the same round."""
    plain = [one.cpu_us_per_token for one in found[name_of(0)]]
    rows = []
    for name, rounds in found.items():
        medians = {
            field: round(statistics.median(asdict(one)[field] for one in rounds), 2) for field in asdict(rounds[0])
        }
        ratios = [one.cpu_us_per_token / other for one, other in zip(rounds, plain, strict=True)]
        rows.append({"name": name, **medians, "ratio": round(statistics.median(ratios), 3)})
    return rows


def goals_of(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how the server as it is set up by default stands to the goal."""
    default = next(row for row in rows if row["name"] == name_of(WINDOWS_MS[-1]))
    taken = default["cpu_us_per_token"]
    what = "microseconds of CPU per token, delta_flush_ms = 30"
    return [{"what": what, "bound": "at most", "goal": GOAL_US, "measured": taken, "is_met": taken <= GOAL_US}]


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print the figures for a person."""
    print(f"{STREAMS} streams, {TOKENS} tokens each, one every {1000 * GAP_S:.0f} ms")
    for row in rows:
        print(
            f"    {row['name']:<20} {row['cpu_us_per_token']:>6.1f} us of CPU per token ({row['ratio']:.2f})  "
            f"{row['messages_per_s']:>6.0f} messages/s  first text after {row['first_text_ms']:.0f} ms  "
            f"{row['seconds']:.2f} s"
        )


def main() -> None:
    """Measure, print and write down; with --serve be the server."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count (%(default)s)")
    parser.add_argument("--serve", type=int, metavar="MS", help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, default=-1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        if options.serve is not None:
            pin(options.core)
            runner.run(serve(options.serve))
            return
        measured, other = two_processors()
        pin(other)
        with running(WINDOWS_MS[0], core=measured) as first, running(WINDOWS_MS[1], core=measured) as second:
            servers = dict(zip(WINDOWS_MS, (first, second), strict=True))
            rows = rows_of(runner.run(measure(servers, max(1, options.rounds))))
    print_rows(rows)
    goals = goals_of(rows)
    for goal in goals:
        verdict = "met" if goal["is_met"] else "MISSED"
        print(f"goal: {goal['what']} {goal['bound']} {goal['goal']:g}: {goal['measured']:g}, {verdict}")
    load = {"streams": STREAMS, "tokens": TOKENS, "gap_ms": 1000 * GAP_S, "rounds": options.rounds}
    report = {"circumstances": circumstances(PACKAGES), "load": load, "rows": rows, "goals": goals}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
