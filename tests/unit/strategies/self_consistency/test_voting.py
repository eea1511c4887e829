"""Votes: what is called decided cannot be changed any more, and nothing is called decided too late."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.strategies.self_consistency.voting import Tally

CASTS = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=6)
SHARES = st.sampled_from([0.0, 0.3, 0.5, 0.6, 0.75, 1.0])


def outcome(cast: list[str], share: float) -> str:
    tally = Tally(cast=cast)
    return tally.winner if tally.agrees(share) else ""


@given(cast=CASTS, left=st.integers(0, 4), share=SHARES)
def test_a_vote_is_decided_exactly_where_every_further_vote_gives_the_same(
    cast: list[str], left: int, share: float
) -> None:
    ends = {outcome([*cast, *more], share) for more in product(["a", "b", "c", "d", "e", ""], repeat=left)}
    assert Tally(cast=cast).is_decided(left, min_agreement=share) == (len(ends) == 1)


@given(cast=CASTS, left=st.integers(1, 4), share=SHARES)
def test_fewer_samples_than_the_fewest_never_decide(cast: list[str], left: int, share: float) -> None:
    fewest = Tally(cast=cast).fewest(left, min_agreement=share)
    assert 0 <= fewest <= left
    for count in range(fewest):
        for more in product(["a", "b", "c", "d", "e"], repeat=count):
            assert not Tally(cast=[*cast, *more]).is_decided(left - count, min_agreement=share)


@pytest.mark.parametrize(("samples", "fewest"), [(1, 1), (2, 1), (3, 2), (5, 3), (8, 4), (40, 20)])
def test_half_of_the_samples_can_decide_a_new_vote(samples: int, fewest: int) -> None:
    assert Tally().fewest(samples, min_agreement=0) == fewest


def test_of_equals_the_first_given_wins_and_leads_by_nothing() -> None:
    tally = Tally(cast=["b", "a", "", "a", "b"])
    assert (tally.winner, tally.margin, tally.total) == ("b", 0.0, 4)
    assert tally.votes == [("b", 2), ("a", 2)]


def test_without_votes_there_is_no_winner() -> None:
    tally = Tally(cast=["", ""])
    assert (tally.winner, tally.margin, tally.total, tally.agrees(0)) == ("", 0.0, 0, False)


def test_a_share_is_reached_in_spite_of_floats() -> None:
    assert Tally(cast=["a"] * 3 + ["b"] * 2).agrees(0.6)
    assert Tally(cast=["a", "b", "c"]).agrees(1 / 3)
    assert not Tally(cast=["a", "b", "c"]).agrees(0.34)


def test_the_margin_is_that_of_shares() -> None:
    assert Tally(cast=["a", "a", "a", "b"]).margin == 0.5
    assert Tally(cast=["a"]).margin == 1.0
