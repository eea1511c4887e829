"""Questions that are computations: arithmetic, percentages and interest, recognised by their grammar."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from reasond_server.llm.demo.arithmetic import NotArithmeticError, evaluate
from reasond_server.llm.demo.interest import read_interest
from reasond_server.llm.demo.numerals import UncomputableError, show, show_money, show_number
from reasond_server.llm.demo.worked import Worked

if TYPE_CHECKING:
    from collections.abc import Callable
    from fractions import Fraction

    from reasond_server.llm.demo.arithmetic import Evaluation

_MAX_CHARACTERS = 100_000
_MAX_PATTERN_CHARACTERS = 400

_LEAD_IN = re.compile(
    r"(?:please|hello|hi|now|so|can you|could you|would you|tell me|give me|show me|what is|what's|whats|what are|"
    r"how much is|how much are|how many is|what does|calculate|compute|evaluate|work out|figure out|find|solve|"
    r"determine|simplify|the value of|the result of|the answer to|is)\b[\s,:]*",
)
_TRAILER = re.compile(r"(?:\s*(?:[?!.=:]|\bequals?(?: to)?|\bplease|\bequal|\bmake|\bcome to))+\s*$")
_LISTS = re.compile(r"(?:the )?(?P<word>sum|product|difference|quotient|average|mean) (?:of|between) (?P<items>.+)")
_SEPARATOR = re.compile(r",\s+(?:and\s+)?|\s+and\s+")
_PERCENT = r"(?:%|per ?cent(?:age)?)"


def compute(question: str) -> Worked | None:
    """Work `question` out, None if it is not a computation; one without a result gets an answer that says why."""
    if len(question) > _MAX_CHARACTERS:
        return None
    try:
        return read_interest(question) or _read_expression(_stripped(question))
    except NotArithmeticError:
        return None
    except UncomputableError as error:
        return Worked(steps=(), answer=f"This cannot be worked out: {error}.")


def _stripped(question: str) -> str:
    """Return the question without its polite frame: "Please tell me, what is 2 + 2?" becomes "2 + 2"."""
    text = " ".join(question.lower().split())
    start = 0
    while match := _LEAD_IN.match(text, start):
        start = match.end()
    text = text[start:]
    # The search is anchored to a short end, because looking everywhere would be quadratic on blanks.
    body, end = text[:-40], text[-40:]
    return body + _TRAILER.sub("", end)


def _read_expression(text: str) -> Worked:
    if len(text) <= _MAX_PATTERN_CHARACTERS:
        for pattern, work in _PATTERNS:
            if match := pattern.fullmatch(text):
                return work(match)
        if match := _LISTS.fullmatch(text):
            return _listed(match)
    evaluation = evaluate(text)
    if not evaluation.steps and "%" not in text:
        raise NotArithmeticError  # a bare number is no question
    return Worked(steps=evaluation.steps, answer=show(evaluation.value, evaluation.currency))


def _listed(match: re.Match[str]) -> Worked:
    """Work out the sum, product, difference, quotient or average of a list."""
    items = [evaluate(item) for item in _SEPARATOR.split(match["items"])]
    if len(items) < 2:  # noqa: PLR2004 - a list has two items at least
        raise NotArithmeticError
    word, currency = match["word"], next((item.currency for item in items if item.currency), "")
    sign = {"product": "*", "difference": "-", "quotient": "/"}.get(word, "+")
    expression = f" {sign} ".join(f"({item.value})" for item in items)
    if word in {"average", "mean"}:
        expression = f"({expression}) / {len(items)}"
    evaluation = evaluate(expression)
    return Worked(steps=evaluation.steps, answer=show(evaluation.value, currency))


def _share(match: re.Match[str]) -> Worked:
    """Work out what percentage `part` is of `whole`."""
    part, whole = evaluate(match["part"]), evaluate(match["whole"])
    return _percentage(part.value, whole.value)


def _change(match: re.Match[str]) -> Worked:
    """Work out by what percentage a value changed."""
    old, new = evaluate(match["old"]), evaluate(match["new"])
    difference = new.value - old.value
    worked = _percentage(difference, old.value)
    first = f"{show_number(new.value)} - {show_number(old.value)} = {show_number(difference)}"
    return Worked(steps=(first, *worked.steps), answer=worked.answer)


def _percentage(part: Fraction, whole: Fraction) -> Worked:
    if whole == 0:
        raise UncomputableError("a percentage of zero has no meaning")
    shown = f"{show_number(part / whole * 100)}%"
    return Worked(steps=(f"{show_number(part)} / {show_number(whole)} * 100 = {shown}",), answer=shown)


def _changed(sign: int) -> Callable[[re.Match[str]], Worked]:
    """Return what adds (`sign` 1) or takes off (-1) a percentage."""

    def work(match: re.Match[str]) -> Worked:
        base, rate = evaluate(match["base"]), evaluate(match["rate"])
        part = base.value * rate.value / 100
        result = base.value + sign * part
        steps = (
            f"{show_number(rate.value)}% of {_money(base, base.value)} = {_money(base, part)}",
            f"{_money(base, base.value)} {'+' if sign > 0 else '-'} {_money(base, part)} = {_money(base, result)}",
        )
        return Worked(steps=steps, answer=_money(base, result))

    return work


def _money(like: Evaluation, value: Fraction) -> str:
    return show_money(value, like.currency) if like.currency else show_number(value)


_RATE = rf"(?P<rate>[^%]+?)\s*{_PERCENT}"
_PATTERNS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Worked]], ...] = (
    (re.compile(rf"what {_PERCENT} of (?P<whole>.+?) (?:is|are) (?P<part>.+)"), _share),
    (re.compile(rf"(?P<part>.+?)(?: is)? what {_PERCENT} of (?P<whole>.+)"), _share),
    (re.compile(rf"what {_PERCENT} (?:is|are) (?P<part>.+?) (?:out )?of (?P<whole>.+)"), _share),
    (re.compile(rf"(?P<part>.+?) as a {_PERCENT} of (?P<whole>.+)"), _share),
    (
        re.compile(
            rf"(?:the )?{_PERCENT} (?:change|increase|decrease)(?: when .+? goes)? (?:from|between) "
            r"(?P<old>.+?) (?:to|and) (?P<new>.+)"
        ),
        _change,
    ),
    (re.compile(rf"(?:increase|raise) (?P<base>.+?) by {_RATE}"), _changed(1)),
    (re.compile(rf"(?P<base>.+?) (?:increased|raised) by {_RATE}"), _changed(1)),
    (re.compile(rf"{_RATE} more than (?P<base>.+)"), _changed(1)),
    (re.compile(rf"(?:decrease|reduce|lower) (?P<base>.+?) by {_RATE}"), _changed(-1)),
    (re.compile(rf"(?P<base>.+?) (?:decreased|reduced|lowered) by {_RATE}"), _changed(-1)),
    (re.compile(rf"{_RATE} (?:less than|off|off of) (?P<base>.+)"), _changed(-1)),
)
