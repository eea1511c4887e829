"""An execution tells over both wires what was asked for, as long as its content is kept."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import reasond
from reasond_server.errors.model import ModelFailedError
from reasond_server.testing import Reply, ScriptedModel, running_server
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from pathlib import Path

    from reasond_server.assembly.app import Listening

ANSWER = "<answer>42</answer>"
TIMEOUT_S = 180
ASKED = {
    "query": "What is six times seven?",
    "material": "Six times seven is 42.",
    "strategy": "bounded_context",
    "strategy_config": {"chunk_size": 2048, "carryover_mode": "tail", "temperature": 0.5},
    "agent_capabilities": ["reasoning.strategy.bounded_context"],
    "system": "Be brief.",
    "history": [{"role": "user", "text": "Hello"}, {"role": "assistant", "text": "Hello."}],
    "stop": ["END"],
    "budget": {"max_total_tokens": 90_000, "max_model_calls": 9, "max_elapsed_ms": 60_000},
}
CONFIG = reasond.BoundedContextConfig(
    chunk_size=2048, carryover_mode=reasond.CarryoverMode.CARRYOVER_MODE_TAIL, temperature=0.5
)


async def post(server: Listening, method: str, params: dict[str, Any]) -> Any:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "auth_token": server.token}}
    async with make_http_client(base_url=server.http, timeout=TIMEOUT_S) as client:
        return (await client.post("/api/v1/jsonrpc", json=body)).json()["result"]


async def task_over_grpc(server: Listening, name: str) -> Any:
    async with reasond.AsyncClient(server.grpc, token=server.token) as client:
        found = await client.get_execution(name, timeout_s=TIMEOUT_S)
    return found.task if found.HasField("task") else None


async def task_over_jsonrpc(server: Listening, name: str) -> Any:
    return (await post(server, "executions.get", {"execution_id": name}))["task"]


def find_files_with(content: bytes, folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and content in path.read_bytes()]


async def test_a_task_comes_back_over_both_wires_as_it_was_asked() -> None:
    with ScriptedModel([ANSWER, ANSWER]) as model:
        async with running_server(model=model) as server:
            first = (await post(server, "reasoning.execute", ASKED))["execution_id"]
            over = await task_over_grpc(server, first)
            assert (over.query, over.material, over.strategy) == (ASKED["query"], ASKED["material"], "bounded_context")
            assert over.bounded_context == CONFIG
            assert list(over.agent_capabilities) == ASKED["agent_capabilities"]
            assert (over.budget.max_total_tokens, over.budget.max_model_calls) == (90_000, 9)
            assert not over.budget.HasField("max_tool_calls")
            assert over.budget.max_elapsed.seconds == 60
            told = await task_over_jsonrpc(server, first)
            assert {name: told[name] for name in ASKED if name != "budget"} == {
                name: each for name, each in ASKED.items() if name != "budget"
            }
            assert {name: each for name, each in told["budget"].items() if each is not None} == ASKED["budget"]
            second = (await post(server, "reasoning.execute", told))["execution_id"]
            assert await task_over_jsonrpc(server, second) == told, "what is told can be asked again"


async def test_what_a_request_left_to_the_server_is_left_out() -> None:
    with ScriptedModel([ANSWER]) as model:
        async with (
            running_server(model=model) as server,
            reasond.AsyncClient(server.grpc, token=server.token) as client,
        ):
            name = (await client.reason("why?", strategy="chain_of_thought", timeout_s=TIMEOUT_S)).execution_id
            over = await task_over_grpc(server, name)
            assert over == reasond.ReasoningTask(query="why?", strategy="chain_of_thought")
            told = await task_over_jsonrpc(server, name)
            assert (told["material"], told["agent"], told["strategy_config"]) == ("", None, {})


async def test_tasks_of_running_failed_and_cancelled_executions_are_told() -> None:
    failing = Reply(text="no", error=ModelFailedError("The model broke off"), error_after=1)
    with ScriptedModel([failing, Reply(text=ANSWER, hold=asyncio.Event())]) as model:
        async with (
            running_server(model=model) as server,
            reasond.AsyncClient(server.grpc, token=server.token) as client,
        ):
            with pytest.raises(reasond.ReasondError) as failed:
                await client.reason("It fails", strategy="chain_of_thought", timeout_s=TIMEOUT_S)
            assert (await task_over_grpc(server, str(failed.value.execution_id))).query == "It fails"
            stream = client.reason_iterations("It is cancelled", strategy="chain_of_thought", timeout_s=TIMEOUT_S)
            async with stream:
                name = (await anext(stream)).execution_id
                assert (await task_over_grpc(server, name)).query == "It is cancelled"
            await client.cancel_execution(name)
            assert (await task_over_jsonrpc(server, name))["query"] == "It is cancelled"


@pytest.mark.parametrize("request_id", ["", "mine"])
async def test_a_server_that_keeps_no_content_tells_no_task(request_id: str, tmp_path: Path) -> None:
    environ = {"REASOND__STORE__RECORD_CONTENT": "false", "REASOND__STORE__URL": f"sqlite:///{tmp_path}/reasond.db"}
    with ScriptedModel([ANSWER]) as model:
        async with running_server(model=model, environ=environ) as server:
            params = {"query": "the secret", "strategy": "chain_of_thought"}
            params |= {"request_id": request_id} if request_id else {}
            name = (await post(server, "reasoning.execute", params))["execution_id"]
            assert await task_over_grpc(server, name) is None
            assert await task_over_jsonrpc(server, name) is None
    assert not find_files_with(b"the secret", tmp_path)


async def test_a_task_outlives_its_server_and_goes_with_its_execution(tmp_path: Path) -> None:
    environ = {"REASOND__STORE__URL": f"sqlite:///{tmp_path}/reasond.db"}
    with ScriptedModel([ANSWER]) as model:
        async with running_server(model=model, environ=environ) as server:
            params = {"query": "kept?", "strategy": "chain_of_thought"}
            name = (await post(server, "reasoning.execute", params))["execution_id"]
    async with (
        running_server(environ=environ) as server,
        reasond.AsyncClient(server.grpc, token=server.token) as client,
    ):
        assert (await task_over_grpc(server, name)).query == "kept?"
        await client.delete_execution(name)
        with pytest.raises(reasond.NotFoundError):
            await task_over_grpc(server, name)
