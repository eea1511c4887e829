"""Writes values of declared kinds into their messages, with one function for each class, compiled from declarations.

Every event passes through this module. The compiled code equals handwritten code: it writes one field after the other
and fills nested messages in place, which takes a quarter of the time of building and copying them. Empty values are not
written, because a test is faster than a write and the message is the same. A field of a message is written from the
field or property of the class with the same name (`types.kinds` declares the names of durations and JSON), a oneof from
the field of a family.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from google.protobuf.message import Message

from reasond_server.grpc_api.structs import fill_struct
from reasond_server.grpc_api.times import fill_duration, fill_timestamp
from reasond_server.types.kinds import Field, KindFamily, list_fields

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, OneofDescriptor

MessageT = TypeVar("MessageT", bound=Message)
Filler = Callable[[Any, Any, bool], None]
"""Writes a value (second) into a message (first); without content if the third is false."""

_FILLED_BY_SERVICES: Final = frozenset({"reasond.v1.Reasoning.trace"})
_DURATION: Final = "google.protobuf.Duration"
_TIMESTAMP: Final = "google.protobuf.Timestamp"
_STRUCT: Final = "google.protobuf.Struct"


def write_json(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """Return compact JSON text with sorted keys."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


class Fillers(dict[tuple[type, Any], Filler]):
    """Fillers by the class of the value and the descriptor of the message, each made when it is first used."""

    def __missing__(self, kind: tuple[type, Any]) -> Filler:
        """Make the filler of `kind` and keep it."""
        cls, descriptor = kind
        source = _Source()
        source.write_fields(cls, descriptor, "message", "value", is_shown=False)
        found = self[kind] = source.compile(cls.__name__)
        return found


_FILLERS: Final = Fillers()


def fill(message: MessageT, value: object, *, has_content: bool = True) -> MessageT:
    """Write `value` into a new message, by the declaration of its kind; return the message.

    Without `has_content` texts and free JSON are left out.
    """
    _FILLERS[value.__class__, message.DESCRIPTOR](message, value, has_content)
    return message


class Alternatives(dict[type, Filler]):
    """The functions that write each kind of a family into the oneof of the family; compiled on first use."""

    def __init__(self, family: KindFamily, oneof: OneofDescriptor) -> None:
        super().__init__()
        self._family = family
        self._fields = {field.name: field for field in oneof.fields}

    def __missing__(self, cls: type) -> Filler:
        kind = self._family.kinds.get(cls)
        if kind is None:
            raise TypeError(f"{cls.__name__} is no kind of {self._family.noun}")
        source = _Source()
        source.add(f"part = message.{kind.wire_tag}")
        if kind.body:
            source.add("part.SetInParent()")
            source.add(f"if has_content: fill_struct(part, value.{kind.body})")
        else:
            source.write_fields(cls, _find_message(self._fields[kind.wire_tag]), "part", "value", is_shown=True)
        found = self[cls] = source.compile(cls.__name__)
        return found


class _Words(dict[str, int]):
    """The numbers of an enumeration by their words; an unknown word maps to INTERNAL, if that exists."""

    def __missing__(self, word: str) -> int:
        return self.get("INTERNAL", 0)


