"""The conversion of Python times to protobuf times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from google.protobuf import duration_pb2
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.grpc_api.message_writers import fill_duration, timestamp


def duration(seconds: float) -> duration_pb2.Duration:
    message = duration_pb2.Duration()
    fill_duration(message, seconds)
    return message


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_moment_is_the_same_to_the_microsecond(moment: datetime) -> None:
    assert timestamp(moment).ToDatetime(tzinfo=UTC) == moment


@given(st.integers(0, 10**12))
def test_a_span_is_the_same_to_the_microsecond(microseconds: int) -> None:
    assert duration(microseconds / 10**6).ToTimedelta() == timedelta(microseconds=microseconds)


@pytest.mark.parametrize("seconds", [-0.25, -3.0])
def test_a_span_that_clocks_made_negative_is_nothing(seconds: float) -> None:
    made = duration(seconds)
    assert (made.seconds, made.nanos) == (0, 0)


def test_durations_are_exact_and_never_malformed() -> None:
    assert (duration(1.25).seconds, duration(1.25).nanos) == (1, 250_000_000)
    assert (duration(0.9999999999).seconds, duration(0.9999999999).nanos) == (1, 0)
