"""Events and executions as compact JSON with a version, for every store that keeps text.

A row is `{"v": 1, "kind": "iteration", "of": "thought", "at": "2026-…", "body": {…}}`: `kind` names the event, `of`
the kind of its step or metrics. Fields that a later release added with a default may be missing or unknown; what
changes the meaning of those that are there gets a new version. What is said of a row that cannot be
read is logged: nothing of it but its sequence, kind and version.
"""

from __future__ import annotations

import hashlib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, Final, TypeAlias

import pydantic_core

from reasond_server.errors import InternalError, shown
from reasond_server.types import (
    BoundedContextMetrics,
    BoundedContextStep,
    ChainOfThoughtMetrics,
    CustomMetrics,
    CustomStep,
    Event,
    Execution,
    ExecutionStarted,
    Iteration,
    LoggedEvent,
    ReactMetrics,
    ReactStep,
    Result,
    Sample,
    SelfConsistencyMetrics,
    StepDetail,
    StrategyMetrics,
    Thought,
    TreeOfThoughtMetrics,
    TreeStep,
)

VERSION: Final = 1

_Reader: TypeAlias = "Callable[[Any, str], Any]"

_EVENTS: Final[Mapping[str, type]] = {"started": ExecutionStarted, "iteration": Iteration, "result": Result}
_DETAILS: Final[Mapping[str, type]] = {
    "thought": Thought,
    "bounded_context": BoundedContextStep,
    "react": ReactStep,
    "tree": TreeStep,
    "sample": Sample,
    "custom": CustomStep,
}
_METRICS: Final[Mapping[str, type]] = {
    "chain_of_thought": ChainOfThoughtMetrics,
    "bounded_context": BoundedContextMetrics,
    "react": ReactMetrics,
    "tree_of_thought": TreeOfThoughtMetrics,
    "self_consistency": SelfConsistencyMetrics,
    "custom": CustomMetrics,
}
_TAGGED: Final[Mapping[object, Mapping[str, type]]] = {StepDetail: _DETAILS, StrategyMetrics: _METRICS}


class LaterVersionError(InternalError):
    """A later release wrote a row: it is whole, but not for this one to read."""


def encode_event(logged: LoggedEvent) -> str:
    """Return an event as JSON text, without its sequence.

    Raises:
        InternalError: it holds what JSON or UTF-8 cannot.
    """
    event = logged.event
    return _json(
        {
            "v": VERSION,
            "kind": _name_of(_EVENTS, event),
            "of": _tag_of(event),
            "at": logged.create_time,
            "body": event,
        }
    )


def decode_event(sequence: int, text: str) -> LoggedEvent:
    """Return the event that `text` holds.

    Raises:
        InternalError: it is no such text.
        LaterVersionError: a later release wrote it.
    """
    row = _row(text)
    try:
        read = _reader(_EVENTS[row["kind"]])
        event: Event = read(row["body"], row["of"])
        return LoggedEvent(sequence=sequence, create_time=datetime.fromisoformat(row["at"]), event=event)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        kind = row.get("kind")
        known = kind if isinstance(kind, str) and kind in _EVENTS else "unknown"
        # From None, here and below: a traceback would quote what is stored.
        raise InternalError(
            f"a stored event cannot be read ({type(error).__name__}): sequence {sequence}, kind {known}"
        ) from None


def encode_execution(execution: Execution) -> str:
    """Return an execution as JSON text. Raises as `encode_event`."""
    return _json({"v": VERSION, "body": execution})


def decode_execution(text: str) -> Execution:
    """Return the execution that `text` holds. Raises as `decode_event`."""
    row = _row(text)
    try:
        execution: Execution = _reader(Execution)(row["body"], "")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InternalError(f"a stored execution cannot be read ({type(error).__name__})") from None
    return execution


def detail_json(detail: StepDetail) -> str:
    """Return a step's detail as it is kept: two that are kept alike are the same step. Raises as `encode_event`."""
    return _json({"of": _name_of(_DETAILS, detail), "body": detail})


