"""The value that a calculation without a marked answer comes to: "18 * 50 = 900", "The tank is full after 50 minutes".

A text works out a value where that stands behind an equals sign for the first time: a check comes to what stood before.
The text comes to the last of these if its last sentence, or that behind the last equals sign of its last line, names it
and no other of them. Nothing is calculated here.
"""

from __future__ import annotations

import re
from math import inf
from typing import Final

from reasond_server.context.vote_forms import DECIMAL
from reasond_server.dialects.answer_marks import CHOICE_WORDS, NEGATIONS
from reasond_server.dialects.written_formulas import read_latex

NUMBER: Final = re.compile(
    rf"(?<![\w.,/√^-])(?<!\d:)(?<![+\u00d7·])(?<![+*\u00d7·] )-?[$€£¥]? ?{DECIMAL}(?:[/:]\d{{1,9}}){{0,2}}"
    r"(?<![.,]) ?[%€]?(?![\w/^-])(?![.,:]\d)"
)
"""A number, an amount, a share or a time in a text; not a factor, and not a part of a name or a version."""

_DIGITS = re.compile(r"-?\d(?:[\d,.]*\d)?")
_EQUALS = re.compile(r"(?<![<>=!:])[=≈](?!=)")
_UNKNOWN = re.compile(r"([^\W\d]\w{0,20}) ?=")
_SOLVED = re.compile(rf"\W*([^\W\d]\w{{0,20}}) ?= ?-?{DECIMAL}\W*")
_CLAUSE_END = re.compile(r"[,;] | (?:and|und|et|y|e) ")
_LISTED = re.compile(r" (?:and|or|und|oder|et|ou|y|o|e) ")
_SENTENCE_END = re.compile(r"[.!?] ")
# "2. ", "Step 2: ", "### Schritt 2 - ": the number is none of the calculation.
_STEP_MARK = re.compile(r"\A[\s#>*-]{0,12}(?:[^\W\d_]{1,12} )?\d{1,2}(?:[.):]| [-\u2013\u2014])(?:\s|$)")
_MARKDOWN = re.compile(r"\*{2,3}|__|\\[()\[\]]|\$(?!\d)")
_WITHDRAWN = re.compile(rf"(?<![^\W\u3040-\u9fff])(?:{NEGATIONS})(?![^\W\u3040-\u9fff])|n't\b|<|\?\Z", re.IGNORECASE)
_CHOSEN = re.compile(rf"(?<!\w)[A-J]\)|\b(?i:{CHOICE_WORDS})\W{{1,3}}[A-J]\b")
_DECIMAL = re.compile(r"-?\d{1,15}(?:\.\d{1,15})?")
_SEPARATOR = re.compile(r",(?=\d{3}(?!\d))")
_MOST_SENTENCE: Final = 400


def has_two_unknowns(line: str) -> bool:
    """Return whether a line gives values to two names: "w = 5 and l = 8". In "area = length * width = 40" it is one."""
    found = (_UNKNOWN.search(clause) for clause in _CLAUSE_END.split(line))
    return len({each[1] for each in found if each}) > 1


def find_worked_value(text: str) -> str:
    """Return the value that the calculation of a text comes to; empty if it has none, or could be read in two ways."""
    shown = (_STEP_MARK.sub("", line).strip() for line in _MARKDOWN.sub("", read_latex(text)).split("\n"))
    *before, last = [line for line in shown if any(map(str.isalnum, line))] or [""]
    solved = {found[1] for line in (*before[-1:], last) if (found := _SOLVED.fullmatch(line))}
    if not before or has_two_unknowns(last) or len(solved) > 1:
        return ""
    *earlier, sentence = _SENTENCE_END.split(last)
    if len(sentence) > _MOST_SENTENCE or _WITHDRAWN.search(sentence) or _CHOSEN.search(sentence):
        return ""
    values = _Values()
    for line in (*before, *earlier, sentence):
        values.read(line)
    end = _EQUALS.split(sentence)[-1]
    named = {_spell(found[0]): found[0].strip() for found in NUMBER.finditer(end)}
    came_to = [form for form in named if form in values.worked]
    is_rounded = any(0 < abs(_read(form) - _read(value)) < 1 for form in named for value in came_to)
    is_list = sum(1 for part in _LISTED.split(end) if _DIGITS.search(part)) > 1
    is_clear = came_to == values.worked[-1:] and not is_rounded and not is_list
    return named[came_to[0]] if came_to and is_clear else ""


class _Values:
    """The values of a text that is read line by line: all that it told so far, and those that it worked out."""

    def __init__(self) -> None:
        self.told: set[str] = set()
        self.worked: list[str] = []

    def read(self, line: str) -> None:
        """Add the values of a line; one is worked out if it stands alone behind an equals sign and is new."""
        for place, part in enumerate(_EQUALS.split(line)):
            digits = {_spell(found[0]) for found in _DIGITS.finditer(part)}
            alone = _DIGITS.findall(_CLAUSE_END.split(part)[0])
            if place and len(alone) == 1 and (form := _spell(alone[0])) not in self.told:
                self.worked.append(form)
            self.told |= digits


def _read(form: str) -> float:
    """Return the value of a form; infinite if it is no decimal number."""
    return float(form) if _DECIMAL.fullmatch(form) else inf


def _spell(number: str) -> str:
    """Return one spelling of equal numbers: without currency, percent sign, separators and idle zeros."""
    plain = _SEPARATOR.sub("", number.strip("$€£¥% "))
    return plain.rstrip("0").rstrip(".") if "." in plain else plain
