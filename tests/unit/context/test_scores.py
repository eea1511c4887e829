"""Judgements in the form that prompts ask for, and with deviations from it."""

from __future__ import annotations

from math import log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.context.scores import (
    expect_preference,
    expect_score,
    pair_with_pivots,
    read_judgement,
    read_points,
    read_score,
    weigh_matches,
)
from reasond_server.types import TokenChance
from tests.reports.rows import Row, load_rows


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("8", 0.8),
        ("10", 1.0),
        ("0", 0.0),
        ("It holds.\nScore: 7", 0.7),
        ("7/10", 0.7),
        ("3 / 4", 0.75),
        ("85%", 0.85),
        ("0.85", 0.85),
        ("1.0", 1.0),
        ("7.5", 0.75),
        ("Likely.", 0.7),
        ("sure", 1.0),
        ("impossible", 0.0),
        ("no", 0.0),
        ("8.", 0.8),
        ("36", None),
        ("-3", None),
        ("12/10", None),
        ("3/0", None),
        ("not sure", None),
        ("likely or impossible", None),
        ("between 7 and 9", None),
        ("7/10 or 8/10", None),
        ("1,000", None),
        ("great", None),
        ("", None),
    ],
)
def test_what_a_judgement_comes_to(text: str, score: float | None) -> None:
    assert read_score(text) == (None if score is None else pytest.approx(score))


@pytest.mark.parametrize("row", load_rows("judge"), ids=lambda row: row.id)
def test_the_judgements_of_the_corpus_are_read(row: Row) -> None:
    score = row.right["score"]
    assert read_score(row.input["judgement"]) == (None if score is None else pytest.approx(score))


def test_a_tag_that_says_nothing_leaves_the_text_to_be_read() -> None:
    assert read_judgement("N", "Score: 7") == pytest.approx(0.7)
    assert read_judgement("", "Score: 7") == pytest.approx(0.7)
    assert read_judgement("2", "Score: 7") == pytest.approx(0.2)
    assert read_judgement("7-8", "Score: 7") is None


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ("Thought 1: 7/10\nThought 2: 3/10", [0.7, 0.3]),
        ('{"1": 7, "2": 3}', [0.7, 0.3]),
        ("[7, 3]", [0.7, 0.3]),
        ("1. 7\n2. 3", [0.7, 0.3]),
        ("1) 7\n2) 3", [0.7, 0.3]),
        ("| 1 | 7 |\n| 2 | 3 |", [0.7, 0.3]),
        ("**1**: 7, **2**: 3", [0.7, 0.3]),
        ("1\uff1a7\n2\uff1a3", [0.7, 0.3]),
        ("1: 7, 2: 3", [0.7, 0.3]),
        ("2 = 10\n1 -> 0", [0.0, 1.0]),
        ("#1: 7.5", [0.75, None]),
        ("1: 7, 1: 3, 2: 4", [None, 0.4]),
        ("1: 11, 2: 4, 3: 9", [None, 0.4]),
        ("2", [0.25, 1.0]),
        ("The best is 1.", [1.0, 0.25]),
        ("3", [None, None]),
        ("1 or 2", [None, None]),
        ("neither", [None, None]),
    ],
)
def test_what_points_come_to(text: str, scores: list[float | None]) -> None:
    assert read_points(text, count=2) == scores


