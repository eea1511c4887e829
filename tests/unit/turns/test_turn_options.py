from __future__ import annotations

import json
from typing import Any

import pytest

from reasond_server.errors.model import AnswerInvalidError, RequestRefusedError
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.llm.model import Role
from reasond_server.testing import Reply
from reasond_server.types import FinishReason, HistoryMessage, Speaker, ToolCall, ToolResult
from reasond_server.types.turns import TurnReentry, TurnStart
from tests.turning import CALLER, Note, TurnServer, WallClock, ask_tools, client_tool

SCHEMA = json.dumps({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]})


def serve(*replies: str | Reply, **options: Any) -> TurnServer:
    time = WallClock()
    store = MemoryExecutionStore(max_bytes=10**8, now=time.now, monotonic=time.monotonic)
    return TurnServer(store, replies, time=time, **options)


@pytest.mark.parametrize("choice", ["required", "open_file"])
async def test_a_forced_call_is_asked_for_in_the_first_model_call_alone(choice: str) -> None:
    server = serve(ask_tools(("open_file", {"path": "a"})), "Done.")

    view = await server.run(TurnStart(message="Go", client_tools=[client_tool()], tool_choice=choice))
    assert view.turn.handoff is not None
    pending = view.turn.handoff.calls[0].call
    ended = await server.service.run(
        CALLER,
        TurnReentry(
            turn_id=view.turn.turn_id,
            etag=view.turn.handoff.etag,
            results=[ToolResult(call_id=pending.call_id, result_json='"text"')],
        ),
    )

    assert ended.result is not None
    assert [request.tool_choice for request in server.model.requests] == [choice, "auto"]
    assert (
        f"call of {'a tool' if choice == 'required' else choice} now" in server.model.requests[0].messages[-1].content
    )


async def test_calls_are_handed_off_one_by_one_where_the_client_takes_one_at_a_time() -> None:
    server = serve(ask_tools(("open_file", {"path": "a"}), ("open_file", {"path": "b"})), "Done.")
    start = TurnStart(message="Go", client_tools=[client_tool()], parallel_tool_calls=False)

    view, asked = await server.run(start), []
    while view.turn.handoff is not None:
        (pending,) = view.turn.handoff.calls
        asked.append(json.loads(pending.call.arguments_json)["path"])
        result = ToolResult(call_id=pending.call.call_id, result_json='"text"')
        reentry = TurnReentry(turn_id=view.turn.turn_id, etag=view.turn.handoff.etag, results=[result])
        view = await server.service.run(CALLER, reentry)

    assert asked == ["a", "b"]
    assert view.result is not None
    assert len(server.model.requests) == 2


async def test_an_answer_that_breaks_its_schema_is_written_again_and_kept_as_json() -> None:
    server = serve("It is 4.", '{"n": 4}')

    view = await server.run(TurnStart(message="Go", client_tools=[client_tool()], answer_schema_json=SCHEMA))

    assert view.result is not None
    assert view.result.answer == '{"n":4}'
    assert '"integer"' in server.model.requests[0].messages[0].content
    assert "it is not JSON" in server.model.requests[1].messages[-1].content


async def test_only_the_call_that_writes_the_answer_again_is_held_to_its_schema_and_offers_no_tools() -> None:
    server = serve("It is 4.", '{"n": 4}')
    server.model.enforces_schema = True  # type: ignore[attr-defined] # an attribute that models may have

    view = await server.run(TurnStart(message="Go", client_tools=[client_tool()], answer_schema_json=SCHEMA))

    assert view.result is not None
    assert view.result.answer == '{"n":4}'
    free, formatting = server.model.requests
    assert (free.json_schema, bool(free.tools)) == (None, True)
    assert (formatting.json_schema, formatting.tools) == (json.loads(SCHEMA), ())


async def test_a_server_that_refuses_to_enforce_the_schema_of_a_turn_is_asked_without_it() -> None:
    server = serve("It is 4.", Reply(error=RequestRefusedError("no")), '{"n": 4}')
    server.model.enforces_schema = True  # type: ignore[attr-defined] # an attribute that models may have

    view = await server.run(TurnStart(message="Go", client_tools=[client_tool()], answer_schema_json=SCHEMA))

    assert view.result is not None
    assert view.result.answer == '{"n":4}'
    assert [each.json_schema is None for each in server.model.requests] == [True, False, True]


async def test_an_answer_that_never_satisfies_its_schema_fails_after_two_more_calls() -> None:
    server = serve("1", "2", "3")

    with pytest.raises(AnswerInvalidError):
        await server.run(TurnStart(message="Go", client_tools=[client_tool()], answer_schema_json=SCHEMA))

    assert len(server.model.requests) == 3


async def test_an_answer_ends_before_its_stop_string_and_sampling_reaches_the_model() -> None:
    server = serve("one END two")

    view = await server.run(TurnStart(message="Go", stop=("END",), temperature=0.1, seed=7))

    assert view.result is not None
    assert (view.result.answer, view.result.finish_reason) == ("one", FinishReason.ANSWERED)
    assert [(each.temperature, each.seed) for each in server.model.requests] == [(0.1, 7)]


async def test_tools_of_the_server_are_left_out_and_their_names_are_free_where_the_client_wants_only_its_own() -> None:
    server = serve(ask_tools(("note", {"path": "a"})), tools=[Note()])

    view = await server.run(TurnStart(message="Go", client_tools=[client_tool("note")], uses_server_tools=False))

    assert view.turn.handoff is not None
    assert [each.call.name for each in view.turn.handoff.calls] == ["note"]
    assert [tool.name for tool in server.model.requests[0].tools] == ["note"]


async def test_reading_results_in_parts_joins_the_tools_of_a_client_once_there_are_large_ones() -> None:
    server = serve(ask_tools(("open_file", {"path": "a"})), "Done.")
    view = await server.run(TurnStart(message="Go", client_tools=[client_tool()], uses_server_tools=False))
    assert view.turn.handoff is not None
    result = ToolResult(call_id=view.turn.handoff.calls[0].call.call_id, result_json=json.dumps("x" * 5_000))
    reentry = TurnReentry(turn_id=view.turn.turn_id, etag=view.turn.handoff.etag, results=[result])

    await server.service.run(CALLER, reentry)

    assert [[tool.name for tool in request.tools] for request in server.model.requests] == [
        ["open_file"],
        ["open_file", "read_tool_result"],
    ]


async def test_calls_and_results_of_the_history_stand_as_calls_and_results_in_the_prompt() -> None:
    server = serve("Done.")
    history = (
        HistoryMessage(role=Speaker.USER, text="What is in a?"),
        HistoryMessage(
            role=Speaker.ASSISTANT, tool_calls=(ToolCall(call_id="x", name="open_file", arguments_json="{}"),)
        ),
        HistoryMessage(role=Speaker.TOOL, tool_results=(ToolResult(call_id="x", result_json='"seven"'),)),
        HistoryMessage(role=Speaker.ASSISTANT, text="Seven."),
    )

    await server.run(TurnStart(message="Go", history=history))

    _, user, caller, result, said, question = server.model.requests[0].messages
    assert [each.role for each in (user, caller, result, said, question)] == [
        Role.USER,
        Role.ASSISTANT,
        Role.TOOL,
        Role.ASSISTANT,
        Role.USER,
    ]
    assert caller.tool_calls[0].name == "open_file"
    assert "seven" in result.content
