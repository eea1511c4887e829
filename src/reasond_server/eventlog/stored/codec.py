"""Events and executions as compact JSON with a version, for every store that keeps text.

A row is `{"v": 1, "kind": "iteration", "of": "thought", "at": "2026-…", "body": {…}}`: `kind` names the event, `of`
the kind of its step or metrics. Fields that a later release added with a default may be missing or unknown; a change of
the meaning of existing fields gets a new version. Errors about rows that cannot be read are logged, and therefore name
only the sequence, kind and version of the row.
"""

from __future__ import annotations

import hashlib
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache
from typing import Any, Final, TypeAlias, TypeVar

import pydantic_core
from pydantic import TypeAdapter

from reasond_server.errors.base import InternalError, show
from reasond_server.types import Event, Execution, Json, LoggedEvent, StepDetail
from reasond_server.types.executions import ModelCall
from reasond_server.types.kinds import EVENTS, STEPS, Field, KindFamily, list_fields

VERSION: Final = 1
_NO_SESSION: Final = ',"session_id":""'

ValueT = TypeVar("ValueT")
_Reader: TypeAlias = "Callable[[Any, str], Any]"


class LaterVersionError(InternalError):
    """A later release wrote a row: it is not damaged, but this release cannot read it."""


def encode_event(logged: LoggedEvent) -> str:
    """Return an event as JSON text, without its sequence.

    Raises:
        InternalError: it holds a value that JSON or UTF-8 cannot represent.
    """
    event = logged.event
    tag, inner, at = _find_tag(EVENTS, event), _find_inner_tag(event), _write_json(logged.create_time)
    return f'{{"v":{VERSION},"kind":"{tag}","of":"{inner}","at":{at},"body":{_write(event)}}}'


def decode_event(sequence: int, text: str) -> LoggedEvent:
    """Return the event that `text` holds.

    Raises:
        InternalError: `text` is not an encoded event.
        LaterVersionError: a later release wrote it.
    """
    row = _read_row(text)
    try:
        read = _build_reader(_find_event_class(row["kind"]))
        event: Event = read(row["body"], row["of"])
        return LoggedEvent(sequence=sequence, create_time=datetime.fromisoformat(row["at"]), event=event)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        kind = row.get("kind")
        known = kind if isinstance(kind, str) and kind in EVENTS.classes else "unknown"
        # From None, here and below: a traceback would quote stored content.
        raise InternalError(
            f"a stored event cannot be read ({type(error).__name__}): sequence {sequence}, kind {known}"
        ) from None


def encode_execution(execution: Execution) -> str:
    """Return an execution as JSON text, without the session if it has none. Raises as `encode_event`."""
    text = f'{{"v":{VERSION},"body":{_write(execution)}}}'
    # The quotes of a text in JSON are escaped, so only the field itself can match. `exclude` takes eight times as long.
    return text if execution.session_id else text.replace(_NO_SESSION, "", 1)


def decode_execution(text: str) -> Execution:
    """Return the execution that `text` holds. Raises as `decode_event`."""
    return _decode_value(Execution, text, noun="execution")


def encode_call(call: ModelCall) -> str:
    """Return a model call as JSON text. Raises as `encode_event`."""
    return f'{{"v":{VERSION},"body":{_write(call)}}}'


def decode_call(text: str) -> ModelCall:
    """Return the model call that `text` holds. Raises as `decode_event`."""
    return _decode_value(ModelCall, text, noun="model call")


def detail_json(detail: StepDetail) -> str:
    """Return a step's detail as it is stored; equal texts mean the same step. Raises as `encode_event`."""
    return _write_json({"of": _find_tag(STEPS, detail), "body": detail})


def detail_digest(detail: StepDetail) -> bytes:
    """Return a digest of 128 bits of the stored form of a step's detail. Raises as `encode_event`."""
    return hashlib.blake2b(detail_json(detail).encode(), digest_size=16).digest()


def encode_state(state: Json) -> str:
    """Return the state of a session as JSON text. Raises as `encode_event`."""
    return _write_json(state)


def decode_state(text: str) -> Json:
    """Return the state of a session that `text` holds.

    Raises:
        InternalError: `text` is no JSON object.
    """
    try:
        state = pydantic_core.from_json(text)
    except ValueError:
        raise InternalError("a stored session is no JSON") from None
    if not isinstance(state, dict):
        raise InternalError("a stored session is no JSON object")
    return state


def _decode_value(kind: type[ValueT], text: str, *, noun: str) -> ValueT:
    row = _read_row(text)
    try:
        known: type = kind
        found: ValueT = _build_reader(known)(row["body"], "")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InternalError(f"a stored {noun} cannot be read ({type(error).__name__})") from None
    return found


