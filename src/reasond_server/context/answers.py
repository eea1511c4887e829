r"""Final answers: finding them in a reply, and normalising them, so that equal answers can be counted as votes.

Normalisation ignores case, white space, quotes, markdown, a full stop at the end, `$…$` and `\boxed{…}` of LaTeX, and a
lead such as "The answer is". Numbers are compared by value: `1,000`, `1000`, `1000.0`, `1e3`, `$1,000` and `2000/2` are
equal, `1/2` and `½` are `0.5`, and `1 1/2` is `1.5`. Units are kept: `5 km` is neither `5` nor `5 m`, `5 %` is not `5`,
and `5 mW` is not `5 MW`. Numbers with different values are never equal: `10²` is `10^2` and not `102`, `5!` is not `5`.
A comma is a thousands separator only between groups of three digits, as in English; `1,5` stays text.
"""

from __future__ import annotations

import json
import re
import unicodedata
from fractions import Fraction
from functools import cache
from typing import Final

_MAX_CHARACTERS: Final = 20_000
_MAX_DIGITS: Final = 60
_MAX_EXPONENT: Final = 60
_MAX_PASSES: Final = 50

_INTEGER = r"(?:\d{1,3}(?:,\d{3})+|\d+)"
_DECIMAL = rf"(?:{_INTEGER}(?:\.\d*)?|\.\d+)"
_VALUE = re.compile(
    r"(?P<sign>[+-]?) ?(?:(?P<whole>\d{1,60}) (?=\d{1,60} ?/))?"
    rf"(?P<top>{_DECIMAL})"
    rf"(?: ?/ ?(?P<bottom>{_DECIMAL})"
    r"|e(?P<exponent>[+-]?\d{1,3})"
    r"| ?(?:x|\*|\\times) ?10 ?\^ ?\{?(?P<power>[+-]?\d{1,3})\}?)?"
)
_WORD = "[A-Za-zμΩ]{1,20}"
_QUANTITY = re.compile(rf"(?P<value>{_VALUE.pattern}) ?(?P<unit>%|per ?cent|°?{_WORD}(?: ?/ ?{_WORD})?)")
_CURRENCY = re.compile(r"^([+-]?) ?[$€£¥] ?(?=[\d.])|(?<=\d) ?[$€£¥]$")
_LEAD = re.compile(
    r"^(?:#{1,6} |(?:so|thus|hence|therefore),? (?=the |final |correct |right |answer|result)"
    r"|(?:the )?final answer\b(?: is\b| equals\b)? ?[:=]? ?"
    r"|(?:the )?(?:correct |right )?(?:answer|result)(?: is| equals|:| =) ?:? ?|a: ?|= ?)++"
)
_STRUCTURED = re.compile(r"\s*+(?:\[\s*+)?\{")
_CHOICE = re.compile(r"^\(?([a-z])\)$")
_WRAPS: Final = (
    ("$$", "$$"),
    ("\\(", "\\)"),
    ("\\[", "\\]"),
    ("$", "$"),
    ("**", "**"),
    ("*", "*"),
    ("`", "`"),
    ('"', '"'),
)
_QUOTES: Final = {
    0x2018: "'",
    0x2019: "'",
    0x201C: '"',
    0x201D: '"',
    0x2212: "-",
    0x2013: "-",
    0x00D7: "x",
    0x2044: "/",
}
_LATEX_FRACTION = re.compile(r"\\[dt]?frac ?\{([^{}]{1,80})\} ?\{([^{}]{1,80})\}")
_LATEX_TEXT = re.compile(r"\\(?:boxed|text|textbf|mathrm|mathbf|operatorname|mbox) ?\{([^{}]*)\}")
_LATEX_SPACE = re.compile(r"\\(?:left|right|displaystyle)(?![a-zA-Z])|\\[,;:! ]|~")
_LATEX_ESCAPE = re.compile(r"\\([%$#&_{}])")
_THOUSANDS_LATEX = re.compile(r"(?<=\d)\{,\}(?=\d{3})")
_POWER = re.compile(r"\^ ?\{ ?([+-]?\w{1,20}) ?\}(?!\w)")
# NFKC alone would turn 10² into 102, and 1½ into 11/2.
_RAISED = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u207b\u207d-\u207f]+")
_LOWERED = re.compile(r"(?<=\d)[\u2080-\u2089]+|[\u2080-\u2089]+(?=\d)")
_FRACTION_AFTER_NUMBER = re.compile(r"(?<=\d)(?=[\u00bc-\u00be\u2150-\u215e])")
_EMPHASIS = re.compile(r"(?<![^\s(])(\*{2,3})(?=\S)([^*]{1,400})(?<=\S)\1(?![^\s.,:;!?)])")
_FACTORIAL = re.compile(r"(?:[\d)]|(?<![^\W\d_])[^\W\d_])!+(?=[.?;, ]*$)")
_LISTED = re.compile(r" ?, ?(?=\S)")
# Marks before an answer, which follows on the same line or on the next lines. A heading on the last line is a mark too.
_MARK = re.compile(
    r"\bfinal answer(?:[*_]{0,3}[ \t]{1,4}is\b)?|\banswer is\b|\banswer[*_]{0,3}[ \t]?:"
    r"|^[ \t]{0,8}(?:#{1,6}[ \t]|\*{2,3})[ \t]{0,4}answer[*:]{0,4}[ \t]{0,8}$|^[ \t]{0,8}a:"
    r"|^[ \t]{0,3}#{1,6}[ \t](?=[^\n]*\S\s*\Z)",
    re.IGNORECASE | re.MULTILINE,
)
_OPTIONS = re.compile(r"^[ \t]{0,8}b:", re.IGNORECASE | re.MULTILINE)
_ENDED_EMPHASIS = re.compile(r"^[*_]{1,3}(?![^\s:=])[ \t:=]*")
_DECORATION: Final = " \t*_#=>~$[]\\-"
_MOST_LINES: Final = 8
_MOST_ANSWER: Final = 400
_BOXED = "\\boxed{"
_BOLD = re.compile(r"\*\*([^*]{1,200})\*\*")
_CONCLUSION = re.compile(
    r"(?:so|therefore|thus|hence|consequently|finally|in total|in conclusion|as a result|this means)\b", re.IGNORECASE
)
_NUMBER_IN_TEXT = re.compile(rf"(?<![\w.,/-])-?[$€£¥]? ?{_DECIMAL}(?<![.,]) ?[%€]?(?![\w/-])(?![.,:]\d)")
_MAX_PLAIN_ANSWER: Final = 200


