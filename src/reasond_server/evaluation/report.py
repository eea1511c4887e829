"""What trials say: a row for each way, the comparison with the first, and the picture of gain against cost.

Shares have intervals, and two ways are compared on the questions that both answered. `choose` makes the table for
`auto`: for each form of task the cheapest way whose loss is small enough, with its figures.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import groupby
from math import comb, sqrt
from typing import TYPE_CHECKING, Final

from reasond_server.types.tasks import MeasuredChoice, TaskForm
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.evaluation.items import Item
    from reasond_server.evaluation.trials import StrategySetup, Trial

_Z: Final = 1.959963984540054
"""The 97.5 % quantile of the normal distribution: every interval here covers 95 %."""


@value
class Interval:
    """An interval of a share or of a difference of shares, from -1 to 1."""

    low: float
    high: float


@value
class Comparison:
    """Two ways on the same questions: how many of `n` only the first and only the second had right.

    Attributes:
        difference: the share that the second has right minus that of the first.
        interval: of the difference, after Agresti and Min 2005: half a pair is added to each cell.
        p: of McNemar's exact test, two-sided: how likely so uneven a split is if neither is better.
    """

    n: int
    lost: int
    won: int
    difference: float
    interval: Interval
    p: float


def compute_interval(right: int, n: int) -> Interval:
    """Return Wilson's interval (1927) of the share `right` of `n`; of nothing, from 0 to 1."""
    if n == 0:
        return Interval(low=0.0, high=1.0)
    share, square = right / n, _Z * _Z
    middle = (share + square / (2 * n)) / (1 + square / n)
    half = _Z / (1 + square / n) * sqrt(share * (1 - share) / n + square / (4 * n * n))
    return Interval(low=max(0.0, middle - half), high=min(1.0, middle + half))


def compare(first: Sequence[bool], second: Sequence[bool]) -> Comparison:
    """Compare two ways; the verdicts stand in the order of the same questions."""
    pairs = list(zip(first, second, strict=True))
    lost = sum(a and not b for a, b in pairs)
    won = sum(b and not a for a, b in pairs)
    n = len(pairs)
    # Half a pair in each of the four cells.
    lost_more, won_more, n_more = lost + 0.5, won + 0.5, n + 2
    middle = (won_more - lost_more) / n_more
    half = _Z * sqrt(lost_more + won_more - (won_more - lost_more) ** 2 / n_more) / n_more
    return Comparison(
        n=n,
        lost=lost,
        won=won,
        difference=(won - lost) / n if n else 0.0,
        interval=Interval(low=max(-1.0, middle - half), high=min(1.0, middle + half)),
        p=compute_mcnemar(lost, won),
    )


def compute_mcnemar(lost: int, won: int) -> float:
    """Return the exact two-sided p of `lost` against `won` (McNemar 1947): a fair coin for each unequal pair."""
    n, least = lost + won, min(lost, won)
    tail = sum(comb(n, k) for k in range(least + 1))
    return min(1.0, float(2 * tail / 2**n)) if n else 1.0


_WIDTH: Final = 56
_HEIGHT: Final = 12
_SHOWN_WRONG: Final = 20
_TEXT_WIDTH: Final = 60


@value
class Row:
    """The figures of one way; means are of one trial, seconds at the server.

    Attributes:
        letter: its mark in the picture.
        changed: how often its answer is not right where that of the first way is, or the other way round.
        cost_usd: what a trial cost in US dollars; None where not all costs are known.
        is_efficient: no other way has as many right for as few tokens.
    """

    letter: str
    way: str
    n: int
    right: int
    failed: int
    interval: Interval
    tokens: float
    output_tokens: float
    calls: float
    seconds: float
    cost_usd: float | None
    cached_share: float
    comparison: Comparison | None
    is_efficient: bool = False

    @property
    def share(self) -> float:
        """The share of right answers."""
        return self.right / self.n if self.n else 0.0


@dataclass(eq=False, kw_only=True)
class EvalReport:
    """The rows by way in the order of the command, and the trials that they are made of."""

    rows: Sequence[Row]
    trials: Sequence[Trial]
    items: Sequence[Item]
    wanted: int


def build_report(
    items: Sequence[Item], ways: Sequence[StrategySetup], trials: Sequence[Trial], *, wanted: int
) -> EvalReport:
    """Compare the ways on the questions; `wanted` is how many trials there were to be."""
    by_way = {way.name: {(t.item_id, t.repeat): t for t in trials if t.way == way.name} for way in ways}
    first = by_way[ways[0].name]
    rows = []
    for number, way in enumerate(ways):
        own = by_way[way.name]
        both = [key for key in first if key in own]
        comparison = (
            compare([first[key].is_right for key in both], [own[key].is_right for key in both]) if number else None
        )
        rows.append(_build_row(chr(ord("A") + number), way.name, list(own.values()), comparison))
    return EvalReport(rows=_mark_efficient(rows), trials=trials, items=items, wanted=wanted)


