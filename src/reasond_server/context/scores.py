r"""Judgements of a model, read leniently, because small models do not always follow the format.

A judgement is a number from 0 to 10 or a word; points for several candidates are `1: 7, 2: 3`. Unreadable scores are
None, never a guess. The first of these that the text has counts:

1. a labelled score, wherever it stands: `Score: 7`, `"score": 7`, `**Rating**: 7/10`, `Bewertung: 7`; of several, that
   of the whole ("Overall score: 7"). Other labels ("Confidence: 95%") are no scores.
2. a marked number: `[[7]]`, `<score>7</score>`, `\boxed{7}`.
3. the last line: a share, a percentage, a number, stars or a word.
4. a score in a sentence: "I rate it 7", "8 out of 10".

If what counts has two values, or a range, there is no score.
"""

from __future__ import annotations

import re
from math import exp
from typing import TYPE_CHECKING, Final

from reasond_server.context.vote_forms import read_number_words
from reasond_server.dialects.answer_marks import (
    BOUNDS,
    LABELS,
    NOT_SCORES,
    OUT_OF,
    POINTS,
    RATED,
    STARS,
    VERDICTS,
    WHOLE,
    WORD_NEGATIONS,
    WORD_SCORES,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from reasond_server.types import TokenChance

_DRESSING = r"[*_`\"'\[(<{\s]{0,8}"
_VALUE = (
    r"(?P<number>-?(?:(?<![\w.,])|(?<=は))\d{1,4}(?:[.,]\d{1,6})?)"
    rf"(?:\s?(?:{POINTS}))?(?![\w]|[.,]\d)"
    rf"(?:[*_`\"'\s]{{0,3}}(?P<percent>%)|[*_`\"'\s]{{0,3}}(?:{OUT_OF})\s{{0,3}}(?P<whole>\d{{1,4}}|ten|five)\b"
    r"|\s?(?P<stars>stars?\b))?(?P<range>\s?(?:[-\u2013~]|to|or|bis|oder)\s?\d)?"
)
_SCALE = r"(?:\s?\(\s?(?:\d{1,3}\s?(?:-|\u2013|to)\s?|out of |/|max\.? )(?P<scale>\d{1,3})\s?\))?"
_LABELLED = re.compile(
    rf"(?<![^\W_])(?:(?P<total>(?:{WHOLE})[ -]?)?(?:{LABELS})|(?P<overall>overall))(?![^\W_は])"
    rf"{_SCALE}[*_`\"'\s]{{0,4}}"
    rf"(?:[:=\uff1aは]|->|[-\u2013\u2014] )"
    rf"{_DRESSING}(?:{_VALUE}|(?P<word>[a-z'/]{{1,20}}))?",
    re.IGNORECASE,
)
_BOUND = re.compile(rf"(?<![^\W_])(?:{BOUNDS})\s?\Z", re.IGNORECASE)
_VERDICT = re.compile(
    rf"(?<![^\W_])(?:{VERDICTS})[*_`\"'\s]{{0,4}}[:=\uff1a]{_DRESSING}(?P<words>[^\n.;,]{{1,60}})", re.IGNORECASE
)
_MARKED = re.compile(rf"(?:\[\[|<(?:score|rating)>\s*|\\boxed\{{){_VALUE}(?=\]\]|\s*</|\}})", re.IGNORECASE)
_RATED = re.compile(rf"(?<!\w)(?:{RATED})\b[^\n\d.;]{{0,40}}?{_VALUE}", re.IGNORECASE)
_VALUE_IN_TEXT = re.compile(_VALUE, re.IGNORECASE)
_NOT_A_SCORE = re.compile(rf"(?<![^\W_])(?:{NOT_SCORES})s?(?![^\W_])", re.IGNORECASE)
_STARRED = re.compile(rf"[{STARS}]{{1,10}}")
_NUMBER = re.compile(r"(?<![\w.,])-?\d{1,9}(?:\.\d{1,9})?(?![\w]|[.,]\d)")
_WORD = re.compile(r"[a-z']+")
_PAIR = re.compile(
    r"(?<![\w.])#?(\d{1,3})[\"'`)\]]{0,2}[ \t*|]{0,3}(?:[:=\uff1a]|->|[-\u2013\u2014](?= )|\.(?= )|(?<=[)|]))"
    r"[ \t*|\"'\[(]{0,4}"
    r"(\d{1,2}(?:\.\d{1,6})?)(?:\s?/\s?10)?(?![\w/]|\.\d)"
)
_SCORES_LISTED = re.compile(r"\A\W{0,8}\[\s*(\d{1,2}(?:\.\d{1,6})?(?:\s*,\s*\d{1,2}(?:\.\d{1,6})?)*)\s*\]\W{0,8}\Z")
_DIGIT = re.compile(r"\s?[0-9]\s?")
_PLACE = r"(first|second|[12])\b(?![.,]\d)"
_PREFERRED = (
    re.compile(
        rf"\b{_PLACE}(?:\s+(?:proposed\s+)?(?:solution|one|answer|passage))?\s+is\s+(?:the\s+|clearly\s+)?be(?:tter|st)\b",
        re.IGNORECASE,
    ),
    re.compile(
        r"\bbe(?:tter|st)(?:\s+(?:solution|one|answer))?\s*(?:is|:)[\s:*\\(\[]{0,8}(?:boxed\{)?(?:the\s+)?(?:solution\s+)?"
        + _PLACE,
        re.IGNORECASE,
    ),
)
_BEST_DIGIT: Final = 9
_PIVOTS: Final = 2
_DRAW: Final = 0.5
_ANSWER: Final = "<answer>"
_MOST_POINTS: Final = 10
# The score of candidates that a plain vote did not choose; they are not worthless.
_LOSER_SCORE: Final = 0.25


_MOST_STARS: Final = 5
_NUMBER_NAMES: Final = {"ten": "10", "five": "5"}
_MOST_CHARACTERS: Final = 20_000
# A judgement in words goes on behind its first word: "not likely".
_MOST_WORD: Final = 20


def read_score(text: str) -> float | None:
    """Return a judgement as 0.0-1.0: `8`, `8/10`, `80%`, `0.8` (with a point, at most 1) or a word such as `likely`.

    None if there is no score, or where the judgement can be read in two ways.
    """
    text = text[-_MOST_CHARACTERS:]
    labelled = [found for found in _LABELLED.finditer(text) if not _BOUND.search(text, 0, found.start())]
    if labelled:
        totals = [found for found in labelled if found["total"] or found["overall"]]
        return _find_only({_read_labelled(found) for found in totals or labelled})
    if verdicts := {_score_words(found["words"]) for found in _VERDICT.finditer(text)} - {None}:
        return _find_only(verdicts)
    if marked := {_read_value(found) for found in _MARKED.finditer(text)}:
        return _find_only(marked)
    lines = [line for line in text.splitlines() if line.strip() and not _is_aside(line)]
    if (score := _read_line(lines[-1] if lines else "")) is not None:
        return score
    sentences = {_read_value(found) for found in _RATED.finditer("\n".join(lines))}
    return _find_only(
        sentences or {_read_value(found) for found in _VALUE_IN_TEXT.finditer("\n".join(lines)) if found["whole"]}
    )


def expect_score(tokens: Sequence[TokenChance], written: str) -> float | None:
    """Return a judgement from 0 to 9 as 0.0-1.0: its expectation by the probabilities of the digits in its place.

    That is sum(p_d * d) / sum(p_d) / 9 over the digits d of `_read_digits`; None if there are none.
    """
    digits = _read_digits(tokens, written)
    return sum(digit * chance for digit, chance in digits) / _sum_chances(digits) / _BEST_DIGIT if digits else None


def expect_preference(tokens: Sequence[TokenChance], written: str, text: str = "") -> float | None:
    """Return how likely the first of two is preferred, p_1 / (p_1 + p_2); None if neither digit can be read.

    Without a digit it is 1 or 0, if `text` says in words that the first or that the second is better, and not both.
    """
    digits = [each for each in _read_digits(tokens, written) if each[0] in {1, 2}]
    if digits:
        return _sum_chances([each for each in digits if each[0] == 1]) / _sum_chances(digits)
    text = text[-_MOST_CHARACTERS:]
    is_first = {place.casefold() in {"first", "1"} for form in _PREFERRED for place in form.findall(text)}
    return float(is_first.pop()) if len(is_first) == 1 else None


def _read_digits(tokens: Sequence[TokenChance], written: str) -> Sequence[tuple[int, float]]:
    """Return the digits that a reply could have ended with, and the probability of each.

    `tokens` are those of a reply whose last tag of an answer is followed by the digit, which is a token of its own; the
    digits are those among its likeliest alternatives. Without such a token it is the digit that was `written`, if it
    is one.
    """
    text = "".join([token.text for token in tokens])
    begin, end = text.rfind(_ANSWER) + len(_ANSWER), 0
    for token in tokens if _ANSWER in text else ():
        end += len(token.text)
        if end > begin and token.text.strip():
            digits = [(int(other), exp(logprob)) for other, logprob in token.top if _DIGIT.fullmatch(other)]
            known = [each for each in digits if each[1]]
            if known and _DIGIT.fullmatch(token.text):
                return known
            break
    return [(int(written), 1.0)] if _DIGIT.fullmatch(written) else ()


def _sum_chances(digits: Sequence[tuple[int, float]]) -> float:
    return sum(chance for _, chance in digits)


def pair_with_pivots(count: int) -> Sequence[tuple[int, int]]:
    """Return the matches of a tournament of `count`, the best first: all meet the first two, each pair in both orders.

    These are 2 (2 count - 3) pairs (shown first, shown second), two for a `count` of 2.
    """
    pairs = [(pivot, other) for pivot in range(_PIVOTS) for other in range(pivot + 1, count)]
    return [match for one, other in pairs for match in ((one, other), (other, one))]


def weigh_matches(count: int, preferred: Mapping[tuple[int, int], float]) -> Sequence[float]:
    """Return the share that each of `count` has won of its matches with the pivots; an unknown match is a draw.

    `preferred` has p_ij, the probability that i, shown first, is preferred to j. w_i is the mean over the pivots j of
    (p_ij + 1 - p_ji) / 2, where p_ii = 1 / 2. So a judge that prefers a place gives all 0.5, and one whose
    probabilities are s_i / (s_i + s_j) ranks by s, whichever are the pivots.
    """
    return [
        sum([preferred.get((each, one), _DRAW) + 1 - preferred.get((one, each), _DRAW) for one in range(_PIVOTS)])
        / (2 * _PIVOTS)
        for each in range(count)
    ]


def read_judgement(tagged: str, text: str) -> float | None:
    """Return the score of a reply with a tagged judgement; where that says nothing, the score of the text before it."""
    score = read_score(tagged)
    return score if score is not None or any(map(str.isdigit, tagged)) else read_score(text)


def _is_aside(line: str) -> bool:
    """Return whether a line with a number is about something else, such as the judge's confidence."""
    return _NOT_A_SCORE.search(line) is not None and not _RATED.search(line) and any(map(str.isdigit, line))


def _read_line(line: str) -> float | None:
    """Return what a line comes to that has nothing but a judgement."""
    values = list(_VALUE_IN_TEXT.finditer(line))
    shares = [found for found in values if found["percent"] or found["whole"] or found["stars"]]
    if shares:
        return _read_value(shares[0]) if len(shares) == 1 else None
    if starred := _STARRED.search(line):
        full = sum(star != STARS[1] for star in starred[0])
        return full / max(len(starred[0]), _MOST_STARS)
    if values:
        return _read_value(values[0]) if len(_NUMBER.findall(line)) == 1 == len(values) else None
    return _score_words(line)


def _read_labelled(found: re.Match[str]) -> float | None:
    if (word := found["word"]) is None:
        return _read_value(found, scale=found["scale"]) if found["number"] else _read_stars_behind(found)
    if number := read_number_words(word.casefold()):
        return _score_of_ten(number)
    return _score_words(found.string[found.start("word") : found.end("word") + _MOST_WORD].partition("\n")[0])


def _read_stars_behind(found: re.Match[str]) -> float | None:
    return _read_line(starred[0]) if (starred := _STARRED.match(found.string, found.end())) else None


def _read_value(found: re.Match[str], *, scale: str | None = None) -> float | None:
    """Return the score of a number with its scale; None for a range, or for a number beyond its scale."""
    number = found["number"].replace(",", ".")
    if found["range"]:
        return None
    if found["percent"]:
        return _divide(number, "100")
    if found["stars"]:
        return _divide(number, str(_MOST_STARS))
    whole = found["whole"] or scale
    return _divide(number, _NUMBER_NAMES.get(whole.casefold(), whole)) if whole else _score_of_ten(number)


def read_points(text: str, *, count: int) -> Sequence[float | None]:
    """Return the scores of `count` candidates, numbered from 1, from a text such as `1: 7, 2: 3` with points of 10.

    A single number is a vote for that candidate. A candidate without points, or with two different ones, gets None.
    """
    listed = _SCORES_LISTED.match(text)
    if listed and listed[1].count(",") == count - 1 and count > 1:
        return [_score_of_ten(number.strip()) for number in listed[1].split(",")]
    found: dict[int, set[float | None]] = {}
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
    if not int(whole) or not 0 <= float(part) <= int(whole):
        return None
    return float(part) / int(whole)


def _score_of_ten(number: str) -> float | None:
    value = float(number)
    if not 0 <= value <= _MOST_POINTS:
        return None
    return value if "." in number and value <= 1 else value / _MOST_POINTS


def _score_words(line: str) -> float | None:
    words = _WORD.findall(line.casefold())
    scores = {WORD_SCORES[word] for word in words if word in WORD_SCORES}
    return None if WORD_NEGATIONS.intersection(words) else _find_only(scores)


def _find_only(values: AbstractSet[float | None]) -> float | None:
    """Return the only one of `values`; None if there are none or several."""
    return next(iter(values)) if len(values) == 1 else None
