"""A scrape after mixed work agrees with all callers, with the strategies, and with the model server."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from importlib import resources
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from reasond import AsyncClient, Budget, ReasondError
from reasond.v1 import execution_pb2, reasoning_service_pb2, reasoning_service_pb2_grpc
from reasond_server.testing import running_server
from tests.faults.upstream import DONE, STREAM_HEAD, chunk, event, upstream
from tests.http_clients import make_http_client

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.assembly.app import Listening
    from tests.faults.upstream import Conversation

STRATEGIES = (
    "bounded_context",
    "chain_of_thought",
    "best_of_n",
    "self_refine",
    "chain_of_verification",
    "react",
    "plan_and_solve",
    "self_consistency",
    "tree_of_thought",
)
GRPC = 'method="reasond.v1.ReasoningService/{}",transport="grpc"'
LIMIT_S = 180.0
# The usage that the model server reports for every answer.
INPUT, OUTPUT, CACHED, REASONING = 100, 10, 60, 3
USAGE = event(
    {
        "choices": [],
        "usage": {
            "prompt_tokens": INPUT,
            "completion_tokens": OUTPUT,
            "prompt_tokens_details": {"cached_tokens": CACHED},
            "completion_tokens_details": {"reasoning_tokens": REASONING},
        },
    }
)
CALCULATE = {"index": 0, "id": "c1", "function": {"name": "calculator", "arguments": '{"expression": "6*7"}'}}


class Backend:
    """A model server that counts its answers. With BUSY and BROKEN in a question it fails once; with HOLD it waits."""

    def __init__(self) -> None:
        self.answered = 0
        self.refused: set[str] = set()
        self.held = asyncio.Event()

    async def __call__(self, conversation: Conversation) -> None:
        if not conversation.body:
            await conversation.answer("404 Not Found", b"{}")
            return
        body = conversation.json
        asked = json.dumps(body["messages"])
        for word, status in (("BUSY", "429 Too Many Requests"), ("BROKEN", "500 Internal Server Error")):
            if word in asked and word not in self.refused:
                self.refused.add(word)
                await conversation.answer(status, b"{}", "retry-after-ms: 1")
                return
        if "HOLD" in asked:
            self.held.set()
            await conversation.until_gone()
            return
        self.answered += 1
        has_result = any(message["role"] == "tool" for message in body["messages"])
        if body.get("tools") and not has_result:
            called = event({"choices": [{"index": 0, "delta": {"tool_calls": [CALCULATE]}, "finish_reason": None}]})
            said = called + chunk(finish="tool_calls")
        else:
            said = chunk("<answer>42") + chunk(finish="stop")
        await conversation.send(STREAM_HEAD + b"connection: close\r\n\r\n" + said + USAGE + DONE)


async def scrape(listening: Listening) -> Mapping[str, float]:
    async with make_http_client() as client:
        text = (await client.get(listening.metrics)).text
    lines = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def total(found: Mapping[str, float], name: str, *with_labels: str) -> float:
    """Return the sum of the series of `name` that have all these labels."""
    return sum(
        value
        for series, value in found.items()
        if series.startswith(f"{name}{{") and all(label in series for label in with_labels)
    )


def require_budget_spent(found: Mapping[str, float]) -> None:
    """Fail unless the reserved tokens of budgets equal the used ones plus the released ones."""
    budget = {name: found[f'reasond_budget_tokens_total{{event="{name}"}}'] for name in ("reserved", "settled")}
    spent = total(found, "reasond_tokens_total", 'kind="input"') + total(found, "reasond_tokens_total", 'kind="output"')
    assert budget["settled"] == spent
    assert budget["reserved"] == spent + found['reasond_budget_tokens_total{event="refunded"}']


async def ask_and_leave(listening: Listening, plays: Backend) -> None:
    """Send a request without a request id, and disconnect while the model works."""
    task = execution_pb2.ReasoningTask(query="HOLD", strategy="chain_of_thought")
    async with grpc.aio.insecure_channel(listening.grpc) as channel:
        stub: Any = reasoning_service_pb2_grpc.ReasoningServiceStub(channel)
        metadata = (("authorization", f"Bearer {listening.token}"),)
        call = stub.Reason(reasoning_service_pb2.ReasonRequest(task=task), metadata=metadata)
        asking = asyncio.ensure_future(call.code())
        await plays.held.wait()
        call.cancel()
        assert await asking == grpc.StatusCode.CANCELLED


async def use(listening: Listening, plays: Backend) -> None:
    """Run every strategy twice, cause failures of the model server and refusals, disconnect, and use unknown names."""
    async with AsyncClient(listening.grpc, token=listening.token) as client:
        for strategy in STRATEGIES:
            config = {"allow_tool_use": True} if strategy == "react" else {}
            await client.reason("What is 6 * 7?", strategy=strategy, config=config)
            async for _ in client.reason_iterations("What is 6 * 7?", strategy=strategy):
                pass
        for question in ("BUSY?", "BROKEN?"):
            await client.reason(question, strategy="chain_of_thought")
        with suppress(ReasondError):
            await client.reason("What is 6 * 7?", strategy="chain_of_thought", budget=Budget(max_total_tokens=1))
        for number in range(20):
            with suppress(ReasondError):
                await client.reason("What?", strategy=f"made_up_{number}")
    await ask_and_leave(listening, plays)
    async with make_http_client(base_url=listening.http) as stranger:
        for number in range(20):
            made_up = {"jsonrpc": "2.0", "id": 1, "method": f"made.up.{number}", "params": {}}
            await stranger.post("/api/v1/jsonrpc", json=made_up)
            await stranger.get(f"/made/up/{number}")


async def test_a_scrape_after_mixed_work_says_exactly_what_was_done() -> None:
    plays = Backend()
    async with upstream(plays) as server:
        environ = {
            "REASOND__METRICS__ADDRESS": "127.0.0.1:0",
            "REASOND__LLM__PROVIDER": "openai",
            "REASOND__LLM__MODEL": "fake",
            "REASOND__LLM__BASE_URL": server.address,
            "REASOND__LLM__FIRST_WAIT_S": "0.01",
            "REASOND__LIMITS__TOKENS_PER_DAY": "10000000",
        }
        async with running_server(environ=environ) as listening:
            await use(listening, plays)
            ends = 'reasond_executions_total{finish_reason="cancelled",strategy="chain_of_thought"}'
            async with asyncio.timeout(LIMIT_S):
                while not (found := await scrape(listening)).get(ends):  # noqa: ASYNC110 - the state is visible only in a scrape
                    await asyncio.sleep(0.05)
        attempts = sum(conversation.body != b"" for conversation in server.conversations)

    unary, stream = GRPC.format("Reason"), GRPC.format("ReasonIterations")
    assert found[f'reasond_calls_total{{code="OK",{unary}}}'] == len(STRATEGIES) + 2
    assert found[f'reasond_calls_total{{code="OK",{stream}}}'] == len(STRATEGIES)
    assert found[f'reasond_calls_total{{code="CANCELLED",{unary}}}'] == 1
    assert found[f'reasond_calls_total{{code="NOT_FOUND",{unary}}}'] == 20
    assert found['reasond_calls_total{code="UNIMPLEMENTED",method="other",transport="jsonrpc"}'] == 20
    assert found['reasond_http_requests_total{route="other",status="404"}'] == 20
    assert not any("made" in series for series in found)
    assert found['reasond_streams_open{transport="grpc"}'] == found["reasond_executions_running"] == 0

    for strategy in STRATEGIES:
        is_more = 2 if strategy == "chain_of_thought" else 0
        answered = f'reasond_executions_total{{finish_reason="answered",strategy="{strategy}"}}'
        assert found[answered] == 2 + is_more
    assert found['reasond_executions_total{finish_reason="failed",strategy="chain_of_thought"}'] == 1
    assert found[ends] == 1
    assert total(found, "reasond_executions_total") == 2 * len(STRATEGIES) + 4

    # The abandoned call is charged by our own count; the model server reported the usage of all others.
    calls = "reasond_model_calls_total"
    by_server = total(found, calls, 'outcome="stop"') + total(found, calls, 'outcome="tool_calls"')
    assert by_server == plays.answered
    assert found['reasond_model_calls_total{model="fake",outcome="closed"}'] == 1
    assert total(found, "reasond_tokens_total", 'kind="cached_input"') == CACHED * plays.answered
    assert total(found, "reasond_tokens_total", 'kind="reasoning"') == REASONING * plays.answered
    others = [strategy for strategy in STRATEGIES if strategy != "chain_of_thought"]
    for strategy in others:
        of = f'strategy="{strategy}"'
        made = total(found, "reasond_tokens_total", 'kind="output"', of) / OUTPUT
        assert made == int(made) > 0
        assert total(found, "reasond_tokens_total", 'kind="input"', of) == INPUT * made
    assert found['reasond_model_retries_total{backend="llm",reason="MODEL_RATE_LIMITED"}'] == 1
    assert found['reasond_model_retries_total{backend="llm",reason="MODEL_UNAVAILABLE"}'] == 1
    assert total(found, calls) + total(found, "reasond_model_retries_total") == attempts
    assert total(found, "reasond_model_call_duration_seconds_count", 'model="fake"') == total(found, calls)
    assert found['reasond_model_first_content_seconds_count{model="fake"}'] == plays.answered
    assert found['reasond_tool_calls_total{outcome="ok",tool="calculator"}'] == 1
    require_budget_spent(found)


async def test_the_metrics_of_savings_equal_those_that_the_caller_receives() -> None:
    book = resources.files("reasond_server").joinpath("demo/data/opticks.txt").read_text("utf-8")[:16_000]
    question = "What is the only remedy for the confusion caused by the tremors of the air?"
    config = {"chunk_size": 2048, "carryover_size": 512}
    async with running_server(environ={"REASOND__METRICS__ADDRESS": "127.0.0.1:0"}) as listening:
        async with AsyncClient(listening.grpc, token=listening.token) as client:
            result = await client.reason(question, material=book, strategy="bounded_context", config=config)
        found = await scrape(listening)
    told = result.metrics.bounded_context
    for baseline, savings in (("single_pass", told.savings), ("reprompt", told.reprompt_savings)):
        for measure in ("attention", "kv_read", "tokens"):
            of = f'{{baseline="{baseline}",measure="{measure}"}}'
            assert found[f"reasond_compute_ratio_count{of}"] == 1
            saved = getattr(savings, f"{measure}_pct") / 100
            assert found[f"reasond_compute_ratio_sum{of}"] == pytest.approx(1 - saved)
    assert told.savings.attention_pct > 0
    assert found['reasond_steps_total{strategy="bounded_context"}'] == told.total_iterations == len(told.iterations)
