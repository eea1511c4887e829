"""Measure a turn with five calls of server tools beside ReAct with the same model calls: processor time of each.

Prints a table and writes results/turn_cost.json beside this file. Both make six model calls and five calls of the
calculator, in one process without a listener, against one upstream process that answers at once
(`benchmarks.upstream`), and both write their events to the same store. The caller of ReAct waits for no commit; a turn
commits before every model call and every tool call. The measured process has one processor, the upstream the other.
Rounds alternate between the sides; ratios are medians over the rounds of the ratio within a round.

The ledger: what the two events of a tool call add, STARTED before the call and the outcome after it. So many logs are
written at once to SQLite, as the writer does: for each call the reply of the model with STARTED, then the outcome,
beside the reply alone.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.instant import CALLER
from benchmarks.machine import new_event_loop, pin, two_processors, write_report
from benchmarks.suspended import open_store
from benchmarks.upstream import running_upstream
from reasond_server.assembly.app import tune_garbage_collection
from reasond_server.assembly.backends import create_model
from reasond_server.assembly.core import Core, assemble, make_system_clock, open_chosen_stores
from reasond_server.config import load
from reasond_server.turns.handoff import take_fingerprint
from reasond_server.types import Event, Result, Task, ToolCall, Usage
from reasond_server.types.turns import (
    CallKind,
    ContextGoal,
    ContextItem,
    LedgerState,
    ModelCallStep,
    Rendering,
    ToolStep,
    TurnStart,
)
from tests.stores.logs import HandWrittenLog, first_event

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from reasond_server.eventlog.store import ExecutionStore

RESULTS = Path(__file__).resolve().parent / "results" / "turn_cost.json"
PACKAGES = ("reasond-server", "aiohttp", "sqlalchemy")
TOOL_CALLS: Final = 5
ANSWER_BYTES: Final = 2048
QUESTION: Final = "How many hours are six weeks of seven days of six times seven hours? " * 4
MODEL: Final = f"fake?tools={TOOL_CALLS}&bytes={ANSWER_BYTES}"
STORES: Final = ("memory", "SQLite")
REACT, KEPT, TURN = "ReAct", "ReAct that any process resumes", "turn"
AT_ONCE: Final = (1, 16)
RUNS: Final = 96
ROUNDS: Final = 7
MOST_RATIO: Final = 1.3
MOST_LEDGER_US: Final = 100.0
LOGS_AT_ONCE: Final = (1, 16, 64)
LEDGER_CALLS: Final = 640
MILLI: Final = 1_000_000
Side = tuple[str, str, int]
"""A store, what is run, and how many run at once."""


@asynccontextmanager
async def open_core(base_url: str, url: str, folder: str) -> AsyncGenerator[Core, None]:
    """Open reasond's core over the store at `url`."""
    environ = {
        "REASOND__LLM__PROVIDER": "openai",
        "REASOND__LLM__MODEL": MODEL,
        "REASOND__LLM__BASE_URL": base_url,
        "REASOND__LLM__API_KEY_ENV": "",
        "REASOND__TOOLS__ENABLED": '["calculator"]',
        "REASOND__STORE__URL": url,
        "REASOND__STORE__DATA_DIR": folder,
    }
    settings, clock = load(None, environ).settings, make_system_clock()
    async with AsyncExitStack() as stack:
        stores = await open_chosen_stores(settings, clock=clock, dev=True)
        stack.push_async_callback(stores.aclose)
        model = create_model(settings, environ)
        stack.push_async_callback(model.aclose)
        core = assemble(settings, model=model, store=stores.executions, clock=clock)
        await core.tools.start()
        stack.push_async_callback(core.tools.aclose)
        core.runner.begin()
        stack.push_async_callback(core.runner.stop)
        yield core


async def run_react(core: Core) -> None:
    """Run ReAct once."""
    task = Task(query=QUESTION, strategy="react", config={"allow_tool_use": True})
    view = await core.reasoning.execute(CALLER, task)
    if len(view.result.answer) != ANSWER_BYTES:
        raise SystemExit(f"ReAct ended otherwise: {view.result}")


