"""Measure what metrics, logs and traces cost: per unary call of Reason, and per event that a model sends.

Prints a table and writes results/telemetry_cost.json beside this file. Each kind of telemetry is measured on a server
that has no other kind, and then all together. The figure is the server's processor time: the median over the rounds of
the ratio to the server without telemetry in the same round. Log lines go to /dev/null; spans go in batches to a
receiver in another process that discards them. The model answers at once in the server's process. Events are measured
in one process: a model whose events come at once, bare and wrapped.

Servers have one processor, the load client (loading.py) and the receiver the other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc

from benchmarks.instant import InstantModel
from benchmarks.machine import circumstances, new_event_loop, pin, two_processors
from benchmarks.serving import running, serve_until_told
from benchmarks.unary import SETTINGS, measure_one
from reasond_server import app
from reasond_server.llm.metering import MeteredModel
from reasond_server.llm.model import ChatRequest, Finished, Message, ModelEvent, Role, Text
from reasond_server.llm.traced_model import TracedModel
from reasond_server.telemetry.exporting import TracingOptions, sink_of
from reasond_server.telemetry.logs import configure
from reasond_server.telemetry.meters import Meters
from reasond_server.telemetry.series import Vocabulary
from reasond_server.testing import running_server
from reasond_server.types import Budget

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from reasond_server.llm.model import ChatModel

RESULTS = Path(__file__).resolve().parent / "results" / "telemetry_cost.json"
PACKAGES = ("reasond-server", "grpcio", "prometheus-client", "opentelemetry-sdk")
MODULE: Final = "benchmarks.telemetry_cost"
ROUNDS: Final = 7
CALLS: Final = 3000
CALLERS: Final = 16
EVENTS: Final = 20_000
NOTHING: Final = "nothing"
METRICS: Final = {"REASOND__METRICS__ADDRESS": "127.0.0.1:0"}
LOGS: Final = {"LOGS": "on"}


def sides_of(receiver: str) -> Mapping[str, Mapping[str, str]]:
    """Return the settings of every side; LOGS is only for `serve`."""
    traced = {"REASOND__TRACING__ENDPOINT": f"http://{receiver}"}
    return {
        NOTHING: {},
        "metrics": METRICS,
        "logs": LOGS,
        "traces, none kept": {**traced, "REASOND__TRACING__SAMPLE_RATIO": "0"},
        "traces, one in ten kept": {**traced, "REASOND__TRACING__SAMPLE_RATIO": "0.1"},
        "traces, all kept": traced,
        "everything, one trace in ten": {**METRICS, **LOGS, **traced, "REASOND__TRACING__SAMPLE_RATIO": "0.1"},
    }


async def serve_reasond(settings: str) -> None:
    """Serve reasond with these settings as JSON."""
    environ: Mapping[str, str] = json.loads(settings)
    async with running_server(model=InstantModel(), environ={**SETTINGS, **environ}) as listening:
        app.spare_collector()
        await serve_until_told(target=listening.grpc, token=listening.token)


async def serve_receiver() -> None:
    """Receive spans and discard them; an empty answer means that all were accepted."""

    class Discarding(grpc.GenericRpcHandler):
        def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:  # noqa: ANN401 - grpc has no types
            del handler_call_details

            async def discard(request: bytes, context: object) -> bytes:
                del request, context
                return b""

            return grpc.unary_unary_rpc_method_handler(discard)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Discarding(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    await serve_until_told(target=f"127.0.0.1:{port}")
    await server.stop(0)


class Chatty(InstantModel):
    """Sends EVENTS events without pauses."""

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Yield EVENTS pieces of text, and the end."""
        text = Text(text="word ")
        for _ in range(EVENTS):
            yield text
        async for event in super().stream(request):
            if isinstance(event, Finished):
                yield event


