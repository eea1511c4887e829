"""Questions that are computations: arithmetic, percentages and interest, recognised by their grammar."""

from __future__ import annotations

import re
from decimal import localcontext
from fractions import Fraction
from typing import TYPE_CHECKING

from reasond_server.demo.arithmetic import (
    CURRENCIES,
    NUMERAL,
    NotArithmeticError,
    UncomputableError,
    evaluate,
    read_numeral,
    show,
    show_money,
    show_number,
    to_decimal,
)
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.demo.arithmetic import Evaluation


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


@value
class Worked:
    """An answer and its steps; each step is one sentence or equation."""

    steps: tuple[str, ...]
    answer: str


def compute(question: str) -> Worked | None:
    """Compute `question`; return None if it is not a computation. Without a result, the answer explains why."""
    if len(question) > _MAX_CHARACTERS:
        return None
    try:
        return read_interest(question) or _read_expression(_strip_frame(question))
    except NotArithmeticError:
        return None
    except UncomputableError as error:
        return Worked(steps=(), answer=f"This cannot be worked out: {error}.")


def _strip_frame(question: str) -> str:
    """Return the question without polite phrases: "Please tell me, what is 2 + 2?" becomes "2 + 2"."""
    text = " ".join(question.lower().split())
    start = 0
    while match := _LEAD_IN.match(text, start):
        start = match.end()
    text = text[start:]
    # Only the end is searched, because a search of the whole text would take quadratic time on white space.
    body, end = text[:-40], text[-40:]
    return body + _TRAILER.sub("", end)


def _read_expression(text: str) -> Worked:
    if len(text) <= _MAX_PATTERN_CHARACTERS:
        for pattern, work in _PATTERNS:
            if match := pattern.fullmatch(text):
                return work(match)
        if match := _LISTS.fullmatch(text):
            return _work_out_list(match)
    evaluation = evaluate(text)
    if not evaluation.steps and "%" not in text:
        raise NotArithmeticError  # a bare number is not a question
    return Worked(steps=evaluation.steps, answer=show(evaluation.value, evaluation.currency))


def _work_out_list(match: re.Match[str]) -> Worked:
    """Compute the sum, product, difference, quotient or average of a list."""
    items = [evaluate(item) for item in _SEPARATOR.split(match["items"])]
    if len(items) < 2:  # noqa: PLR2004 - a list has at least two items
        raise NotArithmeticError
    word, currency = match["word"], next((item.currency for item in items if item.currency), "")
    sign = {"product": "*", "difference": "-", "quotient": "/"}.get(word, "+")
    expression = f" {sign} ".join(f"({item.value})" for item in items)
    if word in {"average", "mean"}:
        expression = f"({expression}) / {len(items)}"
    evaluation = evaluate(expression)
    return Worked(steps=evaluation.steps, answer=show(evaluation.value, currency))


def _work_out_share(match: re.Match[str]) -> Worked:
    """Compute which percentage of `whole` is `part`."""
    part, whole = evaluate(match["part"]), evaluate(match["whole"])
    return _work_out_percentage(part.value, whole.value)


def _work_out_change(match: re.Match[str]) -> Worked:
    """Compute the percentage by which a value changed."""
    old, new = evaluate(match["old"]), evaluate(match["new"])
    difference = new.value - old.value
    worked = _work_out_percentage(difference, old.value)
    first = f"{show_number(new.value)} - {show_number(old.value)} = {show_number(difference)}"
    return Worked(steps=(first, *worked.steps), answer=worked.answer)


def _work_out_percentage(part: Fraction, whole: Fraction) -> Worked:
    if whole == 0:
        raise UncomputableError("a percentage of zero has no meaning")
    shown = f"{show_number(part / whole * 100)}%"
    return Worked(steps=(f"{show_number(part)} / {show_number(whole)} * 100 = {shown}",), answer=shown)


def _build_change(sign: int) -> Callable[[re.Match[str]], Worked]:
    """Return a function that adds (`sign` 1) or subtracts (`sign` -1) a percentage."""

    def work(match: re.Match[str]) -> Worked:
        base, rate = evaluate(match["base"]), evaluate(match["rate"])
        part = base.value * rate.value / 100
        result, operator = base.value + sign * part, "+" if sign > 0 else "-"
        steps = (
            f"{show_number(rate.value)}% of {_show_like(base, base.value)} = {_show_like(base, part)}",
            f"{_show_like(base, base.value)} {operator} {_show_like(base, part)} = {_show_like(base, result)}",
        )
        return Worked(steps=steps, answer=_show_like(base, result))

    return work


