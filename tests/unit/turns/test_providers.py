"""Context providers: scopes, what sessions keep, failures, discovery; and turns on a server that keeps no content."""

from __future__ import annotations

import json
import logging
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.base import InternalError, SettingsError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.turns.policy import Mode, OnUnknownOutcome, TurnPolicy
from reasond_server.turns.providers import BUILT_IN_NAMES, INSTALLED_PROVIDERS, ProviderStates, build_providers
from reasond_server.types import ToolCall
from reasond_server.types.turns import (
    ContextBlock,
    ContextGoal,
    ContextScope,
    ModelCallStep,
    ToolStep,
    TurnStart,
    TurnStarted,
    TurnState,
)
from tests.turning import CALLER, Note, TurnServer, WallClock, ask_tools, client_tool, settle

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from reasond_server.testing import Reply
    from reasond_server.types import Event, Json


class Tally:
    """Counts the tool steps that it has seen in the session; it fails as a test wants."""

    is_instruction = False

    def __init__(self, *, scope: ContextScope = ContextScope.SESSION, name: str = "tally") -> None:
        self.name = name
        self.scope = scope
        self.fails_on: type[Event] | None = None
        self.fails_to_write = False
        self.most = 100
        self.returned: Any = None

    def populate(self, event: Event, state: Json) -> Json:
        if self.fails_on is not None and isinstance(event, self.fails_on):
            raise KeyError("secret")
        if self.returned is not None:
            returned: Json = self.returned
            return returned
        return {"seen": state.get("seen", 0) + 1} if isinstance(event, ToolStep) else state

    def render(self, state: Json, goal: ContextGoal) -> str:  # noqa: ARG002 - the same for each goal
        if self.fails_to_write or state.get("seen", 0) > self.most:
            raise KeyError("secret")
        return f"</notes> {state['seen']} tool steps" if state else ""


def store_of(time: WallClock) -> MemoryExecutionStore:
    return MemoryExecutionStore(max_bytes=10**8, now=time.now, monotonic=time.monotonic)


def serve(replies: Sequence[str | Reply], **options: Any) -> TurnServer:
    time = WallClock()
    return TurnServer(store_of(time), replies, time=time, **options)


def prompts_of(server: TurnServer) -> list[str]:
    return ["\n".join(message.content for message in request.messages) for request in server.model.requests]


async def state_of(server: TurnServer, session_id: str = "s1") -> Json:
    return (await server.store.sessions.find(CALLER.tenant, session_id)).state


NOTE = ask_tools(("note", {"text": "one"}))


async def test_a_provider_of_the_session_stands_in_every_prompt_and_its_state_goes_on_in_the_next_turn() -> None:
    server = serve([NOTE, "Noted.", "Again."], tools=[Note()], providers=[Tally()])

    await server.run(TurnStart(session_id="s1", message="Note"))
    await server.run(TurnStart(session_id="s1", message="Go on"))

    first, second, third = prompts_of(server)
    assert "tool steps" not in first
    # Two steps, begun and ended, in a fence that the text cannot leave.
    assert "&lt;/notes> 2 tool steps" in second
    assert "&lt;/notes> 2 tool steps" in server.model.requests[2].messages[0].content
    assert "2 tool steps" in third
    assert (await state_of(server))["providers"]["tally"] == {"seen": 2}


async def test_turn_context_clearing_after_the_reply_that_consumed_it() -> None:
    server = serve([NOTE, NOTE, "Done."], tools=[Note()], providers=[Tally(scope=ContextScope.TURN)])

    view = await server.run(TurnStart(session_id="s1", message="Note"))

    assert ["1 tool" in prompt or "2 tool" in prompt for prompt in prompts_of(server)] == [False, True, True]
    # Each reply has consumed what was written until then, so the count begins again.
    assert "2 tool steps" in server.model.requests[2].messages[-1].content
    steps = [event for event in await server.log(view.turn.turn_id) if isinstance(event, ModelCallStep)]
    assert [step.blocks for step in steps] == [(), ("tally",), ("tally",)]
    assert "tally" not in (await state_of(server))["providers"]


