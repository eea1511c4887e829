"""Programs of models over both wires: they run where the operator says so, for callers who may use tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx
import pytest

from reasond import AsyncClient, ReasondError, TraceView
from reasond_server.testing import FunctionModel, running_server
from tests.contract.repair_calls import ENVIRON, mint
from tests.sandboxing import PROGRAMS

if TYPE_CHECKING:
    from reasond_server.app import Listening

CONFIG = {"max_program_s": 60.0}
SERVER = {**ENVIRON, "REASOND__REPAIR__ENABLED": "false"}


async def over_jsonrpc(server: Listening, token: str) -> dict[str, Any]:
    params = {
        "query": "6 times 7?",
        "material": "six, seven",
        "strategy": "program_of_thought",
        "strategy_config": CONFIG,
        "auth_token": token,
    }
    request = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": params}
    async with httpx.AsyncClient(timeout=240) as http:
        body: dict[str, Any] = (await http.post(f"{server.http}/api/v1/jsonrpc", json=request)).json()
    return body


def model() -> FunctionModel:
    replies = iter(["```python\nprint(6 * )\n```", "```python\nprint(open('material.txt').read(), 6 * 7)\n```"] * 2)
    return FunctionModel(lambda _: next(replies))


async def test_a_program_is_run_and_corrected_over_both_wires() -> None:
    async with running_server(model=model(), environ={**SERVER, **PROGRAMS}) as server:
        token = mint("reasoning:execute", "reasoning:tools")
        async with AsyncClient(server.grpc, token=token) as client:
            one = await client.reason(
                "6 times 7?",
                material="six, seven",
                strategy="program_of_thought",
                config=CONFIG,
                trace_view=TraceView.TRACE_VIEW_FULL,
            )
        other = (await over_jsonrpc(server, token))["result"]
    assert one.answer == other["answer"] == "six, seven 42"
    assert [step.stage.stage for step in one.trace] == ["program", "output"] * 2
    assert [step["stage"] for step in other["trace"]] == ["program", "output"] * 2
    assert "SyntaxError" in one.trace[1].stage.text
    assert (one.metrics.program_of_thought.attempts, one.metrics.program_of_thought.failed_attempts) == (2, 1)
    assert other["metrics"]["strategy_specific"]["program_time_ms"] > 0


@pytest.mark.parametrize(
    ("environ", "permissions", "reason"),
    [
        (SERVER, ("reasoning:execute", "reasoning:tools"), "SANDBOX_UNAVAILABLE"),
        ({**SERVER, **PROGRAMS}, ("reasoning:execute",), "PERMISSION_MISSING"),
    ],
)
async def test_without_a_sandbox_or_the_permission_a_program_is_refused_before_a_token_is_spent(
    environ: dict[str, str], permissions: tuple[str, ...], reason: str
) -> None:
    asked = model()
    async with running_server(model=asked, environ=environ) as server:
        token = mint(*permissions)
        async with AsyncClient(server.grpc, token=token) as client:
            with pytest.raises(ReasondError) as refused:
                await client.reason("6 times 7?", strategy="program_of_thought")
        told = (await over_jsonrpc(server, token))["error"]
    assert refused.value.reason == told["data"]["reason"] == reason
    assert not asked.requests
