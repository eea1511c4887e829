r"""How models write formulas and quantities: LaTeX's commands for signs, and names of units, currencies and months.

A formula is a text without LaTeX: `-\frac{1}{2}` is `-1/2`. Each unit, currency and month has one symbol by which it
is counted.

Sources: huggingface/lighteval#162, UKGovernmentBEIS/inspect_ai#5259, scitix/sieval#26, facebookresearch/deepconf#15;
the normalisation of hendrycks/math, which reads `\frac12`, `\sqrt2` and `\dfrac` so; the units of the International
System and its brochure's table 8; ISO 4217.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Final

_SIGNS: Final = {
    "leq": "≤",
    "le": "≤",
    "leqslant": "≤",
    "geq": "≥",
    "ge": "≥",
    "geqslant": "≥",
    "lt": "<",
    "gt": ">",
    "neq": "≠",
    "ne": "≠",
    "approx": "≈",
    "pm": "±",
    "times": "*",
    "cdot": "*",
    "div": "/",
    "infty": "∞",
    "cup": "\u222a",
    "cap": "∩",
    "in": "∈",
    "emptyset": "∅",
    "varnothing": "∅",
    "circ": "°",
    "degree": "°",
    "ldots": "...",
    "dots": "...",
    "cdots": "...",
    "quad": " ",
    "qquad": " ",
    "to": "→",
    "rightarrow": "→",
    "therefore": "",
    "displaystyle": "",
    "left": "",
    "right": "",
    "bigl": "",
    "bigr": "",
    "limits": "",
    "pi": "π",
    "alpha": "\u03b1",
    "beta": "β",
    "gamma": "\u03b3",
    "theta": "θ",
    "lambda": "λ",
    "mu": "μ",
    "sigma": "\u03c3",
    "phi": "φ",
    "omega": "ω",
    **{name: name for name in ("sin", "cos", "tan", "cot", "sec", "csc", "log", "ln", "exp", "min", "max", "gcd")},
}
_SIGN: Final = re.compile(rf"\\({'|'.join(sorted(_SIGNS, key=len, reverse=True))})(?![a-zA-Z])[ ]?")
_DEGREES: Final = re.compile(r" ?\^ ?(?:\{ ?\\(?:circ|degree) ?\}|\\(?:circ|degree)(?![a-zA-Z]))")
_TEXT: Final = re.compile(
    r"\\(?:boxed|fbox|text|textbf|textit|textrm|mathrm|mathbf|mathit|mathsf|mathbb|operatorname|mbox|underline|emph)"
    r" ?\{([^{}]*)\}"
)
_SPACE: Final = re.compile(r"\\[,;:! ]|~")
_ESCAPE: Final = re.compile(r"\\([%$#&_{}])")
_THOUSANDS: Final = re.compile(r"(?<=\d)\{,\}(?=\d{3})")
_FRACTION: Final = re.compile(r"\\[dtc]?frac ?(?:\{([^{}]{1,80})\}|(\d)) ?(?:\{([^{}]{1,80})\}|([0-9a-zA-Z]))")
_MIXED: Final = re.compile(r"(?<=\d) ?(?=\\[dtc]?frac ?\{?\d+)")
_ROOT: Final = re.compile(r"\\sqrt ?(?:\{([^{}]{1,80})\}|(\w))")
_POWER: Final = re.compile(r"([\^_]) ?\{ ?([^{}]{1,80}?) ?\}")
_SIMPLE: Final = re.compile(r"\d+(?:\.\d+)?|\w")
_INTEGER: Final = re.compile(r"\d+")


def read_latex(text: str) -> str:
    """Return `text` with signs in the place of commands; what is no known command stays as it is."""
    if "\\" not in text and "{" not in text and "~" not in text:
        return text
    text = _DEGREES.sub("°", _THOUSANDS.sub(",", text))
    text = _SIGN.sub(lambda found: _SIGNS[found[1]], _SPACE.sub(" ", text))
    text = _TEXT.sub(r"\1", text)
    text = _POWER.sub(lambda found: found[1] + _enclose(found[2]), text)
    text = _ROOT.sub(lambda found: "√" + _enclose(found[1] or found[2]), text)
    text = _FRACTION.sub(_write_fraction, _MIXED.sub(" ", text))
    return _ESCAPE.sub(r"\1", text)


def _enclose(part: str) -> str:
    """Return `part` in parentheses, unless it is one name or number."""
    part = part.strip()
    return part if _SIMPLE.fullmatch(part.lstrip("+-")) else f"({part})"


def _write_fraction(found: re.Match[str]) -> str:
    top, bottom = (found[1] or found[2]).strip(), (found[3] or found[4]).strip()
    before, behind = found.string[: found.start()].rstrip(" ("), found.string[found.end() :].lstrip()
    is_part = bool(behind) and (behind[0].isalnum() or behind[0] in "\\(^")
    if _INTEGER.fullmatch(top) and _INTEGER.fullmatch(bottom) and not is_part:
        return (
            f"{top}/{bottom}" if not before or before[-1] in "-+=,$ " or before[-1].isdigit() else f"({top}/{bottom})"
        )
    whole = f"{_enclose(top)}/{_enclose(bottom)}"
    return f"({whole})" if is_part else whole


_NAMES: Final = {
    "h": "hour hours hr hrs stunde stunden heure heures hora horas ora ore час часа часов 小时 時間 시간",
    "min": "minute minutes mins minuten minuto minutos minuti минута минуты минут 分钟 分間 分 분",
    "s": (
        "second seconds sec secs sekunde sekunden seconde secondes "
        "segundo segundos secondi секунда секунды секунд 秒 초"
    ),
    "ms": "millisecond milliseconds",
    "day": "days d tag tage tagen jour jours día días dia dias giorno giorni день дня дней 天 日間",
    "week": "weeks wk wks",
    "month": "months",
    "year": "years yr yrs jahr jahre jahren an ans année années año años ano anos anno anni год года лет 年",
    "m": "meter meters metre metres mètre mètres metro metros метр метра метров 米",
    "km": (
        "kilometer kilometers kilometre kilometres kms kilomètre kilomètres kilómetro "
        "kilómetros quilômetros километр километра километров км 公里 千米"
    ),
    "cm": "centimeter centimeters centimetre centimetres cms",
    "mm": "millimeter millimeters millimetre millimetres",
    "mile": "miles mi",
    "ft": "foot feet",
    "inch": "inches",
    "yard": "yards yd yds",
    "g": "gram grams gramme grammes",
    "kg": (
        "kilogram kilograms kilogramme kilogrammes kgs kilogramm "
        "kilogramos килограмм килограмма килограммов кг 公斤 千克"
    ),
    "mg": "milligram milligrams",
    "lb": "lbs",
    "oz": "ounce ounces",
    "ton": "tons",
    "l": "liter liters litre litres",
    "ml": "milliliter milliliters millilitre millilitres",
    "J": "joule joules",
    "W": "watt watts",
    "V": "volt volts",
    "N": "newton newtons",
    "Hz": "hertz",
    "K": "kelvin kelvins",
    "mol": "mole moles",
    "%": (
        "percent pct per\u00a0cent prozent pourcent pour\u00a0cent "
        "por\u00a0ciento por\u00a0cento per\u00a0cento procent процент процента процентов"
    ),
    "°": "degree degrees deg",
    "°c": "degrees\u00a0celsius degree\u00a0celsius degrees\u00a0c celsius deg\u00a0c °\u00a0c",
    "°f": "degrees\u00a0fahrenheit degree\u00a0fahrenheit degrees\u00a0f fahrenheit deg\u00a0f °\u00a0f",
    "km/h": "kmh kph",
    "mile/h": "mph",
    "eur": "€ euro euros",
    "gbp": "£ pounds\u00a0sterling",
    "inr": "₹ rupee rupees",
    "rub": "₽ ruble rubles рублей",
    "krw": "₩ won",
    "jpy": "yen 円",
    "cny": "yuan 元 rmb",
    "cent": "cents ¢",
    # The sign of the dollar is also LaTeX's, and models leave it out as they like.
    "": "dollar dollars usd us\u00a0dollars us\u00a0dollar $ us$",
}
UNIT_NAMES: Final = {
    name.replace("\u00a0", " "): symbol for symbol, names in _NAMES.items() for name in names.split(" ")
}
"""The symbol of each name of a unit or currency, which is in small letters."""

SCALES: Final[tuple[Mapping[str, Fraction], ...]] = tuple(
    MappingProxyType({unit: Fraction(str(factor)) for unit, factor in zip(units.split(), factors, strict=True)})
    for units, factors in (
        ("ms s min h day week", ("1/1000", 1, 60, 3600, 86_400, 604_800)),
        ("month year", (1, 12)),
        ("mm cm m km", ("1/1000", "1/100", 1, 1000)),
        ("inch ft yard mile", (1, 12, 36, 63_360)),
        ("mg g kg", ("1/1000", 1, 1000)),
        ("oz lb", (1, 16)),
        ("ml l", ("1/1000", 1)),
    )
)
"""Units that are multiples of one another, each with how many of the scale's own unit it is."""

PREFIX_CURRENCIES: Final = "US\\$|[$€£¥₹₽₩]|USD|EUR|GBP|INR|JPY|CNY|RUB|KRW"
"""What stands before an amount of money, as an expression."""

MULTIPLES: Final = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
"""Words behind a number that multiply it."""

MONTHS: Final = (
    *("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november"),
    "december",
)
"""The months in order; three letters are enough, and "sept"."""

_ONES: Final = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS: Final = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBER_WORDS: Final = {word: number for number, word in enumerate(_ONES.split())} | {
    word: 10 * number for number, word in enumerate(_TENS.split(), start=2)
}
"""The numbers that have words of their own."""
