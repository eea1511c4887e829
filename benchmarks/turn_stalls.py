"""Measure how long a server's event loop stands still while turns take large tool results, and that nothing is lost.

Prints a table and writes results/turn_stalls.json beside this file. Over SQLite, in one process without a listener: a
tool of the server returns 2 MB; a client sends 2 MB with its re-entry; the results are read by JSON pointer, by a
text that they contain, and whole. Beside it a task sleeps for a millisecond, again and again: the longest time by which
it woke too late is the stall. Others use the machine too, so the processor time that the process itself took during the
stall, in all its threads, is told beside it: the server blocks the loop for no longer than that. Then the same over
both wires, in ASCII and in another writing, from a client in a process of its own (`benchmarks.turn_wire`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from benchmarks.machine import circumstances, new_event_loop
from benchmarks.suspended import open_store
from benchmarks.turn_wire import measure_wires
from benchmarks.turning import CALLER, open_turns
from reasond_server.tools.tool import ModelledTool, ToolArguments, ToolContext
from reasond_server.types import ToolResult
from reasond_server.types.turns import ClientTool, ResultPart, TurnReentry, TurnStart

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from reasond_server.core import Core
    from reasond_server.types.turns import ResultExcerpt

RESULTS = Path(__file__).resolve().parent / "results" / "turn_stalls.json"
PACKAGES = ("reasond-server", "sqlalchemy")
SIZE: Final = 2_000_000
MOST_STALL_MS: Final = 50.0
ROUNDS: Final = 5
TICK_S: Final = 0.001
IDLE_S: Final = 1.0


def make_rows() -> list[dict[str, Any]]:
    """Return rows whose JSON has about 2 MB."""
    text = "light is refracted by glass in its own degree "
    rows = [{"id": number, "status": "ok" if number % 97 else "failed", "note": text} for number in range(40_000)]
    size = len(json.dumps(rows[:1000])) // 1000
    return rows[: SIZE // size - 1]


class Rows(ModelledTool[ToolArguments]):
    """A tool that returns 2 MB."""

    name: ClassVar[str] = "rows"
    description: ClassVar[str] = "Returns rows."
    arguments_type: ClassVar[type[ToolArguments]] = ToolArguments
    max_output_bytes = 2 * 1024 * 1024

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._rows = rows

    async def call(self, arguments: ToolArguments, context: ToolContext) -> object:
        """Return the rows."""
        del arguments, context
        return self._rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """The longest time that the event loop stood still, and the longest with the process's own work in it."""

    wall_ms: float
    cpu_ms: float


async def measure_stall(work: Callable[[], Awaitable[Any]]) -> tuple[Stall, Any]:
    """Return the longest stalls of the event loop while `work` runs, and what it returns."""
    loop = asyncio.get_running_loop()
    longest_s = busiest_s = 0.0

    async def tick() -> None:
        nonlocal longest_s, busiest_s
        while True:
            before_s, began_s = loop.time(), time.process_time()
            await asyncio.sleep(TICK_S)
            late_s = loop.time() - before_s - TICK_S
            longest_s = max(longest_s, late_s)
            busiest_s = max(busiest_s, min(late_s, time.process_time() - began_s))

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(0)
    try:
        result = await work()
        await asyncio.sleep(2 * TICK_S)
    finally:
        ticking.cancel()
    return Stall(wall_ms=1000 * longest_s, cpu_ms=1000 * busiest_s), result


async def measure_once(core: Core, text: str, stalls: dict[str, list[Stall]]) -> None:
    """Measure every step of one turn with 2 MB from the server and 2 MB from the client."""

    async def step(what: str, work: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ANN401 - what `work` returns
        stall, result = await measure_stall(work)
        stalls.setdefault(what, []).append(stall)
        return result

    turns = core.turns
    await step("nothing", lambda: asyncio.sleep(IDLE_S))
    asked = ClientTool(name="fetch", description="Fetches.", parameters_json='{"type": "object"}')
    start = TurnStart(message="Which rows failed?", client_tools=(asked,))
    view = await step("a tool of the server returns 2 MB, hand-off", lambda: turns.run(CALLER, start))
    turn_id, handoff = view.turn.turn_id, view.turn.handoff
    reentry = TurnReentry(turn_id=turn_id, etag=handoff.etag, results=(ToolResult(call_id="c2", result_json=text),))
    await step("a re-entry with 2 MB, to the end", lambda: turns.run(CALLER, reentry))

    async def read(what: str, call_id: str, part: ResultPart) -> ResultExcerpt:
        excerpt: ResultExcerpt = await step(what, partial(turns.read_tool_result, CALLER, turn_id, call_id, part))
        return excerpt

    pointed = await read("read by JSON pointer", "c1", ResultPart(json_pointer="/97/status"))
    found = await read("read what contains a text", "c1", ResultPart(contains="failed"))
    if "failed" not in pointed.text or not found.hits:
        raise SystemExit(f"a part of the result is not what it was: {pointed}, {found}")
    if (await read("read whole", "c2", ResultPart())).text != text:
        raise SystemExit("the result is not kept byte for byte")


async def measure(folder: str, rounds: int) -> list[dict[str, Any]]:
    """Return the longest stall of each step; a first round is a warm-up."""
    rows = make_rows()
    text = json.dumps(rows)
    stalls: dict[str, list[Stall]] = {}
    async with (
        open_store("", folder, 100) as store,
        open_turns(store, [("rows", "{}"), ("fetch", "{}")], tools=[Rows(rows)]) as core,
    ):
        for number in range(rounds + 1):
            if number == 1:
                stalls.clear()
            await measure_once(core, text, stalls)

    async def step(what: str, work: Callable[[], Awaitable[Any]]) -> None:
        stall, _ = await measure_stall(work)
        if what:
            stalls.setdefault(what, []).append(stall)

    await measure_wires(folder, step, rounds)
    return [
        {
            "step": what,
            "wall_ms": round(statistics.median(one.wall_ms for one in found), 1),
            "cpu_ms": round(statistics.median(one.cpu_ms for one in found), 1),
        }
        for what, found in stalls.items()
    ]


def main() -> int:
    """Measure, print and write the results; return 1 if the loop stood still too long."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds that count (%(default)s)")
    rounds = max(1, parser.parse_args().rounds)
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=new_event_loop) as runner:
        rows = runner.run(measure(folder, rounds))
    report = {
        "circumstances": circumstances(PACKAGES),
        "load_before": round(load_before, 1),
        "load_after": round(os.getloadavg()[0], 1),
        "rounds": rounds,
        "rows": rows,
        "most_stall_ms": MOST_STALL_MS,
    }
    for row in rows:
        print(f"{row['step']:<45} {row['wall_ms']:6.1f} ms, with own work {row['cpu_ms']:6.1f} ms")
    print(f"load of the machine: {report['load_before']} before, {report['load_after']} after")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")
    return 0 if all(row["cpu_ms"] <= MOST_STALL_MS for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
