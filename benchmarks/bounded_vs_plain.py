"""Measure bounded context against a single pass of the same length: tokens and CPU on a real engine.

Prints a table, writes results/bounded_vs_plain.json beside this file, docs/strategies/bounded_savings.svg and the
tables of bounded_savings.md. Up to --engine-most tokens, both run on a real llama.cpp (`benchmarks.counting_engine`). A
pass of n tokens is the beginning of a longer pass, and a run of k windows is the beginning of a longer run, except for
the words "this is the last window". So one pass and one run of each configuration are made, and the CPU seconds of the
engine are read on the way. Lengths beyond --engine-most are counted on a scripted model whose exact counter counts the
same calls, without them. Savings are computed from the usage of both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.counting_engine import WORDS, Call, Completing, Pass, Recording, engine_model, plain
from benchmarks.drawing import line_chart
from benchmarks.machine import circumstances, new_event_loop
from benchmarks.pages import put_between
from reasond_server.context.carryover import SUMMARY_REQUEST
from reasond_server.context.window_accounts import SavingsMeter
from reasond_server.llm.model import ChatModel, ChatRequest, Finished, ModelEvent, WrappedModel
from reasond_server.strategies.bounded_context import BoundedContext, BoundedContextConfig
from reasond_server.strategies.strategy import RunContext
from reasond_server.testing import FunctionModel
from reasond_server.types import CarryoverMode, SavingsBaseline, Task

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "bounded_vs_plain.json"
PICTURE = HERE.parent / "docs" / "strategies" / "bounded_savings.svg"
PAGE = HERE / "bounded_savings.md"
BEGIN, END = "<!-- begin: benchmarks.bounded_vs_plain -->", "<!-- end: benchmarks.bounded_vs_plain -->"
GOAL_PCT = 20
FIGURES = (
    "attention",
    "KV reads",
    "tokens",
    "tokens, `REPROMPT`",
    "peak window",
    "prompt tokens cached",
    "engine CPU, s",
)
PACKAGES = ("reasond-server", "xllamacpp")
LENGTHS = (2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000)
# Also measured with a summary call for each window; a random walk never answers such a call with fields.
HYBRID = ((8192, 4096), (8192, 1024), (4096, 1024))
CONFIGS = ((8192, 4096), (8192, 1024), (4096, 1024), (2048, 512), (1152, 512))
ENGINE_MOST = 128_000
MOST_ITERATIONS = 50
MARGIN = 0.3
PROMPT_TOKENS = 330
QUESTION = "What is six times seven?"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One length under one configuration; CPU seconds are those of the engine, None without one."""

    chunk_size: int
    carryover_size: int
    mode: str
    engine: str
    windows: int
    calls: int
    written: int
    attention_pct: float
    kv_read_pct: float
    tokens_pct: float
    peak_context_pct: float
    reprompt_tokens_pct: float
    peak_window: int
    cached_pct: float | None = None
    plain_cpu_s: float | None = None
    bounded_cpu_s: float | None = None


