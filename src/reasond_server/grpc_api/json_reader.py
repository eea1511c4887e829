"""Reads the JSON of the protos into messages.

`json_format` takes more than that JSON: an array for a message, 1.5 for an enum, two spellings of one field; it drops
what is no Base64, fails at whole numbers that no float holds, names neither place nor value, and takes ten times as
long.
"""

from __future__ import annotations

import re
from base64 import b64decode
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from google.protobuf import duration_pb2, struct_pb2, timestamp_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from reasond_server.base.violations import suggest_nearest
from reasond_server.errors.base import show
from reasond_server.grpc_api.requests import invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from google.protobuf.message import Message

T = TypeVar("T")

_NUMBER: Final = re.compile(r"-?\d{1,40}(\.\d{1,40})?([eE][-+]?\d{1,3})?", re.ASCII)
_NO_NUMBERS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_MOMENT: Final = re.compile(r"[-+.:\dTZs]{1,64}", re.ASCII)
_MAX_NAME: Final = 64
_ANY_JSON: Final = "google.protobuf.Value"


def read_message(
    kind: Descriptor, fields: Mapping[str, Any], *, path: str = "", ignores_unknown: bool = False
) -> Message:
    """Return a message of this kind with the `fields`; `path` stands before their names in errors.

    With `ignores_unknown` fields that no message here has are left out, as protocols want it whose versions add some.

    Raises:
        InvalidRequestError: there is no such field, it is set twice, or it takes other values.
    """
    by_name = _find_fields(kind)
    given_by: dict[str, str] = {}
    found: dict[str, Any] = {}
    for name, value in fields.items():
        place = path + (name if name.isidentifier() and len(name) <= _MAX_NAME else show(name))
        field = by_name.get(name)
        if field is None and ignores_unknown:
            continue
        if field is None:
            raise invalid(place, f"is no field of this request{suggest_nearest(name, kind.fields_by_name)}")
        if value is None and (field.message_type is None or field.message_type.full_name != _ANY_JSON):
            continue
        # Of a oneof, one field can be set.
        other = given_by.setdefault((field.containing_oneof or field).full_name, name)
        if other != name:
            raise invalid(place, f"cannot stand beside {path}{other}; leave one of them out")
        found[field.name] = _read_field(field, value, place, ignores_unknown=ignores_unknown)
    return GetMessageClass(kind)(**found)


