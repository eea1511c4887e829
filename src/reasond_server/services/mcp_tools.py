"""Tools for hosts of MCP: reasoning and repairs once more, with the permissions of their RPCs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NoReturn

from reasond_server.errors.base import InternalError
from reasond_server.http_api.http_calls import Method, Methods, Streaming
from reasond_server.protocols.mcp.mcp_arguments import REASON_METHOD, REPAIR_METHOD, list_host_tools
from reasond_server.protocols.mcp.mcp_endpoint import McpInterface
from reasond_server.protocols.mcp.mcp_runs import RunParams, ToolRuns
from reasond_server.services.executions import DECLARATION as EXECUTIONS
from reasond_server.services.reasoning import DECLARATION as REASONING
from reasond_server.services.repairs import DECLARATION as REPAIRS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from datetime import datetime

    from reasond_server.executions.desk import ExecutionDesk
    from reasond_server.reasoning.service import ReasoningService
    from reasond_server.repair.service.repair_service import RepairService
    from reasond_server.services.declaration import Service

MCP_METHODS: Final = (REASON_METHOD, REPAIR_METHOD)


def build_mcp_interface(
    reasoning: ReasoningService,
    repairs: RepairService | None,
    *,
    services: Sequence[Service],
    desk: ExecutionDesk,
    version: str,
    new_call_id: Callable[[], str],
    now: Callable[[], datetime],
    origins: Collection[str],
) -> McpInterface:
    """Return the interface for hosts; `desk` finds executions of every kind, and `services` read and list them.

    Without `repairs` there is no tool for them.
    """
    read = EXECUTIONS.operation("GetExecution")
    runs = ToolRuns(reasoning=reasoning, repairs=repairs, desk=desk, read_operation=read, now=now)
    calls = (
        (REASON_METHOD, REASONING.operation("ReasonIterations"), runs.reason),
        (REPAIR_METHOD, REPAIRS.operation("RepairSteps"), runs.repair),
    )
    own = {
        name: Method(
            operation=needed, params=RunParams, run=_refuse, streaming=Streaming(operation=needed, open=follow)
        )
        for name, needed, follow in calls
    }
    return McpInterface(
        # Made at the first request: a start takes 30 ms less.
        list_tools=lambda: list_host_tools(reasoning.strategies(), has_repairs=repairs is not None),
        methods=Methods([*(each.methods for each in services), own]),
        version=version,
        new_call_id=new_call_id,
        origins=origins,
    )


async def _refuse(_caller: object, _params: Any) -> NoReturn:  # noqa: ANN401 - of any method
    raise InternalError("a call of a tool is followed by its events")
