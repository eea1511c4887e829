"""Clients of repairs in the simulation, and the check of a log that has ended."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

from reasond_server.repair.service.repair_work import REPAIR
from reasond_server.runs.work import WorkRequest
from reasond_server.types import Usage
from reasond_server.types.repairs import CandidateStep, CritiqueStep, ReflectionStep, Repair, RepairStarted
from tests.simulation.clients import CALLER, Client
from tests.simulation.repairs import assignment_by_chance
from tests.simulation.world import TENANT

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.assembly import Parts
    from tests.simulation.processes import Process
    from tests.simulation.world import World


class RepairClient(Client):
    """A client of repairs, which other clients may share: it starts, follows, cancels and deletes."""

    def __init__(self, world: World, choose: Callable[[], Process | None], *, tag: str) -> None:
        super().__init__(world, choose, tag=tag, request_id=f"r-{tag}")
        del world.questions[tag]
        # The same for all clients that share the request id.
        self._assignment = assignment_by_chance(tag, random.Random(f"{world.seed} {tag}"))  # noqa: S311 - a seed
        self._keeps = world.chance.random() < 0.8

    async def _act(self, process: Process) -> None:
        throw = self._chance.random()
        self._world.note(f"{self._tag} turns to {process.name}, {throw:.3f}")
        if not self._execution_id or throw < 0.15:
            await self._begin(process)
        elif throw < 0.9:
            await self._resume(process)
        elif throw < 0.96:
            await self._ask(process, lambda service: service.desk.cancel(CALLER, self._execution_id))
        else:
            await self._ask(process, lambda service: service.desk.delete(CALLER, self._execution_id))

    async def _begin(self, process: Process) -> None:
        async def begin(parts: Parts) -> None:
            request = WorkRequest(
                tenant=TENANT,
                request_id=self._request_id,
                digest="repair",
                keep_running=self._keeps,
                budget=self._assignment.task.budget,
            )
            execution = await parts.runner.start(parts.repairs.create(self._assignment, request))
            if execution.execution_id != self._execution_id:
                self._execution_id, self._last = execution.execution_id, 0

        await process.ask_parts(begin).take()


def judge_repair(world: World, execution_id: str) -> None:
    """Check the log of a repair that has ended."""
    bodies = [logged.event for logged in world.log_of(execution_id)]
    kinds = Counter(type(body) for body in bodies)
    result = bodies[-1]
    if not isinstance(bodies[0], RepairStarted) or not isinstance(result, Repair) or kinds[Repair] != 1:
        world.report(f"the log of {execution_id} begins and ends as {bodies[0]} and {result}")
        return
    world.happened[f"{REPAIR} ended {result.finish_reason}"] += 1
    candidates = [body for body in bodies if isinstance(body, CandidateStep)]
    names = [one.candidate_id for one in candidates]
    numbers = [int(name.removeprefix("cand-")) for name in names]
    if numbers != sorted(set(numbers)):
        world.report(f"the candidates of {execution_id} are {names}")
    judged = [body.candidate_id for body in bodies if isinstance(body, CritiqueStep)]
    if len(judged) != len(set(judged)) or not set(judged) <= set(names):
        world.report(f"the critiques of {execution_id} are of {judged}, its candidates {names}")
    rounds = [body.reflection.iteration for body in bodies if isinstance(body, ReflectionStep)]
    if rounds != list(range(1, len(rounds) + 1)):
        world.report(f"the rounds of {execution_id} are {rounds}")
    if any("did not do the same again" in warning for warning in result.warnings):
        world.report(f"{execution_id} did not repeat its events: {result.warnings}")
    is_fault = result.error is not None and result.error.reason in {"INTERNAL", "NOT_RESUMABLE"}
    if result.error is not None and is_fault and not world.is_given_up(result.error.message):
        world.report(f"{execution_id} failed: {result.error}")
    cost = sum((one.usage for one in candidates), Usage())
    if result.usage.total_tokens < cost.total_tokens:
        world.report(f"{execution_id} cost {result.usage}, its candidates {cost}")
