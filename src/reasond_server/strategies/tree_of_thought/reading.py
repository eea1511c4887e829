"""Reads what a model writes when it proposes thoughts or judges them: leniently, because small models stray from forms.

Proposals come several to a reply, each after a mark `Thought 1:`. Judgements come as a number from 0 to 10 or a word,
points as `1: 7, 2: 3`; what cannot be read is None, never a guess.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from reasond_server.context.replies import TagParser
from reasond_server.context.tags import TagKind

if TYPE_CHECKING:
    from collections.abc import Sequence

_MARK = re.compile(
    r"^[ \t]{0,8}[*#>-]{0,4}[ \t]{0,2}thought[ \t]{0,2}#?\d{1,3}[ \t*]{0,4}[:.)-][ \t*]{0,4}",
    re.IGNORECASE | re.MULTILINE,
)
_NUMBER_MARK = re.compile(r"^[ \t]{0,3}[*]{0,2}(\d{1,3})[.):][*]{0,2}[ \t]+", re.MULTILINE)
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
# What a plain vote says of those it was not for: not that they are worthless.
_LOSER_SCORE: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposedThought:
    """One thought of a reply; `answer` is what it marked as the final answer, empty where it goes on."""

    text: str
    answer: str = ""


def split_thoughts(text: str, *, is_whole: bool) -> Sequence[ProposedThought]:
    """Return the thoughts of a reply, in order; none where it is blank.

    They begin at `Thought n:`, or else at `1.`, `2.` … counted from 1; without either the reply is one thought.
    What stands before the first mark is left out. Of a reply that was cut (`is_whole` false) the last thought is
    left out, unless it marked its answer or is the only one.
    """
    parts = [part for part in _parts(text) if part.strip()]
    thoughts: list[ProposedThought] = []
    for place, part in enumerate(parts, start=1):
        is_end = place == len(parts) and not is_whole
        thought = _thought(part, is_whole=not is_end)
        if is_end and not thought.answer and thoughts:
            break
        thoughts.append(thought)
    return [thought for thought in thoughts if thought.text or thought.answer]


def read_score(text: str) -> float | None:
    """Return a judgement as 0.0-1.0: `8`, `8/10`, `80%`, `0.8` (with a point, at most 1) or a word such as `likely`.

    Only the last line that is not blank counts. None where that says nothing, or several things.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    line = lines[-1] if lines else ""
    shares = _RATIO.findall(line) or [(percent, "100") for percent in _PERCENT.findall(line)]
    if shares:
        return _share(*shares[0]) if len(shares) == 1 else None
    numbers = _NUMBER.findall(line)
    if numbers:
        return _of_ten(numbers[0]) if len(numbers) == 1 else None
    return _word_score(line)


def read_points(text: str, *, count: int) -> Sequence[float | None]:
    """Return the scores of `count` candidates, numbered from 1, from `1: 7, 2: 3`: points of 10.

    One number alone is a vote for that candidate. A candidate without points, or with two different ones, gets None.
    """
    found: dict[int, set[float]] = {}
    for number, points in _PAIR.findall(text):
        if 1 <= int(number) <= count and float(points) <= _MOST_POINTS:
            found.setdefault(int(number), set()).add(float(points) / _MOST_POINTS)
    if found:
        return [_only(found.get(number, set())) for number in range(1, count + 1)]
    numbers = _NUMBER.findall(text)
    if len(numbers) == 1 and numbers[0].isdigit() and 1 <= int(numbers[0]) <= count:
        return [1.0 if number == int(numbers[0]) else _LOSER_SCORE for number in range(1, count + 1)]
    return [None] * count


def _parts(text: str) -> Sequence[str]:
    """Return the text of each thought with its mark removed."""
    marks = list(_MARK.finditer(text))
    if not marks:
        numbered = list(_NUMBER_MARK.finditer(text))
        is_list = [int(mark[1]) for mark in numbered] == list(range(1, len(numbered) + 1))
        marks = numbered if is_list and len(numbered) > 1 else []
    if not marks:
        return [text]
    ends = [mark.start() for mark in marks[1:]] + [len(text)]
    return [text[mark.end() : end] for mark, end in zip(marks, ends, strict=True)]


def _thought(part: str, *, is_whole: bool) -> ProposedThought:
    parser = TagParser(kinds=(TagKind.ANSWER,))
    parser.feed(part)
    parser.close(is_stop=is_whole)
    parsed = parser.result
    answer = parsed.content.strip() if parsed.is_closed else ""
    text = parsed.text.strip() if answer else (parsed.text + parsed.content).strip()
    return ProposedThought(text=text, answer=answer)


def _share(part: str, whole: str) -> float | None:
    if not int(whole) or float(part) > int(whole):
        return None
    return float(part) / int(whole)


def _of_ten(number: str) -> float | None:
    value = float(number)
    if not 0 <= value <= _MOST_POINTS:
        return None
    return value if "." in number and value <= 1 else value / _MOST_POINTS


def _word_score(line: str) -> float | None:
    words = _WORD.findall(line.casefold())
    scores = {_WORDS[word] for word in words if word in _WORDS}
    return None if _NEGATIONS.intersection(words) else _only(scores)


def _only(values: set[float]) -> float | None:
    """Return the only one of `values`; None where there is none, or more than one."""
    return next(iter(values)) if len(values) == 1 else None