async def run_kept(core: Core) -> None:
    """Run ReAct once so that another process could resume it: each step is committed, and each call recorded."""
    task = Task(query=QUESTION, strategy="react", config={"allow_tool_use": True})
    async with aclosing(core.reasoning.stream(CALLER, task, keep_running=True)) as events:
        last = [event.event async for event in events][-1]
    if not isinstance(last, Result) or len(last.answer) != ANSWER_BYTES:
        raise SystemExit(f"ReAct ended otherwise: {last}")


async def run_turn(core: Core) -> None:
    """Run a turn once."""
    view = await core.turns.run(CALLER, TurnStart(message=QUESTION))
    if view.result is None or len(view.result.answer) != ANSWER_BYTES or len(view.turn.ledger) != TOOL_CALLS:
        raise SystemExit(f"a turn ended otherwise: {view}")


KINDS: Final[Mapping[str, Callable[[Core], Awaitable[None]]]] = {REACT: run_react, KEPT: run_kept, TURN: run_turn}


async def take_time(core: Core, kind: str, at_once: int) -> float:
    """Return the milliseconds of processor time of one run; everything it left to write is written."""
    left = iter(range(RUNS))

    async def run_some() -> None:
        for _ in left:
            await KINDS[kind](core)

    began_ns = time.process_time_ns()
    await asyncio.gather(*(run_some() for _ in range(at_once)))
    return (time.process_time_ns() - began_ns) / MILLI / RUNS


async def measure_rounds(cores: Mapping[str, Core], rounds: int) -> list[dict[Side, float]]:
    """Return the milliseconds of processor time of a run in each round, after a warm-up."""
    sides = [(store, kind, at_once) for store in cores for at_once in AT_ONCE for kind in KINDS]
    found = []
    for number in range(rounds + 1):
        order = sides[:: 1 if number % 2 else -1]
        found.append({side: await take_time(cores[side[0]], *side[1:]) for side in order})
    return found[1:]


def rows_of(rounds: Sequence[Mapping[Side, float]]) -> list[dict[str, Any]]:
    """Return the medians of each store and number of concurrent runs."""
    return [
        {
            "store": store,
            "at_once": at_once,
            "react_ms": _median_of(rounds, (store, REACT, at_once)),
            "kept_ms": _median_of(rounds, (store, KEPT, at_once)),
            "turn_ms": _median_of(rounds, (store, TURN, at_once)),
            "over_react": _ratio_of(rounds, store, at_once, REACT),
            "over_kept": _ratio_of(rounds, store, at_once, KEPT),
        }
        for store in STORES
        for at_once in AT_ONCE
    ]


def _median_of(rounds: Sequence[Mapping[Side, float]], side: Side) -> float:
    return round(statistics.median(one[side] for one in rounds), 3)


def _ratio_of(rounds: Sequence[Mapping[Side, float]], store: str, at_once: int, other: str) -> float:
    return round(statistics.median(one[store, TURN, at_once] / one[store, other, at_once] for one in rounds), 3)


def reply_event(index: int) -> ModelCallStep:
    """Return a reply of the model with one call."""
    sources = ["system", "message", *(f"c{number}" for number in range(1, index + 1))]
    return ModelCallStep(
        index=index,
        goal=ContextGoal.PLANNING,
        mode="default",
        model=MODEL,
        usage=Usage(input_tokens=512, output_tokens=16, model_calls=1),
        elapsed_s=0.5,
        text="",
        context=tuple(ContextItem(source=one, rendering=Rendering.FULL, tokens=9, full_tokens=9) for one in sources),
        tools=("calculator",),
        calls=(ToolCall(call_id=f"c{index + 1}", name="calculator", arguments_json='{"expression": "6 * 7"}'),),
        provider_ids=(f"call_{index}",),
    )


def tool_event(index: int, state: LedgerState) -> ToolStep:
    """Return an event of the call in the reply `index`."""
    call = reply_event(index).calls[0]
    text = '{"value":42}' if state.is_closed else ""
    return ToolStep(
        call_id=call.call_id,
        tool=call.name,
        state=state,
        fingerprint=take_fingerprint(call, CallKind.EXECUTE),
        result_bytes=len(text),
        elapsed_s=0.001,
        result_json=text,
    )


