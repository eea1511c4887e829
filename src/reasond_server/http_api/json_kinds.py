"""Declared kinds as JSON: their fields by name, in the declared order.

An enumeration is a lower-case word, a duration is in whole milliseconds (`_ms`), a percentage (`_pct`) has one decimal
as in seed 001, and an unknown value is null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from datetime import UTC, datetime
from enum import Enum
from operator import attrgetter
from typing import Any, Final, TypeAlias

from reasond_server.types.kinds import EVENTS, METRICS, STEPS, Field, build_reader, list_fields

JsonObject = dict[str, Any]
_Convert: TypeAlias = Callable[[Any], Any]

_READ_VALUE: Final = attrgetter("value")


class _Writers(dict[type, Callable[[Any], JsonObject]]):
    """The writer function of each class, made when it is first needed."""

    def __missing__(self, cls: type) -> Callable[[Any], JsonObject]:
        found = self[cls] = _make_writer(cls)
        return found


WRITERS: Final = _Writers()
"""Functions that convert values of a class to JSON, for code that runs in every call and skips `build_kind_json`."""


def build_kind_json(value: object) -> JsonObject:
    """Return a value of a declared kind, or of a dataclass within one, as JSON."""
    return WRITERS[value.__class__](value)


def timestamp(moment: datetime) -> str:
    """Return `moment` by RFC 3339, in UTC with the suffix Z."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def milliseconds(seconds: float) -> int:
    """Return `seconds` in whole milliseconds, rounded."""
    return round(seconds * 1000)


def _make_writer(cls: type) -> Callable[[Any], JsonObject]:
    """Return the function that writes a `cls`."""
    event = EVENTS.kinds.get(cls)
    kind = event or STEPS.kinds.get(cls) or METRICS.kinds.get(cls)
    if kind is not None and kind.body:
        body = kind.body
        return lambda value: dict(getattr(value, body))
    fields = {field.name: field for field in list_fields(cls) if not field.is_stored_only}
    names = kind.keys if kind is not None and kind.keys else tuple(fields)
    if event is not None:
        # Their keys are those of the wire; fields without a key are only stored.
        names = [_field_name(name, fields) for name in names]
    elif missing := fields.keys() - set(names):
        raise TypeError(f"{cls.__name__} declares keys without {sorted(missing)}")
    read, members = build_reader(names), [_member(name, fields.get(name)) for name in names]
    return lambda value: {
        key: found if convert is None or found is None else convert(found)
        for (key, convert), found in zip(members, read(value), strict=True)
    }


def _field_name(key: str, fields: Mapping[str, Field]) -> str:
    """Return the name of the field that the key of an event shows: a duration is `x_ms` for the field `x_s`."""
    seconds = f"{key.removesuffix('_ms')}_s"
    return seconds if key not in fields and seconds in fields else key


def _member(name: str, field: Field | None) -> tuple[str, _Convert | None]:
    """Return the key of a field with what converts its value; a computed one (`field` is None) may be a percentage."""
    if name.endswith("_pct"):
        return name, _percentage
    if field is None:
        return name, None
    if field.type is float and name.endswith("_s"):
        return f"{name.removesuffix('_s')}_ms", milliseconds
    one = _converter(field.type)
    if not field.is_sequence:
        return field.wire_name, one
    return field.wire_name, list if one is None else lambda items: [one(item) for item in items]


def _converter(kind: type) -> _Convert | None:
    """Return what converts a value of type `kind`; None if it is JSON already."""
    if is_dataclass(kind):
        return WRITERS[kind]
    if issubclass(kind, Enum):
        return _READ_VALUE
    if kind is datetime:
        return timestamp
    return dict if kind is Mapping else None


def _percentage(value: float) -> float:
    # Adding zero turns -0.0 into 0.0.
    return round(value, 1) + 0.0
