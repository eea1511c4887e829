from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.demo.arithmetic import UncomputableError, show_money
from reasond_server.demo.computation import read_interest


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (
            "Calculate the compound interest on $10,000 at 5% for 3 years",
            "$1,576.25 in interest, for a final balance of $11,576.25",
        ),
        ("How much will $2,500 grow to at 3.5% over 10 years?", "$3,526.50, of which $1,026.50 is interest"),
        (
            "What is the compound interest on €1,000 at 6% compounded monthly for 18 months?",
            "€93.93 in interest, for a final balance of €1,093.93",
        ),
        (
            "compound interest on $1000 at 8 percent per year compounded quarterly for 2 years",
            "$171.66 in interest, for a final balance of $1,171.66",
        ),
        ("How much is $5000 worth after 2 years at 1% per month?", "$6,348.67, of which $1,348.67 is interest"),
        ("What does $10k grow to in 1 year at a 2% quarterly rate?", "$10,824.32, of which $824.32 is interest"),
        ("I invest 100 at 10% compounded semi-annually for 1 year", "110.25, of which 10.25 is interest"),
        ("I invest $100 at 10% compounded weekly for 1 year", "$110.51, of which $10.51 is interest"),
        ("I invest $100 at 10% compounded daily for 4 quarters", "$110.52, of which $10.52 is interest"),
        ("simple interest on $1,000 at 5% for 2 years", "$100.00 in interest, for a final balance of $1,100.00"),
    ],
)
def test_questions_about_interest_are_worked_out(question: str, answer: str) -> None:
    worked = read_interest(question)
    assert worked is not None
    assert worked.answer == answer


def test_the_steps_show_formula_figures_balance_and_interest() -> None:
    worked = read_interest("Calculate the compound interest on $10,000 at 5% for 3 years")
    assert worked is not None
    assert worked.steps == (
        "The balance after compounding is P * (1 + r)^(n * t).",
        "P = $10,000.00, r = 5% a year, n = 1 (annually), t = 3 years.",
        "$10,000.00 * (1 + 0.05)^3 = $11,576.25.",
        "Interest = $11,576.25 - $10,000.00 = $1,576.25.",
    )


@pytest.mark.parametrize(
    "question",
    [
        "What is compound interest?",
        "compound interest on $10,000 at 5%",
        "compound interest on $10,000 and $5,000 at 5% for 3 years",
        "compound interest on $10,000 at 5% and 6% for 3 years",
        "compound interest on $10,000 at 5% compounded continuously for 3 years",
        "How much is my balance if I have $100 at 5% for 3 years and add 10 each month?",
        "15% of 240",
        "The book has 300 pages, 5% of which took 3 years",
        "interest on $10 at 5% for 3 years " + "x" * 400,
    ],
)
def test_a_question_with_a_figure_too_many_or_too_few_is_left_alone(question: str) -> None:
    assert read_interest(question) is None


@pytest.mark.parametrize(
    ("question", "why"),
    [
        ("compound interest on $1 at 5000% for 900 years", "more than 40 digits"),
        ("compound interest on $1 at 5% for 9e300 years", "above 1,000 years"),
        ("compound interest on $1 at 50000% for 1 year", "above 10,000%"),
    ],
)
def test_figures_out_of_range_are_refused_with_a_reason(question: str, why: str) -> None:
    with pytest.raises(UncomputableError, match=why):
        read_interest(question)


@given(st.integers(1, 10**7), st.integers(0, 3000), st.integers(1, 40))
def test_the_balance_is_the_exact_power_rounded_to_the_cent(principal: int, basis_points: int, years: int) -> None:
    worked = read_interest(f"compound interest on ${principal} at {basis_points / 100}% for {years} years")
    assert worked is not None
    balance = principal * (1 + Fraction(basis_points, 10_000)) ** years
    expected = f"{show_money(balance - principal, '$')} in interest, for a final balance of {show_money(balance, '$')}"
    assert worked.answer == expected