class _Source:
    """The source lines of one function under construction, and the names that they use."""

    def __init__(self) -> None:
        self._lines = ["def fill(message, value, has_content):"]
        self._indent = "    "
        self._names: dict[str, object] = {
            "fill_duration": fill_duration,
            "fill_timestamp": fill_timestamp,
            "fill_struct": fill_struct,
            "json_text": write_json,
        }
        self._parts = 0

    def add(self, line: str) -> None:
        """Add a line."""
        self._lines.append(self._indent + line)

    def compile(self, name: str) -> Filler:
        """Return the function."""
        code = compile("\n".join([*self._lines, "    return"]), f"<filler of {name}>", "exec")
        exec(code, self._names)  # noqa: S102 - no external text; dataclasses create their methods in the same way
        filler: Filler = self._names["fill"]  # type: ignore[assignment]  # the line that defines it is above
        return filler

    def write_fields(self, cls: type, descriptor: Descriptor, target: str, value: str, *, is_shown: bool) -> None:
        """Add the lines that write `value` into `target`; with `is_shown`, `target` is present even if it is empty."""
        known = {field.wire_name: field for field in list_fields(cls)}
        if is_shown and not self._shows_itself(descriptor, known):
            self.add(f"{target}.SetInParent()")
            is_shown = False
        for oneof in descriptor.oneofs:
            if field := known.get(oneof.name):
                self._write_alternative(field, oneof, target, f"{value}.{field.name}")
        for each in descriptor.fields:
            if each.full_name in _FILLED_BY_SERVICES or (each.containing_oneof and each.containing_oneof.name in known):
                continue
            name, field = _find_source(cls, each, known)
            is_written = self._write_field(each, field, f"{target}.{each.name}", f"{value}.{name}", is_shown=is_shown)
            is_shown = is_shown and not is_written

    def _shows_itself(self, descriptor: Descriptor, known: Mapping[str, Field]) -> bool:
        """Return whether writing the first field, even if empty, makes the message present."""
        first = descriptor.fields[0] if descriptor.fields else None
        field = known.get(first.name) if first is not None else None
        return field is not None and first is not None and first.message_type is None and not _is_absent(field)

    def _write_field(
        self, each: FieldDescriptor, field: Field | None, target: str, value: str, *, is_shown: bool
    ) -> bool:
        """Add the lines of one field; return whether they always write it, whatever its value is."""
        if each.message_type is not None:
            self._write_message(each, field, target, value)
            return False
        return self._write_scalar(each, field, target, value, is_shown=is_shown)

    def _write_scalar(
        self, each: FieldDescriptor, field: Field | None, target: str, value: str, *, is_shown: bool
    ) -> bool:
        is_content = field is not None and field.is_content
        if field is not None and field.is_sequence:
            self.add(f"if {'has_content and ' if is_content else ''}{value}: {target}.extend({value})")
            return False
        if each.enum_type is not None:
            numbers = self._name(_numbers(each.enum_type, field))
            self.add(f"{target} = {numbers}[{value}]")
            return True
        if field is not None and field.type is Mapping:
            self.add(f"{target} = json_text({value})" + (" if has_content else ''" if is_content else ""))
            return True
        if field is not None and field.is_optional:
            self.add(f"if (found := {value}) is not None: {target} = found")
            return False
        if is_shown or each.type == each.TYPE_DOUBLE:
            self.add(f"{target} = {value}" + (" if has_content else ''" if is_content else ""))
            return True
        self.add(f"if {'has_content and ' if is_content else ''}(found := {value}): {target} = found")
        return False

    def _write_message(self, each: FieldDescriptor, field: Field | None, target: str, value: str) -> None:
        if field is None:
            raise TypeError(f"{each.full_name} is computed, which messages cannot be")
        if field.is_sequence:
            part, one = self._part(), self._part()
            self.add(f"for {one} in {value}:")
            self._indent += "    "
            self.add(f"{part} = {target}.add()")
            self.write_fields(field.type, _find_message(each), part, one, is_shown=False)
            self._indent = self._indent[4:]
            return
        guard = f"if {value} is not None: " if field.is_optional else ""
        known = {_DURATION: "fill_duration", _TIMESTAMP: "fill_timestamp", _STRUCT: "fill_struct"}
        if fill := known.get(_find_message(each).full_name):
            self.add(f"{guard}{fill}({target}, {value})")
            return
        part, inner = self._part(), self._part()
        self.add(f"{inner} = {value}")
        if field.is_optional:
            self.add(f"if {inner} is not None:")
            self._indent += "    "
        self.add(f"{part} = {target}")
        self.write_fields(field.type, _find_message(each), part, inner, is_shown=True)
        if field.is_optional:
            self._indent = self._indent[4:]

    def _write_alternative(self, field: Field, oneof: OneofDescriptor, target: str, value: str) -> None:
        if field.family is None:
            raise TypeError(f"{oneof.full_name} needs a kind of a family")
        fillers = self._name(Alternatives(field.family, oneof))
        guard = f"if {value} is not None: " if field.is_optional else ""
        self.add(f"{guard}{fillers}[{value}.__class__]({target}, {value}, has_content)")

    def _part(self) -> str:
        self._parts += 1
        return f"part_{self._parts}"

    def _name(self, value: object) -> str:
        name = f"{type(value).__name__}_{len(self._names)}"
        self._names[name] = value
        return name


def _find_source(cls: type, each: FieldDescriptor, known: Mapping[str, Field]) -> tuple[str, Field | None]:
    """Return the name of the attribute for a field of a message, and its `Field`; None if it is a property."""
    for name in (each.name, f"{each.name}_s", each.name.removesuffix("_json")):
        if field := known.get(name):
            return field.name, field
    if isinstance(getattr(cls, each.name, None), property):
        return each.name, None
    raise TypeError(f"{cls.__name__} has nothing for {each.full_name}")


def _find_message(each: FieldDescriptor) -> Descriptor:
    if each.message_type is None:
        raise TypeError(f"{each.full_name} is no message")
    return each.message_type


def _is_absent(field: Field) -> bool:
    return field.is_optional or field.is_sequence or is_dataclass(field.type) or field.family is not None


def _numbers(enum: EnumDescriptor, field: Field | None) -> dict[Any, int]:
    """Return the number of each member, or of each word if the class has strings; None maps to the first."""
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
    if field is None or not issubclass(field.type, Enum):
        return _Words({each.name.removeprefix(prefix): each.number for each in enum.values})
    return {None: 0} | {each: enum.values_by_name[f"{prefix}{each.name}"].number for each in field.type}
