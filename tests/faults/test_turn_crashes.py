"""Real servers of turns are killed at the worst moments: effects happen once, nothing is paid twice, budgets hold.

By hand: `TURN_KILLS=20 pytest -n0 tests/faults/test_turn_crashes.py`, and `TURN_LOADS=100` for the budgets.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import Counter, defaultdict
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

import reasond
from reasond.v1.errors_pb2 import ERROR_REASON_TOOL_OUTCOME_UNKNOWN
from reasond.v1.execution_pb2 import FINISH_REASON_ANSWERED, Budget, ExecutionCursor
from reasond.v1.turns_pb2 import (
    LEDGER_STATE_STARTED,
    LEDGER_STATE_UNKNOWN,
    TurnStart,
)
from tests.engines.redis_server import running_redis
from tests.faults.turn_servers import (
    OPEN_FILE,
    PATIENCE_S,
    ask_tool,
    open_servers,
    read_count,
    say,
    settle,
)

if TYPE_CHECKING:
    from pathlib import Path

    from reasond.v1.turn_service_pb2 import ExecuteTurnResponse
    from tests.faults.turn_servers import Asked, TurnServer, TurnServers

pytestmark = [pytest.mark.slow, pytest.mark.timeout(14_400)]

KILLS = read_count("TURN_KILLS", 2)
NAMES = ("note", "safe_note")
PAIRS = 5
"""Turns whose server is killed at once, of each kind of tool."""
LOADS = read_count("TURN_LOADS", 1)
TURNS = 64
TURN_BUDGET = 9_000
ACCOUNT = 200_000
DAY_S = 86_400


def note_once(asked: Asked) -> bytes:
    """Call the tool that the text names, then answer."""
    name = asked.text.split()[1]
    return say("Done.") if asked.results else ask_tool((name, {"text": asked.text}))


async def start_tool(server: TurnServer, text: str) -> str:
    """Return a turn whose tool has begun, as its log says."""
    async for each in server.client.execute_turn(TurnStart(message=text), reconnect=False):
        if each.HasField("tool") and each.tool.state == LEDGER_STATE_STARTED:
            return each.turn_id
    raise AssertionError(text)


async def test_a_tool_that_was_at_work_when_its_server_was_killed_is_repeated_with_its_key_or_is_unknown(
    tmp_path: Path,
) -> None:
    """S4: the kill comes after STARTED is committed and before the outcome, also before the tool has begun."""
    store, turns = f"sqlite:///{tmp_path / 'reasond.db'}", dict[str, str]()
    async with open_servers(tmp_path, store, note_once) as servers:
        for number in range(KILLS + 1):
            async with servers.server() as server:
                await asyncio.gather(*(check_tool(servers, server, *turn) for turn in turns.items()))
                if number == KILLS:
                    break
                texts = [f"hold {name} {number}-{pair}" for name in NAMES for pair in range(PAIRS)]
                ids = await asyncio.gather(*(start_tool(server, text) for text in texts))
                turns = dict(zip(texts, ids, strict=True))
                # Nothing waits for this: it varies how far the tool has come.
                await asyncio.sleep(random.uniform(0, 0.03))  # noqa: S311 - no secret
                server.kill()
    notes = servers.count_notes()
    once, safe = ([notes[f"hold {name} {n}-{pair}"] for n in range(KILLS) for pair in range(PAIRS)] for name in NAMES)
    sys.stdout.write(
        f"{KILLS} kills, each of {PAIRS} + {PAIRS} turns: {sum(count > 1 for count in once)} repeats of the tool that "
        f"must not run twice (it had begun in {sum(once)}), {safe.count(2)} repeats of the idempotent one\n"
    )


async def check_tool(servers: TurnServers, server: TurnServer, text: str, turn_id: str) -> None:
    """Check how a turn ended whose tool was at work when its server was killed."""
    last = (await server.read_log(turn_id))[-1].completed
    states = [each.state for each in (await server.client.get_turn(turn_id)).turn.ledger]
    keys = [note["key"] for note in servers.notes if note["text"] == text]
    if " safe_note " in text:
        assert last.answer == "Done."
        assert 1 <= len(keys) <= 2
        assert len(set(keys)) == 1
        return
    assert (last.error.reason, states) == (ERROR_REASON_TOOL_OUTCOME_UNKNOWN, [LEDGER_STATE_UNKNOWN])
    assert len(keys) <= 1


def note_and_open(asked: Asked) -> bytes:
    """Call a tool of the server and one of the client in one reply, then the server's again, then answer."""
    replies = {
        0: ask_tool(("note", {"text": f"{asked.text} first"}), ("open_file", {})),
        2: ask_tool(("note", {"text": f"{asked.text} second"})),
    }
    return replies.get(asked.results) or say(f"Done: {asked.text}")


