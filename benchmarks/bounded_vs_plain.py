"""Measure bounded context against a single pass that writes as much: tokens by the engine's own count, and seconds.

Prints a table, writes results/bounded_vs_plain.json beside this file, docs/strategies/bounded_savings.svg and the table
of bounded_savings.md. Up to
--engine-most tokens both run on a real engine, llama.cpp, with a generated model that walks at random over nine words
for ever, through our own adapter. One pass of n tokens is the beginning of one of more, and a run of k windows that of
one of more windows but for the words "this is the last window", so in each of --rounds rounds one pass and one run of
each configuration are made, in turn, and their clocks read on the way. The rest is counted on a scripted model whose
exact counter counts the same calls, without times. Savings are worked out from the usage of both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import tempfile
import time
from bisect import bisect_left
from contextlib import aclosing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.drawing import line_chart
from benchmarks.machine import circumstances, new_event_loop
from reasond_server.context.carryover_call import SUMMARY_REQUEST
from reasond_server.context.savings import SavingsMeter
from reasond_server.llm.model import ChatRequest, Finished, Message, Role, Text
from reasond_server.llm.openai.building import build_model
from reasond_server.llm.openai.options import BackendOptions, Timeouts
from reasond_server.llm.profiles import profile_for
from reasond_server.strategies.bounded_context import BoundedContext, BoundedContextConfig
from reasond_server.strategies.strategy import RunContext
from reasond_server.testing import FunctionModel
from reasond_server.types import CarryoverMode, Task, Usage
from tests.engines import markov
from tests.engines.serving import running_engine

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence

    from reasond_server.llm.model import ChatModel, ModelEvent

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "bounded_vs_plain.json"
PICTURE = HERE.parent / "docs" / "strategies" / "bounded_savings.svg"
PAGE = HERE.parent / "docs" / "strategies" / "bounded_savings.md"
BEGIN, END = "<!-- begin: benchmarks.bounded_vs_plain -->", "<!-- end: benchmarks.bounded_vs_plain -->"
GOAL_PCT = 20
FIGURES = ("attention", "KV reads", "tokens", "tokens, `REPROMPT`", "peak window", "added")
PACKAGES = ("reasond-server", "xllamacpp")
LENGTHS = (2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000)
# These are also measured with a summary call for each window, which a random walk never answers with fields.
HYBRID = ((8192, 4096), (8192, 1024), (4096, 1024))
CONFIGS = ((8192, 4096), (8192, 1024), (4096, 1024), (2048, 512), (1280, 512))
ENGINE_MOST = 128_000
ROUNDS = 1
MOST_ITERATIONS = 50
MARGIN = 0.3
PROMPT_TOKENS = 180
QUESTION = "What is six times seven?"
# The engine parses the whole reply again with every token, which takes longer than attention where words are long.
WORDS = (" on", " at", " by", " if", " so", " we", " he", " up", " me")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One length under one configuration; times are medians over the rounds, None where no engine ran."""

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
    rounds: int = 0
    bounded_s: float | None = None
    plain_s: float | None = None
    added_pct: float | None = None
    added_least_pct: float | None = None
    added_most_pct: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a run: what it used, whether it made a summary, and the seconds since the run began."""

    usage: Usage
    is_summary: bool
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A single pass: the tokens of its prompt, and the seconds after which it had written how many words."""

    prompt_tokens: int
    words: Sequence[int]
    at_s: Sequence[float]

    def seconds(self, written: int) -> float:
        """Return after how long it had written so many tokens."""
        return self.at_s[min(bisect_left(self.words, written), len(self.at_s) - 1)]


