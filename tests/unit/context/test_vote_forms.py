"""Normalized answers: equal answers have the same spelling, different answers never do."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reasond_server.context.vote_forms import find_value, normalize_answer
from tests.reports.rows import Row, load_rows

NUMBERS = st.one_of(
    st.integers(-(10**12), 10**12).map(Fraction),
    st.decimals(-(10**6), 10**6, places=4).map(Fraction),
    st.fractions(-1000, 1000, max_denominator=400),
)


def spellings(value: Fraction) -> list[str]:
    """Return several spellings of a number."""
    ways = [f"{value.numerator}/{value.denominator}", f"\\frac{{{value.numerator}}}{{{value.denominator}}}"]
    if value.denominator == 1:
        whole = value.numerator
        ways += [f"{whole}", f"{whole:,}", f"{whole}.0", f"{whole:,}.00", f" {whole}. ", f"$\\boxed{{{whole}}}$"]
        ways += [f"**{whole}**", f"The answer is {whole}.", f"${whole}$", f"\\({whole:,}\\)", f"{whole} dollars"]
    return ways


@given(NUMBERS)
def test_every_spelling_of_a_number_is_one(value: Fraction) -> None:
    assert len({normalize_answer(text) for text in spellings(value)}) == 1


@given(NUMBERS, NUMBERS)
def test_different_numbers_never_become_one(one: Fraction, other: Fraction) -> None:
    forms = [{normalize_answer(text) for text in spellings(value)} for value in (one, other)]
    assert (one == other) == bool(forms[0] & forms[1])


@given(st.text() | st.from_regex(r"[$*\"`(]{0,3}-?[0-9,. /e%x^]{0,12}[a-z $*\"`)]{0,4}", fullmatch=True))
@example("$$ $1$ $$")
@example("the answer is = 1, 2,3")
@example("\\text{\\text{a}}")
def test_the_form_of_a_form_is_itself(text: str) -> None:
    form = normalize_answer(text)
    assert normalize_answer(form) == form


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("1e3", "1000"),
        ("1.5 \\times 10^{3}", "1500"),
        ("2\u00d710^-2", "0.02"),
        ("\u22125", "-5"),
        ("-0.0", "0"),
        (".50", "0.5"),
        ("2/6", "1/3"),
        ("$1,234.50", "1234.5"),
        ("-$5", "-5"),
        ("5 %", "5 %"),
        ("5 percent", "5 %"),
        ("5\\%", "5 %"),
        ("5km", "5 km"),
        ("5.0 KM.", "5 km"),
        ("60 KM/H", "60 km/h"),
        ("3 KWH", "3 kWh"),
        ("2 mL", "2 ml"),
        ("about 5 MW", "about 5 MW"),
        ("1E3", "1000"),
        ("\u00bd", "0.5"),
        ("1\u00bd", "1.5"),
        ("1 1/2", "1.5"),
        ("-2 3/4", "-2.75"),
        ("10\u00b2", "10^2"),
        ("10^{2}", "10^2"),
        ("x\u00b2 + x\u207b\u00b9", "x^2 + x^-1"),
        ("2 \u00d7 10\u207b\u00b3", "0.002"),
        ("H\u2082O", "h2o"),
        ("101\u2082", "101_2"),
        ("5!", "5!"),
        ("n!", "n!"),
        ("It is so!", "it is so"),
        ("#### 18", "18"),
        ("A: 18", "18"),
        ("**Answer: 18**", "18"),
        ("### Final Answer\n\n**18**", "18"),
        ("**Final Answer**\n18", "18"),
        ("**Final Answer**", ""),
        ("*18*", "18"),
        ("The **final** answer is **18 km**", "18 km"),
        ("2**3", "2**3"),
        ("2 ** 3 ** 4", "2 ** 3 ** 4"),
        ("60 km / h", "60 km/h"),
        ("5\\text{ km}", "5 km"),
        ("Paris.", "paris"),
        ('"Paris"', "paris"),
        ("So, the final answer is: Paris!", "paris"),
        ("(B)", "b"),
        ("b)", "b"),
        ("1,2 ,3", "1, 2, 3"),
        ("x = 5", "5"),
        ("y = 5", "y = 5"),
        ("", ""),
        (" . ", "."),
        ("1,5", "1, 5"),
        ("1/0", "1/0"),
        ("1e999", "1e999"),
        ("9" * 100, "9" * 100),
    ],
)
def test_what_an_answer_comes_to(text: str, form: str) -> None:
    assert normalize_answer(text) == form


@pytest.mark.parametrize("row", load_rows("vote"), ids=lambda row: row.id)
def test_the_pairs_of_the_corpus_are_one_answer_or_two(row: Row) -> None:
    one, other = row.input["a"], row.input["b"]
    assert (normalize_answer(one) == normalize_answer(other)) == row.right["together"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("10\u00b2", "102"),
        ("10\u2082", "102"),
        ("1\u00bd", "11/2"),
        ("5!", "5"),
        ("(n+1)!", "n+1"),
        ("5 mW", "5 MW"),
        ("8 Gb", "8 GB"),
        ("5 m", "5 M"),
        ("2**3", "23"),
        ("2*3*4", "234"),
        ("B: 18", "A: 18"),
        ("5", "5 %"),
        ("5 km", "5 m"),
        ("5", "5 km"),
        ("1,5", "1.5"),
        ("1,000", "1.000"),
        ("12", "1 2"),
        ("3-4", "34"),
    ],
)
def test_what_is_not_the_same_stays_apart(one: str, other: str) -> None:
    assert normalize_answer(one) != normalize_answer(other)


def test_a_very_long_answer_is_only_evened_out() -> None:
    assert normalize_answer("A  b" * 10_000) == " ".join(("A  b" * 10_000).split()).casefold()


@pytest.mark.parametrize("text", ["\\boxed{" * 5000, "$" * 19_000, "(" * 19_000, "answer is " * 1900, "1," * 9000])
def test_hostile_answers_have_a_form(text: str) -> None:
    assert isinstance(normalize_answer(text), str)


def test_objects_in_json_are_equal_whatever_their_layout() -> None:
    assert normalize_answer('{"a": 1, "b": [2]}') == normalize_answer('\n{"b":[2],"a":1} ')
    assert normalize_answer('[{"a": 1}]') == normalize_answer('[ {"a":1} ]')
    assert normalize_answer('{"a": 1}') != normalize_answer('{"a": 2}')
    assert normalize_answer("{1, 2}") == normalize_answer("{1,2}")
    assert normalize_answer("[{" * 5_000)


@pytest.mark.parametrize("text", ["42", "$5", "5 km", "(B)", "B", "\\frac{1}{2}", "forty-two"])
def test_numbers_quantities_and_choices_are_values(text: str) -> None:
    assert find_value(text)


@pytest.mark.parametrize("text", ["Paris", "1, 2", "So 42", "y = 5", "", "Step 3", "and 5 or 6"])
def test_other_answers_are_no_values(text: str) -> None:
    assert not find_value(text)
