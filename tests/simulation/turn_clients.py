"""Clients of turns: they start, re-enter, attach, cancel and delete at random, and check what they are told."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.errors.executions import CursorExpiredError, ExecutionNotFoundError
from reasond_server.errors.limits import DrainingError, OverloadedError, StoreUnavailableError
from reasond_server.errors.turns import (
    EtagMismatchError,
    HandoffExpiredError,
    SessionNotFoundError,
    ToolResultsMissingError,
    ToolResultsUnexpectedError,
    TurnLeasedError,
    TurnNotAwaitingError,
    TurnNotFoundError,
)
from reasond_server.turns.handoff import digest_of_reentry
from reasond_server.types import Cursor, FinishReason, Heartbeat, LastEvent, TextDelta, ToolResult
from reasond_server.types.turns import CallKind, Decision, HandedOff, Reentered, ResultPart, TurnReentry, TurnResult
from tests.simulation.clients import CALLER, Client
from tests.simulation.processes import CutError
from tests.simulation.turn_scripts import script_by_chance

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from reasond_server.turns.turn_service import TurnService
    from tests.simulation.processes import Connection, Process
    from tests.simulation.world import World

_GONE = (ExecutionNotFoundError, CursorExpiredError, TurnNotFoundError)
_ALLOWED = (DrainingError, OverloadedError, StoreUnavailableError, TurnLeasedError, SessionNotFoundError)


class TurnClient(Client):
    """One client of a session, which other clients may use as well."""

    def __init__(self, world: World, choose: Callable[[], Process | None], *, session_id: str) -> None:
        tag = world.new_id("t")
        super().__init__(world, choose, tag=tag, request_id="")
        del world.questions[tag]
        self._session_id = session_id
        self._handoff: HandedOff | None = None
        self._renew()

    def _renew(self) -> None:
        """Ask for another turn from now on."""
        self._tag = self._world.new_id("t")
        self._request_id = f"r-{self._tag}" if self._chance.random() < 0.5 else ""
        self._world.turns.scripts[self._tag] = script_by_chance(self._tag, self._session_id, self._chance)

    async def _act(self, process: Process) -> None:
        throw = self._chance.random()
        self._world.note(f"{self._tag} turns to {process.name}, {throw:.3f}")
        if not self._execution_id or throw < 0.08 or (self._has_ended and throw < 0.6):
            await self._start(process)
            # Most clients settle what they are asked for at once.
            while self._handoff is not None and self._chance.random() < 0.7:
                await self._reenter(self._handoff)
        elif self._handoff is not None and throw < 0.7:
            await self._reenter(self._handoff)
        elif throw < 0.86:
            await self._attach(process)
        else:
            await self._ask_once(process, throw)

    async def _start(self, process: Process) -> None:
        if self._has_ended or not self._request_id:
            self._renew()
        script, request_id = self._world.turns.scripts[self._tag], self._request_id
        has_deltas, follows = self._chance.random() < 0.2, self._chance.random() < 0.2
        self._execution_id, self._last, self._has_ended, self._handoff = "", 0, False, None
        if self._chance.random() < 0.2:
            await self._ask_turns(process, lambda service: service.run(CALLER, script.start, request_id=request_id))
            return
        connection = process.call_turns(
            lambda service: service.stream(
                CALLER, script.start, request_id=request_id, include_deltas=has_deltas, follow=follows
            )
        )
        # A follower stays while the turn waits for its client, so it may leave before the turn ends.
        limit = asyncio.timeout(200.0 if follows else None)
        try:
            async with limit:
                await self._watch(connection, after=0)
        except TimeoutError:
            if not limit.expired() or not follows:
                raise
            self._world.note(f"{self._tag} gives up")

    async def _attach(self, process: Process) -> None:
        """Follow for a while."""
        after = self._last if self._chance.random() < 0.7 else self._chance.randint(0, self._last)
        cursor, follows = Cursor(execution_id=self._execution_id, after_sequence=after), self._chance.random() < 0.3
        connection = process.call_turns(lambda service: service.stream(CALLER, cursor, follow=follows))
        try:
            async with asyncio.timeout(self._chance.random() * 60):
                await self._watch(connection, after=after)
        except TimeoutError:
            self._world.note(f"{self._tag} gives up")

    async def _watch(self, connection: Connection, *, after: int | None, sent: TurnReentry | None = None) -> None:
        """Read all events or some; `after` None stands for an unknown place, as the first event of a re-entry has."""
        world, last, most = self._world, after, self._chance.choice((1, 2, 4, 1000, 1000, 1000))
        try:
            while most > 0:
                event = await connection.take()
                if event is None:
                    if last == 0:
                        world.report(f"a stream of {self._execution_id or self._tag} ended without an event")
                    return
                if isinstance(event.event, Heartbeat | TextDelta):
                    continue
                if last is not None and event.sequence != last + 1:
                    world.report(f"event {event.sequence} of {event.execution_id} came after {last}")
                if last is None and sent is not None:
                    self._check_winner(event.event, sent)
                self._execution_id = self._execution_id or event.execution_id
                if event.execution_id != self._execution_id:
                    world.report(f"an event of {event.execution_id} came to a follower of {self._execution_id}")
                last = event.sequence
                most -= 1
                world.note(f"seen {event.execution_id} {event.sequence}")
                world.saw(event)
                if event.sequence > self._last:
                    self._last = event.sequence
                    self._handoff = event.event if isinstance(event.event, HandedOff) else None
                    self._has_ended = isinstance(event.event, LastEvent)
                await asyncio.sleep(self._chance.choice((0.0, 0.0, 0.3)))
        finally:
            connection.close()

    def _check_winner(self, first: object, sent: TurnReentry) -> None:
        """Check that the events after a re-entry begin with that very re-entry."""
        if not isinstance(first, Reentered) or (first.etag, first.digest) != (sent.etag, digest_of_reentry(sent)):
            self._world.report(f"{sent} was followed by {first}")
        self._world.happened["re-entry taken or replayed"] += 1

    async def _reenter(self, handoff: HandedOff) -> None:
        """Settle the calls, perhaps several times at once, with different results, only in part, or late."""
        chance, turn_id = self._chance, self._execution_id
        if chance.random() < 0.1:
            left_s = (handoff.expire_time - self._world.loop.now()).total_seconds()
            await asyncio.sleep(max(0.0, min(left_s, 60.0) - 1.0 + chance.random() * 2))
        async with asyncio.TaskGroup() as group:
            for _ in range(chance.choice((1, 1, 2, 3))):
                process = self._choose()
                if process is None:
                    continue
                variant = chance.choice((0, 0, 0, 1))
                flaw = chance.choice(("", "", "", "", "partial", "unknown", "kind", "etag"))
                reentry = _settle(turn_id, handoff, variant=variant, flaw=flaw)
                if not flaw:
                    self._world.turns.sent.add((turn_id, digest_of_reentry(reentry)))
                group.create_task(self._reenter_once(process, reentry, flaw))

    async def _reenter_once(self, process: Process, reentry: TurnReentry, flaw: str) -> None:
        try:
            if self._chance.random() < 0.15:
                await self._ask_turns(process, lambda service: service.run(CALLER, reentry))
            else:
                connection = process.call_turns(lambda service: service.stream(CALLER, reentry))
                await self._watch(connection, after=None, sent=reentry)
        except CutError:
            pass
        except ReasondError as error:
            self._judge_reentry(error, reentry, flaw)

    def _judge_reentry(self, error: ReasondError, reentry: TurnReentry, flaw: str) -> None:
        """Check that the log explains why a re-entry was refused."""
        world, turn_id = self._world, reentry.turn_id
        if error.execution_id or world.is_gone(turn_id) or isinstance(error, (*_ALLOWED, *_GONE)):
            self._judge(error)
            return
        world.note(f"the re-entry of {turn_id} is told {error.reason}")
        world.happened[f"re-entry told {error.reason}"] += 1
        events = [logged.event for logged in world.log_of(turn_id)]
        took = [one for one in events if isinstance(one, Reentered) and one.etag == reentry.etag]
        handed = [one for one in events if isinstance(one, HandedOff) and reentry.etag.startswith(one.etag)]
        if isinstance(error, ToolResultsMissingError | ToolResultsUnexpectedError):
            is_right = bool(flaw) and flaw != "etag"
        elif isinstance(error, EtagMismatchError):
            is_right = flaw == "etag" or (bool(took) and took[0].digest != digest_of_reentry(reentry))
        elif isinstance(error, HandoffExpiredError):
            # The clock of the process that ended the turn may be ahead.
            has_expired = isinstance(events[-1], TurnResult) and events[-1].finish_reason is FinishReason.EXPIRED
            is_right = has_expired or world.loop.now() >= handed[0].expire_time
        elif isinstance(error, TurnNotAwaitingError):
            is_right = not took and (events[-1] is not handed[0] or not world.is_suspended(turn_id))
        else:
            is_right = False
        if not is_right or len(took) > 1:
            world.report(f"{reentry} of {turn_id} was told {error!r}, its log has {took}")

    async def _ask_once(self, process: Process, throw: float) -> None:
        """Make one of the calls without a stream."""
        turn_id, session_id = self._execution_id, self._session_id

        async def get(service: TurnService) -> None:
            view = await service.get(CALLER, turn_id)
            if view.turn.handoff is not None:
                self._handoff = view.turn.handoff

        if throw < 0.91:
            await self._ask_turns(process, get)
        elif throw < 0.94:
            await self._ask_turns(process, lambda service: service.cancel(CALLER, turn_id))
        elif throw < 0.955:
            await self._ask_turns(process, lambda service: service.delete(CALLER, turn_id))
        elif throw < 0.97 and session_id:
            await self._ask_turns(process, lambda service: service.delete_session(CALLER, session_id))
        elif throw < 0.98:
            await self._ask_turns(
                process, lambda service: service.read_tool_result(CALLER, turn_id, "c1", ResultPart())
            )
        else:
            await self._ask_turns(process, lambda service: service.list_sessions(CALLER))

    async def _ask_turns(self, process: Process, make: Callable[[TurnService], Awaitable[object]]) -> None:
        connection = process.ask_parts(lambda parts: make(parts.turns))
        try:
            async with asyncio.timeout(self._chance.random() * 5 if self._chance.random() < 0.15 else None):
                await connection.take()
        except TimeoutError:
            self._world.note(f"{self._tag} gives up")
        finally:
            connection.close()

    def _judge(self, error: ReasondError) -> None:
        """Report an error that neither a fault nor another client explains."""
        world = self._world
        world.note(f"{self._tag} is told {error.reason}")
        world.happened[f"turn client told {error.reason}"] += 1
        if isinstance(error, TurnLeasedError):
            # Its turn is as good as an own one.
            self._execution_id, self._last, self._handoff = error.metadata["turn_id"], 0, None
            self._has_ended = False
        elif isinstance(error, _GONE):
            if self._execution_id and not self._is_gone():
                world.report(f"{self._execution_id} was not found, but nobody deleted it: {error!r}")
            self._execution_id, self._handoff = "", None
        elif isinstance(error, InternalError):
            world.report(f"a client of {self._execution_id or self._tag} was told {error!r}")
        elif not isinstance(error, _ALLOWED):
            self._has_ended = True


def _settle(turn_id: str, handoff: HandedOff, *, variant: int, flaw: str) -> TurnReentry:
    """Return a re-entry; the same `variant` gives the same results, and a `flaw` makes it wrong."""
    results, decisions = [], []
    for one in handoff.calls:
        name = one.call.call_id
        if (one.kind is CallKind.APPROVE) is (flaw != "kind"):
            decisions.append(Decision(call_id=name, is_approved=variant == 0))
        else:
            text = json.dumps({"of": name, "variant": variant})
            results.append(ToolResult(call_id=name, result_json=text, is_error=variant == 1))
    if flaw == "partial":
        results, decisions = results[1:], decisions[1:] if not results else decisions
    elif flaw == "unknown":
        results.append(ToolResult(call_id="c999", result_json="{}"))
    etag = f"{handoff.etag}0" if flaw == "etag" else handoff.etag
    return TurnReentry(turn_id=turn_id, etag=etag, results=tuple(results), decisions=tuple(decisions))
