r"""The form of an answer by which votes are counted: equal answers have one form, different answers never do.

A form ignores case, white space, quotes, markdown, LaTeX, a full stop at the end, an announcement such as "The answer
is" in many languages, and an explanation in the lines behind the answer. What has a value is compared by its value:

- Numbers: `1,000`, `1 000`, `1000.0`, `1e3`, `2000/2` and "one thousand" are one, and so are `-\frac{1}{2}`, `-1/2` and
  `-0.5`. A comma is a thousands separator between groups of three digits and a decimal sign where nothing else is
  possible (`1.234,5`; `2,5 kg`).
- Units, by symbol or name (`5 hours` is `5 h`), are kept: `5 km` is neither `5` nor `5 m`, but it is `5000 m`, and
  `1 h 30 min` is `90 min`. So are currencies except the dollar, whose sign is LaTeX's too.
- An equation for x is its value: `x = 42` is `42`. Other names are kept.
- Choices, dates and times: "(B) Paris" is `B`, "July 4, 1776" is `1776-07-04`, "3:30 PM" is `15:30`.
- Lists, pairs and sets, item by item; only the order of a set does not matter. Of formulas, spaces and the order of the
  terms of a sum of monomials do not matter; nothing is calculated.

**Where two readings are possible, two answers stay apart**: `(1,234)` is a pair or a number, `1,5` a number or two,
`007` a name, `3.10` a version, `03/04/2024` one of two days, `3:30` one of two times.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Final

from reasond_server.context.formulas import convert_quantity, join_compound, spell_decimal, spell_formula
from reasond_server.dialects.answer_marks import ANNOUNCEMENT, CHOICE_WORDS, EXPLANATIONS, HEADING, NEGATIONS
from reasond_server.dialects.written_formulas import (
    MONTHS,
    MULTIPLES,
    NUMBER_WORDS,
    PREFIX_CURRENCIES,
    UNIT_NAMES,
    read_latex,
)

_MOST_WORDS: Final = 12


def read_number_words(text: str) -> str:
    """Return the digits of a number in words, such as "two hundred and five"; empty for any other text."""
    words = text.replace("-", " ").replace(" and ", " ").split()
    if not words or len(words) > _MOST_WORDS or words[0] not in NUMBER_WORDS:
        return ""
    total, group, room = 0, 0, 0
    for place, word in enumerate(words):
        number, multiple = NUMBER_WORDS.get(word), MULTIPLES.get(word)
        if number is not None:
            # Room is what may follow: below 100 behind a hundred, below 10 behind "twenty".
            if place and not 0 < number < room:
                return ""
            group, room = group + number, 10 if word.endswith("ty") else 0
        elif multiple == MULTIPLES["hundred"] and 0 < group < multiple:
            group, room = group * multiple, 100
        elif multiple and group:
            total, group, room = total + group * multiple, 0, 100
        else:
            return ""
    return str(total + group)


_MONTHS: Final = 12
_DAYS: Final = 31
_NOON: Final = 12
_HOURS: Final = 24
_MINUTES: Final = 60
_CLOCK = re.compile(r"(\d{1,2})(?:[:.](\d{2}))?(?::(\d{2}))? ?(am|pm|a\.m\.?|p\.m\.?)?", re.IGNORECASE)
_MONTH = rf"({'|'.join(f'{name[:3]}(?:{name[3:]})?' for name in MONTHS)}|sept)\.?"
_DATES: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        rf"(?P<month>{_MONTH}) (?P<day>\d{{1,2}})(?:st|nd|rd|th)?,? (?P<year>\d{{4}})",
        rf"(?:the )?(?P<day>\d{{1,2}})(?:st|nd|rd|th|\.)?(?: of)?[ -](?P<month>{_MONTH})[, -]{{1,2}}(?P<year>\d{{4}})",
        r"(?P<year>\d{4})[-/.年] ?(?P<month>\d{1,2})[-/.月] ?(?P<day>\d{1,2})日?",
        r"(?P<day>\d{1,2})\.(?P<month>\d{1,2})\.(?P<year>\d{4})",
        r"(?P<one>\d{1,2})[/-](?P<two>\d{1,2})[/-](?P<year>\d{4})",
    )
)


def spell_date(text: str) -> str:
    """Return a day as 2024-02-29; empty for any other text, and where the month could be the day."""
    found = next(filter(None, (pattern.fullmatch(text) for pattern in _DATES)), None)
    if found is None:
        return ""
    parts = found.groupdict()
    if "one" in parts:
        one, two = int(parts["one"]), int(parts["two"])
        if (one > _MONTHS) == (two > _MONTHS) and one != two:
            return ""
        day, month = (one, two) if one > _MONTHS else (two, one)
    else:
        name = parts["month"]
        month = int(name) if name.isdigit() else 1 + [each[:3] for each in MONTHS].index(name[:3].casefold())
        day = int(parts["day"])
    is_day = 1 <= month <= _MONTHS and 1 <= day <= _DAYS
    return f"{parts['year']}-{month:02}-{day:02}" if is_day else ""


def spell_time(text: str) -> str:
    """Return a time of the day as 15:30; empty for any other text, and where it could be twelve hours later."""
    found = _CLOCK.fullmatch(text.replace(" o'clock", ""))
    if found is None or not (found[2] or found[4]):
        return ""
    hour, minute, half = int(found[1]), int(found[2] or 0), (found[4] or "").casefold().replace(".", "")
    is_clear = half or (":" in text and (hour > _NOON or found[1].startswith("0")))
    if not is_clear or minute >= _MINUTES or (half and not 1 <= hour <= _NOON) or hour >= _HOURS:
        return ""
    if half:
        hour = hour % _NOON + _NOON * (half == "pm")
    return f"{hour:02}:{minute:02}" + (f":{found[3]}" if found[3] else "")


_MAX_CHARACTERS: Final = 20_000
_MAX_DIGITS: Final = 60
# Beyond it, floats are no exact integers.
_EXACT_FLOATS: Final = 2**53
_MAX_EXPONENT: Final = 60
_MAX_PASSES: Final = 50
_MAX_DEPTH: Final = 4
_MAX_LIST: Final = 400
_MOST_WORDS_OF_ITEM: Final = 2

_INTEGER = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
DECIMAL: Final = rf"(?:{_INTEGER}(?:\.\d*)?|\.\d+)"
"""A number without its sign, as an expression."""
_VALUE = re.compile(
    r"(?P<sign>[+-]?) ?(?:(?P<whole>\d{1,60}) (?=\d{1,60} ?/))?"
    rf"(?P<top>{DECIMAL})"
    rf"(?: ?/ ?(?P<bottom>{DECIMAL})"
    r"|e(?P<exponent>[+-]?\d{1,3})"
    r"| ?[x*] ?10 ?\^ ?\(?(?P<power>[+-]?\d{1,3})\)?)?"
)
_WORD = r"[A-Za-zμΩ]{1,20}(?:\^-?[23])?"
_UNIT = rf"%|°|°?{_WORD}(?: ?/ ?{_WORD})?|[€£¥₹₽₩円元¢$]"
_QUANTITY = re.compile(rf"(?P<value>{_VALUE.pattern}) ?(?P<unit>{_UNIT})")
_NAMED_QUANTITY = re.compile(
    rf"({_VALUE.pattern}) ?((?:°|[^\W\d_])(?:[^\W\d_]|[°/ ]){{0,40}}[^\W\d_]|[^\W\d_a-z])", re.IGNORECASE
)
_COPULA = re.compile(r"(?:(?<=\d)|(?<=\b[A-Ha-h])|(?<=[)\uff09])) ?(?:です|である|だ|입니다|이다|예요|이에요)[.。]?$")
_MONEY = re.compile(rf"(?P<sign>[+-]?) ?(?P<currency>{PREFIX_CURRENCIES}) ?(?P<rest>-?[\d.].*)", re.IGNORECASE)
_NAME_OF_DIGITS = re.compile(r"[+-]?(?:0\d.*|[1-9]\.[12]0)")
_GROUPED = re.compile(r"(?<![\d.,])\d{1,3}(?:[ '_]\d{3})+(?![\d])|(?<![\d.,])\d{1,2}(?:,\d{2})+,\d{3}(?![\d,])")
_CONTINENTAL = re.compile(r"(?<![\d.,])(\d{1,3}(?:[. ']\d{3})+),(\d{1,6})(?![\d,.])")
_DOTTED = re.compile(r"[+-]?\d{1,3}(?:\.\d{3}){2}")
_DECIMAL_COMMA = re.compile(r"^([+-]?\d{1,9}),(\d{1,2}|\d{4,9})(?= ?(?:[^\W\d_]|[%°€£₹₽₩Ω]))")
_NEGATIVE = re.compile(r"^- (?=[\d.])")
_FRACTION_IN_PARENTHESES = re.compile(r"([+-]?) ?\(\s*([+-]?[\d ]+/ ?\d+)\s*\)")
_LEAD = re.compile(
    rf"^(?:#{{1,6}} |[=→⇒∴✅☑✔👉🎯] ?|{ANNOUNCEMENT} ?(?!(?:{NEGATIONS})\b)|a: ?|(?:{HEADING})(?:$| (?=[$\\*_\d])))++",
    re.IGNORECASE,
)
_EXPLANATION = re.compile(rf"\n\s*[*_#(]{{0,3}}(?:{EXPLANATIONS})(?![^\W\u3040-\u9fff]).*", re.IGNORECASE | re.DOTALL)
_BECAUSE = re.compile(r"(?<=\w)[ ,;:(\u2013\u2014-]{1,3}\(?because\b.*", re.IGNORECASE)
_STRUCTURED = re.compile(r"\s*+(?:\[\s*+)?\{")
_FENCED = re.compile(r"\s*(`{3,}|~{3,})[^\n`]*\n(.*?)\n? {0,3}\1[`~]*\s*", re.DOTALL)
_HTML = re.compile(r"</?(?:b|i|strong|em|u|p|span|code|mark)>|<br ?/?>", re.IGNORECASE)
_CHOICE = re.compile(
    rf"(?i:{CHOICE_WORDS}):? ?\(?([A-Ja-j])\)?(?:(?:[:.),]| [-\u2013\u2014]| is\b).*)?"
    r"|([A-J]) ?(?:选项|選項)"
    r"|[(\[]([A-Ja-j])[)\]](?:[:.]? \S.*)?|([A-Ja-j])\)(?: ?\S.*)?"
    # An initial of a name is read as a choice, that of a species is not.
    r"|([A-J])[.:](?! ?[A-Za-z]\.)(?! [a-z]+$) ?\S.*|([B-Jb-j])[.:](?! ?[A-Za-z]\.)(?: [A-Z\d$\\].*)?"
)
_INLINE_MATH = re.compile(r"(?<![\w\\$])\$(?=\S)([^$]{1,200})(?<=\S)\$(?![\w$])")
_SUBSCRIPT = re.compile(r"([A-Z][a-z]?|(?<!\w)[a-z])_(?=\d)")
_WRAPS: Final = (
    ("$$", "$$"),
    ("\\(", "\\)"),
    ("\\[", "\\]"),
    ("$", "$"),
    ("**", "**"),
    ("*", "*"),
    ("__", "__"),
    ("_", "_"),
    ("`", "`"),
    ('"', '"'),
    ("'", "'"),
    ("«", "»"),
    ("「", "」"),
    ("【", "】"),
)
_CHARACTERS: Final = {
    **dict.fromkeys((0x2018, 0x2019, 0x2032, 0xFF07), "'"),
    **dict.fromkeys((0x201C, 0x201D, 0x201E), '"'),
    **dict.fromkeys((0x2212, 0x2010, 0x2011, 0x2012, 0x2013), "-"),
    **dict.fromkeys((0x00D7, 0x00B7, 0x22C5), "*"),
    **dict.fromkeys((0x200B, 0x200C, 0x200D, 0xFEFF, 0x2060, 0x00AD, 0xFE0F), ""),
    0x2044: "/",
    0x00F7: "/",
    0x3002: ".",
}
# NFKC alone would turn 10² into 102, and 1½ into 11/2; º is its "o".
_RAISED = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u207b\u207d-\u207f]+")
_LOWERED = re.compile(r"(?<=\d)[\u2080-\u2089]+|[\u2080-\u2089]+(?=\d)")
_FRACTION_AFTER_NUMBER = re.compile(r"(?<=\d)(?=[\u00bc-\u00be\u2150-\u215e])")
_DEGREE_LOOKALIKE = re.compile(r"(?<=\d) ?[\u00ba\u02da]")
_EMPHASIS = re.compile(r"(?<![^\s(])(\*{2,3})(?=\S)([^*]{1,400})(?<=\S)\1(?![^\s.,:;!?)])")
_FACTORIAL = re.compile(r"(?:[\d)]|(?<![^\W\d_])[^\W\d_])!+(?=[.?;, ]*$)")
_ACRONYM = re.compile(r"(?<![\w.])(?:[A-Za-z]\.){2,}(?!\w)")
_ARTICLES = re.compile(r"^(?:the )++(?=\S)")
_LISTED = re.compile(r" ?, ?(?=\S)(?!\d{3}(?!\d))| ?, (?=\S)| ,(?=\S)")
_LAST_OF_LIST = re.compile(r",? (?:and|&) ")
_BRACKETED = re.compile(r"([(\[{])(.*)([)\]}])")
_THOUSANDS_OR_PAIR = re.compile(r",(?=\d{3}(?!\d))")
_INFINITE = re.compile(r"([+-]|plus |minus |positive |negative )? ?(?:∞|infinity|infinite|unendlich|infini|infinito)")
# The usual unknown; others may be what was asked for.
_UNKNOWN = re.compile(r"^x ?[=∈] ?(?=[^=]+$)")
_DECIDED = re.compile(r"(yes|no|true|false)\s*[.,;:!\u2013\u2014-]\s?[^\d]*", re.IGNORECASE)


def normalize_answer(answer: str) -> str:
    """Return the normalised form of `answer`, by which votes are counted; empty for a blank answer.

    Normalising twice changes nothing more. In an answer of more than 20,000 characters, only white space, case,
    quotes and compatibility forms are normalised. JSON objects are equal if their values are, whatever their layout and
    the order of their names.
    """
    if (fenced := _FENCED.fullmatch(answer)) is not None:
        answer = fenced[2]
    if (structured := _normalize_json(answer)) is not None:
        return structured
    if len(answer) <= _MAX_CHARACTERS:
        answer = _HTML.sub(" ", answer)
        shortened = _EXPLANATION.sub("", answer.strip())
        answer = shortened if shortened.strip(" \n*_#`") else answer
    text = _FRACTION_AFTER_NUMBER.sub(" ", _LOWERED.sub(r"_\g<0>", _RAISED.sub(r"^\g<0>", answer)))
    text = _DEGREE_LOOKALIKE.sub("°", text)
    text = " ".join(unicodedata.normalize("NFKC", text.translate(_CHARACTERS)).translate(_CHARACTERS).split())
    if len(text) > _MAX_CHARACTERS:
        return text.casefold()
    return _normalize_part(_write_ascii_digits(text), 0)


def find_value(text: str) -> str:
    """Return the form of `text` if it is a number, a quantity or the letter of a choice; empty if it is not."""
    form = normalize_answer(text)
    is_value = (
        form in {"∞", "-∞"} or _VALUE.fullmatch(form) or _QUANTITY.fullmatch(form) or re.fullmatch(r"[a-j]", form)
    )
    return form if is_value else ""


def _normalize_part(text: str, depth: int) -> str:
    for _ in range(_MAX_PASSES):
        simpler = _simplify(text, depth)
        if simpler == text:
            break
        text = simpler
    return text


def _write_ascii_digits(text: str) -> str:
    """Return `text` with the digits of all scripts as 0 to 9."""
    if text.isascii():
        return text
    return "".join([str(unicodedata.decimal(char)) if char.isdecimal() else char for char in text])


def _normalize_json(answer: str) -> str | None:
    """Return the one form of a JSON object, or of a list that begins with one; None for any other answer."""
    if len(answer) > _MAX_CHARACTERS or not _STRUCTURED.match(answer):
        return None
    try:
        return json.dumps(json.loads(answer, parse_float=_read_float), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return None


def _read_float(number: str) -> float:
    """Return a number of JSON, a whole one as an integer: 1.0 is 1."""
    value = float(number)
    return int(value) if value.is_integer() and abs(value) <= _EXACT_FLOATS else value


def _simplify(text: str, depth: int) -> str:
    """Remove one layer of wrapping; if there is none, normalise the text."""
    text = " ".join(_EMPHASIS.sub(r"\2", _CONTINENTAL.sub(_write_plainly, read_latex(text))).split())
    for opening, closing in _WRAPS:
        inner = text[len(opening) : -len(closing)]
        is_wrapped = text.startswith(opening) and text.endswith(closing) and len(text) > len(opening) + len(closing)
        if is_wrapped and opening not in inner and closing not in inner:
            return inner.strip()
    text = _COPULA.sub("", _INLINE_MATH.sub(r"\1", text))
    text = _BECAUSE.sub("", _LEAD.sub("", _SUBSCRIPT.sub(r"\1", text))).strip()
    if (choice := _CHOICE.fullmatch(text.rstrip(" ;,"))) is not None:
        return next(letter for letter in choice.groups() if letter).casefold()
    folded = fold_case(_ACRONYM.sub(lambda found: found[0].replace(".", ""), text)).strip()
    factorial = _FACTORIAL.search(folded)
    whole = folded[: factorial.end()] if factorial else folded.rstrip(".!?;, ")
    trimmed = _UNKNOWN.sub("", whole or folded)
    if (decided := _DECIDED.fullmatch(trimmed)) is not None:
        return decided[1]
    return spell_value(trimmed) or _spell_list(trimmed, depth) or spell_formula(trimmed) or _spell_words(trimmed)


def spell_value(text: str) -> str:
    """Return the canonical spelling of a number, a quantity, an amount, a day or a time; empty for any other text."""
    if (infinite := _INFINITE.fullmatch(text)) is not None:
        return "-∞" if infinite[1] in {"-", "minus ", "negative "} else "∞"
    return spell_date(text) or spell_time(text) or _spell_number(text) or _spell_quantity(text)


def _spell_words(text: str) -> str:
    """Return a text without its article, and with one blank behind its commas."""
    text = _ARTICLES.sub("", text)
    return _LISTED.sub(", ", text)


def _write_plainly(found: re.Match[str]) -> str:
    """Return a number such as `1.234,5` with a decimal point and without separators."""
    return re.sub(r"[^\d]", "", found[1]) + "." + found[2]


def _spell_number(text: str) -> str:
    """Return the canonical spelling of a number; empty if `text` is not a number, or too large."""
    if (money := _MONEY.fullmatch(text)) is not None:
        currency = UNIT_NAMES.get(money["currency"].casefold(), money["currency"].casefold())
        amount = _spell_plain(
            money["sign"] + _DECIMAL_COMMA.sub(r"\1.\2", f"{money['rest']} x").removesuffix(" x"), is_bare=False
        )
        return f"{amount} {currency}".strip() if amount else ""
    return _spell_plain(text, is_bare=True)


def _spell_plain(text: str, *, is_bare: bool) -> str:
    if is_bare and _NAME_OF_DIGITS.fullmatch(text):
        return ""
    if (fraction := _FRACTION_IN_PARENTHESES.fullmatch(text)) is not None:
        text = fraction[1] + fraction[2]
    if _DOTTED.fullmatch(text):
        text = text.replace(".", "")
    text = _GROUPED.sub(lambda found: re.sub(r"[^\d]", "", found[0]), _NEGATIVE.sub("-", text))
    found = _VALUE.fullmatch(text)
    if found is not None:
        return _spell(found)
    number, _, multiple = text.rpartition(" ")
    if multiple in MULTIPLES and (found := _VALUE.fullmatch(number)) is not None:
        return _spell(found, times=MULTIPLES[multiple])
    return read_number_words(text)


def _spell_quantity(text: str) -> str:
    """Return the canonical spelling of a number with a unit; empty for any other text."""
    text = _DECIMAL_COMMA.sub(r"\1.\2", _GROUPED.sub(lambda found: re.sub(r"[^\d]", "", found[0]), text))
    text = join_compound(text)
    first, _, rest = text.partition(" ")
    if (spoken := read_number_words(first)) and rest:
        text = f"{spoken} {rest}"
    if (named := _NAMED_QUANTITY.fullmatch(text)) is not None:
        unit = _name_unit(named[named.re.groups])
        text = f"{named[1]} {unit}".strip() if unit is not None else text
        if not unit and unit is not None:
            return _spell_plain(text, is_bare=False)
    found = _QUANTITY.fullmatch(text)
    if found is None or (_NAME_OF_DIGITS.fullmatch(found["value"]) and found["value"].startswith("0")):
        return ""
    value, unit = _spell(found), found["unit"].replace(" ", "")
    unit = UNIT_NAMES.get(unit, unit)
    return convert_quantity(value, unit) if value else ""


def _name_unit(name: str) -> str | None:
    """Return the symbol of a unit that has words; None if it is unknown."""
    name = " ".join(name.split())
    if name in UNIT_NAMES:
        return UNIT_NAMES[name]
    if name.casefold() in UNIT_NAMES:
        return UNIT_NAMES[name.casefold()]
    head, _, rest = name.partition(" ")
    power = {"square": "^2", "sq": "^2", "cubic": "^3", "cu": "^3"}.get(head)
    if power and rest in UNIT_NAMES:
        return UNIT_NAMES[rest] + power
    divided = re.split(r" ?/ ?| per ", name)
    is_known = len(divided) > 1 and any(part in UNIT_NAMES for part in divided)
    return "/".join(UNIT_NAMES.get(part, part) for part in divided) if is_known else None


def _spell(found: re.Match[str], *, times: int = 1) -> str:
    top, bottom = found["top"].replace(",", ""), (found["bottom"] or "1").replace(",", "")
    power = int(found["exponent"] or found["power"] or 0)
    if max(len(top), len(bottom)) > _MAX_DIGITS or abs(power) > _MAX_EXPONENT:
        return ""
    divisor = Fraction(bottom)
    if not divisor:
        return ""
    if found["whole"] and Fraction(top) >= divisor:
        return ""
    value = (int(found["whole"] or 0) + Fraction(top) / divisor * Fraction(10) ** power) * times
    return spell_decimal(-value if found["sign"] == "-" else value)


def _spell_list(text: str, depth: int) -> str:
    """Return a list, pair or set with the forms of its items; empty for any other text."""
    bracketed = _BRACKETED.fullmatch(text)
    inner = bracketed[2] if bracketed else text
    if len(text) > _MAX_LIST or depth >= _MAX_DEPTH:
        return ""
    items = _split_items(inner, is_bracketed=bracketed is not None)
    is_prose = len(items) == 1 or any(len(item.split()) > _MOST_WORDS_OF_ITEM for item in items)
    if not items or (bracketed is None and is_prose):
        return ""
    forms = [_normalize_part(item, depth + 1) for item in items]
    if not all(forms):
        return ""
    if bracketed is None:
        return ", ".join(forms)
    if bracketed[1] + bracketed[3] == "{}":
        forms = sorted(set(forms))
    return f"{bracketed[1]}{', '.join(forms)}{bracketed[3]}"


def _split_items(text: str, *, is_bracketed: bool) -> Sequence[str]:
    """Return the items between the commas, or semicolons, that stand in no brackets; none if brackets do not match."""
    parts: list[str] = [""]
    depth = 0
    is_number = _spell_plain(text, is_bare=True)
    if is_number:
        return [text]
    separators = ";" if ";" in text else ","
    for place, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if depth < 0:
            return ()
        if char in separators and not depth and not (is_bracketed and _THOUSANDS_OR_PAIR.match(text, place)):
            parts.append("")
        else:
            parts[-1] += char
    if depth:
        return ()
    last = parts.pop()
    parts += [part for part in _LAST_OF_LIST.split(last) if part.strip()] if _LAST_OF_LIST.search(last) else [last]
    return [part.strip() for part in parts if part.strip()]


_PREFIXES: Final = ("", *"yzafpnμmcdhkMGTPEZY", "da")
_UNITS: Final = (
    *("m", "g", "s", "A", "K", "mol", "cd", "Hz", "N", "Pa", "J", "W", "C", "V", "F", "Ω", "S", "Wb", "T", "H", "lm"),
    *("lx", "Bq", "Gy", "Sv", "l", "eV", "bar", "b", "B", "bit", "byte", "bps", "Bps", "Wh", "Ah", "VA"),
)
_SYMBOL = "[A-Za-zμΩ]{1,20}"
_UNITS_IN_TEXT = re.compile(rf"(?<!\w)([\d.,/^eE+-]{{0,60}}\d ?)({_SYMBOL}(?: ?/ ?{_SYMBOL})?)(?!\w)")


def fold_case(text: str) -> str:
    """Return `text` in lower case, except units after a number, which get their canonical spelling.

    `5 KM` becomes `5 km`, and `3 KWH` becomes `3 kWh`. `5 mW` and `5 MW` are different units and do not change. A
    single capital letter does not change either: it may mean a million, a byte or a kelvin.
    """
    parts: list[str] = []
    end = 0
    for found in _UNITS_IN_TEXT.finditer(text):
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
    # Nobody answers in femtoteslas.
    return symbols | {"ft": ("ft",)}
