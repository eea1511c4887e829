"""Checks JSON by the fields of a message, before `json_format` reads it.

`json_format` takes more than the JSON of the protos: an array for a message, 1.5 for an enum, two spellings of one
field; it drops what is no Base64, fails at whole numbers that no float holds, and names neither place nor value.
"""

from __future__ import annotations

import re
import sys
from base64 import b64decode
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import duration_pb2, timestamp_pb2
from google.protobuf.descriptor import FieldDescriptor

from reasond_server.base.violations import suggest_nearest
from reasond_server.errors.base import show
from reasond_server.grpc_api.requests import invalid

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from google.protobuf.descriptor import Descriptor

_NUMBER: Final = re.compile(r"-?\d{1,40}(\.\d{1,40})?([eE][-+]?\d{1,3})?", re.ASCII)
_NO_NUMBERS: Final = frozenset({"NaN", "Infinity", "-Infinity"})
_MOMENT: Final = re.compile(r"[-+.:\dTZs]{1,64}", re.ASCII)
_MAX_NAME: Final = 64


def check_fields(fields: Mapping[str, Any], kind: Descriptor, *, path: str = "") -> None:
    """Check the `fields` of a message of this kind; `path` stands before their names in errors.

    Raises:
        InvalidRequestError: there is no such field, it is set twice, or it takes other values.
    """
    by_name = find_fields(kind)
    given_by: dict[str, str] = {}
    for name, value in fields.items():
        place = path + (name if name.isidentifier() and len(name) <= _MAX_NAME else show(name))
        field = by_name.get(name)
        if field is None:
            raise invalid(place, f"is no field of this request{suggest_nearest(name, kind.fields_by_name)}")
        if value is None:
            continue
        # Of a oneof, one field can be set.
        other = given_by.setdefault((field.containing_oneof or field).full_name, name)
        if other != name:
            raise invalid(place, f"cannot stand beside {path}{other}; leave one of them out")
        _check_field(field, value, place)


@cache
def find_fields(kind: Descriptor) -> Mapping[str, FieldDescriptor]:
    """Return the fields by both of their names."""
    return {field.json_name: field for field in kind.fields} | {field.name: field for field in kind.fields}


def find_part(field: FieldDescriptor) -> Descriptor | None:
    """Return the message of a field that holds a single one; None where JSON has a text, a number or a list."""
    kind = field.message_type
    return kind if kind is not None and kind.full_name not in _RULES and not is_repeated(field) else None


def is_repeated(field: FieldDescriptor) -> bool:
    """Return whether there may be several values; `label` and `is_repeated` are not in all releases of protobuf."""
    return bool(field.default_value == [])


def _check_field(field: FieldDescriptor, value: object, place: str) -> None:
    """Check what stands for a field, one value or several."""
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        if not isinstance(value, dict):
            raise invalid(place, f"must be an object, got {show(value)}")
        for key, each in value.items():
            _check_value(kind.fields_by_name["value"], each, f"{place}[{show(key)}]")
    elif is_repeated(field):
        if not isinstance(value, list):
            raise invalid(place, f"must be a list, got {show(value)}")
        for index, each in enumerate(value):
            _check_value(field, each, f"{place}[{index}]")
    else:
        _check_value(field, value, place)


def _check_value(field: FieldDescriptor, value: object, place: str) -> None:
    """Check one value of a field."""
    kind = field.message_type
    if kind is not None and kind.full_name not in _RULES:
        if not isinstance(value, dict):
            raise invalid(place, f"must be an object, got {show(value)}")
        check_fields(value, kind, path=f"{place}.")
        return
    if field.enum_type is not None:
        # The servicers check numbers, as those of gRPC.
        names = field.enum_type.values_by_name
        wanted, is_right = (
            f"one of {', '.join(names)}",
            value in names if isinstance(value, str) else _is_whole(value, 31),
        )
    else:
        wanted, check = _RULES[field.type if kind is None else kind.full_name]
        is_right = check(value)
    if not is_right:
        raise invalid(place, f"must be {wanted}, got {show(value)}")


def _is_whole(value: object, bits: int) -> bool:
    """Return whether this is a whole number of so many bits and a sign, as a number or as text."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value) if re.search("[.eE]", value) else int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return isinstance(value, int) and not isinstance(value, bool) and -(2**bits) <= value < 2**bits


def _is_number(value: object) -> bool:
    if isinstance(value, str):
        return value in _NO_NUMBERS or _NUMBER.fullmatch(value) is not None
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_base64(value: object) -> bool:
    """Return whether this is Base64, of either alphabet, with or without its padding."""
    if not isinstance(value, str):
        return False
    try:
        b64decode(value.replace("-", "+").replace("_", "/") + "=" * (-len(value) % 4), validate=True)
    except ValueError:
        return False
    return True


def _is_read_by(read: Callable[[str], object], value: object) -> bool:
    """Return whether this is text that `read` takes; it raises a ValueError otherwise."""
    if not isinstance(value, str) or not _MOMENT.fullmatch(value):
        return False
    try:
        read(value)
    except ValueError:
        return False
    return True


# What a value must be, by the type of its field, and whether it is.
_RULES: Final[Mapping[int | str, tuple[str, Callable[[object], bool]]]] = {
    FieldDescriptor.TYPE_STRING: ("a string", lambda value: isinstance(value, str)),
    FieldDescriptor.TYPE_BOOL: ("true or false", lambda value: isinstance(value, bool)),
    FieldDescriptor.TYPE_BYTES: ("Base64", _is_base64),
    FieldDescriptor.TYPE_DOUBLE: ("a number", _is_number),
    FieldDescriptor.TYPE_INT32: ("a whole number of 32 bits", partial(_is_whole, bits=31)),
    FieldDescriptor.TYPE_INT64: ("a whole number of 64 bits", partial(_is_whole, bits=63)),
    "google.protobuf.Struct": ("an object", lambda value: isinstance(value, dict)),
    "google.protobuf.Duration": (
        "a duration in seconds such as 1.5s",
        lambda value: _is_read_by(duration_pb2.Duration().FromJsonString, value),
    ),
    "google.protobuf.Timestamp": (
        "a time such as 2026-11-23T10:00:00Z",
        lambda value: _is_read_by(timestamp_pb2.Timestamp().FromJsonString, value),
    ),
}
