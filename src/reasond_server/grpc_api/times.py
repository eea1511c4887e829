"""Times and durations: Python's -> protobuf's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from google.protobuf import duration_pb2, timestamp_pb2

if TYPE_CHECKING:
    from datetime import datetime

_NANOS: Final = 10**9


def timestamp(moment: datetime) -> timestamp_pb2.Timestamp:
    """Return an aware datetime as a Timestamp."""
    stamp = timestamp_pb2.Timestamp()
    stamp.FromDatetime(moment)
    return stamp


def duration(seconds: float) -> duration_pb2.Duration:
    """Return seconds as a Duration, rounded to nanoseconds; never negative."""
    nanos = round(seconds * _NANOS)
    return duration_pb2.Duration(seconds=nanos // _NANOS, nanos=nanos % _NANOS)
