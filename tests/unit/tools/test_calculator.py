from __future__ import annotations

import math
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.tools.calculator import (
    MAX_EXPRESSION_CHARACTERS,
    CalculationError,
    Calculator,
    CalculatorArguments,
    ExpressionError,
    calculate,
    normalize_expression,
)
from reasond_server.tools.tool import ArgumentsRefusedError, ToolContext, ToolFailedError

CONTEXT = ToolContext(call_id="c1", timeout_s=1)
PARTS = st.sampled_from(
    [
        *(
            "1",
            "2.5",
            "9" * 30,
            "0",
            "1e308",
            "(",
            ")",
            "+",
            "-",
            "*",
            "/",
            "//",
            "%",
            "**",
            "^",
            ",",
            "pi",
            "e",
            "tau",
        ),
        *("sqrt(", "factorial(", "round(", "log(", "gcd(", "min(", "max(", "exp(", "abs(", "floor(", "__", ".real"),
        *("0x1f", "1if", " ", "$", "x", " x ", "\u00f7", "80,000", "20%", "% of ", "="),
    ]
)


async def result_of(expression: str) -> object:
    answer = await Calculator().call(CalculatorArguments(expression=expression), CONTEXT)
    assert isinstance(answer, dict)
    return answer["result"]


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("12.5 / 100 * 640", 80),
        ("0.1 + 0.2", 0.3),
        ("2^10", 1024),
        ("-2 ** 2", -4),
        ("17 % 5 + 7 // 2", 5),
        ("sqrt(16) + abs(-3)", 7),
        ("round(2.567, 2)", 2.57),
        ("round(2.5)", 2),
        ("max(1, 2, 3) - min(4, 5)", -1),
        ("log(e) + log10(1000) + log2(8)", 7),
        ("sin(pi / 2)", 1),
        ("factorial(5) + gcd(12, 18)", 126),
        ("2 \u2212 1", 1),
        ("3 \u00d7 4", 12),
        ("10 / 4", 2.5),
        ("2 ** 60", "1152921504606846976"),
        ("1e300 * 10", 1e301),
        ("(-8) ** 3", -512),
        ("2 ** -1", 0.5),
        ("4 ** 0.5", 2),
    ],
)
async def test_expressions_have_their_values(expression: str, value: object) -> None:
    assert await result_of(expression) == value


@pytest.mark.parametrize(
    ("expression", "value", "read_as"),
    [
        ("$28 + $10.50", 38.5, "28 + 10.50"),
        ("\u20ac5 * 3", 15, "5 * 3"),
        ("10 x 2", 20, "10 * 2"),
        ("80,000x1.5", 120_000, "80000 * 1.5"),
        ("(1,000 + 5) X (2 + 3)", 5_025, "(1000 + 5) * (2 + 3)"),
        ("0 x 5", 0, "0 * 5"),
        ("3 x max(4, 5) x pi", 47.1238898038469, "3 * max(4, 5) * pi"),
        ("18 \u00f7 4", 4.5, "18 / 4"),
        ("6 \u00b7 7 \u2013 2", 40, "6 * 7 - 2"),
        ("80,000*1.5", 120_000, "80000*1.5"),
        ("round((1,234,567 + 1) / 7, 2)", 176366.86, "round((1234567 + 1) / 7, 2)"),
        ("1,00,000 / 2", 50_000, "100000 / 2"),
        ("20% of 50", 10, "(20 / 100) * 50"),
        ("50 / 20%", 250, "50 / (20 / 100)"),
        ("$3,650 \u00d7 10%", 365, "3650 * (10 / 100)"),
        ("12 * 3 =", 36, "12 * 3"),
        ("2 + 2 = ?", 4, "2 + 2"),
    ],
)
async def test_arithmetic_is_read_as_people_write_it(expression: str, value: object, read_as: str) -> None:
    answer = await Calculator().call(CalculatorArguments(expression=expression), CONTEXT)
    assert answer == {"expression": expression, "result": value, "read_as": read_as}


async def test_an_expression_of_the_grammar_is_not_repeated() -> None:
    answer = await Calculator().call(CalculatorArguments(expression="max(1,  200) * 2"), CONTEXT)
    assert answer == {"expression": "max(1,  200) * 2", "result": 400}


