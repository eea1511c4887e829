"""Allowances: a reserved amount cannot be spent twice."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.search.allowance import Allowance, Cost

COSTS = st.builds(
    Cost,
    model_calls=st.integers(0, 4),
    tokens=st.integers(0, 100),
    resources=st.dictionaries(st.sampled_from(["checks", "check_cpu_s"]), st.integers(0, 5), max_size=2),
)


@pytest.mark.slow
@given(
    costs=st.lists(COSTS, max_size=30),
    max_calls=st.integers(0, 20),
    max_tokens=st.integers(0, 500),
    max_checks=st.integers(0, 20),
    margin=COSTS,
)
def test_what_is_taken_and_the_margin_never_exceed_the_bounds(
    costs: list[Cost], max_calls: int, max_tokens: int, max_checks: int, margin: Cost
) -> None:
    bounds = {"checks": max_checks}
    allowance = Allowance(max_calls=max_calls, max_tokens=max_tokens, max_resources=bounds, margin=margin)
    taken = [cost for cost in costs if allowance.reserve(cost)]
    assert allowance.taken == sum(taken, Cost())
    if taken:
        most = allowance.taken + margin
        assert most.model_calls <= max_calls
        assert most.tokens <= max_tokens
        assert most.resources.get("checks", 0) <= max_checks


@given(COSTS, COSTS)
def test_what_is_added_and_taken_away_again_leaves_nothing_behind(one: Cost, other: Cost) -> None:
    assert one + other - other == one + Cost()
    assert one - one == Cost()


def test_settling_gives_back_what_was_not_spent() -> None:
    allowance = Allowance(max_calls=2, max_tokens=100)
    worst = Cost(model_calls=1, tokens=80)
    assert allowance.reserve(worst)
    assert not allowance.reserve(worst)
    allowance.settle(worst, Cost(model_calls=1, tokens=20))
    assert allowance.reserve(worst)
    assert allowance.taken == Cost(model_calls=2, tokens=100)


def test_a_forced_reservation_counts_though_it_is_not_covered() -> None:
    allowance = Allowance(max_calls=1, max_tokens=10)
    assert allowance.reserve(Cost(model_calls=1, tokens=50), is_forced=True)
    assert not allowance.reserve(Cost())


def test_without_bounds_everything_is_covered() -> None:
    assert Allowance(max_calls=None).reserve(Cost(model_calls=10**6, tokens=10**9))


def test_a_resource_that_nobody_bounds_is_counted_all_the_same() -> None:
    allowance = Allowance(max_calls=None, max_resources={"checks": 2})
    worst = Cost(resources={"checks": 1, "check_cpu_s": 60.0})
    assert allowance.reserve(worst)
    assert allowance.reserve(worst)
    assert not allowance.reserve(worst)
    allowance.settle(worst, Cost(resources={"check_cpu_s": 0.5}))
    assert allowance.taken.resources == {"checks": 1, "check_cpu_s": 60.5}
    assert allowance.reserve(worst)
