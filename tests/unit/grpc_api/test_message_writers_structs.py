from __future__ import annotations

import math
from typing import Any

import pytest
from google.protobuf import json_format, struct_pb2
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.errors.base import InternalError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.grpc_api.message_writers import fill_struct, read_struct
from reasond_server.requests.payloads import MAX_DEPTH

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
OBJECTS = st.dictionaries(
    st.text(), st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20)
)


def struct_of_json(data: Any) -> struct_pb2.Struct:
    struct = struct_pb2.Struct()
    fill_struct(struct, data)
    return struct


@pytest.mark.slow
@given(data=OBJECTS)
def test_the_struct_is_the_one_that_protobuf_itself_would_make_and_gives_back_what_went_in(
    data: dict[str, Any],
) -> None:
    struct = struct_of_json(data)
    assert struct == json_format.ParseDict(data, struct_pb2.Struct())
    assert read_struct(struct, path="task.custom") == data


def test_doubles_without_a_fraction_become_whole_numbers() -> None:
    values = read_struct(struct_of_json({"whole": 3.0, "half": 0.5, "huge": 1e300}), path="c")

    assert {key: type(value) for key, value in values.items()} == {"whole": int, "half": float, "huge": float}


def nest(depth: int, *, as_list: bool = False) -> dict[str, Any]:
    value: Any = {"end": True}
    for _ in range(depth - 2):
        value = [value] if as_list else {"in": value}
    return {"in": value}


@pytest.mark.parametrize("as_list", [False, True])
def test_the_deepest_object_allowed_passes_both_ways(*, as_list: bool) -> None:
    data = nest(MAX_DEPTH, as_list=as_list)
    struct = struct_of_json(data)

    assert read_struct(struct_pb2.Struct.FromString(struct.SerializeToString()), path="c") == data


@pytest.mark.parametrize("as_list", [False, True])
def test_a_level_more_is_refused_to_the_caller(*, as_list: bool) -> None:
    struct = json_format.ParseDict(nest(MAX_DEPTH + 1, as_list=as_list), struct_pb2.Struct())

    with pytest.raises(InvalidRequestError, match="must not nest deeper than 16 levels") as refusal:
        read_struct(struct, path="task.custom")
    assert refusal.value.violations[0].field.startswith("task.custom.in")


@pytest.mark.parametrize("as_list", [False, True])
def test_a_level_more_is_a_fault_of_the_strategy(*, as_list: bool) -> None:
    with pytest.raises(InternalError, match="deeper than 16 levels"):
        struct_of_json(nest(MAX_DEPTH + 1, as_list=as_list))


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_does_not_know_are_refused_by_their_path(number: float) -> None:
    struct = struct_pb2.Struct()
    struct.fields["list"].list_value.values.add().number_value = number

    with pytest.raises(InvalidRequestError, match=r"task\.custom\.list\[0\] must be a finite number"):
        read_struct(struct, path="task.custom")


def test_an_empty_value_is_refused() -> None:
    struct = struct_pb2.Struct()
    struct.fields["empty"].SetInParent()

    with pytest.raises(InvalidRequestError, match=r"c\.empty must have a value"):
        read_struct(struct, path="c")


def test_a_metric_that_is_no_finite_number_becomes_null() -> None:
    struct = struct_of_json({"nan": math.nan, "inf": math.inf, "huge": 10**400})

    assert read_struct(struct, path="c") == {"nan": None, "inf": None, "huge": None}


def test_what_is_no_json_is_a_fault_of_the_strategy() -> None:
    with pytest.raises(InternalError, match="no JSON value"):
        struct_of_json({"set": {1, 2}})


def test_empty_objects_and_arrays_stay_what_they_are() -> None:
    assert read_struct(struct_of_json({"o": {}, "a": []}), path="c") == {"o": {}, "a": []}


def test_a_struct_holds_ten_thousand_values_and_no_more() -> None:
    values = struct_pb2.Struct()
    values.update({"a": {"b": [0] * 9_998}})
    assert len(read_struct(values, path="task.custom")["a"]["b"]) == 9_998
    values.update({"c": 1})
    with pytest.raises(InvalidRequestError, match=r"task\.custom must hold at most 10000 values"):
        read_struct(values, path="task.custom")