class Recording:
    """Passes calls on and notes them; after `most` tokens written in windows the run is to be left."""

    def __init__(self, model: ChatModel) -> None:
        self._model = model
        self._begun = time.perf_counter()
        self.calls: list[Call] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the model has
        return getattr(self._model, name)

    @property
    def written(self) -> int:
        """Tokens written in windows."""
        return sum(call.usage.output_tokens for call in self.calls if not call.is_summary)

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the model."""
        async with aclosing(self._model.stream(request)) as events:
            async for event in events:
                if isinstance(event, Finished):
                    is_summary = request.messages[-1].content == SUMMARY_REQUEST
                    at_s = time.perf_counter() - self._begun
                    self.calls.append(Call(usage=event.usage, is_summary=is_summary, at_s=at_s))
                yield event


@contextmanager
def engine_model(window: int) -> Iterator[ChatModel]:
    """A llama.cpp server whose model never ends and never repeats itself for long."""
    walk = tuple(markov.Saying(words=(one,), back_to=other) for one in WORDS for other in WORDS)
    markov.CHAINS = {**markov.CHAINS, "wander": walk}
    markov.TRAINED_WINDOW = window  # the engine caps its window at this
    with (
        tempfile.TemporaryDirectory() as folder,
        running_engine("wander", folder=Path(folder), slots=1, window=window) as engine,
    ):
        profile = replace(profile_for("wander", engine.base_url, "llamacpp"), context_window=window)
        yield build_model(
            BackendOptions(
                name="engine",
                model="wander",
                base_url=engine.base_url,
                profile=profile,
                timeouts=Timeouts(total_s=3600.0),
            )
        )


def scripted_model() -> ChatModel:
    """A model of the same kind without an engine: its limit cuts it off."""
    draw = random.Random(7)  # noqa: S311 - a load, no secret
    return FunctionModel(lambda request: "".join(draw.choices(WORDS, k=request.max_tokens + 1)))


async def bounded(model: ChatModel, config: BoundedContextConfig, most: int) -> Sequence[Call]:
    """Run bounded context until `most` tokens are written, and return its calls."""
    recording: Any = Recording(model)
    events = BoundedContext().run(Task(query=QUESTION), RunContext(config=config, model=recording))
    async with aclosing(events):
        async for _ in events:
            if recording.written >= most:
                break
    calls: Sequence[Call] = recording.calls
    over = [call.usage.total_tokens for call in calls if call.usage.total_tokens > config.chunk_size]
    if over:
        raise SystemExit(f"a window of {config.chunk_size} tokens had {over[0]}")
    return calls


async def plain(model: ChatModel, tokens: int) -> Pass:
    """Write `tokens` in one pass.

    Raises:
        SystemExit: the engine counts other tokens than we do, so that the clock would be read at wrong places.
    """
    messages = (Message(role=Role.SYSTEM, content="Think step by step."), Message(role=Role.USER, content=QUESTION))
    words, at_s, begun, heard = [], [], time.perf_counter(), 0
    async with aclosing(model.stream(ChatRequest(messages=messages, max_tokens=tokens, temperature=1.0))) as events:
        async for event in events:
            if isinstance(event, Text):
                heard += event.text.count(" ")
                words.append(heard)
                at_s.append(time.perf_counter() - begun)
            elif isinstance(event, Finished):
                usage = event.usage
    # The engine drops the blank before the first word.
    if usage.output_tokens - heard not in {0, 1}:
        raise SystemExit(f"the engine counted {usage.output_tokens} tokens, {heard} words came")
    return Pass(prompt_tokens=usage.input_tokens, words=words, at_s=at_s)


def pairs(tokens: int) -> int:
    """Return the pairs of tokens that attend to each other."""
    return tokens * (tokens + 1) // 2


def saved(spent: float, baseline: float) -> float:
    """Return the saving in per cent, signed."""
    return round(100 * (1 - spent / baseline), 1)


def first_windows(calls: Sequence[Call], windows: int) -> Sequence[Call]:
    """Return the calls of a run of so many windows: the summary that the last one's cut would have cost is left out."""
    places = [place for place, call in enumerate(calls) if not call.is_summary]
    return calls[: places[windows - 1] + 1]


def written_by(calls: Sequence[Call]) -> int:
    """Return the tokens that windows wrote."""
    return sum(call.usage.output_tokens for call in calls if not call.is_summary)


def windows_for(calls: Sequence[Call], length: int) -> int | None:
    """Return how many windows wrote about `length` tokens; None where no number of at least two did."""
    most = sum(not call.is_summary for call in calls)
    sizes = {count: written_by(first_windows(calls, count)) for count in range(2, most + 1)}
    best = min(sizes, key=lambda count: abs(sizes[count] - length), default=None)
    return best if best is not None and abs(sizes[best] - length) <= MARGIN * length else None


