"""What becomes of an operation that ended without a caller: expired, damaged, gone."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.longrunning import operations_pb2 as pb  # type: ignore[import-untyped]  # shipped without py.typed

from reasond_server.errors.base import InternalError
from reasond_server.executions.desk import ExecutionDesk, ExecutionLog
from reasond_server.grpc_api.execution_servicer import OperationsServicer
from reasond_server.grpc_api.guard import RpcCall, begin
from reasond_server.types.turns import TurnStart
from tests.turning import CALLER, ask_tools, client_tool, serve_in_memory
from tests.unit.grpc_api.parts import EXECUTION, details_of

if TYPE_CHECKING:
    from reasond_server.types import Principal

GET = pb.GetOperationRequest(name="operations/run-1")
NOBODY: Any = None


async def test_a_turn_that_expired_tells_so() -> None:
    server = serve_in_memory([ask_tools(("open_file", {"path": "a.txt"}))])
    start = TurnStart(message="Look", client_tools=(client_tool(),))
    turn_id = (await server.run(start)).turn.turn_id
    server.time.moved_s += server.kind.policy.handoff_ttl_s + 1
    await server.round()
    await server.wait_for_suspension(turn_id)
    desk = replace(server.service._desk, kind="")

    begin(RpcCall(method="x", call_id="c", principal=CALLER))
    servicer = OperationsServicer(observed=desk, used=desk)
    found = await servicer.GetOperation(pb.GetOperationRequest(name=f"operations/{turn_id}"), NOBODY)

    assert (found.done, found.error.code) == (True, grpc.StatusCode.FAILED_PRECONDITION.value[0])
    info = details_of(found.error)["ErrorInfo"]
    assert (info.reason, info.metadata["execution_id"]) == ("HANDOFF_EXPIRED", turn_id)
    await server.stop()


async def test_an_end_that_cannot_be_read_is_a_fault_and_no_operation_without_a_result() -> None:
    class Damaged(ExecutionDesk):
        async def read_end(self, caller: Principal, execution_id: str) -> ExecutionLog:
            del caller, execution_id
            return ExecutionLog(execution=EXECUTION, events=())

    desk = Damaged(store=NOBODY, runner=NOBODY, follower=NOBODY, kind="", require_use=lambda _caller, _found: None)
    begin(RpcCall(method="x", call_id="c", principal=CALLER))
    with pytest.raises(InternalError, match="without a result"):
        await OperationsServicer(observed=desk, used=desk).GetOperation(GET, NOBODY)
