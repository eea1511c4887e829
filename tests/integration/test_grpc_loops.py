"""B16 and B20 of the traps of grpc.aio: other code in the process, and the kind of event loop."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tests.integration.test_grpc_traps import REASON
from tests.unit.grpc_api.parts import (
    AUTHORIZED,
    ScriptedReasoning,
    serving,
)


def test_b16_grpcs_own_observability_stays_out_of_the_process() -> None:
    assert "grpc_observability" not in sys.modules


def test_b20_the_server_works_on_uvloop_as_well() -> None:
    uvloop = pytest.importorskip("uvloop", reason="the extra uvloop is not installed here")

    async def ask() -> str:
        async with serving(ScriptedReasoning()) as served:
            answer = await served.reasoning.Reason(REASON, metadata=AUTHORIZED)
            return answer.reasoning.answer

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(ask()) == "42"
