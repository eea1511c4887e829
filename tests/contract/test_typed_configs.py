"""Every parameter of every built-in strategy reaches it over both wires, and is in its schema."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import reasond
from reasond import AsyncClient
from reasond.v1 import execution_pb2
from reasond_server.reasoning.registry import STRATEGIES
from reasond_server.testing import FunctionModel, running_server
from tests.http_clients import make_http_client
from tests.sandboxing import PROGRAMS

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.assembly.app import Listening
    from reasond_server.llm.model import ChatRequest

CASES = {
    field.name: field.message_type
    for field in execution_pb2.ReasoningTask.DESCRIPTOR.oneofs_by_name["config"].fields
    if field.name != "custom" and field.message_type is not None
}
TYPES = {name: getattr(reasond, message.name) for name, message in CASES.items()}
"""The class that the client exports for each of them."""
INSTALLED = {point.name: point for point in STRATEGIES.find_installed() if point.value.startswith("reasond_server.")}
# Legal values that differ from the defaults; enums have their JSON names.
CONFIGS: dict[str, dict[str, Any]] = {
    "best_of_n": {
        "samples": 3,
        "temperature": 0.25,
        "max_tokens": 200,
        "max_judge_tokens": 150,
        "min_score": 0.5,
        "verifier": "program",
        "check_program": "print(open('answer.txt').read())",
        "max_check_s": 60.0,
        "judge": "expected_score",
    },
    "chain_of_thought": {"max_tokens": 321, "temperature": 0.25, "show_reasoning": False},
    "bounded_context": {
        "chunk_size": 4096,
        "carryover_size": 600,
        "max_iterations": 3,
        "carryover_mode": "summary",
        "max_segments": 77,
        "temperature": 0.25,
    },
    "react": {
        "max_iterations": 3,
        "max_tokens_per_step": 300,
        "temperature": 0.25,
        "allow_tool_use": True,
        "max_tool_calls": 4,
    },
    "tree_of_thought": {
        "max_depth": 2,
        "branching": 2,
        "beam_width": 1,
        "search": "best_first",
        "evaluator": "vote",
        "max_tokens_per_thought": 128,
        "temperature": 0.25,
        "max_model_calls": 17,
        "seed": 2**40,
    },
    "direct": {"max_tokens": 300, "temperature": 0.25, "top_logprobs": 2},
    "chain_of_verification": {
        "max_questions": 2,
        "max_tokens": 333,
        "max_check_tokens": 222,
        "temperature": 0.25,
    },
    "program_of_thought": {"max_attempts": 3, "max_tokens": 333, "max_program_s": 2.5, "temperature": 0.25},
    "plan_and_solve": {"max_plan_tokens": 222, "max_tokens": 333, "temperature": 0.25},
    "self_refine": {"max_rounds": 2, "max_tokens": 200, "max_critique_tokens": 150, "temperature": 0.25},
    "self_aggregation": {"chains": 3, "group": 2, "rounds": 2, "temperature": 0.25, "max_tokens": 200},
    "self_consistency": {
        "samples": 3,
        "temperature": 0.25,
        "max_tokens": 200,
        "min_agreement": 0.5,
        "confidence": 1.0,
        "weigh_votes": True,
    },
}


def reply(request: ChatRequest) -> str:
    """Answer 42, also by a program, and judge every solution with full marks."""
    is_judging = "from 0 (certainly wrong)" in request.messages[-1].content
    return "<answer>10</answer>" if is_judging else "```python\nprint(42)\n```\n<answer>42</answer>"


@pytest.fixture
async def server() -> AsyncGenerator[Listening, None]:
    enabled = json.dumps(sorted(INSTALLED))
    model = FunctionModel(reply)
    model.most_logprobs = 20
    environ = {"REASOND__REASONING__ENABLED_STRATEGIES": enabled, **PROGRAMS}
    async with running_server(model=model, environ=environ) as listening:
        yield listening


def test_every_built_in_strategy_has_a_typed_config_and_vice_versa() -> None:
    assert set(INSTALLED) == set(CASES) == set(CONFIGS)


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_typed_config_has_the_parameters_of_its_strategy(name: str) -> None:
    parameters = INSTALLED[name].load().config_type.model_fields
    assert {field.name for field in CASES[name].fields} == set(parameters) == set(CONFIGS[name])


@pytest.mark.parametrize("name", sorted(CASES))
async def test_every_parameter_reaches_the_strategy_from_both_wires(server: Listening, name: str) -> None:
    sent = CONFIGS[name]
    async with AsyncClient(server.grpc, token=server.token) as client:
        stream = client.reason_iterations("What is 6 times 7?", strategy=name, config=sent)
        events = [event async for event in stream]
    started = json.loads(events[0].started.config_json)
    assert started == sent
    params = {"query": "6 times 7?", "strategy": name, "strategy_config": sent, "auth_token": server.token}
    request = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.execute", "params": params}
    async with make_http_client(headers={"Accept": "text/event-stream"}) as http:
        lines = (await http.post(f"{server.http}/api/v1/jsonrpc", json=request)).text.splitlines()
    first = json.loads(next(line for line in lines if line.startswith("data: ")).removeprefix("data: "))
    assert first["started"]["config"] == sent
    assert "42" in events[-1].completed.answer


async def test_a_config_alone_selects_its_strategy(server: Listening) -> None:
    async with AsyncClient(server.grpc, token=server.token) as client:
        for name in CASES:
            result = await client.reason("What is 6 times 7?", config=TYPES[name]())
            assert result.strategy_used == name


async def test_strategies_are_listed_alike_over_both_wires_with_schema_ceilings_and_cost() -> None:
    enabled = json.dumps(sorted(INSTALLED))
    environ = {
        "REASOND__REASONING__ENABLED_STRATEGIES": enabled,
        "REASOND__REASONING__STRATEGIES__REACT__MAX_ALLOWED_ITERATIONS": "20",
        "REASOND__REASONING__STRATEGIES__REACT__DEFAULT_MAX_ITERATIONS": "8",
    }
    async with running_server(environ=environ) as server:
        async with AsyncClient(server.grpc, token=server.token) as client:
            over = {one.name: one for one in (await client.list_strategies()).strategies}
        params = {"auth_token": server.token}
        request = {"jsonrpc": "2.0", "id": 1, "method": "reasoning.list_strategies", "params": params}
        async with make_http_client() as http:
            told = (await http.post(f"{server.http}/api/v1/jsonrpc", json=request)).json()["result"]["strategies"]
            card = (await http.get(f"{server.http}/.well-known/agent-card.json")).json()
    assert [one["name"] for one in told] == sorted(over) == sorted(INSTALLED)
    for one in told:
        message = over[one["name"]]
        assert json.loads(message.config_schema_json) == one["config_schema"]
        assert json.loads(message.default_config_json) == one["default_config"]
        assert json.loads(message.ceilings_json) == one["ceilings"]
        assert list(message.capabilities) == one["capabilities"]
        assert (message.description, message.cost_formula) == (one["description"], one["cost_formula"])
        assert message.cost_class
        assert one["cost_class"] in {"constant", "linear", "sampled", "search"}
    assert [skill["id"] for skill in card["skills"]] == [f"reasoning.strategy.{name}" for name in sorted(INSTALLED)]
    react = next(one for one in told if one["name"] == "react")
    assert react["ceilings"] == {"max_iterations": 20}
    assert react["config_schema"]["properties"]["max_iterations"]["maximum"] == 20
    assert react["default_config"]["max_iterations"] == 8