def normalize_answer(answer: str) -> str:
    """Return the normalised form of `answer`, by which votes are counted; empty for a blank answer.

    Normalising twice changes nothing more. In an answer of more than 20,000 characters, only white space, case,
    quotes and compatibility forms are normalised. JSON objects are equal if their values are, whatever their layout and
    the order of their names.
    """
    if (structured := _normalize_json(answer)) is not None:
        return structured
    text = _FRACTION_AFTER_NUMBER.sub(" ", _LOWERED.sub(r"_\g<0>", _RAISED.sub(r"^\g<0>", answer)))
    text = " ".join(unicodedata.normalize("NFKC", text).translate(_QUOTES).split())
    if len(text) > _MAX_CHARACTERS:
        return text.casefold()
    for _ in range(_MAX_PASSES):
        simpler = _simplify(text)
        if simpler == text:
            break
        text = simpler
    return text


def _normalize_json(answer: str) -> str | None:
    """Return the one form of a JSON object, or of a list that begins with one; None for any other answer."""
    if len(answer) > _MAX_CHARACTERS or not _STRUCTURED.match(answer):
        return None
    try:
        return json.dumps(json.loads(answer), sort_keys=True, separators=(",", ":"))
    except (ValueError, RecursionError):
        return None


def extract_answer(text: str) -> str:
    r"""Return the final answer of a reply without a tagged answer; empty if none is found.

    It is the content of the last `\boxed{…}`; else the text after the last mark ("answer is", "Answer:",
    "Final Answer", "A:", or a heading on the last line); else what the last line concludes: its only text in bold, or
    its only number if it begins as a conclusion does ("So", "Therefore" …); else the whole text if it has at most 200
    characters. Markdown around a marked answer is removed. If the line of the mark ends there, the answer is the next
    line with text.
    """
    boxed = _find_last_boxed(text)
    if boxed:
        return boxed
    for mark in reversed(list(_MARK.finditer(text))):
        is_option = mark[0].lstrip().casefold() == "a:" and _OPTIONS.search(text) is not None
        marked = "" if is_option else _read_marked(text[mark.end() : mark.end() + _MOST_ANSWER])
        if marked:
            return marked
    whole = text.strip()
    return _read_conclusion(whole) or (whole if len(whole) <= _MAX_PLAIN_ANSWER else "")


def _read_conclusion(text: str) -> str:
    """Return what the last line of `text` concludes; empty if it could be read in two ways."""
    line = text.rpartition("\n")[2]
    if len(line) > _MOST_ANSWER:
        return ""
    bold = _BOLD.findall(line)
    if len(bold) == 1 and not bold[0].endswith(":"):
        return str(bold[0])
    if not _CONCLUSION.match(line):
        return ""
    numbers = {found[0].strip() for found in _NUMBER_IN_TEXT.finditer(line.rpartition("=")[2])}
    return numbers.pop() if len(numbers) == 1 else ""


