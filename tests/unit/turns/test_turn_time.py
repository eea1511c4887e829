"""What counts toward the time limit of a turn whose processes die."""

from __future__ import annotations

import asyncio

from reasond_server.errors.turns import ToolOutcomeUnknownError
from reasond_server.turns.policy import TurnPolicy
from reasond_server.types.turns import (
    TurnStart,
)
from tests.turning import LIMITS, Note, ask_tools, client_tool, settle
from tests.unit.turns.recovering import Servers, end_of, start_and_die, take_and_die


async def test_the_wait_for_the_client_is_no_working_time_if_the_server_dies_right_after_it(servers: Servers) -> None:
    policy = TurnPolicy(max_active_s=600)
    first = servers.server(ask_tools(("open_file", {"path": "a"})), policy=policy)
    view = await first.run(TurnStart(message="Go", client_tools=[client_tool()]))
    assert view.turn.handoff is not None
    servers.time.moved_s += 3_000
    await take_and_die(servers, view, settle(view.turn.turn_id, view.turn.handoff))

    other = servers.server("Done.", policy=policy)
    await other.round()
    result = await end_of(other, view.turn.turn_id)

    assert result.answer == "Done."
    assert result.elapsed_s < 600


async def test_the_time_in_which_no_process_had_a_turn_is_no_working_time(servers: Servers) -> None:
    policy = TurnPolicy(max_active_s=600)
    turn_id = await start_and_die(servers, Note(), policy=policy)
    servers.time.moved_s += 3_000

    other = servers.server(policy=policy, tools=[Note()])
    await other.round()

    result = await end_of(other, turn_id)
    assert result.error is not None
    assert result.error.reason == ToolOutcomeUnknownError.reason
    assert result.elapsed_s < 60


async def test_what_earlier_lives_worked_counts_and_the_times_between_them_do_not(servers: Servers) -> None:
    """Of what a life did in silence a lease counts."""
    policy, idle = TurnPolicy(max_active_s=600), Note(is_idempotent=True)
    turn_id = await start_and_die(servers, idle, policy=policy)
    servers.time.moved_s += 1_000
    again = Note(is_idempotent=True)
    again.gate.clear()
    server = servers.server(policy=policy, tools=[again])
    await server.round()
    async with asyncio.timeout(60):
        await again.begun.wait()
    await server.kill()
    servers.time.moved_s += 1_000
    other = servers.server("Done.", policy=policy, tools=[Note(is_idempotent=True)])
    await other.round()
    result = await end_of(other, turn_id)
    assert result.answer == "Done."
    assert 2 * LIMITS.lease_s <= result.elapsed_s < 2 * LIMITS.lease_s + 60
