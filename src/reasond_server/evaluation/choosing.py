"""The table for `auto`: for each form of task the cheapest way whose loss is small enough, with its figures."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from reasond_server.types.choices import MeasuredChoice, TaskForm

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.evaluation.items import Item
    from reasond_server.evaluation.trials import Trial
    from reasond_server.evaluation.ways import Way

LEAST_ITEMS: Final = 20
"""Of fewer questions of a form nothing is chosen."""


def choose(
    items: Sequence[Item], ways: Sequence[Way], trials: Sequence[Trial], *, loss: float
) -> tuple[Mapping[TaskForm, MeasuredChoice], Sequence[str]]:
    """Return the choice for each form of task, and for those without one why.

    The best way of a form has the most right answers. The choice is the way with the fewest tokens whose share of right
    answers is at most `loss` (0 to 1) below that of the best. Only questions that every way has answered count.
    """
    forms = {item.item_id: _find_form(item) for item in items}
    chosen: dict[TaskForm, MeasuredChoice] = {}
    told = []
    for form in TaskForm:
        counted = _find_complete(ways, [trial for trial in trials if forms[trial.item_id] is form])
        n = len(next(iter(counted.values()), []))
        if n < LEAST_ITEMS:
            if n:
                told.append(f"{form.value}: {n} questions that every way answered; at least {LEAST_ITEMS} are needed")
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
    return chosen, told


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


def _find_complete(ways: Sequence[Way], trials: Sequence[Trial]) -> Mapping[str, Sequence[Trial]]:
    """Return the trials by way, of the questions that every way has answered."""
    by_way = {way.name: {(t.item_id, t.repeat): t for t in trials if t.way == way.name} for way in ways}
    common = set.intersection(*(set(own) for own in by_way.values())) if by_way else set()
    return {name: [own[key] for key in sorted(common)] for name, own in by_way.items()}
