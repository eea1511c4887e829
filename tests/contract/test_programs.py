"""Programs of models over both wires: they run where the operator says so, for callers who may use tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from reasond import AsyncClient, ReasondError, TraceView
from reasond_server.testing import FunctionModel, running_server
from tests.contract.repair_calls import ENVIRON, mint
from tests.http_clients import make_http_client
from tests.sandboxing import PROGRAMS

if TYPE_CHECKING:
    from reasond_server.assembly.app import Listening

CONFIG = {"max_program_s": 60.0}
SERVER = {**ENVIRON, "REASOND__REPAIR__ENABLED": "false"}


def ask_by_program(token: str) -> dict[str, Any]:
    return {
        "query": "6 times 7?",
        "material": "six, seven",
        "strategy": "program_of_thought",
        "strategy_config": CONFIG,
        "auth_token": token,
    }


async def over_jsonrpc(server: Listening, params: dict[str, Any]) -> dict[str, Any]:
    request = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": params}
    async with make_http_client(timeout=240) as http:
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
        other = (await over_jsonrpc(server, ask_by_program(token)))["result"]
    assert one.answer == other["answer"] == "six, seven 42"
    assert [step.stage.stage for step in one.trace] == ["program", "output"] * 2
    assert [step["stage"] for step in other["trace"]] == ["program", "output"] * 2
    assert "SyntaxError" in one.trace[1].stage.text
    assert (one.metrics.program_of_thought.attempts, one.metrics.program_of_thought.failed_attempts) == (2, 1)
    assert other["metrics"]["strategy_specific"]["program_time_ms"] > 0


async def test_a_check_of_the_caller_chooses_among_samples_over_both_wires() -> None:
    config = {
        "verifier": "program",
        "check_program": "import sys\nword = open('answer.txt').read()\nprint(word)\nsys.exit(word != '42')",
        "max_check_s": 60.0,
    }
    answers = iter(["41", "43", "42", "44"] * 2)
    model = FunctionModel(lambda _: f"<answer>{next(answers)}</answer>")
    async with running_server(model=model, environ={**SERVER, **PROGRAMS}) as server:
        token = mint("reasoning:execute", "reasoning:tools")
        async with AsyncClient(server.grpc, token=token) as client:
            one = await client.reason(
                "6 times 7?", strategy="best_of_n", config=config, trace_view=TraceView.TRACE_VIEW_FULL
            )
        for left in answers:
            if left == "44":
                break
        params = {"query": "6 times 7?", "strategy": "best_of_n", "strategy_config": config, "auth_token": token}
        other = (await over_jsonrpc(server, params))["result"]
    assert one.answer == other["answer"] == "42"
    told = [(step.stage.stage, step.stage.answer, step.stage.score) for step in one.trace]
    assert told == [(stage, word, word == "42") for word in ("41", "43", "42") for stage in ("sample", "check")]
    assert one.metrics.usage.model_calls == other["metrics"]["usage"]["model_calls"] == 3


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
        told = (await over_jsonrpc(server, ask_by_program(token)))["error"]
    assert refused.value.reason == told["data"]["reason"] == reason
    assert not asked.requests
