"""Writes values of declared kinds into their messages, with one function for each class, made from its declaration.

Every event passes through this module. Nested messages are filled in place, which takes a quarter of the time of
building and copying them. Empty values are not written, because the message is the same. A field of a message is
written from the field or property of the class with the same name (`types.kinds` declares the names of durations and
JSON), a oneof from the field of a family. Also here: times, and google.protobuf.Struct <-> JSON objects, at most 16
levels deep, because Python cannot parse deeper ones.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeVar

from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2
from google.protobuf.message import Message

from reasond_server.errors.base import InternalError, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.requests.payloads import MAX_DEPTH
from reasond_server.requests.task_checks import MAX_CONFIG_VALUES
from reasond_server.types.kinds import Field, KindFamily, build_reader, list_fields

if TYPE_CHECKING:
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
        raise InvalidRequestError.at(root, f"must hold at most {MAX_CONFIG_VALUES} values")
    kind = value.WhichOneof("kind")
    if kind == "number_value":
        return _convert_number(value.number_value, path)
    if kind in {"string_value", "bool_value"}:
        return getattr(value, kind)
    if kind == "null_value":
        return None
    if kind is None:
        raise InvalidRequestError.at(path, "must have a value")
    if depth > MAX_DEPTH:
        raise InvalidRequestError.at(path, f"must not nest deeper than {MAX_DEPTH} levels")
    if kind == "list_value":
        items = enumerate(value.list_value.values)
        return [_read_value(item, f"{path}[{index}]", depth + 1, room) for index, item in items]
    fields = value.struct_value.fields
    return {key: _read_value(item, f"{path}.{key}", depth + 1, room) for key, item in fields.items()}


def _convert_number(number: float, path: str) -> float:
    if not math.isfinite(number):
        raise InvalidRequestError.at(path, f"must be a finite number, not {number}")
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


class Filler(Protocol):
    """A function that writes a value into a message, without texts and free JSON unless `has_content`."""

    def __call__(self, message: Any, value: Any, /, *, has_content: bool) -> None:  # noqa: ANN401 - of any class
        """Write `value` into `message`."""


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
        found = self[kind] = _make_filler(*kind)
        return found


_FILLERS: Final = Fillers()


def fill(message: MessageT, value: object, *, has_content: bool = True) -> MessageT:
    """Write `value` into a new message, by the declaration of its kind; return the message.

    Without `has_content` texts and free JSON are left out.
    """
    _FILLERS[value.__class__, message.DESCRIPTOR](message, value, has_content=has_content)
    return message


class Alternatives(dict[type, Filler]):
    """The functions that write each kind of a family into the oneof of the family, each made when it is first used."""

    def __init__(self, family: KindFamily, oneof: OneofDescriptor) -> None:
        super().__init__()
        self._family = family
        self._fields = {field.name: field for field in oneof.fields}

    def __missing__(self, cls: type) -> Filler:
        kind = self._family.kinds.get(cls)
        if kind is None:
            raise TypeError(f"{cls.__name__} is no kind of {self._family.noun}")
        descriptor = _find_message(self._fields[kind.wire_tag])
        fill_part = _make_body_filler(kind.body) if kind.body else _make_filler(cls, descriptor)
        found = self[cls] = _make_shown_filler(kind.wire_tag, fill_part)
        return found


def _make_body_filler(body: str) -> Filler:
    """Return the function that writes the free JSON of a kind into a Struct."""

    def fill_body(message: struct_pb2.Struct, value: object, *, has_content: bool) -> None:
        if has_content:
            fill_struct(message, getattr(value, body))

    return fill_body


class _Words(dict[str, int]):
    """The numbers of an enumeration by their words; an unknown word maps to INTERNAL, if that exists."""

    def __missing__(self, word: str) -> int:
        return self.get("INTERNAL", 0)


def _make_filler(cls: type, descriptor: Descriptor) -> Filler:
    """Return the function that writes a `cls` into a message."""
    names, fillers = _list_parts(cls, descriptor)
    sources, writes = _list_scalars(cls, descriptor)
    read_scalars, read_parts = build_reader(sources), build_reader(names)

    def fill_fields(message: Message, value: object, *, has_content: bool) -> None:
        for (name, convert, is_content, is_always), found in zip(writes, read_scalars(value), strict=True):
            if (found or (is_always and found is not None)) and (has_content or not is_content):
                setattr(message, name, found if convert is None else convert(found))
        for filler, found in zip(fillers, read_parts(value), strict=True):
            if found is not None:
                filler(message, found, has_content=has_content)

    return fill_fields


class _Scalar(NamedTuple):
    """How a value becomes a scalar field; one that is not always written is left out where it is empty."""

    name: str
    convert: Callable[[Any], Any] | None
    is_content: bool
    is_always: bool


def _list_scalars(cls: type, descriptor: Descriptor) -> tuple[list[str], list[_Scalar]]:
    """Return the attributes that become fields of texts, numbers and words, and these fields."""
    found = [(name, field, each) for name, field, each in _list_sources(cls, descriptor) if not _is_part(each, field)]
    return [name for name, _, _ in found], [_describe_scalar(each, field) for _, field, each in found]


def _describe_scalar(each: FieldDescriptor, field: Field | None) -> _Scalar:
    is_content = field is not None and field.is_content
    if each.enum_type is not None:
        return _Scalar(each.name, _list_numbers(each.enum_type, field).__getitem__, is_content, is_always=True)
    if field is not None and field.type is Mapping:
        return _Scalar(each.name, write_json, is_content, is_always=True)
    return _Scalar(each.name, None, is_content, is_always=field is not None and field.is_optional)


def _list_parts(cls: type, descriptor: Descriptor) -> tuple[list[str], list[Filler]]:
    """Return the attributes that become messages, repeated fields and oneofs, and what fills these."""
    known = {field.wire_name: field for field in list_fields(cls)}
    found = [
        (field.name, _make_alternative_filler(field, oneof))
        for oneof in descriptor.oneofs
        if (field := known.get(oneof.name))
    ]
    for name, field, each in _list_sources(cls, descriptor):
        if each.message_type is not None:
            found.append((name, _make_part_filler(each, field)))
        elif _is_part(each, field):
            found.append((name, _make_list_filler(each.name, is_content=field is not None and field.is_content)))
    return [name for name, _ in found], [filler for _, filler in found]


def _is_part(each: FieldDescriptor, field: Field | None) -> bool:
    return each.message_type is not None or (field is not None and field.is_sequence)


def _make_list_filler(name: str, *, is_content: bool) -> Filler:
    """Return the function that writes texts or numbers into a repeated field."""

    def fill_list(message: Message, values: Sequence[object], *, has_content: bool) -> None:
        if values and (has_content or not is_content):
            getattr(message, name).extend(values)

    return fill_list


def _make_part_filler(each: FieldDescriptor, field: Field | None) -> Filler:
    """Return the function that writes a value into a field that is a message, or values into one that repeats."""
    if field is None:
        raise TypeError(f"{each.full_name} is computed, which messages cannot be")
    name, inner = each.name, _find_message(each)
    if field.is_sequence:
        fill_one = _make_filler(field.type, inner)

        def fill_repeated(message: Message, values: Sequence[object], *, has_content: bool) -> None:
            for value in values:
                fill_one(getattr(message, name).add(), value, has_content=has_content)

        return fill_repeated
    if fill_known := _KNOWN.get(inner.full_name):
        return _make_known_filler(name, fill_known)
    return _make_shown_filler(name, _make_filler(field.type, inner))


def _make_known_filler(name: str, fill_known: Callable[[Any, Any], None]) -> Filler:
    """Return the function that writes a time or an object into a field with or without `has_content`."""

    def fill_field(message: Message, value: object, *, has_content: bool) -> None:  # noqa: ARG001 - is no content
        fill_known(getattr(message, name), value)

    return fill_field


def _make_shown_filler(name: str, fill_part: Filler) -> Filler:
    """Return the function that writes a value into a field that is a message, which is present even if it is empty."""

    def fill_shown(message: Message, value: object, *, has_content: bool) -> None:
        part = getattr(message, name)
        part.SetInParent()
        fill_part(part, value, has_content=has_content)

    return fill_shown


_KNOWN: Final[Mapping[str, Callable[[Any, Any], None]]] = {
    _DURATION: fill_duration,
    _TIMESTAMP: fill_timestamp,
    _STRUCT: fill_struct,
}


def _make_alternative_filler(field: Field, oneof: OneofDescriptor) -> Filler:
    if field.family is None:
        raise TypeError(f"{oneof.full_name} needs a kind of a family")
    fillers = Alternatives(field.family, oneof)
    return lambda message, value, has_content: fillers[value.__class__](message, value, has_content=has_content)


def _list_sources(cls: type, descriptor: Descriptor) -> Iterator[tuple[str, Field | None, FieldDescriptor]]:
    """Yield the attribute of each field outside the oneofs of families, its `Field` (None of a property), the field."""
    known = {field.wire_name: field for field in list_fields(cls)}
    for each in descriptor.fields:
        if each.full_name in _FILLED_BY_SERVICES or (each.containing_oneof and each.containing_oneof.name in known):
            continue
        yield *_find_source(cls, each, known), each


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


def _list_numbers(enum: EnumDescriptor, field: Field | None) -> dict[Any, int]:
    """Return the number of each member, or of each word if the class has strings; None maps to the first."""
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
    if field is None or not issubclass(field.type, Enum):
        return _Words({each.name.removeprefix(prefix): each.number for each in enum.values})
    return {None: 0} | {each: enum.values_by_name[f"{prefix}{each.name}"].number for each in field.type}
