"""Formulas and quantities in answers: one spelling for what means the same.

A formula may differ in spaces, in signs, or in the order of the terms of a sum. Nothing is calculated: `3-4` stays, and
`2x+x` is not `3x`. Quantities of one value have one form: `1 h 30 min`, `90 min` and `1.5 h`; `5'6"`, `5 ft 6 in` and
`66 inches`.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from reasond_server.dialects.written_formulas import SCALES, UNIT_NAMES

_MAX_CHARACTERS: Final = 200
# Letters that stand for numbers; words have others, too.
_LETTER: Final = "[a-dfghkm-npqrstu-zij\u03c0\u03b8\u03b1\u03b2\u03b3\u03bb\u03bc\u03c3\u03c6\u03c9]"
_CHARACTERS: Final = re.compile(
    r"[0-9a-z\u03c0\u03b8\u03b1\u03b2\u03b3\u03bb\u03bc\u03c3\u03c6\u03c9\u222a\u2229\u2208∞√±°"
    r".,^*/+\-=<>≤≥≠≈()|!_ \[\]{}]+"
)
_SIGN: Final = re.compile(r"[\^*/+=<>≤≥≠√±∞π]|(?<=[\w)]) ?- ?(?=[\w(])")
_NAME: Final = re.compile(r"[a-z]{3,}")
_FUNCTIONS: Final = frozenset(
    (
        "sin",
        "cos",
        "tan",
        "cot",
        "sec",
        "csc",
        "log",
        "exp",
        "sqrt",
        "arcsin",
        "arccos",
        "arctan",
        "gcd",
        "lcm",
        "mod",
        "min",
        "max",
    )
)
_RELATION: Final = re.compile(r" ?(<=|>=|==|!=|[=<>≤≥≠≈]) ?")
_RELATIONS: Final = {"<=": "≤", ">=": "≥", "==": "=", "!=": "≠"}
_TURNED: Final = {"=": "=", "≠": "≠", "≈": "≈", "<": ">", ">": "<", "≤": "≥", "≥": "≤"}
_SPACED: Final = re.compile(r" ?([\^*/+\-√±(),]) ?")
_ROOT: Final = re.compile(r"sqrt ?(?=[(\d])|√\((\d[\d.]*|[a-z])\)")
_PI: Final = re.compile(r"(?<![a-z])pi(?![a-z])")
_PRODUCT: Final = re.compile(r"(?<=[0-9)])\*(?=[a-zπθ√(])|(?<=[a-zπθ])\*(?=[a-zπθ√])|(?<=\d) (?=[a-zπθ√](?![a-z]))")
_ENCLOSED: Final = re.compile(r"(?<![\w)])\((-?√?[0-9.]+|√?[a-zπθ])\)(?=/)|(?<=/)\((√?[0-9.]+|√?[a-zπθ])\)")
_NUMBER: Final = re.compile(r"-?[0-9.]+(?:/[0-9]+)?")
_TERM: Final = re.compile(
    rf"([+-]?)(\d+(?:\.\d+)?|\((?P<over>\d+/\d+)\))?((?:{_LETTER}(?:\^(?:-?\d+|\(-?\d+\)))?)*)(?:/(\d+))?(?=[+-]|$)"
)
_FACTOR: Final = re.compile(rf"({_LETTER})(?:\^\(?(-?\d+)\)?)?")


def spell_formula(text: str) -> str:
    """Return the one spelling of a formula in small letters; empty for any other text, code such as `2**3` included."""
    if len(text) > _MAX_CHARACTERS or "**" in text or not _SIGN.search(text) or not _CHARACTERS.fullmatch(text):
        return ""
    if any(name not in _FUNCTIONS for name in _NAME.findall(text)) or not re.search(r"\d|[\^√∞=<>≤≥+]", text):
        return ""
    parts = _RELATION.split(text)
    sides = [_spell_side(side) for side in parts[::2]]
    if len(sides) > 1 and not all(sides):
        return ""
    relations = [_RELATIONS.get(sign, sign) for sign in parts[1::2]]
    if len(relations) == 1 and _NUMBER.fullmatch(sides[0]) and not _NUMBER.fullmatch(sides[1]):
        sides, relations = sides[::-1], [_TURNED[relations[0]]]
    spelled = sides[0]
    for relation, side in zip(relations, sides[1:], strict=True):
        spelled += f" {relation} {side}"
    return spelled


def _spell_side(text: str) -> str:
    text = _SPACED.sub(r"\1", _PI.sub("π", text.strip()))
    text = _ROOT.sub(r"√\1", _ROOT.sub(r"√\1", text))
    text = _ENCLOSED.sub(lambda found: found[1] or found[2], _PRODUCT.sub("", text))
    return _sort_terms(text) or text


def _sort_terms(text: str) -> str:
    """Return a sum of monomials by falling degree; empty for any other text, and if a monomial comes twice."""
    terms: dict[tuple[tuple[str, int], ...], Fraction] = {}
    end = 0
    for found in _TERM.finditer(text):
        if found.start() != end or not found[0] or found[0] in "+-" or (end and not found[1]):
            return ""
        end = found.end()
        factors = [(letter, int(power or 1)) for letter, power in _FACTOR.findall(found[4])]
        monomial = tuple(sorted(factors))
        if len({letter for letter, _ in factors}) < len(factors) or monomial in terms:
            return ""
        if found[5] and (not factors or not int(found[5])):
            return ""
        number = found["over"] or found[2] or "1"
        if number.endswith("/0"):
            return ""
        terms[monomial] = Fraction(number) / int(found[5] or 1) * (-1 if found[1] == "-" else 1)
        if end == len(text):
            break
    if end != len(text) or not any(terms) or (len(terms) == 1 and re.fullmatch(r"[a-z]+", text)):
        return ""
    ordered = sorted(terms.items(), key=lambda item: (-sum(power for _, power in item[0]), item[0]))
    spelled = "".join([_spell_term(number, monomial) for monomial, number in ordered])
    return (
        spelled.removeprefix(" + ").replace(" - ", "-", 1) if spelled.startswith(" - ") else spelled.removeprefix(" + ")
    )


def _spell_term(number: Fraction, monomial: tuple[tuple[str, int], ...]) -> str:
    letters = "".join([letter if power == 1 else f"{letter}^{power}" for letter, power in monomial])
    size = abs(number)
    shown = "" if size == 1 and letters else f"({size})" if size.denominator > 1 and letters else str(size)
    return f" {'-' if number < 0 else '+'} {shown}{letters}"


_PART: Final = r"(?P<number{0}>\d{{1,12}}(?:\.\d{{1,12}})?) ?(?P<unit{0}>'|\"|[^\W\d_]{{1,20}})"
_COMPOUND: Final = re.compile(
    r"(?P<sign>-?)" + r",? ?(?:(?:and|und|et|y|e) )?".join(_PART.format(place) for place in (0, 1)) + r"(?P<rest>.*)"
)
_MARKS: Final = {"'": "ft", '"': "inch", "in": "inch", "secs": "s"}
# Behind hours and days.
_SHORT_TIMES: Final = {"m": "min", "s": "s"}
_CLOCK: Final = re.compile(r"(\d{1,3}):([0-5]\d) ?h(?:ours?|rs?)?")


def join_compound(text: str) -> str:
    """Return a quantity with several units, the larger one first, as one in its smallest; other texts as they are."""
    if (clock := _CLOCK.fullmatch(text)) is not None:
        return f"{int(clock[1]) * 60 + int(clock[2])} min"
    found = _COMPOUND.fullmatch(text)
    if found is None:
        return text
    first = _name(found["unit0"])
    second = _SHORT_TIMES.get(found["unit1"], "") if first in {"h", "day"} else ""
    second = second or _name(found["unit1"])
    scale = next((scale for scale in SCALES if first in scale and second in scale), None)
    if scale is None or scale[first] <= scale[second]:
        return text
    factor = scale[first] / scale[second]
    smaller = Fraction(found["number1"])
    if smaller >= factor or "." in found["number0"]:
        # Nobody writes 2 h 90 min, or 1.5 h 10 min, for one quantity.
        return text
    joined = f"{found['sign']}{spell_decimal(Fraction(found['number0']) * factor + smaller)} {second}"
    return join_compound(f"{joined}{found['rest']}") if found["rest"] else joined


def _name(unit: str) -> str:
    return _MARKS.get(unit.casefold()) or UNIT_NAMES.get(unit.casefold(), unit.casefold())


def convert_quantity(value: str, unit: str) -> str:
    """Return a quantity in the largest unit in which its value has an end and is at least 1, else in its smallest."""
    unit = "inch" if unit == "in" else unit
    scale = next((scale for scale in SCALES if unit in scale), None)
    if scale is None:
        return f"{value} {unit}".strip()
    smallest = Fraction(value) * scale[unit]
    for name, factor in sorted(scale.items(), key=lambda each: -each[1]):
        spelled = spell_decimal(smallest / factor)
        if abs(smallest) >= factor and "/" not in spelled:
            return f"{spelled} {name}"
    return f"{value} {unit}"


def spell_decimal(value: Fraction) -> str:
    """Return the decimal expansion if it is finite, else the reduced fraction."""
    twos = fives = 0
    rest = value.denominator
    while rest % 2 == 0:
        rest, twos = rest // 2, twos + 1
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    if rest != 1:
        return f"{value.numerator}/{value.denominator}"
    places = max(twos, fives)
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    sign = "-" if value < 0 else ""
    return f"{sign}{digits[: len(digits) - places]}{'.' if places else ''}{digits[len(digits) - places :]}"