class Counting(WrappedModel["ChatModel"]):
    """Passes calls on to the scripted model and records them."""

    def __init__(self, *, model: ChatModel) -> None:
        super().__init__(model=model)
        self.calls: list[Call] = []

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the model."""
        async with aclosing(self._model.stream(request)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    is_summary = request.messages[-1].content == SUMMARY_REQUEST
                    self.calls.append(Call(usage=event.usage, is_summary=is_summary))
                yield event


def scripted_model() -> ChatModel:
    """Return a model of the same kind without an engine: only its limit ends a reply."""
    draw = random.Random(7)  # noqa: S311 - test data, no secret
    return FunctionModel(lambda request: "".join(draw.choices(WORDS, k=request.max_tokens + 1)))


async def run_bounded(recording: Recording | Counting, config: BoundedContextConfig, most: int) -> Sequence[Call]:
    """Run bounded context until `most` tokens are written, and return its calls."""
    events = BoundedContext().run(Task(query=QUESTION), RunContext(config=config, model=recording))
    async with aclosing(events):
        async for _ in events:
            if written_by(recording.calls) >= most:
                break
    over = [call.usage.total_tokens for call in recording.calls if call.usage.total_tokens > config.chunk_size]
    if over:
        raise SystemExit(f"a window of {config.chunk_size} tokens had {over[0]}")
    return recording.calls


def pairs(tokens: int) -> int:
    """Return the pairs of tokens that attend to each other."""
    return tokens * (tokens + 1) // 2


def saving_pct(spent: float, baseline: float) -> float:
    """Return the saving in per cent, signed."""
    return round(100 * (1 - spent / baseline), 1)


def first_windows(calls: Sequence[Call], windows: int) -> Sequence[Call]:
    """Return the calls of a run of so many windows, without the summary call after the last window."""
    places = [place for place, call in enumerate(calls) if not call.is_summary]
    return calls[: places[windows - 1] + 1]


def written_by(calls: Sequence[Call]) -> int:
    """Return the tokens written in windows."""
    return sum(call.usage.output_tokens for call in calls if not call.is_summary)


def windows_for(calls: Sequence[Call], length: int) -> int | None:
    """Return the number of windows that wrote about `length` tokens; None if no number from two on did."""
    most = sum(not call.is_summary for call in calls)
    sizes = {count: written_by(first_windows(calls, count)) for count in range(2, most + 1)}
    best = min(sizes, key=lambda count: abs(sizes[count] - length), default=None)
    return best if best is not None and abs(sizes[best] - length) <= MARGIN * length else None


def row_of(config: BoundedContextConfig, engine: str, calls: Sequence[Call], one: Pass) -> Row:
    """Compare the calls with a pass of the same length."""
    meter = SavingsMeter()
    for call in calls:
        (meter.add_carryover if call.is_summary else meter.add)(call.usage)
    usages = [call.usage for call in calls]
    written, is_timed = written_by(calls), len(one.cpu_s) > 1
    single = one.prompt_tokens + written
    reprompt = meter.compare(SavingsBaseline.REPROMPT, prompt_tokens=one.prompt_tokens)
    peak, sent = max(usage.total_tokens for usage in usages), sum(usage.input_tokens for usage in usages)
    return Row(
        chunk_size=config.chunk_size,
        carryover_size=config.carryover_size,
        mode=config.carryover_mode.value,
        engine=engine,
        windows=sum(not call.is_summary for call in calls),
        calls=len(calls),
        written=written,
        attention_pct=saving_pct(sum(pairs(usage.total_tokens) for usage in usages), pairs(single)),
        kv_read_pct=saving_pct(
            sum(pairs(usage.total_tokens) - pairs(usage.input_tokens) for usage in usages),
            pairs(single) - pairs(one.prompt_tokens),
        ),
        tokens_pct=saving_pct(sum(usage.total_tokens for usage in usages), single),
        peak_context_pct=saving_pct(peak, single),
        reprompt_tokens_pct=round(reprompt.tokens_pct, 1) if reprompt else 0.0,
        peak_window=peak,
        cached_pct=round(100 * sum(usage.cached_input_tokens for usage in usages) / sent, 1) if is_timed else None,
        plain_cpu_s=round(one.after(written), 2) if is_timed else None,
        bounded_cpu_s=round(calls[-1].cpu_s, 2) if is_timed else None,
    )


def addition_pct(spent: float, baseline: float) -> float:
    """Return the addition in per cent, negative if `spent` is less."""
    return round(100 * (spent / baseline - 1), 1)


def configs(most: int, modes: Sequence[CarryoverMode]) -> Iterator[tuple[BoundedContextConfig, int]]:
    """Yield each configuration and the length up to which it runs."""
    for chunk_size, carryover_size in CONFIGS:
        room = chunk_size - PROMPT_TOKENS
        reach = room + (MOST_ITERATIONS - 1) * (room - carryover_size)
        for mode in modes:
            if mode is CarryoverMode.TAIL or (chunk_size, carryover_size) in HYBRID:
                yield (
                    BoundedContextConfig(
                        chunk_size=chunk_size,
                        carryover_size=carryover_size,
                        max_iterations=MOST_ITERATIONS,
                        carryover_mode=mode,
                        temperature=1.0,
                    ),
                    min(most, reach),
                )


async def on_engine(model: Completing, most: int) -> AsyncGenerator[list[Row], None]:
    """Make one pass, and after each run yield the rows so far."""
    lengths = [length for length in LENGTHS if length <= most]
    await plain(model, QUESTION, LENGTHS[0])
    # A run ends with a whole window and may write more than required; the engine's window is 5/4 of `most`.
    one = await plain(model, QUESTION, most + most // 10)
    print(f"one pass: {one.words[-1]} tokens, {one.cpu_s[-1]:.2f} CPU s", flush=True)
    rows: list[Row] = []
    for config, reach in configs(most, (CarryoverMode.TAIL, CarryoverMode.HYBRID)):
        calls = await run_bounded(Recording(model=model), config, reach)
        rows += chosen_rows(config, "llama.cpp", calls, one, lengths)
        yield rows


async def count_rows(model: ChatModel, lengths: Sequence[int], prompt_tokens: int) -> list[Row]:
    """Return the rows that are counted without an engine."""
    rows = []
    one = Pass(prompt_tokens=prompt_tokens)
    for config, reach in configs(max(lengths, default=0), (CarryoverMode.TAIL,)):
        if reach >= (1 - MARGIN) * min(lengths):
            calls = await run_bounded(Counting(model=model), config, reach)
            rows += chosen_rows(config, "counter", calls, one, lengths)
    return rows


def chosen_rows(
    config: BoundedContextConfig, engine: str, calls: Sequence[Call], one: Pass, lengths: Sequence[int]
) -> list[Row]:
    """Return a row for each of `lengths` that some number of windows comes close to."""
    counts = dict.fromkeys(windows_for(calls, length) for length in lengths)
    return [row_of(config, engine, first_windows(calls, count), one) for count in counts if count]


def print_row(row: Row) -> None:
    """Print one line of the table."""
    cpu = "" if row.plain_cpu_s is None else f"engine {row.plain_cpu_s:7.2f} -> {row.bounded_cpu_s:7.2f} CPU s"
    print(
        f"{row.chunk_size:>6}/{row.carryover_size:<5}{row.mode:<8}{row.engine:<10}{row.windows:>3} windows "
        f"{row.calls:>3} calls {row.written:>7} written  attention {row.attention_pct:+6.1f}  "
        f"KV {row.kv_read_pct:+6.1f}  "
        f"tokens {row.tokens_pct:+7.1f}  reprompt {row.reprompt_tokens_pct:+6.1f}  peak {row.peak_window:>5}  {cpu}",
        flush=True,
    )


def draw(rows: Sequence[Row]) -> str:
    """Return the chart as SVG: attention saved and tokens added, by the length of the reasoning."""
    series = {}
    for chunk_size, carryover_size in CONFIGS:
        chosen = [
            row
            for row in rows
            if (row.chunk_size, row.carryover_size, row.mode) == (chunk_size, carryover_size, "tail")
        ]
        for figure, words in (("attention_pct", "attention"), ("tokens_pct", "tokens")):
            series[f"{words} {chunk_size}/{carryover_size}"] = [(row.written, getattr(row, figure)) for row in chosen]
    return line_chart(
        series,
        title="Saved against a single pass, in per cent (C/m; mode tail)",
        x_title="tokens of reasoning",
        dashed=lambda name: name.startswith("tokens"),
    )


def page_lines(report: Mapping[str, Any]) -> list[str]:
    """Return the lines between the markers of bounded_savings.md."""
    rows = [Row(**row) for row in report["rows"]]
    cpu = [(row, addition_pct(row.bounded_cpu_s or 0.0, row.plain_cpu_s)) for row in rows if row.plain_cpu_s]
    return [
        f"Up to {report['engine_most']:,} tokens on the engine. Engine CPU: seconds of one pass and of the windows.",
        "",
        *head(("C / m", "mode", "engine", "written", "calls", *FIGURES)),
        *map(table_row, rows),
        "",
        *goal_lines(cpu),
    ]


def head(titles: Sequence[str]) -> list[str]:
    """Return the head of a table."""
    return [f"| {' | '.join(titles)} |", f"| {' | '.join('---' for _ in titles)} |"]


def goal_lines(found: Sequence[tuple[Row, float]]) -> list[str]:
    """Return for each mode the number of rows whose addition was below the goal, and the rows above it."""
    lines = []
    for mode in CarryoverMode:
        mine = [(row, pct) for row, pct in found if row.mode == mode.value]
        over = [f"{row.chunk_size} / {row.carryover_size} at {row.written:,}" for row, pct in mine if pct >= GOAL_PCT]
        if mine:
            missed = f"; not with {'; '.join(over)}." if over else "."
            kept = f"in {len(mine) - len(over)} of {len(mine)} rows"
            lines.append(f"- `{mode.value}`: less than {GOAL_PCT} % of CPU added {kept}{missed}")
    return lines


def table_row(row: Row) -> str:
    """Return a row of the page's table."""
    cpu, cached = "", ""
    if row.plain_cpu_s is not None and row.bounded_cpu_s is not None:
        more = addition_pct(row.bounded_cpu_s, row.plain_cpu_s)
        cpu, cached = f"{row.plain_cpu_s:.2f} → {row.bounded_cpu_s:.2f} ({more:+.0f} %)", f"{row.cached_pct:.0f} %"
    return (
        f"| {row.chunk_size} / {row.carryover_size} | {row.mode} | {row.engine} | {row.written:,} | {row.calls} "
        f"| {row.attention_pct:+.0f} | {row.kv_read_pct:+.0f} | {row.tokens_pct:+.0f} | {row.reprompt_tokens_pct:+.0f} "
        f"| {row.peak_window} | {cached} | {cpu} |"
    )


