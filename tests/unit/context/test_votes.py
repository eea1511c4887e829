"""The count of votes, and the bound of its error against the exact probabilities of draws."""

from __future__ import annotations

from functools import cache
from itertools import product
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reasond_server.context.votes import Tally

CASTS = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=6)
SHARES = st.sampled_from([0.0, 0.3, 0.5, 0.6, 0.75, 1.0])


def outcome(cast: list[str], share: float) -> str:
    tally = Tally(cast=cast)
    return tally.winner if tally.has_agreement(share) else ""


@given(cast=CASTS, left=st.integers(0, 4), share=SHARES)
def test_a_vote_is_decided_exactly_where_every_further_vote_gives_the_same(
    cast: list[str], left: int, share: float
) -> None:
    ends = {outcome([*cast, *more], share) for more in product(["a", "b", "c", "d", "e", ""], repeat=left)}
    assert Tally(cast=cast).is_decided(left, min_agreement=share) == (len(ends) == 1)


@given(cast=CASTS, left=st.integers(1, 4), share=SHARES)
def test_fewer_samples_than_the_fewest_never_decide(cast: list[str], left: int, share: float) -> None:
    fewest = Tally(cast=cast).count_fewest(left, min_agreement=share)
    assert 0 <= fewest <= left
    for count in range(fewest):
        for more in product(["a", "b", "c", "d", "e"], repeat=count):
            assert not Tally(cast=[*cast, *more]).is_decided(left - count, min_agreement=share)


@pytest.mark.parametrize(("samples", "fewest"), [(1, 1), (2, 1), (3, 2), (5, 3), (8, 4), (40, 20)])
def test_half_of_the_samples_can_decide_a_new_vote(samples: int, fewest: int) -> None:
    assert Tally().count_fewest(samples, min_agreement=0) == fewest


def test_of_equals_the_first_given_wins_and_leads_by_nothing() -> None:
    tally = Tally(cast=["b", "a", "", "a", "b"])
    assert (tally.winner, tally.margin, tally.total) == ("b", 0.0, 5)
    assert tally.votes == [("b", 2), ("a", 2)]


def test_without_votes_there_is_no_winner() -> None:
    tally = Tally(cast=["", ""])
    assert (tally.winner, tally.margin, tally.total, tally.has_agreement(0)) == ("", 0.0, 2, False)


def test_a_share_is_reached_in_spite_of_floats() -> None:
    assert Tally(cast=["a"] * 3 + ["b"] * 2).has_agreement(0.6)
    assert Tally(cast=["a", "b", "c"]).has_agreement(1 / 3)
    assert not Tally(cast=["a", "b", "c"]).has_agreement(0.34)


def test_the_margin_is_that_of_shares() -> None:
    assert Tally(cast=["a", "a", "a", "b"]).margin == 0.5
    assert Tally(cast=["a"]).margin == 1.0
    assert Tally(cast=["", "a", "", "", ""]).margin == 0.2


@cache
def is_enough(cast: str, left: int, confidence: float) -> bool:
    return Tally(cast=cast).is_decided(left, min_agreement=0, confidence=confidence)


def find_stop(cast: str, confidence: float) -> str:
    """Return the answer at which a vote over all of `cast`, taken one by one, stops."""
    for count in range(1, len(cast) + 1):
        if is_enough(cast[:count], len(cast) - count, confidence):
            return Tally(cast=cast[:count]).winner
    raise AssertionError("the vote over all samples is decided")


@settings(max_examples=12)
@given(
    counts=st.lists(st.integers(0, 20), min_size=2, max_size=5).filter(lambda counts: 0 < sum(counts) <= 40),
    confidence=st.sampled_from([0.6, 0.8, 0.9]),
    seed=st.integers(0, 2**32),
)
def test_whatever_the_samples_a_vote_in_random_order_seldom_ends_with_another_winner(
    counts: list[int], confidence: float, seed: int
) -> None:
    """The order alone is random: the bound holds for every set of answers, so no distribution of them is assumed."""
    cast = [answer for answer, count in zip("abcde", counts, strict=False) for _ in range(count)]
    order, wrong, draws = Random(seed), 0, 400  # noqa: S311 - an order, no secret
    for _ in range(draws):
        order.shuffle(cast)
        votes = "".join(cast)
        wrong += max(map(votes.count, votes)) > votes.count(find_stop(votes, confidence))
    # Five standard deviations above the bound: one example in a million fails by chance.
    risk = 1 - confidence
    assert wrong <= draws * risk + 5 * (draws * risk * confidence) ** 0.5


@pytest.mark.parametrize("confidence", [0.8, 0.9, 0.95])
@pytest.mark.parametrize("share", [0.5, 0.55, 0.6, 0.7, 0.9])
def test_the_exact_probability_of_a_wrong_stop_is_below_the_bound(share: float, confidence: float) -> None:
    """Two answers, one with the `share` of a model's samples, 40 samples: all paths are summed, not drawn."""
    open_paths, wrong = {"": 1.0}, 0.0
    for count in range(1, 15):
        grown: dict[str, float] = {}
        for path, weight in open_paths.items():
            for answer, chance in (("a", share), ("b", 1 - share)):
                after = path + answer
                if not is_enough(after, 40 - count, confidence):
                    grown[after] = weight * chance
                elif Tally(cast=after).winner == "b":
                    wrong += weight * chance
        open_paths = grown
    assert wrong <= 1 - confidence


@given(cast=st.text("abc", min_size=1, max_size=12), left=st.integers(1, 40))
def test_the_error_bound_is_a_probability_and_more_votes_for_the_winner_lower_it(cast: str, left: int) -> None:
    tally = Tally(cast=cast)
    bound, after = tally.bound_error(left), Tally(cast=cast + tally.winner).bound_error(left - 1)
    assert 0 <= after <= bound <= 1


@pytest.mark.parametrize(("confidence", "fewest"), [(0.8, 5), (0.9, 6), (0.95, 7), (0.99, 10), (1.0, 20)])
def test_so_many_equal_answers_of_forty_end_a_vote(confidence: float, fewest: int) -> None:
    assert Tally().count_fewest(40, min_agreement=0, confidence=confidence) == fewest


def test_without_votes_nothing_is_known() -> None:
    assert Tally(cast=["", ""]).bound_error(3) == 1


@given(
    votes=st.lists(st.tuples(st.sampled_from(["a", "b", "c", ""]), st.floats(0.01, 1)), min_size=1, max_size=5),
    more=st.lists(st.tuples(st.sampled_from(["a", "b", "c", "d", ""]), st.floats(0.01, 1)), max_size=3),
)
def test_a_weighed_vote_that_is_decided_stays_so_whatever_the_others_weigh(
    votes: list[tuple[str, float]], more: list[tuple[str, float]]
) -> None:
    tally = Tally(cast=[answer for answer, _ in votes], weights=[weight for _, weight in votes])
    after = [*votes, *more]
    if tally.winner and tally.is_decided(len(more), min_agreement=0):
        whole = Tally(cast=[answer for answer, _ in after], weights=[weight for _, weight in after])
        assert whole.winner == tally.winner
