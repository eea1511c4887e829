from __future__ import annotations

import operator
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.demo.arithmetic import NotArithmeticError, UncomputableError, evaluate


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(3 + 4) * 12.5", Fraction("87.5")),
        ("2^10", 1024),
        ("2 ** 3 ** 2", 512),
        ("-2^2", -4),
        ("2^-2", Fraction(1, 4)),
        ("17 times 23", 391),
        ("half of 90", 45),
        ("three quarters of 80", 60),
        ("two thirds of 90", 60),
        ("a tenth of 5", Fraction(1, 2)),
        ("two plus two", 4),
        ("twenty-three times one hundred and five", 2415),
        ("2.5 million divided by 4", 625_000),
        ("15% of 240", 36),
        ("fifteen percent of 240", 36),
        ("200 + 15%", 230),
        ("200 - 15%", 170),
        ("10% + 5%", Fraction("0.15")),
        ("the square root of 144", 12),
        ("sqrt 2.25", Fraction(3, 2)),
        ("5 squared minus 2 cubed", 17),
        ("double 21", 42),
        ("twice 4", 8),
        ("triple +3", 9),
        ("7 mod 3", 1),
        ("3 x 4", 12),
        ("6 ÷ 4", Fraction(3, 2)),
        ("[1 + 2] × 3", 9),  # noqa: RUF001 - the sign is what is tested
        ("0^0", 1),
        ("0^5", 0),
        ("5 - 3 - 1", 1),
    ],
)
def test_expressions_are_worked_out_exactly(text: str, value: Fraction) -> None:
    assert evaluate(text).value == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("2^0.5", 2**0.5), ("sqrt 2", 2**0.5), ("1.0000001^100000", 1.0000001**100000), ("0.5^1.5", 0.5**1.5)],
)
def test_irrational_results_are_close(text: str, value: float) -> None:
    assert float(evaluate(text).value) == pytest.approx(value)


def test_each_operation_is_written_down() -> None:
    evaluation = evaluate("(3 + 4) * 1/3")
    assert evaluation.steps == ("3 + 4 = 7", "7 * 1 = 7", "7 / 3 = about 2.333333333 (7/3)")
    assert evaluate("sqrt 9").steps == ("the square root of 9 = 3",)


def test_the_currency_of_an_expression_is_kept() -> None:
    assert evaluate("15% of $240").currency == "$"
    assert evaluate("2 + 2").currency == ""


@pytest.mark.parametrize(
    "text", ["", "hello", "3 +", "(3", "3 4", "3 apples", "the", "x + 3", "12,34", "1984 about", ")", "a" * 2000]
)
def test_other_texts_are_not_arithmetic(text: str) -> None:
    with pytest.raises(NotArithmeticError):
        evaluate(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("9**9**9", "more than 400 digits"),
        ("10^1000000", "more than 400 digits"),
        ("0.5^1e300", "more than 400 digits"),
        ("1e999", "more than 400 digits"),
        ("1/0", "division by zero"),
        ("0^-1", "division by zero"),
        ("5 mod 0", "division by zero"),
        ("sqrt(-4)", "negative"),
        ("(-8)^0.5", "negative"),
        ("$5 + €3", "mixes currencies"),
        ("(" * 10_000 + "1" + ")" * 10_000, "20,001 characters"),
        ("(" * 300 + "1" + ")" * 300, "40 levels"),
        ("-" * 500 + "1", "40 levels"),
        ("2" + "^2" * 300, "40 levels"),
        ("1" * 2000, "2,000 characters"),
        ("9" * 390 + "*" + "9" * 390 + "*" + "9" * 200, "more than 400 digits"),
    ],
)
def test_hostile_expressions_are_refused_with_a_reason(text: str, why: str) -> None:
    with pytest.raises(UncomputableError, match=why):
        evaluate(text)


_NUMBERS = st.integers(0, 10_000)
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul}


@given(_NUMBERS, _NUMBERS, _NUMBERS, st.sampled_from(sorted(_OPERATIONS)), st.sampled_from(sorted(_OPERATIONS)))
def test_parentheses_decide_the_order(a: int, b: int, c: int, first: str, second: str) -> None:
    one, two = _OPERATIONS[first], _OPERATIONS[second]
    assert evaluate(f"({a} {first} {b}) {second} {c}").value == two(one(a, b), c)
    assert evaluate(f"{a} {first} ({b} {second} {c})").value == one(a, two(b, c))


@given(st.text(alphabet="0123456789+-*/^().,%$e xsqrtof\n", max_size=60))
def test_any_text_is_worked_out_or_refused_by_one_of_two_errors(text: str) -> None:
    try:
        evaluation = evaluate(text)
    except (NotArithmeticError, UncomputableError):
        return
    assert isinstance(evaluation.value, Fraction)
