"""Measure what search and voting gain for their tokens, with models of controlled accuracy: `make bench`.

Prints tables and writes results/search_budget.json beside this file. No language model takes part: the figures say how
the controllers use a budget when proposals and judgements are right as often as stated, and nothing about any model.

- The game of 24 (`benchmarks.game24`): success by token budget, every method with the same puzzles, seeds and budgets.
  `greedy` is one chain of thought; `best of n` takes chains and lets the same judge choose while the budget lasts;
  `vote` is self_consistency; the others are tree_of_thought. An answer counts if it is right, whatever the run says.
- The vote on recorded answers: for each question 40 answers are drawn once, right with a probability that differs from
  question to question, wrong ones mostly the same few. self_consistency replays them.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import statistics
from contextlib import aclosing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from benchmarks.game24 import Player, is_right, puzzles, question_of
from benchmarks.machine import circumstances
from reasond_server.errors import TokenBudgetExhaustedError
from reasond_server.llm.metering import MeteredModel
from reasond_server.search.tree import Candidate, Node
from reasond_server.strategies.chain_of_thought import ChainOfThought
from reasond_server.strategies.self_consistency import SelfConsistency
from reasond_server.strategies.strategy import Outcome, RunContext
from reasond_server.strategies.tree_of_thought import TreeOfThought
from reasond_server.strategies.tree_of_thought.prompts import TreePrompts
from reasond_server.strategies.tree_of_thought.thoughts import ThoughtCalls, ThoughtEvaluator, TreeThought
from reasond_server.testing import FunctionModel
from reasond_server.types import Budget, SelfConsistencyMetrics, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import ChatRequest
    from reasond_server.strategies.strategy import ReasoningStrategy

RESULTS: Final = Path(__file__).resolve().parent / "results" / "search_budget.json"
PACKAGES: Final = ("reasond-server",)
NONCE: Final = "a" * 28
BUDGETS: Final = (1000, 2000, 4000, 8000, 16_000)
INSIGHTS: Final = (0.95, 0.75)
SKILL: Final = 0.5
GAMES: Final = 60
SEEDS: Final = 3
CHAIN_TOKENS: Final = 256
TREE: Final = {"branching": 4, "max_depth": 3, "max_tokens_per_thought": 96, "max_model_calls": 400}
TREES: Final[dict[str, dict[str, Any]]] = {
    "beam, value": {**TREE},
    "beam, vote": {**TREE, "evaluator": "vote"},
    "best first, value": {**TREE, "search": "best_first"},
    "best first, vote": {**TREE, "search": "best_first", "evaluator": "vote"},
}
METHODS: Final = ("greedy", "best of n", "vote", *TREES)
QUESTIONS: Final = 200
ANSWERS: Final = 40
SAMPLES: Final = (1, 3, 5, 9, 17, 33)
MARGINS: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
AGREEMENTS: Final = (0.0, 0.4, 0.6, 0.8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Success:
    """Share of runs that solved their puzzle, and the average tokens and calls.

    `error` is the standard error of `solved`, computed over puzzles: the seeds of one puzzle are not independent runs.
    """

    method: str
    insight: float
    budget: int
    solved: float
    error: float
    tokens: float
    calls: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """The results of self_consistency on recorded answers; `precision` is the share of right ones among its answers."""

    samples: int
    min_agreement: float
    accuracy: float
    precision: float
    coverage: float
    calls: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The share of right answers among those with a margin up to `margin_to` and above that of the row before."""

    margin_to: float
    answers: int
    right: float


async def run_search(
    strategy: ReasoningStrategy[Any], task: Task, model: MeteredModel, config: dict[str, Any]
) -> Outcome:
    """Run `strategy` to its end; a budget that covers no call ends it without an answer."""
    context = RunContext(config=strategy.config_type.model_validate(config), model=model, new_nonce=lambda: NONCE)
    async with aclosing(strategy.run(task, context)) as events:
        async for event in events:
            if isinstance(event, Outcome):
                return event
    raise SystemExit(f"{strategy.name} has no outcome")


async def best_of_n(task: Task, model: MeteredModel) -> str:
    """Sample chains and let the judge score each, until the budget refuses a call; return the best answer so far."""
    prompts = TreePrompts(question=task.query, material="", nonce=NONCE, counter=model.counter)
    calls = ThoughtCalls(
        model=model,
        prompts=prompts,
        counter=model.counter,
        thought_tokens=int(TREE["max_tokens_per_thought"]),
        temperature=0.7,
        are_tokens_bounded=True,
    )
    judge, root = (
        ThoughtEvaluator(calls=calls, is_comparing=False),
        Node(node_id="n0", number=0, payload=TreeThought(text="")),
    )
    best, answer = -1.0, ""
    try:
        while True:
            chain = await run_search(ChainOfThought(), task, model, {"max_tokens": CHAIN_TOKENS})
            candidate = Candidate(
                payload=TreeThought(text=f"left: {chain.answer}", answer=chain.answer), key=chain.answer
            )
            score = (await judge.judge(root, [candidate])).verdicts[0].score or 0.0
            if score > best:
                best, answer = score, chain.answer
    except TokenBudgetExhaustedError:
        return answer


async def answer_of(method: str, task: Task, model: MeteredModel) -> str:
    """Return the answer of a method; empty if the budget covers no call."""
    try:
        if method == "greedy":
            return (await run_search(ChainOfThought(), task, model, {"max_tokens": CHAIN_TOKENS})).answer
        if method == "best of n":
            return await best_of_n(task, model)
        if method == "vote":
            config = {"samples": 40, "max_tokens": CHAIN_TOKENS}
            return (await run_search(SelfConsistency(), task, model, config)).answer
        return (await run_search(TreeOfThought(), task, model, TREES[method])).answer
    except TokenBudgetExhaustedError:
        return ""


