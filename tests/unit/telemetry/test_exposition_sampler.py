"""Samples of the loop delay and of the state of the server; a sample that fails does not stop the sampler."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from reasond_server.telemetry.exposition import Sampler
from reasond_server.telemetry.observers import ServerSnapshot
from tests.unit.telemetry.parts import metrics, values

if TYPE_CHECKING:
    import pytest

LIMIT_S = 180.0


async def test_a_loop_that_was_held_up_is_told_to_be_late() -> None:
    counted, looks = metrics(), asyncio.Queue[int]()

    def look() -> ServerSnapshot:
        looks.put_nowait(1)
        return ServerSnapshot()

    sampler = Sampler(metrics=counted, look=look, interval_s=0.01)
    sampler.begin()
    sampler.begin()
    async with asyncio.timeout(LIMIT_S):
        await looks.get()
        # A blocking tool does this while the sampler waits for its next turn.
        time.sleep(0.3)  # noqa: ASYNC251 - this is what is tested
        await looks.get()
    await sampler.aclose()
    await sampler.aclose()
    found = values(counted)
    assert found["reasond_event_loop_lag_seconds_sum"] > 0.2
    assert found["process_start_time_seconds"] > 0
    assert found["process_cpu_seconds_total"] > 0


async def test_a_look_that_fails_is_logged_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    counted, tries, worked = metrics(), [0], asyncio.Event()

    def look() -> ServerSnapshot:
        tries[0] += 1
        if tries[0] == 1:
            raise ValueError("not yet")
        worked.set()
        return ServerSnapshot(running=7)

    sampler = Sampler(metrics=counted, look=look, interval_s=0.001)
    with caplog.at_level(logging.ERROR):
        sampler.begin()
        async with asyncio.timeout(LIMIT_S):
            await worked.wait()
    await sampler.aclose()
    assert [record.message for record in caplog.records] == ["a sample of metrics could not be taken"]
    assert counted.registry.get_sample_value("reasond_executions_running") == 7
