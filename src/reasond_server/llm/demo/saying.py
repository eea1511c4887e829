"""Numbers that a text says, and whether it says a certain one."""

from __future__ import annotations

import math
import re

_NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]{0,400}(?:\.\d{1,400})?")
_TOLERANCE = 1e-9


def numbers_of(text: str) -> list[str]:
    """Return the numbers in `text` as they are written, without thousands separators."""
    return [found.replace(",", "") for found in _NUMBER.findall(text)]


def says(text: str, value: float) -> bool:
    """Return whether one of the numbers in `text` stands for `value`."""
    return any(stands_for(number, value) for number in numbers_of(text))


def stands_for(number: str, value: float) -> bool:
    """Return whether `number` is `value`: exactly if it is whole, else as far as its decimals show it."""
    places = len(number.partition(".")[2])
    most = 0.51 * 10.0**-places if places else 0.0
    return math.isclose(float(number), value, rel_tol=_TOLERANCE, abs_tol=most)