def models() -> Mapping[str, ChatModel]:
    """Return the same model, bare and wrapped; with no traces sampled and with all traces sampled."""
    model = Chatty()
    metrics = Meters(vocabulary=Vocabulary(words={}), version="1")
    dark, light = (sink_of(TracingOptions(endpoint="http://127.0.0.1:9", sample_ratio=ratio)) for ratio in (0.0, 1.0))
    if dark is None or light is None:
        raise SystemExit("OpenTelemetry is not installed")
    return {
        "bare": model,
        "metered": MeteredModel(model=model, budget=Budget()),
        "metered, observed": MeteredModel(model=model, budget=Budget(), observer=metrics),
        "traced, not kept": TracedModel(model=model, tracing=dark.tracing),
        "traced, kept": TracedModel(model=model, tracing=light.tracing),
    }


async def event_us(model: ChatModel) -> float:
    """Return the processor time per event in microseconds."""
    request = ChatRequest(messages=(Message(role=Role.USER, content="?"),), max_tokens=EVENTS * 5, temperature=0.7)
    begun = time.process_time_ns()
    async for _ in model.stream(request):
        pass
    return (time.process_time_ns() - begun) / EVENTS / 1000


def calls_measured(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each side."""
    ours, theirs = two_processors()
    pin(theirs)
    with ExitStack() as stack:
        receiver = stack.enter_context(running(MODULE, "receiver", core=theirs))
        sides = {
            name: stack.enter_context(running(MODULE, "reasond", json.dumps(settings), core=ours))
            for name, settings in sides_of(receiver.target).items()
        }
        runner = stack.enter_context(asyncio.Runner(loop_factory=new_event_loop))
        rounds: list[dict[str, float]] = []
        for number in range(options.rounds):
            taken = {
                name: runner.run(measure_one(sides[name], callers=CALLERS, calls=int(CALLS * options.scale))).cpu_us
                for name in list(sides)[:: 1 if number % 2 else -1]
            }
            rounds.append(taken)
    return rows_of(rounds, base=NOTHING, order=list(sides))


def events_measured(rounds: int) -> list[dict[str, Any]]:
    """Return a row for each wrapping of the model."""
    compared = models()
    logging.getLogger("reasond").setLevel(logging.CRITICAL)
    taken = [{name: asyncio.run(event_us(model)) for name, model in compared.items()} for _ in range(rounds)]
    return rows_of(taken, base="bare", order=list(compared))


def rows_of(rounds: Sequence[Mapping[str, float]], *, base: str, order: Sequence[str]) -> list[dict[str, Any]]:
    """Return the medians of the time, of the ratio and of the difference within a round."""
    return [
        {
            "side": name,
            "cpu_us": round(statistics.median(one[name] for one in rounds), 3),
            "ratio": round(statistics.median(one[name] / one[base] for one in rounds), 3),
            "more_us": round(statistics.median(one[name] - one[base] for one in rounds), 3),
        }
        for name in order
    ]


def serve(arguments: Sequence[str], core: int) -> None:
    """Run one of the measured processes."""
    pin(core)
    kind, *rest = arguments
    has_logs = bool(rest) and "LOGS" in json.loads(rest[0])
    nowhere = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - open as long as the process runs
    configure(nowhere, is_human=False, level=logging.INFO if has_logs else logging.CRITICAL)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve_receiver() if kind == "receiver" else serve_reasond(*rest))


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count (%(default)s)")
    parser.add_argument("--scale", type=float, default=1.0, help="calls of a round, as a share; below 1 writes nothing")
    parser.add_argument("--core", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        serve(options.serve, options.core)
        return
    found = {"calls": calls_measured(options), "events": events_measured(options.rounds)}
    for what, rows in found.items():
        print(f"{what}:")
        for row in rows:
            print(f"  {row['side']:<30}{row['cpu_us']:9.2f} us CPU {row['more_us']:+9.2f} {row['ratio']:7.3f}")
    if options.scale >= 1:
        report = {"circumstances": circumstances(PACKAGES), "rounds": options.rounds, **found}
        RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
