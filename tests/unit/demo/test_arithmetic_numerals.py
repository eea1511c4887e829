from __future__ import annotations

from fractions import Fraction

import pytest

from reasond_server.demo.arithmetic import (
    UncomputableError,
    check_size,
    find_numbers,
    has_value,
    read_numeral,
    read_words,
    show,
    show_money,
    show_number,
    show_term,
    split_hyphens,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [("10,000", 10_000), ("1,234.5", Fraction("1234.5")), (".5", Fraction(1, 2)), ("1e3", 1000), ("2.5e-1", 0.25)],
)
def test_numerals_are_read_exactly(text: str, value: Fraction) -> None:
    assert read_numeral(text) == value


@pytest.mark.parametrize("text", ["9" * 401, "1e999", "1e-999"])
def test_numerals_of_too_many_digits_are_refused(text: str) -> None:
    with pytest.raises(UncomputableError, match="more than 400 digits"):
        read_numeral(text)


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("seventeen", 17),
        ("forty two", 42),
        ("hundred", 100),
        ("two hundred five", 205),
        ("three thousand", 3000),
        ("thousand", 1000),
        ("two million five hundred thousand seven", 2_500_007),
    ],
)
def test_number_words_are_read(words: str, value: int) -> None:
    assert read_words(words.split()) == value


def test_a_numeral_before_a_number_word_is_multiplied_by_it() -> None:
    assert read_words(["million"], start=Fraction("2.5")) == 2_500_000


def test_a_hyphen_inside_a_number_word_is_no_minus() -> None:
    assert split_hyphens("twenty-three - five") == "twenty three - five"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (Fraction(1_234_567), "1,234,567"),
        (Fraction(-7, 2), "-3.5"),
        (Fraction(10, 3), "about 3.333333333 (10/3)"),
        (Fraction(10**20, 3), "about 3.333333333E+19 (100000000000000000000/3)"),
    ],
)
def test_numbers_are_shown_with_separators_and_rounded_only_where_they_must_be(value: Fraction, shown: str) -> None:
    assert show_number(value) == shown


def test_money_is_rounded_to_the_cent_half_away_from_zero() -> None:
    assert show_money(Fraction("11576.25"), "$") == "$11,576.25"
    assert show_money(Fraction("0.005"), "€") == "€0.01"
    assert show_money(Fraction("-1.005"), "$") == "-$1.01"
    assert show(Fraction(3), "$") == "$3.00"
    assert show(Fraction(3), "") == "3"


def test_inside_a_step_a_simple_fraction_stays_a_fraction() -> None:
    assert show_term(Fraction(1, 3)) == "1/3"
    assert show_term(Fraction(1, 4)) == "0.25"
    assert not show_term(Fraction(1, 7**9)).startswith("about")


def test_results_and_values_on_the_way_have_limits() -> None:
    assert check_size(Fraction(5)) == 5
    for refuse in (
        lambda: check_size(Fraction(10**1000)),
        lambda: show_number(Fraction(10**400)),
        lambda: show_money(Fraction(10**400), "$"),
    ):
        with pytest.raises(UncomputableError, match="digits"):
            refuse()


@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("$1,576.25 in interest", 1576.25, True),
        ("15%", 15, True),
        ("about 0.67", 2 / 3, True),
        ("about 0.67", 0.6, False),
        ("no number", 1, False),
        ("2-1", 1, True),
        ("-3", -3, True),
    ],
)
def test_a_text_says_a_number_as_far_as_it_shows_it(text: str, value: float, expected: bool) -> None:  # noqa: FBT001 - a parameter of the test
    assert has_value(text, value) is expected


def test_numbers_lose_their_separators() -> None:
    assert find_numbers("1,000.5 and 2, or 3.") == ["1000.5", "2", "3"]
