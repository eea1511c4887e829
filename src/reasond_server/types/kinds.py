"""Declarations of kinds of steps, metrics and events; the codec, redaction and both wire formats derive from them.

A kind is a dataclass. Its fields are texts, numbers, enumerations, times, free JSON (`Json`), other dataclasses,
sequences of those, and at most one value of another family. Every text and all free JSON is content by default, and a
server that records no content does not store it. A field that is not content says so in its annotation (`Word`, or
`NOT_CONTENT` for JSON).

The wire formats use the name of the field with two exceptions: a duration `x_s` is `x` in protobuf and `x_ms` in JSON,
and free JSON `x` is JSON text `x_json` in protobuf.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import datetime
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Annotated, Any, Final, TypeVar

from reasond_server.types.values import value

ClassT = TypeVar("ClassT")


@value
class FieldOptions:
    """The annotation of a field: whether it is content, the value stored in its place, its name in the wire formats.

    A field that `is_stored_only` is in no wire format.
    """

    is_content: bool = True
    instead: Any = None
    wire_name: str = ""
    is_stored_only: bool = False


NOT_CONTENT: Final = FieldOptions(is_content=False)
Word = Annotated[str, NOT_CONTENT]
"""A text of the server's own, or an identifier: it is stored and shown even where content is not."""

JsonText = Annotated[str, FieldOptions(instead="{}")]
"""JSON as text."""


@value
class Kind:
    """The declaration of one kind.

    Attributes:
        tag: Its name in stores; also its name in a oneof of the proto and in JSON if `wire_tag` is empty.
        wire_tag: Its name in the wire formats.
        keys: The keys of its JSON in order, computed ones included; empty means all fields.
        body: The field of free JSON that represents the whole kind in the wire formats; may be empty.
        headline: The field whose text says what a step did.
        trace_type: The type of its item in a trace.
        is_logged: Whether the event is logged; other events are only streamed.
    """

    tag: str
    wire_tag: str = ""
    keys: Sequence[str] = ()
    body: str = ""
    headline: str = ""
    trace_type: str = ""
    is_logged: bool = True


class KindFamily:
    """A group of kinds that may stand in the same place: `classes` by tag, and `kinds`, the `Kind` of each class."""

    def __init__(self, noun: str) -> None:
        self.noun = noun
        self.classes: dict[str, type] = {}
        self.kinds: dict[type, Kind] = {}
        self.types: tuple[type, ...] = ()

    def declare(
        self,
        tag: str,
        *,
        wire_tag: str = "",
        keys: Sequence[str] = (),
        body: str = "",
        headline: str = "",
        trace_type: str = "",
        is_logged: bool = True,
    ) -> Callable[[type[ClassT]], type[ClassT]]:
        """Return a decorator that makes a dataclass a kind of this family; `Kind` explains the arguments.

        Raises:
            ValueError: the family already has this tag.
        """
        if tag in self.classes:
            raise ValueError(f"there are two kinds of {self.noun} with the tag {tag!r}")
        kind = Kind(
            tag=tag,
            wire_tag=wire_tag or tag,
            keys=keys,
            body=body,
            headline=headline,
            trace_type=trace_type or tag,
            is_logged=is_logged,
        )

        def add(cls: type[ClassT]) -> type[ClassT]:
            self.classes[tag] = cls
            self.kinds[cls] = kind
            self.types = tuple(self.kinds)
            return cls

        return add


STEPS: Final = KindFamily("step")
"""The details of a step."""

METRICS: Final = KindFamily("metrics")
"""The metrics that only one strategy reports."""

EVENTS: Final = KindFamily("event")
"""The events of logs and those that are only streamed; each kind of execution declares its own."""

_FAMILIES: Final = (STEPS, METRICS, EVENTS)


@value
class Field:
    """A field of a kind, or of a dataclass within one.

    `type` is the class of the value, or of each item of a sequence: `Mapping` for JSON, any of its classes for a
    family. `is_bulky` is true if the type does not bound the size: texts, JSON and sequences, at any depth.
    """

    name: str
    type: type
    family: KindFamily | None
    is_optional: bool
    is_sequence: bool
    is_content: bool
    is_bulky: bool
    instead: Any
    wire_name: str
    is_stored_only: bool