@pytest.mark.parametrize(
    ("expression", "remedy"),
    [
        ("44 seniors * $24", "numbers without units"),
        ("4 * 25 cents", "numbers without units"),
        ("4 * cents", "numbers without units"),
        ("2x + 1", "write * between factors"),
        ("3x - 4", "write * between factors"),
        ("0x10", "write * between factors"),
        ("5(3 + 2)", "write * between factors"),
        ("(2)(3)", "write * between factors"),
        ("12 * 3 = 36", "write only what is to be worked out"),
        ("[3 + 4] * 2", "write it with digits"),
        ("3,5 * 2", "3.5, not 3,5"),
        ("1,234,56", "1000, not 1,000"),
        ("round(80,000 * 1.5, 2)", "1000, not 1,000"),
        ("100 + 5%", "200 * (1 + 5/100)"),
        ("100% - 20%", "5/100 for 5%"),
        ("17 % -5", "17 % (-5) for a remainder"),
        ("5 $ 3", "write it like (3 + 4.5) * 2"),
        ("-" * 400 + "1", "in several calls"),
    ],
)
async def test_what_is_no_expression_is_the_models_mistake_and_names_the_remedy(expression: str, remedy: str) -> None:
    with pytest.raises(ArgumentsRefusedError) as caught:
        await result_of(expression)
    assert remedy in str(caught.value)


async def test_an_expression_without_a_result_is_no_mistake_of_its_form() -> None:
    with pytest.raises(ToolFailedError) as caught:
        await result_of("1 / 0")
    assert not isinstance(caught.value, ArgumentsRefusedError)


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("1 / 0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("0 ** -1", "division by zero"),
        ("9 ** 9 ** 9", "bits"),
        ("10 ** 5000", "the result has more than 4096 bits"),
        ("1e308 * 10", "too large"),
        ("2.0 ** 5000", "too large"),
        ("exp(1000)", "too large"),
        ("(-1) ** 0.5", "no real number"),
        ("(-2.5) ** 0.5", "no real number"),
        ("sqrt(-1)", "not defined"),
        ("factorial(171)", "from 0 to 170"),
        ("factorial(2.5)", "from 0 to 170"),
        ("round(1, 99)", "whole number of digits"),
        ("min()", "at least one"),
        ("gcd(1.5, 2)", "not defined"),
        ("x + 1", "the name 'x' is not known"),
        ("__import__", "the name '__import__' is not known"),
        ("pi()", "a function is unknown"),
        ("sqrt", "no real number"),
        ("(1).real", "only numbers, operators"),
        ("2 (3)", "a bracket follows a number"),
        ("round(number=1)", "an = stands in it"),
        ("'a' * 3", "may not stand in it"),
        ("sum(price_of('saw'))", "look other values up before"),
        ("population * 2", "look its value up before"),
        ("[1]", "may not stand in it"),
        ("1if 1", "a letter stands after a digit"),
        ("0x1f", "a letter stands after a digit"),
        ("2pi", "a letter stands after a digit"),
        ("1 +", "no arithmetic expression"),
        ("True", "only numbers may stand in it"),
        ("1, 2", "write 1000, not 1,000"),
        ("max(1,000, 5)", "write 1000, not 1,000"),
        ("round(1,050.5)", "write 1000, not 1,000"),
        ("-" * 400 + "1", "too many parts"),
        ("(" * 240 + "1" + ")" * 240, "no arithmetic expression"),
        ("+".join(["1"] * 240), "too many parts"),
        ("9" * 499, None),
    ],
)
async def test_what_has_no_result_says_why(expression: str, told: str | None) -> None:
    if told is None:
        assert isinstance(await result_of(expression), str)
        return
    with pytest.raises(ToolFailedError, match="cannot be worked out") as caught:
        await result_of(expression)
    assert told in str(caught.value)


def test_longer_expressions_are_refused() -> None:
    assert Calculator().violations({"expression": "1" * (MAX_EXPRESSION_CHARACTERS + 1)})
    with pytest.raises(ExpressionError, match="longer than"):
        normalize_expression("1" * 1_001)


@given(st.lists(PARTS, max_size=60).map("".join) | st.text(max_size=500))
def test_every_text_has_a_bounded_number_or_an_error_and_no_warning(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            value = calculate(normalize_expression(text[:MAX_EXPRESSION_CHARACTERS]))
        except CalculationError:
            return
    assert type(value) in {int, float}
    assert math.isfinite(value) if isinstance(value, float) else value.bit_length() <= 4_096


@given(st.integers(-(10**9), 10**9), st.integers(-(10**9), 10**9), st.sampled_from("+-*"))
def test_whole_numbers_are_exact(one: int, other: int, sign: str) -> None:
    assert calculate(f"({one}) {sign} ({other})") == eval(f"({one}) {sign} ({other})")  # noqa: S307 - of numbers alone
