"""The parameters of tree of thought."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from reasond_server.strategies.strategy import StrategyConfig, Temperature

# One call proposes, one judges, and one is reserved for the answer.
LEAST_CALLS: Final = 3
LEAST_THOUGHT_TOKENS: Final = 64
_MOST_THOUGHT_TOKENS: Final = 4096


class TreeSearchOrder(StrEnum):
    """Which node is expanded next."""

    BEAM = "beam"
    BEST_FIRST = "best_first"


class ThoughtJudge(StrEnum):
    """How nodes are judged: each alone, or those of one expansion against each other."""

    VALUE = "value"
    VOTE = "vote"


class TreeOfThoughtConfig(StrategyConfig):
    """The parameters, with their defaults and ranges."""

    max_depth: Annotated[int, Field(ge=1, le=10, description="Deepest level of the tree.")] = 4
    branching: Annotated[int, Field(ge=1, le=10, description="Thoughts proposed from each node.")] = 3
    beam_width: Annotated[
        int, Field(ge=1, le=10, description="Nodes kept of each level (beam), or expanded at once (best_first).")
    ] = 2
    # Not strict, because JSON has no enums, and strict Pydantic refuses strings for them.
    search: Annotated[TreeSearchOrder, Field(strict=False, description="Order of the search.")] = TreeSearchOrder.BEAM
    evaluator: Annotated[ThoughtJudge, Field(strict=False, description="How thoughts are judged.")] = ThoughtJudge.VALUE
    max_tokens_per_thought: Annotated[
        int,
        Field(
            ge=LEAST_THOUGHT_TOKENS,
            le=_MOST_THOUGHT_TOKENS,
            description="Most tokens of a thought, of a judgement, and of the answer.",
        ),
    ] = 512
    temperature: Temperature = 0.8
    max_model_calls: Annotated[int, Field(ge=1, le=1000, description="Most model calls of the whole search.")] = 60
    seed: Annotated[int | None, Field(description="Breaks ties between thoughts of equal score.")] = None
