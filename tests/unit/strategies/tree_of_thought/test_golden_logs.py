"""The requests and logs of tree of thought equal those recorded before its search was restructured, byte for byte.

`golden/*.json` hold whole runs, one file for each order of search and judge; `golden/digests.json` holds SHA-256
digests of many more runs. `python -m tests.unit.strategies.tree_of_thought.test_golden_logs` writes them again. Do that
only for a change that callers are meant to see.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.errors.base import ReasondError
from reasond_server.errors.model import ModelFailedError
from reasond_server.llm.metered_model import MeteredModel
from reasond_server.strategies.strategy import Outcome, RunContext, Step, StrategyEvent, Wrote
from reasond_server.strategies.tree_of_thought import TreeOfThought, TreeOfThoughtConfig
from reasond_server.testing import FunctionModel, Reply
from reasond_server.types import Budget, Task, TreeOfThoughtMetrics, TreeStep
from tests.unit.strategies.tree_of_thought.game24 import Player, puzzles, question_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from reasond_server.llm.model import ChatRequest
    from reasond_server.types import StrategyMetrics

GOLDEN = Path(__file__).parent / "golden"
NONCE = "qzkvhwbnmcjtrxplaoysdgeufiqh"
KINDS = tuple(product(("beam", "best_first"), ("value", "vote")))
BUDGETS: tuple[dict[str, int], ...] = (
    {},
    {"max_model_calls": 4},
    {"max_model_calls": 19},
    {"max_total_tokens": 900},
    {"max_total_tokens": 3000},
    {"max_total_tokens": 9000},
)


def describe(metrics: StrategyMetrics) -> list[object]:
    assert isinstance(metrics, TreeOfThoughtMetrics)
    return [
        metrics.nodes_expanded,
        metrics.nodes_evaluated,
        metrics.nodes_pruned,
        metrics.nodes_duplicate,
        metrics.depth_reached,
        metrics.best_score,
    ]


def line(event: StrategyEvent) -> list[object]:
    """Return an event in a form that does not depend on names inside the server."""
    if isinstance(event, Wrote):
        return ["wrote", event.text]
    if isinstance(event, Outcome):
        return ["outcome", event.answer, str(event.finish_reason), list(event.warnings), describe(event.metrics)]
    detail = event.detail
    assert isinstance(event, Step)
    assert isinstance(detail, TreeStep)
    node = [detail.node_id, detail.parent_id, detail.depth, detail.thought, detail.score, detail.is_pruned]
    return ["step", *node, detail.answer, event.answer_found, describe(event.metrics)]


def digest_of(request: ChatRequest) -> str:
    """Return the digest of the whole content of a request."""
    messages = [[str(message.role), message.content] for message in request.messages]
    whole = [messages, request.max_tokens, request.temperature, list(request.stop), request.label]
    return hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:16]


async def log(
    model: FunctionModel, query: str, budget: Mapping[str, int], config: Mapping[str, object]
) -> dict[str, list[Any]]:
    """Run the strategy and return its requests and its events."""
    task = Task(query=query, budget=Budget(**budget))
    metered = MeteredModel(model=model, budget=task.budget)
    context = RunContext(config=TreeOfThoughtConfig.model_validate(config), model=metered, new_nonce=lambda: NONCE)
    events: list[list[object]] = []
    try:
        async for event in TreeOfThought().run(task, context):
            events.append(line(event))  # noqa: PERF401 - what came before an error is kept
    except ReasondError as error:
        events.append(["error", error.reason, error.message])
    return {"requests": [digest_of(request) for request in model.requests], "events": events}


def faulty(seed: int) -> Callable[[ChatRequest], str | Reply]:
    """Return a model that repeats itself, fails, and gives unreadable judgements."""

    def reply(request: ChatRequest) -> str | Reply:
        user = request.messages[-1].content
        drawn = int(hashlib.sha256(f"{seed}:{user}".encode()).hexdigest(), 16)
        if drawn % 11 == 0:
            return Reply(error=ModelFailedError("gone"))
        if "<passage" in user:
            points = ", ".join(f"{number}: {drawn >> number & 7}" for number in range(1, 4))
            return f"<answer>{points if 'Compare' in user else drawn % 12}</answer>"
        answer = f" <answer>{drawn % 3}</answer>" if drawn % 5 == 0 else ""
        return "\n".join(f"Thought {number}: t{drawn >> number & 7}" for number in range(1, 4)) + answer

    return reply


def runs() -> Iterator[tuple[str, FunctionModel, str, dict[str, int], dict[str, object]]]:
    """Yield the runs whose digests are kept, each with its name."""
    for (search, evaluator), budget, (place, numbers) in product(KINDS, BUDGETS, enumerate(puzzles(3, seed=7))):
        name = f"{search} {evaluator} {json.dumps(budget)} {place}"
        config: dict[str, object] = {"search": search, "evaluator": evaluator, "branching": 3 + place, "seed": 7}
        player = Player(seed=place, skill=0.5, insight=0.9)
        yield f"player {name}", player.model, question_of(numbers), dict(budget), config
        config = {**config, "branching": 3, "beam_width": 1 + place, "seed": None, "max_tokens_per_thought": 64}
        yield f"faulty {name}", FunctionModel(faulty(place)), "6 times 7?", dict(budget), config


async def digests() -> dict[str, str]:
    return {
        name: hashlib.sha256(json.dumps(await log(model, query, budget, config)).encode()).hexdigest()
        for name, model, query, budget, config in runs()
    }


async def whole(search: str, evaluator: str) -> str:
    """Return two runs, line by line: a game that is solved and a model that fails."""
    (numbers,) = puzzles(1, seed=11)
    config = {"search": search, "evaluator": evaluator}
    game = await log(Player(seed=3, skill=0.5, insight=0.9).model, question_of(numbers), {}, config)
    other = await log(FunctionModel(faulty(5)), "6 times 7?", {}, config)
    lines = [json.dumps(each) for one in (game, other) for each in ([one["requests"]], *one["events"])]
    return "[\n" + ",\n".join(lines) + "\n]\n"


@pytest.mark.parametrize(("search", "evaluator"), KINDS)
async def test_logs_are_those_of_before(search: str, evaluator: str) -> None:
    kept = (GOLDEN / f"{search}_{evaluator}.json").read_text(encoding="utf-8")
    assert await whole(search, evaluator) == kept


@pytest.mark.slow
async def test_many_more_runs_have_the_digests_of_before() -> None:
    kept = json.loads((GOLDEN / "digests.json").read_text(encoding="utf-8"))
    assert await digests() == kept


if __name__ == "__main__":
    for kind in KINDS:
        (GOLDEN / f"{'_'.join(kind)}.json").write_text(asyncio.run(whole(*kind)), encoding="utf-8")
    (GOLDEN / "digests.json").write_text(json.dumps(asyncio.run(digests()), indent=1) + "\n", encoding="utf-8")
