"""The operator's decisions about turns, as plain values."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT_MODE: Final = "default"


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
class Mode:
    """A mode of a conversation: instructions, and the server tools that it offers (None: all).

    `welcome` is the text that introduces the mode once, in the first prompt after the switch. `backend` names another
    language model.
    """

    instructions: str = ""
    tools: Sequence[str] | None = None
    backend: str = ""
    welcome: str = ""


@value
class TurnPolicy:
    """The section [turns] of the configuration; docs/reference describes each key. Times are in seconds.

    `records_content` is that of the section [store]: without content no turn can wait for its client. `summary_tokens`
    are the most tokens of a summary; None means that there are none.
    """

    default_mode: str = DEFAULT_MODE
    modes: Mapping[str, Mode] = field(default_factory=dict)
    needs_approval: Sequence[str] = ()
    max_model_calls: int = 50
    max_tool_calls: int = 50
    max_calls_per_reply: int = 32
    tool_parallelism: int = 1
    on_tool_failure: OnToolFailure = OnToolFailure.STOP
    on_unknown_outcome: OnUnknownOutcome = OnUnknownOutcome.FAIL
    handoff_ttl_s: float = 86_400.0
    max_active_s: float = 600.0
    session_retention_s: float = 2_592_000.0
    max_client_tools: int = 64
    max_result_bytes: int = 2_097_152
    max_kept_bytes: int = 33_554_432
    max_tokens: int = 4096
    temperature: float = 0.7
    synthesis: Synthesis = Synthesis.WHEN_REDUCED
    summary_tokens: int | None = None
    summary_backend: str = ""
    records_content: bool = True

    def find_mode(self, name: str) -> Mode | None:
        """Return the mode; the default mode exists even if it is not configured. None if there is no such mode."""
        if name == self.default_mode:
            return self.modes.get(name, Mode())
        return self.modes.get(name)

    def mode_in_force(self, name: str) -> Mode:
        """Return the mode; one that the operator has removed counts as the default mode."""
        return self.find_mode(name) or self.find_mode(self.default_mode) or Mode()
