"""Repairs have no calls of their own to list, cancel and delete them: those of executions do it, over both wires."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from reasond import AsyncClient, Check, CheckRole, ExecutionState, FinishReason, ResultFormat, repair_task
from reasond.errors import NotFoundError, PermissionDeniedError
from reasond_server.testing import ScriptedModel
from tests.contract.repair_calls import WIRES, mint, repairing_server

if TYPE_CHECKING:
    from reasond_server.app import Listening

pytestmark = pytest.mark.slow
LIMIT_S = 180.0
ENDLESS = repair_task(
    files={"one.py": "x = 1\n"},
    environment="python",
    checks=[
        Check(
            name="endless",
            role=CheckRole.CHECK_ROLE_REPRODUCE,
            argv=["sleep", "600"],
            format=ResultFormat.RESULT_FORMAT_EXIT_CODE,
        )
    ],
)


async def _call(server: Listening, method: str, params: dict[str, Any]) -> dict[str, Any]:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "auth_token": server.token}}
    async with httpx.AsyncClient(base_url=server.http, timeout=LIMIT_S) as client:
        answer: dict[str, Any] = (await client.post("/api/v1/jsonrpc", json=body)).json()
    return answer


async def _start(client: AsyncClient) -> str:
    """Return the id of a repair that works on without followers."""
    async with client.repair_steps(ENDLESS, keep_running=True) as stream:
        await anext(stream)
        return stream.execution_id


@pytest.mark.parametrize("wire", WIRES)
async def test_a_repair_is_listed_cancelled_and_deleted(wire: str) -> None:

    with ScriptedModel([]) as model:
        async with repairing_server(model) as server, AsyncClient(server.grpc, token=server.token) as client:
            execution_id = await _start(client)
            listed = [one.execution_id async for one in client.list_executions(strategy="repair")]
            assert listed == [execution_id]
            assert [one async for one in client.list_executions()] == []
            if wire == "grpc":
                cancelled = await client.cancel_execution(execution_id, timeout_s=LIMIT_S)
                assert cancelled.state == ExecutionState.EXECUTION_STATE_CANCELLED
            else:
                page = await _call(server, "executions.list", {"strategy": "repair"})
                assert [one["execution_id"] for one in page["result"]["executions"]] == [execution_id]
                answer = await _call(server, "executions.cancel", {"execution_id": execution_id})
                assert answer["result"]["execution"]["state"] == "cancelled"
            repair = (await client.get_repair(execution_id)).repair
            assert repair.finish_reason == FinishReason.FINISH_REASON_CANCELLED
            if wire == "grpc":
                await client.delete_execution(execution_id)
            else:
                assert "result" in await _call(server, "executions.delete", {"execution_id": execution_id})
            with pytest.raises(NotFoundError):
                await client.get_repair(execution_id)
            assert [one async for one in client.list_executions(strategy="repair")] == []


async def test_only_who_may_repair_cancels_a_repair_and_another_tenant_finds_none() -> None:
    with ScriptedModel([]) as model:
        async with repairing_server(model) as server, AsyncClient(server.grpc, token=mint("admin")) as client:
            execution_id = await _start(client)
            async with AsyncClient(server.grpc, token=mint("reasoning:execute")) as other:
                with pytest.raises(PermissionDeniedError, match="repair:execute"):
                    await other.cancel_execution(execution_id)
            async with AsyncClient(server.grpc, token=mint("admin", tenant="other")) as stranger:
                with pytest.raises(NotFoundError):
                    await stranger.delete_execution(execution_id)
                with pytest.raises(NotFoundError):
                    await stranger.cancel_execution(execution_id)
            await client.delete_execution(execution_id, timeout_s=LIMIT_S)
