"""The end-to-end scenarios of the seed of repairs that need many candidates, with a proposer of known accuracy.

Whether real models profit from reflection is not shown here.
"""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from reasond_server.repair.search.repair_policy import RepairParameters
from reasond_server.types.repairs import CandidateStep, RepairSearch
from tests.unit.repair.search.test_repair_run import ScriptedActivities, of_kind, work

if TYPE_CHECKING:
    from reasond_server.repair.search.activities import CandidateOrder, RepairCandidate

CASES = 200
ACCURACY, WITH_EVIDENCE = 0.05, 0.3
PASSING = 100.0
REFLECTING = RepairParameters(search=RepairSearch.REFINE_BEAM, max_candidates=25)
INDEPENDENT = RepairParameters(search=RepairSearch.BEST_OF_N, max_candidates=25)


class Proposer(ScriptedActivities):
    """Repairs with one probability from the original, and with another where it is shown what failed."""

    def __init__(self, seed: str, *, with_evidence: float) -> None:
        self._chance = random.Random(seed)  # noqa: S311 - a seeded, repeatable sequence
        self._with_evidence = with_evidence
        self._right: set[int] = set()
        super().__init__(lambda number: PASSING if number in self._right else 40.0 + number / 100)

    async def generate(self, order: CandidateOrder) -> RepairCandidate:
        probability = ACCURACY if order.previous is None else self._with_evidence
        if self._chance.random() < probability:
            self._right.add(order.number)
        return await super().generate(order)


async def count_repaired(parameters: RepairParameters, *, with_evidence: float) -> int:
    """Return how many cases are repaired; each search has chances of its own."""
    proposers = [Proposer(f"{parameters.search} {case}", with_evidence=with_evidence) for case in range(CASES)]
    return sum([(await work(proposer, parameters))[0].is_accepted for proposer in proposers])


async def test_high_load_candidate_generation() -> None:
    """Ten candidates in each of five rounds: all have names of their own, and the search ends within its bounds."""
    activities = ScriptedActivities(lambda number: 40.0 + number / 10)
    parameters = RepairParameters(num_candidates=10, max_reflection_depth=5, max_candidates=90, patience=1000)
    outcome, events, run = await work(activities, parameters)
    names = [event.candidate_id for event in of_kind(events, CandidateStep)]  # type: ignore[attr-defined]
    assert len(names) == len(set(names)) == 10 + 4 * 2 * 10
    assert len(run.rounds) == 5
    assert outcome.final_candidate_id in names


async def test_self_reflection_efficacy() -> None:
    """With reflection more cases are repaired, p < 0.05, by a proposer that finds more where it sees what failed.

    Both searches have the same number of candidates.
    """
    reflected = await count_repaired(REFLECTING, with_evidence=WITH_EVIDENCE)
    independent = await count_repaired(INDEPENDENT, with_evidence=WITH_EVIDENCE)
    assert compute_p_value(reflected, independent, CASES) < 0.05


async def test_a_proposer_that_learns_nothing_shows_no_effect() -> None:
    """Reflection neither helps nor harms a proposer that is as good with evidence as without."""
    reflected = await count_repaired(REFLECTING, with_evidence=ACCURACY)
    independent = await count_repaired(INDEPENDENT, with_evidence=ACCURACY)
    assert compute_p_value(reflected, independent, CASES) > 0.05
    assert compute_p_value(independent, reflected, CASES) > 0.05


def compute_p_value(one: int, other: int, cases: int) -> float:
    """Return the one-sided probability of such a difference by chance (Fisher's exact test)."""
    found, total = one + other, 2 * cases
    more = range(one, min(found, cases) + 1)
    return sum(math.comb(cases, k) * math.comb(cases, found - k) for k in more) / math.comb(total, found)
