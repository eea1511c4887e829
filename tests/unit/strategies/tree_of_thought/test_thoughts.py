"""Thoughts in the form that the prompt asks for, and with deviations from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.strategies.tree_of_thought.thoughts import ProposedThought, split_thoughts


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


@given(st.text(alphabet="Thought 0123456789.:/%<>answer*#\n-", max_size=80))
def test_whatever_a_model_writes_is_read_without_fail(text: str) -> None:
    assert all(thought.text or thought.answer for thought in split_thoughts(text, is_whole=False))


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["Thought 1: ", "\n1. ", "<answer>", "9", "1: 2, ", "no ", "%", "*", " "])
def test_long_hostile_replies_are_read_in_time(unit: str) -> None:
    """A pattern that tries every cut of a text would exceed the time limit of the test."""
    text = unit * (200_000 // len(unit))
    split_thoughts(text, is_whole=True)
