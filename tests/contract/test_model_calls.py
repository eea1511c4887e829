"""Prompts and replies of model calls are kept where the operator says so, with the run, for its tenant, in bounds."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import reasond
from reasond_server.runs.recorded_calls import MOST_CHARACTERS_OF_CALL, MOST_CHARACTERS_OF_RUN
from reasond_server.testing import FunctionModel, Reply, running_server
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from pathlib import Path

    from reasond_server.assembly.app import Listening
    from reasond_server.llm.model import ChatRequest

KEPT = {"REASOND__STORE__RECORD_PROMPTS": "true"}
MODEL = FunctionModel(lambda _: "It is so. <answer>12</answer>", name="scripted")


async def post(server: Listening, method: str, **params: Any) -> Any:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "auth_token": server.token}}
    async with make_http_client(base_url=server.http, timeout=180) as client:
        return (await client.post("/api/v1/jsonrpc", json=body)).json()


async def list_calls(server: Listening, execution_id: str, **params: Any) -> Any:
    return (await post(server, "executions.list_calls", execution_id=execution_id, **params))["result"]


@pytest.mark.parametrize("is_durable", [False, True], ids=["memory", "sqlite"])
async def test_both_wires_tell_what_each_call_was_sent_and_what_came_back(tmp_path: Path, *, is_durable: bool) -> None:
    environ = {**KEPT, **({"REASOND__STORE__URL": f"sqlite:///{tmp_path / 'r.db'}"} if is_durable else {})}
    async with (
        running_server(environ=environ, model=MODEL) as server,
        reasond.AsyncClient(server.grpc, token=server.token) as client,
    ):
        result = await client.reason(
            "How many posts?", strategy="self_consistency", config={"samples": 3}, system="Count well.", timeout_s=180
        )
        calls = [call async for call in client.list_model_calls(result.execution_id, page_size=2)]
        told = await list_calls(server, result.execution_id)
    assert [call.number for call in calls] == [*range(1, result.metrics.usage.model_calls + 1)]
    assert len(calls) > 1
    for call, in_json in zip(calls, told["calls"], strict=True):
        assert "How many posts?" in call.prompt[-1].text
        assert "Count well." in call.prompt[0].text
        assert [each.text for each in call.prompt] == [each["text"] for each in in_json["prompt"]]
        assert call.text.startswith("It is so.")
        assert (in_json["model"], in_json["outcome"], in_json["left_out_characters"]) == ("scripted", "stop", 0)
    assert sum(call.usage.output_tokens for call in calls) == result.metrics.usage.output_tokens
    assert told["next_page_token"] == ""


async def test_turns_have_their_calls_too() -> None:
    async with running_server(environ=KEPT) as server:
        turn = (await post(server, "turns.start", message="What is 15% of 240?"))["result"]["turn"]
        told = await list_calls(server, turn["turn_id"])
    assert len(told["calls"]) == turn["usage"]["model_calls"] > 0
    assert "15% of 240" in "".join(each["text"] for each in told["calls"][0]["prompt"])


@pytest.mark.parametrize(
    "environ", [{}, {**KEPT, "REASOND__STORE__RECORD_CONTENT": "false"}], ids=["by default", "without content"]
)
async def test_nothing_is_kept_unless_the_operator_keeps_it_and_content(environ: dict[str, str]) -> None:
    async with running_server(environ=environ, model=MODEL) as server:
        result = (await post(server, "reasoning.execute", query="How many?", strategy="chain_of_thought"))["result"]
        assert await list_calls(server, result["execution_id"]) == {"calls": [], "next_page_token": ""}


async def test_they_go_with_their_run() -> None:
    async with running_server(environ=KEPT, model=MODEL) as server:
        result = (await post(server, "reasoning.execute", query="How many?", strategy="chain_of_thought"))["result"]
        name = result["execution_id"]
        assert len((await list_calls(server, name))["calls"]) == 1
        await post(server, "executions.delete", execution_id=name)
        refused = await post(server, "executions.list_calls", execution_id=name)
    assert refused["error"]["data"]["reason"] == "EXECUTION_NOT_FOUND"


async def test_a_run_that_is_stopped_has_the_call_that_it_was_in() -> None:
    hold, begun = asyncio.Event(), asyncio.Event()

    def reply(_request: ChatRequest) -> Reply:
        begun.set()
        return Reply(pieces=("First half, ", "second half."), hold=hold, hold_after=1)

    async with (
        running_server(environ=KEPT, model=FunctionModel(reply, name="slow")) as server,
        reasond.AsyncClient(server.grpc, token=server.token) as client,
    ):
        async with client.reason_iterations("Hold.", strategy="chain_of_thought", include_deltas=True) as stream:
            async for event in stream:
                if event.WhichOneof("event") == "delta":
                    break
            name = event.execution_id
            await client.cancel_execution(name)
        calls = (await list_calls(server, name))["calls"]
        found = (await post(server, "executions.get", execution_id=name))["result"]
    assert begun.is_set()
    assert [(call["text"], call["outcome"]) for call in calls] == [("First half, ", "closed")]
    assert "First half" in str(found["reasoning"]["trace"])


async def test_long_prompts_are_shortened_in_their_middle_and_pages_stay_small() -> None:
    material = "x" * 200_000 + "the end"
    answers = iter(range(1_000))
    # No two samples agree, so that all are taken.
    model = FunctionModel(lambda _: f"It is so. <answer>{next(answers)}</answer>", name="scripted")
    async with running_server(environ=KEPT, model=model) as server:
        params = {"query": "How many?", "material": material, "strategy": "self_consistency"}
        config = {"samples": 20}
        result = (await post(server, "reasoning.execute", **params, strategy_config=config))["result"]
        calls, token = [], ""
        while True:
            page = await list_calls(server, result["execution_id"], page_token=token, page_size=100)
            calls += page["calls"]
            token = page["next_page_token"]
            if not token:
                break
            assert len(page["calls"]) < 10
    sizes = [sum(len(each["text"]) for each in call["prompt"]) + len(call["text"]) for call in calls]
    assert len(calls) == 20
    assert max(sizes) <= MOST_CHARACTERS_OF_CALL + 100
    assert sum(sizes) <= MOST_CHARACTERS_OF_RUN + 2_000
    # The figures of all calls are kept, and of the first ones the texts, with their end.
    assert all(call["usage"]["output_tokens"] for call in calls)
    assert "the end" in "".join(each["text"] for each in calls[0]["prompt"])
    assert calls[0]["left_out_characters"] > 100_000
    assert calls[-1]["left_out_characters"] > calls[0]["left_out_characters"]


@pytest.mark.parametrize("params", [{"page_size": -1}, {"page_token": "WzEsMl0="}])
async def test_a_page_that_cannot_be_is_refused(params: dict[str, Any]) -> None:
    async with running_server(environ=KEPT, model=MODEL) as server:
        result = (await post(server, "reasoning.execute", query="How many?", strategy="chain_of_thought"))["result"]
        refused = await post(server, "executions.list_calls", execution_id=result["execution_id"], **params)
    assert refused["error"]["data"]["reason"] == "INVALID_REQUEST"
