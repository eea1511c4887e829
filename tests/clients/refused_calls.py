"""One call of a client to a server that refuses it: how it ended, and when its attempts came."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tests.clients.scenario_run import running_driver
from tests.unit.grpc_api.parts import VIEW, ScriptedReasoning, serving

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from reasond_server.errors.base import ReasondError
    from reasond_server.reasoning.service import ExecutionView
    from tests.clients.drivers import DriverProgram


async def ask_refused(
    program: DriverProgram, refusals: Sequence[ReasondError], folder: Path
) -> tuple[dict[str, Any], list[float]]:
    """Make a call whose attempts end with one of the `refusals` each, then succeed; return the driver's answer.

    With it come the seconds of a monotonic clock at which the attempts came.
    """
    arrivals: list[float] = []

    async def execute() -> ExecutionView:
        arrivals.append(time.monotonic())
        if len(arrivals) <= len(refusals):
            raise refusals[len(arrivals) - 1]
        return VIEW

    request: dict[str, Any] = {
        "name": "refused",
        "action": "execute",
        "token": "good",
        "token_file": None,
        "options": {},
    }
    task = {"query": "What is six times seven?"}
    async with serving(ScriptedReasoning(on_execute=execute)) as served, running_driver(program, folder) as driver:
        answer = await driver.ask({**request, "target": f"127.0.0.1:{served.server.port}", "task": task})
    return answer, arrivals
