from __future__ import annotations

from datetime import UTC, datetime

import pytest

from reasond_server.tools.current_time import CurrentTime, CurrentTimeArguments
from reasond_server.tools.tool import ToolContext, ToolFailedError

CONTEXT = ToolContext(call_id="c1", timeout_s=1)
NOON = datetime(2026, 7, 4, 12, 0, 0, 123456, tzinfo=UTC)


async def tell(zone: str) -> object:
    return await CurrentTime(now=lambda: NOON).call(CurrentTimeArguments(zone=zone), CONTEXT)


async def test_the_time_is_that_of_the_injected_clock_in_the_zone() -> None:
    assert await tell("UTC") == {"time": "2026-07-04T12:00:00+00:00", "weekday": "Saturday", "zone": "UTC"}
    assert await tell("Europe/Berlin") == {
        "time": "2026-07-04T14:00:00+02:00",
        "weekday": "Saturday",
        "zone": "Europe/Berlin",
    }


async def test_without_a_clock_it_is_the_systems() -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    answer = await CurrentTime().call(CurrentTimeArguments(), CONTEXT)
    assert isinstance(answer, dict)
    assert before <= datetime.fromisoformat(answer["time"]) <= datetime.now(UTC)


@pytest.mark.parametrize(
    "zone", ["Mars/Olympus", "../../etc/passwd", "/etc/localtime", "Europe", "a\x00b", "Europe/ Berlin"]
)
async def test_an_unknown_zone_or_a_path_is_refused(zone: str) -> None:
    with pytest.raises(ToolFailedError, match="use an IANA name"):
        await tell(zone)
