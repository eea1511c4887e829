"""What the prompts of turns show of large results: previews, reading by handle, and the synthesis."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.errors.model import (
    ContentFilteredError,
    ContextExhaustedError,
    ModelFailedError,
    ModelProtocolError,
    ModelUnavailableError,
)
from reasond_server.llm.model import ModelFinish
from reasond_server.testing import Reply
from reasond_server.turns.policy import Synthesis, TurnContext, TurnPolicy
from reasond_server.types import FinishReason
from reasond_server.types.turns import ContextGoal, ModelCallStep, Rendering, ResultPart, TurnStart
from tests.turning import CALLER, Note, TurnServer, ask_tools, serve_in_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.errors.base import ReasondError

ROWS = json.dumps([{"id": f"row-{number}", "status": "ok", "note": "word " * 40} for number in range(100)])


def serve(replies: Sequence[str | Reply], **options: Any) -> TurnServer:
    policy = TurnPolicy(context=TurnContext(preview_tokens=512))
    return serve_in_memory(replies, tools=[Note()], **{"policy": policy} | options)


async def steps_of(server: TurnServer, turn_id: str) -> list[ModelCallStep]:
    return [event for event in await server.log(turn_id) if isinstance(event, ModelCallStep)]


async def test_a_large_result_is_a_preview_while_planning_and_whole_in_the_synthesis() -> None:
    server = serve([ask_tools(("note", {"text": ROWS})), "A draft.", "The answer."])

    view = await server.run(TurnStart(message="Which rows are there?"))

    assert view.result is not None
    assert view.result.answer == "The answer."
    steps = await steps_of(server, view.turn.turn_id)
    assert [step.goal for step in steps] == [ContextGoal.PLANNING, ContextGoal.PLANNING, ContextGoal.SYNTHESIS]
    shown = [[item.rendering for item in step.context if item.source == "c1"] for step in steps]
    assert shown == [[], [Rendering.PREVIEW], [Rendering.FULL]]
    assert server.model.requests[-1].tool_choice == "none"


@pytest.mark.parametrize(
    "error",
    [
        ContextExhaustedError("the server said 400"),
        ModelUnavailableError("nobody listens"),
        ModelFailedError("the stream broke"),
        ModelProtocolError("that was no JSON"),
        ContentFilteredError("withheld"),
    ],
    ids=lambda error: error.reason,
)
async def test_a_synthesis_that_fails_leaves_the_answer_that_was_written_and_tells_why(error: ReasondError) -> None:
    note = Note()
    server = serve_in_memory([ask_tools(("note", {"text": ROWS})), "A draft.", Reply(error=error)], tools=[note])

    view = await server.run(TurnStart(message="Which rows are there?"))

    assert view.result is not None
    assert (view.result.answer, view.result.finish_reason) == ("A draft.", FinishReason.ANSWERED)
    assert view.result.error is None
    assert any(error.message in warning and "draft" in warning for warning in view.result.warnings)
    assert len(note.calls) == 1


@pytest.mark.parametrize(
    "reply",
    [
        Reply(text="The ans", finish=ModelFinish.LENGTH),
        Reply(text="The ans", finish=ModelFinish.CONTENT_FILTER),
        Reply(text=" "),
        Reply(text="", finish=ModelFinish.LENGTH),
    ],
    ids=("cut", "filtered", "empty", "nothing written"),
)
async def test_a_synthesis_that_is_not_whole_leaves_the_draft_with_a_warning(reply: Reply) -> None:
    server = serve([ask_tools(("note", {"text": ROWS})), "A draft.", reply])

    view = await server.run(TurnStart(message="Which rows are there?"))

    assert view.result is not None
    assert (view.result.answer, view.result.finish_reason) == ("A draft.", FinishReason.ANSWERED)
    assert len(view.result.warnings) == 1


async def test_where_the_draft_is_not_whole_either_a_failed_synthesis_fails_the_turn() -> None:
    draft = Reply(text="A dra", finish=ModelFinish.LENGTH)
    server = serve([ask_tools(("note", {"text": ROWS})), draft, Reply(error=ModelFailedError("the stream broke"))])

    with pytest.raises(ModelFailedError):
        await server.run(TurnStart(message="Which rows are there?"))


async def test_without_synthesis_the_draft_is_the_answer() -> None:
    replies: list[str | Reply] = [ask_tools(("note", {"text": ROWS})), "A draft."]
    server = serve(replies, policy=TurnPolicy(context=TurnContext(preview_tokens=512, synthesis=Synthesis.NEVER)))

    view = await server.run(TurnStart(message="Which rows are there?"))

    assert view.result is not None
    assert view.result.answer == "A draft."


async def test_the_model_and_the_client_read_the_whole_result_by_its_handle() -> None:
    reading = ("read_tool_result", {"handle": "c1", "json_pointer": "/7/id"})
    server = serve([ask_tools(("note", {"text": ROWS})), ask_tools(reading), "Row 7.", "It is row-7."])

    view = await server.run(TurnStart(message="Which is the row with index 7?"))

    assert "row-7" in server.model.requests[2].messages[-1].content
    turn_id = view.turn.turn_id
    whole = await server.service.read_tool_result(CALLER, turn_id, "c1", ResultPart())
    assert json.loads(whole.text) == json.loads(ROWS)
    part = await server.service.read_tool_result(CALLER, turn_id, "c1", ResultPart(json_pointer="/7/id"))
    assert part.text == '"row-7"'
    found = await server.service.read_tool_result(CALLER, turn_id, "c1", ResultPart(contains="row-42"))
    assert len(found.hits) == 1
    cut = await server.service.read_tool_result(CALLER, turn_id, "c1", ResultPart(), max_bytes=100)
    assert (len(cut.text), cut.next_offset, cut.total_characters) == (100, 100, len(whole.text))


async def test_each_planning_prompt_begins_with_the_one_before() -> None:
    replies = [ask_tools(("note", {"text": ROWS if number % 2 else "small"})) for number in range(4)]
    server = serve([*replies, "Done.", "The answer."])

    await server.run(TurnStart(message="Go"))

    plans = server.model.requests[:5]
    for earlier, later in pairwise(plans):
        assert later.messages[: len(earlier.messages)] == earlier.messages
