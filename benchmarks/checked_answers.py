"""Measure what judging and refining gain, with a model of controlled accuracy: `python -m benchmarks.checked_answers`.

Prints tables and writes results/checked_answers.json beside this file. No language model takes part: the figures say
what best_of_n and self_refine make of judgements that are right as often as stated, and nothing about any model.

The questions are those of `benchmarks.search_budget`: for each of 200, 40 answers are drawn once, right with a
probability that differs from question to question, wrong ones mostly the same few. A judge calls a solution right (8 of
10) or wrong (2 of 10), and is right with the probability `insight`, drawn once for each question and answer: a judge
makes the same mistake again. A critique finds a fault in the same way; a revision is the next recorded answer.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.machine import circumstances
from benchmarks.search_budget import QUESTIONS, read_recorded
from reasond_server.strategies.best_of_n import BestOfN
from reasond_server.strategies.self_consistency import SelfConsistency
from reasond_server.strategies.self_refine import SelfRefine
from reasond_server.testing import FunctionModel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import ChatRequest
    from reasond_server.strategies.strategy import ReasoningStrategy

RESULTS: Final = Path(__file__).resolve().parent / "results" / "checked_answers.json"
PACKAGES: Final = ("reasond-server",)
INSIGHTS: Final = (0.5, 0.6, 0.75, 0.9)
SAMPLES: Final = (1, 3, 5, 9)
ROUNDS: Final = (1, 3, 5)
_RIGHT: Final = "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The share of right answers of a method and its calls per question; `size` is its samples or rounds."""

    method: str
    insight: float | None
    size: int
    right: float
    calls: float


class Recorded:
    """A model that gives the recorded answers of one question in order, and judges them with `insight`."""

    def __init__(self, answers: Sequence[str], *, insight: float, seed: int) -> None:
        self._answers = iter(answers)
        source = random.Random(seed)  # noqa: S311 - a controlled judge, no secret
        self._is_judged_well = {answer: source.random() < insight for answer in sorted(set(answers))}
        self.model = FunctionModel(self._reply)

    def _reply(self, request: ChatRequest) -> str:
        said = request.messages[-1].content
        shown = said.rpartition("Final answer: ")[2].partition("\n")[0]
        if "from 0 (certainly wrong)" in said:
            return f"Checked. <answer>{8 if self._passes(shown) else 2}</answer>"
        if "Write a critique" in said:
            return f"Read again. <answer>{'PASS' if self._passes(shown) else 'REVISE'}</answer>"
        return f"Hm. <answer>{next(self._answers)}</answer>"

    def _passes(self, answer: str) -> bool:
        return (answer == _RIGHT) == self._is_judged_well[answer]


async def measure_method(
    strategy: ReasoningStrategy[Any],
    sets: Sequence[Sequence[str]],
    *,
    insight: float | None,
    size: int,
    config: dict[str, Any],
) -> Checked:
    """Let a strategy answer every question."""
    right = calls = 0
    for number, answers in enumerate(sets):
        recorded = Recorded(answers, insight=insight or 0.0, seed=number)
        outcome = await strategy.reason("?", model=recorded.model, **config)
        right += outcome.answer == _RIGHT
        calls += len(recorded.model.requests)
    return Checked(
        method=strategy.name,
        insight=insight,
        size=size,
        right=round(right / len(sets), 3),
        calls=round(calls / len(sets), 2),
    )


async def measure() -> Sequence[Checked]:
    """Measure everything and print it."""
    sets = read_recorded(seed=1)
    rows = [await measure_method(SelfConsistency(), sets, insight=None, size=n, config={"samples": n}) for n in SAMPLES]
    for insight in INSIGHTS:
        rows += [await measure_method(BestOfN(), sets, insight=insight, size=n, config={"samples": n}) for n in SAMPLES]
        rows += [
            await measure_method(SelfRefine(), sets, insight=insight, size=n, config={"max_rounds": n}) for n in ROUNDS
        ]
    for row in rows:
        judge = "no judge" if row.insight is None else f"judge right {row.insight:4.0%}"
        print(f"{row.method:<17} {row.size:>2}  {judge:<16} right {row.right:6.1%}, calls {row.calls:5.2f}")
    return rows


def main() -> None:
    """Measure, print and write the results."""
    rows = asyncio.run(measure())
    report = {"circumstances": circumstances(PACKAGES), "questions": QUESTIONS, "rows": [asdict(row) for row in rows]}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
