"""Two real servers on one PostgreSQL race for the same turn, and for the same session: one of all callers wins.

By hand: `TURN_ROUNDS=1000 pytest -n0 tests/engines/test_turn_races.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

import reasond
from reasond.v1.turns_pb2 import TurnStart
from tests.faults.turn_servers import OPEN_FILE, ask_tool, open_servers, read_count, say, settle

if TYPE_CHECKING:
    from pathlib import Path

    from reasond.v1.turn_service_pb2 import ExecuteTurnResponse
    from tests.faults.turn_servers import Asked, TurnServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(14_400)]

ROUNDS = read_count("TURN_ROUNDS", 3)
REENTRIES = 64
ANSWERS = 4
STARTS = 32
PATIENT = {"REASOND__STORE__LEASE_S": "120"}
"""No server dies here, and a busy machine may hold one up for longer than the lease of the tests of crashes."""


def open_then_note(asked: Asked) -> bytes:
    """Ask the client for a file, then note the text of the turn, then answer."""
    replies = (ask_tool(("open_file", {})), ask_tool(("note", {"text": asked.text})), say("Done."))
    return replies[asked.results]


async def reenter(server: TurnServer, turn_id: str, event: ExecuteTurnResponse, value: str) -> tuple[str, list[bytes]]:
    """Return what was sent, and the events that came back; none if another re-entry had won."""
    try:
        found = await server.follow(settle(turn_id, event.handed_off, value))
    except reasond.ConflictError as error:
        if error.reason != "ETAG_MISMATCH":
            raise
        return value, []
    return value, [each.SerializeToString(deterministic=True) for each in found]


async def test_of_64_re_entries_from_two_servers_one_wins_and_the_tool_after_it_runs_once(
    tmp_path: Path, postgres_url: str
) -> None:
    winners = set()
    async with open_servers(tmp_path, postgres_url, open_then_note) as servers, AsyncExitStack() as stack:
        both = [await stack.enter_async_context(servers.server(**PATIENT)) for _ in range(2)]
        for number in range(ROUNDS):
            start = TurnStart(message=f"round {number}", client_tools=[OPEN_FILE])
            first = await both[number % 2].follow(start)
            turn_id, sides = first[0].turn_id, itertools.cycle(both)
            values = [f"answer {place % ANSWERS}" for place in range(REENTRIES)]
            random.shuffle(values)
            found = await asyncio.gather(*(reenter(next(sides), turn_id, first[-1], value) for value in values))
            won = {value for value, events in found if events}
            assert len(won) == 1
            winners |= won
            kept = [events for value, events in found if value in won]
            assert len(kept) == REENTRIES // ANSWERS
            assert all(events == kept[0] for events in kept)
            log = await both[0].read_log(turn_id)
            assert [each.WhichOneof("event") for each in log].count("reentered") == 1
            assert log[-1].completed.answer == "Done."
    assert servers.count_notes() == {f"round {number}": 1 for number in range(ROUNDS)}
    assert len(servers.asked) == 3 * ROUNDS
    sys.stdout.write(f"{ROUNDS} rounds of {REENTRIES} re-entries, one winner each, {len(winners)} answers have won\n")


async def start_until_it_may(server: TurnServer, session: str, number: int) -> tuple[int, int]:
    """Return the session's revision with which a turn began, and how often it was refused before."""
    for refused in itertools.count():
        try:
            events = await server.follow(TurnStart(session_id=session, message=f"start {number}"))
        except reasond.ReasondError as error:
            if error.reason != "TURN_LEASED":
                raise
            # Nothing waits for this: with shorter waits most of the time goes into refused starts.
            await asyncio.sleep(random.uniform(0, 0.2))  # noqa: S311 - no secret
            continue
        return events[0].started.session_revision, refused
    raise AssertionError


async def test_of_32_starts_on_one_session_one_turn_is_open_at_a_time_and_revisions_have_no_gaps(
    tmp_path: Path, postgres_url: str
) -> None:
    refused = 0
    async with open_servers(tmp_path, postgres_url, lambda _: say("Hello.")) as servers, AsyncExitStack() as stack:
        both = [await stack.enter_async_context(servers.server(**PATIENT)) for _ in range(2)]
        for number in range(ROUNDS):
            session = f"s{number}"
            found = await asyncio.gather(
                *(start_until_it_may(both[place % 2], session, place) for place in range(STARTS))
            )
            assert sorted(revision for revision, _ in found) == [*range(1, 2 * STARTS, 2)]
            refused += sum(times for _, times in found)
            left = await both[0].client.get_session(session)
            assert (left.revision, left.open_turn_id, left.turn_count) == (2 * STARTS, "", STARTS)
    assert len(servers.asked) == ROUNDS * STARTS
    sys.stdout.write(f"{ROUNDS} sessions of {STARTS} turns, {refused} starts were refused meanwhile\n")


async def test_of_32_starts_at_once_one_turn_waits_for_its_client_and_the_others_are_refused_with_its_id(
    tmp_path: Path, postgres_url: str
) -> None:
    async with open_servers(tmp_path, postgres_url, open_then_note) as servers, AsyncExitStack() as stack:
        both = [await stack.enter_async_context(servers.server(**PATIENT)) for _ in range(2)]
        for number in range(ROUNDS):
            start = TurnStart(session_id=f"s{number}", message="hi", client_tools=[OPEN_FILE])
            found = await asyncio.gather(
                *(both[place % 2].follow(start) for place in range(STARTS)), return_exceptions=True
            )
            (open_one,) = [each for each in found if isinstance(each, list)]
            errors = [each for each in found if isinstance(each, reasond.ReasondError)]
            assert len(errors) == STARTS - 1
            assert {error.reason for error in errors} == {"TURN_LEASED"}
            session = await both[0].client.get_session(f"s{number}")
            assert (session.revision, session.open_turn_id) == (1, open_one[0].turn_id)