def detail_digest(detail: StepDetail) -> bytes:
    """Return 128 bits that tell a step from others that are not kept alike. Raises as `encode_event`."""
    return hashlib.blake2b(detail_json(detail).encode(), digest_size=16).digest()


def _json(row: Mapping[str, object]) -> str:
    try:
        return pydantic_core.to_json(row, inf_nan_mode="constants", fallback=_plain).decode()
    except (pydantic_core.PydanticSerializationError, ValueError, RecursionError) as error:
        raise InternalError("an event holds what cannot be kept as JSON in UTF-8") from error


def _plain(value: object) -> object:
    """Return a mapping that is no dict, or a sequence that is no list, as one that JSON has."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise ValueError(type(value).__name__)


def _row(text: str) -> dict[str, Any]:
    """Return the outer object of `text` if it has a version that this release reads."""
    try:
        row = pydantic_core.from_json(text)
    except ValueError:
        raise InternalError("a stored row is no JSON") from None
    version = row.get("v") if isinstance(row, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise LaterVersionError(
            f"a stored row has version {shown(version)}, this release reads {VERSION}",
            remedy="Run the release that wrote it, or a later one.",
        )
    if version != VERSION:
        raise InternalError("a stored row is of no version that there was")
    return typing.cast("dict[str, Any]", row)


def _tag_of(event: Event) -> str:
    """Return the kind of the step or metrics in `event`; empty where it has none."""
    if isinstance(event, Iteration):
        return _name_of(_DETAILS, event.detail)
    if isinstance(event, Result) and event.metrics.strategy_specific is not None:
        return _name_of(_METRICS, event.metrics.strategy_specific)
    return ""


def _name_of(names: Mapping[str, type], value: object) -> str:
    for name, kind in names.items():
        if type(value) is kind:
            return name
    raise InternalError(f"{type(value).__name__} is of no kind that can be kept")


@cache
def _reader(kind: type) -> _Reader:
    """Return what makes a `kind` of its JSON object; the second argument is the tag of the row."""
    hints = typing.get_type_hints(kind, localns={"datetime": datetime})
    readers = [(field.name, _value_reader(hints[field.name])) for field in fields(kind)]

    def read(body: Any, tag: str) -> Any:  # noqa: ANN401 - JSON in, any kind out
        return kind(
            **{
                name: value if reader is None or value is None else reader(value, tag)
                for name, reader in readers
                if (value := body.get(name, ...)) is not ...
            }
        )

    return read


def _value_reader(hint: Any) -> _Reader | None:  # noqa: ANN401 - a type hint is any object
    """Return what makes a value of type `hint`; None where JSON has it as it is."""
    if hint in _TAGGED:
        kinds = _TAGGED[hint]
        return lambda body, tag: _reader(kinds[tag])(body, tag)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in {types.UnionType, typing.Union}:
        return _optional_reader(arguments)
    if origin is Sequence:
        item = _value_reader(arguments[0])
        return lambda body, tag: tuple(body if item is None else [item(value, tag) for value in body])
    if not isinstance(hint, type):
        return None
    if is_dataclass(hint):
        return _reader(hint)
    return _named_reader(hint)


def _named_reader(kind: type) -> _Reader | None:
    """Return what makes a time or a member of an enumeration of its text."""
    if kind is datetime:
        return lambda body, _tag: datetime.fromisoformat(body)
    return (lambda body, _tag: kind(body)) if issubclass(kind, Enum) else None


def _optional_reader(members: Sequence[object]) -> _Reader | None:
    """Return the reader of the one member besides None, or of a union that is told apart by the tag."""
    rest = [member for member in members if member is not type(None)]
    for union, kinds in _TAGGED.items():
        if set(rest) == set(typing.get_args(union)):
            return lambda body, tag: _reader(kinds[tag])(body, tag)
    return _value_reader(rest[0])
