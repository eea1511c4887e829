"""Votes on the calls of a turn: who wins, what is counted, and what a later life does not ask for again."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.testing import Reply
from reasond_server.turns.policy import TurnPolicy
from reasond_server.types import Budget, FinishReason, ToolCall
from reasond_server.types.turns import ModelCallStep, TurnDelta, TurnStart, TurnState
from tests.turning import CALLER, Note, ask_tools, client_tool, serve_in_memory, settle
from tests.unit.turns.recovering import Servers, end_of

if TYPE_CHECKING:
    from tests.turning import TurnServer

VOTING = TurnPolicy(samples=5)


def note(text: str) -> Reply:
    return ask_tools(("note", {"text": text}), text=f"I note {text}.")


async def steps_of(server: TurnServer, turn_id: str) -> list[ModelCallStep]:
    return [event for event in await server.log(turn_id) if isinstance(event, ModelCallStep)]


async def test_the_calls_that_most_replies_make_are_taken_and_every_reply_is_counted() -> None:
    tool = Note()
    replies: list[str | Reply] = [note("b"), note("a"), "Done.", note("a"), note("a")]
    server = serve_in_memory([*replies, "Done.", "Done.", "All done."], tools=[tool], policy=VOTING)
    view = await server.run(TurnStart(message="Go"))
    assert view.result is not None
    assert [text for text, _ in tool.calls] == ["a"]
    first, second = await steps_of(server, view.turn.turn_id)
    assert (first.text, first.usage.model_calls) == ("I note a.", 5)
    assert (view.result.answer, second.usage.model_calls) == ("Done.", 3)
    assert view.result.usage == first.usage + second.usage
    assert view.result.usage.model_calls == len(server.model.requests) == 8


async def test_a_vote_ends_when_it_is_decided_and_equal_arguments_are_one_call_however_they_are_written() -> None:
    written = ['{"path":"a", "n": 1.0}', '{ "n": 1, "path": "a" }']
    replies = [Reply(tool_calls=[ToolCall(call_id="x", name="look", arguments_json=text)]) for text in written]
    server = serve_in_memory([*replies], policy=TurnPolicy(samples=3))
    view = await server.run(TurnStart(message="Go", client_tools=[client_tool("look")]))
    assert view.turn.state is TurnState.AWAITING_CLIENT
    assert len(server.model.requests) == 2


@pytest.mark.parametrize("start", [{"temperature": 0.0}, {"seed": 7}, {"tool_choice": "none"}])
async def test_where_all_replies_would_be_the_same_or_none_may_call_there_is_one(start: dict[str, Any]) -> None:
    server = serve_in_memory(["Done."], tools=[Note()], policy=VOTING)
    view = await server.run(TurnStart(message="Go", **start))
    assert view.result is not None
    assert view.result.usage.model_calls == 1


async def test_a_budget_that_ends_within_a_vote_leaves_what_there_is() -> None:
    tool = Note()
    server = serve_in_memory([note("a"), note("b")], tools=[tool], policy=VOTING)
    view = await server.run(TurnStart(message="Go", budget=Budget(max_model_calls=2)))
    assert [text for text, _ in tool.calls] == ["a"]
    assert view.result is not None
    assert (view.result.finish_reason, view.result.usage.model_calls) == (FinishReason.BUDGET_EXHAUSTED, 2)


async def test_a_client_is_handed_the_call_that_won_and_its_text_once() -> None:
    replies = [ask_tools(("open_file", {"path": path}), text=f"I open {path}.") for path in ("x", "y", "y")]
    server = serve_in_memory([*replies, "Read.", "Read."], policy=TurnPolicy(samples=3))
    events = await server.events(TurnStart(message="Go", client_tools=[client_tool()]), include_deltas=True)
    told = "".join(each.event.text for each in events if isinstance(each.event, TurnDelta))
    assert told == "I open y."
    view = await server.service.get(CALLER, events[0].execution_id)
    assert view.turn.handoff is not None
    (pending,) = view.turn.handoff.calls
    assert json.loads(pending.call.arguments_json) == {"path": "y"}
    done = await server.run(settle(view.turn.turn_id, view.turn.handoff))
    assert done.result is not None
    assert done.result.answer == "Read."


async def test_replies_that_came_before_a_process_died_are_not_paid_again(servers: Servers) -> None:
    never = Reply(text="never", hold=asyncio.Event())
    first = servers.server(note("a"), note("b"), never, tools=[Note()], policy=VOTING)
    running = asyncio.create_task(first.run(TurnStart(message="Go")))
    await first.wait_for_calls(3)
    (turn_id,) = first.runner.runs.by_id
    await first.kill()
    running.cancel()
    await asyncio.wait([running])

    tool = Note()
    other = servers.server(note("c"), note("b"), note("b"), "Done.", "Done.", "Done.", tools=[tool], policy=VOTING)
    await other.round()
    result = await end_of(other, turn_id)
    assert (result.answer, [text for text, _ in tool.calls]) == ("Done.", ["b"])
    assert len(other.model.requests) == 6
    step, *_ = await steps_of(other, turn_id)
    assert step.usage.model_calls == 5
    # The lost call may be billed, and counts as well; it is in no step.
    assert result.usage.model_calls >= 2 + 6


@pytest.mark.parametrize("records_content", [True, False])
async def test_replies_are_recorded_where_content_is(*, records_content: bool) -> None:
    replies = [note("SECRET"), note("b"), Reply(text="never", hold=asyncio.Event())]
    server = serve_in_memory(replies, tools=[Note()], policy=VOTING, records_content=records_content)
    running = asyncio.create_task(server.run(TurnStart(message="Go")))
    await server.wait_for_calls(3)
    (turn_id,) = server.runner.runs.by_id
    await server.kill()
    running.cancel()
    await asyncio.wait([running])
    kept = await server.store.read_checkpoint(CALLER.tenant, turn_id)
    assert ("SECRET" in repr(kept.records)) == records_content
