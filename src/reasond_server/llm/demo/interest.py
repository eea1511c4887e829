"""Compound and simple interest, read from one sentence: an amount, a yearly rate and a time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction

from reasond_server.llm.demo.numerals import (
    CURRENCIES,
    NUMERAL,
    UncomputableError,
    read_numeral,
    show_money,
    show_number,
)
from reasond_server.llm.demo.worked import Worked

_DIGITS = 80
_MAX_BALANCE_DIGITS = 40
_MAX_YEARS = 1_000
_MAX_RATE = 100

_INTENT = re.compile(
    r"\binterest\b|\bcompound(?:ed|ing|s)?\b|\b(?:grow|grows|grown|amount|accumulate|worth|balance|invest|deposit)",
)
_RATE = re.compile(
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
_MAX_CHARACTERS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loan:
    """The figures of the question; `rate` is per year, `time` in years."""

    principal: Fraction
    currency: str
    rate: Fraction
    time: Fraction
    frequency: int
    frequency_name: str


def read_interest(question: str) -> Worked | None:
    """Work out a question about interest, None if `question` is not one.

    The question must hold exactly one amount, one rate and one time, so that no figure goes unread.

    Raises:
        UncomputableError: the figures are beyond what can be stated to the cent.
    """
    text = " ".join(question.lower().split())
    if len(text) > _MAX_CHARACTERS or not _INTENT.search(text) or _UNSUPPORTED.search(text):
        return None
    loan = _read_loan(text)
    if loan is None:
        return None
    if loan.rate > _MAX_RATE or loan.time > _MAX_YEARS:
        raise UncomputableError(
            f"rates above {100 * _MAX_RATE:,}% and times above {_MAX_YEARS:,} years are not handled"
        )
    return _simple(loan) if _SIMPLE.search(text) else _compound(loan, asks_interest="interest on" in text)


def _read_loan(text: str) -> _Loan | None:
    rates, times = list(_RATE.finditer(text)), list(_TIME.finditer(text))
    if len(rates) != 1 or len(times) != 1:
        return None
    rate, time = rates[0], times[0]
    # Rate and time are blanked out, so that none of their figures is taken for the amount.
    rest = _blanked(_blanked(text, rate), time)
    amounts = list(_AMOUNT.finditer(rest))
    if len(amounts) != 1:
        return None
    amount = amounts[0]
    frequency, name = _frequency(_blanked(text, rate))
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


def _blanked(text: str, match: re.Match[str]) -> str:
    return text[: match.start()] + " " * (match.end() - match.start()) + text[match.end() :]


def _frequency(text: str) -> tuple[int, str]:
    """Return how often a year interest is added, and the word for it."""
    return next(((count, name) for pattern, count, name in _FREQUENCIES if pattern.search(text)), (1, "annually"))


def _compound(loan: _Loan, *, asks_interest: bool) -> Worked:
    balance = _grown(loan)
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


def _grown(loan: _Loan) -> Fraction:
    """Return the balance, rounded to the cent.

    Raises:
        UncomputableError: it has more than 40 digits.
    """
    with localcontext() as context:
        context.prec = _DIGITS
        growth = 1 + _decimal(loan.rate) / loan.frequency
        balance = _decimal(loan.principal) * growth ** _decimal(loan.time * loan.frequency)
        if balance.adjusted() > _MAX_BALANCE_DIGITS:
            raise UncomputableError(f"the balance has more than {_MAX_BALANCE_DIGITS} digits")
        return Fraction(balance)


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)


def _simple(loan: _Loan) -> Worked:
    interest = loan.principal * loan.rate * loan.time
    gain, total = show_money(interest, loan.currency), show_money(loan.principal + interest, loan.currency)
    principal, rate = show_money(loan.principal, loan.currency), show_number(loan.rate)
    steps = (
        "Simple interest is P * r * t.",
        f"{principal} * {rate} * {show_number(loan.time)} = {gain}.",
        f"Balance = {principal} + {gain} = {total}.",
    )
    return Worked(steps=steps, answer=f"{gain} in interest, for a final balance of {total}")
