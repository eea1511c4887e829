"""Every registered strategy passes the suite that authors of strategies are given."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.reasoning.registry import ENTRY_POINT_GROUP
from reasond_server.strategies.strategy import ReasoningStrategy
from reasond_server.testing import StrategyConformance

if TYPE_CHECKING:
    from collections.abc import Mapping

MATERIAL = "The wall has four gates.\n\nThe river runs north of it.\n\n" * 30
REGISTERED = sorted(point.name for point in entry_points(group=ENTRY_POINT_GROUP) if "reasond_server." in point.value)
CONFIGS: Mapping[str, list[dict[str, Any]]] = {
    "bounded_context": [{"chunk_size": 1024, "carryover_size": 512}],
    "react": [{"max_iterations": 3}],
    "tree_of_thought": [{"max_depth": 2, "branching": 2}],
    "self_consistency": [{"samples": 3}],
}
"""Small runs, so that every place in them is looked at; a strategy that is not named runs with its defaults."""


def strategy_of(name: str) -> ReasoningStrategy[Any]:
    (point,) = entry_points(group=ENTRY_POINT_GROUP, name=name)
    made = point.load()()
    assert isinstance(made, ReasoningStrategy)
    return made


@pytest.mark.parametrize("check", StrategyConformance.CHECKS)
@pytest.mark.parametrize("name", REGISTERED)
async def test_a_registered_strategy_conforms(name: str, check: str) -> None:
    for config in CONFIGS.get(name, [{}]):
        # The suite tries long texts of its own in windows of several sizes.
        for material in ("",) if check == "stays_within_the_window" else ("", MATERIAL):
            conformance = StrategyConformance(strategy_of(name), config=config, material=material)
            if reason := await conformance.check(check):
                pytest.skip(reason)