async def write_logs(store: ExecutionStore, at_once: int, *, has_ledger: bool) -> float:
    """Return the microseconds of processor time for each call in so many logs."""
    logs = [HandWrittenLog.new(store, tenant="bench") for _ in range(at_once)]
    for log in logs:
        await log.create()

    async def append(*events: Event) -> None:
        parts = [log.part(*events) for log in logs]
        refusals = await store.append(parts)
        for log, part, refused in zip(logs, parts, refusals, strict=True):
            if refused is not None:
                raise refused
            log.took(part)

    await append(first_event())
    # Made before: that a turn makes them costs it next to nothing, but here each needs the reply and its fingerprint.
    calls = [
        (reply_event(index), tool_event(index, LedgerState.STARTED), tool_event(index, LedgerState.SUCCEEDED))
        for index in range(TOOL_CALLS)
    ]
    began_ns = time.process_time_ns()
    for number in range(LEDGER_CALLS // at_once):
        reply, started, ended = calls[number % TOOL_CALLS]
        if has_ledger:
            await append(reply, started)
            await append(ended)
        else:
            await append(reply)
    return (time.process_time_ns() - began_ns) / 1000 / (LEDGER_CALLS // at_once * at_once)


async def measure_ledger(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Return what the ledger adds to a call, by the number of logs that are written at once."""
    found: dict[int, list[float]] = {at_once: [] for at_once in LOGS_AT_ONCE}
    async with open_store("", str(folder)) as store:
        for number in range(rounds + 1):
            for at_once, costs in found.items():
                without = await write_logs(store, at_once, has_ledger=False)
                costs.append(await write_logs(store, at_once, has_ledger=True) - without)
                if not number:
                    costs.clear()
    return [{"logs": at_once, "us_per_call": round(statistics.median(costs), 1)} for at_once, costs in found.items()]


async def measure(base_url: str, folder: Path, rounds: int) -> dict[str, Any]:
    """Return the rows of the report."""
    async with AsyncExitStack() as stack:
        cores = {
            store: await stack.enter_async_context(
                open_core(base_url, "memory:" if store == "memory" else f"sqlite:///{folder}/runs.db", str(folder))
            )
            for store in STORES
        }
        # As the server does; otherwise garbage collections take up to a quarter of a turn.
        tune_garbage_collection()
        rows = rows_of(await measure_rounds(cores, rounds))
    return {"rows": rows, "ledger": await measure_ledger(folder / "ledger", rounds)}


def report_of(rounds: int) -> dict[str, Any]:
    """Measure and return the report."""
    core, other = two_processors()
    load_before = round(os.getloadavg()[0], 1)
    with running_upstream(core=other) as base_url, tempfile.TemporaryDirectory() as folder:
        pin(core)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            found = runner.run(measure(base_url, Path(folder), rounds))
    about = {"load_before": load_before, "load_after": round(os.getloadavg()[0], 1), "rounds": rounds, "runs": RUNS}
    return {**about, **found, "most_ratio": MOST_RATIO, "most_ledger_us": MOST_LEDGER_US}


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count (%(default)s)")
    report = report_of(max(1, parser.parse_args().rounds))
    for row in report["rows"]:
        print(
            f"{row['store']:<8} {row['at_once']:>3} at once, ms of CPU: ReAct {row['react_ms']:.2f}, resumable "
            f"{row['kept_ms']:.2f}, turn {row['turn_ms']:.2f}; ratios {row['over_react']:.2f} and "
            f"{row['over_kept']:.2f} (at most {MOST_RATIO:g})"
        )
    for row in report["ledger"]:
        print(f"ledger, {row['logs']:>2} logs at once: {row['us_per_call']:6.1f} us (at most {MOST_LEDGER_US:g})")
    print(f"load of the machine: {report['load_before']} before, {report['load_after']} after")
    write_report(RESULTS, PACKAGES, **report)


if __name__ == "__main__":
    main()
