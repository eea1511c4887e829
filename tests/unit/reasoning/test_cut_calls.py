"""What a model had written when its call was cut off: a step of the log, in every strategy, however the call ended."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

import reasond
from reasond_server.errors.model import ModelFailedError, ModelUnavailableError
from reasond_server.testing import FunctionModel, Reply, ScriptedModel, running_server
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from reasond_server.llm.model import ChatRequest

STRATEGIES = (
    *("direct", "chain_of_thought", "bounded_context", "react", "tree_of_thought", "self_consistency"),
    *("best_of_n", "self_refine", "plan_and_solve", "chain_of_verification"),
)
ENABLED = {"REASOND__REASONING__ENABLED_STRATEGIES": json.dumps(STRATEGIES)}
FULL = reasond.TraceView.TRACE_VIEW_FULL
HALF = "The mill has four wheels, and each of them tu"


def list_steps(result: reasond.Reasoning) -> list[Any]:
    return [step.thought for step in result.trace if step.HasField("thought")]


def break_off(_request: ChatRequest) -> Reply:
    return Reply(text=HALF, error=ModelUnavailableError("the connection broke"), error_after=len(HALF))


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_the_text_of_a_broken_call_is_a_step_and_is_charged(strategy: str) -> None:
    model = FunctionModel(break_off)
    async with (
        running_server(model=model, environ=ENABLED) as server,
        reasond.AsyncClient(server.grpc, token=server.token) as client,
    ):
        with pytest.raises(reasond.ModelError) as failed:
            await client.reason("How many wheels?", strategy=strategy)
        kept = (await client.get_execution(str(failed.value.execution_id), trace_view=FULL)).reasoning
    steps = list_steps(kept)
    assert [step.text for step in steps] == [HALF] * len(model.requests)
    assert steps[-1].answer == ""
    assert kept.metrics.usage.output_tokens == len(model.requests) * model.counter.count_text(HALF)
    assert any("had written when it was cut off" in warning for warning in kept.warnings)


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_the_text_of_a_cancelled_call_is_a_step(strategy: str) -> None:
    begun = asyncio.Event()

    def hang(_request: ChatRequest) -> Reply:
        asyncio.get_running_loop().call_later(0.05, begun.set)
        return Reply(pieces=[HALF, "rns"], hold=asyncio.Event(), hold_after=1)

    async with (
        running_server(model=FunctionModel(hang), environ=ENABLED) as server,
        reasond.AsyncClient(server.grpc, token=server.token) as client,
    ):
        events = client.reason_iterations("How many wheels?", strategy=strategy, keep_running=True)
        execution_id = (await anext(events)).execution_id
        await begun.wait()
        await client.cancel_execution(execution_id)
        kept = [event async for event in client.resume(execution_id)]
    texts = [event.iteration.thought.text for event in kept if event.HasField("iteration")]
    assert texts
    assert set(texts) == {HALF}
    assert kept[-1].completed.finish_reason == reasond.FinishReason.FINISH_REASON_CANCELLED


async def test_the_error_over_json_has_the_step_as_its_partial_result() -> None:
    async with running_server(model=FunctionModel(break_off)) as server:
        headers = {"authorization": f"Bearer {server.token}"}
        async with make_http_client(base_url=server.http, headers=headers) as http:
            params = {"query": "How many wheels?", "strategy": "chain_of_thought"}
            call = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": params}
            answer = (await http.post("/api/v1/jsonrpc", json=call)).json()
    assert HALF in json.dumps(answer["error"]["data"]["partial"])


async def test_the_parts_of_a_cut_reply_stay_apart() -> None:
    text = "<think>Four, I think.</think>It has wheels.<answer>The mill has fo"
    model = ScriptedModel([Reply(text=text, error=ModelFailedError("broke"), reasoning="Hm. ")])
    async with (
        running_server(model=model) as server,
        reasond.AsyncClient(server.grpc, token=server.token) as client,
    ):
        with pytest.raises(reasond.ModelError) as failed:
            await client.reason("How many wheels?", strategy="chain_of_thought")
        (step,) = list_steps((await client.get_execution(str(failed.value.execution_id), trace_view=FULL)).reasoning)
    assert (step.text, step.answer) == ("Hm. Four, I think.\n\nIt has wheels.", "The mill has fo")


async def test_reasoning_that_is_not_shown_is_not_kept_either() -> None:
    model = ScriptedModel([Reply(text=HALF, error=ModelFailedError("broke"))])
    async with (
        running_server(model=model) as server,
        reasond.AsyncClient(server.grpc, token=server.token) as client,
    ):
        with pytest.raises(reasond.ModelError) as failed:
            await client.reason("How?", strategy="chain_of_thought", config={"show_reasoning": False})
        kept = (await client.get_execution(str(failed.value.execution_id), trace_view=FULL)).reasoning
    assert not kept.trace


async def test_a_sample_that_broke_is_a_step_beside_the_votes_of_the_others() -> None:
    replies: list[str | Reply] = [
        "<answer>4</answer>",
        Reply(text=HALF, error=ModelFailedError("broke")),
        "<answer>4</answer>",
    ]
    async with (
        running_server(model=ScriptedModel(replies)) as server,
        reasond.AsyncClient(server.grpc, token=server.token) as client,
    ):
        result = await client.reason(
            "How many?",
            strategy="self_consistency",
            config={"samples": 3},
            trace_view=FULL,
        )
    assert result.answer == "4"
    assert [step.text for step in list_steps(result)] == [HALF]
    assert any("Step 1 is what a model call had written" in warning for warning in result.warnings)
