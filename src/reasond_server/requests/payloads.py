"""Checks what a third party's strategy puts into a log: every transport must be able to carry it."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache
from itertools import zip_longest
from operator import is_
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args, get_origin, get_type_hints

from reasond_server.errors.base import InternalError
from reasond_server.types import CustomMetrics, CustomStep, FinishReason, StepDetail, StrategyMetrics
from reasond_server.types.kinds import METRICS, STEPS, build_reader

if TYPE_CHECKING:
    from reasond_server.strategies.strategy import Outcome, Step, Wrote


ValueT = TypeVar("ValueT")

_INT32_MAX: Final = 2**31 - 1
_INT64_EXACT: Final = 2**53 - 1
_MAX_SECONDS: Final = 10**9
_NOTHING: Final = object()
# Protobuf reads 100 levels of messages, three for an object within an object.
_MOST_LEVELS: Final = 26
_LARGEST: Final = sys.float_info.max


class ShapeError(Exception):
    """A value does not fit its field; the text names the field and says why, for the strategy's author."""


def check_shape(value: ValueT, *, before: object = None) -> ValueT:
    """Check the fields of a dataclass at all levels, and return it with its sequences as tuples.

    `before` is an earlier result. Objects that it holds at the same place are not checked again, because metrics that
    grow by a line with every step would otherwise cost more with every step.

    Raises:
        ShapeError: a field holds a value of another type, or one that no transport can carry.
    """
    kind: type = type(value)
    known = before if type(before) is kind else None
    changed = {}
    read, declared = _build_fields_reader(kind)
    for given, (name, hint, items) in zip(read(value), declared, strict=True):
        # Most fields are valid by this quick check.
        if type(given) is hint and (
            (hint is str and given.isascii())
            or (hint is int and -_INT32_MAX <= given <= _INT32_MAX)
            or (hint is float and 0.0 <= given <= _MAX_SECONDS)
            or hint is bool
        ):
            continue
        kept = _check_field(given, hint, items, name, None if known is None else getattr(known, name))
        if kept is not given:
            changed[name] = kept
    return replace(value, **changed) if changed else value  # type: ignore[type-var]  # known to be a dataclass


def is_unicode(text: object) -> bool:
    """Return whether `text` is a text that UTF-8 can encode; lone surrogates cannot be encoded."""
    if type(text) is str and text.isascii():
        return True
    try:
        return isinstance(text, str) and text.encode() is not None
    except UnicodeEncodeError:
        return False


@cache
def _build_fields_reader(kind: type) -> tuple[Callable[[object], Sequence[Any]], Sequence[tuple[str, Any, Any]]]:
    """Return a function to the values of all fields, and name, annotation and item annotation of each.

    The item annotation is None unless the field is a sequence.
    """
    hints = get_type_hints(kind)
    declared = [(field.name, hints[field.name], _find_item_type(hints[field.name])) for field in fields(kind)]
    return build_reader([name for name, _, _ in declared]), declared


@cache
def _find_item_type(hint: Any) -> Any:  # noqa: ANN401 - an annotation
    return get_args(hint)[0] if get_origin(hint) is Sequence else None


def _check_field(value: Any, hint: Any, items: Any, name: str, before: Any) -> Any:  # noqa: ANN401 - any value, any annotation
    if type(value) is hint and is_dataclass(hint):
        return check_shape(value, before=before)
    if items is not None:
        return _settle_items(value, items, name, before if isinstance(before, tuple) else ())
    if isinstance(hint, UnionType):
        if value is None:
            return None
        chosen = _choose_alternative(value, hint, name)
        return _check_field(value, chosen, _find_item_type(chosen), name, before)
    complaint = _find_complaint(value, hint, name)
    if complaint:
        raise ShapeError(f"{name} {complaint}")
    return check_shape(value, before=before) if is_dataclass(value) else value


