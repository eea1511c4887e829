from __future__ import annotations

import pytest

from reasond_server.demo.computation import compute


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is (3 + 4) * 12.5?", "87.5"),
        ("Please, can you tell me: what is two plus two equal to?", "4"),
        ("How much is half of 90?", "45"),
        ("What is 15% of 240?", "36"),
        ("What is 15% of $240?", "$36.00"),
        ("What percent of 80 is 20?", "25%"),
        ("What percentage is 20 of 80?", "25%"),
        ("20 is what percent of 80?", "25%"),
        ("20 as a percentage of 80", "25%"),
        ("What is the percentage increase from 80 to 100?", "25%"),
        ("percent change from 100 to 80", "-20%"),
        ("Increase 200 by 15%.", "230"),
        ("What is 200 increased by 15%?", "230"),
        ("15% more than 200", "230"),
        ("Reduce $80 by 15%", "$68.00"),
        ("200 reduced by 50%", "100"),
        ("What is 20% off $49.99?", "$39.99"),
        ("What is the sum of 3, 4 and 5?", "12"),
        ("What is the difference between 10 and 4?", "6"),
        ("the product of 6 and 7", "42"),
        ("the quotient of 9 and 2", "4.5"),
        ("What is the average of $10 and $20?", "$15.00"),
        ("What is 10/3?", "about 3.333333333 (10/3)"),
        ("2^10 =", "1,024"),
        (
            "Calculate the compound interest on $10,000 at 5% for 3 years",
            "$1,576.25 in interest, for a final balance of $11,576.25",
        ),
        ("What is 1/0?", "This cannot be worked out: division by zero has no result."),
        ("What percent of 0 is 3?", "This cannot be worked out: a percentage of zero has no meaning."),
    ],
)
def test_a_question_that_is_a_computation_is_worked_out(question: str, answer: str) -> None:
    worked = compute(question)
    assert worked is not None
    assert worked.answer == answer


@pytest.mark.parametrize(
    "question",
    [
        "",
        "What is 42?",
        "What is 1984 about?",
        "Who wrote Opticks in 1704?",
        "What percent of the population is urban?",
        "the sum of its parts",
        "the sum of 3",
        "The telescope magnifies 30 to 40 times",
        "Why is 2 + 2 four?",
        "x" * 100_001,
    ],
)
def test_a_question_that_is_something_else_is_left_alone(question: str) -> None:
    assert compute(question) is None


@pytest.mark.parametrize(
    "question",
    ["what is " * 12_000, " " * 90_000 + "?", "=?" * 49_000, "(" * 50_000, "$" * 50_000, "percent of " * 9_000],
)
def test_long_hostile_questions_are_turned_down_quickly(question: str) -> None:
    assert compute(question) is None
