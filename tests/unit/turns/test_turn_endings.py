"""What callers see of turns that end while a call is open, and of re-entries that come too late."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING, Any, cast

import pytest

from reasond_server.errors.model import ModelFailedError
from reasond_server.errors.turns import HandoffExpiredError, TurnNotAwaitingError
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.testing import Reply
from reasond_server.turns.policy import OnUnknownOutcome, TurnPolicy
from reasond_server.turns.turn_work import TurnWork
from reasond_server.types import FinishReason
from reasond_server.types.turns import LedgerState, ModelCallStep, TurnStart
from tests.turning import CALLER, Note, TurnServer, WallClock, ask_tools, client_tool, settle
from tests.unit.turns.recovering import Servers, end_of, start_and_die

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from reasond_server.errors.base import ReasondError
    from reasond_server.eventlog.store import ExecutionStore


@pytest.fixture(name="servers")
async def processes_on_one_store() -> AsyncGenerator[Servers, None]:
    time = WallClock()
    store = MemoryExecutionStore(max_bytes=10**8, now=time.now, monotonic=time.monotonic)
    found = Servers(store, time)
    yield found
    for server in found.all:
        await server.stop()


class Slow:
    """A store as one process has it: it commits nothing while `gate` is closed, and `meanwhile` precedes a wake.

    `has_read_again` is set when a log is read after a wake.
    """

    def __init__(self, store: ExecutionStore) -> None:
        self._store = store
        self.gate = asyncio.Event()
        self.has_answered = False
        self.has_read_again = asyncio.Event()
        self.meanwhile: Callable[[], Awaitable[object]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def append(self, batch: Any) -> Any:
        await self.gate.wait()
        return await self._store.append(batch)

    async def wake(self, *args: Any, **options: Any) -> Any:
        if self.meanwhile is not None:
            await self.meanwhile()
        found = await self._store.wake(*args, **options)
        self.has_answered = True
        return found

    async def read(self, *args: Any, **options: Any) -> Any:
        found = await self._store.read(*args, **options)
        if self.has_answered:
            self.has_read_again.set()
        return found


@pytest.mark.parametrize("cause", [HandoffExpiredError, TurnNotAwaitingError])
async def test_a_re_entry_that_loses_against_the_end_is_told_why_the_turn_ends(
    servers: Servers, cause: type[ReasondError]
) -> None:
    first = servers.server(ask_tools(("open_file", {"path": "a"})))
    view = await first.run(TurnStart(message="Go", client_tools=[client_tool()]))
    turn_id, handoff = view.turn.turn_id, view.turn.handoff
    assert handoff is not None
    await first.wait_for_suspension(turn_id)
    ending, late = Slow(servers.store), Slow(servers.store)
    other = TurnServer(cast("ExecutionStore", ending), [], time=servers.time)
    third = TurnServer(cast("ExecutionStore", late), [], time=servers.time)
    servers.all += [other, third]
    acts: list[asyncio.Task[object]] = []

    async def end() -> None:
        """Take the turn in another process, which has not committed its end yet."""
        if cause is HandoffExpiredError:
            servers.time.moved_s += 100_000
            await other.round()
            # The clock of the process with the re-entry is behind: for it the hand-off has not expired.
            servers.time.moved_s -= 100_000
        else:
            acts.append(asyncio.create_task(other.service.cancel(CALLER, turn_id)))
        async with asyncio.timeout(60):
            while other.runner.find_live(turn_id) is None:  # noqa: ASYNC110 - a run tells nobody that it begins
                await asyncio.sleep(0.01)

    late.meanwhile = end
    reentry = asyncio.create_task(third.run(settle(turn_id, handoff)))
    await late.has_read_again.wait()
    ending.gate.set()

    with pytest.raises(cause):
        await reentry
    await asyncio.gather(*acts)


async def test_the_ledger_of_a_cancelled_turn_shows_no_call_as_handed_off_or_at_work(servers: Servers) -> None:
    note = Note()
    note.gate.clear()
    asks = [ask_tools(("open_file", {"path": "a"})), ask_tools(("note", {"text": "x"}), ("note", {"text": "y"}))]
    server = servers.server(*asks, tools=[note])
    waiting = await server.run(TurnStart(message="Go", client_tools=[client_tool()]))
    await server.wait_for_suspension(waiting.turn.turn_id)
    await server.service.cancel(CALLER, waiting.turn.turn_id)
    running = asyncio.create_task(server.run(TurnStart(message="Go")))
    await note.begun.wait()
    (turn_id,) = server.runner.runs.by_id
    await server.service.cancel(CALLER, turn_id)
    await asyncio.wait([running])

    ledgers = [(await server.service.get(CALLER, name)).turn.ledger for name in (waiting.turn.turn_id, turn_id)]
    assert [[one.state for one in ledger] for ledger in ledgers] == [
        [LedgerState.NOT_RUN],
        [LedgerState.UNKNOWN, LedgerState.NOT_RUN],
    ]


async def test_a_call_whose_outcome_the_client_did_not_tell_stays_unknown_when_the_hand_off_expires(
    servers: Servers,
) -> None:
    note, policy = Note(), TurnPolicy(on_unknown_outcome=OnUnknownOutcome.ASK)
    turn_id = await start_and_die(servers, note, policy=policy)
    other = servers.server(tools=[note], policy=policy)
    await other.round()
    async with asyncio.timeout(60):
        while (await other.service.get(CALLER, turn_id)).turn.handoff is None:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    await other.wait_for_suspension(turn_id)
    servers.time.moved_s += policy.handoff_ttl_s + 1
    async with asyncio.timeout(60):
        while (await other.service.get(CALLER, turn_id)).turn.handoff is not None:
            await other.round()

    assert (await end_of(other, turn_id)).finish_reason is FinishReason.EXPIRED
    assert [one.state for one in (await other.service.get(CALLER, turn_id)).turn.ledger] == [LedgerState.UNKNOWN]


@pytest.mark.parametrize("tool", ["note", "open_file"])
async def test_what_a_turn_was_made_of_goes_with_it(servers: Servers, tool: str) -> None:
    server = servers.server(ask_tools((tool, {"path": "a"})), "Done", tools=[Note()])
    gc.collect()
    gc.disable()
    try:
        of_other_tests = count_in_memory(TurnWork)
        view = await server.run(TurnStart(message="Go", client_tools=[client_tool()]))
        await server.wait_for_suspension(view.turn.turn_id)
        assert count_in_memory(TurnWork) == of_other_tests
    finally:
        gc.enable()


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_what_the_model_had_written_of_a_reply_that_was_cut_is_in_the_log(
    servers: Servers, *, is_cancelled: bool
) -> None:
    half = "The list has four en"
    broken = Reply(text=half, reasoning="Hm.", error=ModelFailedError("the connection broke"))
    hanging = Reply(pieces=[half, "tries"], reasoning="Hm.", hold=asyncio.Event(), hold_after=1)
    server = servers.server(hanging if is_cancelled else broken)
    running = asyncio.create_task(server.run(TurnStart(message="Go")))
    if is_cancelled:
        await server.wait_for_calls(1)
        (turn_id,) = server.runner.runs.by_id
        await asyncio.sleep(0.05)
        await server.service.cancel(CALLER, turn_id)
        await asyncio.wait([running])
    else:
        with pytest.raises(ModelFailedError) as failed:
            await running
        turn_id = str(failed.value.execution_id)

    (step,) = [event for event in await server.log(turn_id) if isinstance(event, ModelCallStep)]
    assert (step.text, step.thinking, step.finish) == (half, "Hm.", "cut")
    assert step.usage.output_tokens > 0
    assert (await end_of(server, turn_id)).answer == ""


def count_in_memory(kind: type) -> int:
    return sum(type(one) is kind for one in gc.get_objects())