def _build_row(letter: str, way: str, trials: Sequence[Trial], comparison: Comparison | None) -> Row:
    n = len(trials)
    read = sum(trial.input_tokens for trial in trials)
    right = sum(trial.is_right for trial in trials)
    costs = [trial.cost_usd for trial in trials]
    return Row(
        letter=letter,
        way=way,
        n=n,
        right=right,
        failed=sum(trial.is_failed for trial in trials),
        interval=compute_interval(right, n),
        tokens=_mean([trial.tokens for trial in trials]),
        output_tokens=_mean([trial.output_tokens for trial in trials]),
        calls=_mean([trial.calls for trial in trials]),
        seconds=_mean([trial.seconds for trial in trials]),
        cost_usd=_mean([cost for cost in costs if cost is not None]) if n and None not in costs else None,
        cached_share=sum(trial.cached_tokens for trial in trials) / read if read else 0.0,
        comparison=comparison,
    )


def _mean(figures: Sequence[float]) -> float:
    return sum(figures) / len(figures) if figures else 0.0


def _mark_efficient(rows: Sequence[Row]) -> Sequence[Row]:
    return [replace(row, is_efficient=row.n > 0 and not any(_beats(other, row) for other in rows)) for row in rows]


def _beats(other: Row, row: Row) -> bool:
    """Return whether `other` is at least as good and as cheap, and one of both better."""
    is_as_good = other.n > 0 and other.share >= row.share and other.tokens <= row.tokens
    return is_as_good and (other.share > row.share or other.tokens < row.tokens)


def draw_picture(rows: Sequence[Row]) -> Sequence[str]:
    """Draw the share of right answers over the tokens of a trial, by letters; efficient ways in brackets."""
    shown = [row for row in rows if row.n]
    if not shown:
        return []
    most = max(row.tokens for row in shown) or 1.0
    low, high = min(row.share for row in shown), max(row.share for row in shown)
    low, high = max(0.0, low - 0.05), min(1.0, high + 0.05)
    lines = [[" "] * (_WIDTH + 3) for _ in range(_HEIGHT)]
    for row in shown:
        x = round(row.tokens / most * (_WIDTH - 1))
        y = round((high - row.share) / (high - low) * (_HEIGHT - 1))
        mark = f"[{row.letter}]" if row.is_efficient else f" {row.letter} "
        for place, sign in enumerate(mark):
            if sign != " ":
                lines[y][x + place] = sign if lines[y][x + place] == " " else "+"
    return [
        f"{high:4.0%} right",
        *(f"     |{''.join(line).rstrip()}" for line in lines),
        f"{low:4.0%} +{'-' * (_WIDTH + 2)}",
        f"      0 tokens{f'{most:,.0f}':>{_WIDTH - 9}}",
        *(f"      {row.letter} {row.way}" for row in shown),
    ]


def write_markdown(report: EvalReport, *, title: str, circumstances: Sequence[str] = ()) -> str:
    """Write the report as a page: the table, the picture, and the first wrong answers of each way."""
    lines = [f"# {title}", "", *(f"- {line}" for line in circumstances), *([""] if circumstances else [])]
    head = "| way | right | of | share (95 %) | tokens | calls | seconds | cached | against the first | p |"
    lines += [head, "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |", *map(_write_row, report.rows)]
    lines += ["", "```text", *draw_picture(report.rows), "```", "", "In brackets: no other way is better and cheaper."]
    for kind, rows in _group_kinds(report):
        lines += ["", f"## Kind {kind}", "", "| way | right | of |", "| --- | --- | --- |", *rows]
    lines += ["", "## Wrong answers", ""]
    questions = {item.item_id: item for item in report.items}
    for row in report.rows:
        wrong = [trial for trial in report.trials if trial.way == row.way and not trial.is_right]
        lines += [f"- {row.way}: {len(wrong)}"]
        lines += [f"  - {describe_wrong(trial, questions[trial.item_id])}" for trial in wrong[:_SHOWN_WRONG]]
        if len(wrong) > _SHOWN_WRONG:
            lines.append(f"  - and {len(wrong) - _SHOWN_WRONG} more in the record")
    return "\n".join(lines) + "\n"


def describe_wrong(trial: Trial, item: Item) -> str:
    """Return one line: where the steps of the trial are, what was asked, what came, and what is right."""
    came = _shorten(trial.answer_json or trial.answer or (trial.note if trial.is_failed else ""))
    came = came or trial.finish.lower().replace("_", " ")
    right = _shorten(item.right or item.pattern or item.grader.value)
    return f"{trial.execution_id or 'no execution'}: {_shorten(item.question)}: {came}; right is {right}"


