"""Intervals and tests against figures of the literature and of other programs."""

from __future__ import annotations

import random

import pytest

from reasond_server.evaluation.report import compare, compute_interval, compute_mcnemar


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_the_interval_is_that_of_newcombe_1998_table_1(right: int, n: int, low: float, high: float) -> None:
    found = compute_interval(right, n)
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)


def test_of_nothing_nothing_is_known() -> None:
    assert (compute_interval(0, 0).low, compute_interval(0, 0).high) == (0.0, 1.0)


@pytest.mark.parametrize(("lost", "won", "p"), [(0, 0, 1.0), (1, 1, 1.0), (0, 5, 0.0625), (2, 10, 0.03857421875)])
def test_the_exact_test_is_a_fair_coin_for_each_unequal_pair(lost: int, won: int, p: float) -> None:
    assert compute_mcnemar(lost, won) == p == compute_mcnemar(won, lost)


def test_the_interval_of_a_difference_covers_it_about_as_often_as_it_says() -> None:
    draw = random.Random(7)  # noqa: S311 - a simulation
    covered, rounds = 0, 2000
    for _ in range(rounds):
        first = [draw.random() < 0.5 for _ in range(60)]
        # The second has right what the first has, but in a tenth of the cases, and a fifth of what the first has wrong.
        second = [draw.random() < (0.9 if each else 0.2) for each in first]
        found = compare(first, second)
        covered += found.interval.low <= 0.05 <= found.interval.high
    assert 0.92 <= covered / rounds <= 0.99


def test_pairs_are_counted() -> None:
    found = compare([True, True, False, False], [True, False, True, True])
    assert (found.lost, found.won, found.difference, found.n) == (1, 2, 0.25, 4)
