"""Measure what suspended executions and turns cost: memory of a server for 10,000 of them, and the time to resume.

Prints a table and writes results/suspended.json beside this file. Memory is what Python has allocated; SQLite keeps the
logs in a file. A suspended execution has one step, a suspended turn waits for a tool of its client. Resuming: a turn
whose log has 200 events is handed off by one server. A second one over the same store takes the result; the time is
that of the whole re-entry, to the end of the turn, with one model call that answers at once.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import sys
import tempfile
import time
import tracemalloc
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.instant import CALLER, InstantModel
from benchmarks.machine import write_report
from reasond_server.assembly.core import Core, assemble
from reasond_server.assembly.stores import StoreOptions, migrate_stores, open_stores
from reasond_server.base.clock import Clock
from reasond_server.config import load
from reasond_server.llm.model import ChatModel, ChatRequest, Finished, ModelEvent, ModelFinish, Role, Text
from reasond_server.runs.runner import Runner, RunnerLimits
from reasond_server.testing import ScriptedModel
from reasond_server.tools.execution import Tools
from reasond_server.types import ToolCall, Usage
from reasond_server.types.turns import TurnReentry, TurnStart
from tests.engines.postgres import is_postgres_here, running_postgres
from tests.napping import UNTIL_CALLED, NappingKind
from tests.turning import Note, client_tool, settle

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence

    from reasond_server.eventlog.store import ExecutionStore

RESULTS = Path(__file__).resolve().parent / "results" / "suspended.json"
PACKAGES = ("reasond-server", "sqlalchemy", "psycopg")
MOST_MB: Final = 10.0
MOST_RESUME_S: Final = 1.0
EVENTS: Final = 200
# The first event, three events for each call of a tool, the last reply, and the hand-off.
TOOL_CALLS: Final = (EVENTS - 2) // 3
RESUMED: Final = 100
AT_ONCE: Final = 8
HOLDING: Final = 200
MEGA: Final = 1_000_000
READ: Final = ("open_file", '{"path": "a.txt"}')
NOTE: Final = '{"text": "a"}'
ANSWER: Final = "done"


class CallingModel(InstantModel):
    """Calls one tool in each reply, in the order of `calls` (name, arguments as JSON), and then answers."""

    name = "calling"
    context_window = 32_768  # type: ignore[assignment]  # None in the class above
    has_native_tools = True

    def __init__(self, calls: Sequence[tuple[str, str]]) -> None:
        super().__init__()
        self._calls = calls

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the next tool, or answer after the last one."""
        done = sum(message.role is Role.TOOL for message in request.messages)
        usage = Usage(input_tokens=512, output_tokens=16, model_calls=1)
        if done < len(self._calls):
            name, arguments = self._calls[done]
            yield ToolCall(call_id=f"call_{done}", name=name, arguments_json=arguments)
            yield Finished(reason=ModelFinish.TOOL_CALLS, usage=usage)
        else:
            yield Text(text=ANSWER)
            yield Finished(reason=ModelFinish.STOP, usage=usage)


@asynccontextmanager
async def open_core(
    model: ChatModel,
    *,
    store: ExecutionStore | None = None,
    tools: Sequence[Any] = (),
    settings: Mapping[str, str] | None = None,
) -> AsyncGenerator[Core, None]:
    """Open reasond's core without a listener, over `store` or in memory."""
    loaded = load(None, dict(settings or {})).settings
    core = assemble(loaded, model=model, store=store, tools=Tools(tools=tools))
    await core.tools.start()
    core.runner.begin()
    try:
        yield core
    finally:
        await core.runner.stop()
        await core.tools.aclose()


def _now() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def open_store(url: str, folder: str) -> AsyncGenerator[ExecutionStore, None]:
    """Open the store at `url`."""
    stores = await open_stores(
        StoreOptions(
            url=url,
            data_dir=folder,
            now=_now,
            monotonic=time.monotonic,
            max_bytes=10**9,
            max_agents=1,
        )
    )
    try:
        yield stores.executions
    finally:
        await stores.aclose()


async def spread(number: int, at_once: int, work: Callable[[], Awaitable[None]]) -> None:
    """Do `work` so many times, and so many at once."""
    left = iter(range(number))

    async def do_some() -> None:
        for _ in left:
            await work()

    await asyncio.gather(*(do_some() for _ in range(at_once)))


async def measure_growth(wanted: int, suspend: Callable[[int], Awaitable[None]]) -> int:
    """Return the bytes that are allocated after so many suspensions more."""
    await suspend(HOLDING)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    await suspend(wanted)
    gc.collect()
    added = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return added


async def hold_executions(url: str, folder: str, wanted: int) -> int:
    """Return the bytes that so many suspended executions add to a process."""
    ids, kind = count(), NappingKind(now=_now)
    async with open_store(url, folder) as store:
        clock = Clock(now=_now, monotonic=time.monotonic, new_id=lambda: f"{next(ids):032x}")
        limits = RunnerLimits(max_concurrent=HOLDING, retention_s=3600)
        runner = Runner(store=store, model=ScriptedModel([]), clock=clock, limits=limits, kinds=[kind])

        async def suspend_one() -> None:
            execution = await runner.start(kind.create([UNTIL_CALLED]))
            run = runner.find_live(execution.execution_id)
            if run is not None:
                await run.wait_for_end()

        added = await measure_growth(wanted, lambda number: spread(number, HOLDING, suspend_one))
        await runner.stop()
        return added