def order(row: Row) -> tuple[int, str, int]:
    """Return the sort key of a row in the tables."""
    return CONFIGS.index((row.chunk_size, row.carryover_size)), row.mode, row.written


def write_down(report: Mapping[str, Any]) -> None:
    """Write the results, the chart and the page's tables."""
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")
    PICTURE.write_text(draw([Row(**row) for row in report["rows"]]), encoding="utf-8")
    put_between(PAGE, BEGIN, END, "\n".join(["", *page_lines(report), ""]))


async def measure(engine_most: int) -> None:
    """Measure both ways; write the results after each run, so that a benchmark that is stopped early leaves some."""
    async with engine_model(engine_most * 5 // 4) as model:
        prompt_tokens = (await plain(model, QUESTION, 1)).prompt_tokens
        beyond = [length for length in LENGTHS if length > engine_most]
        rest = await count_rows(scripted_model(), beyond, prompt_tokens) if beyond else []
        async with aclosing(on_engine(model, engine_most)) as results:
            async for rows in results:
                report = {
                    "circumstances": circumstances(PACKAGES),
                    "question": QUESTION,
                    "engine_most": engine_most,
                    "rows": [asdict(row) for row in sorted([*rows, *rest], key=order)],
                }
                write_down(report)
    for row in sorted([*rows, *rest], key=lambda one: one.written):
        print_row(row)


def main() -> None:
    """Measure, print, write the results and draw the chart."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engine-most", type=int, default=ENGINE_MOST, help="most tokens on the engine (%(default)s)")
    chosen = parser.parse_args()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(measure(chosen.engine_most))


if __name__ == "__main__":
    main()