def _read_marked(text: str) -> str:
    """Return the first line that has more than markdown, without its markdown; empty if there is none."""
    for line in text.split("\n")[:_MOST_LINES]:
        shown = _ENDED_EMPHASIS.sub("", line.lstrip(" \t:=>"))
        shown = _EMPHASIS.sub(r"\2", shown.lstrip("#").strip())
        if shown.count("**") == 1:
            shown = shown.removesuffix("**")
        for mark in "*`":
            if shown.startswith(mark) and shown.endswith(mark) and mark not in shown[1:-1]:
                shown = shown[1:-1]
        if shown.strip(_DECORATION) and not shown.startswith("```"):
            return shown.strip()
    return ""


def _simplify(text: str) -> str:
    """Remove one layer of wrapping; if there is none, normalise the text."""
    text = _EMPHASIS.sub(r"\2", _strip_latex(text)).strip()
    for opening, closing in _WRAPS:
        inner = text[len(opening) : -len(closing)]
        is_wrapped = text.startswith(opening) and text.endswith(closing) and len(text) > len(opening) + len(closing)
        if is_wrapped and opening not in inner and closing not in inner:
            return inner.strip()
    folded = _LEAD.sub("", fold_case(text)).strip()
    factorial = _FACTORIAL.search(folded)
    whole = folded[: factorial.end()] if factorial else folded.rstrip(".!?;, ")
    trimmed = _CHOICE.sub(r"\1", whole or folded)
    return _spell_number(trimmed) or _spell_quantity(trimmed) or _LISTED.sub(", ", trimmed)


def _strip_latex(text: str) -> str:
    text = _THOUSANDS_LATEX.sub(",", _LATEX_SPACE.sub(" ", text))
    text = _POWER.sub(r"^\1", text)
    text = _LATEX_FRACTION.sub(r"(\1)/(\2)", text)
    text = re.sub(r"^\(([^()]*)\)/\(([^()]*)\)$", r"\1/\2", text.strip())
    return " ".join(_LATEX_ESCAPE.sub(r"\1", _LATEX_TEXT.sub(r"\1", text)).split())


def _spell_number(text: str) -> str:
    """Return the canonical spelling of a number; empty if `text` is not a number, or too large."""
    found = _VALUE.fullmatch(_CURRENCY.sub(r"\1", text))
    return "" if found is None else _spell(found)


def _spell_quantity(text: str) -> str:
    """Return the canonical spelling of a number with a unit; empty for any other text."""
    found = _QUANTITY.fullmatch(text)
    value = _spell(found) if found else ""
    if found is None or not value:
        return ""
    unit = found["unit"].replace(" ", "")
    return f"{value} {'%' if unit == 'percent' else unit}"


def _spell(found: re.Match[str]) -> str:
    top, bottom = found["top"].replace(",", ""), (found["bottom"] or "1").replace(",", "")
    power = int(found["exponent"] or found["power"] or 0)
    if max(len(top), len(bottom)) > _MAX_DIGITS or abs(power) > _MAX_EXPONENT:
        return ""
    divisor = Fraction(bottom)
    if not divisor:
        return ""
    if found["whole"] and Fraction(top) >= divisor:
        return ""
    value = int(found["whole"] or 0) + Fraction(top) / divisor * Fraction(10) ** power
    return _spell_decimal(-value if found["sign"] == "-" else value)


def _spell_decimal(value: Fraction) -> str:
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


def _find_last_boxed(text: str) -> str:
    r"""Return the content of the last `\boxed{…}`, with nested braces matched."""
    start = text.rfind(_BOXED)
    if start < 0:
        return ""
    depth, begin = 1, start + len(_BOXED)
    for place in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return text[begin:place].strip()
    return ""


_PREFIXES: Final = ("", *"yzafpnμmcdhkMGTPEZY", "da")
_UNITS: Final = (
    *("m", "g", "s", "A", "K", "mol", "cd", "Hz", "N", "Pa", "J", "W", "C", "V", "F", "Ω", "S", "Wb", "T", "H", "lm"),
    *("lx", "Bq", "Gy", "Sv", "l", "eV", "bar", "b", "B", "bit", "byte", "bps", "Bps", "Wh", "Ah", "VA"),
)
_UNIT = "[A-Za-zμΩ]{1,20}"
_UNITS_IN_TEXT = re.compile(rf"(?<!\w)([\d.,/^eE+-]{{0,60}}\d ?)({_UNIT}(?: ?/ ?{_UNIT})?)(?!\w)")


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
    return symbols
