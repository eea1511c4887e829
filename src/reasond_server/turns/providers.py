"""Context providers: what stands in the prompts of a turn besides its message, its steps and the history.

A provider folds the events of the log into a state of its own, and writes text from that state for each model call.
`ProviderStates` does this for all providers of one turn. The session keeps the states for its next turn. Every turn has
those of the server: the instructions of the mode, its welcome, and the blocks of the caller.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from reasond_server.base.plugins import PLUGIN_NAME, PluginGroup
from reasond_server.errors.base import InternalError
from reasond_server.types.turns import ContextGoal, ContextScope, ModeChange, ModelCallStep, TurnStarted
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.turns.policy import TurnPolicy
    from reasond_server.types import Event, Json

MAX_STATE_CHARACTERS: Final = 16_000_000
"""Most characters that the state of one provider may have as JSON."""
MAX_TEXT_CHARACTERS: Final = 16_000_000
"""Most characters that a provider may write for one call; the prompt has to fit the model's window anyway."""

_log = logging.getLogger("reasond.turns")
SESSION_BLOCKS: Final = "session_blocks"


@runtime_checkable
class ContextProvider(Protocol):
    """Supplies text for the prompts of turns. An instance serves all turns of the server, so it keeps nothing itself.

    Attributes:
        name: its name, which is that of its entry point: small letters, digits and "_".
        scope: SESSION: its text stands in every prompt. TURN: its text stands at the end of prompts until a reply that
            has seen it is committed; then its state is emptied.
        is_instruction: whether the model follows its text. Otherwise the text stands in a fence, as data.
    """

    name: str
    scope: ContextScope
    is_instruction: bool

    def populate(self, event: Event, state: Json) -> Json:
        """Return the state after `event`; without a change `state` itself.

        A pure function, without input or output: after a crash another process calls it again with the same events.
        `state` must not be changed. It is a JSON object, and empty before the first event of the session.
        """

    def render(self, state: Json, goal: ContextGoal) -> str:
        """Return the text for a model call with `goal`; empty for none. The same arguments give the same text."""


@value
class ProvidedText:
    """What one provider has written for a model call."""

    name: str
    scope: ContextScope
    is_instruction: bool
    text: str


class ProviderStates:
    """The states of the providers of one turn, in the order of their texts.

    `before` are the states at the start of the turn by provider, as the session kept them. A provider that raises is
    left out of the rest of the turn, with a warning, and the session keeps its state as it was before the turn. If no
    reply is committed yet, the turn fails instead.
    """

    def __init__(self, providers: Sequence[ContextProvider], before: Mapping[str, Json]) -> None:
        self._providers = list(providers)
        self._before = before
        self._states: dict[str, Json] = {one.name: before.get(one.name, {}) for one in providers}
        self._failed: list[str] = []

    @property
    def warnings(self) -> Sequence[str]:
        """What the caller is told: which providers failed, and whose states are kept although they are not here."""
        lost = [name for name in self._before if name not in self._states and name not in self._failed]
        return (
            *(f"The context provider {name} failed and was left out; the log has the cause." for name in self._failed),
            *(
                f"The context provider {name} is not enabled on this server; its state is kept, and its text was left "
                "out."
                for name in lost
            ),
        )

    def apply(self, event: Event) -> None:
        """Let all providers take in the next event of the log; summaries have no text of theirs, and are left out."""
        if isinstance(event, ModelCallStep) and event.goal is ContextGoal.SUMMARY:
            return
        for provider in tuple(self._providers):
            state = self._states[provider.name]
            is_consumed = isinstance(event, ModelCallStep) and provider.name in event.blocks
            state = {} if is_consumed and provider.scope is ContextScope.TURN else state
            try:
                new = provider.populate(event, state)
                if new is not state:
                    _require_state(new)
            except Exception as error:  # noqa: BLE001 - code of others may raise anything
                self._leave_out(provider, error)
            else:
                self._states[provider.name] = new

    def render(self, goal: ContextGoal, *, is_first: bool) -> Sequence[ProvidedText]:
        """Return the texts for the next call; `is_first` is whether the turn has no reply yet.

        Raises:
            InternalError: a provider failed before the first reply.
        """
        texts: list[ProvidedText] = []
        for provider in tuple(self._providers):
            try:
                text = _make_text(provider.render(self._states[provider.name], goal))
            except Exception as error:  # noqa: BLE001 - code of others may raise anything
                self._leave_out(provider, error)
                continue
            if text:
                texts.append(
                    ProvidedText(
                        name=provider.name, scope=provider.scope, is_instruction=provider.is_instruction, text=text
                    )
                )
        if is_first and self._failed:
            raise InternalError(f"the context provider {self._failed[0]!r} failed before the first model call")
        return texts

    def describe(self) -> dict[str, Json]:
        """Return the states that the session keeps by provider; empty ones are left out."""
        return {name: state for name, state in (dict(self._before) | self._states).items() if state}

    def _leave_out(self, provider: ContextProvider, error: Exception) -> None:
        _log.error("the context provider %s failed", provider.name, exc_info=error)
        self._providers.remove(provider)
        self._failed.append(provider.name)
        del self._states[provider.name]


def require_provider(provider: object) -> ContextProvider:
    """Return `provider` if it is a valid context provider.

    Raises:
        InternalError: it is not valid; the text is for its author.
    """
    if not isinstance(provider, ContextProvider) or not isinstance(provider.scope, ContextScope):
        raise InternalError(f"{type(provider).__name__} is no context provider")
    if not PLUGIN_NAME.fullmatch(str(provider.name)):
        raise InternalError(f"the name of {type(provider).__name__} does not match {PLUGIN_NAME.pattern}")
    return provider


def _require_state(state: Any) -> None:  # noqa: ANN401 - what code of others returned
    """Refuse a state that cannot be stored as it is. Raises ValueError or TypeError."""
    text = json.dumps(state, ensure_ascii=False, allow_nan=False)
    text.encode()
    if not isinstance(state, dict) or json.loads(text) != state:
        message = "the state must be a JSON object"
        raise TypeError(message)
    if len(text) > MAX_STATE_CHARACTERS:
        message = f"the state has {len(text)} characters as JSON; at most {MAX_STATE_CHARACTERS} are allowed"
        raise ValueError(message)


def _make_text(text: Any) -> str:  # noqa: ANN401 - what code of others returned
    """Return `text` in a form that UTF-8 can encode. Raises ValueError or TypeError if it is none."""
    if not isinstance(text, str):
        message = f"the text must be a string, got {type(text).__name__}"
        raise TypeError(message)
    if len(text) > MAX_TEXT_CHARACTERS:
        message = f"the text has {len(text)} characters; at most {MAX_TEXT_CHARACTERS} are allowed"
        raise ValueError(message)
    return text.encode("utf-8", "replace").decode("utf-8")


class ModeInstructions:
    """The instructions of the mode in force."""

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
"""Names that no other provider may have."""
INSTALLED_PROVIDERS: Final = PluginGroup(
    group="reasond.context_providers",
    noun="context provider",
    setting="[turns] context_providers",
    require=require_provider,
    reserved=BUILT_IN_NAMES,
)


def _join(blocks: Json) -> str:
    return "\n\n".join(f"{name}:\n{text}" for name, text in blocks.items())
