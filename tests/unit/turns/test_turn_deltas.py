"""The text of a turn reaches its reader while it is written, in every model call of the turn."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from reasond_server.testing import Reply
from reasond_server.types.turns import HandedOff, TurnDelta, TurnResult, TurnStart
from tests.turning import CALLER, Note, ask_tools, client_tool, serve_in_memory, settle

LIMIT_S = 30.0


async def test_text_comes_as_it_is_written_after_tool_calls_too() -> None:
    """The last reply stops in its middle until its first words have been delivered."""
    gate = asyncio.Event()
    asked = [ask_tools(("note", {"text": f"{place}"}), ("note", {"text": "x"})) for place in range(3)]
    server = serve_in_memory([*asked, Reply(pieces=("All is", " noted."), hold=gate, hold_after=1)], tools=[Note()])
    text = ""

    async with (
        asyncio.timeout(LIMIT_S),
        aclosing(server.service.stream(CALLER, TurnStart(message="Note it"), include_deltas=True)) as events,
    ):
        async for event in events:
            if isinstance(event.event, TurnDelta):
                assert event.event.iteration_index == 3
                text += event.event.text
                gate.set()

    assert text == "All is noted."


async def test_a_stream_that_follows_has_text_after_the_hand_off_too() -> None:
    gate = asyncio.Event()
    asked = [ask_tools(("open_file", {"path": f"{place}"})) for place in range(3)]
    server = serve_in_memory([*asked, Reply(pieces=("It says", " hello."), hold=gate, hold_after=1)])
    start = TurnStart(message="Read", client_tools=[client_tool()])
    text, reentries = "", []

    async with (
        asyncio.timeout(LIMIT_S),
        aclosing(server.service.stream(CALLER, start, include_deltas=True, follow=True)) as events,
    ):
        async for event in events:
            if isinstance(event.event, HandedOff):
                reentries.append(asyncio.create_task(server.run(settle(event.execution_id, event.event))))
            if isinstance(event.event, TurnDelta):
                text += event.event.text
                gate.set()

    assert text == "It says hello."
    await asyncio.gather(*reentries)


async def test_text_that_its_event_has_overtaken_is_not_told_again() -> None:
    """Whoever attaches late reads the events first, and none of the text that they hold."""
    server = serve_in_memory([ask_tools(("note", {"text": "one"}), text="I note one."), "Done."], tools=[Note()])
    seen: list[object] = []

    async with aclosing(server.service.stream(CALLER, TurnStart(message="Note"), include_deltas=True)) as events:
        async for event in events:
            if isinstance(event.event, TurnDelta):
                indices = [each.index for each in seen if hasattr(each, "index")]
                assert event.event.iteration_index not in indices
            seen.append(event.event)


async def read_deltas(name: str, *replies: str | Reply) -> tuple[str, TurnResult]:
    server = serve_in_memory(list(replies), name=name)
    text, result = "", None
    async with aclosing(server.service.stream(CALLER, TurnStart(message="Go"), include_deltas=True)) as events:
        async for event in events:
            text += event.event.text if isinstance(event.event, TurnDelta) else ""
            result = event.event if isinstance(event.event, TurnResult) else result
    assert result is not None
    return text, result


OPEN = Reply(pieces=("Perhaps six", "teen? No.\n", "</th", "ink>\n\n", "It is seven", "teen."))


@pytest.mark.parametrize(
    "name", ["deepseek-r1-distill-qwen-7b", "Qwen/Qwen3-30B-A3B-Thinking-2507", "glm-4.6", "QwQ-32B"]
)
async def test_reasoning_that_only_ends_with_a_mark_is_never_streamed_as_an_answer(name: str) -> None:
    text, result = await read_deltas(name, OPEN)
    assert (text.strip(), result.answer, result.warnings) == ("It is seventeen.", "It is seventeen.", ())


async def test_a_model_of_that_kind_that_does_not_reason_is_streamed_at_its_end() -> None:
    text, result = await read_deltas("glm-4.6", Reply(pieces=("It is", " seventeen.")))
    assert text == result.answer == "It is seventeen."


async def test_reasoning_that_was_streamed_as_an_answer_is_told() -> None:
    text, result = await read_deltas("some-model", OPEN)
    assert "sixteen" in text
    assert result.answer == "It is seventeen."
    assert any("turned out to be its reasoning" in warning for warning in result.warnings)
