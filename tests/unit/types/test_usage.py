"""Usage can be added and subtracted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.types import Usage, UsageSource

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