@given(st.text(alphabet="Thought 0123456789.:/%<>answer*#\n-", max_size=80), st.integers(1, 5))
def test_whatever_a_model_writes_is_read_without_fail(text: str, count: int) -> None:
    score = read_score(text)
    assert score is None or 0 <= score <= 1
    points = read_points(text, count=count)
    assert len(points) == count
    assert all(each is None or 0 <= each <= 1 for each in points)


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["9", "1: 2, ", "no ", "%", "*", " ", "7/"])
def test_long_hostile_judgements_are_read_in_time(unit: str) -> None:
    """A pattern that tries every cut of a text would exceed the time limit of the test."""
    text = unit * (200_000 // len(unit))
    read_score(text)
    read_points(text, count=10)


def say(*tokens: str | dict[str, float]) -> list[TokenChance]:
    """Return tokens; those with several alternatives are given with their probabilities, the written one first."""
    return [
        TokenChance(text=each, logprob=-0.1, top=((each, -0.1),))
        if isinstance(each, str)
        else TokenChance(text=next(iter(each)), logprob=-1.0, top=tuple((text, log(p)) for text, p in each.items()))
        for each in tokens
    ]


def test_an_expected_score_is_the_mean_of_the_digits_by_their_probabilities() -> None:
    tokens = say("So 3 it is. ", "<answer", ">", {"7": 0.6, "3": 0.2, "x": 0.2}, "</answer>")
    assert expect_score(tokens, "7") == pytest.approx((7 * 0.75 + 3 * 0.25) / 9)
    assert expect_score(say("<answer>", "\n", {"9": 1.0}), "9") == pytest.approx(1)


@pytest.mark.parametrize(
    "tokens", [say(), say("No tag, ", {"7": 1.0}), say("<answer>7", "</answer>"), say("<answer>", "seven")]
)
def test_without_a_digit_that_is_a_token_the_written_one_counts(tokens: list[TokenChance]) -> None:
    assert expect_score(tokens, "7") == pytest.approx(7 / 9)
    assert expect_score(tokens, "seven") is None
    assert expect_score(tokens, "10") is None


@given(chances=st.dictionaries(st.sampled_from("0123456789"), st.floats(0.001, 1), min_size=1))
def test_an_expected_score_lies_between_the_digits_that_it_is_made_of(chances: dict[str, float]) -> None:
    score = expect_score(say("<answer>", chances), "")
    assert score is not None
    assert min(map(int, chances)) - 1e-6 <= 9 * score <= max(map(int, chances)) + 1e-6


@pytest.mark.parametrize(
    ("chances", "preference"),
    [
        ({"1": 0.6, "2": 0.2, "7": 0.2}, 0.75),
        ({"2": 0.9}, 0),
        ({"1": 0.3, " 1": 0.3, "2": 0.2}, 0.75),
        ({"7": 1}, None),
    ],
)
def test_a_preference_is_the_probability_of_the_first_among_both(
    chances: dict[str, float], preference: float | None
) -> None:
    expected = None if preference is None else pytest.approx(preference)
    assert expect_preference(say("<answer>", chances), "7") == expected
    assert [expect_preference((), written) for written in ("1", "2", "3", "")] == [1.0, 0.0, None, None]


@pytest.mark.parametrize(
    ("text", "preferred"),
    [
        ("The first solution is better because it has all steps.", 1.0),
        ("Therefore, the second is the better one.", 0.0),
        ("Solution 2 is clearly better.", 0.0),
        ("So the better answer is 2.", 0.0),
        ("The better one is:\n\\[\n\\boxed{1}\n\\]", 1.0),
        ("**Better solution:** Solution 1", 1.0),
        ("The better answer is the second one.", 0.0),
        ("The first solution is better. No, the second one is better.", None),
        ("The first is not better than the second.", None),
        ("Neither passage is better than the other. The final answer is 1", None),
        ("The better answer is 2.5 hours.", None),
        ("The better answer is 26.", None),
        ("Both passages are incorrect. The correct answer is 2.", None),
        ("", None),
    ],
)
def test_a_preference_in_words_is_read_if_it_is_the_only_one(text: str, preferred: float | None) -> None:
    assert expect_preference((), "", text) == preferred


@given(count=st.integers(2, 12), first=st.floats(0, 1))
def test_a_judge_that_prefers_a_place_tells_none_apart(count: int, first: float) -> None:
    matches = pair_with_pivots(count)
    assert len(set(matches)) == len(matches) == 4 * count - 6
    assert list(weigh_matches(count, dict.fromkeys(matches, first))) == [pytest.approx(0.5)] * count


@given(strengths=st.lists(st.integers(1, 1000), min_size=2, max_size=8, unique=True), tilt=st.floats(0.1, 0.9))
def test_a_judge_of_consistent_strengths_ranks_by_them_whichever_are_the_pivots(
    strengths: list[int], tilt: float
) -> None:
    """Half of the judge's mind is on the place: `tilt` is how much it then prefers the first."""
    count = len(strengths)
    judged = {(i, j): (strengths[i] / (strengths[i] + strengths[j]) + tilt) / 2 for i, j in pair_with_pivots(count)}
    shares = weigh_matches(count, judged)
    assert sorted(range(count), key=lambda each: shares[each]) == sorted(range(count), key=lambda each: strengths[each])
