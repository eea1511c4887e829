"""The section [openai]: the interface for OpenAI's clients, and the models that the operator offers there."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from reasond_server.config.section import ParameterTable, Section, StrategyName
from reasond_server.types.policies import freeze

_MOST = 2**53 - 1


def _require_free(name: str) -> str:
    """Return `name` unless it is the server's own."""
    if name == "reasond":
        message = "is the server's own model; take another name"
        raise ValueError(message)
    return name


ModelName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$", max_length=64), AfterValidator(_require_free)
]


class ModelBudgetSettings(Section):
    """Bounds on one execution; a request may only lower them."""

    max_total_tokens: int | None = Field(default=None, ge=1, le=_MOST, description="Most tokens of all model calls.")
    max_model_calls: int | None = Field(default=None, ge=1, le=_MOST, description="Most model calls.")
    max_tool_calls: int | None = Field(default=None, ge=0, le=_MOST, description="Most tool calls.")
    max_output_tokens: int | None = Field(default=None, ge=1, le=_MOST, description="Most tokens that are written.")
    max_elapsed_s: float | None = Field(default=None, ge=0.001, le=86_400, description="Most seconds.")


class ChatModelSettings(Section):
    """One model that clients can name."""

    strategy: StrategyName | None = Field(default=None, description="Strategy of the model; left out: as for requests.")
    agent: str | None = Field(default=None, max_length=256, description="Agent whose strategies and values count.")
    config: ParameterTable = Field(
        default_factory=lambda: MappingProxyType({}), description="Parameters of the strategy that nobody can change."
    )
    budget: ModelBudgetSettings = Field(default_factory=ModelBudgetSettings)
    include_deltas: bool = Field(
        default=False, description="Whether text is streamed while the model writes it, not only whole steps."
    )


ChatModels = Annotated[Mapping[ModelName, ChatModelSettings], AfterValidator(freeze)]


class OpenAiSettings(Section):
    """The OpenAI-compatible interface at /v1 of the HTTP listener."""

    enabled: bool = Field(
        default=True, description="Whether /v1/chat/completions and /v1/models are served on http_address."
    )
    models: ChatModels = Field(
        default_factory=lambda: MappingProxyType({}),
        max_length=256,
        description="Models by name beside reasond and reasond/<strategy>, each a table of strategy, config, budget, "
        "agent and include_deltas; see docs/guides/openai-clients.md.",
    )
