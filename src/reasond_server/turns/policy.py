"""The operator's decisions about turns: the section [turns] of the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from enum import StrEnum
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from reasond_server.context.reasoning_parts import ContextSettings
from reasond_server.types.policy_sections import ChosenName, PluginName, PolicySection, ToolName, freeze
from reasond_server.types.values import value

DEFAULT_MODE: Final = "default"
_KIBI: Final = 1024
_MEBI: Final = 1024 * _KIBI
_DAY_S: Final = 86_400
_YEARS_S: Final = 3650 * _DAY_S


class OnToolFailure(StrEnum):
    """What the first failure of a tool does: it ends the turn, or the model is told."""

    STOP = "stop"
    TELL = "tell"


class OnUnknownOutcome(StrEnum):
    """What follows if nobody knows whether a tool ran: the turn fails, or its client is asked."""

    FAIL = "fail"
    ASK = "ask"


class Synthesis(StrEnum):
    """When the answer is written by a call of its own from full results."""

    WHEN_REDUCED = "when_reduced"
    ALWAYS = "always"
    NEVER = "never"


@value
class Mode(PolicySection):
    """One mode of a conversation."""

    instructions: Annotated[
        str, Field(max_length=100_000, description="What the model is told in every call of the mode.")
    ] = ""
    tools: Annotated[
        tuple[ToolName, ...] | None,
        Field(
            strict=False,
            max_length=200,
            description="Server tools that the mode offers; left out: all, an empty list: none.",
        ),
    ] = None
    backend: Annotated[str, Field(max_length=64, description="Backend of [llm.backends]; empty: that of [llm].")] = ""
    welcome: Annotated[
        str, Field(max_length=100_000, description="Text of the first prompt after the mode was switched to.")
    ] = ""


@value
class TurnContext(ContextSettings):
    """What the prompts of turns show of the results of tools, and when results are read again or summarised."""

    synthesis: Annotated[
        Synthesis,
        Field(
            strict=False,
            description="When the answer is written by a call of its own from whole results: if the last prompt "
            "showed any of them reduced, always or never.",
        ),
    ] = Synthesis.WHEN_REDUCED
    summaries: Annotated[
        bool,
        Field(
            description="Whether a model summarises results that would be shown as previews; each summary is a model "
            "call of the turn. Where it fails, the preview stands."
        ),
    ] = False
    summary_backend: Annotated[
        str,
        Field(max_length=64, description="Backend of [llm.backends] that writes summaries; empty: that of the mode."),
    ] = ""
    summary_tokens: Annotated[int, Field(ge=64, le=4096, description="Most tokens of a summary.")] = 512


@value
class TurnPolicy(PolicySection):
    """Turns: conversations that use tools of the server and of the client."""

    default_mode: Annotated[
        ChosenName, Field(description="Mode that sessions begin in; a table of [turns.modes], or default.")
    ] = DEFAULT_MODE
    max_model_calls: Annotated[
        int, Field(ge=1, le=500, description="Most model calls of one turn; the last of them must answer.")
    ] = 50
    max_tool_calls: Annotated[int, Field(ge=0, le=1000, description="Most tool calls of one turn.")] = 50
    max_calls_per_reply: Annotated[
        int,
        Field(ge=1, le=128, description="Most tool calls in one reply of the model; further ones are not made."),
    ] = 32
    tool_parallelism: Annotated[
        int,
        Field(ge=1, le=16, description="Server tools of one reply that run at once; 1: one after the other."),
    ] = 1
    on_tool_failure: Annotated[
        OnToolFailure,
        Field(
            strict=False,
            description="What the first failure of a tool does: it ends the turn, or the model is told.",
        ),
    ] = OnToolFailure.STOP
    on_unknown_outcome: Annotated[
        OnUnknownOutcome,
        Field(
            strict=False,
            description="If the server went down during a tool that must not run twice: the turn fails, or its client "
            "is asked what came of it.",
        ),
    ] = OnUnknownOutcome.FAIL
    handoff_ttl_s: Annotated[
        float, Field(ge=60, le=2_592_000, description="Seconds that a turn waits for its client.")
    ] = 86_400.0
    max_active_s: Annotated[
        float,
        Field(
            ge=1,
            le=_DAY_S,
            description="Seconds that a turn may work, without waits for its client and times in which servers are "
            "down.",
        ),
    ] = 600.0
    session_retention_s: Annotated[
        float,
        Field(
            ge=3600,
            le=_YEARS_S,
            description="Seconds after its last turn until a session and its turns are forgotten.",
        ),
    ] = 2_592_000.0
    max_client_tools: Annotated[
        int, Field(ge=0, le=256, description="Most tools that a client may offer in a turn.")
    ] = 128
    max_result_bytes: Annotated[
        int,
        Field(
            ge=64 * _KIBI,
            le=16 * _MEBI,
            description="Largest result of one tool call that is accepted, in bytes.",
        ),
    ] = 2 * _MEBI
    max_kept_bytes: Annotated[
        int, Field(ge=_MEBI, le=1024 * _MEBI, description="Most bytes of results that one turn keeps.")
    ] = 32 * _MEBI
    max_tokens: Annotated[
        int, Field(ge=64, le=32_768, description="Most tokens that the model may write in one call.")
    ] = 4096
    temperature: Annotated[float, Field(ge=0, le=2, description="Sampling temperature of the model.")] = 0.7
    samples: Annotated[
        int,
        Field(
            ge=1,
            le=16,
            description="Most replies to each prompt with tools; the calls that most of them make are taken.",
        ),
    ] = 1
    needs_approval: Annotated[
        tuple[ToolName, ...],
        Field(
            strict=False,
            max_length=200,
            description="Server tools that run only after a person has approved the call.",
        ),
    ] = ()
    context_providers: Annotated[
        tuple[PluginName, ...],
        Field(
            strict=False,
            max_length=32,
            description="Installed context providers whose texts stand in the prompts, in this order; see "
            "docs/guides/context-providers.md.",
        ),
    ] = ()
    modes: Annotated[
        Mapping[ChosenName, Mode],
        AfterValidator(freeze),
        Field(
            max_length=64,
            description="Modes by name, each a table of instructions, tools (left out: all), backend (of "
            "[llm.backends]) and welcome (told once after the switch).",
        ),
    ] = field(default_factory=dict)
    context: TurnContext = field(default_factory=TurnContext)

    @property
    def summary_tokens(self) -> int | None:
        """The most tokens of a summary; None if there are no summaries."""
        return self.context.summary_tokens if self.context.summaries else None

    def find_mode(self, name: str) -> Mode | None:
        """Return the mode; the default mode exists even if it is not configured. None if there is no such mode."""
        if name == self.default_mode:
            return self.modes.get(name, Mode())
        return self.modes.get(name)

    def mode_in_force(self, name: str) -> Mode:
        """Return the mode; one that the operator has removed is the default mode without any tool of the server."""
        known = self.find_mode(name)
        return replace(self.find_mode(self.default_mode) or Mode(), tools=()) if known is None else known
