"""Measure what bounded context finds in a long text with a real model: `python -m benchmarks.planted --model NAME`.

A text (the beginning of our guides) holds one fact at a tenth, at the half or at nine tenths of its length. Each
text is read with windows of each size, in each mode of carryover, at temperature 0, and asked for its fact. Prints a
row for each length, window and mode: right answers, runs whose last notes held the fact, runs that ended by a limit,
calls, and tokens. `--url URL`, `--record FILE` and the file of results are as in `benchmarks.prompts`.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.machine import write_report
from benchmarks.prompts import ENDED_BY_US, NONCE, PACKAGES, RecordedModel, build_parser, connect, is_right, read_record
from reasond_server.strategies.bounded_context import BoundedContext, BoundedContextConfig
from reasond_server.strategies.strategy import Outcome, RunContext, Step
from reasond_server.types import BoundedContextStep, CarryoverMode, Task

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from _typeshed import DataclassInstance

RESULTS: Final = Path(__file__).resolve().parent / "results" / "planted.json"
DEPTHS: Final = (0.1, 0.5, 0.9)
FACTS: Final = (
    (
        "The depth of the new dock at Aldermouth is 4,731 centimetres.",
        "How deep is the new dock at Aldermouth?",
        "4731",
    ),
    (
        "The crane in hall nine was paid for with 86,250 crowns.",
        "How many crowns did the crane in hall nine cost?",
        "86250",
    ),
    ("The lighthouse keeper's locker opens with the number 5908.", "Which number opens the keeper's locker?", "5908"),
)
PROSE: Final = Path(__file__).resolve().parent.parent / "docs" / "guides"


@dataclass(slots=True, kw_only=True)
class Figures:
    """What a mode came to in windows of one size, over the texts of one length."""

    size: int
    window: int
    mode: str
    texts: int = 0
    right: int = 0
    in_notes: int = 0
    limited: int = 0
    calls: int = 0
    tokens_read: int = 0
    tokens_written: int = 0


def write_text(size: int, depth: float, fact: str) -> str:
    """Return a text of about `size` bytes of our guides, with a fact at `depth` of its length."""
    pages = "\n\n".join(page.read_text("utf-8") for page in sorted(PROSE.glob("*.md")))
    paragraphs = pages[:size].split("\n\n")
    paragraphs.insert(int(len(paragraphs) * depth), fact)
    return "\n\n".join(paragraphs)


async def read_text(figures: Figures, planted: int, model: RecordedModel) -> None:
    """Ask for one of the facts, in a text that holds it at the depth of the same place, and count."""
    told, question, right = FACTS[planted]
    config = BoundedContextConfig(
        chunk_size=figures.window,
        carryover_size=figures.window // 4,
        carryover_mode=CarryoverMode(figures.mode),
        temperature=0.0,
    )
    task = Task(query=question, material=write_text(figures.size, DEPTHS[planted], told))
    notes, answer = "", ""
    async for event in BoundedContext().run(task, RunContext(config=config, model=model, new_nonce=lambda: NONCE)):
        if isinstance(event, Outcome):
            answer = event.answer
            figures.limited += event.finish_reason in ENDED_BY_US
        elif isinstance(event, Step) and isinstance(event.detail, BoundedContextStep):
            notes = event.detail.carryover or notes
    figures.texts += 1
    figures.right += is_right(answer, right)
    figures.in_notes += right in notes.replace(",", "")
    model.count_into(figures)


async def measure(options: argparse.Namespace) -> list[Figures]:
    """Read all texts, all lengths, windows and modes at once."""
    record = read_record(options.record)
    connected = connect((options.url or [""])[0], options.model)
    found = [
        Figures(size=size, window=window, mode=mode)
        for size in options.bytes
        for window in options.window
        for mode in options.mode
    ]
    async with asyncio.TaskGroup() as group:
        for figures in found:
            for planted in range(len(FACTS)):
                model = RecordedModel(model=connected, record=record, path=options.record)
                group.create_task(read_text(figures, planted, model))
    await connected.aclose()
    return found


def print_table(found: Sequence[DataclassInstance]) -> None:
    """Print figures as a table."""
    names = list(asdict(found[0]))
    print(f"| {' | '.join(names)} |\n|{' --- |' * len(names)}")
    for figures in found:
        print(f"| {' | '.join(f'{each:,}' if isinstance(each, int) else each for each in asdict(figures).values())} |")


def main() -> None:
    """Measure, print and write the results."""
    parser = build_parser(__doc__)
    parser.add_argument("--bytes", type=int, nargs="+", default=[15_000, 30_000])
    parser.add_argument("--window", type=int, nargs="+", default=[2048, 3072])
    parser.add_argument("--mode", nargs="+", default=[str(mode) for mode in CarryoverMode])
    options = parser.parse_args()
    found = asyncio.run(measure(options))
    print_table(found)
    rows = [asdict(figures) for figures in found]
    write_report(RESULTS, PACKAGES, model=options.model, digest=options.digest, figures=rows)


if __name__ == "__main__":
    main()
