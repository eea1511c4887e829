"""Verdicts of every grader."""

from __future__ import annotations

from typing import Any

import pytest

from reasond_server.evaluation.graders import Grade, Graders
from reasond_server.evaluation.items import Grader, Item
from reasond_server.testing import FunctionPrograms
from reasond_server.tools.programs import ProgramResult


def make(grader: Grader, right: str = "", **more: Any) -> Item:
    return Item(item_id="1", question="q", grader=grader, right=right, **more)


async def is_right(item: Item, answer: str) -> bool:
    return (await Graders().grade(item, answer=answer)).is_right


@pytest.mark.parametrize(
    "answer",
    [
        "1042",
        "1,042",
        "1042.0",
        "$1,042",
        "The answer is 1042.",
        "First 1000, then 42 more, so \\boxed{1042}",
        "20 * 52 = 1040, and 2 more: there are **1,042** rolls.",
        "#### 1042",
        "500 + 542 = 1042\n\nShe earns 1042 euros in a week with 44 hours.",
        "1042.0000000000001",
        "1041.9999999999999",
    ],
)
async def test_a_number_is_found_where_a_person_finds_it(answer: str) -> None:
    assert await is_right(make(Grader.NUMBER, "1,042"), answer)


@pytest.mark.parametrize("answer", ["", "1043", "1042 and then 7", "10 42", "none", "1042.000000001", "1041.99"])
async def test_another_number_is_wrong(answer: str) -> None:
    assert not await is_right(make(Grader.NUMBER, "1042"), answer)


async def test_long_numbers_are_compared_to_their_last_digit() -> None:
    assert not await is_right(make(Grader.NUMBER, "10000000000000000"), "10000000000000001")
    assert not await is_right(make(Grader.NUMBER, "1234567890123.45"), "1234567890123.46")


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ("B", True),
        ("(B)", True),
        ("b", True),
        ("B) blue", True),
        ("The answer is B.", True),
        ("Not A, because red is warm. The answer is (B).", True),
        ("It is blue.", True),
        ("A", False),
        ("red or blue", False),
        ("neither", False),
    ],
)
async def test_a_choice_is_named_by_its_letter_or_its_text(answer: str, verdict: bool) -> None:  # noqa: FBT001 - a case
    assert await is_right(make(Grader.CHOICE, "B", choices=("red", "blue")), answer) is verdict


async def test_texts_patterns_and_json_are_compared() -> None:
    assert await is_right(make(Grader.TEXT, "Paris"), "The answer is **paris**.")
    assert not await is_right(make(Grader.TEXT, "Paris"), "Lyon")
    assert await is_right(make(Grader.PATTERN, pattern=r"\b19\d\d\b"), "in 1969")
    assert not await is_right(make(Grader.PATTERN, pattern=r"\b19\d\d\b"), "in 2069")
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert await is_right(make(Grader.JSON, schema=schema), '{"a": 1}')
    assert await is_right(make(Grader.JSON, '{"a": 1, "b": [2]}'), '{"b": [2], "a": 1.0}')
    assert not await is_right(make(Grader.JSON, '{"a": 1}', schema=schema), '{"a": 2}')
    assert not await is_right(make(Grader.JSON, schema=schema), "a")
    assert (await Graders().grade(make(Grader.JSON, schema=schema), answer="{}")).note


async def test_the_program_of_an_answer_stands_before_its_tests() -> None:
    programs = FunctionPrograms(lambda source: ProgramResult(output="AssertionError", exit_code="x + 2" in source))
    graders, item = Graders(programs=programs), make(Grader.PYTHON, tests="assert f(1) == 2")
    assert (await graders.grade(item, answer="Here:\n```python\ndef f(x): return x + 1\n```")).is_right
    assert programs.sources[0].split("\n") == ["def f(x): return x + 1", "", "assert f(1) == 2", ""]
    shown = "```python\ndef f(x): return x\n```\nprints\n```\n2\n```\n```py\nf(1)\n```"
    await graders.grade(item, answer=shown)
    assert programs.sources[1].startswith("def f(x): return x\n\nf(1)\n\nassert")
    verdict = await graders.grade(item, answer="def f(x): return x + 2")
    assert (verdict.is_right, verdict.note) == (False, "AssertionError")


async def test_what_nobody_can_grade_is_told_before_anything_is_asked() -> None:
    assert "no sandbox" in Graders().find_obstacle([make(Grader.PYTHON, tests="1")])
    assert "judge" in Graders().find_obstacle([make(Grader.JUDGE, "x")])
    assert Graders().find_obstacle([make(Grader.TEXT, "x")]) == ""


async def test_a_judge_is_asked_for_texts() -> None:
    class Judge:
        async def __call__(self, item: Item, answer: str) -> Grade:
            return Grade(is_right=answer == item.right * 2, note="twice")

    verdict = await Graders(judge=Judge()).grade(make(Grader.JUDGE, "x"), answer="xx")
    assert (verdict.is_right, verdict.note) == (True, "twice")
