"""What events hold: their content removed for a store that must not keep any, and their size in memory.

Without content, numbers, names and the outcome stay, and texts go. The declaration of a field says whether it is
content (`types.kinds`): every text is, unless declared otherwise. Sizes suffice for a limit, not for accounting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import cache
from typing import Any, TypeVar

from reasond_server.eventlog.store import Entry, Record
from reasond_server.types import Event
from reasond_server.types.kinds import Field, build_reader, list_fields

EventT = TypeVar("EventT", bound="Event")
ValueT = TypeVar("ValueT")


def redact(event: EventT) -> EventT:
    """Return `event` without anything that the caller, the model or a tool wrote."""
    return _redact(event)


def _redact(value: ValueT) -> ValueT:
    """Return a dataclass without its content; the same object if it declares none."""
    kind: type = type(value)
    changes, others = _plan(kind)
    if others:
        changes = changes | {field.name: _choose_replacement(field, getattr(value, field.name)) for field in others}
    return replace(value, **changes) if changes else value  # type: ignore[type-var]  # every kind is a dataclass


@cache
def _plan(cls: type) -> tuple[dict[str, Any], Sequence[Field]]:
    """Return the fixed replacements of fields whose value does not matter, and the other fields with content."""
    content = [field for field in list_fields(cls) if field.is_content]
    texts = {field.name: field.instead or "" for field in content if field.type is str and not _may_lack(field)}
    return texts, tuple(field for field in content if field.name not in texts)


def _may_lack(field: Field) -> bool:
    return field.is_optional or field.is_sequence


def _choose_replacement(field: Field, found: object) -> object:
    """Return the replacement for the value of `field`."""
    if found is None:
        return None
    if field.instead is not None:
        return field.instead
    if isinstance(found, str):
        return ""
    if isinstance(found, Mapping):
        return {}
    if isinstance(found, Sequence):
        return tuple(_redact(one) for one in found) if is_dataclass(field.type) else ()
    return _redact(found)


# The bytes of an entry without its texts: a few nested dataclasses with their fields.
_BYTES_PER_ENTRY = 512
# The bytes of any value of free JSON: its object, and its slot in a list or its half of a slot in a dict.
_BYTES_PER_VALUE = 64
_NUMBERS = frozenset({int, float, bool})


def estimate_size(entry: Entry) -> int:
    """Return the approximate size of an entry in memory, in bytes."""
    if type(entry) is Record:
        return _BYTES_PER_ENTRY + (len(entry.key) + len(entry.body)) * 4
    return _BYTES_PER_ENTRY + _estimate_content(entry.event)


def _estimate_content(value: object) -> int:
    """Return an upper bound of the bytes of all texts, and of all free JSON, below `value`."""
    kind: type = type(value)
    read = _build_field_reader(kind)
    if read is None:
        return _estimate_plain_content(value)
    size = 0
    for found in read(value):
        # Most fields are texts or empty; handling them here, without another call, takes half as long.
        if type(found) is str:
            size += len(found) * 4
        elif found:
            size += _estimate_content(found)
    return size


def _estimate_plain_content(value: object) -> int:
    if isinstance(value, str):
        return len(value) * 4
    if isinstance(value, Mapping):
        size = 2 * _BYTES_PER_VALUE * len(value)
        # As above: every step of a third party's strategy passes here.
        for key, each in value.items():
            size += len(key) * 4
            if type(each) is str:
                size += len(each) * 4
            elif each is not None and type(each) not in _NUMBERS:
                size += _estimate_content(each)
        return size
    return sum(_BYTES_PER_VALUE + _estimate_content(each) for each in value) if isinstance(value, Sequence) else 0


@cache
def _build_field_reader(kind: type) -> Callable[[object], Sequence[object]] | None:
    """Return a function to the fields of a dataclass whose size the type does not limit; None for other classes.

    For an event only the fields with content count: all its other fields are short.
    """
    if not is_dataclass(kind):
        return None
    is_event = issubclass(kind, Event)
    fields = list_fields(kind)
    return build_reader([field.name for field in fields if (field.is_content if is_event else field.is_bulky)])
