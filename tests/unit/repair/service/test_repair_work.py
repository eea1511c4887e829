"""What the kind of work refuses when another process goes on with a repair."""

from __future__ import annotations

from typing import Any

import pytest

from reasond_server.errors.executions import NotResumableError
from reasond_server.repair.search.repair_policy import RepairParameters, RepairPolicy
from reasond_server.repair.service.assignments import RepairAssignment
from reasond_server.repair.service.repair_work import RepairKind
from reasond_server.types.repairs import Check, CheckRole, RepairTask


async def test_a_repair_whose_command_is_gone_from_the_configuration_is_not_resumed() -> None:
    unused: Any = None
    kind = RepairKind(clock=unused, policy=RepairPolicy(enabled=True), snapshots=unused, workshop=unused)
    task = RepairTask(description="", checks=(Check(name="unit", role=CheckRole.REPRODUCE, command="unit"),))
    assignment = RepairAssignment(task=task, parameters=RepairParameters())
    with pytest.raises(NotResumableError, match="the command 'unit' is not configured any more"):
        async with kind.open_activities(unused, unused, assignment):
            pass
