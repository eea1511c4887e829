"""The section [turns]: conversations with tools, their modes, and what their prompts show."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from reasond_server.config.section import Section, freeze
from reasond_server.config.tools import ToolName

_KIBI = 1024
_MEBI = 1024 * _KIBI
_DAY_S = 86_400
_YEARS_S = 3650 * _DAY_S

ModeName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_-]*$", max_length=64)]
ToolNames = tuple[ToolName, ...]
ProviderNames = tuple[Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=64)], ...]


class ModeSettings(Section):
    """One mode of a conversation."""

    instructions: str = Field(
        default="", max_length=100_000, description="What the model is told in every call of the mode."
    )
    tools: ToolNames | None = Field(
        default=None,
        strict=False,
        max_length=200,
        description="Server tools that the mode offers; left out: all, an empty list: none.",
    )
    backend: str = Field(default="", max_length=64, description="Backend of [llm.backends]; empty: that of [llm].")
    welcome: str = Field(
        default="", max_length=100_000, description="Text of the first prompt after the mode was switched to."
    )


Modes = Annotated[Mapping[ModeName, ModeSettings], AfterValidator(freeze)]


class TurnContextSettings(Section):
    """What the prompts of turns show of the results of tools."""

    preview_above_tokens: int = Field(
        default=256, ge=64, le=8192, description="Results with more tokens are shown as previews while planning."
    )
    preview_tokens: int = Field(default=1024, ge=128, le=16_384, description="Most tokens of a preview.")
    error_tokens: int = Field(
        default=1024,
        ge=64,
        le=8192,
        description="Errors are shown whole up to so many tokens, beyond that as previews.",
    )
    clear_at_least_tokens: int = Field(
        default=4096,
        ge=0,
        le=131_072,
        description="Results are left out of prompts in batches of at least so many tokens, because each change of "
        "the beginning of a prompt costs the model's cache.",
    )
    keep_recent: int = Field(
        default=3,
        ge=0,
        le=50,
        description="Newest results that are left out last, besides those that the model has not seen yet.",
    )
    history_share: float = Field(
        default=0.25, ge=0, le=0.9, description="Most of a prompt that earlier turns of the session may take, 0-0.9."
    )
    synthesis: Literal["when_reduced", "always", "never"] = Field(
        default="when_reduced",
        description="When the answer is written by a call of its own from whole results: if the last prompt showed "
        "any of them reduced, always or never.",
    )
    summaries: bool = Field(
        default=False,
        description="Whether a model summarises results that would be shown as previews; each summary is a model call "
        "of the turn. Where it fails, the preview stands.",
    )
    summary_backend: str = Field(
        default="",
        max_length=64,
        description="Backend of [llm.backends] that writes summaries; empty: that of the mode.",
    )
    summary_tokens: int = Field(default=512, ge=64, le=4096, description="Most tokens of a summary.")


class TurnsSettings(Section):
    """Turns: conversations that use tools of the server and of the client."""

    default_mode: ModeName = Field(
        default="default", description="Mode that sessions begin in; a table of [turns.modes], or default."
    )
    max_model_calls: int = Field(
        default=50, ge=1, le=500, description="Most model calls of one turn; the last of them must answer."
    )
    max_tool_calls: int = Field(default=50, ge=0, le=1000, description="Most tool calls of one turn.")
    max_calls_per_reply: int = Field(
        default=32, ge=1, le=128, description="Most tool calls in one reply of the model; further ones are not made."
    )
    tool_parallelism: int = Field(
        default=1, ge=1, le=16, description="Server tools of one reply that run at once; 1: one after the other."
    )
    on_tool_failure: Literal["stop", "tell"] = Field(
        default="stop", description="What the first failure of a tool does: it ends the turn, or the model is told."
    )
    on_unknown_outcome: Literal["fail", "ask"] = Field(
        default="fail",
        description="If the server went down during a tool that must not run twice: the turn fails, or its client is "
        "asked what came of it.",
    )
    handoff_ttl_s: float = Field(
        default=86_400.0, ge=60, le=2_592_000, description="Seconds that a turn waits for its client."
    )
    max_active_s: float = Field(
        default=600.0,
        ge=1,
        le=_DAY_S,
        description="Seconds that a turn may work, without waits for its client and times in which servers are down.",
    )
    session_retention_s: float = Field(
        default=2_592_000.0,
        ge=3600,
        le=_YEARS_S,
        description="Seconds after its last turn until a session and its turns are forgotten.",
    )
    max_client_tools: int = Field(default=64, ge=0, le=256, description="Most tools that a client may offer in a turn.")
    max_result_bytes: int = Field(
        default=2 * _MEBI,
        ge=64 * _KIBI,
        le=16 * _MEBI,
        description="Largest result of one tool call that is accepted, in bytes.",
    )
    max_kept_bytes: int = Field(
        default=32 * _MEBI, ge=_MEBI, le=1024 * _MEBI, description="Most bytes of results that one turn keeps."
    )
    max_tokens: int = Field(
        default=4096, ge=64, le=32_768, description="Most tokens that the model may write in one call."
    )
    temperature: float = Field(default=0.7, ge=0, le=2, description="Sampling temperature of the model.")
    needs_approval: ToolNames = Field(
        default=(),
        strict=False,
        max_length=200,
        description="Server tools that run only after a person has approved the call.",
    )
    context_providers: ProviderNames = Field(
        default=(),
        strict=False,
        max_length=32,
        description="Installed context providers whose texts stand in the prompts, in this order; see "
        "docs/guides/context-providers.md.",
    )
    modes: Modes = Field(
        default_factory=lambda: MappingProxyType({}),
        max_length=64,
        description="Modes by name, each a table of instructions, tools (left out: all), backend (of [llm.backends]) "
        "and welcome (told once after the switch).",
    )
    context: TurnContextSettings = Field(default_factory=TurnContextSettings)