def _settle_items(value: object, kind: Any, name: str, before: tuple[Any, ...]) -> tuple[Any, ...]:  # noqa: ANN401 - an annotation
    # Checked first, because the test for other sequences takes far longer.
    if type(value) is tuple:
        if not value:
            return value
    elif isinstance(value, str) or not isinstance(value, Sequence):
        raise ShapeError(f"{name} is no sequence")
    pairs = zip_longest(value, before[: len(value)], fillvalue=_NOTHING)
    items = _find_item_type(kind)
    kept = [each if each is known else _check_field(each, kind, items, name, known) for each, known in pairs]
    if isinstance(value, tuple) and all(map(is_, kept, value)):
        return value
    return tuple(kept)


def _choose_alternative(value: object, hint: UnionType, name: str) -> Any:  # noqa: ANN401 - an annotation
    """Return the type in an optional field's annotation that fits `value`, which is not None."""
    (kind,) = (each for each in get_args(hint) if each is not NoneType)
    if isinstance(value, kind):
        return kind
    raise ShapeError(f"{name} is a {type(value).__name__}")


def _find_complaint(value: Any, kind: type, name: str) -> str:  # noqa: ANN401 - any value
    """Return why `value` does not fit a field of type `kind`; empty if it fits."""
    is_number = kind is float and isinstance(value, int) and not isinstance(value, bool)
    is_of_kind = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if not (is_of_kind or is_number):
        return f"is a {type(value).__name__}"
    if kind is str and not is_unicode(value):
        return "is not valid Unicode"
    if kind is float and not _is_finite(value):
        return "is no finite number"
    if name.endswith("_s") and kind is float and not 0 <= value <= _MAX_SECONDS:
        return "is no length of time"
    if kind is int and not issubclass(kind, Enum) and not _fits(value, name):
        return "is too large a number"
    return ""


def _is_finite(value: Any) -> bool:  # noqa: ANN401 - a number, which may be larger than any float
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _fits(value: Any, name: str) -> bool:  # noqa: ANN401 - a whole number
    is_large = name.endswith("tokens") and not name.startswith("max_")
    most = _INT64_EXACT if is_large else _INT32_MAX
    return bool(-most <= value <= most)


MAX_DEPTH = 16
_CUSTOM: Final = (CustomStep, CustomMetrics)
_NOT_ITS_OWN: Final = (FinishReason.FAILED, FinishReason.CANCELLED)

_PLAIN_INT: Final = 2**63


def measure_depth(value: object) -> int:
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


def restore_whole(value: Any, *, levels: int = _MOST_LEVELS) -> Any:  # noqa: ANN401 - any JSON value
    """Return a JSON value with its whole numbers: a Struct of protobuf has every number as a double.

    Raises:
        ValueError: a number is larger than a double, or the value nested deeper than readers of protobuf take it within
            a list of messages.
    """
    if isinstance(value, dict | list):
        if not levels:
            raise ValueError(f"must be nested at most {_MOST_LEVELS} levels deep")
        if isinstance(value, list):
            return [restore_whole(each, levels=levels - 1) for each in value]
        return {name: restore_whole(each, levels=levels - 1) for name, each in value.items()}
    if isinstance(value, int | float) and not -_LARGEST <= value <= _LARGEST:
        raise ValueError("must have numbers between -1.8e308 and 1.8e308")
    return int(value) if isinstance(value, float) and value.is_integer() else value


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
    flat = _copy_flat(value.data)
    if flat is not None:
        return type(value)(data=flat)
    try:
        text = json.dumps(value.data, allow_nan=False, ensure_ascii=False)
        # Encoded only to refuse lone surrogates; reading from the text takes two thirds of the time.
        text.encode()
        data = json.loads(text)
    except (TypeError, ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or measure_depth(data) > MAX_DEPTH:
        kind = type(value).__name__
        raise InternalError(
            f"strategy {strategy!r} yielded a {kind} that is no JSON object of {MAX_DEPTH} levels at most"
        )
    return replace(value, data=data)


def _copy_flat(data: object) -> dict[str, object] | None:
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
