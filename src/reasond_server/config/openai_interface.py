"""The section [openai]: the interface for OpenAI's clients, and the models that the operator offers there."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from reasond_server.config.section import Section
from reasond_server.protocols.model_catalogue import ModelPreset
from reasond_server.types.policy_sections import freeze


def _require_free(name: str) -> str:
    """Return `name` unless it is the server's own."""
    if name == "reasond":
        message = "is the server's own model; take another name"
        raise ValueError(message)
    return name


ModelName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:-]*$", max_length=64), AfterValidator(_require_free)
]


ChatModels = Annotated[Mapping[ModelName, ModelPreset], AfterValidator(freeze)]


class OpenAiSettings(Section):
    """The OpenAI-compatible interface at /v1 of the HTTP listener."""

    enabled: bool = Field(
        default=True,
        description="Whether /v1/chat/completions, /v1/responses and /v1/models are served on http_address.",
    )
    models: ChatModels = Field(
        default_factory=lambda: MappingProxyType({}),
        max_length=256,
        description="Models by name beside reasond and reasond/<strategy>, each a table of strategy, config, budget, "
        "agent, include_deltas and server_tools; see docs/guides/openai-clients.md.",
    )
