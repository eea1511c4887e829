"""Settings become the models of the OpenAI-compatible interface; `openai_api` itself gets plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.openai_api.model_catalogue import ModelPreset
from reasond_server.types import Budget

if TYPE_CHECKING:
    from reasond_server.config import OpenAiSettings


def presets_of(settings: OpenAiSettings) -> dict[str, ModelPreset]:
    """Return the models of [openai.models] by name."""
    return {
        name: ModelPreset(
            strategy=model.strategy,
            config=dict(model.config),
            budget=Budget(
                max_total_tokens=model.budget.max_total_tokens,
                max_model_calls=model.budget.max_model_calls,
                max_tool_calls=model.budget.max_tool_calls,
                max_elapsed_s=model.budget.max_elapsed_s,
                max_output_tokens=model.budget.max_output_tokens,
            ),
            agent=model.agent,
            include_deltas=model.include_deltas,
        )
        for name, model in settings.models.items()
    }
