"""Declared kinds as JSON: their fields by name, in the declared order.

An enumeration is a lower-case word, a duration is in whole milliseconds (`_ms`), a percentage (`_pct`) has one decimal
as in seed 001, and an unknown value is null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

from reasond_server.types.kinds import EVENTS, METRICS, STEPS, Field, fields_of

JsonObject = dict[str, Any]


class _Writers(dict[type, Callable[[Any], JsonObject]]):
    """The writer function of each class, compiled when it is first needed."""

    def __missing__(self, cls: type) -> Callable[[Any], JsonObject]:
        found = self[cls] = _compile(cls)
        return found


WRITERS: Final = _Writers()
"""Functions that convert values of a class to JSON; code that runs in every call uses them without `kind_json`."""


def kind_json(value: object) -> JsonObject:
    """Return a value of a declared kind, or of a dataclass within one, as JSON."""
    return WRITERS[value.__class__](value)


def timestamp(moment: datetime) -> str:
    """Return `moment` by RFC 3339, in UTC with the suffix Z."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def milliseconds(seconds: float) -> int:
    """Return `seconds` in whole milliseconds, rounded."""
    return round(seconds * 1000)


def _compile(cls: type) -> Callable[[Any], JsonObject]:
    """Return a function as fast as a hand-written one; its source contains only names of the server's own classes."""
    made: Callable[[Any], JsonObject] = eval(f"lambda value: {_object(cls, 'value')}", {"timestamp": timestamp})  # noqa: S307 - no text from outside, as in dataclasses
    return made


def _object(cls: type, value: str) -> str:
    """Return the source of the JSON object for an instance of `cls`, which the source `value` evaluates to."""
    event = EVENTS.kinds.get(cls)
    kind = event or STEPS.kinds.get(cls) or METRICS.kinds.get(cls)
    if kind is not None and kind.body:
        return f"dict({value}.{kind.body})"
    fields = {field.name: field for field in fields_of(cls)}
    names = kind.keys if kind is not None and kind.keys else tuple(fields)
    if event is not None:
        # Their keys are those of the wire; fields without a key are only stored.
        names = [_field_name(name, fields) for name in names]
    elif missing := fields.keys() - set(names):
        raise TypeError(f"{cls.__name__} declares keys without {sorted(missing)}")
    return "{" + ", ".join(_member(name, fields.get(name), f"{value}.{name}") for name in names) + "}"


def _field_name(key: str, fields: Mapping[str, Field]) -> str:
    """Return the name of the field that the key of an event shows: a duration is `x_ms` for the field `x_s`."""
    seconds = f"{key.removesuffix('_ms')}_s"
    return seconds if key not in fields and seconds in fields else key


def _member(name: str, field: Field | None, value: str) -> str:
    """Return the source of a key with its value; a computed one (`field` is None) is converted only if a percentage."""
    if name.endswith("_pct"):
        # Adding zero turns -0.0 into 0.0.
        return f"{name!r}: round({value}, 1) + 0.0"
    if field is None:
        return f"{name!r}: {value}"
    if field.type is float and name.endswith("_s"):
        return f"{name.removesuffix('_s') + '_ms'!r}: round({value} * 1000)"
    if field.is_sequence:
        return f"{field.wire_name!r}: [{_one(f'each_{name}', field.type)} for each_{name} in {value}]"
    shown = _one(value, field.type)
    shown = f"None if {value} is None else {shown}" if field.is_optional and shown != value else shown
    return f"{field.wire_name!r}: {shown}"


def _one(value: str, kind: type) -> str:
    if is_dataclass(kind):
        return _object(kind, value)
    if issubclass(kind, Enum):
        return f"{value}.value"
    if kind is datetime:
        return f"timestamp({value})"
    return f"dict({value})" if kind is Mapping else value