def nest_query(request: Descriptor, query: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the fields in a query as JSON; `range.offset` is a field of the message `range`.

    Raises:
        InvalidRequestError: there is no such field, or it stands there twice.
    """
    fields: dict[str, Any] = {}
    for path, text in query:
        place = fields
        kind: Descriptor | None = request
        field: FieldDescriptor | None = None
        for name in path.split("."):
            if field is not None:
                place, kind = place.setdefault(field.name, {}), _find_part(field)
            field = None if kind is None else _find_fields(kind).get(name)
            if field is None:
                break
        if field is None or _find_part(field) is not None:
            hint = suggest_nearest(path, request.fields_by_name)
            raise invalid(show(path), f"is no parameter of this address{hint}")
        if _is_repeated(field):
            place.setdefault(field.name, []).append(text)
        elif field.name in place:
            raise invalid(path, "stands in the query twice")
        else:
            is_word = field.type == FieldDescriptor.TYPE_BOOL and text in {"true", "false"}
            place[field.name] = text == "true" if is_word else text
    return fields


@cache
def _find_fields(kind: Descriptor) -> Mapping[str, FieldDescriptor]:
    """Return the fields by both of their names."""
    return {field.json_name: field for field in kind.fields} | {field.name: field for field in kind.fields}


def _find_part(field: FieldDescriptor) -> Descriptor | None:
    """Return the message of a field that holds a single one; None where JSON has a text, a number or a list."""
    kind = field.message_type
    return kind if kind is not None and kind.full_name not in _RULES and not _is_repeated(field) else None


def _is_repeated(field: FieldDescriptor) -> bool:
    """Return whether there may be several values; `label` and `is_repeated` are not in all releases of protobuf."""
    return bool(field.default_value == [])


def _read_field(field: FieldDescriptor, value: object, place: str, *, ignores_unknown: bool) -> object:
    """Return what a field takes, one value or several."""
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        if not isinstance(value, dict):
            raise invalid(place, f"must be an object, got {show(value)}")
        read = partial(_read_value, kind.fields_by_name["value"], ignores_unknown=ignores_unknown)
        return {key: read(each, f"{place}[{show(key)}]") for key, each in value.items()}
    if _is_repeated(field):
        if not isinstance(value, list):
            raise invalid(place, f"must be a list, got {show(value)}")
        read = partial(_read_value, field, ignores_unknown=ignores_unknown)
        return [read(each, f"{place}[{index}]") for index, each in enumerate(value)]
    return _read_value(field, value, place, ignores_unknown=ignores_unknown)


def _read_value(field: FieldDescriptor, value: object, place: str, *, ignores_unknown: bool) -> object:
    """Return one value of a field."""
    kind = field.message_type
    if kind is not None and kind.full_name not in _RULES:
        if not isinstance(value, dict):
            raise invalid(place, f"must be an object, got {show(value)}")
        return read_message(kind, value, path=f"{place}.", ignores_unknown=ignores_unknown)
    read: Callable[[object], object]
    if field.enum_type is not None:
        names = field.enum_type.values_by_name
        if isinstance(value, str) and value in names:
            return names[value].number
        # The servicers check numbers, as those of gRPC.
        wanted, read = f"one of {', '.join(names)}", partial(_read_whole, bits=31)
    else:
        wanted, read = _RULES[field.type if kind is None else kind.full_name]
    try:
        return read(value)
    except (ValueError, OverflowError):
        raise invalid(place, f"must be {wanted}, got {show(value)}") from None


def _take(kind: type[T], value: object) -> T:
    """Return the value if it is of this type.

    Raises:
        ValueError: it is not.
    """
    if isinstance(value, kind):
        return value
    raise ValueError(kind.__name__)


def _read_whole(value: object, bits: int) -> int:
    """Return a whole number of so many bits and a sign, from a number or from text."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value) if re.search("[.eE]", value) else int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise ValueError("no whole number")
    if not -(2**bits) <= value < 2**bits:
        raise ValueError("out of range")
    return int(value)


def _read_number(value: object) -> float:
    is_text = isinstance(value, str) and (value in _NO_NUMBERS or _NUMBER.fullmatch(value) is not None)
    if isinstance(value, bool) or not (is_text or isinstance(value, int | float)):
        raise ValueError("no number")
    return float(value)  # type: ignore[arg-type]  # mypy does not see that it is a number or text


def _read_base64(value: object) -> bytes:
    """Return what Base64 of either alphabet holds, with or without its padding."""
    text = _take(str, value)
    return b64decode(text.replace("-", "+").replace("_", "/") + "=" * (-len(text) % 4), validate=True)


def _read_struct(value: object) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    struct.update(_take(dict, value))
    return struct


def _read_any(value: Any) -> struct_pb2.Value:  # noqa: ANN401 - any JSON
    struct = struct_pb2.Struct()
    struct.update({_ANY_JSON: value})
    return struct.fields[_ANY_JSON]


def _read_time(
    kind: type[duration_pb2.Duration | timestamp_pb2.Timestamp], value: object
) -> duration_pb2.Duration | timestamp_pb2.Timestamp:
    text, message = _take(str, value), kind()
    if not _MOMENT.fullmatch(text):
        raise ValueError("no time")
    message.FromJsonString(text)
    return message


# What a value must be, by the type of its field, and what reads it or raises ValueError or OverflowError.
_RULES: Final[Mapping[int | str, tuple[str, Callable[[object], object]]]] = {
    FieldDescriptor.TYPE_STRING: ("a string", partial(_take, str)),
    FieldDescriptor.TYPE_BOOL: ("true or false", partial(_take, bool)),
    FieldDescriptor.TYPE_BYTES: ("Base64", _read_base64),
    FieldDescriptor.TYPE_DOUBLE: ("a number up to 1.8e308", _read_number),
    FieldDescriptor.TYPE_INT32: ("a whole number of 32 bits", partial(_read_whole, bits=31)),
    FieldDescriptor.TYPE_INT64: ("a whole number of 64 bits", partial(_read_whole, bits=63)),
    "google.protobuf.Struct": ("an object with numbers up to 1.8e308", _read_struct),
    _ANY_JSON: ("a JSON value with numbers up to 1.8e308", _read_any),
    "google.protobuf.Duration": ("a duration in seconds such as 1.5s", partial(_read_time, duration_pb2.Duration)),
    "google.protobuf.Timestamp": ("a time such as 2026-11-23T10:00:00Z", partial(_read_time, timestamp_pb2.Timestamp)),
}