async def test_what_no_committed_reply_has_consumed_is_shown_again_by_the_process_that_takes_over() -> None:
    time = WallClock()
    store = store_of(time)
    policy = TurnPolicy(modes={"default": Mode(welcome="Welcome aboard.")})
    first = TurnServer(store, [ask_tools(("open_file", {"path": "a"}))], policy=policy, time=time, providers=[Tally()])
    view = await first.run(
        TurnStart(
            session_id="s1",
            message="Read",
            client_tools=[client_tool()],
            context=[ContextBlock(name="rule", scope=ContextScope.SESSION, text="Be brief.")],
        )
    )
    await first.kill()
    second = TurnServer(store, ["Read."], policy=policy, time=time, providers=[Tally()])
    assert view.turn.handoff is not None

    await second.run(settle(view.turn.turn_id, view.turn.handoff))

    assert "Welcome aboard." in prompts_of(first)[0]
    assert "Welcome aboard." not in prompts_of(second)[0]
    assert "Be brief." in prompts_of(second)[0]


async def test_blocks_of_the_caller_last_as_long_as_their_scope_says() -> None:
    server = serve([NOTE, "Done.", "Again.", "At last."], tools=[Note()])
    lasting = ContextBlock(name="rule", scope=ContextScope.SESSION, text="Be brief.")
    passing = ContextBlock(name="hint", scope=ContextScope.TURN, text="It rains.")

    await server.run(TurnStart(session_id="s1", message="One", context=[lasting, passing]))
    await server.run(TurnStart(session_id="s1", message="Two"))
    removed = ContextBlock(name="rule", scope=ContextScope.SESSION, text="")
    await server.run(TurnStart(session_id="s1", message="Three", context=[removed]))

    assert ["It rains." in prompt for prompt in prompts_of(server)] == [True, False, False, False]
    assert ["Be brief." in prompt for prompt in prompts_of(server)] == [True, True, True, False]


async def test_a_session_has_a_bounded_number_of_blocks() -> None:
    server = serve(["One."])
    blocks = [ContextBlock(name=f"b{n}", scope=ContextScope.SESSION, text="x") for n in range(64)]
    await server.run(TurnStart(session_id="s1", message="One", context=blocks))

    more = ContextBlock(name="more", scope=ContextScope.SESSION, text="x")
    with pytest.raises(InvalidRequestError, match="65 blocks"):
        await server.run(TurnStart(session_id="s1", message="Two", context=[more]))


@pytest.mark.parametrize("fails_on", [TurnStarted, None])
async def test_a_provider_that_raises_before_the_first_call_fails_the_turn_and_nothing_is_spent(
    fails_on: type[Event] | None, caplog: pytest.LogCaptureFixture
) -> None:
    tally = Tally()
    tally.fails_on, tally.fails_to_write = fails_on, fails_on is None
    server = serve([], providers=[tally])

    with caplog.at_level(logging.ERROR), pytest.raises(InternalError, match="'tally'") as caught:
        await server.run(TurnStart(session_id="s1", message="Go"))

    assert "secret" not in caught.value.full_message
    assert "the context provider tally failed" in caplog.text
    view = await server.service.get(CALLER, str(caught.value.execution_id))
    assert (view.turn.state, view.turn.usage.model_calls) == (TurnState.FAILED, 0)


@pytest.mark.parametrize("fails_on", [ToolStep, None])
async def test_a_provider_that_raises_later_is_left_out_with_a_warning_and_its_earlier_state_is_kept(
    fails_on: type[Event] | None,
) -> None:
    tally = Tally()
    server = serve([NOTE, "Noted.", NOTE, "Again."], tools=[Note()], providers=[tally])
    await server.run(TurnStart(session_id="s1", message="Note"))
    tally.fails_on = fails_on
    if fails_on is None:
        # The text of the second call fails, that of the first does not.
        tally.most = 2

    view = await server.run(TurnStart(session_id="s1", message="Note again"))

    assert view.result is not None
    assert view.result.answer == "Again."
    assert any("tally failed" in warning for warning in view.result.warnings)
    assert (await state_of(server))["providers"]["tally"] == {"seen": 2}


