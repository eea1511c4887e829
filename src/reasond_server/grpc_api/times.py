"""Times and durations: Python's -> protobuf's."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from google.protobuf import duration_pb2, timestamp_pb2

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
