"""Turns whose process dies, whose client does not come back, and that others try to take."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.base import ReasondError
from reasond_server.errors.turns import EtagMismatchError, HandoffExpiredError, ToolOutcomeUnknownError, TurnLeasedError
from reasond_server.testing import Reply
from reasond_server.turns.loop import RESERVED
from reasond_server.turns.policy import Mode, OnUnknownOutcome, TurnPolicy
from reasond_server.types import Budget, Cursor, FinishReason
from reasond_server.types.turns import (
    CallKind,
    LedgerState,
    ModelCallStep,
    Reentered,
    TurnStart,
    TurnState,
)
from tests.turning import CALLER, Note, TurnServer, ask_tools, client_tool, settle
from tests.unit.turns.recovering import Servers, end_of, start_and_die, take_and_die

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from reasond_server.eventlog.store import ExecutionStore
    from reasond_server.turns.turn_service import TurnView


async def test_an_idempotent_tool_runs_again_with_the_same_key_after_its_process_died(servers: Servers) -> None:
    note = Note(is_idempotent=True)
    turn_id = await start_and_die(servers, note)

    other = servers.server("Done.", tools=[note])
    await other.round()
    result = await end_of(other, turn_id)

    assert result.answer == "Done."
    assert len(note.calls) == 2
    assert len({key for _, key in note.calls}) == 1
    assert result.usage.model_calls == 2


async def test_another_tool_is_not_run_again_and_the_session_stays_usable(servers: Servers) -> None:
    note = Note()
    turn_id = await start_and_die(servers, note, calls=2)

    other = servers.server("Hello again.", tools=[note])
    await other.round()
    result = await end_of(other, turn_id)

    assert result.error is not None
    assert result.error.reason == ToolOutcomeUnknownError.reason
    assert len(note.calls) == 1
    view = await other.service.get(CALLER, turn_id)
    assert [one.state for one in view.turn.ledger] == [LedgerState.UNKNOWN, LedgerState.NOT_RUN]
    again = await other.run(TurnStart(session_id="s1", message="Hello?"))
    assert again.result is not None
    assert again.result.answer == "Hello again."


async def test_the_next_turn_is_not_told_that_a_call_was_not_made_if_nobody_knows_that(servers: Servers) -> None:
    note = Note()
    turn_id = await start_and_die(servers, note, calls=2)
    other = servers.server("Hello again.", tools=[note])
    await other.round()
    await end_of(other, turn_id)
    await other.run(TurnStart(session_id="s1", message="Hello?"))

    texts = [message.content for message in other.model.requests[-1].messages if message.role == "tool"]
    assert ["not known whether" in text for text in texts] == [True, False]


async def test_the_next_turn_knows_that_a_client_may_have_made_a_call_that_it_did_not_settle(servers: Servers) -> None:
    server = servers.server(ask_tools(("open_file", {"path": "a"})), "Hello again.")
    view = await server.run(TurnStart(session_id="s1", message="Go", client_tools=[client_tool()]))
    await server.service.cancel(CALLER, view.turn.turn_id)
    await server.run(TurnStart(session_id="s1", message="Hello?"))

    texts = [message.content for message in server.model.requests[-1].messages if message.role == "tool"]
    assert ["not known whether" in text for text in texts] == [True]


async def test_the_client_is_asked_what_came_of_a_call_where_the_operator_wants_that(servers: Servers) -> None:
    note = Note()
    policy = TurnPolicy(on_unknown_outcome=OnUnknownOutcome.ASK)
    turn_id = await start_and_die(servers, note, policy=policy)

    other = servers.server("It worked.", tools=[note], policy=policy)
    await other.round()
    run = other.runner.find_live(turn_id)
    if run is not None:
        await run.wait_for_end()
    view = await other.service.get(CALLER, turn_id)
    assert view.turn.handoff is not None
    assert [one.kind for one in view.turn.handoff.calls] == [CallKind.RESOLVE]
    view = await other.run(settle(turn_id, view.turn.handoff, lambda _: {"noted": "x"}))

    assert view.result is not None
    assert view.result.answer == "It worked."
    assert len(note.calls) == 1


async def test_a_suspended_turn_is_resumed_by_another_release_whose_prompts_differ(servers: Servers) -> None:
    first = servers.server(ask_tools(("note", {"text": "n"}), ("open_file", {"path": "a"})), tools=[Note()])
    view = await first.run(TurnStart(message="Go", client_tools=[client_tool()]))
    assert view.turn.handoff is not None
    await first.kill()

    note = Note()
    policy = TurnPolicy(modes={"default": Mode(instructions="Other words.")})
    other = servers.server("Read.", tools=[note], policy=policy)
    reentry = settle(view.turn.turn_id, view.turn.handoff, lambda _: "text")
    view = await other.run(reentry)

    assert view.result is not None
    assert view.result.answer == "Read."
    assert view.result.usage.model_calls == 2
    assert note.calls == []
    sequences = [event.sequence for event in await other.events(Cursor(execution_id=view.turn.turn_id))]
    assert sequences == list(range(1, len(sequences) + 1))


async def test_a_turn_that_died_after_its_re_entry_goes_on_and_the_same_re_entry_follows_it(servers: Servers) -> None:
    note = Note(is_idempotent=True)
    first = servers.server(ask_tools(("open_file", {"path": "a"})), ask_tools(("note", {"text": "n"})), tools=[note])
    view = await first.run(TurnStart(message="Go", client_tools=[client_tool()]))
    assert view.turn.handoff is not None
    reentry = settle(view.turn.turn_id, view.turn.handoff)
    note.gate.clear()
    running = asyncio.create_task(first.run(reentry))
    await note.begun.wait()
    await first.kill()
    running.cancel()
    await asyncio.wait([running])
    note.gate.set()

    other = servers.server("Done.", tools=[note])
    await other.round()
    view = await other.run(reentry)

    assert view.result is not None
    assert view.result.answer == "Done."
    log = await other.log(view.turn.turn_id)
    assert sum(isinstance(event, Reentered) for event in log) == 1
    assert sum(isinstance(event, ModelCallStep) for event in log) == 3


async def test_of_many_re_entries_in_two_processes_one_wins(servers: Servers) -> None:
    note = Note()
    replies: list[str | Reply] = [ask_tools(("open_file", {"path": "a"})), ask_tools(("note", {"text": "n"})), "Done."]
    one = servers.server(*replies, tools=[note])
    view = await one.run(TurnStart(message="Go", client_tools=[client_tool()]))
    two = servers.server(*replies[1:], tools=[note])
    assert view.turn.handoff is not None
    same = settle(view.turn.turn_id, view.turn.handoff, lambda _: "same")
    other = settle(view.turn.turn_id, view.turn.handoff, lambda _: "other")

    found = await asyncio.gather(
        *(server.events(reentry) for reentry in (same, other) for server in (one, two) * 4), return_exceptions=True
    )

    assert len(note.calls) == 1
    kept = [each for each in found if isinstance(each, list)]
    assert len(kept) == 8
    assert all(each == kept[0] for each in kept)
    assert {type(each) for each in found if isinstance(each, BaseException)} == {EtagMismatchError}


async def test_an_expired_hand_off_ends_the_turn_and_frees_the_session(servers: Servers) -> None:
    server = servers.server(ask_tools(("open_file", {"path": "a"})), "Hello.", policy=TurnPolicy(handoff_ttl_s=100))
    view = await server.run(TurnStart(session_id="s1", message="Go", client_tools=[client_tool()]))
    handoff = view.turn.handoff
    assert handoff is not None
    servers.time.moved_s += 101

    with pytest.raises(HandoffExpiredError):
        await server.run(settle(view.turn.turn_id, handoff))
    await server.round()
    result = await end_of(server, view.turn.turn_id)

    assert result.finish_reason is FinishReason.EXPIRED
    with pytest.raises(HandoffExpiredError):
        await server.run(settle(view.turn.turn_id, handoff))
    view = await server.service.get(CALLER, view.turn.turn_id)
    assert view.turn.state is TurnState.EXPIRED
    assert [one.state for one in view.turn.ledger] == [LedgerState.NOT_RUN]
    again = await server.run(TurnStart(session_id="s1", message="Hello?"))
    assert again.turn.state is TurnState.SUCCEEDED


async def test_of_many_starts_on_one_session_one_turn_is_open(servers: Servers) -> None:
    replies: list[str | Reply] = [ask_tools(("open_file", {"path": "a"}))] * 2
    both = [servers.server(*replies) for _ in range(2)]
    start = TurnStart(session_id="s1", message="Go", client_tools=[client_tool()])

    found = await asyncio.gather(*(server.run(start) for server in both * 8), return_exceptions=True)

    begun = [each for each in found if not isinstance(each, BaseException)]
    assert len(begun) == 1
    assert {type(each) for each in found if isinstance(each, BaseException)} == {TurnLeasedError}
    session = await both[0].service.get_session(CALLER, "s1")
    assert (session.revision, session.open_turn_id) == (1, begun[0].turn.turn_id)


async def test_the_reservation_of_a_model_call_in_flight_is_charged_when_another_process_goes_on(
    servers: Servers,
) -> None:
    held = asyncio.Event()
    first = servers.server(ask_tools(("note", {"text": "n"})), Reply(text="never", hold=held), tools=[Note()])
    budget = Budget(max_total_tokens=20_000)
    running = asyncio.create_task(first.run(TurnStart(message="Go", budget=budget)))
    await first.wait_for_calls(2)
    (turn_id,) = first.runner.runs.by_id
    await first.kill()
    running.cancel()
    await asyncio.wait([running])

    other = servers.server("Done.", tools=[Note()])
    await other.round()
    result = await end_of(other, turn_id)

    assert result.answer == "Done."
    steps = [event for event in await other.log(turn_id) if isinstance(event, ModelCallStep)]
    spent = sum(step.usage.total_tokens for step in steps)
    assert result.usage.model_calls == 3
    assert spent < result.usage.total_tokens <= 20_000
    assert other.model.requests[0].max_tokens <= 20_000 - (result.usage.total_tokens - steps[-1].usage.total_tokens)


async def test_cancelling_a_turn_that_waits_ends_it(servers: Servers) -> None:
    server = servers.server(ask_tools(("open_file", {"path": "a"})))
    view = await server.run(TurnStart(session_id="s1", message="Go", client_tools=[client_tool()]))

    turn = await server.service.cancel(CALLER, view.turn.turn_id)

    assert turn.state is TurnState.CANCELLED
    assert (await server.service.get_session(CALLER, "s1")).open_turn_id == ""
    await server.service.delete(CALLER, view.turn.turn_id)
    await server.service.delete_session(CALLER, "s1")
    with pytest.raises(ReasondError):
        await server.service.get_session(CALLER, "s1")


async def test_a_client_that_leaves_does_not_cancel_its_turn(servers: Servers) -> None:
    note = Note()
    note.gate.clear()
    server = servers.server(ask_tools(("note", {"text": "n"})), "Done.", tools=[note])
    running = asyncio.create_task(server.run(TurnStart(message="Go")))
    await note.begun.wait()
    (turn_id,) = server.runner.runs.by_id
    running.cancel()
    await asyncio.wait([running])
    await asyncio.sleep(0.05)
    note.gate.set()

    assert (await end_of(server, turn_id)).answer == "Done."


async def test_what_a_lost_model_call_may_have_cost_stays_charged_in_all_later_lives(servers: Servers) -> None:
    first = servers.server(Reply(text="never", hold=asyncio.Event()))
    start = TurnStart(message="Go", budget=Budget(max_total_tokens=10_000), client_tools=[client_tool()])
    running = asyncio.create_task(first.run(start))
    await first.wait_for_calls(1)
    (turn_id,) = first.runner.runs.by_id
    await first.kill()
    running.cancel()
    await asyncio.wait([running])
    (reservation,) = (await servers.store.read_checkpoint(CALLER.tenant, turn_id)).records
    lost = json.loads(reservation.body)["most_tokens"]

    second = servers.server(ask_tools(("open_file", {"path": "a"})))
    await second.round()
    await second.wait_for_suspension(turn_id)
    view = await second.service.get(CALLER, turn_id)
    assert view.turn.handoff is not None
    third = servers.server("Done.")
    view = await third.run(settle(turn_id, view.turn.handoff))

    (_, step) = [event for event in await third.log(turn_id) if isinstance(event, ModelCallStep)]
    assert view.result is not None
    assert lost > 4_000
    spent = view.result.usage.total_tokens - step.usage.total_tokens
    assert spent > lost
    assert third.model.requests[0].max_tokens <= 10_000 - spent


async def test_two_lost_model_calls_are_each_charged_once(servers: Servers) -> None:
    budget = Budget(max_total_tokens=14_000)
    first = servers.server(Reply(text="never", hold=asyncio.Event()))
    running = asyncio.create_task(first.run(TurnStart(message="Go", budget=budget)))
    await first.wait_for_calls(1)
    (turn_id,) = first.runner.runs.by_id
    await first.kill()
    running.cancel()
    await asyncio.wait([running])
    second = servers.server(Reply(text="never", hold=asyncio.Event()))
    await second.round()
    await second.wait_for_calls(1)
    await second.kill()
    records = (await servers.store.read_checkpoint(CALLER.tenant, turn_id)).records
    reserved = [json.loads(each.body) for each in records if each.key.startswith(RESERVED)]
    first_lost, both_lost = [each["most_tokens"] for each in reserved]

    third = servers.server("Done.")
    await third.round()
    result = await end_of(third, turn_id)

    (step,) = [event for event in await third.log(turn_id) if isinstance(event, ModelCallStep)]
    assert 4_000 < first_lost < both_lost - 4_000
    assert result.answer == "Done."
    assert result.usage.total_tokens == both_lost + step.usage.total_tokens
    assert result.usage.model_calls == 3


async def test_a_hand_off_expires_though_the_server_that_noticed_it_died(servers: Servers) -> None:
    policy = TurnPolicy(max_active_s=600, handoff_ttl_s=2_000)
    first = servers.server(ask_tools(("open_file", {"path": "a"})), policy=policy)
    view = await first.run(TurnStart(message="Go", client_tools=[client_tool()]))
    assert view.turn.handoff is not None
    servers.time.moved_s += 3_000
    await take_and_die(servers, view, None)
    with pytest.raises(HandoffExpiredError):
        await first.run(settle(view.turn.turn_id, view.turn.handoff))

    other = servers.server(policy=policy)
    await other.round()

    assert (await end_of(other, view.turn.turn_id)).finish_reason is FinishReason.EXPIRED


class Overtaken:
    """A store in which another process does something right before this one asks for a cancellation."""

    def __init__(self, store: ExecutionStore, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._store = store
        self._meanwhile = meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def request_cancel(self, tenant: str, execution_id: str) -> None:
        await self._meanwhile()
        await self._store.request_cancel(tenant, execution_id)


async def test_a_cancellation_that_a_re_entry_elsewhere_overtakes_waits_for_the_end(servers: Servers) -> None:
    note = Note()
    note.gate.clear()
    two = servers.server(ask_tools(("open_file", {"path": "a"})), ask_tools(("note", {"text": "deaf"})), tools=[note])
    view = await two.run(TurnStart(message="Go", client_tools=[client_tool()]))
    handoff = view.turn.handoff
    assert handoff is not None
    running: list[asyncio.Task[TurnView]] = []

    async def reenter() -> None:
        running.append(asyncio.create_task(two.run(settle(view.turn.turn_id, handoff))))
        await note.begun.wait()

    one = TurnServer(Overtaken(servers.store, reenter), [], time=servers.time)
    servers.all.append(one)
    turn = await one.service.cancel(CALLER, view.turn.turn_id)

    assert turn.state is TurnState.CANCELLED
    await asyncio.wait(running)
