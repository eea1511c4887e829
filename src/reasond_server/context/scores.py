"""Judgements of a model, read leniently, because small models do not always follow the format.

A judgement is a number from 0 to 10 or a word; points for several candidates are `1: 7, 2: 3`. Unreadable scores are
None, never a guess.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

_RATIO = re.compile(r"(\d{1,4}(?:\.\d{1,6})?)\s{0,3}/\s{0,3}(\d{1,4})\b")
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)\s{0,3}%")
_NUMBER = re.compile(r"(?<![\w.,])-?\d{1,9}(?:\.\d{1,9})?(?![\w]|[.,]\d)")
_WORD = re.compile(r"[a-z']+")
_PAIR = re.compile(r"(?<![\w.])#?(\d{1,3})[ \t*]{0,3}(?:[:=]|->)[ \t*]{0,3}(\d{1,2}(?:\.\d{1,6})?)(?![\w.]|/)")
_WORDS: Final = {
    "sure": 1.0,
    "certain": 1.0,
    "correct": 1.0,
    "yes": 1.0,
    "likely": 0.7,
    "plausible": 0.7,
    "possible": 0.5,
    "maybe": 0.5,
    "unsure": 0.5,
    "unlikely": 0.2,
    "doubtful": 0.2,
    "impossible": 0.0,
    "incorrect": 0.0,
    "wrong": 0.0,
    "no": 0.0,
}
_NEGATIONS: Final = frozenset({"not", "isn't", "never", "cannot", "can't", "hardly"})
_MOST_POINTS: Final = 10
# The score of candidates that a plain vote did not choose; they are not worthless.
_LOSER_SCORE: Final = 0.25


def read_score(text: str) -> float | None:
    """Return a judgement as 0.0-1.0: `8`, `8/10`, `80%`, `0.8` (with a point, at most 1) or a word such as `likely`.

    Only the last line that is not blank counts. None if that line has no score, or several.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    line = lines[-1] if lines else ""
    shares = _RATIO.findall(line) or [(percent, "100") for percent in _PERCENT.findall(line)]
    if shares:
        return _divide(*shares[0]) if len(shares) == 1 else None
    numbers = _NUMBER.findall(line)
    if numbers:
        return _score_of_ten(numbers[0]) if len(numbers) == 1 else None
    return _score_words(line)


def read_points(text: str, *, count: int) -> Sequence[float | None]:
    """Return the scores of `count` candidates, numbered from 1, from a text such as `1: 7, 2: 3` with points of 10.

    A single number is a vote for that candidate. A candidate without points, or with two different ones, gets None.
    """
    found: dict[int, set[float]] = {}
    for number, points in _PAIR.findall(text):
        if 1 <= int(number) <= count and float(points) <= _MOST_POINTS:
            found.setdefault(int(number), set()).add(float(points) / _MOST_POINTS)
    if found:
        return [_find_only(found.get(number, set())) for number in range(1, count + 1)]
    numbers = _NUMBER.findall(text)
    if len(numbers) == 1 and numbers[0].isdigit() and 1 <= int(numbers[0]) <= count:
        return [1.0 if number == int(numbers[0]) else _LOSER_SCORE for number in range(1, count + 1)]
    return [None] * count


def _divide(part: str, whole: str) -> float | None:
    if not int(whole) or float(part) > int(whole):
        return None
    return float(part) / int(whole)


def _score_of_ten(number: str) -> float | None:
    value = float(number)
    if not 0 <= value <= _MOST_POINTS:
        return None
    return value if "." in number and value <= 1 else value / _MOST_POINTS


def _score_words(line: str) -> float | None:
    words = _WORD.findall(line.casefold())
    scores = {_WORDS[word] for word in words if word in _WORDS}
    return None if _NEGATIONS.intersection(words) else _find_only(scores)


def _find_only(values: set[float]) -> float | None:
    """Return the only one of `values`; None if there are none or several."""
    return next(iter(values)) if len(values) == 1 else None
