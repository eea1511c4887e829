"""Profile the server under the load of `benchmarks.unary`: function calls and time of a unary call, by layer.

Prints a table and writes results/unary_profile.json beside this file. The function calls of a request are the same on
every machine, so they tell what a change gave where processor time is too unsteady to. `--save before` keeps what is
found beside what a later run finds.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import pstats
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.instant import InstantModel
from benchmarks.loading import GrpcCall, load
from benchmarks.machine import circumstances, new_event_loop, pin, two_processors
from benchmarks.serving import running, serve_until_told
from benchmarks.unary import ANSWER_BYTES, PATH, SETTINGS, request_message
from reasond_server.telemetry.logs import configure
from reasond_server.testing import running_server

if TYPE_CHECKING:
    from collections.abc import Mapping

RESULTS = Path(__file__).resolve().parent / "results" / "unary_profile.json"
PACKAGES = ("reasond-server", "grpcio", "protobuf")
MODULE: Final = "benchmarks.unary_profile"
CALLERS: Final = 16
CALLS: Final = 1000
WARM: Final = 100
OWN: Final = "reasond_server/"
ELSEWHERE: Final = (
    ("/logging/", "logging of the standard library"),
    ("prometheus_client", "prometheus_client"),
    ("dataclasses.py", "dataclasses and contextlib"),
    ("contextlib.py", "dataclasses and contextlib"),
    ("/asyncio/", "asyncio"),
    ("_weakrefset.py", "asyncio"),
    ("/json/", "JSON"),
)


async def serve(dump: str) -> None:
    """Serve, profiled from the first call on."""
    profile = cProfile.Profile(time.process_time)
    async with running_server(model=InstantModel(), environ={**SETTINGS, "REASOND__STORE__URL": "memory:"}) as server:
        profile.enable()
        await serve_until_told(target=server.grpc, token=server.token)
        profile.disable()
    profile.dump_stats(dump)


def layer_of(file: str) -> str:
    """Return the layer that a file of code belongs to."""
    if OWN in file:
        return file.rpartition(OWN)[2].partition("/")[0].removesuffix(".py")
    return next((layer for mark, layer in ELSEWHERE if mark in file), "other packages")


def layers_of(stats: Any, calls: int) -> list[dict[str, Any]]:  # noqa: ANN401 - pstats has no types
    """Return calls and microseconds of each layer per request; what is written in C counts for whoever calls it."""
    counts: Counter[str] = Counter()
    seconds: Counter[str] = Counter()
    for (file, _, _), (_, count, own_s, _, callers) in stats.items():
        if file.startswith("~"):
            for (caller, _, _), (times, _, took_s, _) in callers.items():
                counts[layer_of(caller)] += times
                seconds[layer_of(caller)] += took_s
        else:
            counts[layer_of(file)] += count
            seconds[layer_of(file)] += own_s
    total_s = sum(seconds.values())
    return [
        {"layer": layer, "calls": round(counts[layer] / calls, 1), "share": round(took_s / total_s, 3)}
        for layer, took_s in seconds.most_common()
        if counts[layer] >= calls
    ]


def profiled(calls: int) -> list[dict[str, Any]]:
    """Put load on a profiled server; return the layers."""
    core, other = two_processors()
    pin(other)
    with tempfile.TemporaryDirectory() as folder:
        dump = Path(folder) / "profile"
        with running(MODULE, str(dump), core=core) as server, asyncio.Runner(loop_factory=new_event_loop) as runner:
            call = GrpcCall(path=PATH, metadata=server.metadata, message=request_message(), least=ANSWER_BYTES)
            runner.run(load(server.target, call, callers=CALLERS, total=calls))
        return layers_of(pstats.Stats(str(dump)).stats, calls)  # type: ignore[attr-defined]  # it is there


def main() -> None:
    """Profile, print and write down."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--save", choices=("before", "after"), default="after", help="what is found is (%(default)s)")
    parser.add_argument("--core", type=int, default=-1, help=argparse.SUPPRESS)
    parser.add_argument("--serve", metavar="DUMP", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        pin(options.core)
        configure(Path(os.devnull).open("w", encoding="utf-8"), is_human=False)  # noqa: SIM115 - as long as the process
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(serve(options.serve))
        return
    layers = profiled(CALLS)
    for layer in layers:
        print(f"{layer['calls']:8.1f} calls {layer['share']:6.1%} {layer['layer']}")
    print(f"{sum(layer['calls'] for layer in layers):8.1f} calls of a request")
    known: Mapping[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    report = {**known, "circumstances": circumstances(PACKAGES), "callers": CALLERS, options.save: layers}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
