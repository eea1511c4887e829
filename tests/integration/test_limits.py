"""Limits per caller on whole servers, over both wires."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import reasond
from reasond_server.testing import FunctionModel, Reply, running_server
from tests.engines.redis_server import running_redis
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.assembly.app import Listening
    from reasond_server.llm.model import ChatRequest

QUERY = "What is 6 times 7?"


async def ask(listening: Listening, query: str = QUERY, **options: Any) -> Any:
    async with reasond.AsyncClient(listening.grpc, token=listening.token) as client:
        return await client.reason(query, **{"strategy": "chain_of_thought", **options})


async def call(listening: Listening) -> Any:
    params = {"auth_token": listening.token, "query": QUERY, "strategy": "chain_of_thought"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": params}
    async with make_http_client(base_url=listening.http) as client:
        return (await client.post("/api/v1/jsonrpc", json=body, timeout=180)).json()


@asynccontextmanager
async def serve_limited(model: FunctionModel | None = None, **limits: object) -> AsyncGenerator[Listening, None]:
    environ = {f"REASOND__LIMITS__{name.upper()}": str(value) for name, value in limits.items()}
    async with running_server(model=model, environ=environ) as listening:
        yield listening


async def refusal(listening: Listening, **options: Any) -> reasond.ReasondError:
    with pytest.raises(reasond.ResourceExhaustedError) as caught:
        await ask(listening, **options)
    return caught.value


async def test_requests_over_the_limit_are_told_when_to_come_back_on_both_wires() -> None:
    async with serve_limited(requests_per_hour=2) as listening:
        assert (await ask(listening)).answer == "42"
        assert (await call(listening))["result"]["answer"] == "42"
        error = await refusal(listening)
        assert error.reason == "RATE_LIMITED"
        assert error.retry_after is not None
        data = (await call(listening))["error"]["data"]
        assert (data["reason"], data["grpc_code"]) == ("RATE_LIMITED", "RESOURCE_EXHAUSTED")
        assert data["retry_after_ms"] > 0


async def test_a_strategy_counts_by_its_weight() -> None:
    async with serve_limited(requests_per_hour=4, weights__chain_of_thought=3) as listening:
        await ask(listening)
        await refusal(listening)
        await ask(listening, strategy="bounded_context")


class Gated:
    """A model that answers after its release, and signals each call."""

    def __init__(self) -> None:
        self.is_asked = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.model = FunctionModel(self.answer)

    def answer(self, _request: ChatRequest) -> Reply:
        self.is_asked.set()
        return Reply(text="<answer>42</answer>", hold=self.may_answer)


async def test_a_place_is_taken_while_the_execution_runs_and_comes_back_on_every_way_out() -> None:
    gated = Gated()
    async with serve_limited(gated.model, concurrent_requests=1) as listening:
        for way_out in ("answered", "left"):
            gated.is_asked.clear()
            gated.may_answer.clear()
            first = asyncio.create_task(ask(listening))
            await gated.is_asked.wait()
            assert "1 executions at once" in str(await refusal(listening))
            if way_out == "left":
                first.cancel()
                await asyncio.wait([first])
            else:
                gated.may_answer.set()
                await first
            gated.may_answer.set()
            async with asyncio.timeout(120):
                while True:
                    try:
                        await ask(listening)
                    except reasond.ResourceExhaustedError:
                        await asyncio.sleep(0)
                    else:
                        break


async def test_of_many_calls_at_once_only_those_are_made_that_the_budget_covers() -> None:
    asked = 0

    def answer(_request: ChatRequest) -> str:
        nonlocal asked
        asked += 1
        return "<answer>42</answer>"

    async with serve_limited(FunctionModel(answer), tokens_per_day=1200) as listening:
        tries = (ask(listening, config={"max_tokens": 1000}) for _ in range(64))
        ends = await asyncio.gather(*tries, return_exceptions=True)
        reasons = {end.reason for end in ends if isinstance(end, reasond.ReasondError)}
        assert reasons == {"TOKEN_BUDGET_EXHAUSTED"}
        spent = sum(end.metrics.total_tokens for end in ends if not isinstance(end, BaseException))
        assert 0 < spent <= 1200
        assert asked == sum(not isinstance(end, BaseException) for end in ends)


async def test_a_run_that_exhausts_the_callers_budget_ends_with_its_partial_result() -> None:
    numbers = itertools.count()
    thoughts = FunctionModel(
        lambda _request: f"<continue>{' '.join(str(next(numbers)) for _ in range(100))}</continue>"
    )
    async with serve_limited(thoughts, tokens_per_day=1000) as listening:
        config = {"chunk_size": 1024, "carryover_size": 512, "carryover_mode": "tail"}
        found = await ask(listening, strategy="bounded_context", config=config)
        assert found.finish_reason == reasond.FinishReason.FINISH_REASON_BUDGET_EXHAUSTED
        assert 0 < found.metrics.total_tokens <= 1000
        assert found.metrics.usage.model_calls > 0


async def test_two_servers_share_one_budget_in_redis_and_health_is_never_limited() -> None:
    async with running_redis() as redis, AsyncExitStack() as stack:
        limits: dict[str, Any] = {
            "storage": "redis",
            "redis_url": redis.url,
            "requests_per_hour": 3,
            "tokens_per_minute": 1_000_000,
        }
        one, two = [await stack.enter_async_context(serve_limited(**limits)) for _ in range(2)]
        for listening in (one, two, one):
            assert (await ask(listening)).answer == "42"
        for listening in (one, two):
            assert (await refusal(listening)).reason == "RATE_LIMITED"
            async with make_http_client(base_url=listening.http) as client:
                assert (await client.get("/healthz")).status_code == 200
        redis.kill()
        assert (await ask(one)).answer == "42"


async def test_a_task_that_a_strategy_refuses_counts_against_the_limit() -> None:
    reasons = []
    async with serve_limited(requests_per_hour=2) as listening:
        for _ in range(3):
            with pytest.raises(reasond.ReasondError) as caught:
                await ask(listening, "<" * 100_000)
            reasons.append(caught.value.reason)
    assert reasons == ["CONTEXT_EXHAUSTED", "CONTEXT_EXHAUSTED", "RATE_LIMITED"]
