"""Thoughts and judgements in the form that the prompt asks for, and with deviations from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.strategies.tree_of_thought.thoughts import ProposedThought, read_points, read_score, split_thoughts


@pytest.mark.parametrize(
    ("text", "thoughts"),
    [
        ("Thought 1: add\nThought 2: halve\nand round", ["add", "halve\nand round"]),
        ("Sure!\n**Thought 1:** add\n\n**Thought 2:** halve", ["add", "halve"]),
        ("- Thought #1. add\n- thought #2) halve", ["add", "halve"]),
        ("1. add\n2. halve", ["add", "halve"]),
        ("**1)** add\n**2)** halve", ["add", "halve"]),
        ("Thought 1: first:\n1. add\n2. halve\nThought 2: stop", ["first:\n1. add\n2. halve", "stop"]),
        ("1. only one", ["1. only one"]),
        ("3. add\n7. halve", ["3. add\n7. halve"]),
        ("a thought 1: in a line", ["a thought 1: in a line"]),
        ("plain", ["plain"]),
        (" \n ", []),
        ("Thought 1:\nThought 2: halve", ["halve"]),
    ],
)
def test_thoughts_are_told_apart(text: str, thoughts: list[str]) -> None:
    assert [thought.text for thought in split_thoughts(text, is_whole=True)] == thoughts


def test_each_thought_may_mark_an_answer() -> None:
    text = "Thought 1: so\n<answer>4</answer>\nThought 2: or <answer> 5"
    found = split_thoughts(text, is_whole=True)
    assert found == [ProposedThought(text="so", answer="4"), ProposedThought(text="or", answer="5")]


def test_of_a_reply_that_was_cut_the_last_thought_is_left_out() -> None:
    text = "Thought 1: add\nThought 2: hal"
    assert [thought.text for thought in split_thoughts(text, is_whole=False)] == ["add"]
    assert [thought.text for thought in split_thoughts("Thought 1: ad", is_whole=False)] == ["ad"]
    whole = split_thoughts("Thought 1: add\nThought 2: so <answer>5</answer> mo", is_whole=False)
    assert [thought.answer for thought in whole] == ["", "5"]


def test_an_answer_that_was_cut_is_none() -> None:
    assert split_thoughts("So <answer>4", is_whole=False) == [ProposedThought(text="So 4")]


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


@pytest.mark.parametrize(
    ("text", "scores"),
    [
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
    assert all(thought.text or thought.answer for thought in split_thoughts(text, is_whole=False))
    score = read_score(text)
    assert score is None or 0 <= score <= 1
    points = read_points(text, count=count)
    assert len(points) == count
    assert all(each is None or 0 <= each <= 1 for each in points)


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["Thought 1: ", "\n1. ", "<answer>", "9", "1: 2, ", "no ", "%", "*", " "])
def test_long_hostile_replies_are_read_in_time(unit: str) -> None:
    """A pattern that tries every cut of a text would exceed the time limit of the test."""
    text = unit * (200_000 // len(unit))
    split_thoughts(text, is_whole=True)
    read_score(text)
    read_points(text, count=10)
