"""Usage can be added and subtracted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.types import NOTHING, Usage, UsageSource
from reasond_server.types.usage import Price

NUMBERS = st.integers(min_value=0, max_value=2**53 - 1)
USAGES = st.builds(
    Usage,
    input_tokens=NUMBERS,
    output_tokens=NUMBERS,
    cached_input_tokens=NUMBERS,
    reasoning_tokens=NUMBERS,
    model_calls=st.integers(min_value=1, max_value=1000),
    source=st.just(UsageSource.ESTIMATED),
)


@given(USAGES, USAGES)
def test_what_was_added_can_be_taken_away(one: Usage, other: Usage) -> None:
    assert one + other - other == one


@pytest.mark.parametrize("source", UsageSource)
def test_nothing_is_left_of_what_is_taken_from_itself_but_where_it_came_from(source: UsageSource) -> None:
    spent = Usage(input_tokens=5, output_tokens=3, model_calls=1, source=source)

    assert spent - spent == Usage(source=source)


PRICE = Price(input_usd=2.5, cached_input_usd=0.25, output_usd=10.0)
CALL = Usage(input_tokens=1_000, cached_input_tokens=400, output_tokens=200, model_calls=1)


def test_a_price_charges_what_was_read_from_the_cache_at_its_own_rate() -> None:
    assert PRICE.charge(CALL).cost_usd == pytest.approx((600 * 2.5 + 400 * 0.25 + 200 * 10) / 1e6)


def test_costs_add_up_and_can_be_taken_away() -> None:
    one = PRICE.charge(CALL)
    assert (NOTHING + one + one).cost_usd == pytest.approx(2 * (one.cost_usd or 0))
    assert (one + one - one).cost_usd == one.cost_usd
    assert (one + Usage()).cost_usd == one.cost_usd


def test_a_call_without_a_price_makes_the_cost_of_all_unknown() -> None:
    assert (PRICE.charge(CALL) + CALL).cost_usd is None
    assert (CALL + PRICE.charge(CALL)).cost_usd is None
    assert (NOTHING + CALL).cost_usd is None
