from __future__ import annotations

import pytest
from google.protobuf import struct_pb2
from hypothesis import given
from hypothesis import strategies as st

from reasond.v1 import execution_pb2, reasoning_service_pb2
from reasond_server.errors.request import InvalidRequestError
from reasond_server.grpc_api.message_codec import MAX_FIELDS, may_unfold, require_few_fields

KIND = reasoning_service_pb2.ReasonRequest.DESCRIPTOR


def request_of(task: execution_pb2.ReasoningTask) -> bytes:
    return reasoning_service_pb2.ReasonRequest(task=task).SerializeToString()


def capable(count: int) -> bytes:
    """Return a request whose task has `count` fields in addition to the query."""
    return request_of(execution_pb2.ReasoningTask(query="q", agent_capabilities=[""] * count))


def test_fields_up_to_the_limit_pass_and_one_more_is_refused() -> None:
    # The task and its query are fields as well.
    require_few_fields(capable(MAX_FIELDS - 2), KIND)

    with pytest.raises(InvalidRequestError, match=f"hold more than {MAX_FIELDS} fields"):
        require_few_fields(capable(MAX_FIELDS - 1), KIND)


def test_values_deep_within_a_configuration_count() -> None:
    custom = struct_pb2.Struct()
    custom.update({"many": [[None] * 100] * 400})
    raw = request_of(execution_pb2.ReasoningTask(query="q", strategy="mine", custom=custom))

    with pytest.raises(InvalidRequestError):
        require_few_fields(raw, KIND)


def test_as_many_values_as_a_configuration_may_hold_pass() -> None:
    custom = struct_pb2.Struct()
    custom.update({f"parameter number {number}": float(number) for number in range(10_000)})

    require_few_fields(request_of(execution_pb2.ReasoningTask(query="q", custom=custom)), KIND)


def test_long_texts_are_one_field_whatever_they_hold() -> None:
    require_few_fields(
        request_of(execution_pb2.ReasoningTask(query="\x0a\x00" * 50_000, material="\0" * 2_000_000)), KIND
    )


def test_what_is_short_cannot_hold_too_many() -> None:
    assert not may_unfold(b"\x0a\x00" * MAX_FIELDS)
    assert may_unfold(b"\x0a\x00" * MAX_FIELDS + b"\x0a")


def test_of_an_unknown_kind_the_outermost_fields_count() -> None:
    require_few_fields(b"\x0a\x00" * MAX_FIELDS, None)

    with pytest.raises(InvalidRequestError):
        require_few_fields(b"\x0a\x00" * (MAX_FIELDS + 1), None)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x1a\x80\x80\x04",
        b"\x80" * 20,
        b"\x0a\xff\xff\xff\xff\x0f",
        b"\x0b" * 10,
        b"\x0f" * 10,
        b"\x08",
        b"\x0d\x00",
        b"\x09",
    ],
)
def test_what_is_no_message_is_left_to_the_parser(raw: bytes) -> None:
    require_few_fields(raw, KIND)


@given(raw=st.binary(max_size=300))
def test_no_bytes_break_the_count(raw: bytes) -> None:
    require_few_fields(raw, KIND)


def test_packed_numbers_count_one_for_each_byte() -> None:
    # A packed list of enums: no message declares one today, but the count must include it.
    raw = b"\x18\x01" + b"\x1a" + b"\x80\x80\x08" + b"\x01" * 131_072

    with pytest.raises(InvalidRequestError):
        require_few_fields(raw, KIND)