def row_of(config: BoundedContextConfig, engine: str, calls: Sequence[Call], prompt_tokens: int) -> Row:
    """Compare the calls with one pass of so many prompt tokens that writes as much."""
    meter = SavingsMeter(single_pass_tokens=prompt_tokens)
    for call in calls:
        (meter.add_carryover if call.is_summary else meter.add)(call.usage)
    usages = [call.usage for call in calls]
    written = written_by(calls)
    single, reprompt = prompt_tokens + written, meter.reprompt_savings
    peak = max(one.total_tokens for one in usages)
    return Row(
        chunk_size=config.chunk_size,
        carryover_size=config.carryover_size,
        mode=config.carryover_mode.value,
        engine=engine,
        windows=sum(not call.is_summary for call in calls),
        calls=len(calls),
        written=written,
        attention_pct=saved(sum(pairs(one.total_tokens) for one in usages), pairs(single)),
        kv_read_pct=saved(
            sum(pairs(one.total_tokens) - pairs(one.input_tokens) for one in usages),
            pairs(single) - pairs(prompt_tokens),
        ),
        tokens_pct=saved(sum(one.total_tokens for one in usages), single),
        peak_context_pct=saved(peak, single),
        reprompt_tokens_pct=round(reprompt.tokens_pct, 1) if reprompt else 0.0,
        peak_window=peak,
    )


def timed(row: Row, runs: Sequence[Sequence[Call]], passes: Sequence[Pass]) -> Row:
    """Return `row` with the times of all rounds."""
    cut = [first_windows(calls, row.windows) for calls in runs]
    mine = [calls[-1].at_s for calls in cut]
    theirs = [one.seconds(written_by(calls)) for calls, one in zip(cut, passes, strict=True)]
    added = [round(100 * (one / other - 1), 1) for one, other in zip(mine, theirs, strict=True)]
    return replace(
        row,
        rounds=len(runs),
        bounded_s=round(statistics.median(mine), 2),
        plain_s=round(statistics.median(theirs), 2),
        added_pct=round(statistics.median(added), 1),
        added_least_pct=min(added),
        added_most_pct=max(added),
    )


def configs(most: int, modes: Sequence[CarryoverMode]) -> Iterator[tuple[BoundedContextConfig, int]]:
    """Yield each configuration, and how far it is to be run."""
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


