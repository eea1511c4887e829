"""Normalized answers: equal answers have the same spelling, different answers never do."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reasond_server.context.answers import extract_answer, normalize_answer

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
        ways += [f"**{whole}**", f"The answer is {whole}.", f"${whole}$", f"\\({whole:,}\\)", f"{whole}€"]
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
        ("x = 5", "x = 5"),
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


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So \\boxed{1} or \\boxed{\\frac{1}{2}} then.", "\\frac{1}{2}"),
        ("\\boxed{unclosed", "\\boxed{unclosed"),
        ("Long. " * 80 + "The answer is 42.\nIt is.", "42."),
        ("Final answer: Rome", "Rome"),
        ("The final answer is 18.", "18."),
        ("**Final Answer**\n18", "18"),
        ("Work.\n\n**Final Answer:**\n\n$$\n18\n$$\n", "18"),
        ("Work.\n### Final Answer\n---\n**18**", "18"),
        ("Work.\n\n**Answer: 18**", "18"),
        ("Work.\n**Answer**: -18", "-18"),
        ("Work.\n## Answer\n18 km\nas told", "18 km"),
        ("6 * 3 = 18\n#### 18", "18"),
        ("Long. " * 80 + "\n#### 18\n", "18"),
        ("#### Step 1\n6 * 3 = 18\n" + "Long. " * 80 + "\nA: 18", "18"),
        ("Which?\nA: 18\nB: 20\nThe answer is B: 20", "B: 20"),
        ("Q: 6 * 3?\nA: 18", "18"),
        ("The answer is `a*b`", "a*b"),
        ("Answer: 2**3", "2**3"),
        ("The answer is 18.\n\n**Final Answer**", "18."),
        (" Rome ", "Rome"),
        ("14 * 9 = 126\n\nTherefore, 17 rolls are left.", "17"),
        ("14 * 9 = 126\nSo there are $1,260.50 left, or so.", "$1,260.50"),
        ("Long. " * 80 + "\n\nSo 126 - 78 - 31 = 17.", "17"),
        ("Long. " * 80 + "\nTherefore, she finishes it in **3 weeks**.", "3 weeks"),
        ("Long. " * 80 + "\n\n**42**", "42"),
        ("Long. " * 80 + "\nThus it is 25% of it.", "25%"),
        ("Long. " * 80 + "\nSo 5 or 6 weeks.", ""),
        ("Long. " * 80 + "\n**Step 5:** Add 7 to them.", ""),
        ("Long. " * 80 + "\nSo it was in 10-15 days.", ""),
        ("Long. " * 80 + "\nThere are 17 rolls in the first box", ""),
        ("Long. " * 80 + "\nSo version 1.2.3 it is.", ""),
        ("Long. " * 80 + "\nSome 17 people came.", ""),
        ("So there are 17." + " Well, well." * 40, ""),
        ("No end. " * 80, ""),
    ],
)
def test_the_answer_of_a_reply_without_a_tag(text: str, answer: str) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize("text", ["\\boxed{" * 5000, "$" * 19_000, "(" * 19_000, "answer is " * 1900, "1," * 9000])
def test_hostile_answers_have_a_form(text: str) -> None:
    assert isinstance(normalize_answer(text), str)
    assert isinstance(extract_answer(text), str)


def test_objects_in_json_are_equal_whatever_their_layout() -> None:
    assert normalize_answer('{"a": 1, "b": [2]}') == normalize_answer('\n{"b":[2],"a":1} ')
    assert normalize_answer('[{"a": 1}]') == normalize_answer('[ {"a":1} ]')
    assert normalize_answer('{"a": 1}') != normalize_answer('{"a": 2}')
    assert normalize_answer("{1, 2}") == normalize_answer("{1,2}")
    assert normalize_answer("[{" * 5_000)
