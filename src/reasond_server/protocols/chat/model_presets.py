"""The models that the operator offers to OpenAI's clients: the tables of [openai.models]."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Final

from pydantic import Field

from reasond_server.types import Budget
from reasond_server.types.policy_sections import ParameterTable, PolicySection, StrategyName

_MOST: Final = 2**53 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelBudget(PolicySection, Budget):
    """Bounds on one execution; a request may only lower them."""

    max_total_tokens: Annotated[int | None, Field(ge=1, le=_MOST, description="Most tokens of all model calls.")] = None
    max_model_calls: Annotated[int | None, Field(ge=1, le=_MOST, description="Most model calls.")] = None
    max_tool_calls: Annotated[int | None, Field(ge=0, le=_MOST, description="Most tool calls.")] = None
    max_elapsed_s: Annotated[float | None, Field(ge=0.001, le=86_400, description="Most seconds.")] = None
    max_output_tokens: Annotated[int | None, Field(ge=1, le=_MOST, description="Most tokens that are written.")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPreset(PolicySection):
    """What one model name stands for; without a `strategy` the agent or the server chooses it.

    A request cannot change the parameters in `config` nor the agent; of its budget and `budget` the lower bounds count.
    """

    strategy: Annotated[StrategyName | None, Field(description="Strategy of the model; left out: as for requests.")] = (
        None
    )
    config: Annotated[ParameterTable, Field(description="Parameters of the strategy that nobody can change.")] = field(
        default_factory=dict
    )
    budget: ModelBudget = field(default_factory=ModelBudget)
    agent: Annotated[str | None, Field(max_length=256, description="Agent whose strategies and values count.")] = None
    include_deltas: Annotated[
        bool, Field(description="Whether text is streamed while the model writes it, not only whole steps.")
    ] = False
