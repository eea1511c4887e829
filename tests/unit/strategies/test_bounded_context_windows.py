"""Windows of bounded context that follow the model's: known beforehand, or told when the server refuses a prompt."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import reasond
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.testing import FunctionModel, Reply, ScriptedModel, running_server

if TYPE_CHECKING:
    from reasond_server.llm.model import ChatRequest

MATERIAL = "The mill stands at the river and has four wheels.\n\n" * 600


def answer(request: ChatRequest) -> str:
    return "<answer>four</answer>" if "last passage" in str(request.messages) else "<continue>Key Findings: a mill."


async def ask(
    model: FunctionModel | ScriptedModel, *, material: str = MATERIAL, **options: Any
) -> tuple[reasond.Reasoning, Any]:
    async with (
        running_server(model=model) as server,
        reasond.AsyncClient(server.grpc, token=server.token) as client,
    ):
        events = client.reason_iterations("How many wheels?", material=material, strategy="bounded_context", **options)
        found = [event async for event in events]
    return found[-1].completed, found[0].started


@pytest.mark.parametrize("window", [1_536, 2_048, 4_096, 6_000])
async def test_sizes_that_nobody_set_follow_the_window_of_the_model(window: int) -> None:
    model = FunctionModel(answer, context_window=window)
    result, started = await ask(model)
    assert result.answer == "four"
    assert json.loads(started.config_json)["chunk_size"] == window
    assert json.loads(started.config_json)["carryover_size"] == window // 2
    assert any(f"follows the model's window of {window} tokens" in warning for warning in result.warnings)
    for request in model.requests:
        assert model.counter.count_prompt(request.messages) + request.max_tokens <= window


async def test_a_larger_window_changes_nothing() -> None:
    result, started = await ask(FunctionModel(answer, context_window=100_000))
    assert json.loads(started.config_json)["chunk_size"] == 8_192
    assert not any("follows" in warning for warning in result.warnings)


async def test_a_size_that_was_set_is_refused_beyond_the_window_as_before() -> None:
    with pytest.raises(reasond.InvalidRequestError) as refused:
        await ask(FunctionModel(answer, context_window=4_096), config={"chunk_size": 8_192})
    assert "context window of 4096 tokens" in str(refused.value)


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("config", [None, {"chunk_size": 8_192}])
async def test_a_server_that_refuses_the_first_window_gets_smaller_ones(
    config: dict[str, Any] | None, *, is_told: bool
) -> None:
    refused: list[ChatRequest] = []

    def reply(request: ChatRequest) -> str | Reply:
        if model.counter.count_prompt(request.messages) + request.max_tokens > 4_096:
            refused.append(request)
            metadata = {"status": "400"} | ({"context_window": "4096"} if is_told else {})
            return Reply(error=ContextExhaustedError("too long", metadata=metadata))
        return answer(request)

    model = FunctionModel(reply)
    result, _ = await ask(model, config=config)
    assert result.answer == "four"
    assert len(refused) == 1
    assert result.metrics.usage.model_calls == len(model.requests) - 1
    assert any("chunk_size was lowered from 8192" in warning for warning in result.warnings)


@pytest.mark.parametrize("before", [1, 2])
@pytest.mark.parametrize("mode", ["tail", "hybrid", "summary"])
async def test_a_server_that_refuses_a_later_window_gets_smaller_ones_and_the_whole_text_is_read(
    mode: str, before: int
) -> None:
    read: list[str] = []

    def reply(request: ChatRequest) -> str | Reply:
        is_long = model.counter.count_prompt(request.messages) + request.max_tokens > 4_096
        if len(read) >= before and is_long:
            metadata = {"status": "400", "context_window": "4096"}
            return Reply(error=ContextExhaustedError("too long", metadata=metadata))
        read.append(str(request.messages))
        return answer(request)

    model = FunctionModel(reply)
    material = "".join(f"Wheel number {number} is at the river.\n\n" for number in range(2_000))
    result, _ = await ask(model, material=material, config={"chunk_size": 8_192, "carryover_mode": mode})
    assert result.answer == "four"
    assert result.finish_reason == reasond.FinishReason.FINISH_REASON_ANSWERED
    assert len(model.requests) == len(read) + 1
    whole = "".join(read)
    assert [number for number in range(2_000) if f"Wheel number {number} " not in whole] == []
    assert any("chunk_size was lowered from 8192" in warning for warning in result.warnings)


@pytest.mark.parametrize("piece", ["a", "The mill is at the river. ", "- and then\n", "x" * 500 + "\n"])
@pytest.mark.parametrize("chunk", [1, 700])
async def test_a_window_that_repeats_itself_is_ended_early(piece: str, chunk: int) -> None:
    loop = ("The wheels are four. " + piece * 50_000)[:60_000]
    pieces = [loop[at : at + chunk] for at in range(0, len(loop), chunk)]
    model = ScriptedModel([Reply(text=loop, pieces=pieces), "<answer>four</answer>", "<answer>four</answer>"])
    result, _ = await ask(model, material="", config={"chunk_size": 32_768, "carryover_mode": "tail"})
    assert result.answer == "four"
    assert result.metrics.usage.output_tokens < 10_000
    assert any("over and over" in warning for warning in result.warnings)