async def success(method: str, games: Sequence[tuple[int, ...]], *, insight: float, tokens: int) -> Success:
    """Let a method play all games with all seeds."""
    spent = calls = 0
    solved = [0] * len(games)
    for seed in range(SEEDS):
        for place, numbers in enumerate(games):
            player = Player(seed=seed * 10_000 + place, skill=SKILL, insight=insight)
            budget = Budget(max_total_tokens=tokens)
            metered = MeteredModel(model=player.model, budget=budget)
            answer = await answer_of(method, Task(query=question_of(numbers), budget=budget), metered)
            solved[place] += is_right(answer, numbers)
            spent += metered.usage.total_tokens
            calls += metered.usage.model_calls
            if metered.usage.total_tokens > tokens:
                raise SystemExit(f"{method} spent {metered.usage.total_tokens} of {tokens} tokens")
    runs = SEEDS * len(games)
    return Success(
        method=method,
        insight=insight,
        budget=tokens,
        solved=round(sum(solved) / runs, 3),
        error=round(statistics.stdev(solved) / SEEDS / math.sqrt(len(games)), 3),
        tokens=round(spent / runs),
        calls=round(calls / runs, 1),
    )


def read_recorded(*, seed: int) -> list[list[str]]:
    """Return the answers of every question; "0" is always the right one."""
    source, sets = random.Random(seed), []  # noqa: S311 - recorded answers, no secret
    for _ in range(QUESTIONS):
        skill = source.betavariate(1.5, 1.5)
        wrong = source.choices(range(1, 7), weights=[1 / rank for rank in range(1, 7)], k=ANSWERS)
        sets.append(["0" if source.random() < skill else str(each) for each in wrong])
    return sets


async def poll(answers: Sequence[str], *, samples: int, min_agreement: float) -> tuple[str, float, int]:
    """Return the strategy's answer from a record, its margin and the number of its calls."""

    def reply(_: ChatRequest) -> str:
        return f"Hm. <answer>{answers[len(model.requests) - 1]}</answer>"

    model = FunctionModel(reply)
    outcome = await SelfConsistency().reason("?", model=model, samples=samples, min_agreement=min_agreement)
    if not isinstance(outcome.metrics, SelfConsistencyMetrics):
        raise SystemExit("self_consistency has other metrics")
    return outcome.answer, outcome.metrics.margin, len(model.requests)


async def votes(sets: Sequence[Sequence[str]]) -> list[Vote]:
    """Return the accuracy by samples, and by agreement for 9 samples."""
    rows = []
    cases = [(samples, 0.0) for samples in SAMPLES] + [(9, share) for share in AGREEMENTS if share]
    for samples, share in cases:
        polls = [await poll(answers, samples=samples, min_agreement=share) for answers in sets]
        given = [answer for answer, _, _ in polls if answer]
        right = sum(answer == "0" for answer in given)
        rows.append(
            Vote(
                samples=samples,
                min_agreement=share,
                accuracy=round(right / len(polls), 3),
                precision=round(right / max(len(given), 1), 3),
                coverage=round(len(given) / len(polls), 3),
                calls=round(sum(calls for _, _, calls in polls) / len(polls), 2),
            )
        )
    return rows


async def calibration(sets: Sequence[Sequence[str]]) -> list[Calibration]:
    """Return the share of right answers by margin, for 9 samples."""
    polls = [await poll(answers, samples=9, min_agreement=0.0) for answers in sets]
    rows, least = [], -1.0
    for most in MARGINS:
        within = [answer for answer, margin, _ in polls if least < margin <= most + 1e-9]
        if within:
            share = round(sum(answer == "0" for answer in within) / len(within), 3)
            rows.append(Calibration(margin_to=most, answers=len(within), right=share))
        least = most + 1e-9
    return rows


async def measure() -> dict[str, Any]:
    """Measure everything and print it."""
    games = puzzles(GAMES, seed=24)
    rows = []
    for insight in INSIGHTS:
        print(f"game of 24, moves right {SKILL:.0%}, judgements right {insight:.0%}; solved by tokens")
        print(f"{'':<20}" + "".join(f"{tokens:>8,}" for tokens in BUDGETS))
        for method in METHODS:
            line = [await success(method, games, insight=insight, tokens=tokens) for tokens in BUDGETS]
            rows += line
            print(f"{method:<20}" + "".join(f"{each.solved:8.1%}" for each in line))
    sets = read_recorded(seed=1)
    polled, calibrated = await votes(sets), await calibration(sets)
    for vote in polled:
        print(
            f"{vote.samples:>3} samples, agreement {vote.min_agreement:.1f}: right {vote.accuracy:6.1%}, "
            f"of those given {vote.precision:6.1%}, given {vote.coverage:6.1%}, calls {vote.calls:5.2f}"
        )
    for each in calibrated:
        print(f"margin up to {each.margin_to:.1f}: {each.answers:>4} answers, right {each.right:6.1%}")
    return {
        "games": {"puzzles": GAMES, "seeds": SEEDS, "skill": SKILL, "rows": [asdict(row) for row in rows]},
        "votes": {
            "questions": QUESTIONS,
            "rows": [asdict(row) for row in polled],
            "calibration": [asdict(row) for row in calibrated],
        },
    }


def main() -> None:
    """Measure, print and write the results."""
    report = {"circumstances": circumstances(PACKAGES), **asyncio.run(measure())}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(f"{json.dumps(report, indent=2)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
