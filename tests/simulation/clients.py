"""Clients that start, repeat, leave, resume, cancel and delete at random, and check every event."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.errors.executions import CursorExpiredError, ExecutionNotFoundError
from reasond_server.errors.limits import DrainingError, OverloadedError, StoreUnavailableError
from reasond_server.reasoning.views import read_view
from reasond_server.types import Heartbeat, LastEvent, Principal, TextDelta
from tests.simulation.processes import CutError
from tests.simulation.questions import asked_by_chance
from tests.simulation.world import TENANT

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from reasond_server.reasoning.service import ReasoningService
    from reasond_server.types import StreamEvent, Task
    from tests.simulation.processes import Connection, Process
    from tests.simulation.world import World

CALLER = Principal(subject="ann", tenant=TENANT, permissions=frozenset({"admin"}))
_MOST_ATTEMPTS = 8
_PATIENCE_S = 400.0


class Client:
    """One client with one question; several clients may share a question and its request id."""

    def __init__(self, world: World, choose: Callable[[], Process | None], *, tag: str, request_id: str) -> None:
        self._world = world
        self._chance = world.chance
        self._choose = choose
        self._request_id = request_id
        self._tag = tag
        if tag not in world.questions:
            world.questions[tag] = asked_by_chance(tag, self._chance)
        self._execution_id = ""
        self._last = 0
        self._has_ended = False

    async def live(self) -> None:
        """Act until the answer is known or the client gives up."""
        for _ in range(_MOST_ATTEMPTS):
            await asyncio.sleep(self._chance.choice((0.0, self._chance.random() * 5, self._chance.random() * 30)))
            process = self._choose()
            if process is None:
                continue
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await self._act(process)
            except CutError:
                pass
            except TimeoutError:
                self._world.report(f"a client of {self._execution_id or self._tag} waited {_PATIENCE_S:g} s in vain")
                return
            except ReasondError as error:
                self._judge(error)
            if self._has_ended and self._chance.random() < 0.7:
                return

    async def _act(self, process: Process) -> None:
        """Do one random action of a client."""
        throw = self._chance.random()
        self._world.note(f"{self._tag} turns to {process.name}, {throw:.3f}")
        if not self._execution_id or (self._request_id and throw < 0.25):
            if throw < 0.15 or throw > 0.9:
                await self._execute(process)
            else:
                await self._start(process)
        elif throw < 0.75:
            await self._resume(process)
        elif throw < 0.82:
            await self._ask(process, lambda service: service.desk.cancel(CALLER, self._execution_id))
        elif throw < 0.86:
            await self._ask(process, lambda service: service.desk.delete(CALLER, self._execution_id))
        else:
            await self._get(process)

    def _task(self) -> Task:
        return self._world.questions[self._tag].task()

    def _ask_anew(self) -> None:
        """Ask a new question for a new execution, so that calls of one are not counted for the other."""
        self._tag = self._world.new_id("q")
        self._world.questions[self._tag] = asked_by_chance(self._tag, self._chance)

    async def _start(self, process: Process) -> None:
        if not self._request_id:
            self._ask_anew()
        keep_running, deltas = self._chance.random() < 0.6, self._chance.random() < 0.3

        def stream(service: ReasoningService) -> AsyncGenerator[StreamEvent, None]:
            return service.stream(
                CALLER,
                self._task(),
                request_id=self._request_id,
                include_deltas=deltas,
                keep_running=keep_running,
            )

        self._execution_id, self._last = "", 0
        await self._read(process.call(stream))

    async def _resume(self, process: Process) -> None:
        known = self._execution_id, self._last
        after = self._last if self._chance.random() < 0.7 else self._chance.randint(0, self._last)
        keep_running = self._chance.random() < 0.3

        def resume(service: ReasoningService) -> AsyncGenerator[StreamEvent, None]:
            return service.desk.resume(CALLER, known[0], after_sequence=after, keep_running=keep_running)

        self._last = after
        try:
            await self._read(process.call(resume))
        finally:
            if self._execution_id == known[0]:
                self._last = max(self._last, known[1])

    async def _execute(self, process: Process) -> None:
        """Ask for the answer without a stream; without a request id nobody can come back for it."""
        if not self._request_id:
            self._ask_anew()
        # The next answer may belong to a different execution than the known one.
        self._execution_id, self._last = "", 0
        deadline_s = self._chance.choice((None, None, 2.0, 60.0))

        async def execute(service: ReasoningService) -> None:
            view = await service.execute(CALLER, self._task(), request_id=self._request_id, deadline_s=deadline_s)
            self._world.check_answer(view)

        await self._ask(process, execute)

    async def _get(self, process: Process) -> None:
        seen = sum(1 for sequence in self._world.seen[self._execution_id] if sequence > 1)

        async def get(service: ReasoningService) -> None:
            view = await read_view(service.desk, CALLER, self._execution_id)
            if len(view.steps) + (view.result.finish_reason is not None) < seen and not self._is_gone():
                self._world.report(f"{len(view.steps)} steps of {self._execution_id} were got, {seen} events seen")

        await self._ask(process, get)

    async def _ask(self, process: Process, make: Callable[[ReasoningService], Awaitable[object]]) -> None:
        connection = process.ask(make)
        try:
            if self._chance.random() < 0.15:
                async with asyncio.timeout(self._chance.random() * 5):
                    await connection.take()
            else:
                await connection.take()
        except TimeoutError:
            self._world.note(f"{self._tag} gives up")
        finally:
            connection.close()

    async def _read(self, connection: Connection) -> None:
        """Read all events or some, and leave."""
        most = self._chance.choice((1, 2, 3, 4, 1000, 1000, 1000))
        try:
            while most > 0:
                event = await connection.take()
                if event is None:
                    self._check_end()
                    return
                most -= self._take(event)
                await asyncio.sleep(self._chance.choice((0.0, 0.0, 0.3)))
        finally:
            connection.close()

    def _take(self, event: StreamEvent) -> bool:
        """Check an event; return whether it belongs to the log."""
        self._execution_id = self._execution_id or event.execution_id
        world = self._world
        if event.execution_id != self._execution_id:
            world.report(f"an event of {event.execution_id} came to a follower of {self._execution_id}")
        if isinstance(event.event, Heartbeat | TextDelta):
            if event.sequence != self._last:
                world.report(f"between {self._last} and the next came {event}")
            return False
        if event.sequence != self._last + 1:
            world.report(f"event {event.sequence} of {self._execution_id} came after {self._last}")
        self._last = event.sequence
        self._has_ended = isinstance(event.event, LastEvent)
        world.note(f"seen {event.execution_id} {event.sequence}")
        world.saw(event)
        return True

    def _check_end(self) -> None:
        """Check that a stream that ended without an error delivered the result, unless the log had already ended."""
        if not self._has_ended and self._last == 0:
            self._world.report(f"a stream of {self._execution_id or self._tag} ended without its result")

    def _is_gone(self) -> bool:
        return self._world.is_gone(self._execution_id)

    def _judge(self, error: ReasondError) -> None:
        """Report an error that no fault of the simulation explains."""
        self._world.note(f"{self._tag} is told {error.reason}")
        self._world.happened[error.reason] += 1
        if isinstance(error, DrainingError | OverloadedError | StoreUnavailableError):
            return
        if isinstance(error, ExecutionNotFoundError | CursorExpiredError):
            if self._execution_id and not self._is_gone():
                self._world.report(f"{self._execution_id} was not found, but nobody deleted it: {error!r}")
            elif (
                self._execution_id
                and isinstance(error, CursorExpiredError)
                and self._execution_id not in self._world.expired
            ):
                self._world.report(f"{self._execution_id} is said to be expired, but it was deleted")
            self._execution_id = ""
            return
        if isinstance(error, InternalError):
            self._world.report(f"a client of {self._execution_id or self._tag} was told {error!r}")
        self._has_ended = True
