"""Profile the server on its hot paths: function calls and processor time of a call, an event or a token, by layer.

Prints a table for each path and writes results/call_profile.json beside this file. The function calls of a request are
the same on every machine, so they show the effect of a change where processor time is too unsteady. Every path has the
middleware of `benchmarks.unary` and the load of the benchmark that measures its time:

    unary      Reason, 16 callers, a model in the process (`benchmarks.unary`)
    jsonrpc    the same question as `reasoning.execute` (`benchmarks.wire_cost`)
    stream     an event of ReasonIterations, 16 streams of 400 steps (`benchmarks.streams`)
    token      a piece of text of ReasonIterations, 64 streams, one every 10 ms (`benchmarks.deltas`)
    upstream   Reason, 100 callers, a model in another process that takes 200 ms (`benchmarks.upstream_wait`)

The program of another checkout profiles the server of that checkout; `--totals` is for comparing them.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import json
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.instant import InstantModel, PacedModel
from benchmarks.loading import GrpcCall, HttpCall, http_post, load
from benchmarks.machine import circumstances, new_event_loop, pin, two_processors
from benchmarks.serving import ServerProcess, be_measured, running, serve_until_told
from benchmarks.streams import FLOOD_STEPS, Steps
from benchmarks.unary import ANSWER_BYTES, SETTINGS, request_message
from benchmarks.unary import PATH as REASON
from benchmarks.upstream import running_upstream
from benchmarks.upstream_wait import MODEL
from benchmarks.wire_cost import RPC_PATH, question
from reasond.v1 import reasoning_service_pb2
from reasond_server.testing import running_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from reasond_server.assembly.app import Listening
    from reasond_server.llm.model import ChatModel
    from reasond_server.strategies.strategy import ReasoningStrategy

RESULTS = Path(__file__).resolve().parent / "results" / "call_profile.json"
PACKAGES = ("reasond-server", "grpcio", "protobuf", "uvicorn", "aiohttp")
MODULE: Final = "benchmarks.call_profile"
REASON_ITERATIONS: Final = "/reasond.v1.ReasoningService/ReasonIterations"
TOKENS, TOKEN_GAP_S = 200, 0.01
EVENTS_BESIDE_STEPS: Final = 2
OWN: Final = "reasond_server/"
ELSEWHERE: Final = (
    ("/logging/", "logging of the standard library"),
    ("prometheus_client", "prometheus_client"),
    ("dataclasses.py", "dataclasses and contextlib"),
    ("<string>", "dataclasses and contextlib"),
    ("contextlib.py", "dataclasses and contextlib"),
    ("/asyncio/", "asyncio"),
    ("_weakrefset.py", "asyncio"),
    ("/json/", "JSON"),
    ("/uvicorn/", "uvicorn"),
    ("/aiohttp/", "aiohttp"),
    ("/openai/", "openai"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HotPath:
    """One path through the server and its load; a call counts as `parts` of the unit in `what`."""

    what: str
    call_of: Callable[[ServerProcess], GrpcCall | HttpCall]
    model_of: Callable[[], ChatModel | None] = InstantModel
    settings: Mapping[str, str] = field(default_factory=dict)
    strategies: Sequence[ReasoningStrategy[Any]] | None = None
    callers: int = 16
    calls: int = 1000
    parts: int = 1


def reason(server: ServerProcess) -> GrpcCall:
    """Return a call of `Reason`."""
    return GrpcCall(path=REASON, metadata=server.metadata, message=request_message(), least=ANSWER_BYTES)


def execute(server: ServerProcess) -> HttpCall:
    """Return a call of `reasoning.execute`."""
    return http_post(RPC_PATH, question(), headers=server.metadata, least=ANSWER_BYTES)


def steps(server: ServerProcess) -> GrpcCall:
    """Return a stream of steps without pauses."""
    return stream_call(server, query=json.dumps([FLOOD_STEPS, 0]), strategy=Steps.name, has_deltas=False)


def tokens(server: ServerProcess) -> GrpcCall:
    """Return a stream of text."""
    return stream_call(server, query="Why does glass take light apart?", strategy="chain_of_thought", has_deltas=True)


def stream_call(server: ServerProcess, *, query: str, strategy: str, has_deltas: bool) -> GrpcCall:
    """Return a call of `ReasonIterations`."""
    request = reasoning_service_pb2.ReasonIterationsRequest(include_deltas=has_deltas)
    request.task.query, request.task.strategy = query, strategy
    return GrpcCall(path=REASON_ITERATIONS, metadata=server.metadata, message=request.SerializeToString())


PATHS: Final[Mapping[str, HotPath]] = {
    "unary": HotPath(what="a call", call_of=reason),
    "jsonrpc": HotPath(what="a call", call_of=execute, settings={"REASOND__SERVER__HTTP_ADDRESS": "127.0.0.1:0"}),
    "stream": HotPath(
        what="an event", call_of=steps, strategies=[Steps()], calls=32, parts=FLOOD_STEPS + EVENTS_BESIDE_STEPS
    ),
    "token": HotPath(
        what="a piece of text",
        call_of=tokens,
        model_of=lambda: PacedModel(pieces=TOKENS, gap_s=TOKEN_GAP_S),
        settings={"REASOND__REASONING__PERFORMANCE__MAX_CONCURRENT_REQUESTS": "64"},
        callers=64,
        calls=64,
        parts=TOKENS,
    ),
    "upstream": HotPath(
        what="a call",
        call_of=reason,
        model_of=lambda: None,
        settings={
            "REASOND__REASONING__PERFORMANCE__MAX_CONCURRENT_REQUESTS": "200",
            "REASOND__LLM__PROVIDER": "openai",
            "REASOND__LLM__MAX_CONCURRENCY": "200",
            "REASOND__LLM__MODEL": MODEL,
        },
        callers=100,
    ),
}


@asynccontextmanager
async def serve_path(name: str, base_url: str) -> AsyncIterator[Listening]:
    """Serve with the settings of the path of that name."""
    path = PATHS[name]
    environ = {**SETTINGS, "REASOND__STORE__URL": "memory:", **path.settings}
    if "REASOND__LLM__PROVIDER" in environ:
        environ["REASOND__LLM__BASE_URL"] = base_url
    async with running_server(model=path.model_of(), strategies=path.strategies, environ=environ) as server:
        yield server


def addresses_of(server: Listening) -> dict[str, str]:
    """Return the addresses of a server of these paths."""
    return {"target": server.grpc, "http": server.http.removeprefix("http://"), "token": server.token}


async def serve(name: str, dump: str, base_url: str) -> None:
    """Serve; profile from the moment at which the server listens, and write the sums of the layers to `dump`."""
    async with serve_path(name, base_url) as server:
        profile = cProfile.Profile(time.process_time)
        # As `reasond serve` does.
        gc.freeze()
        profile.enable()
        await serve_until_told(**addresses_of(server))
        profile.disable()
    sums = json.dumps(sum_layers(profile.getstats()))
    Path(dump).write_text(sums, encoding="utf-8")  # noqa: ASYNC240 - nothing else runs any more


def target_of(server: ServerProcess, name: str) -> str:
    """Return the address of the path of that name."""
    return str(server.told["http"]) if name == "jsonrpc" else server.target


def layer_of(file: str) -> str:
    """Return the layer that a file of code belongs to."""
    if OWN in file:
        return file.rpartition(OWN)[2].partition("/")[0].removesuffix(".py")
    return next((layer for mark, layer in ELSEWHERE if mark in file), "other packages")


def sum_layers(entries: Sequence[Any]) -> dict[str, tuple[int, float]]:
    """Return calls and seconds of each layer; a function written in C counts for its caller.

    Not by pstats, which keeps only one of several functions with the same file, line and name. The constructors of
    dataclasses are all such functions.
    """
    counts: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for entry in entries:
        if isinstance(entry.code, str):
            continue
        layer = layer_of(entry.code.co_filename)
        in_c = [called for called in entry.calls or () if isinstance(called.code, str)]
        counts[layer] += entry.callcount + sum(called.callcount for called in in_c)
        seconds[layer] += entry.inlinetime + sum(called.inlinetime for called in in_c)
    return {layer: (counts[layer], seconds[layer]) for layer in counts}


def layers_of(sums: Mapping[str, Sequence[float]], parts: int) -> list[dict[str, Any]]:
    """Return the calls of each layer in one of `parts`, and the layer's share of the time.

    Layers with less than half a call and half a per cent are left out.
    """
    total_s = sum(took_s for _, took_s in sums.values())
    return [
        {"layer": layer, "calls": round(count / parts, 2), "share": round(took_s / total_s, 3)}
        for layer, (count, took_s) in sorted(sums.items(), key=lambda item: -item[1][1])
        if count >= parts / 2 or took_s >= total_s / 200
    ]


def profile_path(name: str, scale: float) -> list[dict[str, Any]]:
    """Put the path's load on a profiled server; return the layers."""
    path = PATHS[name]
    calls = max(path.callers, int(path.calls * scale) // path.callers * path.callers)
    core, other = two_processors()
    pin(other)
    with ExitStack() as stack:
        dump = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "profile"
        base_url = stack.enter_context(running_upstream(core=other))
        with running(MODULE, name, str(dump), base_url, core=core) as server:
            target = target_of(server, name)
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(load(target, path.call_of(server), callers=path.callers, total=calls))
        return layers_of(json.loads(dump.read_text(encoding="utf-8")), calls * path.parts)


def all_calls(layers: Sequence[Mapping[str, Any]]) -> float:
    """Return the function calls of all layers."""
    calls: list[float] = [layer["calls"] for layer in layers]
    return round(sum(calls), 1)


def read_known() -> dict[str, Any]:
    """Return the results of earlier runs."""
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"paths": {}}


def main() -> None:
    """Profile, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--path", nargs="+", choices=list(PATHS), default=list(PATHS), help="fewer keep the others")
    parser.add_argument("--scale", type=float, default=1.0, help="calls, as a share of the usual number")
    parser.add_argument("--totals", action="store_true", help="print the function calls as JSON and write nothing")
    parser.add_argument("--core", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--serve", nargs=3, metavar=("PATH", "DUMP", "URL"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        be_measured(serve(*options.serve), core=options.core)
        return
    found = {name: profile_path(name, options.scale) for name in options.path}
    if options.totals:
        print(json.dumps({name: all_calls(layers) for name, layers in found.items()}))
        return
    for name, layers in found.items():
        for layer in layers:
            print(f"{layer['calls']:8.1f} calls {layer['share']:6.1%} {layer['layer']}")
        print(f"{all_calls(layers):8.1f} calls of {PATHS[name].what}, {name}")
    report = read_known()
    for name, layers in found.items():
        report["paths"][name] = {"what": PATHS[name].what, "layers": layers}
    report["circumstances"] = circumstances(PACKAGES)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
