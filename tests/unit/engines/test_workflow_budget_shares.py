"""Shares and what was spent never exceed the budget together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.engines.workflow import BudgetShares
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.types import Budget, Usage, UsageSource

MOST = Budget(max_total_tokens=100, max_output_tokens=40, max_model_calls=2)


def spend(tokens: int, *, written: int = 0, calls: int = 1) -> Usage:
    return Usage(input_tokens=tokens - written, output_tokens=written, model_calls=calls, source=UsageSource.REPORTED)


def test_without_a_budget_nothing_bounds_a_share() -> None:
    assert BudgetShares(Budget()).reserve(MOST) == Budget()


def test_a_share_is_what_is_left_of_each_limit_at_most() -> None:
    shares = BudgetShares(Budget(max_total_tokens=250, max_output_tokens=60))
    assert shares.reserve(MOST) == Budget(max_total_tokens=100, max_output_tokens=40)
    assert shares.reserve(MOST) == Budget(max_total_tokens=100, max_output_tokens=20)
    with pytest.raises(TokenBudgetExhaustedError) as refused:
        shares.reserve(MOST)
    assert refused.value.metadata == {"limit": "max_output_tokens", "allowed": "60", "spent": "60", "needed": "1"}


def test_what_a_share_did_not_spend_is_left_to_others() -> None:
    shares = BudgetShares(Budget(max_total_tokens=120, max_model_calls=2))
    first = shares.reserve(MOST)
    shares.settle(first, spend(30), 0)
    assert shares.reserve(MOST) == Budget(max_total_tokens=90, max_model_calls=1)


def test_a_lost_attempt_counts_as_spent() -> None:
    shares = BudgetShares(Budget(max_total_tokens=120))
    shares.settle(shares.reserve(MOST), spend(30), 70)
    assert shares.reserve(MOST).max_total_tokens == 20


def test_a_refused_share_reserves_nothing() -> None:
    shares = BudgetShares(Budget(max_total_tokens=200, max_model_calls=2))
    first = shares.reserve(MOST)
    with pytest.raises(TokenBudgetExhaustedError):
        shares.reserve(MOST)
    shares.settle(first, spend(0, calls=0), 0)
    assert shares.reserve(MOST) == Budget(max_total_tokens=100, max_model_calls=2)


@given(st.integers(1, 500), st.lists(st.tuples(st.integers(1, 100), st.floats(0, 1), st.booleans()), max_size=30))
def test_shares_never_exceed_the_budget(limit: int, steps: list[tuple[int, float, bool]]) -> None:
    shares, opened, spent = BudgetShares(Budget(max_total_tokens=limit)), [], 0
    for most, part, is_settled in steps:
        try:
            opened.append(shares.reserve(Budget(max_total_tokens=most)))
        except TokenBudgetExhaustedError:
            assert spent + sum(each.max_total_tokens or 0 for each in opened) == limit
        if is_settled and opened:
            share = opened.pop(0)
            used = int((share.max_total_tokens or 0) * part)
            spent += used
            shares.settle(share, spend(used), 0)
        assert spent + sum(each.max_total_tokens or 0 for each in opened) <= limit
