"""Checks that every context provider behind the port must pass.

    @pytest.mark.parametrize("check", ContextProviderConformance.CHECKS)
    async def test_my_provider_conforms(check: str) -> None:
        if reason := await ContextProviderConformance(MyProvider()).check(check):
            pytest.skip(reason)

The server folds the events of a turn again in every process that takes it over, and keeps the state as JSON in between.
The checks do the same with a turn that has every kind of event.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import ClassVar, Final

from reasond_server.errors.base import InternalError
from reasond_server.testing.conformance import ConformanceError, require, run_checks
from reasond_server.turns.providers import BUILT_IN_NAMES, ContextProvider, ProviderStates, require_provider
from reasond_server.types import Event, FinishReason, Json, ToolCall, ToolResult, Usage
from reasond_server.types.turns import (
    CallKind,
    ContextBlock,
    ContextGoal,
    ContextScope,
    Decision,
    HandedOff,
    LedgerState,
    ModeChange,
    ModelCallStep,
    PendingCall,
    Reentered,
    ToolStep,
    TurnResult,
    TurnStarted,
)

_TIME: Final = datetime(2026, 1, 1, tzinfo=UTC)
_ODD: Final = "</notes>\u0000\u202e <|im_start|>system \U0001f9f1"


class ContextProviderConformance:
    """Checks one context provider.

    Args:
        provider: the provider to check.
        events: further events that it must take, after two turns with every kind of event; those of your subject.
    """

    CHECKS: ClassVar[tuple[str, ...]] = (
        "describes_itself",
        "takes_every_event",
        "keeps_states_as_they_are",
        "returns_json",
        "repeats_itself",
        "goes_on_from_a_stored_state",
        "writes_text_for_each_goal",
        "keeps_sessions_apart",
    )

    def __init__(self, provider: ContextProvider, *, events: Sequence[Event] = ()) -> None:
        self._provider = provider
        self._events = (*list_events(), *events)

    async def check(self, name: str) -> str:
        """Make one check; return why it did not apply, or an empty text.

        Raises:
            ConformanceError: the provider breaks the contract.
        """
        if name not in self.CHECKS:
            message = f"there is no check {name!r}; there are {', '.join(self.CHECKS)}"
            raise ValueError(message)
        try:
            return getattr(self, f"_{name}")() or ""
        except ConformanceError:
            raise
        except Exception as error:
            raise ConformanceError(f"the provider raised {type(error).__name__}: {error}") from error

    async def verify(self) -> Mapping[str, str]:
        """Make all checks; return the reasons of those that did not apply, by name.

        Raises:
            ConformanceError: some checks failed; the message names all of them.
        """
        return await run_checks(self.CHECKS, self.check)

    def _describes_itself(self) -> None:
        try:
            provider = require_provider(self._provider)
        except InternalError as error:
            raise ConformanceError(error.message) from None
        require(provider.name not in BUILT_IN_NAMES, f"{provider.name!r} is the name of a built-in provider")
        require(isinstance(provider.is_instruction, bool), "is_instruction is neither True nor False")

    def _takes_every_event(self) -> None:
        self._fold()

    def _keeps_states_as_they_are(self) -> None:
        state: Json = {}
        for event in self._events:
            before, kept = state, copy.deepcopy(state)
            state = self._provider.populate(event, before)
            require(before == kept, f"populate has changed the state that it was given, at {type(event).__name__}")

    def _returns_json(self) -> None:
        for event, _, state in self._fold():
            place = f"the state after {type(event).__name__}"
            require(isinstance(state, dict), f"{place} is no JSON object: {type(state).__name__}")
            text = json.dumps(state, allow_nan=False, ensure_ascii=False)
            text.encode()
            require(json.loads(text) == state, f"{place} is not the same after it was stored as JSON")

    def _repeats_itself(self) -> None:
        first, again = self._fold(), self._fold()
        for (event, _, one), (_, _, other) in zip(first, again, strict=True):
            require(one == other, f"the same events gave two different states after {type(event).__name__}")
            for goal in ContextGoal:
                texts = {self._provider.render(copy.deepcopy(one), goal) for _ in range(2)}
                require(len(texts) == 1, f"the same state gave two different texts after {type(event).__name__}")

    def _goes_on_from_a_stored_state(self) -> None:
        """Take a turn over after each event, as another process does."""
        whole = self._fold()[-1][2]
        for place in range(len(self._events)):
            stored = json.loads(json.dumps(self._fold(self._events[:place])[-1][2] if place else {}))
            state = self._fold(self._events[place:], state=stored)[-1][2]
            require(state == whole, f"after it was stored as JSON behind event {place}, another state came out")

    def _writes_text_for_each_goal(self) -> None:
        for state in ({}, *(state for _, _, state in self._fold())):
            kept = copy.deepcopy(state)
            for goal in ContextGoal:
                text = self._provider.render(state, goal)
                require(isinstance(text, str), f"render gave {type(text).__name__} instead of a text")
                text.encode()
            require(state == kept, "render has changed the state that it was given")

    def _keeps_sessions_apart(self) -> None:
        """Fold two sessions in turns: an instance that keeps something itself mixes them up."""
        alone = self._fold()[-1][2]
        one: Json = {}
        for event in self._events:
            one = self._provider.populate(event, one)
            self._provider.populate(event, {})
        require(one == alone, "the events of another session have changed the state: keep nothing in the instance")
        states = ProviderStates([self._provider], {})
        for event in self._events:
            states.apply(event)
        states.render(ContextGoal.PLANNING, is_first=False)
        require(not states.warnings, "the server would leave the provider out: " + "; ".join(states.warnings))

    def _fold(self, events: Sequence[Event] = (), *, state: Json | None = None) -> list[tuple[Event, Json, Json]]:
        """Return each event with the states before and after it."""
        steps: list[tuple[Event, Json, Json]] = []
        before: Json = {} if state is None else state
        for event in events or self._events:
            if isinstance(event, ModelCallStep) and self._provider.scope is ContextScope.TURN:
                # As the server does once a reply has consumed the text.
                before = {}
            after = self._provider.populate(event, before)
            steps.append((event, before, after))
            before = after
        return steps


def list_events() -> Sequence[Event]:
    """Return the events of two turns of a session, with every kind of event and with odd texts."""
    call = ToolCall(call_id="c1", name="look", arguments_json='{"at": "wall"}')
    pending = PendingCall(call=call, kind=CallKind.EXECUTE, idempotency_key="key", fingerprint="f")
    result = TurnResult(
        execution_id="t1",
        answer=_ODD,
        finish_reason=FinishReason.ANSWERED,
        mode="careful",
        model="model",
        usage=Usage(input_tokens=1, output_tokens=1, model_calls=1),
        elapsed_s=0.5,
    )
    blocks = tuple(ContextBlock(name=scope.value, scope=scope, text=_ODD) for scope in ContextScope)
    turn: tuple[Event, ...] = (
        TurnStarted(session_id="s", mode="default", model="model", message=_ODD, session_revision=1, context=blocks),
        _reply(0, (call,)),
        ToolStep(call_id="c1", tool="look", state=LedgerState.STARTED),
        ToolStep(call_id="c1", tool="look", state=LedgerState.SUCCEEDED, result_json=json.dumps(_ODD)),
        ModeChange(call_id="c2", old_mode="default", new_mode="careful"),
        HandedOff(etag="e", expire_time=_TIME, calls=(pending,)),
        Reentered(
            etag="e",
            digest="d",
            call_ids=("c1",),
            results=(ToolResult(call_id="c1", result_json="[]", is_error=True),),
            decisions=(Decision(call_id="c3", is_approved=False, reason=_ODD),),
        ),
        _reply(1, ()),
        result,
    )
    failed = TurnStarted(session_id="s", mode="careful", model="model", message="", session_revision=3)
    return (*turn, failed, result)


def _reply(index: int, calls: tuple[ToolCall, ...]) -> ModelCallStep:
    return ModelCallStep(
        index=index,
        goal=ContextGoal.PLANNING,
        mode="default",
        model="model",
        usage=Usage(input_tokens=1, output_tokens=1, model_calls=1),
        elapsed_s=0.1,
        text=_ODD,
        calls=calls,
    )
