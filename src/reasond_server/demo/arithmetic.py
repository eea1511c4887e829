"""Arithmetic expressions in symbols or in words, computed exactly with fractions, never with `eval`; and their numbers.

sum      = product (("+" | "-") product)*          a bare percentage is a share of the value before it
product  = signed (("*" | "/" | "of" | "mod") signed)*
signed   = ("-" | "+" | "sqrt" | "double" | ...) signed | power
power    = postfix ["^" signed]
postfix  = primary "%"*
primary  = number [part] | part | "(" sum ")"      part: half, third, quarter, ...
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, localcontext
from fractions import Fraction

from reasond_server.types.values import value

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


MAX_CHARACTERS = 1_000
_MAX_DEPTH = 40
_ROOT_DIGITS = 40
_MAX_EXACT_BITS = 2_000

_PHRASES = {
    "multiplied by": "*",
    "divided by": "/",
    "raised to the power of": "^",
    "to the power of": "^",
    "the square root of": "sqrt",
    "square root of": "sqrt",
    "modulo": "mod",
    "per cent": "%",
    "percent": "%",
    "plus": "+",
    "minus": "-",
    "times": "*",
    "over": "/",
    "squared": "^2",
    "cubed": "^3",
    "twice": "double",
    "dollars": "",
}
_PHRASE = re.compile(r"\b(" + "|".join(_PHRASES) + r")\b")
_SYMBOLS = {
    "\N{MULTIPLICATION SIGN}": "*",
    "\N{MIDDLE DOT}": "*",
    "\N{DIVISION SIGN}": "/",
    "\N{MINUS SIGN}": "-",
    "\N{EN DASH}": "-",
    "\N{SQUARE ROOT}": "sqrt",
    "**": "^",
    "[": "(",
    "]": ")",
    "x": "*",
}
_PARTS = {"half": 2, "third": 3, "quarter": 4, "fifth": 5, "sixth": 6, "eighth": 8, "tenth": 10, "hundredth": 100}
_PREFIXES = ("-", "+", "sqrt", "double", "triple")
_LEXEME = re.compile(rf"\s*(?:(?P<number>{NUMERAL})|(?P<symbol>\*\*|[a-z]+|[^\sa-z]))")
_LETTER = re.compile(r"[^\W\d_]")


class NotArithmeticError(ValueError):
    """The text is not an arithmetic expression."""


@value
class Evaluation:
    """A value, the steps of its computation, and the currency sign of the expression."""

    value: Fraction
    steps: tuple[str, ...]
    currency: str


def evaluate(text: str) -> Evaluation:
    """Compute the expression `text`, which may use words ("17 times 23", "half of 90").

    Raises:
        NotArithmeticError: the text is not an arithmetic expression.
        UncomputableError: the expression has no result or exceeds a limit.
    """
    if len(text) > MAX_CHARACTERS:
        if not _LETTER.search(text) and any(map(str.isdigit, text)):
            raise UncomputableError(f"it has {len(text):,} characters, and the limit is {MAX_CHARACTERS:,}")
        raise NotArithmeticError(text[:MAX_CHARACTERS])
    return _Parser(text).evaluate()


def _read_lexemes(text: str) -> list[str | Fraction]:
    """Return symbols, words and the values of numerals."""
    symbolic = _PHRASE.sub(lambda match: f" {_PHRASES[match[0]]} ", split_hyphens(text.lower()))
    found: list[str | Fraction] = []
    for match in _LEXEME.finditer(symbolic.rstrip()):
        if match["number"]:
            found.append(read_numeral(match["number"]))
        else:
            found.append(_SYMBOLS.get(match["symbol"], match["symbol"]))
    return found


@dataclass(frozen=True, slots=True)
class _Operand:
    """A value, and whether it was written as a bare percentage."""

    value: Fraction
    is_percent: bool = False


class _Parser:
    """A recursive-descent parser of lexemes with limited depth."""

    def __init__(self, text: str) -> None:
        self._lexemes = _read_lexemes(text)
        self._at = 0
        self._depth = 0
        self._steps: list[str] = []
        self._currency = ""

    def evaluate(self) -> Evaluation:
        """Return the value of the whole text."""
        operand = self._parse_sum()
        if self._at < len(self._lexemes):
            raise NotArithmeticError
        return Evaluation(value=operand.value, steps=tuple(self._steps), currency=self._currency)

    def _peek(self) -> str | Fraction | None:
        return self._lexemes[self._at] if self._at < len(self._lexemes) else None

    def _take(self, *symbols: str) -> str:
        """Consume the next lexeme if it is one of `symbols`, and return it; else return ""."""
        lexeme = self._peek()
        if isinstance(lexeme, str) and lexeme in symbols:
            self._at += 1
            return lexeme
        return ""

    def _parse_sum(self) -> _Operand:
        left = self._parse_product()
        while operator := self._take("+", "-"):
            right = self._parse_product()
            amount = right.value
            if right.is_percent and not left.is_percent:
                amount = self._note("of", right.value, left.value)
            left = _Operand(self._note(operator, left.value, amount), left.is_percent and right.is_percent)
        return left

    def _parse_product(self) -> _Operand:
        left = self._parse_signed()
        while operator := self._take("*", "/", "of", "mod"):
            left = _Operand(self._note(operator, left.value, self._parse_signed().value))
        return left

    def _parse_signed(self) -> _Operand:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise UncomputableError(f"it is nested more than {_MAX_DEPTH} levels deep")
        prefix = self._take(*_PREFIXES)
        operand = self._apply_prefix(prefix, self._parse_signed()) if prefix else self._parse_power()
        self._depth -= 1
        return operand

    def _apply_prefix(self, prefix: str, operand: _Operand) -> _Operand:
        if prefix == "-":
            return _Operand(-operand.value, operand.is_percent)
        if prefix == "sqrt":
            root = _take_root(operand.value)
            self._steps.append(f"the square root of {show_term(operand.value)} = {show_number(root)}")
            return _Operand(root)
        factors = {"double": 2, "triple": 3}
        return _Operand(self._note("*", Fraction(factors[prefix]), operand.value)) if prefix in factors else operand

    def _parse_power(self) -> _Operand:
        base = self._parse_postfix()
        return _Operand(self._note("^", base.value, self._parse_signed().value)) if self._take("^") else base

    def _parse_postfix(self) -> _Operand:
        operand = self._parse_primary()
        while self._take("%"):
            operand = _Operand(operand.value / 100, is_percent=True)
        return operand

    def _parse_primary(self) -> _Operand:
        if self._take("("):
            operand = self._parse_sum()
            if not self._take(")"):
                raise NotArithmeticError
            return operand
        if currency := self._take(*CURRENCIES):
            if self._currency not in ("", currency):
                raise UncomputableError("it mixes currencies")
            self._currency = currency
        self._take("a", "an", "the")
        number = self._parse_number()
        part = self._parse_part()
        if number is None and part is None:
            raise NotArithmeticError
        return _Operand((Fraction(1) if number is None else number) * (part or 1))

    def _parse_number(self) -> Fraction | None:
        """Consume a numeral, number words, or both ("2.5 million"); return None if there are none."""
        numeral = self._peek()
        start = numeral if isinstance(numeral, Fraction) else None
        self._at += start is not None
        known = NUMBER_WORDS if start is None else SCALES
        words: list[str] = []
        while word := self._take(*known):
            words.append(word)
            if isinstance(following := self._peek_second(), str) and following in NUMBER_WORDS:
                self._take("and")
        return read_words(words, start=start) if words else start

    def _peek_second(self) -> str | Fraction | None:
        return self._lexemes[self._at + 1] if self._at + 1 < len(self._lexemes) else None

    def _parse_part(self) -> Fraction | None:
        """Consume the name of a part, singular or plural; return None if there is none."""
        word = self._take(*_PARTS, *(f"{part}s" for part in _PARTS), "halves").removesuffix("s")
        return Fraction(1, _PARTS.get(word, 2)) if word else None

    def _note(self, operator: str, left: Fraction, right: Fraction) -> Fraction:
        """Compute one operation and record it as a step."""
        value = check_size(_apply(operator, left, right))
        self._steps.append(f"{show_term(left)} {operator} {show_term(right)} = {show_number(value)}")
        return value


def _apply(operator: str, left: Fraction, right: Fraction) -> Fraction:
    if operator in {"/", "mod"} and right == 0:
        raise UncomputableError("division by zero has no result")
    if operator == "^":
        return _raise(left, right)
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "/":
        return left / right
    return left % right if operator == "mod" else left * right


def _raise(base: Fraction, exponent: Fraction) -> Fraction:
    """Return `base` to the power of `exponent`, exactly if the exponent is whole."""
    if base == 0:
        if exponent < 0:
            raise UncomputableError("division by zero has no result")
        return Fraction(int(exponent == 0))
    # The size is estimated first: computing 9^9^9 would use all memory before a limit could refuse it.
    digits = (math.log10(abs(base.numerator)) - math.log10(base.denominator)) * float(
        min(abs(exponent), Fraction(10**12))
    )
    if abs(digits) > MAX_DIGITS:
        raise UncomputableError(f"the result has more than {MAX_DIGITS} digits")
    size = max(base.numerator.bit_length(), base.denominator.bit_length()) * abs(exponent)
    if exponent.denominator == 1 and size <= _MAX_EXACT_BITS:
        return base**exponent.numerator
    if base < 0:
        raise UncomputableError("a power of a negative number is worked out for small whole exponents only")
    with localcontext() as context:
        context.prec = _ROOT_DIGITS
        return Fraction(to_decimal(base) ** to_decimal(exponent))


def _take_root(value: Fraction) -> Fraction:
    """Return the square root, exactly if it is rational."""
    if value < 0:
        raise UncomputableError("the square root of a negative number is not a real number")
    root = Fraction(math.isqrt(value.numerator), math.isqrt(value.denominator))
    return root if root * root == value else _raise(value, Fraction(1, 2))
