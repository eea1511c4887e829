"""Built-in providers pass the conformance checks, and each check fails for a provider that violates it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.testing import ConformanceError, ContextProviderConformance
from reasond_server.turns.policy import TurnPolicy
from reasond_server.turns.providers import build_providers
from reasond_server.types.turns import ContextGoal, ContextScope, ModelCallStep

if TYPE_CHECKING:
    from reasond_server.types import Event, Json

CHECKS = [check for check in ContextProviderConformance.CHECKS if check != "describes_itself"]


class Replies:
    """A provider that conforms: it counts replies."""

    name = "replies"
    scope: Any = ContextScope.SESSION
    is_instruction = False

    def populate(self, event: Event, state: Json) -> Json:
        return {"count": state.get("count", 0) + 1} if isinstance(event, ModelCallStep) else state

    def render(self, state: Json, goal: ContextGoal) -> Any:  # noqa: ARG002 - the same for each goal
        return f"{state.get('count', 0)} replies"


class Unnamed(Replies):
    name = "Open Points"


class Unscoped(Replies):
    scope = "turn"


class Fussy(Replies):
    def populate(self, event: Event, state: Json) -> Json:
        if not isinstance(event, ModelCallStep):
            raise TypeError("what is this?")
        return state


class Changing(Replies):
    def populate(self, event: Event, state: Json) -> Json:
        if isinstance(event, ModelCallStep):
            state["count"] = state.get("count", 0) + 1  # type: ignore[index]  # the fault under test
        return state


class Unstorable(Replies):
    def populate(self, event: Event, state: Json) -> Json:
        return {"events": (*state.get("events", ()), type(event).__name__)}


class Keeping(Replies):
    def __init__(self) -> None:
        self.count = 0

    def populate(self, event: Event, state: Json) -> Json:
        self.count += isinstance(event, ModelCallStep)
        return {"count": self.count, "last": state.get("count", 0)}


class Wordless(Replies):
    def render(self, state: Json, goal: ContextGoal) -> Any:
        return None if goal is ContextGoal.SYNTHESIS else super().render(state, goal)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("place", range(4))
async def test_the_built_in_providers_conform(check: str, place: int) -> None:
    assert not await ContextProviderConformance(build_providers(TurnPolicy())[place]).check(check)


async def test_a_provider_that_conforms_passes_all_checks() -> None:
    assert await ContextProviderConformance(Replies()).verify() == {}


@pytest.mark.parametrize(
    ("provider", "check", "complaint"),
    [
        (Unnamed(), "describes_itself", "does not match"),
        (Unscoped(), "describes_itself", "no context provider"),
        (build_providers(TurnPolicy())[0], "describes_itself", "built-in"),
        (Fussy(), "takes_every_event", "TypeError"),
        (Changing(), "keeps_states_as_they_are", "has changed the state"),
        (Unstorable(), "returns_json", "stored as JSON"),
        (Keeping(), "repeats_itself", "two different states"),
        (Keeping(), "goes_on_from_a_stored_state", "another state came out"),
        (Keeping(), "keeps_sessions_apart", "keep nothing in the instance"),
        (Wordless(), "writes_text_for_each_goal", "NoneType instead of a text"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
async def test_a_provider_that_breaks_the_contract_is_told_so(provider: Any, check: str, complaint: str) -> None:
    with pytest.raises(ConformanceError, match=complaint):
        await ContextProviderConformance(provider).check(check)


async def test_an_unknown_check_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no check"):
        await ContextProviderConformance(Replies()).check("is_nice")
