"""Quantities of one value in one form: `1 h 30 min`, `90 min` and `1.5 h`; `5'6"`, `5 ft 6 in` and `66 inches`."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

from reasond_server.dialects.units import SCALES, UNIT_NAMES

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
