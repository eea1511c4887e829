"""Removes the content of events for a store that must not keep any: numbers, names and the outcome stay, texts go.

The declaration of a field says whether it is content (`types.kinds`): every text is, unless declared otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from reasond_server.types.kinds import Field, list_fields

if TYPE_CHECKING:
    from reasond_server.types import Event

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