def _show_like(like: Evaluation, value: Fraction) -> str:
    return show_money(value, like.currency) if like.currency else show_number(value)


_RATE = rf"(?P<rate>[^%]+?)\s*{_PERCENT}"
_PATTERNS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], Worked]], ...] = (
    (re.compile(rf"what {_PERCENT} of (?P<whole>.+?) (?:is|are) (?P<part>.+)"), _work_out_share),
    (re.compile(rf"(?P<part>.+?)(?: is)? what {_PERCENT} of (?P<whole>.+)"), _work_out_share),
    (re.compile(rf"what {_PERCENT} (?:is|are) (?P<part>.+?) (?:out )?of (?P<whole>.+)"), _work_out_share),
    (re.compile(rf"(?P<part>.+?) as a {_PERCENT} of (?P<whole>.+)"), _work_out_share),
    (
        re.compile(
            rf"(?:the )?{_PERCENT} (?:change|increase|decrease)(?: when .+? goes)? (?:from|between) "
            r"(?P<old>.+?) (?:to|and) (?P<new>.+)"
        ),
        _work_out_change,
    ),
    (re.compile(rf"(?:increase|raise) (?P<base>.+?) by {_RATE}"), _build_change(1)),
    (re.compile(rf"(?P<base>.+?) (?:increased|raised) by {_RATE}"), _build_change(1)),
    (re.compile(rf"{_RATE} more than (?P<base>.+)"), _build_change(1)),
    (re.compile(rf"(?:decrease|reduce|lower) (?P<base>.+?) by {_RATE}"), _build_change(-1)),
    (re.compile(rf"(?P<base>.+?) (?:decreased|reduced|lowered) by {_RATE}"), _build_change(-1)),
    (re.compile(rf"{_RATE} (?:less than|off|off of) (?P<base>.+)"), _build_change(-1)),
)


_DIGITS = 80
_MAX_BALANCE_DIGITS = 40
_MAX_YEARS = 1_000
_MAX_RATE = 100

_INTENT = re.compile(
    r"\binterest\b|\bcompound(?:ed|ing|s)?\b|\b(?:grow|grows|grown|amount|accumulate|worth|balance|invest|deposit)",
)
_INTEREST_RATE = re.compile(
    rf"(?P<value>{NUMERAL})\s*(?:%|per ?cent\b)(?:\s*(?P<kind>annual|yearly|monthly|quarterly))?"
    r"(?:\s+(?:a|an|per|each|every)\s+(?P<per>year|annum|month|quarter)\b)?",
)
_TIME = re.compile(rf"(?P<value>{NUMERAL})[\s-]*(?P<unit>years?|yrs?|months?|quarters?)\b")
_AMOUNT = re.compile(rf"(?P<currency>[{CURRENCIES}])?\s*(?P<value>{NUMERAL})(?P<thousands>k\b)?")
_FREQUENCIES = (
    (re.compile(r"\bdaily\b|\b(?:each|every|per) day\b"), 365, "daily"),
    (re.compile(r"\bweekly\b|\b(?:each|every) week\b"), 52, "weekly"),
    (re.compile(r"\bmonthly\b|\b(?:each|every) month\b"), 12, "monthly"),
    (re.compile(r"\bquarterly\b|\b(?:each|every) quarter\b"), 4, "quarterly"),
    (re.compile(r"\b(?:semi-?\s?annually|half-?\s?yearly|twice a year)\b"), 2, "twice a year"),
)
_UNSUPPORTED = re.compile(
    r"\bcontinuous|\b(?:add|deposit|contribut|withdraw)\w*\b.*\b(?:each|every|per|a) (?:month|year)\b"
)
_PER_YEAR = {"month": 12, "monthly": 12, "quarter": 4, "quarterly": 4}
_SIMPLE = re.compile(r"\bsimple\b")
_MAX_INTEREST_CHARACTERS = 400


@value
class _Loan:
    """The numbers of the question; `rate` is per year, `time` in years."""

    principal: Fraction
    currency: str
    rate: Fraction
    time: Fraction
    frequency: int
    frequency_name: str