def forget_time(events: list[ExecuteTurnResponse]) -> list[bytes]:
    """Return the events as bytes."""
    return [each.SerializeToString(deterministic=True) for each in events]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_turns_that_waited_when_their_server_was_killed_go_on_in_another_one_whose_prompts_differ(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """S5: no model call is paid twice, no tool runs twice, no event is lost."""
    url = f"sqlite:///{tmp_path / 'reasond.db'}" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    texts = [f"turn {number}" for number in range(8)]
    before, after = (
        {"REASOND__TURNS__MODES__DEFAULT__INSTRUCTIONS": words} for words in ("Be brief.", "Write as much as you can.")
    )
    async with open_servers(tmp_path, url, note_and_open) as servers:
        async with servers.server(**before) as server:
            starts = [
                TurnStart(session_id=text.replace(" ", "-"), message=text, client_tools=[OPEN_FILE]) for text in texts
            ]
            waiting = await asyncio.gather(*(server.follow(start) for start in starts))
            server.kill()
        async with servers.server(**after, REASOND__TOOLS__ENABLED='["note"]') as server:
            reentries = [settle(events[0].turn_id, events[-1].handed_off, "read") for events in waiting]
            await asyncio.gather(*(server.follow(reentry) for reentry in reentries))
            logs = await asyncio.gather(*(server.read_log(events[0].turn_id) for events in waiting))
    for text, events, log in zip(texts, waiting, logs, strict=True):
        assert log[-1].completed.answer == f"Done: {text}"
        assert forget_time(log)[: len(events)] == forget_time(events)
    assert servers.count_notes() == {f"{text} {when}": 1 for text in texts for when in ("first", "second")}
    assert Counter(asked.text for asked in servers.asked) == dict.fromkeys(texts, 3)
    assert [sum(words in asked.prompt for asked in servers.asked) for words in ("Be brief.", "as much as")] == [8, 16]


async def test_a_server_that_drains_hands_its_turns_over(tmp_path: Path, postgres_url: str) -> None:
    texts = [f"turn {number}" for number in range(8)]

    def note_thrice(asked: Asked) -> bytes:
        return say("Done.") if asked.results == 3 else ask_tool(("note", {"text": f"{asked.text} {asked.results}"}))

    async with open_servers(tmp_path, postgres_url, note_thrice) as servers, AsyncExitStack() as stack:
        servers.takes_s = lambda: 0.3
        first, other = [await stack.enter_async_context(servers.server()) for _ in range(2)]
        ids = await asyncio.gather(*(first.client.execute_turn(TurnStart(message=text)).__anext__() for text in texts))
        assert await first.end() == 0
        logs = await asyncio.gather(*(other.read_log(each.turn_id) for each in ids))
    assert [log[-1].completed.answer for log in logs] == ["Done."] * 8
    assert servers.count_notes() == {f"{text} {number}": 1 for text in texts for number in range(3)}


def note_for_ever(asked: Asked) -> bytes:
    """Call a tool in every reply, until the budget ends the turn."""
    return ask_tool(("safe_note", {"text": f"{asked.text} {asked.results}"}))


class Crowd:
    """Many turns whose servers are killed while they run."""

    def __init__(self, servers: TurnServers, budget: Budget) -> None:
        self.servers = servers
        self.budget = budget
        self.running: list[TurnServer] = []
        self.ended = 0

    async def run_turn(self, name: str, number: int) -> ExecuteTurnResponse:
        """Return the last event of a turn, on whichever server is alive."""
        start = TurnStart(message=name, budget=self.budget)
        source: TurnStart | ExecutionCursor = start
        async with asyncio.timeout(PATIENCE_S):
            while True:
                alive = [each for each in self.running if each.is_alive]
                number += 1
                if not alive:
                    await asyncio.sleep(0.05)
                    continue
                server = alive[number % len(alive)]
                try:
                    async for each in server.client.execute_turn(source, request_id=name, reconnect=False, follow=True):
                        source = ExecutionCursor(execution_id=each.turn_id, after_sequence=each.sequence)
                        if each.HasField("completed"):
                            self.ended += 1
                            return each
                except (reasond.UnavailableError, reasond.CallCancelledError):
                    await asyncio.sleep(0.05)

    async def kill_at_random(self, stack: AsyncExitStack, environ: dict[str, str], kills: int) -> None:
        """Kill a server now and then while turns run, and start another in its place."""
        for _ in range(kills):
            before = len(self.servers.asked)
            # The number of model calls until the kill is random, and so is the moment within one.
            wanted = before + random.randrange(10, 60)  # noqa: S311 - no secret
            while len(self.servers.asked) < wanted and self.ended < TURNS:  # noqa: ASYNC110 - the model tells nobody
                await asyncio.sleep(0.01)
            if self.ended == TURNS:
                return
            dead = self.running.pop(random.randrange(len(self.running)))  # noqa: S311 - no secret
            dead.kill()
            self.running.append(await stack.enter_async_context(self.servers.server(**environ)))


async def spend(
    parent: Path, store_url: str, environ: dict[str, str], budget: Budget, load: int
) -> tuple[TurnServers, float]:
    """Return the servers after all turns have ended, and the seconds that it took."""
    folder = parent / str(load)
    async with open_servers(folder, store_url, note_for_ever) as servers, AsyncExitStack() as stack:
        servers.takes_s = lambda: random.uniform(0.01, 0.3)  # noqa: S311 - no secret
        crowd = Crowd(servers, budget)
        crowd.running = [await stack.enter_async_context(servers.server(**environ)) for _ in range(2)]
        since_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            turns = [group.create_task(crowd.run_turn(f"load-{load}-turn-{place}", place)) for place in range(TURNS)]
            group.create_task(crowd.kill_at_random(stack, environ, 3))
        assert all(each.result().completed.finish_reason != FINISH_REASON_ANSWERED for each in turns)
        return servers, time.monotonic() - since_s


async def test_a_turn_never_costs_more_than_its_budget_however_often_its_servers_are_killed(
    tmp_path: Path, postgres_url: str
) -> None:
    """S12: what the model's side counts, each byte of a prompt as a token, and all that it was allowed to write."""
    most, spent_by_turn = 0, 0
    for load in range(LOADS):
        servers, _ = await spend(tmp_path, postgres_url, {}, Budget(max_total_tokens=TURN_BUDGET), load)
        spent: dict[str, int] = defaultdict(int)
        for asked in servers.asked:
            spent[asked.text] += asked.tokens
        assert len(spent) == TURNS
        assert max(spent.values()) <= TURN_BUDGET
        most, spent_by_turn = max(most, *spent.values()), spent_by_turn + sum(spent.values())
    mean = spent_by_turn / LOADS / TURNS
    sys.stdout.write(f"{LOADS} x {TURNS} turns, budget {TURN_BUDGET}: most {most}, mean {mean:.0f} tokens\n")


async def test_all_turns_of_a_caller_never_cost_more_than_its_account_however_often_servers_are_killed(
    tmp_path: Path, postgres_url: str
) -> None:
    """S12: servers share the account in Redis; what a dead server had reserved stays spent."""
    shares = []
    for load in range(LOADS):
        async with running_redis() as redis:
            environ = {
                "REASOND__LIMITS__TOKENS_PER_DAY": str(ACCOUNT),
                "REASOND__LIMITS__STORAGE": "redis",
                "REASOND__LIMITS__REDIS_URL": redis.url,
                "REASOND__LIMITS__ON_BACKEND_FAILURE": "closed",
            }
            servers, took_s = await spend(tmp_path, postgres_url, environ, Budget(), load)
        spent = sum(asked.tokens for asked in servers.asked)
        assert spent <= ACCOUNT * (1 + took_s / DAY_S) + 1
        shares.append(spent / ACCOUNT)
    sys.stdout.write(f"{LOADS} loads, account {ACCOUNT}: spent {min(shares):.0%} to {max(shares):.0%}\n")
