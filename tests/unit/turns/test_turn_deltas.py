"""The text of a turn reaches its reader while it is written, in every model call of the turn."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from reasond_server.testing import Reply
from reasond_server.types.turns import HandedOff, TurnDelta, TurnStart
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