def _write_json(row: object) -> str:
    try:
        return pydantic_core.to_json(row, inf_nan_mode="constants", fallback=_convert_plain).decode()
    except (pydantic_core.PydanticSerializationError, ValueError, RecursionError) as error:
        raise InternalError("an event holds what cannot be kept as JSON in UTF-8") from error


def _write(value: object) -> str:
    """Return the dataclass `value` as JSON text.

    Raises:
        InternalError: it holds a value that JSON or UTF-8 cannot represent.
    """
    kind: type = value.__class__
    try:
        return _build_serializer(kind).to_json(value, fallback=_convert_plain, warnings=False).decode()
    except (pydantic_core.PydanticSerializationError, ValueError, RecursionError) as error:
        raise InternalError("an event holds what cannot be kept as JSON in UTF-8") from error


@cache
def _build_serializer(kind: type) -> pydantic_core.SchemaSerializer:
    """Return what writes a `kind` in a quarter of the time that `to_json` takes.

    It knows the types of the fields, so of a value whose type is derived from its field's it would write only a part;
    `_find_tag` refuses such a step and such metrics.
    """
    schema = TypeAdapter(kind).core_schema
    return pydantic_core.SchemaSerializer(schema, pydantic_core.CoreConfig(ser_json_inf_nan="constants"))


def _convert_plain(value: object) -> object:
    """Convert a mapping that is not a dict to a dict, and a sequence that is not a list to a list, for JSON."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise ValueError(type(value).__name__)


def _read_row(text: str) -> dict[str, Any]:
    """Return the outer object of `text`; raise an error if this release does not read its version."""
    try:
        row = pydantic_core.from_json(text)
    except ValueError:
        raise InternalError("a stored row is no JSON") from None
    version = row.get("v") if isinstance(row, dict) else None
    if isinstance(version, int) and version > VERSION:
        raise LaterVersionError(
            f"a stored row has version {show(version)}, this release reads {VERSION}",
            remedy="Run the release that wrote it, or a later one.",
        )
    if version != VERSION:
        raise InternalError("a stored row is of no version that there was")
    return typing.cast("dict[str, Any]", row)


def _find_tag(family: KindFamily, value: object) -> str:
    kind = family.kinds.get(value.__class__)
    if kind is None or not kind.is_logged:
        raise InternalError(f"{type(value).__name__} is of no kind that can be kept")
    return kind.tag


def _find_event_class(tag: str) -> type:
    cls = EVENTS.classes[tag]
    if not EVENTS.kinds[cls].is_logged:
        raise KeyError(tag)
    return cls


def _find_inner_tag(event: Event) -> str:
    """Return the tag of the step or metrics in `event`; empty if it has none."""
    value: object = event
    kind: type = type(event)
    *path, family = _find_path(kind) or (None,)
    for name in path:
        value = getattr(value, name)
    return "" if family is None or value is None else _find_tag(family, value)


@cache
def _find_path(kind: type) -> tuple[Any, ...]:
    """Return the field names from a `kind` to its value of another family, then that family; empty if there is none."""
    for field in list_fields(kind):
        if field.family is not None:
            return (field.name, field.family)
        if is_dataclass(field.type) and not field.is_sequence and (path := _find_path(field.type)):
            return (field.name, *path)
    return ()


@cache
def _build_reader(kind: type) -> _Reader:
    """Return the function that makes a `kind` from its JSON object; its second argument is the tag of the row."""
    readers = [(field.name, _build_field_reader(field)) for field in list_fields(kind)]

    def read(body: Any, tag: str) -> Any:  # noqa: ANN401 - JSON in, any kind out
        return kind(
            **{
                name: value if reader is None or value is None else reader(value, tag)
                for name, reader in readers
                if (value := body.get(name, ...)) is not ...
            }
        )

    return read


def _build_field_reader(field: Field) -> _Reader | None:
    """Return the function that makes the value of `field` from JSON; None if the JSON value is used as it is."""
    one = _build_value_reader(field.family, field.type)
    if not field.is_sequence:
        return one
    return lambda body, tag: tuple(body if one is None else [one(value, tag) for value in body])


def _build_value_reader(family: KindFamily | None, kind: type) -> _Reader | None:
    if family is not None:
        return lambda body, tag: _build_reader(family.classes[tag])(body, tag)
    if is_dataclass(kind):
        return _build_reader(kind)
    if kind is datetime:
        return lambda body, _tag: datetime.fromisoformat(body)
    return (lambda body, _tag: kind(body)) if issubclass(kind, Enum) else None
