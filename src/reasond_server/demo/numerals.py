"""Numbers in texts: reading them as exact fractions, writing them with their currency, and finding them."""

from __future__ import annotations

import math
import re
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction

MAX_DIGITS = 400
CURRENCIES = "$€£¥"
NUMERAL = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[+-]?\d{1,4}\b)?|\.\d+"

_MAX_BITS = 2 * MAX_DIGITS * 4
_MAX_PLACES = 12
_SIGNIFICANT_DIGITS = 10
_MAX_SHOWN_DENOMINATOR = 1_000

_SMALL = re.findall(
    r"\w+",
    """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen
    """,
)
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_UNITS = {word: value for value, word in enumerate(_SMALL)} | {
    word: 10 * value for value, word in enumerate(_TENS, start=2)
}
SCALES = {"hundred": 100, "thousand": 1_000, "million": 10**6, "billion": 10**9, "trillion": 10**12}
NUMBER_WORDS = frozenset(_UNITS) | frozenset(SCALES)
_HYPHENATED = re.compile(rf"\b({'|'.join(_TENS)})-({'|'.join(_SMALL[1:10])})\b")


class UncomputableError(ArithmeticError):
    """A valid computation without a result within the limits; the error text is the reason."""


def check_size(value: Fraction) -> Fraction:
    """Return `value`.

    Raises:
        UncomputableError: the numerator or the denominator has more than about 800 digits.
    """
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > _MAX_BITS:
        raise UncomputableError(f"a number on the way has more than {2 * MAX_DIGITS} digits")
    return value


def read_numeral(text: str) -> Fraction:
    """Return the value of a text that matches `NUMERAL`.

    Raises:
        UncomputableError: the number has more than 400 digits.
    """
    plain = text.replace(",", "")
    number = Decimal(plain) if len(plain) <= MAX_DIGITS else None
    if number is None or abs(number.adjusted()) > MAX_DIGITS:
        raise UncomputableError(f"a number in it has more than {MAX_DIGITS} digits")
    return Fraction(number)


def split_hyphens(text: str) -> str:
    """Return `text` with "twenty-three" written as two words, so that the hyphen is not read as a minus."""
    return _HYPHENATED.sub(r"\1 \2", text)


def read_words(words: list[str], *, start: Fraction | None = None) -> Fraction:
    """Return the value of number words such as ["two", "hundred", "five"].

    Args:
        words: members of `NUMBER_WORDS`.
        start: the value of a numeral before them, as in "2.5 million".

    Raises:
        UncomputableError: the number is too large.
    """
    total, current = Fraction(0), start
    for word in words:
        if word in _UNITS:
            current = (current or 0) + Fraction(_UNITS[word])
        elif word == "hundred":
            current = (1 if current is None else current) * Fraction(100)
        else:
            total = check_size(total + (1 if current is None else current) * Fraction(SCALES[word]))
            current = None
    return check_size(total + (current or 0))


def show_number(value: Fraction) -> str:
    """Return `value` with thousands separators; a value without a short decimal form is rounded to 10 digits.

    Raises:
        UncomputableError: the result has more than 400 digits.
    """
    if abs(value) >= 10**MAX_DIGITS:
        raise UncomputableError(f"the result has more than {MAX_DIGITS} digits")
    places = _count_places(value)
    if places is not None:
        return _format_fixed(value, places)
    rounded = _format_rounded(value)
    fraction = f" ({value})" if value.denominator <= _MAX_SHOWN_DENOMINATOR else ""
    return f"about {rounded}{fraction}"


def show_term(value: Fraction) -> str:
    """Return `value` for a step; a simple fraction is written as a fraction."""
    if _count_places(value) is None and value.denominator <= _MAX_SHOWN_DENOMINATOR:
        return str(value)
    return show_number(value).removeprefix("about ")


def show_money(value: Fraction, currency: str) -> str:
    """Return an amount rounded to the cent, with the currency sign before it.

    Raises:
        UncomputableError: the amount has more than 400 digits.
    """
    if abs(value) >= 10**MAX_DIGITS:
        raise UncomputableError(f"the result has more than {MAX_DIGITS} digits")
    sign = "-" if value < 0 else ""
    return f"{sign}{currency}{_format_fixed(abs(value), 2)}"


def show(value: Fraction, currency: str) -> str:
    """Return `value` as money if there is a currency, else as a number.

    Raises:
        UncomputableError: the result has more than 400 digits.
    """
    return show_money(value, currency) if currency else show_number(value)


def _count_places(value: Fraction) -> int | None:
    """Return the number of decimal places of `value`, None if they are many or infinite."""
    for places in range(_MAX_PLACES + 1):
        if 10**places % value.denominator == 0:
            return places
    return None


def _format_fixed(value: Fraction, places: int) -> str:
    """Return `value` with `places` decimal places, rounded half away from zero."""
    scaled = abs(value) * 10**places
    units = (2 * scaled.numerator + scaled.denominator) // (2 * scaled.denominator)
    whole, rest = divmod(units, 10**places)
    sign = "-" if value < 0 and units else ""
    return f"{sign}{whole:,}" + (f".{rest:0{places}d}" if places else "")


def _format_rounded(value: Fraction) -> str:
    """Return `value` rounded to 10 significant digits, in plain or scientific notation."""
    with localcontext() as context:
        context.prec = _SIGNIFICANT_DIGITS
        context.rounding = ROUND_HALF_UP
        number = (Decimal(value.numerator) / Decimal(value.denominator)).normalize()
    return f"{number:,f}" if abs(number.adjusted()) <= _SIGNIFICANT_DIGITS else f"{number:E}"


_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]{0,400}(?:\.\d{1,400})?")
_TOLERANCE = 1e-9


def to_decimal(value: Fraction) -> Decimal:
    """Return `value` with the precision of the decimal context."""
    return Decimal(value.numerator) / Decimal(value.denominator)


def find_numbers(text: str) -> list[str]:
    """Return the numbers in `text` as they are written, without thousands separators."""
    return [found.replace(",", "") for found in _NUMBER.findall(text)]


def has_value(text: str, value: float) -> bool:
    """Return whether one of the numbers in `text` is `value`, as `is_value` compares them."""
    return any(is_value(number, value) for number in find_numbers(text))


def is_value(number: str, value: float) -> bool:
    """Return whether `number` is `value`: exactly if it is an integer, else within its decimal places."""
    places = len(number.partition(".")[2])
    most = 0.51 * 10.0**-places if places else 0.0
    return math.isclose(float(number), value, rel_tol=_TOLERANCE, abs_tol=most)
