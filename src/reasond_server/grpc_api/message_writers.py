"""Writes values of declared kinds into their messages, with one function for each class, compiled from declarations.

Every event passes through this module. The compiled code equals handwritten code: it writes one field after the other
and fills nested messages in place, which takes a quarter of the time of building and copying them. Empty values are not
written, because a test is faster than a write and the message is the same. A field of a message is written from the
field or property of the class with the same name (`types.kinds` declares the names of durations and JSON), a oneof from
the field of a family. Also here: times, and google.protobuf.Struct <-> JSON objects, at most 16 levels deep, because
Python cannot parse deeper ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2
from google.protobuf.message import Message

from reasond_server.errors.base import InternalError, Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.requests.payloads import MAX_DEPTH
from reasond_server.requests.task_checks import MAX_CONFIG_VALUES
from reasond_server.types.kinds import Field, KindFamily, list_fields

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, OneofDescriptor

    from reasond_server.types import Json

_MAX_EXACT: Final = 2**53


def read_struct(struct: struct_pb2.Struct, *, path: str) -> dict[str, Any]:
    """Return the JSON object in `struct`; doubles without a fraction become whole numbers.

    Raises:
        InvalidRequestError: it nests too deeply, has too many values, a number that is not valid in JSON or an
            empty value; the violation's field starts with `path`.
    """
    # A message of 4 MiB can hold a million values, which would take seconds to convert; so they are counted here.
    room = iter(range(MAX_CONFIG_VALUES))
    return {key: _read_value(value, f"{path}.{key}", 2, room) for key, value in struct.fields.items()}


def _read_value(value: struct_pb2.Value, path: str, depth: int, room: Iterator[int]) -> Any:  # noqa: ANN401 - any JSON value
    if next(room, None) is None:
        root = ".".join(path.split(".", 2)[:2])
        raise InvalidRequestError.of(Violation(field=root, description=f"must hold at most {MAX_CONFIG_VALUES} values"))
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        return _number(value.number_value, path)
    if kind in {"string_value", "bool_value"}:
        return getattr(value, kind)
    if kind == "null_value":
        return None
    if kind is None:
        raise InvalidRequestError.of(Violation(field=path, description="must have a value"))
    if depth > MAX_DEPTH:
        raise InvalidRequestError.of(Violation(field=path, description=f"must not nest deeper than {MAX_DEPTH} levels"))
    if kind == "list_value":
        items = enumerate(value.list_value.values)
        return [_read_value(item, f"{path}[{index}]", depth + 1, room) for index, item in items]
    fields = value.struct_value.fields
    return {key: _read_value(item, f"{path}.{key}", depth + 1, room) for key, item in fields.items()}


def _number(number: float, path: str) -> float:
    if not math.isfinite(number):
        raise InvalidRequestError.of(Violation(field=path, description=f"must be a finite number, not {number}"))
    return int(number) if number.is_integer() and abs(number) <= _MAX_EXACT else number


def fill_struct(struct: struct_pb2.Struct, data: Json) -> None:
    """Write `data` into a Struct; a number that is not finite becomes null, because JSON cannot represent it.

    Raises:
        InternalError: a third-party strategy reported a value that is not JSON, or nests too deeply.
    """
    _fill_struct(struct, data, 1)


def _fill_struct(struct: struct_pb2.Struct, data: Json, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InternalError(f"a strategy reported an object that nests deeper than {MAX_DEPTH} levels")
    for key, item in data.items():
        _fill_value(struct.fields[key], item, depth)


def _fill_value(value: struct_pb2.Value, item: object, depth: int) -> None:
    match item:
        case None:
            value.null_value = struct_pb2.NULL_VALUE
        case bool():
            value.bool_value = item
        case int() | float():
            _fill_number(value, item)
        case str():
            value.string_value = item
        case Mapping():
            value.struct_value.SetInParent()
            _fill_struct(value.struct_value, item, depth + 1)
        case Sequence():
            _fill_list(value.list_value, item, depth + 1)
        case _:
            raise InternalError(f"a strategy reported {show(item)}, which is no JSON value")


def _fill_number(value: struct_pb2.Value, number: float) -> None:
    try:
        is_finite = math.isfinite(number)
    except OverflowError:
        is_finite = False
    if is_finite:
        value.number_value = number
    else:
        value.null_value = struct_pb2.NULL_VALUE


def _fill_list(values: struct_pb2.ListValue, items: Sequence[object], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise InternalError(f"a strategy reported a list that nests deeper than {MAX_DEPTH} levels")
    values.SetInParent()
    for item in items:
        _fill_value(values.values.add(), item, depth)


_NANOS: Final = 10**9
_DAY_S: Final = 86_400
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def timestamp(moment: datetime) -> timestamp_pb2.Timestamp:
    """Return an aware datetime as a Timestamp."""
    stamp = timestamp_pb2.Timestamp()
    fill_timestamp(stamp, moment)
    return stamp


def fill_timestamp(message: timestamp_pb2.Timestamp, moment: datetime) -> None:
    """Write an aware datetime into a Timestamp."""
    since = moment - _EPOCH
    message.seconds = since.days * _DAY_S + since.seconds
    message.nanos = since.microseconds * 1000


def fill_duration(message: duration_pb2.Duration, seconds: float) -> None:
    """Write seconds into a Duration, rounded to nanoseconds; a negative time, from differing clocks, becomes 0."""
    nanos = round(seconds * _NANOS)
    if nanos >= _NANOS:
        message.seconds, nanos = divmod(nanos, _NANOS)
    # Written even if it is 0, so that the message is present.
    message.nanos = max(0, nanos)


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
