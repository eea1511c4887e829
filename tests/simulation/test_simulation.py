"""Simulations from seeds: three hundred of them, the same result for the same seed, and faults that they must find."""

import pytest

from tests.simulation.__main__ import story_of
from tests.simulation.mutations import MUTATIONS, find_violation
from tests.simulation.simulation import Simulation

SEEDS, PARTS = 300, 10


@pytest.mark.parametrize("part", range(PARTS))
def test_nothing_is_lost_repeated_or_changed_whatever_dies_and_whenever(part: int) -> None:
    failed = [report for seed in range(part, SEEDS, PARTS) if (report := Simulation(seed).run()).violations]
    assert not failed, "\n".join(map(story_of, failed))


def test_a_seed_gives_the_same_simulation_again() -> None:
    first, again, other = (Simulation(seed).run() for seed in (7, 7, 8))
    assert (first.trace, first.passed_s) == (again.trace, again.passed_s)
    assert first.trace != other.trace


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resume-off-by-one", "told-before-the-commit", "calls-not-found-on-record"])
def test_code_that_is_broken_on_purpose_is_found(name: str) -> None:
    (mutation,) = (one for one in MUTATIONS if one.name == name)
    assert "failed:" in find_violation(mutation, seeds=50)