async def hold_turns(url: str, folder: str, wanted: int) -> int:
    """Return the bytes that so many turns that wait for their clients add to a process."""
    async with open_store(url, folder) as store, open_core(CallingModel([READ]), store=store) as core:

        async def suspend_one() -> None:
            await start_turn(core)

        return await measure_growth(wanted, lambda number: spread(number, AT_ONCE, suspend_one))


async def start_turn(core: Core) -> TurnReentry:
    """Start a turn that waits for its client, and return the re-entry that settles it."""
    view = await core.turns.run(CALLER, TurnStart(message="Read a.txt", client_tools=(client_tool(),)))
    if view.turn.handoff is None:
        raise SystemExit(f"a turn did not wait: {view}")
    return settle(view.turn.turn_id, view.turn.handoff)


async def measure_resuming(url: str, folder: str, resumed: int) -> dict[str, float]:
    """Return the seconds of the whole re-entry of a turn whose log has 200 events, and the events that it had."""
    calls = [*([("note", NOTE)] * TOOL_CALLS), READ]
    reentries: list[TurnReentry] = []
    took: list[float] = []
    async with open_store(url, folder) as store:
        settings = {"REASOND__TURNS__MAX_MODEL_CALLS": "500", "REASOND__TURNS__MAX_TOOL_CALLS": "1000"}
        async with open_core(CallingModel(calls), store=store, tools=[Note()], settings=settings) as core:

            async def suspend_one() -> None:
                reentries.append(await start_turn(core))

            await spread(resumed, AT_ONCE, suspend_one)
        async with open_core(CallingModel(calls), store=store, tools=[Note()], settings=settings) as core:
            events = (await core.turns.get(CALLER, reentries[0].turn_id)).turn.last_sequence
            for reentry in reentries:
                began_s = time.perf_counter()
                view = await core.turns.run(CALLER, reentry)
                took.append(time.perf_counter() - began_s)
                if view.result is None or view.result.answer != ANSWER:
                    raise SystemExit(f"a turn ended otherwise: {view}")
    cuts = statistics.quantiles(took, n=100, method="inclusive")
    return {"events": events, "p50_ms": round(1000 * cuts[49], 1), "p99_ms": round(1000 * cuts[98], 1)}


async def measure(wanted: int, resumed: int, urls: Sequence[tuple[str, str]], folder: str) -> dict[str, Any]:
    """Return the rows of the report; `urls` are the stores by name."""
    holding = []
    for what, hold in (("executions", hold_executions), ("turns", hold_turns)):
        added = await hold(f"sqlite:///{folder}/{what}.db", folder, wanted)
        holding.append({"what": what, "store": "SQLite", "count": wanted, "mb": round(added / MEGA, 2)})
    resuming = [{"store": name, **await measure_resuming(url, folder, resumed)} for name, url in urls]
    return {"holding": holding, "resuming": resuming}


def report_of(wanted: int, resumed: int) -> dict[str, Any]:
    """Measure and return the report."""
    load_before = round(os.getloadavg()[0], 1)
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        urls = [("SQLite", f"sqlite:///{folder}/resumed.db")]
        if is_postgres_here():
            urls.append(("PostgreSQL", stack.enter_context(running_postgres()).new_database()))
            migrate_stores(url=urls[-1][1], data_dir="")
        found = asyncio.run(measure(wanted, resumed, urls, folder))
    loads = {"load_before": load_before, "load_after": round(os.getloadavg()[0], 1)}
    return {**loads, **found, "most_mb": MOST_MB, "most_resume_s": MOST_RESUME_S, "resumed": resumed}


def main() -> int:
    """Measure, print and write the results; return 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=10_000, help="executions and turns (%(default)s)")
    parser.add_argument("--resumed", type=int, default=RESUMED, help="turns that are resumed (%(default)s)")
    options = parser.parse_args()
    report = report_of(options.count, options.resumed)
    for row in report["holding"]:
        each = row["mb"] * MEGA / row["count"]
        print(
            f"{row['store']:<10} {row['count']} suspended {row['what']} add {row['mb']:.1f} MB, {each:.0f} bytes each"
        )
    for row in report["resuming"]:
        print(
            f"{row['store']:<10} resumed at {row['events']} events: p50 {row['p50_ms']:.0f} ms, "
            f"p99 {row['p99_ms']:.0f} ms"
        )
    print(f"load of the machine: {report['load_before']} before, {report['load_after']} after")
    write_report(RESULTS, PACKAGES, **report)
    is_held = all(row["mb"] < MOST_MB for row in report["holding"])
    is_resumed = all(row["p99_ms"] < 1000 * MOST_RESUME_S for row in report["resuming"])
    return 0 if is_held and is_resumed else 1


if __name__ == "__main__":
    sys.exit(main())
