"""How the demo model judges thoughts: by what it can work out, else by the words that they share with the question.

A computation that it can do itself is the measure: a thought that says its result is right, one that says another
result, or an equation that does not hold, is wrong. Of everything else it knows only how many of the question's words a
thought has, and never gives more than 6 of 10 points for that: sharing words is no sign of being right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from reasond_server.llm.demo.arithmetic import NotArithmeticError, evaluate
from reasond_server.llm.demo.computation import compute
from reasond_server.llm.demo.numerals import UncomputableError
from reasond_server.llm.demo.ranking import content_words, shared
from reasond_server.llm.demo.saying import numbers_of, says, stands_for
from reasond_server.llm.demo.sentences import split_question

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.demo.worked import Worked

RIGHT = 10
ON_THE_WAY = 8
WRONG = 0
_MOST_FOR_WORDS = 6
_MAX_CHARACTERS = 20_000
_MAX_EQUATIONS = 40
_FINAL = "Final answer:"
_EQUATION = re.compile(
    r"(?<![\w.])([\d(][\d., \t()+*/^%-]{1,200}?)=[ \t]{0,3}(-?\d[\d,]{0,60}(?:\.\d{1,60})?)"
    r"(?!\.?\d|[\w/^*%]|[ \t]{0,3}[-+*/^%(])"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Equation:
    """An equation as it stands in a thought, its right side, and whether it holds."""

    text: str
    right: str
    holds: bool


def judge(question: str, candidates: Sequence[str]) -> list[tuple[int, str]]:
    """Return for each candidate its points, 0 to 10, and the reason in a few words."""
    asked, _ = split_question(question)
    worked = compute(asked)
    words = content_words(asked)
    return [_judged(candidate[:_MAX_CHARACTERS], worked, words) for candidate in candidates]


def _judged(candidate: str, worked: Worked | None, words: Sequence[str]) -> tuple[int, str]:
    equations = _equations(candidate)
    if wrong := [one.text for one in equations if not one.holds]:
        return WRONG, f"{wrong[0]} does not hold"
    if worked is not None and (results := numbers_of(worked.answer)) and worked.steps:
        final = candidate.rpartition(_FINAL)[2] if _FINAL in candidate else ""
        if final:
            is_right = says(final, float(results[0]))
            return (RIGHT, "the result is right") if is_right else (WRONG, f"the result is {worked.answer}")
        if any(says(one.right, float(results[0])) for one in equations):
            return RIGHT, "the result is right"
        if equations:
            return ON_THE_WAY, "what is computed holds"
    count = shared(candidate.replace(_FINAL, ""), words)
    return _MOST_FOR_WORDS * count // max(len(words), 1), f"{count} of {len(words)} words of the question"


def _equations(text: str) -> list[_Equation]:
    """Return the equations that can be checked."""
    found = []
    for match in islice(_EQUATION.finditer(text), _MAX_EQUATIONS):
        try:
            evaluation = evaluate(match[1].strip())
            value = float(evaluation.value)
        except (NotArithmeticError, UncomputableError, OverflowError):
            continue
        if evaluation.steps:
            right = match[2].replace(",", "")
            holds = stands_for(right, value)
            found.append(_Equation(text=" ".join(match[0].split()), right=right, holds=holds))
    return found
