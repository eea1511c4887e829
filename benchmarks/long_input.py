"""Measure how bounded context reads texts far larger than its window, and how much memory its depth needs.

Prints tables and writes results/long_input.json beside this file. Reading: texts of 8K to 512K tokens in windows of
8,192, with the demo model and with a scripted one; both must combine the evidence of two distant segments. Memory: 5,
50 and 500 full reasoning windows; the figure is the traced allocations that the run holds, without those of the model.
benchmarks/depth_memory.py measures the memory of a whole server.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import time
import tracemalloc
from contextlib import aclosing
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.machine import circumstances, new_event_loop
from reasond_server.llm.counting import WordPieceCounter
from reasond_server.llm.demo.demo_model import DemoModel
from reasond_server.strategies.bounded_context import BoundedContext, BoundedContextConfig
from reasond_server.strategies.strategy import Outcome, RunContext, Step
from reasond_server.testing import FunctionModel
from reasond_server.types import BoundedContextMetrics, BoundedContextStep, CarryoverMode, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import ChatModel, ChatRequest

RESULTS = Path(__file__).resolve().parent / "results" / "long_input.json"
LENGTHS = (8_000, 32_000, 128_000, 512_000)
DEPTHS = (5, 50, 500)
PARAGRAPH = "Day {} of the journey was dry, and nothing of note was seen by those who went along the river that day."
# Each half uses the words of the question, because the demo model relates texts by common words only.
EVIDENCE = ("The mason Orlo built the bridge of Kel.", "The builder of the bridge of Kel was born in the town of Vash.")
QUESTION = "Which mason built the bridge of Kel, and in which town was the builder of the bridge of Kel born?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The reading of one text."""

    model: str
    tokens: int
    segments: int
    calls: int
    peak_window: int
    tokens_spent_pct: float
    seconds: float
    is_answered: bool
    has_both_in_notes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Depth:
    """The memory of one depth of reasoning in one mode."""

    mode: str
    windows: int
    held_bytes: int
    bytes_per_window: float


def text_of(tokens: int) -> str:
    """Return a text of at least `tokens` tokens with its evidence near both ends."""
    counter = WordPieceCounter()
    each = counter.count_text(PARAGRAPH.format(5000)) + 1
    lines = [PARAGRAPH.format(day) for day in range(tokens // each + 40)]
    lines[len(lines) // 20] += f" {EVIDENCE[0]}"
    lines[-len(lines) // 20] += f" {EVIDENCE[1]}"
    return "\n".join(lines)


def follow_script(request: ChatRequest) -> str:
    """Write evidence as findings while there is text to read, then answer."""
    content = request.messages[1].content
    found = [one for one in EVIDENCE if one in content]
    if "<passage" in content:
        return "<continue>Key Findings:\n" + "\n".join(found) + "\nProgress: read on</continue>"
    return f"<answer>{' '.join(found)}</answer>"


async def read(model: ChatModel, tokens: int) -> Reading:
    """Read a text of `tokens` tokens in windows of 8,192."""
    text = text_of(tokens)
    size = WordPieceCounter().count_text(text)
    config = BoundedContextConfig(carryover_size=1024)
    begun = time.perf_counter()
    outcome, notes = await run_to_end(model, config, text)
    seconds = time.perf_counter() - begun
    metrics = outcome.metrics
    if not isinstance(metrics, BoundedContextMetrics):
        raise SystemExit("bounded context reported the metrics of another strategy")
    calls = metrics.total_iterations + metrics.carryover_calls
    spent = sum(line.tokens for line in metrics.iterations)
    made = Reading(
        model=model.name,
        tokens=size,
        segments=metrics.reading_iterations,
        calls=calls,
        peak_window=metrics.peak_window_tokens,
        tokens_spent_pct=round(100 * spent / size, 1),
        seconds=round(seconds, 2),
        is_answered="Orlo" in outcome.answer and "Vash" in outcome.answer,
        has_both_in_notes=all(one in notes for one in EVIDENCE),
    )
    print(f"    {asdict(made)}", flush=True)
    return made


async def run_to_end(model: ChatModel, config: BoundedContextConfig, material: str = "") -> tuple[Outcome, str]:
    """Return the outcome of a run and its last carried-over notes."""
    notes = ""
    events = BoundedContext().run(Task(query=QUESTION, material=material), RunContext(config=config, model=model))
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Outcome):
                return event, notes
            if isinstance(event, Step) and isinstance(event.detail, BoundedContextStep):
                notes = event.detail.carryover or notes
    raise SystemExit("the run ended without an outcome")


async def depth(mode: CarryoverMode, windows: int) -> tuple[int, int]:
    """Return the traced bytes that a run of so many full windows holds near its end; each window has its own words.

    They are read at a model call, after clearing Python's free lists, which grow to a size of their own.
    """
    numbers = count()
    held = 0

    def reply(request: ChatRequest) -> str:
        nonlocal held
        model.requests.clear()
        number = next(numbers)
        if number % (windows // DEPTHS[0]) == 0:
            gc.collect()
            held = tracemalloc.get_traced_memory()[0]
        start = number * 10_000
        return " ".join(f"w{start + word}" for word in range(request.max_tokens))

    model = FunctionModel(reply)
    sizes = {"chunk_size": 1280, "carryover_size": 512, "max_segments": 512, "temperature": 0.0}
    # More windows than the range of max_iterations allows, so that the figure shows depth and not the length of a text.
    config = BoundedContextConfig.model_construct(**sizes, max_iterations=windows, carryover_mode=mode)  # type: ignore[arg-type] # a literal dict
    tracemalloc.start()
    try:
        outcome, _ = await run_to_end(model, config)
    finally:
        tracemalloc.stop()
    metrics = outcome.metrics
    return held, metrics.total_iterations if isinstance(metrics, BoundedContextMetrics) else 0


async def depths() -> list[Depth]:
    """Return the bytes held at each depth, and the bytes per window since the depth before."""
    rows = []
    for mode in (CarryoverMode.HYBRID, CarryoverMode.TAIL):
        await depth(mode, DEPTHS[0])
        before = (0, 0)
        for wanted in DEPTHS:
            held, windows = await depth(mode, wanted)
            slope = (held - before[0]) / (windows - before[1]) if before[1] else 0.0
            row = Depth(mode=mode.value, windows=windows, held_bytes=held, bytes_per_window=round(slope, 1))
            before = (held, windows)
            rows.append(row)
            print(f"    {asdict(row)}", flush=True)
    return rows


async def readings() -> Sequence[Reading]:
    """Return all readings."""
    models = (FunctionModel(follow_script, name="scripted"), DemoModel())
    return [await read(model, tokens) for model in models for tokens in LENGTHS]


def main() -> None:
    """Measure, print and write the results."""
    argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0]).parse_args()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        print("reading in windows of 8,192 tokens")
        read_rows = runner.run(readings())
        print("memory by depth")
        depth_rows = runner.run(depths())
    report = {
        "circumstances": circumstances(("reasond-server",)),
        "reading": [asdict(row) for row in read_rows],
        "memory": [asdict(row) for row in depth_rows],
    }
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