def build_reader(names: Sequence[str]) -> Callable[[object], Sequence[Any]]:
    """Return a function from an object to the values of its attributes `names`; one call reads all of them."""
    if not names:
        return lambda _value: ()
    read = attrgetter(*names)
    # With one name `attrgetter` returns the value alone.
    return read if len(names) > 1 else lambda value: (read(value),)


@cache
def list_fields(cls: type) -> tuple[Field, ...]:
    """Return the fields of a dataclass in the order of their declaration.

    Raises:
        TypeError: a field has a type that a kind may not hold.
    """
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple(_read_field(cls, each.name, hints[each.name]) for each in fields(cls))


def _read_field(cls: type, name: str, hint: Any) -> Field:  # noqa: ANN401 - an annotation is any object
    options = FieldOptions()
    hint, options = _split_options(hint, options)
    members = [each for each in _list_members(hint) if each is not types.NoneType]
    is_optional = len(members) < len(_list_members(hint))
    family = _find_family(members)
    if family is None:
        hint, options = _split_options(members[0], options)
    is_sequence = typing.get_origin(hint) is Sequence
    if is_sequence:
        hint, options = _split_options(typing.get_args(hint)[0], options)
    found = members[0] if family is not None else Mapping if typing.get_origin(hint) is Mapping else hint
    is_text = found in {str, Mapping}
    nested = list_fields(found) if family is None and is_dataclass(found) else None
    # Any other type could hold content that redaction would miss.
    if not (family or is_text or nested is not None or _is_plain(found)) or (family is None and len(members) > 1):
        raise TypeError(f"{cls.__name__}.{name} is of a type that no kind may hold")
    is_content = is_text and options.is_content
    return Field(
        name=name,
        type=found,
        family=family,
        is_optional=is_optional,
        is_sequence=is_sequence,
        is_content=is_content or family is not None or any(each.is_content for each in nested or ()),
        is_bulky=is_text or is_sequence or family is not None or any(each.is_bulky for each in nested or ()),
        instead=options.instead,
        wire_name=options.wire_name or name,
        is_stored_only=options.is_stored_only,
    )


def settle_sequences(event: ClassT) -> ClassT:
    """Return a kind, or a dataclass within one, with its sequences as tuples at all levels, as stores return it."""
    changed: dict[str, Any] = {}
    kind: type = type(event)
    for each in list_fields(kind):
        given = getattr(event, each.name)
        if each.is_sequence and given is not None:
            changed[each.name] = tuple(map(settle_sequences, given) if is_dataclass(each.type) else given)
        elif is_dataclass(given):
            changed[each.name] = settle_sequences(given)
    return replace(event, **changed) if changed else event  # type: ignore[type-var]  # known to be a dataclass


def _is_plain(found: object) -> bool:
    """Return whether values of this type never hold free text: numbers, times, members of enumerations."""
    return found in {int, float, bool, datetime} or (isinstance(found, type) and issubclass(found, Enum))


def _split_options(hint: Any, known: FieldOptions) -> tuple[Any, FieldOptions]:  # noqa: ANN401 - an annotation is any object
    """Return `hint` without its `FieldOptions`, and the treatment; `known` if `hint` has none."""
    if typing.get_origin(hint) is not Annotated:
        return hint, known
    bare, *said = typing.get_args(hint)
    return bare, next((each for each in said if isinstance(each, FieldOptions)), known)


def _list_members(hint: Any) -> tuple[Any, ...]:  # noqa: ANN401 - an annotation is any object
    """Return the alternatives of a union; for any other type, only that type."""
    return typing.get_args(hint) if typing.get_origin(hint) in {types.UnionType, typing.Union} else (hint,)


def _find_family(members: Sequence[Any]) -> KindFamily | None:
    """Return the family to which all members of a union belong."""
    return next((one for one in _FAMILIES if members and all(each in one.classes.values() for each in members)), None)
