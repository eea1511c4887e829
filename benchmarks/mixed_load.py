"""Let 100 callers use all strategies at once for a minute, on a real server: errors, throughput, starvation.

Prints a table and writes results/mixed_load.json beside this file. `reasond serve` runs on its own processor, with
tokens verified and executions in a SQLite file; the model is another process that takes 20 ms for each call. 20 callers
use each of the five strategies, one run after the other. First each strategy has the server to itself for a while, with
its 20 callers; then all run for a minute.

No strategy starves if every caller gets its share of the runs of its strategy and no run takes many times the median of
its kind. The slowdown, the median among all over the median alone, is reported but not judged: all share one processor,
and a fast strategy slows down more.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import grpc

from benchmarks.machine import circumstances, new_event_loop, pin, two_processors
from benchmarks.processes import end_children_on_sigterm, reasond
from benchmarks.upstream import running_upstream
from reasond.v1 import reasoning_service_pb2, reasoning_service_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.processes import Reasond

RESULTS = Path(__file__).resolve().parent / "results" / "mixed_load.json"
PACKAGES = ("reasond-server", "grpcio", "openai", "aiohttp", "sqlalchemy")
STRATEGIES: Final = ("chain_of_thought", "bounded_context", "react", "self_consistency", "tree_of_thought")
CALLERS_EACH: Final = 20
SECONDS: Final = 60.0
ALONE_SECONDS: Final = 6.0
MODEL: Final = "fake?bytes=200&latency_ms=20"
QUESTION: Final = "Why does glass take light apart into its colours? " * 8
MILLI: Final = 1000
# Bounds: the slowest runs over the median, and the runs of a caller over the median of callers.
MOST_SPREAD: Final = 4.0
LEAST_SHARE: Final = 0.5


@dataclass(slots=True, kw_only=True)
class Seen:
    """The results of one strategy's callers: milliseconds of each run, model calls, errors by code, runs by caller."""

    run_ms: list[float] = field(default_factory=list)
    model_calls: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    by_caller: Counter[int] = field(default_factory=Counter)


async def call(
    stub: Any,  # noqa: ANN401 - a generated stub
    serving: Reasond,
    strategy: str,
    seen: Seen,
    *,
    number: int,
    until: float,
) -> None:
    """Make one run after the other until the time is over."""
    request = reasoning_service_pb2.ReasonRequest()
    request.task.query, request.task.strategy = QUESTION, strategy
    while (begun := time.monotonic()) < until:
        try:
            answer = await stub.Reason(request, metadata=serving.metadata)
        except grpc.aio.AioRpcError as error:
            seen.errors[f"{error.code().name}: {error.details()}"[:200]] += 1
            continue
        seen.run_ms.append(MILLI * (time.monotonic() - begun))
        seen.model_calls += answer.reasoning.metrics.usage.model_calls
        seen.by_caller[number] += 1


async def seen_by(serving: Reasond, strategies: Sequence[str], seconds: float) -> dict[str, Seen]:
    """Let 20 callers use each of `strategies` for `seconds`."""
    seen = {strategy: Seen() for strategy in strategies}
    until = time.monotonic() + seconds
    async with grpc.aio.insecure_channel(serving.grpc) as channel:
        stub: Any = reasoning_service_pb2_grpc.ReasoningServiceStub(channel)
        await asyncio.gather(
            *(
                call(stub, serving, strategy, seen[strategy], number=number, until=until)
                for number in range(CALLERS_EACH)
                for strategy in strategies
            )
        )
    return seen


def row_of(strategy: str, alone: Seen, mixed: Seen, seconds: float) -> dict[str, Any]:
    """Return the row of one strategy."""
    cuts = statistics.quantiles(mixed.run_ms, n=100, method="inclusive")
    runs = [mixed.by_caller[number] for number in range(CALLERS_EACH)]
    return {
        "strategy": strategy,
        "runs": len(mixed.run_ms),
        "runs_per_s": round(len(mixed.run_ms) / seconds, 2),
        "model_calls_per_run": round(mixed.model_calls / len(mixed.run_ms), 1),
        "p50_ms": round(cuts[49], 1),
        "p99_ms": round(cuts[98], 1),
        "alone_p50_ms": round(statistics.median(alone.run_ms), 1),
        "slowdown": round(cuts[49] / statistics.median(alone.run_ms), 2),
        "least_share": round(min(runs) / statistics.median(runs), 3),
        "errors": sum(mixed.errors.values()) + sum(alone.errors.values()),
    }


def goals_of(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the goals: no errors, no run many times slower than the median, no caller left behind."""
    errors = sum(row["errors"] for row in rows)
    spread = max(round(row["p99_ms"] / row["p50_ms"], 2) for row in rows)
    share = min(row["least_share"] for row in rows)
    return [
        {"what": "errors", "value": errors, "goal": "= 0", "is_met": errors == 0},
        {
            "what": "p99 of a strategy over its p50, the largest",
            "value": spread,
            "goal": f"<= {MOST_SPREAD:g}",
            "is_met": spread <= MOST_SPREAD,
        },
        {
            "what": "fewest runs of a caller over the median of its strategy",
            "value": share,
            "goal": f">= {LEAST_SHARE:g}",
            "is_met": share >= LEAST_SHARE,
        },
    ]


async def measure_one(serving: Reasond, seconds: float) -> list[dict[str, Any]]:
    """Measure every strategy by itself, then all together."""
    alone = {one: (await seen_by(serving, [one], ALONE_SECONDS))[one] for one in STRATEGIES}
    mixed = await seen_by(serving, STRATEGIES, seconds)
    for strategy in STRATEGIES:
        for told, times in (alone[strategy].errors + mixed[strategy].errors).items():
            print(f"{strategy}: {times} times {told}")
    return [row_of(one, alone[one], mixed[one], seconds) for one in STRATEGIES]


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long all share the server (%(default)g)")
    options = parser.parse_args()
    end_children_on_sigterm()
    core, other = two_processors()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        base_url = stack.enter_context(running_upstream(core=other))
        pin(other)
        settings = {
            "REASOND__LLM__PROVIDER": "openai",
            "REASOND__LLM__MODEL": MODEL,
            "REASOND__LLM__BASE_URL": base_url,
            "REASOND__LLM__API_KEY_ENV": "",
        }
        program = str(Path(sys.executable).with_name("reasond"))
        store = f"sqlite:///{folder / 'bench.db'}"
        serving = stack.enter_context(reasond(program, core=core, folder=folder, store=store, settings=settings))
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            rows = runner.run(measure_one(serving, options.seconds))
        resident = serving.running.resident_mb()
    for row in rows:
        print(
            f"{row['strategy']:<17} {row['runs']:>6} runs, {row['runs_per_s']:7.2f}/s of "
            f"{row['model_calls_per_run']:4.1f} model calls; p50 {row['p50_ms']:7.1f} p99 {row['p99_ms']:7.1f} ms, "
            f"alone {row['alone_p50_ms']:7.1f}: "
            f"{row['slowdown']:.2f} times; least share {row['least_share']:.2f}; {row['errors']} errors"
        )
    goals = goals_of(rows)
    for goal in goals:
        print(f"goal: {goal['what']} {goal['goal']}: {goal['value']:g}, {'met' if goal['is_met'] else 'MISSED'}")
    report = {
        "circumstances": circumstances(PACKAGES),
        "callers": CALLERS_EACH * len(STRATEGIES),
        "seconds": options.seconds,
        "resident_mb": round(resident, 1),
        "rows": rows,
        "goals": goals,
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