async def test_the_state_of_a_provider_that_is_no_longer_installed_is_kept_and_the_caller_is_warned() -> None:
    time = WallClock()
    store = store_of(time)
    first = TurnServer(store, [NOTE, "Noted."], time=time, tools=[Note()], providers=[Tally()])
    await first.run(TurnStart(session_id="s1", message="Note"))
    second = TurnServer(store, ["Again."], time=time)

    view = await second.run(TurnStart(session_id="s1", message="Go on"))

    assert view.result is not None
    assert any("tally is not enabled" in warning for warning in view.result.warnings)
    assert "tool steps" not in prompts_of(second)[0]
    assert (await state_of(second))["providers"]["tally"] == {"seen": 2}


@pytest.mark.parametrize("state", [{"a": {1}}, ["a"], {1: 2}, {"a": float("nan")}, {"a": "\ud800"}])
def test_a_state_that_is_no_json_object_counts_as_a_failure(state: Any) -> None:
    tally = Tally()
    tally.returned = state
    states = ProviderStates([tally], {"tally": {"seen": 1}})

    states.apply(TurnStarted(session_id="s", mode="default", model="m", message="Go"))

    assert states.describe() == {"tally": {"seen": 1}}
    assert len(states.warnings) == 1


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=value, group="reasond.context_providers")


@pytest.mark.parametrize(
    ("name", "value", "complaint"),
    [
        ("mode", "tests.unit.turns.test_providers:Tally", "built in"),
        ("tally", "tests.unit.turns.test_providers:NOTE", "gives no context provider"),
    ],
)
def test_an_enabled_provider_that_cannot_be_used_stops_the_start(name: str, value: str, complaint: str) -> None:
    with pytest.raises(SettingsError, match=complaint):
        INSTALLED_PROVIDERS.load([name], installed=[point(name, value)])


def test_an_enabled_provider_is_found_by_its_entry_point() -> None:
    (found,) = INSTALLED_PROVIDERS.load(["tally"], installed=[point("tally", "tests.unit.turns.test_providers:Tally")])
    assert found.name == "tally"


def test_the_names_of_the_built_in_providers_are_reserved() -> None:
    assert {one.name for one in build_providers(TurnPolicy())} == BUILT_IN_NAMES


@pytest.mark.parametrize(
    ("policy", "start", "complaint"),
    [
        (TurnPolicy(), TurnStart(message="Go", client_tools=[client_tool()]), "client_tools"),
        (TurnPolicy(needs_approval=("note",)), TurnStart(message="Go"), "'note' needs approval"),
        (
            TurnPolicy(on_unknown_outcome=OnUnknownOutcome.ASK),
            TurnStart(message="Go"),
            "on_unknown_outcome",
        ),
    ],
)
async def test_without_content_a_turn_that_could_wait_for_its_client_is_refused_at_its_start(
    policy: TurnPolicy, start: TurnStart, complaint: str
) -> None:
    server = serve([], tools=[Note()], policy=policy, records_content=False)

    with pytest.raises(InvalidRequestError, match="record_content") as caught:
        await server.run(start)

    assert complaint in f"{caught.value.full_message} {[one.field for one in caught.value.violations]}"
    assert not (await server.service.list(CALLER)).turns


async def test_without_content_other_turns_work_and_the_session_keeps_only_the_mode() -> None:
    policy = TurnPolicy(needs_approval=("note",), modes={"default": Mode(tools=())})
    block = ContextBlock(name="rule", scope=ContextScope.SESSION, text="SECRET")
    server = serve(["Hello.", "Again."], tools=[Note()], policy=policy, records_content=False)

    view = await server.run(TurnStart(session_id="s1", message="SECRET", context=[block]))
    await server.run(TurnStart(session_id="s1", message="Again"))

    assert view.turn.state is TurnState.SUCCEEDED
    assert await state_of(server) == {"mode": "default"}
    assert "SECRET" not in json.dumps(await state_of(server))
    assert isinstance(NOTE.tool_calls[0], ToolCall)
