"""Names of units, currencies and months, with the one symbol by which each is counted.

Sources: the units of the International System and its brochure's table 8; ISO 4217; huggingface/lighteval#162,
facebookresearch/deepconf#15.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Final

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
