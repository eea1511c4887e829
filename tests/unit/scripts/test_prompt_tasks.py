"""The tasks of `benchmarks.prompts`, and what it takes for a right answer."""

from __future__ import annotations

import json

import pytest

from benchmarks.made_problems import STORIES, TASKS, TIMES, make_problems
from benchmarks.prompts import is_right

MEDIANS = "What is the median?\nA) 6\nB) 6.5\nC) 7\nD) 4"


@pytest.mark.parametrize(
    ("answer", "right", "question", "is_taken"),
    [
        ("B", "B", MEDIANS, True),
        ("B) 6.5", "B", MEDIANS, True),
        ("6.5", "B", MEDIANS, True),
        ("6", "B", MEDIANS, False),
        ("6.5 or 4", "B", MEDIANS, False),
        ("nothing of these", "B", MEDIANS, False),
        ("So 1,260 euros", "1260", "", True),
        ("1260 or 1261", "1260", "", False),
        ("In Paris.", "paris", "", True),
    ],
)
def test_a_choice_is_right_by_its_letter_or_by_its_text_alone(
    answer: str, right: str, question: str, *, is_taken: bool
) -> None:
    assert is_right(answer, right, question) is is_taken


def test_the_file_of_made_problems_is_what_the_program_makes() -> None:
    problems = [json.loads(line) for line in TASKS.read_text("utf-8").splitlines()]
    assert problems == make_problems()
    assert len({each["question"] for each in problems}) == len(STORIES) * TIMES
    assert all(int(each["answer"]) > 0 for each in problems)
