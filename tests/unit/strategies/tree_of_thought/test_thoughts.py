"""Thoughts in the form that the prompt asks for, and with deviations from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.context.final_replies import EXAMPLE_PROGRAM
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
    assert [thought.text for thought in split_thoughts(text, count=9, is_whole=True)] == thoughts


def test_each_thought_may_mark_an_answer() -> None:
    text = "Thought 1: so\n<answer>4</answer>\nThought 2: or <answer> 5"
    found = split_thoughts(text, count=9, is_whole=True)
    assert found == [ProposedThought(text="so", answer="4"), ProposedThought(text="or", answer="5")]


def test_of_a_reply_that_was_cut_the_last_thought_is_left_out() -> None:
    text = "Thought 1: add\nThought 2: hal"
    assert [thought.text for thought in split_thoughts(text, count=9, is_whole=False)] == ["add"]
    assert [thought.text for thought in split_thoughts("Thought 1: ad", count=9, is_whole=False)] == ["ad"]
    whole = split_thoughts("Thought 1: add\nThought 2: so <answer>5</answer> mo", count=9, is_whole=False)
    assert [thought.answer for thought in whole] == ["", "5"]


def test_an_answer_that_was_cut_is_none() -> None:
    assert split_thoughts("So <answer>4", count=9, is_whole=False) == [ProposedThought(text="So 4")]


@pytest.mark.parametrize(
    ("thought", "answer"),
    [
        ("The pipe fills 36 litres a minute, so it takes 1944 / 36 = 54 minutes.\n\nAnswer: 54", "54"),
        ("So it takes \\(\\boxed{54}\\) minutes.", "54"),
        ("The rest is easy.\n**Final answer:** 54 minutes", "54 minutes"),
        ("Therefore, there are 920 seats.", ""),
        ("Such as <answer>739164</answer>.", ""),
        ("Answer: 739164", ""),
    ],
)
def test_an_answer_that_is_marked_without_our_tag_completes_a_solution(thought: str, answer: str) -> None:
    """What is only concluded may be the result of a step."""
    found = split_thoughts(f"Thought 1: add\nThought 2: {thought}", count=2, is_whole=True)
    assert [each.answer for each in found] == ["", answer]


def test_thoughts_that_must_be_solutions_are_read_to_their_conclusion() -> None:
    text = (
        "Thought 1: 734 - 96 = 638.\nTherefore, 638 pears are left.\nThought 2: Add them first.\nThought 3: So it is 6"
    )
    found = split_thoughts(text, count=3, is_whole=True, is_last=True)
    assert [each.answer for each in found] == ["638", "", "6"]
    cut = split_thoughts(text, count=3, is_whole=False, is_last=True)
    assert [each.answer for each in cut] == ["638", ""]


CHAIN = (
    "Thought 1: We sum up both days.\n\nThought 2: On Friday 0.9 * 920 = 828.\n\nThought 3: On Saturday 920 - 25 = 895."
    "\n\nThought 4: Together 828 + 895 = 1723.\n\nAnswer: <answer>1723</answer>"
)


def test_more_thoughts_than_asked_of_which_the_last_has_an_answer_are_one_solution() -> None:
    """From a real model's reply; the two that were asked for have no answer, and the right one was paid."""
    (found,) = split_thoughts(CHAIN, count=2, is_whole=True)
    assert found.answer == "1723"
    assert "0.9 * 920 = 828" in found.text
    assert "828 + 895 = 1723" in found.text


@pytest.mark.parametrize(
    "copied", ["<answer>739164</answer>", "<answer> 739164\n</answer>", "<answer>739164 pears</answer>"]
)
def test_an_example_that_a_step_copies_does_not_hide_the_answer(copied: str) -> None:
    (found,) = split_thoughts(CHAIN.replace("both days.", f"both days. {copied}"), count=2, is_whole=True)
    assert found.answer == "1723"
    numbered = "To find it:\n1. Add 3.\n2. Halve it.\n3. So \\boxed{5}"
    assert [each.answer for each in split_thoughts(numbered, count=2, is_whole=True)] == ["5"]


def test_a_program_between_tags_is_an_answer_and_the_example_of_one_is_none() -> None:
    text = (
        "Thought 1: Count up.\n<answer>\n```python\ndef f(n):\n    return n + 1\n```\n</answer>\n"
        f"Thought 2: As shown, {EXAMPLE_PROGRAM}"
    )
    found = split_thoughts(text, count=2, is_whole=True)
    assert [each.answer for each in found] == ["```python\ndef f(n):\n    return n + 1\n```", ""]


def test_where_a_program_is_asked_for_what_is_fenced_is_an_answer() -> None:
    """As a real model writes them, which puts no tags around its programs."""
    program = "```python\ndef f(n):\n    return n + 1\n```"
    text = f"Thought 1: Count up.\n\n{program}\n\nThought 2: Or:\n{program}\nTry it:\n{program}\n\nBoth do."
    found = split_thoughts(text, count=2, is_whole=True, is_program=True)
    assert found[0] == ProposedThought(text="Count up.", answer=program)
    assert found[1] == ProposedThought(text="Or:", answer=f"{program}\nTry it:\n{program}")
    assert [each.answer for each in split_thoughts(text, count=2, is_whole=True)] == ["", ""]
    (left_open,) = split_thoughts(f"Count up.\n{program[:-4]}", count=2, is_whole=True, is_program=True)
    assert left_open.answer == program[:-4]
    bare = EXAMPLE_PROGRAM.replace("<answer>\n", "").replace("\n</answer>", "")
    copied = split_thoughts(f"As shown, {bare}", count=2, is_whole=True, is_program=True)
    assert [each.answer for each in copied] == [""]
    (step,) = split_thoughts(f"Count up, {EXAMPLE_PROGRAM}\n{program}", count=2, is_whole=True, is_program=True)
    assert step == ProposedThought(text="Count up, for example:", answer=program)
    cut = split_thoughts(text.partition("\n\nThought 2")[0][:-4], count=2, is_whole=False, is_program=True)
    assert [each.answer for each in cut] == [""]


def test_more_thoughts_than_asked_that_are_alternatives_are_left_out() -> None:
    text = "Thought 1: so <answer>4</answer>\nThought 2: or\nThought 3: else <answer>5</answer>"
    assert [each.answer for each in split_thoughts(text, count=2, is_whole=True)] == ["4", ""]
    open_ones = split_thoughts("Thought 1: a\nThought 2: b\nThought 3: c", count=2, is_whole=True)
    assert [each.text for each in open_ones] == ["a", "b"]
    assert len(split_thoughts(CHAIN, count=4, is_whole=True)) == 4


@given(st.text(alphabet="Thought 0123456789.:/%<>answer*#\n-", max_size=80))
def test_whatever_a_model_writes_is_read_without_fail(text: str) -> None:
    found = split_thoughts(text, count=2, is_whole=False)
    assert len(found) <= 2
    assert all(thought.text or thought.answer for thought in found)


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["Thought 1: ", "\n1. ", "<answer>", "9", "1: 2, ", "no ", "%", "*", " "])
def test_long_hostile_replies_are_read_in_time(unit: str) -> None:
    """A pattern that tries every cut of a text would exceed the time limit of the test."""
    text = unit * (200_000 // len(unit))
    split_thoughts(text, count=9, is_whole=True)