def _shorten(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _TEXT_WIDTH else f"{flat[: _TEXT_WIDTH - 1]}…"


def _write_row(row: Row) -> str:
    share = f"{row.share:.1%} ({row.interval.low:.0%} to {row.interval.high:.0%})"
    failed = f" ({row.failed} failed)" if row.failed else ""
    against, p = (
        ("", "") if row.comparison is None else (describe_comparison(row.comparison), f"{row.comparison.p:.2g}")
    )
    cost = "" if row.cost_usd is None else f" (${row.cost_usd:,.4g})"
    name = f"**{row.way}**" if row.is_efficient else row.way
    return (
        f"| {name} | {row.right}{failed} | {row.n} | {share} | {row.tokens:,.0f}{cost} | {row.calls:.1f} "
        f"| {row.seconds:.1f} | {row.cached_share:.0%} | {against} | {p} |"
    )


def describe_comparison(comparison: Comparison) -> str:
    """Return the difference with its interval, and how many answers became right and wrong."""
    interval = comparison.interval
    return (
        f"{comparison.difference:+.1%} ({interval.low:+.0%} to {interval.high:+.0%}): "
        f"{comparison.won} became right, {comparison.lost} wrong"
    )


def _group_kinds(report: EvalReport) -> Sequence[tuple[str, Sequence[str]]]:
    kinds = {item.item_id: item.kind for item in report.items}
    named = sorted({kind for kind in kinds.values() if kind})
    groups = []
    for kind in named:
        rows = []
        of_kind = sorted((t for t in report.trials if kinds[t.item_id] == kind), key=lambda trial: trial.way)
        for way, found in groupby(of_kind, key=lambda trial: trial.way):
            trials = list(found)
            rows.append(f"| {way} | {sum(trial.is_right for trial in trials)} | {len(trials)} |")
        groups.append((kind, rows))
    return groups


LEAST_ITEMS: Final = 20
"""Of fewer questions of a form nothing is chosen."""


def choose(
    items: Sequence[Item], ways: Sequence[StrategySetup], trials: Sequence[Trial], *, loss: float
) -> tuple[Mapping[TaskForm, MeasuredChoice], Sequence[str]]:
    """Return the choice for each form of task, and for those without one why.

    The best way of a form has the most right answers. The choice is the way with the fewest tokens whose share of right
    answers is at most `loss` (0 to 1) below that of the best. Only questions that every way has answered count.
    """
    forms = {item.item_id: _find_form(item) for item in items}
    chosen: dict[TaskForm, MeasuredChoice] = {}
    reasons = []
    for form in TaskForm:
        counted = _find_complete(ways, [trial for trial in trials if forms[trial.item_id] is form])
        n = len(next(iter(counted.values()), []))
        if n < LEAST_ITEMS:
            if n:
                reasons.append(
                    f"{form.value}: {n} questions that every way answered; at least {LEAST_ITEMS} are needed"
                )
            continue
        shares = {way.name: sum(trial.is_right for trial in counted[way.name]) / n for way in ways}
        tokens = {way.name: sum(trial.tokens for trial in counted[way.name]) / n for way in ways}
        best = max(ways, key=lambda way: (shares[way.name], -tokens[way.name]))
        good = [way for way in ways if shares[way.name] >= shares[best.name] - loss]
        cheapest = min(good, key=lambda way: tokens[way.name])
        chosen[form] = MeasuredChoice(
            strategy=cheapest.strategy,
            config=dict(cheapest.config),
            why=f"{shares[cheapest.name]:.0%} of {n} right with {tokens[cheapest.name]:,.0f} tokens each; the best, "
            f"{best.name}, {shares[best.name]:.0%} with {tokens[best.name]:,.0f}",
        )
    return chosen, reasons


def _find_form(item: Item) -> TaskForm:
    if item.schema is not None:
        return TaskForm.SCHEMA
    return TaskForm.MATERIAL if item.material else TaskForm.QUESTION


def write_choices(chosen: Mapping[TaskForm, MeasuredChoice]) -> str:
    """Return the choices as tables of config.toml; `auto` must be on for them."""
    lines = ["[reasoning]", "auto = true"]
    for form, each in chosen.items():
        lines += ["", f"[reasoning.choices.{form.value}]", f"strategy = {json.dumps(each.strategy)}"]
        lines += [f"why = {json.dumps(each.why)}"]
        if each.config:
            lines += ["", f"[reasoning.choices.{form.value}.config]"]
            lines += [f"{key} = {json.dumps(found)}" for key, found in each.config.items()]
    return "\n".join(lines) + "\n"


def _find_complete(ways: Sequence[StrategySetup], trials: Sequence[Trial]) -> Mapping[str, Sequence[Trial]]:
    """Return the trials by way, of the questions that every way has answered."""
    by_way = {way.name: {(t.item_id, t.repeat): t for t in trials if t.way == way.name} for way in ways}
    common = set.intersection(*(set(own) for own in by_way.values())) if by_way else set()
    return {name: [own[key] for key in sorted(common)] for name, own in by_way.items()}
