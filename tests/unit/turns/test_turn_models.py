"""Turns with several models (seed 003, section 8; acceptance S7 and S8), and with models that have no native tools."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.model import ContextExhaustedError, ModelProtocolError
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.llm.counting import ByteCounter
from reasond_server.llm.counting.requests import count_extras
from reasond_server.llm.model import Role
from reasond_server.testing import Reply, ScriptedModel
from reasond_server.turns.policy import Mode, TurnPolicy
from reasond_server.types import Budget, FinishReason, Usage
from reasond_server.types.turns import LedgerState, ModelCallStep, TurnStart
from tests.turning import Note, NoteArguments, TurnServer, WallClock, ask_tools, client_tool, settle

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from reasond_server.llm.model import ChatRequest
    from reasond_server.tools.tool import ToolContext

MODES = {
    "default": Mode(welcome="Plan first."),
    "write": Mode(instructions="Write well.", backend="writer", tools=("pen",), welcome="You have a pen."),
}
SWITCH = ("mode_state_change", {"mode": "write"})


class Rows(Note):
    """A tool with a large result."""

    async def call(self, arguments: NoteArguments, context: ToolContext) -> object:
        await super().call(arguments, context)
        return [{"id": number, "text": f"{number * 7919 % 997} is the word"} for number in range(300)]


def serve(replies: Sequence[str | Reply], **options: Any) -> TurnServer:
    time = WallClock()
    store = MemoryExecutionStore(max_bytes=10**8, now=time.now, monotonic=time.monotonic)
    return TurnServer(store, replies, time=time, **options)


def writer(replies: Sequence[str | Reply], **options: Any) -> ScriptedModel:
    values = {"name": "writer-model", "has_native_tools": True, "context_window": 65_536, "counter": ByteCounter()}
    return ScriptedModel(replies, **{**values, **options})


def require_pairs(request: ChatRequest) -> list[str]:
    """Return the ids of the calls in a prompt; each has its result, at once after it and once."""
    ids: list[str] = []
    open_ids: list[str] = []
    for message in request.messages:
        if message.role is Role.TOOL:
            assert message.tool_call_id == open_ids.pop(0)
            continue
        assert not open_ids
        open_ids = [call.call_id for call in message.tool_calls]
        ids += open_ids
    assert not open_ids
    assert len(set(ids)) == len(ids)
    return ids


async def test_a_mode_with_a_backend_calls_its_model_from_the_next_call_on_with_its_tools_and_welcome_once() -> None:
    other = writer([ask_tools(("pen", {"text": "p"})), "Written."])
    # The call of the old mode's tool in the same reply as the switch is still made.
    note = Note()
    server = serve(
        [ask_tools(SWITCH, ("note", {"text": "n"}))],
        tools=[note, Note(name="pen")],
        policy=TurnPolicy(modes=MODES),
        backends={"writer": other},
    )

    view = await server.run(TurnStart(session_id="s1", message="Write"))

    assert len(note.calls) == 1
    assert view.result is not None
    assert view.result.answer == "Written."
    assert {one.state for one in view.turn.ledger} == {LedgerState.SUCCEEDED}
    second, third = other.requests
    assert [tool.name for tool in second.tools] == ["mode_state_change", "pen"]
    assert "Write well." in second.messages[0].content
    assert "You have a pen." in second.messages[-1].content
    assert not any("You have a pen." in message.content for message in third.messages)
    steps = [event for event in await server.log(view.turn.turn_id) if isinstance(event, ModelCallStep)]
    assert [step.model for step in steps] == [server.model.name, "writer-model", "writer-model"]
    assert view.result.usage.model_calls == 3
    assert sum(step.usage.total_tokens for step in steps) == view.result.usage.total_tokens


async def test_ids_of_another_provider_become_ids_that_every_provider_takes_and_pairs_stay_together() -> None:
    long_id = "toolu_" + "x" * 60
    first = ask_tools(SWITCH)
    calls = tuple(
        type(call)(call_id=long_id, name=call.name, arguments_json=call.arguments_json) for call in first.tool_calls
    )
    back = ask_tools(("mode_state_change", {"mode": "default"}))
    other = writer([back])
    server = serve(
        [Reply(tool_calls=calls), "Done."],
        tools=[Note(), Note(name="pen")],
        policy=TurnPolicy(modes=MODES),
        backends={"writer": other},
    )

    await server.run(TurnStart(message="Go there and back"))

    (in_other,) = require_pairs(other.requests[0])
    assert len(in_other) == 9
    assert in_other.isalnum()
    own, others = require_pairs(server.model.requests[1])
    assert own == long_id
    assert len(others) == 9


async def test_the_window_and_the_counter_are_those_of_the_model_that_is_called() -> None:
    other = writer(["Short.", "The final answer."], context_window=5_120)
    server = serve(
        [*[ask_tools(("rows", {}))] * 4, ask_tools(SWITCH)],
        tools=[Rows(name="rows"), Note(name="pen")],
        policy=TurnPolicy(modes=MODES, max_tokens=512),
        backends={"writer": other},
    )

    await server.run(TurnStart(message="Fill the window, then switch"))

    assert len(other.requests) == 2
    for request in other.requests:
        require_pairs(request)
        assert request.max_tokens == 512
        # A byte is a token for this model.
        assert ByteCounter().count_prompt(request.messages) + request.max_tokens <= 5_120
    assert ByteCounter().count_prompt(server.model.requests[-1].messages) > 5_120


async def test_the_budget_of_the_turn_bounds_the_calls_of_all_its_models_together() -> None:
    other = writer(["Never said."])
    server = serve(
        [replace(ask_tools(SWITCH), usage=Usage(input_tokens=9_000, output_tokens=10, model_calls=1))],
        tools=[Note(), Note(name="pen")],
        policy=TurnPolicy(modes=MODES),
        backends={"writer": other},
    )

    view = await server.run(TurnStart(message="Go", budget=Budget(max_total_tokens=10_000)))

    assert not other.requests
    assert view.result is not None
    assert view.result.finish_reason is FinishReason.BUDGET_EXHAUSTED
    assert view.result.usage.total_tokens == 9_010


def act(name: str, arguments: dict[str, Any], text: str = "I look. ") -> str:
    return f'{text}<action>{{"tool": "{name}", "arguments": {json.dumps(arguments)}}}</action>'


async def test_a_model_without_native_tools_calls_tools_of_server_and_client_in_its_text() -> None:
    note = Note()
    replies = [act("note", {"text": "n"}), act("open_file", {"path": "a"}, ""), "All is read."]
    server = serve(replies, tools=[note], has_native_tools=False)

    view = await server.run(TurnStart(message="Note and read", client_tools=[client_tool()]))
    assert view.turn.handoff is not None
    view = await server.run(settle(view.turn.turn_id, view.turn.handoff, lambda _: "hello"))

    assert [text for text, _ in note.calls] == ["n"]
    assert view.result is not None
    assert view.result.answer == "All is read."
    first, second, third = server.model.requests
    assert not first.tools
    assert "- note: Notes a text. Arguments:" in first.messages[0].content
    assert "- open_file: Opens a file." in first.messages[0].content
    assert first.stop == ("</action>",)
    assert second.messages[:2] == first.messages[:2]
    assert [message.role for message in third.messages[2:]] == [Role.ASSISTANT, Role.USER] * 2
    assert third.messages[2].content.startswith('I look.\n<action>{"tool": "note"')
    assert '"noted": "n"' in third.messages[3].content or '"noted":"n"' in third.messages[3].content
    assert "hello" in third.messages[5].content
    steps = [event for event in await server.log(view.turn.turn_id) if isinstance(event, ModelCallStep)]
    assert [step.text for step in steps] == ["I look.", "", "All is read."]


async def test_a_reply_that_breaks_the_form_of_calls_is_asked_for_again() -> None:
    broken = ["<action>note it</action>", "I look.\nObservation: noted"]
    server = serve([*broken, act("note", {"text": "n"}), "Done."], tools=[Note()], has_native_tools=False)

    view = await server.run(TurnStart(message="Note"))

    assert view.result is not None
    assert view.result.answer == "Done."
    assert view.result.usage.model_calls == 4
    assert "The action is no valid JSON" in server.model.requests[1].messages[-1].content
    assert "You wrote the result of a tool yourself" in server.model.requests[2].messages[-1].content
    assert "was not read" not in str(server.model.requests[3].messages)
    steps = [event for event in await server.log(view.turn.turn_id) if isinstance(event, ModelCallStep)]
    assert [step.usage.model_calls for step in steps] == [3, 1]


async def test_a_model_that_never_keeps_the_form_ends_the_turn_with_an_error() -> None:
    server = serve(["<action>note it</action>"] * 3, tools=[Note()], has_native_tools=False)

    with pytest.raises(ModelProtocolError, match=r"3 times: .*no valid JSON"):
        await server.run(TurnStart(message="Note"))


async def test_the_last_call_of_a_model_without_native_tools_answers_without_its_action() -> None:
    replies = [act("note", {"text": "n"}), act("note", {"text": "m"}, "Noted once. ")]
    server = serve(replies, tools=[Note()], has_native_tools=False, policy=TurnPolicy(max_tool_calls=1))

    view = await server.run(TurnStart(message="Note"))

    assert view.result is not None
    assert view.result.answer == "Noted once."
    assert len(view.turn.ledger) == 1


async def test_a_turn_may_switch_to_a_model_without_native_tools_and_back() -> None:
    other = writer([act("mode_state_change", {"mode": "default"}, "")], has_native_tools=False)
    server = serve(
        [ask_tools(SWITCH), "Done."],
        tools=[Note(), Note(name="pen")],
        policy=TurnPolicy(modes=MODES),
        backends={"writer": other},
    )

    view = await server.run(TurnStart(message="Go there and back"))

    assert view.turn.mode == "default"
    (request,) = other.requests
    assert not request.tools
    assert all(not message.tool_calls for message in request.messages)
    assert '<action>{"tool": "mode_state_change"' in request.messages[2].content
    assert len(require_pairs(server.model.requests[1])) == 2


@pytest.mark.parametrize("has_native_tools", [True, False])
async def test_tools_that_do_not_fit_the_window_are_refused_before_the_model_is_called(has_native_tools: bool) -> None:  # noqa: FBT001 - a case
    tools = [replace(client_tool(f"open_{number}"), description="Opens it. " * 50) for number in range(40)]
    server = serve([], has_native_tools=has_native_tools, context_window=4_096)

    with pytest.raises(ContextExhaustedError, match="the 40 tools that are offered take") as caught:
        await server.run(TurnStart(message="Go", client_tools=tools))

    assert int(caught.value.metadata["tools_tokens"]) > 4_096
    assert int(caught.value.metadata["budget_tokens"]) >= 0


@pytest.mark.parametrize("has_native_tools", [True, False])
async def test_tools_that_fit_leave_the_reply_its_room(has_native_tools: bool) -> None:  # noqa: FBT001 - a case
    tools = [client_tool(f"open_{number}") for number in range(20)]
    server = serve(["Done."], has_native_tools=has_native_tools, context_window=8_192)

    await server.run(TurnStart(message="Go", client_tools=tools))

    (request,) = server.model.requests
    used = server.model.counter.count_prompt(request.messages) + count_extras(request, server.model.counter)
    assert used + request.max_tokens <= 8_192
