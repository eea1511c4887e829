"""Measure what streaming text to clients costs, with and without the flush window of `[server] delta_flush_ms`.

Prints a table and writes results/deltas.json beside this file. A server in its own process runs `chain_of_thought` over
a model that writes one token every 10 ms; 64 clients of this process follow it over gRPC and ask for deltas. The
figures are the server's processor time per token and the messages per second that it sends. A grpc.aio server that only
passes on the text of the same model shows the share of the model and of grpc.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import grpc

import reasond
from benchmarks.machine import make_goal, new_event_loop, pin, two_processors, write_report
from benchmarks.serving import ServerProcess, running, serve_until_told
from reasond.v1 import reasoning_service_pb2, reasoning_service_pb2_grpc
from reasond_server.assembly import app
from reasond_server.llm.counting import WordPieceCounter
from reasond_server.llm.model import ChatRequest, Finished, Message, ModelEvent, ModelFinish, Text, TokenCounter
from reasond_server.testing import running_server
from reasond_server.types import Usage

RESULTS = Path(__file__).resolve().parent / "results" / "deltas.json"
PACKAGES = ("reasond-server", "grpcio", "protobuf")
ROUNDS = 5
STREAMS = 64
TOKENS = 200
GAP_S = 0.01
MODULE: Final = "benchmarks.deltas"
BARE: Final = "bare"
WINDOWS_MS = (0, 30)
NO_DELTAS = "no deltas asked for"
BARE_SILENT: Final = "the model and grpc.aio alone, no text sent"
BARE_JOINED: Final = f"the model and grpc.aio alone, text joined for {WINDOWS_MS[-1]} ms"
GOAL_US = 45.0
MICRO = 1_000_000


class PacedModel:
    """Writes one token every `GAP_S` seconds on a fixed schedule, whatever the request."""

    name = "paced"
    warnings: Sequence[str] = ()
    context_window = None

    @property
    def counter(self) -> TokenCounter:
        """Counts word pieces."""
        return WordPieceCounter()

    @property
    def has_native_tools(self) -> bool:
        """Whether it supports tools: no."""
        return False

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        """Return the counter's count."""
        return self.counter.count_prompt(messages)

    async def aclose(self) -> None:
        """Do nothing: no resource is open."""

    async def stream(self, request: ChatRequest | None) -> AsyncGenerator[ModelEvent, None]:
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
    """The figures of one round of one way: processor time of the server, and messages of the streams."""

    cpu_us_per_token: float
    messages_per_s: float
    first_text_ms: float
    seconds: float


class Bare(reasoning_service_pb2_grpc.ReasoningServiceServicer):
    """Passes the model's text on, joined for 30 ms if deltas are requested, and one message at the end."""

    async def ReasonIterations(  # type: ignore[override]  # noqa: N802 - grpc.aio takes coroutines that write
        self,
        request: reasoning_service_pb2.ReasonIterationsRequest,
        context: Any,  # noqa: ANN401 - no type
    ) -> None:
        """Pass the text on."""
        loop, unsent = asyncio.get_running_loop(), list[str]()
        due = loop.time()
        async for event in PacedModel().stream(None):
            if isinstance(event, Text) and request.include_deltas:
                unsent.append(event.text)
                if loop.time() >= due:
                    due = loop.time() + WINDOWS_MS[-1] / 1000
                    await context.write(message_of("".join(unsent)))
                    unsent.clear()
        last = reasoning_service_pb2.ReasonIterationsResponse()
        last.iteration.thought.text = "done"
        await context.write(last)

    async def ListStrategies(  # noqa: N802 - likewise
        self,
        request: reasoning_service_pb2.ListStrategiesRequest,
        context: Any,  # noqa: ANN401 - no type
    ) -> reasoning_service_pb2.ListStrategiesResponse:
        """Answer, so that the client knows that it is connected."""
        del request, context
        return reasoning_service_pb2.ListStrategiesResponse()


def message_of(text: str) -> reasoning_service_pb2.ReasonIterationsResponse:
    """Return a delta."""
    message = reasoning_service_pb2.ReasonIterationsResponse(execution_id="0" * 32, sequence=1)
    message.delta.text = text
    return message


