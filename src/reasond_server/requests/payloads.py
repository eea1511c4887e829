"""Checks what a third party's strategy puts into a log: every transport must be able to carry it."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from types import NoneType
from typing import TYPE_CHECKING, Final, TypeVar

from reasond_server.errors.base import InternalError
from reasond_server.requests.shapes import ShapeError, check_shape, is_unicode
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
    """Return the nesting depth of objects and arrays in `value`; counts at most to MAX_DEPTH + 1."""
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
    """Return `wrote` if it holds valid text.

    Raises:
        InternalError: it holds no text, or not valid Unicode; names the strategy, for its author.
    """
    if not is_unicode(wrote.text):
        raise InternalError(f"strategy {strategy!r} yielded a Wrote that is no text in valid Unicode")
    return wrote


def require_step(
    step: Step, *, strategy: str, before: StrategyMetrics | None = None
) -> tuple[StepDetail, StrategyMetrics]:
    """Return the detail and the metrics of `step`, with copies of their JSON, which the strategy cannot change.

    `before` are the metrics that this function returned for the step before.

    Raises:
        InternalError: no transport can carry its kind, its JSON or one of its values; names the strategy.
    """
    if not (isinstance(step.detail, STEPS.types) and isinstance(step.metrics, (*METRICS.types, NoneType))):
        raise InternalError(f"strategy {strategy!r} yielded a Step whose detail or metrics are of no known kind")
    if not isinstance(step.answer_found, bool):
        raise InternalError(f"strategy {strategy!r} yielded a Step whose answer_found is neither True nor False")
    return _copy_checked(step.detail, strategy), _copy_checked(step.metrics, strategy, before)


def require_outcome(outcome: Outcome, *, strategy: str, before: StrategyMetrics | None = None) -> Outcome:
    """Return `outcome` with checked metrics. Raises as `require_step`.

    An outcome cannot report a failure; a strategy raises an error for that. `before` are the metrics that
    `require_step` returned for the last step.
    """
    if not (is_unicode(outcome.answer) and all(map(is_unicode, outcome.warnings))):
        raise InternalError(f"strategy {strategy!r} ended with an answer or warnings that are no text in valid Unicode")
    if type(outcome.finish_reason) is not FinishReason or outcome.finish_reason in _NOT_ITS_OWN:
        raise InternalError(f"strategy {strategy!r} ended with a finish reason that no strategy may give")
    if not isinstance(outcome.metrics, (*METRICS.types, NoneType)):
        raise InternalError(f"strategy {strategy!r} ended with metrics of no known kind")
    metrics = _copy_checked(outcome.metrics, strategy, before)
    return outcome if metrics is outcome.metrics else replace(outcome, metrics=metrics)


def _copy_checked(value: ValueT, strategy: str, before: object = None) -> ValueT:
    """Return `value`, with a copy of the JSON of a custom kind; refuse what no transport can carry."""
    if value is None or (value is before and not isinstance(value, CustomMetrics)):
        return value
    if not isinstance(value, _CUSTOM):
        try:
            return check_shape(value, before=before)
        except ShapeError as error:
            kind = type(value).__name__
            raise InternalError(f"strategy {strategy!r} yielded a {kind} that cannot be kept: {error}") from None
    flat = _flat_copy(value.data)
    if flat is not None:
        return type(value)(data=flat)
    try:
        text = json.dumps(value.data, allow_nan=False, ensure_ascii=False)
        # Encoded only to refuse lone surrogates; reading from the text takes two thirds of the time.
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
    """Return a copy of an object that holds only plain texts and numbers; None if it needs the full check."""
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
