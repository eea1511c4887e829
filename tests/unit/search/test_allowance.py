"""Allowances: what is reserved cannot be spent twice."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reasond_server.search.allowance import Allowance, Cost

COSTS = st.builds(Cost, model_calls=st.integers(0, 4), tokens=st.integers(0, 100))


@given(costs=st.lists(COSTS, max_size=30), max_calls=st.integers(0, 20), max_tokens=st.integers(0, 500), kept=COSTS)
def test_what_is_taken_and_kept_never_exceeds_the_bounds(
    costs: list[Cost], max_calls: int, max_tokens: int, kept: Cost
) -> None:
    allowance = Allowance(max_calls=max_calls, max_tokens=max_tokens, kept=kept)
    taken = [cost for cost in costs if allowance.reserve(cost)]
    assert allowance.taken == sum(taken, Cost())
    if taken:
        assert (allowance.taken + kept).model_calls <= max_calls
        assert (allowance.taken + kept).tokens <= max_tokens


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