def read_interest(question: str) -> Worked | None:
    """Compute a question about interest; return None if `question` is not one.

    The question must have exactly one amount, one rate and one time, so that no number is ignored.

    Raises:
        UncomputableError: the numbers are too large for a result exact to the cent.
    """
    text = " ".join(question.lower().split())
    if len(text) > _MAX_INTEREST_CHARACTERS or not _INTENT.search(text) or _UNSUPPORTED.search(text):
        return None
    loan = _read_loan(text)
    if loan is None:
        return None
    if loan.rate > _MAX_RATE or loan.time > _MAX_YEARS:
        raise UncomputableError(
            f"rates above {100 * _MAX_RATE:,}% and times above {_MAX_YEARS:,} years are not handled"
        )
    return (
        _work_out_simple(loan)
        if _SIMPLE.search(text)
        else _work_out_compound(loan, asks_interest="interest on" in text)
    )


def _read_loan(text: str) -> _Loan | None:
    rates, times = list(_INTEREST_RATE.finditer(text)), list(_TIME.finditer(text))
    if len(rates) != 1 or len(times) != 1:
        return None
    rate, time = rates[0], times[0]
    # Rate and time are replaced with spaces, so that none of their numbers is read as the amount.
    rest = _blank(_blank(text, rate), time)
    amounts = list(_AMOUNT.finditer(rest))
    if len(amounts) != 1:
        return None
    amount = amounts[0]
    frequency, name = _find_frequency(_blank(text, rate))
    principal = read_numeral(amount["value"]) * (1_000 if amount["thousands"] else 1)
    rates_per_year = _PER_YEAR.get(rate["per"] or rate["kind"] or "", 1)
    if rates_per_year > 1 and frequency == 1:
        frequency, name = rates_per_year, {12: "monthly", 4: "quarterly"}[rates_per_year]
    return _Loan(
        principal=principal,
        currency=amount["currency"] or "",
        rate=read_numeral(rate["value"]) / 100 * rates_per_year,
        time=read_numeral(time["value"]) / {"m": 12, "q": 4}.get(time["unit"][0], 1),
        frequency=frequency,
        frequency_name=name,
    )


def _blank(text: str, match: re.Match[str]) -> str:
    return text[: match.start()] + " " * (match.end() - match.start()) + text[match.end() :]


def _find_frequency(text: str) -> tuple[int, str]:
    """Return how many times a year interest is added, and the word for it."""
    return next(((count, name) for pattern, count, name in _FREQUENCIES if pattern.search(text)), (1, "annually"))


def _work_out_compound(loan: _Loan, *, asks_interest: bool) -> Worked:
    balance = _compute_balance(loan)
    interest = balance - loan.principal
    total, gain = show_money(balance, loan.currency), show_money(interest, loan.currency)
    principal, years = show_money(loan.principal, loan.currency), show_number(loan.time)
    rate, periods = show_number(loan.rate * 100), show_number(loan.time * loan.frequency)
    factor = "r" if loan.frequency == 1 else "r/n"
    growth = f"1 + {show_number(loan.rate)}" + ("" if loan.frequency == 1 else f"/{loan.frequency}")
    steps = (
        f"The balance after compounding is P * (1 + {factor})^(n * t).",
        f"P = {principal}, r = {rate}% a year, n = {loan.frequency} ({loan.frequency_name}), t = {years} years.",
        f"{principal} * ({growth})^{periods} = {total}.",
        f"Interest = {total} - {principal} = {gain}.",
    )
    if asks_interest:
        return Worked(steps=steps, answer=f"{gain} in interest, for a final balance of {total}")
    return Worked(steps=steps, answer=f"{total}, of which {gain} is interest")


def _compute_balance(loan: _Loan) -> Fraction:
    """Return the balance, rounded to the cent.

    Raises:
        UncomputableError: the balance has more than 40 digits.
    """
    with localcontext() as context:
        context.prec = _DIGITS
        growth = 1 + to_decimal(loan.rate) / loan.frequency
        balance = to_decimal(loan.principal) * growth ** to_decimal(loan.time * loan.frequency)
        if balance.adjusted() > _MAX_BALANCE_DIGITS:
            raise UncomputableError(f"the balance has more than {_MAX_BALANCE_DIGITS} digits")
        return Fraction(balance)


def _work_out_simple(loan: _Loan) -> Worked:
    interest = loan.principal * loan.rate * loan.time
    gain, total = show_money(interest, loan.currency), show_money(loan.principal + interest, loan.currency)
    principal, rate = show_money(loan.principal, loan.currency), show_number(loan.rate)
    steps = (
        "Simple interest is P * r * t.",
        f"{principal} * {rate} * {show_number(loan.time)} = {gain}.",
        f"Balance = {principal} + {gain} = {total}.",
    )
    return Worked(steps=steps, answer=f"{gain} in interest, for a final balance of {total}")
