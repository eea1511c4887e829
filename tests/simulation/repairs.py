"""Repairs in the simulation: the real search over the real journal, and checks that run once."""

from __future__ import annotations

import json
import random
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from reasond_server.llm.model import ChatRequest, Finished, Message, Role, Text
from reasond_server.repair.results.outcomes import Baseline, CheckOutcome, Critique
from reasond_server.repair.search.activities import PatchCheck, RepairCandidate
from reasond_server.repair.search.repair_policy import RepairParameters, RepairPolicy
from reasond_server.repair.search.repair_site import perform_once
from reasond_server.repair.service.assignments import RepairAssignment
from reasond_server.repair.service.repair_work import RepairKind
from reasond_server.runs.recorded_calls import compute_texts_digest
from reasond_server.telemetry.observers import UNOBSERVED
from reasond_server.types import Budget, Usage
from reasond_server.types.repairs import (
    CandidateStatus,
    CandidateVerdict,
    CheckReport,
    CheckRole,
    CheckStatus,
    RepairSearch,
    RepairTask,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from reasond_server.llm.model import ChatModel
    from reasond_server.repair.search.activities import AllActivities, CandidateOrder
    from reasond_server.runs.run import Run
    from tests.simulation.processes import Process
    from tests.simulation.world import World

_PASSING: Final = 100.0
_POLICY: Final = RepairPolicy(enabled=True)


def assignment_by_chance(tag: str, chance: random.Random) -> RepairAssignment:
    """Return a repair; its description is the tag, which decides every reply and every outcome."""
    return RepairAssignment(
        task=RepairTask(
            description=tag,
            environment="simulated",
            budget=Budget(
                max_model_calls=chance.choice((None, None, 3)), max_total_tokens=chance.choice((None, None, 2_000))
            ),
        ),
        parameters=RepairParameters(
            search=chance.choice(list(RepairSearch)),
            num_candidates=chance.choice((1, 2, 4)),
            max_reflection_depth=chance.choice((1, 2, 3)),
            max_candidates=chance.choice((3, 10)),
            patience=chance.choice((2, 100)),
            min_improvement_delta=0.0,
            max_tokens=128,
            seed=chance.choice((None, 1)),
        ),
    )


class SimulatedRepairs(RepairKind):
    """The kind for one process, with a simulated outside behind the real run."""

    def __init__(self, world: World, process: Process, clock: Any) -> None:
        self._world = world
        self._process = process
        self.clock = clock
        self.policy = _POLICY
        self.records_content = True
        self.model = None
        self.engine = None
        self.observer = UNOBSERVED
        self.workshop: Any = _Workshop()

    @asynccontextmanager
    async def open_activities(
        self, run: Run, model: ChatModel, assignment: RepairAssignment
    ) -> AsyncGenerator[AllActivities, None]:
        """Yield the simulated outside."""
        activities: Any = SimulatedActivities(self._world, self._process, run, model, assignment)
        yield activities


class _Workshop:
    class sandbox:  # noqa: N801 - the part of a workshop that the work asks for
        level = "bwrap"


class SimulatedActivities:
    """The outside of one life of a repair: calls go to the upstream, checks are effects of the run."""

    def __init__(
        self, world: World, process: Process, run: Run, model: ChatModel, assignment: RepairAssignment
    ) -> None:
        self._world = world
        self._process = process
        self._run = run
        self._model = model
        self._tag = assignment.task.description
        self._parameters = assignment.parameters
        self.warnings: Sequence[str] = ()
        self.checks_run = 0
        self.check_cpu_s = 0.0
        self.worst_cost: Mapping[str, float] = {"checks": 1.0, "check_cpu_s": 1.0}

    async def measure_baseline(self) -> Baseline:
        for attempt in (1, 2):
            await self._check(f"baseline {attempt}")
        outcome = CheckOutcome(name="tests", role=CheckRole.REPRODUCE, status=CheckStatus.FAILED)
        return Baseline(outcomes={"tests": outcome})

    def bound_tokens(self, order: CandidateOrder) -> int:
        return 256 if order.number else 0

    async def generate(self, order: CandidateOrder) -> RepairCandidate:
        prompt = f"{self._tag}/{order.number}/0"
        request = ChatRequest(
            messages=[Message(role=Role.USER, content=prompt)],
            max_tokens=self._parameters.max_tokens,
            temperature=order.temperature,
            label=order.candidate_id,
        )
        text, usage = "", Usage()
        async with aclosing(self._model.stream(request)) as events:
            async for event in events:
                text += event.text if isinstance(event, Text) else ""
                usage = event.usage if isinstance(event, Finished) else usage
        chance = self._chance(f"code {order.number}")
        code = f"code {chance.randint(1, 8)}"
        is_valid = chance.random() < 0.9
        return RepairCandidate(
            candidate_id=order.candidate_id,
            number=order.number,
            parent_id=order.parent_id,
            depth=order.depth,
            status=CandidateStatus.PROPOSED if is_valid else CandidateStatus.INVALID,
            key=code if is_valid else f"invalid {order.number}",
            changes={"a.py": code.encode()} if is_valid else {},
            diff=code if is_valid else "",
            thought=text,
            problem="" if is_valid else f"no edit in {order.number}",
            usage=usage,
        )

    async def judge(self, candidate: RepairCandidate) -> Critique:
        row = json.loads(await self._check(f"candidate {candidate.key}"))
        is_solution = row["score"] >= _PASSING
        status = CheckStatus.PASSED if is_solution else CheckStatus.FAILED
        return Critique(
            verdict=CandidateVerdict.PASSED if is_solution else CandidateVerdict.FAILED,
            score=row["score"],
            is_solution=is_solution,
            signature=f"behaviour {row['score'] // 20}",
            evidence="" if is_solution else f"evidence {row['score'] // 10}",
            reports=[CheckReport(name="tests", role=CheckRole.REPRODUCE, status=status)],
        )

    async def validate(self, candidate: RepairCandidate) -> PatchCheck:
        is_valid = self._chance(f"patch {candidate.key}").random() < 0.9
        return PatchCheck(patch=candidate.diff, problem="" if is_valid else "does not apply")

    async def judge_held_out(self, candidate: RepairCandidate) -> Sequence[CheckOutcome]:
        row = json.loads(await self._check(f"held out {candidate.key}"))
        status = CheckStatus.PASSED if row["score"] >= 20 else CheckStatus.FAILED
        return [CheckOutcome(name="hidden", role=CheckRole.HELD_OUT, status=status)]

    async def _check(self, what: str) -> str:
        """Return the outcome of a check, which runs once; while it runs, the process may die."""
        world, execution_id = self._world, self._run.identity.execution_id
        marker = f"check {self._tag} {what} is done"

        async def run() -> str:
            world.require_right(self._process, execution_id, marker)
            if any(marker in body for body in world.committed.get(execution_id, ())):
                world.report(f"{marker}, on record, and was run again")
            await world.latency(5.0)
            await self._process.point("check at work")
            world.note(marker)
            world.happened["check"] += 1
            await world.latency(1.0)
            score = self._chance(what).choice((0.0, 15.0, 30.0, 45.0, 60.0, 75.0, _PASSING))
            return json.dumps({"marker": marker, "score": score})

        self.checks_run += 1
        return await perform_once(self._run.effects, "check", compute_texts_digest(marker), run)

    def _chance(self, what: str) -> random.Random:
        """Return chance that is the same in every life."""
        return random.Random(f"{self._tag} {what}")  # noqa: S311 - a seeded, repeatable sequence
