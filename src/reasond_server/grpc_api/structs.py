"""google.protobuf.Struct <-> JSON objects; at most 16 levels deep, because Python cannot parse deeper ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import struct_pb2

from reasond_server.errors.base import InternalError, Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.requests.payloads import MAX_DEPTH
from reasond_server.requests.task_checks import MAX_CONFIG_VALUES

if TYPE_CHECKING:
    from collections.abc import Iterator

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
