"""Suspending work in the simulation: its steps have effects; its clients wake, follow and cancel it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from reasond_server.runs.recorded_calls import compute_texts_digest
from tests.napping import UNTIL_CALLED, NappingKind
from tests.simulation.clients import CALLER, Client
from tests.simulation.world import TENANT

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.runs.run import Run
    from tests.simulation.assembly import Parts
    from tests.simulation.processes import Process
    from tests.simulation.world import World


def make_kind(world: World, process: Process) -> NappingKind:
    """Return the kind for one process; each step has an effect that must not happen twice."""

    async def do(run: Run, number: int) -> None:
        tag, execution_id = run.work.request.request_id.removeprefix("r-"), run.identity.execution_id
        what = f'nap "{tag}/{number}"'
        async with run.effects.begin("nap", compute_texts_digest(what), is_idempotent=False) as effect:
            if effect.recorded is not None:
                return
            world.require_right(process, execution_id, what)
            await world.latency(0.5)
            await process.point("nap begun")
            world.effects[what] += not world.is_gone(execution_id)
            world.note(f"effect {what}")
            if world.effects[what] > 1:
                world.report(f"{what} had its effect twice")
            await process.point("nap done")
            await effect.complete("{}")

    return NappingKind(now=world.loop.now, do=do)


class NapClient(Client):
    """A client of suspending work."""

    def __init__(self, world: World, choose: Callable[[], Process | None], *, tag: str) -> None:
        super().__init__(world, choose, tag=tag, request_id=f"r-{tag}")
        del world.questions[tag]
        chance = world.chance
        self._naps = [chance.choice((0.0, 0.0, UNTIL_CALLED, 5.0, 30.0)) for _ in range(chance.randint(1, 5))]
        self._keeps = chance.random() < 0.8

    async def _act(self, process: Process) -> None:
        throw = self._chance.random()
        self._world.note(f"{self._tag} turns to {process.name}, {throw:.3f}")
        if not self._execution_id or throw < 0.15:
            await self._begin(process)
        elif throw < 0.5:
            execution_id = self._execution_id
            await process.ask_parts(lambda parts: parts.runner.wake(TENANT, execution_id)).take()
        elif throw < 0.85:
            await self._follow_a_while(process)
        elif throw < 0.91:
            await self._ask(process, lambda service: service.desk.cancel(CALLER, self._execution_id))
        elif throw < 0.94:
            await self._ask(process, lambda service: service.desk.delete(CALLER, self._execution_id))
        else:
            await self._get(process)

    async def _follow_a_while(self, process: Process) -> None:
        """Follow for a while only: perhaps nobody ever wakes the execution."""
        try:
            async with asyncio.timeout(self._chance.random() * 60):
                await self._resume(process)
        except TimeoutError:
            self._world.note(f"{self._tag} gives up")

    async def _begin(self, process: Process) -> None:
        async def begin(parts: Parts) -> None:
            work = parts.napping.create(
                self._naps, tenant=TENANT, request_id=self._request_id, digest="naps", keep_running=self._keeps
            )
            execution = await parts.runner.start(work)
            if execution.execution_id != self._execution_id:
                self._execution_id, self._last = execution.execution_id, 0

        await process.ask_parts(begin).take()
