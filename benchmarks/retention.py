"""Measure what carryovers keep: facts at random depths of long texts, and a code that every window must repeat.

Prints tables and writes results/retention.json beside this file; a run of only some tasks does not write, so that the
file always comes from one run. The models are scripted: they see only their window, and keep each item that they see in
notes or passage with probability p, drawn anew in every window. So the figures show the loss of the carryover, given a
model with this loss of its own; they say nothing about any language model. The demo model, which extracts sentences, is
measured on the facts too.

- facts: 12 facts "The code of X is N" in a text of 12K to 128K tokens, all asked for; recall = those in the answer.
  The model writes each as a line of its own under "Key Findings": that favours modes that keep such lines, hybrid
  above all.
- prose: 80 facts, more than the facts' share of the notes holds, which the model writes as sentences of one paragraph
  without any label; recall as before. This favours tail, which needs no structure.
- code: reasoning in windows that their limit cuts. The first works out a code of 24 letters somewhere in its text, as
  a line "Result: ..."; every window that sees it writes it again, with probability p, somewhere in its text. The answer
  is right if the last window still has all of it. Summary calls are answered with the fields and, with probability p,
  the code. Hybrid keeps such lines wherever they stand, tail only those near the end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import re
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.machine import circumstances, new_event_loop
from reasond_server.context.carryover_call import SUMMARY_REQUEST
from reasond_server.llm.demo.demo_model import DemoModel
from reasond_server.strategies.bounded_context import BoundedContext, BoundedContextConfig
from reasond_server.strategies.strategy import Outcome, RunContext
from reasond_server.testing import FunctionModel
from reasond_server.types import CarryoverMode, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from reasond_server.llm.model import ChatModel, ChatRequest

RESULTS = Path(__file__).resolve().parent / "results" / "retention.json"
LENGTHS = (12_000, 32_000, 128_000)
PROSE_LENGTHS = (12_000, 32_000)
TASKS = ("facts", "prose", "code")
FACTS = 12
KEPT = (1.0, 0.98, 0.9)
ROUNDS = 10
SIZES = {"chunk_size": 4096, "carryover_size": 1024}
ENDINGS = ("ar", "eth", "im", "os", "un", "yl", "ab", "ed", "ik", "or")
NAMES = tuple(f"{one}{other}" for one in ("Bal", "Cor", "Dun", "Fen") for other in ENDINGS[:3])
MANY_NAMES = tuple(
    f"{one}{other}" for one in ("Bal", "Cor", "Dun", "Fen", "Gal", "Hon", "Jas", "Kel") for other in ENDINGS
)
FILLER = "The road was long that day and nothing of note was seen by those who went along it to the river. "
FILLER_TOKENS = 21
PLAIN_WORDS = tuple(dict.fromkeys(re.findall(r"\w+", FILLER.lower())))
_FACT = re.compile(r"The code of (\w+) is (\d+)")
_CODE = re.compile(r"Result: ([A-Z]{24})\b")
DEPTHS = (5, 15, 50)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One task of one length: `score` is the mean over the rounds, `margin` is 1.96 times its standard error."""

    task: str
    model: str
    mode: str
    tokens: int
    windows: int
    calls: int
    score: float
    margin: float


