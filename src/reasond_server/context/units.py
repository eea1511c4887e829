"""Units of measurement and their spellings. Case matters if it distinguishes two units, such as mW and MW."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

_PREFIXES: Final = ("", *"yzafpnμmcdhkMGTPEZY", "da")
_UNITS: Final = (
    *("m", "g", "s", "A", "K", "mol", "cd", "Hz", "N", "Pa", "J", "W", "C", "V", "F", "Ω", "S", "Wb", "T", "H", "lm"),
    *("lx", "Bq", "Gy", "Sv", "l", "eV", "bar", "b", "B", "bit", "byte", "bps", "Bps", "Wh", "Ah", "VA"),
)
_UNIT = "[A-Za-zμΩ]{1,20}"
_QUANTITY = re.compile(rf"(?<!\w)([\d.,/^eE+-]{{0,60}}\d ?)({_UNIT}(?: ?/ ?{_UNIT})?)(?!\w)")


def fold_case(text: str) -> str:
    """Return `text` in lower case, except units after a number, which get their canonical spelling.

    `5 KM` becomes `5 km`, and `3 KWH` becomes `3 kWh`. `5 mW` and `5 MW` are different units and do not change. A
    single capital letter does not change either: it may mean a million, a byte or a kelvin.
    """
    parts: list[str] = []
    end = 0
    for found in _QUANTITY.finditer(text):
        parts += (text[end : found.start()].casefold(), found[1].casefold(), _spell_unit(found[2]))
        end = found.end()
    return "".join([*parts, text[end:].casefold()])


def _spell_unit(unit: str) -> str:
    if "/" not in unit:
        return _spell_name(unit)
    return "/".join(_spell_name(name.strip()) for name in (unit.casefold() if unit.isupper() else unit).split("/"))


def _spell_name(name: str) -> str:
    """Return the canonical spelling of a unit without a divisor; in lower case if it is unknown or ambiguous."""
    if len(name) == 1:
        return "l" if name == "L" else name
    unit = name[:-1] + "l" if name.endswith("L") else name
    known = _list_symbols().get(unit.casefold(), ())
    if unit in known:
        return unit
    return known[0] if len(known) == 1 else name.casefold()


@cache
def _list_symbols() -> dict[str, tuple[str, ...]]:
    """Return the symbols of all units with their prefixes, keyed by their lower-case form."""
    symbols: dict[str, tuple[str, ...]] = {}
    for symbol in [prefix + unit for prefix in _PREFIXES for unit in _UNITS]:
        symbols[symbol.casefold()] = (*symbols.get(symbol.casefold(), ()), symbol)
    return symbols
