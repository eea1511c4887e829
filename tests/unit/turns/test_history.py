"""The history of a session, as the next turn reads it."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.limits import StoreUnavailableError
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.testing import Reply
from reasond_server.types import FinishReason, HistoryMessage, Speaker
from reasond_server.types.turns import TurnStart
from tests.turning import Note, TurnServer, WallClock, ask_tools, client_tool

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from reasond_server.types import Execution


class UnreachableStore(MemoryExecutionStore):
    """A store that cannot be reached so many times when it is asked for a page."""

    def __init__(self, time: WallClock) -> None:
        super().__init__(max_bytes=10**8, now=time.now, monotonic=time.monotonic)
        self.fails = 0

    async def page(self, *arguments: Any, **options: Any) -> Sequence[Execution]:
        if self.fails:
            self.fails -= 1
            raise StoreUnavailableError("the store is out of reach")
        return await super().page(*arguments, **options)


async def test_a_turn_whose_store_is_out_of_reach_waits_for_its_history() -> None:
    time = WallClock()
    store = UnreachableStore(time)
    server = TurnServer(store, ["I am well.", "As I said."], time=time)
    await server.run(TurnStart(session_id="s1", message="How are you?"))
    store.fails = 2

    view = await server.run(TurnStart(session_id="s1", message="And now?"))

    assert view.result is not None
    assert view.result.finish_reason is FinishReason.ANSWERED
    assert "How are you?" in str(server.model.requests[-1].messages)


async def test_a_turn_of_a_server_whose_clock_is_behind_has_the_turns_before_it() -> None:
    time = WallClock()
    store = UnreachableStore(time)
    await TurnServer(store, ["I am well."], time=time).run(TurnStart(session_id="s1", message="How are you?"))
    behind = TurnServer(store, ["As I said."], time=WallClock(moved_s=-30))

    await behind.run(TurnStart(session_id="s1", message="And now?"))

    assert "How are you?" in str(behind.model.requests[-1].messages)


async def test_a_turn_that_has_expired_ends_so_whether_or_not_its_history_can_be_read() -> None:
    time = WallClock()
    store = UnreachableStore(time)
    server = TurnServer(store, [ask_tools(("open_file", {"path": "a"}))], time=time)
    view = await server.run(TurnStart(session_id="s1", message="Go", client_tools=[client_tool()]))
    time.moved_s += 90_000
    store.fails = 1

    await server.round()
    run = server.runner.find_live(view.turn.turn_id)
    assert run is not None
    await run.wait_for_end()

    assert store.fails == 1
    assert (await server.log(view.turn.turn_id))[-1].finish_reason is FinishReason.EXPIRED


async def test_a_turn_of_a_long_session_says_that_the_oldest_turns_are_not_read() -> None:
    time = WallClock()
    server = TurnServer(UnreachableStore(time), ["Well."] * 52, time=time)
    views = [await server.run(TurnStart(session_id="s1", message=f"Question {place}.")) for place in range(52)]

    warnings = [view.result.warnings if view.result is not None else None for view in views]
    assert warnings[:51] == [()] * 51
    (warning,) = warnings[51] or ()
    assert warning.startswith("Of this session the last 50 turns can reach the model")
    shown = str(server.model.requests[-1].messages)
    assert ("Question 0." in shown, "Question 1." in shown) == (False, True)


@pytest.mark.parametrize("has_native_tools", [True, False])
async def test_the_past_of_a_session_is_sent_as_it_was_sent_before(has_native_tools: bool) -> None:  # noqa: FBT001 - a parameter of the test
    time = WallClock()
    call = ask_tools(("note", {"text": "one"}))
    if not has_native_tools:
        call = Reply(text='I note it.\n<action>{"tool": "note", "arguments": {"text": "one"}}</action>')
    replies: list[str | Reply] = [call, "It is noted.", call, "Again.", "The end."]
    server = TurnServer(UnreachableStore(time), replies, time=time, tools=[Note()], has_native_tools=has_native_tools)
    for message in ("Note one.", "Note it again.", "Is that all?"):
        await server.run(TurnStart(session_id="s1", message=message))

    requests = server.model.requests
    assert len(requests) == len(replies)
    for before, after in itertools.pairwise(requests):
        assert after.messages[: len(before.messages)] == before.messages
        assert after.tools == before.tools


async def test_a_conversation_that_its_client_sends_again_has_the_same_marks_and_another_one_has_others() -> None:
    time = WallClock()
    server = TurnServer(UnreachableStore(time), ["Well.", "As I said.", "Who is there?"], time=time)
    said = (
        HistoryMessage(role=Speaker.USER, text="How are you?"),
        HistoryMessage(role=Speaker.ASSISTANT, text="Well."),
    )
    await server.run(TurnStart(message="How are you?"))
    await server.run(TurnStart(message="And now?", history=said))
    await server.run(TurnStart(message="Hello?"))

    first, second, third = (request.messages for request in server.model.requests)
    assert second[: len(first)] == first
    assert third[0] == first[0]
    assert third[1].content.split()[1] != first[1].content.split()[1]


async def test_a_small_result_offers_no_tool_that_reads_results_and_once_a_large_one_came_it_stays() -> None:
    time = WallClock()
    replies: list[str | Reply] = [
        *(ask_tools(("note", {"text": "one"})), "Noted."),
        *(ask_tools(("note", {"text": "x" * 3000})), "Noted, too.", "The end."),
    ]
    server = TurnServer(UnreachableStore(time), replies, time=time, tools=[Note()])
    for message in ("Note one.", "Note much.", "Is that all?"):
        await server.run(TurnStart(session_id="s1", message=message))

    offered = ["read_tool_result" in [spec.name for spec in request.tools] for request in server.model.requests]
    assert offered == [False, False, False, True, True]
