"""What a third party's strategy may put into a log: only what every transport can carry."""

from __future__ import annotations

import json
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Final, TypeVar

from reasond_server.errors import InternalError
from reasond_server.types import (
    BoundedContextMetrics,
    BoundedContextStep,
    ChainOfThoughtMetrics,
    CustomMetrics,
    CustomStep,
    FinishReason,
    ReactMetrics,
    ReactStep,
    Sample,
    SelfConsistencyMetrics,
    Thought,
    TreeOfThoughtMetrics,
    TreeStep,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reasond_server.errors import ReasondError
    from reasond_server.strategies.strategy import Outcome, Step, Wrote

MAX_DEPTH = 16
_DETAILS: Final = (Thought, BoundedContextStep, ReactStep, TreeStep, Sample, CustomStep)
_METRICS: Final = (
    ChainOfThoughtMetrics,
    BoundedContextMetrics,
    ReactMetrics,
    TreeOfThoughtMetrics,
    SelfConsistencyMetrics,
    CustomMetrics,
    type(None),
)
_NOT_ITS_OWN: Final = (FinishReason.FAILED, FinishReason.CANCELLED)

_LONGEST_WAIT_S: Final = 30 * 86_400.0

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
    if not _is_unicode(wrote.text):
        raise InternalError(f"strategy {strategy!r} yielded a Wrote that is no text in valid Unicode")
    return wrote


def require_step(step: Step, *, strategy: str) -> Step:
    """Return `step` as it is kept: its JSON is a copy, which the strategy cannot change any more.

    Raises:
        InternalError: its kind, its JSON or its texts are none that a transport can carry; names the strategy.
    """
    if not (_is_one_of(step.detail, _DETAILS) and _is_one_of(step.metrics, _METRICS)):
        raise InternalError(f"strategy {strategy!r} yielded a Step whose detail or metrics are of no known kind")
    return replace(step, detail=_kept(step.detail, strategy), metrics=_kept(step.metrics, strategy))


def require_outcome(outcome: Outcome, *, strategy: str) -> Outcome:
    """Return `outcome` as it is kept. Raises as `require_step`; how a run fails, an error says."""
    if not all(map(_is_unicode, (outcome.answer, *outcome.warnings))):
        raise InternalError(f"strategy {strategy!r} ended with an answer or warnings that are no text in valid Unicode")
    if not _is_one_of(outcome.finish_reason, (FinishReason,)) or outcome.finish_reason in _NOT_ITS_OWN:
        raise InternalError(f"strategy {strategy!r} ended with a finish reason that no strategy may give")
    if not _is_one_of(outcome.metrics, _METRICS):
        raise InternalError(f"strategy {strategy!r} ended with metrics of no known kind")
    return replace(outcome, metrics=_kept(outcome.metrics, strategy))


def carriable(error: ReasondError) -> ReasondError:
    """Return `error` with texts that can be encoded, metadata of texts, and a finite wait or none."""
    error.message, error.remedy = _encodable(error.message), _encodable(error.remedy)
    error.metadata = {_encodable(name): _encodable(value) for name, value in error.metadata.items()}
    if error.retry_after_s is not None and not 0 <= error.retry_after_s <= _LONGEST_WAIT_S:
        error.retry_after_s = None
    return error


def _kept(value: ValueT, strategy: str) -> ValueT:
    """Return `value`, with the JSON of a custom one copied; refuse what no transport can carry."""
    kind = type(value).__name__
    if not isinstance(value, CustomStep | CustomMetrics):
        if not all(map(_is_unicode, _texts_of(value))):
            raise InternalError(f"strategy {strategy!r} yielded a {kind} with text that is not valid Unicode")
        return value
    try:
        data = json.loads(json.dumps(value.data, allow_nan=False, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or depth_of(data) > MAX_DEPTH:
        raise InternalError(
            f"strategy {strategy!r} yielded a {kind} that is no JSON object of {MAX_DEPTH} levels at most"
        )
    return replace(value, data=data)


def _texts_of(value: object) -> Iterator[str]:
    """Yield the texts in `value`, in the parts of its parts as well."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _texts_of(each)
    elif is_dataclass(value):
        for each in fields(value):
            yield from _texts_of(getattr(value, each.name))


def _is_one_of(value: object, kinds: tuple[type, ...]) -> bool:
    """Return whether a strategy kept to the types that it declares, which nothing else enforces."""
    return isinstance(value, kinds)


def _is_unicode(text: object) -> bool:
    """Return whether `text` is one that can be encoded: a lone surrogate cannot."""
    try:
        return isinstance(text, str) and text.encode() is not None
    except UnicodeEncodeError:
        return False


def _encodable(text: object) -> str:
    return str(text).encode("utf-8", "replace").decode("utf-8")
