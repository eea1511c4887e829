"""What a third party's strategy may put into a log: only what every transport can carry."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import NoneType
from typing import TYPE_CHECKING, Final, TypeVar

from reasond_server.errors import InternalError
from reasond_server.reasoning.shapes import ShapeError, is_unicode, settled
from reasond_server.types import CustomMetrics, CustomStep, FinishReason
from reasond_server.types.kinds import METRICS, STEPS

if TYPE_CHECKING:
    from reasond_server.strategies.strategy import Outcome, Step, Wrote
    from reasond_server.types import StepDetail, StrategyMetrics

MAX_DEPTH = 16
_CUSTOM: Final = (CustomStep, CustomMetrics)
_NOT_ITS_OWN: Final = (FinishReason.FAILED, FinishReason.CANCELLED)

_PLAIN_INT: Final = 2**63

ValueT = TypeVar("ValueT")


def depth_of(value: object) -> int:
    """Return how deep objects and arrays are nested in `value`; stops counting one past MAX_DEPTH."""
    depth, level = 0, [value]
    while level and depth <= MAX_DEPTH + 1:
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent if isinstance(parent, list) else ())
        ]
        depth += 1
    return depth - 1


def require_wrote(wrote: Wrote, *, strategy: str) -> Wrote:
    """Return `wrote`.

    Raises:
        InternalError: it is no text in valid Unicode; names the strategy, for its author.
    """
    if not is_unicode(wrote.text):
        raise InternalError(f"strategy {strategy!r} yielded a Wrote that is no text in valid Unicode")
    return wrote


def require_step(
    step: Step, *, strategy: str, before: StrategyMetrics | None = None
) -> tuple[StepDetail, StrategyMetrics]:
    """Return what `step` shows and its metrics, as they are kept: the strategy cannot change their JSON any more.

    `before` are the metrics of the step before, as they were kept.

    Raises:
        InternalError: its kind, its JSON or one of its values is none that a transport can carry; names the strategy.
    """
    if not (_is_one_of(step.detail, STEPS.types) and _is_one_of(step.metrics, (*METRICS.types, NoneType))):
        raise InternalError(f"strategy {strategy!r} yielded a Step whose detail or metrics are of no known kind")
    if not isinstance(step.answer_found, bool):
        raise InternalError(f"strategy {strategy!r} yielded a Step whose answer_found is neither True nor False")
    return _kept(step.detail, strategy), _kept(step.metrics, strategy, before)


def require_outcome(outcome: Outcome, *, strategy: str, before: StrategyMetrics | None = None) -> Outcome:
    """Return `outcome` as it is kept. Raises as `require_step`; how a run fails, an error says.

    `before` are the metrics of the last step, as they were kept.
    """
    if not (is_unicode(outcome.answer) and all(map(is_unicode, outcome.warnings))):
        raise InternalError(f"strategy {strategy!r} ended with an answer or warnings that are no text in valid Unicode")
    if not _is_one_of(outcome.finish_reason, (FinishReason,)) or outcome.finish_reason in _NOT_ITS_OWN:
        raise InternalError(f"strategy {strategy!r} ended with a finish reason that no strategy may give")
    if not _is_one_of(outcome.metrics, (*METRICS.types, NoneType)):
        raise InternalError(f"strategy {strategy!r} ended with metrics of no known kind")
    metrics = _kept(outcome.metrics, strategy, before)
    return outcome if metrics is outcome.metrics else replace(outcome, metrics=metrics)


def _kept(value: ValueT, strategy: str, before: object = None) -> ValueT:
    """Return `value`, with the JSON of a custom one copied; refuse what no transport can carry."""
    if value is None or (value is before and not isinstance(value, CustomMetrics)):
        return value
    if not isinstance(value, _CUSTOM):
        try:
            return settled(value, before=before)
        except ShapeError as error:
            kind = type(value).__name__
            raise InternalError(f"strategy {strategy!r} yielded a {kind} that cannot be kept: {error}") from None
    flat = _flat_copy(value.data)
    if flat is not None:
        return type(value)(data=flat)
    try:
        text = json.dumps(value.data, allow_nan=False, ensure_ascii=False)
        # Only to be refused with a lone surrogate: read from text, JSON takes two thirds of the time.
        text.encode()
        data = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or depth_of(data) > MAX_DEPTH:
        kind = type(value).__name__
        raise InternalError(
            f"strategy {strategy!r} yielded a {kind} that is no JSON object of {MAX_DEPTH} levels at most"
        )
    return replace(value, data=data)


def _flat_copy(data: object) -> dict[str, object] | None:
    """Return a copy of an object of plain texts and numbers, as most are; None where more has to be looked at."""
    if type(data) is not dict:
        return None
    for name, value in data.items():
        kind = type(value)
        is_plain = (
            (kind is str and value.isascii())
            or (kind is int and -_PLAIN_INT <= value <= _PLAIN_INT)
            or kind is bool
            or value is None
            or (kind is float and math.isfinite(value))
        )
        if not (is_plain and type(name) is str and name.isascii()):
            return None
    return data.copy()


def _is_one_of(value: object, kinds: tuple[type, ...]) -> bool:
    """Return whether a strategy kept to the types that it declares, which nothing else enforces."""
    return isinstance(value, kinds)