async def on_engine(model: ChatModel, most: int, rounds: int) -> AsyncGenerator[tuple[list[Row], list[float]], None]:
    """Yield after each round the rows so far, and the load of the machine (of one minute) at the end of each round."""
    passes: list[Pass] = []
    runs: dict[BoundedContextConfig, list[Sequence[Call]]] = {}
    load = []
    await plain(model, LENGTHS[0])
    for _ in range(rounds):
        passes.append(await plain(model, most + most // 10))
        print(f"one pass: {passes[-1].words[-1]} tokens in {passes[-1].at_s[-1]:.1f} s", flush=True)
        for config, reach in configs(most, (CarryoverMode.TAIL, CarryoverMode.HYBRID)):
            runs.setdefault(config, []).append(await bounded(model, config, reach))
        load.append(round(os.getloadavg()[0], 1))
        yield engine_rows(most, passes, runs), load


def engine_rows(
    most: int, passes: Sequence[Pass], runs: Mapping[BoundedContextConfig, Sequence[Sequence[Call]]]
) -> list[Row]:
    """Return the rows of the engine with the times of all rounds."""
    rows, lengths = [], [length for length in LENGTHS if length <= most]
    for config, its_runs in runs.items():
        found = chosen_rows(config, "llama.cpp", its_runs[0], passes[0].prompt_tokens, lengths)
        rows += [timed(row, its_runs, passes) for row in found]
    return rows


async def counted(model: ChatModel, lengths: Sequence[int], prompt_tokens: int) -> list[Row]:
    """Return the rows without an engine."""
    rows = []
    for config, reach in configs(max(lengths, default=0), (CarryoverMode.TAIL,)):
        if reach >= (1 - MARGIN) * min(lengths):
            calls = await bounded(model, config, reach)
            rows += chosen_rows(config, "counter", calls, prompt_tokens, lengths)
    return rows


def chosen_rows(
    config: BoundedContextConfig, engine: str, calls: Sequence[Call], prompt_tokens: int, lengths: Sequence[int]
) -> list[Row]:
    """Return a row for each of `lengths` that some number of windows comes near."""
    counts = dict.fromkeys(windows_for(calls, length) for length in lengths)
    return [row_of(config, engine, first_windows(calls, count), prompt_tokens) for count in counts if count]


def print_row(row: Row) -> None:
    """Print one line for a person."""
    times = ""
    if row.plain_s is not None:
        spread = f"{row.added_least_pct:+.0f} to {row.added_most_pct:+.0f}"
        times = f"{row.plain_s:7.2f} s -> {row.bounded_s:7.2f} s ({row.added_pct:+.0f} %, {spread})"
    print(
        f"{row.chunk_size:>6}/{row.carryover_size:<5}{row.mode:<8}{row.engine:<10}{row.windows:>3} windows "
        f"{row.calls:>3} calls {row.written:>7} written  attention {row.attention_pct:+6.1f}  "
        f"KV {row.kv_read_pct:+6.1f}  "
        f"tokens {row.tokens_pct:+7.1f}  reprompt {row.reprompt_tokens_pct:+6.1f}  peak {row.peak_window:>5}  {times}",
        flush=True,
    )


def draw(rows: Sequence[Row]) -> str:
    """Return the picture: attention saved and tokens added, by the length of the reasoning."""
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
    """Return what docs/strategies/bounded_savings.md says of the run, between its markers."""
    rows = [Row(**row) for row in report["rows"]]
    load = ", ".join(f"{one:g}" for one in report["load"])
    lines = [
        f"Up to {report['engine_most']:,} tokens on the engine, in {len(report['load'])} rounds, one pass and each",
        "configuration in turn; added: the median and the least and the most of the rounds. Load of the machine",
        f"(processes ready to run, of {report['circumstances']['processors']} processors) after each round: {load}.",
        "",
        f"| C / m | mode | engine | written | calls | {' | '.join(FIGURES)} |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *map(table_row, rows),
        "",
    ]
    for mode in CarryoverMode:
        found = [row for row in rows if row.mode == mode.value and row.added_pct is not None]
        over = [row for row in found if (row.added_pct or 0.0) >= GOAL_PCT]
        if found:
            missed = "; ".join(f"{one.chunk_size} / {one.carryover_size} at {one.written:,}" for one in over)
            lines.append(
                f"- `{mode.value}`: less than {GOAL_PCT} % added in {len(found) - len(over)} of {len(found)} rows"
                + (f"; not with {missed}." if missed else ".")
            )
    return lines


def table_row(row: Row) -> str:
    """Return a row of the page's table."""
    added = ""
    if row.added_pct is not None:
        added = f"{row.added_pct:+.0f} % ({row.added_least_pct:+.0f} to {row.added_most_pct:+.0f})"
    return (
        f"| {row.chunk_size} / {row.carryover_size} | {row.mode} | {row.engine} | {row.written:,} | {row.calls} "
        f"| {row.attention_pct:+.0f} | {row.kv_read_pct:+.0f} | {row.tokens_pct:+.0f} | {row.reprompt_tokens_pct:+.0f} "
        f"| {row.peak_window} | {added} |"
    )


def with_block(text: str, lines: Sequence[str]) -> str:
    """Return the page `text` with `lines` between its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{PAGE.name} lacks {BEGIN} or {END}")
    body = "\n".join(lines)
    return f"{before}{begin}\n\n{body}\n\n{end}{after}"


def write_down(rows: list[Row], load: Sequence[float], engine_most: int) -> None:
    """Write results, picture and the page's tables."""
    rows.sort(key=lambda row: (CONFIGS.index((row.chunk_size, row.carryover_size)), row.mode, row.written))
    report = {
        "circumstances": circumstances(PACKAGES),
        "question": QUESTION,
        "engine_most": engine_most,
        "load": list(load),
        "rows": [asdict(row) for row in rows],
    }
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")
    PICTURE.write_text(draw(rows), encoding="utf-8")
    PAGE.write_text(with_block(PAGE.read_text(encoding="utf-8"), page_lines(report)), encoding="utf-8")


async def measure(model: ChatModel, engine_most: int, rounds: int) -> None:
    """Measure both ways; results are written after each round, so that a long run that is ended leaves some."""
    prompt_tokens = (await plain(model, 1)).prompt_tokens
    beyond = [length for length in LENGTHS if length > engine_most]
    rest = await counted(scripted_model(), beyond, prompt_tokens) if beyond else []
    async with aclosing(on_engine(model, engine_most, rounds)) as results:
        async for rows, load in results:
            write_down([*rows, *rest], load, engine_most)
    for row in sorted([*rows, *rest], key=lambda one: one.written):
        print_row(row)
    await model.aclose()


def main() -> None:
    """Measure, print, write down and draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--engine-most", type=int, default=ENGINE_MOST, help="most tokens on the engine (%(default)s)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds on the engine (%(default)s)")
    chosen = parser.parse_args()
    with (
        engine_model(chosen.engine_most * 5 // 4) as model,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        runner.run(measure(model, chosen.engine_most, max(1, chosen.rounds)))


if __name__ == "__main__":
    main()