async def serve_bare() -> None:
    """Serve only the text of the model, and report the processor time so far."""
    server = grpc.aio.server()
    reasoning_service_pb2_grpc.add_ReasoningServiceServicer_to_server(Bare(), server)  # type: ignore[abstract]  # only two of its methods are called
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await serve_until_told(target=f"127.0.0.1:{port}", token="")
    await server.stop(0)


async def serve(window_ms: str) -> None:
    """Serve with that window, and report the processor time so far."""
    environ = {"REASOND__SERVER__DELTA_FLUSH_MS": window_ms, "REASOND__SERVER__HTTP_ADDRESS": ""}
    async with running_server(model=PacedModel(), environ=environ) as listening:
        # As `reasond serve` does.
        app.tune_garbage_collection()
        await serve_until_told(target=listening.grpc, token=listening.token)


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
    """Follow `streams` executions at the same time."""
    async with reasond.AsyncClient(server.target, token=server.told["token"]) as client:
        await client.list_strategies()
        cpu_s, begun = server.cpu_s(), time.perf_counter()
        ends = await asyncio.gather(*(follow(client, include_deltas=include_deltas) for _ in range(streams)))
        seconds = time.perf_counter() - begun
        cpu_s = server.cpu_s() - cpu_s
    return Figures(
        cpu_us_per_token=MICRO * cpu_s / (streams * TOKENS),
        messages_per_s=sum(messages for messages, _ in ends) / seconds,
        first_text_ms=statistics.median(first_ms for _, first_ms in ends),
        seconds=seconds,
    )


async def measure(servers: Mapping[str, ServerProcess], rounds: int) -> dict[str, list[Figures]]:
    """Return the figures of every way, alternating, after a warm-up round."""
    bare, plain = servers[BARE], servers[str(WINDOWS_MS[0])]
    windows = {name_of(window_ms): (servers[str(window_ms)], True) for window_ms in WINDOWS_MS}
    ways = {BARE_SILENT: (bare, False), BARE_JOINED: (bare, True), NO_DELTAS: (plain, False), **windows}
    for server in servers.values():
        await one_round(server, include_deltas=True, streams=8)
    found: dict[str, list[Figures]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (server, include_deltas) in ways.items():
            found[name].append(await one_round(server, include_deltas=include_deltas))
    return found


def name_of(window_ms: int) -> str:
    """Return the name of a window in the table."""
    return f"delta_flush_ms = {window_ms}"


def rows_of(found: dict[str, list[Figures]]) -> list[dict[str, Any]]:
    """Return the medians; `ratio` is the processor time divided by that without a window, in the same round."""
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
    """Return the goals of the server with default settings, and whether they are met."""
    default = next(row for row in rows if row["name"] == name_of(WINDOWS_MS[-1]))
    taken = default["cpu_us_per_token"]
    what = "microseconds of CPU per token, delta_flush_ms = 30"
    return [make_goal(what, "at most", GOAL_US, taken)]


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """Print the figures as a table."""
    print(f"{STREAMS} streams, {TOKENS} tokens each, one every {1000 * GAP_S:.0f} ms")
    for row in rows:
        print(
            f"    {row['name']:<58} {row['cpu_us_per_token']:>6.1f} us of CPU per token ({row['ratio']:.2f})  "
            f"{row['messages_per_s']:>6.0f} messages/s  first text after {row['first_text_ms']:.0f} ms  "
            f"{row['seconds']:.2f} s"
        )


def main() -> None:
    """Measure, print and write the results; with --serve run the server."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count (%(default)s)")
    parser.add_argument("--serve", metavar="MS", help=argparse.SUPPRESS)
    parser.add_argument("--core", type=int, default=-1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        if options.serve is not None:
            pin(options.core)
            runner.run(serve_bare() if options.serve == BARE else serve(options.serve))
            return
        measured, other = two_processors()
        pin(other)
        with ExitStack() as stack:
            sides = (BARE, *map(str, WINDOWS_MS))
            servers = {side: stack.enter_context(running(MODULE, side, core=measured)) for side in sides}
            rows = rows_of(runner.run(measure(servers, max(1, options.rounds))))
    print_rows(rows)
    load = {"streams": STREAMS, "tokens": TOKENS, "gap_ms": 1000 * GAP_S, "rounds": options.rounds}
    write_report(RESULTS, PACKAGES, load=load, rows=rows, goals=goals_of(rows))


if __name__ == "__main__":
    main()
