"""Turns that another process takes at a moment that only the simulation meets."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.model import ModelUnavailableError
from reasond_server.errors.turns import ToolNotRegisteredError
from reasond_server.eventlog.store import Lease
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.runs.run_trace import RunTrace
from reasond_server.testing import Reply
from reasond_server.tools.execution import Tools
from reasond_server.turns.fold import fold
from reasond_server.turns.handoff import check_reentry
from reasond_server.turns.next_step import Finish, RunTools, choose_step
from reasond_server.turns.policy import Mode, TurnPolicy
from reasond_server.turns.turn_tools import TurnTools
from reasond_server.types import FinishReason, HistoryMessage, LoggedEvent, Speaker
from reasond_server.types.turns import ModelCallStep, TurnStart
from tests.turning import CALLER, Note, TurnServer, WallClock, ask_tools, client_tool, settle

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

OTHER = Lease(owner="other", seconds=0)


def serve(replies: Sequence[str | Reply], **options: Any) -> TurnServer:
    time = WallClock()
    store = MemoryExecutionStore(max_bytes=10**8, now=time.now, monotonic=time.monotonic)
    return TurnServer(store, replies, time=time, **options)


async def test_waiting_does_not_count_as_work_if_the_process_died_that_took_the_re_entry() -> None:
    server = serve([ask_tools(("open_file", {"path": "a"})), "Done."], policy=TurnPolicy(max_active_s=60))
    view = await server.run(TurnStart(message="Go", client_tools=[client_tool()]))
    turn_id, handoff = view.turn.turn_id, view.turn.handoff
    assert handoff is not None
    server.time.moved_s += 3600
    now = server.time.now()
    event = check_reentry(settle(turn_id, handoff), fold(await server.log(turn_id)), now=now, max_result_bytes=1000)
    logged = LoggedEvent(sequence=view.turn.last_sequence + 1, create_time=now, event=event)
    assert await server.store.wake(OTHER, CALLER.tenant, turn_id, event=logged) is not None

    await server.round()
    run = server.runner.find_live(turn_id)
    assert run is not None
    await run.wait_for_end()

    result = (await server.log(turn_id))[-1]
    assert (result.finish_reason, result.answer) == (FinishReason.ANSWERED, "Done.")
    assert result.elapsed_s < 60


async def test_a_turn_that_replaces_a_cancelled_one_has_another_key_for_another_call() -> None:
    note = Note()
    note.gate.clear()
    replies: list[str | Reply] = [ask_tools(("note", {"text": "a"})), ask_tools(("note", {"text": "b"})), "Done."]
    server = serve(replies, tools=[note])
    start = TurnStart(message="Go")
    running = asyncio.create_task(server.run(start, request_id="r1"))
    await note.begun.wait()
    (turn_id,) = server.runner.runs.by_id
    await server.service.cancel(CALLER, turn_id)
    await asyncio.wait([running])
    note.gate.set()

    await server.run(start, request_id="r1")

    assert [text for text, _ in note.calls] == ["a", "b"]
    assert len({key for _, key in note.calls}) == 2


async def test_a_tool_that_was_not_offered_does_not_run_either_if_the_process_died_after_the_reply() -> None:
    policy = TurnPolicy(modes={"default": Mode(tools=())})
    note = Note()
    server = serve([ask_tools(("note", {"text": "a"}))], tools=[note], policy=policy)
    with pytest.raises(ToolNotRegisteredError) as caught:
        await server.run(TurnStart(message="Go", client_tools=[client_tool()]))
    turn_id = caught.value.execution_id or ""
    log = await server.log(turn_id)
    until = next(place for place, event in enumerate(log) if isinstance(event, ModelCallStep))
    tools = TurnTools(
        source=Tools(tools=[note]),
        policy=policy,
        client_tools=[client_tool()],
        execution_id=turn_id,
        may_use_server_tools=True,
        trace=RunTrace(),
    )

    step = choose_step(fold(log[: until + 1]), tools=tools, policy=policy)

    assert not isinstance(step, RunTools)
    assert isinstance(step, Finish)
    assert step.error is not None
    assert step.error.metadata == {"tool": "note", "call_id": "c1"}


async def test_one_who_lost_a_turn_that_cost_nothing_frees_neither_its_session_nor_its_request_id() -> None:
    gate = asyncio.Event()
    server = serve([Reply(text="x", error=ModelUnavailableError("down"), error_after=0, hold=gate)])
    running = asyncio.create_task(server.run(TurnStart(session_id="s1", message="Go"), request_id="r1"))
    await server.wait_for_calls(1)
    (turn_id,) = server.runner.runs.by_id
    run = server.runner.find_live(turn_id)
    assert run is not None
    server.time.moved_s += 20
    assert await server.store.recover(Lease(owner="other", seconds=60), limit=1)

    gate.set()
    await run.wait_for_end()
    running.cancel()
    await asyncio.wait([running])

    assert (await server.store.sessions.find(CALLER.tenant, "s1")).open_execution == turn_id
    claim = await server.store.find_claim(CALLER.tenant, "r1")
    assert claim is not None
    assert claim.execution_id == turn_id


async def test_another_server_goes_on_with_the_instructions_and_the_history_of_the_start() -> None:
    first = serve([ask_tools(("open_file", {"path": "a"}))])
    history = (
        HistoryMessage(role=Speaker.USER, text="Who wrote it?"),
        HistoryMessage(role=Speaker.ASSISTANT, text="Newton."),
        HistoryMessage(role=Speaker.ASSISTANT, text="In 1704."),
        HistoryMessage(role=Speaker.USER, text="And this?"),
    )
    start = TurnStart(message="Go", client_tools=[client_tool()], system="You are exact.", history=history)
    view = await first.run(start)
    assert view.turn.handoff is not None
    second = TurnServer(first.store, ["Done."], time=first.time)

    ended = await second.service.run(CALLER, settle(view.turn.turn_id, view.turn.handoff))

    assert ended.result is not None
    assert ended.result.answer == "Done."
    for server in (first, second):
        system, *messages = server.model.requests[0].messages
        assert system.content.startswith("You are exact.\n\n")
        assert [message.role.value for message in messages[:4]] == ["user", "assistant", "user", "user"]
        assert "Who wrote it?" in messages[0].content
        assert messages[1].content == "Newton.\n\nIn 1704."
        assert "And this?" in messages[2].content
        assert "Go" in messages[3].content
