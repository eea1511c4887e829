"""The context providers of every turn: the instructions of the mode, its welcome, and the blocks of the caller."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reasond_server.base.plugins import PluginGroup
from reasond_server.turns.providers import ContextProvider, require_provider
from reasond_server.types.turns import ContextGoal, ContextScope, ModeChange, ModelCallStep, TurnStarted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.turns.policy import TurnPolicy
    from reasond_server.types import Event, Json

SESSION_BLOCKS: Final = "session_blocks"


class ModeInstructions:
    """The instructions of the mode in force; see `providers.ContextProvider`."""

    name = "mode"
    scope = ContextScope.SESSION
    is_instruction = True

    def __init__(self, policy: TurnPolicy) -> None:
        self._policy = policy

    def populate(self, event: Event, state: Json) -> Json:
        """Note the mode that a turn begins in or switches to."""
        if isinstance(event, TurnStarted):
            return {"mode": event.mode}
        return {"mode": event.new_mode} if isinstance(event, ModeChange) else state

    def render(self, state: Json, goal: ContextGoal) -> str:  # noqa: ARG002 - the same for each goal
        """Return the instructions."""
        return self._policy.mode_in_force(state.get("mode", "")).instructions


class SessionBlocks:
    """The caller's blocks for the session: they replace those of the same name, and empty ones remove them."""

    name = SESSION_BLOCKS
    scope = ContextScope.SESSION
    is_instruction = False

    def populate(self, event: Event, state: Json) -> Json:
        """Take over the blocks that a turn brings along."""
        if not isinstance(event, TurnStarted):
            return state
        new = {one.name: one.text for one in event.context if one.scope is ContextScope.SESSION}
        return {name: text for name, text in (dict(state) | new).items() if text} if new else state

    def render(self, state: Json, goal: ContextGoal) -> str:  # noqa: ARG002 - the same for each goal
        """Return the blocks with their names."""
        return _join(state)


class TurnBlocks:
    """The caller's blocks for one turn; those of a turn that got no reply are not shown in the next one."""

    name = "turn_blocks"
    scope = ContextScope.TURN
    is_instruction = False

    def populate(self, event: Event, state: Json) -> Json:
        """Take the blocks that a turn brings along."""
        if not isinstance(event, TurnStarted):
            return state
        return {one.name: one.text for one in event.context if one.scope is ContextScope.TURN}

    def render(self, state: Json, goal: ContextGoal) -> str:  # noqa: ARG002 - the same for each goal
        """Return the blocks with their names."""
        return _join(state)


class Bootstrap:
    """The welcome of a mode: armed by the start of the session and by each switch to another mode."""

    name = "bootstrap"
    scope = ContextScope.TURN
    is_instruction = True

    def __init__(self, policy: TurnPolicy) -> None:
        self._policy = policy

    def populate(self, event: Event, state: Json) -> Json:
        """Note the mode to introduce."""
        # A turn without a session is the beginning of a conversation too.
        if isinstance(event, TurnStarted) and event.session_revision <= 1:
            return {"mode": event.mode}
        if isinstance(event, ModeChange) and event.new_mode != event.old_mode:
            return {"mode": event.new_mode}
        # A mode without a welcome is introduced by any reply.
        return {} if isinstance(event, ModelCallStep) and state else state

    def render(self, state: Json, goal: ContextGoal) -> str:  # noqa: ARG002 - the same for each goal
        """Return the welcome; empty if there is none, or if it was shown."""
        return self._policy.mode_in_force(state["mode"]).welcome if state else ""


def build_providers(policy: TurnPolicy) -> Sequence[ContextProvider]:
    """Return the built-in providers in the order of their texts."""
    return (ModeInstructions(policy), SessionBlocks(), Bootstrap(policy), TurnBlocks())


BUILT_IN_NAMES: Final = frozenset({ModeInstructions.name, SessionBlocks.name, Bootstrap.name, TurnBlocks.name})
INSTALLED_PROVIDERS: Final = PluginGroup(
    group="reasond.context_providers",
    noun="context provider",
    setting="[turns] context_providers",
    require=require_provider,
    reserved=BUILT_IN_NAMES,
)
"""Names that no other provider may have."""


def _join(blocks: Json) -> str:
    return "\n\n".join(f"{name}:\n{text}" for name, text in blocks.items())
