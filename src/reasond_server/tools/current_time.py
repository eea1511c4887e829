"""The built-in clock: the current time in UTC and in a named time zone."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import Annotated, ClassVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field

from reasond_server.errors.base import show
from reasond_server.tools.tool import ArgumentsRefusedError, ModelledTool, ToolArguments, ToolContext

# ZoneInfo opens a file of this name, so a name must not be able to leave the folder of the zones.
_ZONE = re.compile(r"[A-Za-z][A-Za-z0-9_+-]*(?:/[A-Za-z0-9][A-Za-z0-9_+-]*){0,2}")


def _read_system_clock() -> datetime:
    return datetime.now(UTC)


class CurrentTimeArguments(ToolArguments):
    """Arguments of the clock."""

    zone: Annotated[
        str, Field(min_length=1, max_length=64, description="IANA name of a time zone, such as Europe/Berlin.")
    ] = "UTC"


class CurrentTime(ModelledTool[CurrentTimeArguments]):
    """Returns the time of the injected clock, to the second."""

    name: ClassVar[str] = "current_time"
    description: ClassVar[str] = "Tells the present date, weekday and time in a time zone."
    arguments_type: ClassVar[type[ToolArguments]] = CurrentTimeArguments
    is_idempotent = True

    def __init__(self, *, now: Callable[[], datetime] = _read_system_clock) -> None:
        self._now = now

    async def call(self, arguments: CurrentTimeArguments, context: ToolContext) -> object:  # noqa: ARG002 - the form
        """Return the time.

        Raises:
            ArgumentsRefusedError: this machine does not know the zone.
        """
        zone = _find_zone(arguments.zone)
        if zone is None:
            raise ArgumentsRefusedError(
                f"the zone {show(arguments.zone)} is not known here; use an IANA name such as Europe/Berlin, or UTC"
            )
        now = self._now().astimezone(zone).replace(microsecond=0)
        return {"time": now.isoformat(), "weekday": f"{now:%A}", "zone": arguments.zone}


def _find_zone(name: str) -> tzinfo | None:
    """Return the zone of that name; None if this machine does not know it."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name) if _ZONE.fullmatch(name) else None
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return None
