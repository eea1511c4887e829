"""The rule `auto` is told alike over both wires, in the first event and in the result."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from reasond import AsyncClient, ReasondError, StrategySource
from reasond_server.reasoning import strategy_selection
from reasond_server.testing import FunctionModel, running_server
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from reasond_server.assembly.app import Listening
    from reasond_server.llm.model import ChatModel
    from reasond_server.reasoning.strategy_selection import Fit
    from reasond_server.types import Task

LONG = "The wall has four gates. " * 900
ENABLED = {"REASOND__REASONING__AUTO": "true"}


def small_model() -> FunctionModel:
    return FunctionModel(lambda _: "<answer>four</answer>", context_window=4096)


async def call(server: Listening, task: dict[str, Any]) -> Any:
    request = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": {**task, "auth_token": server.token}}
    async with make_http_client(timeout=120) as http:
        return (await http.post(f"{server.http}/api/v1/jsonrpc", json=request)).json()


@pytest.mark.parametrize("named", [{}, {"strategy": "auto"}])
async def test_a_long_task_is_read_by_bounded_context_and_both_wires_say_so(named: dict[str, str]) -> None:
    config = {"REASOND__REASONING__STRATEGIES__BOUNDED_CONTEXT__DEFAULT_CHUNK_SIZE": "2048"}
    task: dict[str, Any] = {"query": "How many gates?", "material": LONG, **named}
    async with running_server(model=small_model(), environ={**ENABLED, **config}) as server:
        async with AsyncClient(server.grpc, token=server.token) as client:
            events = [event async for event in client.reason_iterations(**task)]
        told = (await call(server, task))["result"]
    result = events[-1].completed
    assert events[0].started.strategy == result.strategy_used == told["strategy_used"] == "bounded_context"
    assert events[0].started.strategy_source == result.strategy_source == StrategySource.STRATEGY_SOURCE_AUTO
    assert told["strategy_source"] == "auto"
    (warning,) = [each for each in result.warnings if "auto" in each]
    assert warning in told["warnings"]
    assert result.answer == told["answer"] == "four"


async def test_without_the_operators_word_the_task_is_refused_as_before() -> None:
    async with running_server(model=small_model()) as server:
        async with AsyncClient(server.grpc, token=server.token) as client:
            with pytest.raises(ReasondError) as refused:
                await client.reason("How many gates?", material=LONG)
            assert refused.value.reason == "CONTEXT_EXHAUSTED"
            with pytest.raises(ReasondError) as unknown:
                await client.reason("How many gates?", strategy="auto")
            assert unknown.value.reason == "STRATEGY_NOT_FOUND"
        answer = await call(server, {"query": "How many gates?", "strategy": "auto"})
    assert json.dumps(answer).count("Strategy not found: 'auto'") >= 1


async def test_a_caller_over_its_limit_causes_no_counting(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[Task] = []
    measure = strategy_selection.measure_fit

    async def watch(task: Task, model: ChatModel) -> Fit:
        counted.append(task)
        return await measure(task, model)

    monkeypatch.setattr(strategy_selection, "measure_fit", watch)
    async with (
        running_server(model=small_model(), environ={**ENABLED, "REASOND__LIMITS__REQUESTS_PER_MINUTE": "1"}) as server,
        AsyncClient(server.grpc, token=server.token) as client,
    ):
        await client.reason("How many gates?")
        with pytest.raises(ReasondError) as refused:
            await client.reason("How many gates?", material=LONG)
    assert (refused.value.reason, len(counted)) == ("RATE_LIMITED", 1)
