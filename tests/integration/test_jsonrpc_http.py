"""The examples of seed 001 as golden cases: a real core, the embedded model, a real socket, curl."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.config import ReasoningSettings, Settings
from reasond_server.demo import DemoModel
from reasond_server.testing import FunctionModel
from tests.unit.http_api.parts import Site, serve

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

INTEREST = "Calculate the compound interest on $10,000 at 5% for 3 years"
RESULT_KEYS = ["answer", "strategy_used", "metrics", "trace"]
METRICS_KEYS = ["total_tokens", "execution_time_ms", "strategy_specific"]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """A site with the embedded model and chain of thought as the default, as in the example of seed 000."""
    async with AsyncExitStack() as stack:
        settings = Settings(reasoning=ReasoningSettings(default_strategy="chain_of_thought"))
        yield await serve(stack, DemoModel(), settings=settings)


async def execute(site: Site, rpc_id: object = 1, **params: Any) -> dict[str, Any]:
    """Post `reasoning.execute` with a token that has the permission of seed 001."""
    named = {"auth_token": site.token("reasoning:execute"), **params}
    response = await site.post({"jsonrpc": "2.0", "method": "reasoning.execute", "params": named, "id": rpc_id})
    assert response.status_code == 200
    answer: dict[str, Any] = response.json()
    assert answer["jsonrpc"] == "2.0"
    assert answer["id"] == rpc_id
    return answer


async def test_the_chain_of_thought_example(site: Site) -> None:
    config = {"temperature": 0.5, "show_reasoning": True}
    answer = await execute(site, query=INTEREST, strategy="chain_of_thought", strategy_config=config)
    assert list(answer) == ["jsonrpc", "result", "id"]
    result = answer["result"]
    assert list(result)[:4] == RESULT_KEYS
    assert "11,576.25" in result["answer"]
    assert result["strategy_used"] == "chain_of_thought"
    metrics = result["metrics"]
    assert list(metrics)[:3] == METRICS_KEYS
    assert isinstance(metrics["total_tokens"], int)
    assert isinstance(metrics["execution_time_ms"], int)
    assert metrics["strategy_specific"] == {
        "temperature": 0.5,
        "max_tokens": 4096,
        "finish_reason": "stop",
        "model": result["model"],
    }
    assert [list(item) for item in result["trace"]] == [["type", "content"]] * 2
    assert [item["type"] for item in result["trace"]] == ["reasoning", "answer"]
    assert result["trace"][1]["content"] == result["answer"]


async def test_without_show_reasoning_there_is_no_trace(site: Site) -> None:
    result = (await execute(site, query=INTEREST, strategy_config={"show_reasoning": False}))["result"]
    assert result["trace"] == []
    assert result["answer"]


async def test_a_smaller_window_alone_takes_a_carryover_that_fits(site: Site) -> None:
    """Seed 001 advises windows of 4K to 8K, and its default carryover is 4096."""
    for size in (2048, 4096, 6000):
        wanted = {"chunk_size": size}
        answer = await execute(site, query=INTEREST, strategy="bounded_context", strategy_config=wanted)
        assert answer["result"]["finish_reason"] == "answered", size


async def test_a_blank_query_is_refused_with_the_sentence_of_seed_001(site: Site) -> None:
    answer = await execute(site, query="  \n")
    expected = "Request validation failed: query must be between 1 and 100000 characters"
    assert answer["error"]["message"].startswith(expected)


async def test_the_bounded_context_example(site: Site) -> None:
    config = {"chunk_size": 8192, "max_iterations": 10}
    result = (await execute(site, query=INTEREST, strategy="bounded_context", strategy_config=config))["result"]
    assert list(result)[:4] == RESULT_KEYS
    assert result["strategy_used"] == "bounded_context"
    specific = result["metrics"]["strategy_specific"]
    assert list(specific)[:3] == ["total_iterations", "compute_savings_pct", "iterations"]
    assert specific["total_iterations"] == len(specific["iterations"]) == len(result["trace"])
    expected = {"iteration", "tokens", "has_answer", "carryover_generated", "execution_time_ms"}
    for number, line in enumerate(specific["iterations"]):
        assert expected <= set(line)
        assert line["iteration"] == number
        assert line["tokens"] <= 8192


async def test_the_react_example_needs_the_permission_for_tools_and_works_without_them(site: Site) -> None:
    config = {"max_iterations": 5, "allow_tool_use": True}
    error = (await execute(site, query="Find the weather", strategy="react", strategy_config=config))["error"]
    missing = "Authorization failed: Missing required permission 'reasoning:tools'"
    assert (error["code"], error["message"]) == (-32603, missing)
    config["allow_tool_use"] = False
    result = (await execute(site, query="What is 15% of 240?", strategy="react", strategy_config=config))["result"]
    assert result["strategy_used"] == "react"
    assert "36" in result["answer"]
    keys = {"total_iterations", "answer_found_at_iteration", "temperature", "max_iterations"}
    assert keys <= set(result["metrics"]["strategy_specific"])
    assert {"iteration", "thought", "action", "observation", "answer_found", "tokens"} <= set(result["trace"][0])


async def test_the_example_with_agent_capabilities_takes_the_first_that_is_available(site: Site) -> None:
    capabilities = ["reasoning.strategy.bounded_context", "reasoning.strategy.chain_of_thought"]
    for offered in (capabilities, ["reasoning.strategy.react", *capabilities], capabilities[:1]):
        result = (await execute(site, query=INTEREST, agent_capabilities=offered))["result"]
        assert f"reasoning.strategy.{result['strategy_used']}" in offered


async def test_without_a_strategy_the_systems_default_works(site: Site) -> None:
    result = (await execute(site, query="What is 15% of 240?", rpc_id="as-text"))["result"]
    assert (result["strategy_used"], result["strategy_source"]) == ("chain_of_thought", "system")
    assert "36" in result["answer"]


@pytest.mark.parametrize(
    ("params", "code", "message"),
    [
        ({"auth_token": None}, -32603, "Authentication required: Missing JWT token. Provide 'auth_token' in params"),
        ({"query": ""}, -32602, "Request validation failed: query must be between 1 and 100000 characters"),
        (
            {"query": "x" * 100_001},
            -32602,
            "Request validation failed: query must be between 1 and 100000 characters",
        ),
        ({"strategy": "custom_strategy"}, -32001, "Strategy not found: 'custom_strategy'"),
        ({"strategy": "nonexistent_strategy"}, -32001, "Strategy not found: 'nonexistent_strategy'"),
    ],
)
async def test_the_common_errors_have_the_code_and_the_message_of_seed_001(
    site: Site, params: dict[str, Any], code: int, message: str
) -> None:
    answer = await execute(site, **{"query": INTEREST, **params})
    assert list(answer) == ["jsonrpc", "error", "id"]
    assert (answer["error"]["code"], answer["error"]["message"]) == (code, message)


async def test_a_missing_permission_has_the_code_and_the_message_of_seed_001(site: Site) -> None:
    answer = await execute(site, query=INTEREST, auth_token=site.token("executions:read"))
    error = answer["error"]
    assert error["code"] == -32603
    assert error["message"] == "Authorization failed: Missing required permission 'reasoning:execute'"


async def test_a_query_of_the_full_length_is_worked_on() -> None:
    async with AsyncExitStack() as stack:
        site = await serve(stack, FunctionModel(lambda _: "<answer>read</answer>"))
        assert (await execute(site, query="\U0001f600" * 100_000))["result"]["answer"] == "read"


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"max_tokens": 99}, "max_tokens"),
        ({"max_tokens": 32769}, "max_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"show_reasoning": "yes"}, "show_reasoning"),
        ({"temprature": 0.5}, "temprature"),
    ],
)
async def test_parameters_out_of_the_ranges_of_seed_001_are_named(
    site: Site, config: dict[str, Any], field: str
) -> None:
    error = (await execute(site, query=INTEREST, strategy="chain_of_thought", strategy_config=config))["error"]
    assert (error["code"], error["data"]["reason"]) == (-32602, "INVALID_CONFIG")
    assert field in error["data"]["violations"][0]["field"]


async def test_the_example_for_curl_is_answered(site: Site, required_program: Callable[[str], str]) -> None:
    payload = {
        "jsonrpc": "2.0",
        "method": "reasoning.execute",
        "params": {
            "auth_token": site.token("reasoning:execute"),
            "query": INTEREST,
            "strategy": "chain_of_thought",
            "strategy_config": {"temperature": 0.5},
        },
        "id": 1,
    }
    output = await curl(
        required_program("curl"),
        *("-X", "POST", f"http://127.0.0.1:{site.server.port}/api/v1/jsonrpc"),
        *("-H", "Content-Type: application/json", "-d", json.dumps(payload)),
    )
    assert "11,576.25" in json.loads(output)["result"]["answer"]


async def test_curl_watches_an_execution(site: Site, required_program: Callable[[str], str]) -> None:
    payload = {"jsonrpc": "2.0", "method": "reasoning.execute", "params": {"query": INTEREST}, "id": 1}
    output = await curl(
        required_program("curl"),
        *("-N", f"http://127.0.0.1:{site.server.port}/api/v1/jsonrpc"),
        *("-H", "Content-Type: application/json", "-H", "Accept: text/event-stream"),
        *("-H", f"Authorization: Bearer {site.token('reasoning:execute')}", "-d", json.dumps(payload)),
    )
    names = [line.removeprefix("event: ") for line in output.splitlines() if line.startswith("event: ")]
    assert names == ["started", "iteration", "completed"]


async def curl(program: str, *arguments: str) -> str:
    """Run curl while this event loop serves it, and return its output."""
    process = await asyncio.create_subprocess_exec(
        program, "--silent", "--show-error", "--fail", *arguments, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0
    return output.decode()
