"""Steps that a strategy makes at the same time: each is told with its own cost, and none waits for a later one."""

from __future__ import annotations

import asyncio

import pytest

from reasond import AsyncClient
from reasond_server.testing import FunctionModel, Reply, running_server
from tests.unit.strategies.test_chain_of_verification import reply as verify


@pytest.mark.parametrize("strategy", ["self_consistency", "best_of_n", "chain_of_verification"])
async def test_every_parallel_step_costs_what_its_own_call_cost(strategy: str) -> None:
    model = FunctionModel(
        verify
        if strategy == "chain_of_verification"
        else lambda _: f"{'so ' * len(model.requests)}<answer>{len(model.requests) % 7}</answer>"
    )
    async with running_server(model=model) as listening, AsyncClient(listening.grpc, token=listening.token) as client:
        async with client.reason_iterations("6 times 7?", strategy=strategy) as events:
            steps = [event.iteration async for event in events if event.HasField("iteration")]
        result = events.result
    assert [step.usage.model_calls for step in steps] == [1] * len(model.requests)
    assert all(step.usage.input_tokens and step.usage.output_tokens for step in steps)
    assert result is not None
    assert sum(step.usage.input_tokens + step.usage.output_tokens for step in steps) == result.metrics.total_tokens


@pytest.mark.parametrize("strategy", ["self_consistency", "best_of_n"])
async def test_a_sample_is_told_while_those_after_it_are_still_written(strategy: str) -> None:
    hold = asyncio.Event()
    model = FunctionModel(
        lambda request: Reply(text="<answer>42</answer>", hold=hold if request.label == "sample 1" else None)
    )
    async with (
        running_server(model=model) as listening,
        AsyncClient(listening.grpc, token=listening.token) as client,
        client.reason_iterations("6 times 7?", strategy=strategy) as events,
    ):
        async with asyncio.timeout(60):
            async for event in events:
                if event.HasField("iteration"):
                    break
        assert (len(model.requests) > 1, hold.is_set()) == (True, False)
        hold.set()