def text_with_facts(tokens: int, draw: random.Random, names: Sequence[str]) -> tuple[str, dict[str, str]]:
    """Return a text of about `tokens` with the facts at random depths, and the facts."""
    lines = [FILLER] * (tokens // FILLER_TOKENS)
    facts = {name: str(draw.randrange(1000, 10_000)) for name in names}
    for name, code in facts.items():
        lines[draw.randrange(len(lines))] += f"The code of {name} is {code}. "
    return "\n".join(lines), facts


def finder(kept: float, draw: random.Random) -> Callable[[ChatRequest], str]:
    """Return a model that keeps each fact of passage and notes with probability `kept`, one finding for each."""

    def reply(request: ChatRequest) -> str:
        content = request.messages[1].content
        found = {name: code for name, code in _FACT.findall(content) if draw.random() < kept}
        lines = "\n".join(f"The code of {name} is {code}" for name, code in found.items())
        if "<passage" not in content:
            return f"<answer>{lines}</answer>"
        return f"Read on. <continue>Key Findings:\n{lines}\nProgress: read</continue>"

    return reply


def teller(kept: float, draw: random.Random) -> Callable[[ChatRequest], str]:
    """Return a model that does the same but writes sentences without lists and labels."""

    def reply(request: ChatRequest) -> str:
        content = request.messages[1].content
        found = {name: code for name, code in _FACT.findall(content) if draw.random() < kept}
        told = " ".join(f"The code of {name} is {code}." for name, code in found.items())
        return f"<continue>{told}</continue>" if "<passage" in content else f"<answer>{told}</answer>"

    return reply


def carrier(code: str, kept: float, draw: random.Random) -> Callable[[ChatRequest], str]:
    """Return a model that fills every window and works `code` out in the first one only."""

    def reply(request: ChatRequest) -> str:
        prompt = request.messages[1].content
        is_summary = request.messages[-1].content == SUMMARY_REQUEST
        seen = set(_CODE.findall("".join(message.content for message in request.messages[1:])))
        is_first = "<notes" not in prompt and not is_summary
        line = f"\nResult: {code}\n" if (is_first or code in seen) and draw.random() < kept else ""
        if is_summary:
            return f"<continue>Current Strategy: go on\nKey Findings:{line}\nProgress: {draw.random()}</continue>"
        if "end with <answer> now" in request.messages[0].content:
            return f"<answer>{code if code in seen else 'unknown'}</answer>"
        words = draw.choices(PLAIN_WORDS, k=request.max_tokens)
        words.insert(draw.randrange(request.max_tokens * 9 // 10), line)
        return " ".join(words)

    return reply


async def run_task(
    model: ChatModel, query: str, material: str, mode: CarryoverMode, **more: int
) -> tuple[Outcome, int]:
    """Return the outcome of a run and its number of windows."""
    config = BoundedContextConfig.model_validate({**SIZES, "carryover_mode": mode, "max_segments": 4096, **more})
    events = BoundedContext().run(Task(query=query, material=material), RunContext(config=config, model=model))
    async with aclosing(events):
        async for event in events:
            if isinstance(event, Outcome):
                return event, event.metrics.total_iterations  # type: ignore[union-attr] # bounded context's own
    raise SystemExit("the run ended without an outcome")


def row(
    task: str, *, model: str, mode: CarryoverMode, tokens: int, scores: Sequence[float], sizes: tuple[int, int]
) -> Row:
    """Print and return the mean of `scores` with its margin."""
    mean = sum(scores) / len(scores)
    variance = sum((score - mean) ** 2 for score in scores) / max(1, len(scores) - 1)
    made = Row(
        task=task,
        model=model,
        mode=mode.value,
        tokens=tokens,
        windows=sizes[0],
        calls=sizes[1],
        score=round(mean, 3),
        margin=round(1.96 * math.sqrt(variance / len(scores)), 3),
    )
    print(
        f"{task:<8}{model:<10}{mode.value:<9}{tokens:>7} tokens {sizes[0]:>4} windows {mean:6.3f} +- {made.margin:.3f}",
        flush=True,
    )
    return made


async def measure(rounds: int, tasks: Collection[str]) -> list[Row]:
    """Return all rows; every mode gets the same texts and random draws."""
    rows = []
    for mode in CarryoverMode:
        for tokens in LENGTHS if "facts" in tasks else ():
            rows += [await facts_row(tokens, mode, kept, rounds) for kept in (*KEPT, None)]
        for tokens in PROSE_LENGTHS if "prose" in tasks else ():
            rows += [await facts_row(tokens, mode, kept, rounds, is_prose=True) for kept in KEPT]
        for windows in DEPTHS if "code" in tasks else ():
            rows += [await code_row(windows, mode, kept, rounds) for kept in KEPT]
    return rows


async def facts_row(
    tokens: int, mode: CarryoverMode, kept: float | None, rounds: int, *, is_prose: bool = False
) -> Row:
    """Return the recall of facts; `kept` None stands for the demo model."""
    scores, sizes = [], (0, 0)
    names, script = (MANY_NAMES, teller) if is_prose else (NAMES, finder)
    for number in range(rounds):
        draw = random.Random(1000 * tokens + number)  # noqa: S311 - test data, no secret
        material, facts = text_with_facts(tokens, draw, names)
        model: ChatModel = DemoModel() if kept is None else FunctionModel(script(kept, draw))
        outcome, windows = await run_task(model, "What are the codes that the text names?", material, mode)
        scores.append(sum(f"{name} is {code}" in outcome.answer for name, code in facts.items()) / len(facts))
        sizes = (windows, windows)
    name = "demo" if kept is None else f"p = {kept:g}"
    task = "prose" if is_prose else "facts"
    return row(task, model=name, mode=mode, tokens=tokens, scores=scores, sizes=sizes)


async def code_row(windows: int, mode: CarryoverMode, kept: float, rounds: int) -> Row:
    """Return the share of rounds in which the last window still has the code."""
    scores, sizes, tokens = [], (0, 0), 0
    for number in range(rounds):
        draw = random.Random(1000 * windows + number)  # noqa: S311 - test data, no secret
        code = "".join(draw.choices("ABCDEFGHJKLMNPQRSTUVWXYZ", k=24))
        sizes_of_run = {"chunk_size": 2048, "carryover_size": 512, "max_iterations": windows}
        outcome, done = await run_task(
            FunctionModel(carrier(code, kept, draw)), "What is the code?", "", mode, **sizes_of_run
        )
        metrics = outcome.metrics
        scores.append(float(outcome.answer == code))
        sizes = (done, done + metrics.carryover_calls)  # type: ignore[union-attr] # bounded context's own
        tokens = sum(line.tokens for line in metrics.iterations)  # type: ignore[union-attr, misc] # as above
    return row("code", model=f"p = {kept:g}", mode=mode, tokens=tokens, scores=scores, sizes=sizes)


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="texts of each kind (%(default)s)")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS, help="some of them: nothing is written")
    chosen = parser.parse_args()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        rows = runner.run(measure(max(2, chosen.rounds), chosen.tasks))
    if set(chosen.tasks) != set(TASKS):
        return
    load = {"facts": len(NAMES), "prose": len(MANY_NAMES), "rounds": chosen.rounds, **SIZES}
    report = {"circumstances": circumstances(("reasond-server",)), "load": load, "rows": [asdict(one) for one in rows]}
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
