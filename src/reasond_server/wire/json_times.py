"""Times and durations as JSON."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime


def timestamp(moment: datetime) -> str:
    """Return `moment` by RFC 3339, in UTC with the suffix Z."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def milliseconds(seconds: float) -> int:
    """Return `seconds` in whole milliseconds, rounded."""
    return round(seconds * 1000)
