from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic_core import to_json

from reasond_server.errors.request import InvalidRequestError
from reasond_server.http_api.json_mapping import build_task_json
from reasond_server.http_api.params import ExecuteParams, ExecutionParams, ListExecutionsParams, read_params
from reasond_server.requests.task_checks import check_task
from reasond_server.types import Budget, FinishReason, Task
from tests.unit.grpc_api.test_reasoning_servicer_task_conversion import WHOLE


def violations_in(params: dict[str, Any], kind: Any = ExecuteParams) -> dict[str, str]:
    with pytest.raises(InvalidRequestError) as caught:
        read_params(kind, params)
    assert caught.value.message.startswith("Request validation failed: ")
    return {violation.field: violation.description for violation in caught.value.violations}


def test_all_parameters_become_a_task() -> None:
    params = read_params(
        ExecuteParams,
        {
            "query": "q",
            "strategy": "bounded_context",
            "strategy_config": {"chunk_size": 2048},
            "agent_capabilities": ["reasoning.strategy.bounded_context"],
            "material": "m",
            "agent": "a",
            "budget": {"max_total_tokens": 1, "max_model_calls": 2, "max_tool_calls": 3, "max_elapsed_ms": 1500},
            "request_id": "r",
        },
    )
    assert params.build_task(None) == Task(
        query="q",
        material="m",
        strategy="bounded_context",
        config={"chunk_size": 2048},
        agent="a",
        agent_capabilities=("reasoning.strategy.bounded_context",),
        budget=Budget(max_total_tokens=1, max_model_calls=2, max_tool_calls=3, max_elapsed_s=1.5),
    )


def test_optional_parameters_may_be_null_or_left_out() -> None:
    optional = ("strategy", "strategy_config", "agent_capabilities", "material", "agent", "budget", "request_id")
    nulls = read_params(ExecuteParams, {"query": "q", **dict.fromkeys(optional)})
    assert nulls.build_task(None) == read_params(ExecuteParams, {"query": "q"}).build_task(None) == Task(query="q")


def test_a_bound_that_is_left_out_bounds_nothing() -> None:
    task = read_params(ExecuteParams, {"query": "q", "budget": {"max_model_calls": 1}}).build_task(None)
    assert task.budget == Budget(max_model_calls=1)


def test_an_alias_sets_the_strategy_and_only_agrees_with_itself() -> None:
    assert read_params(ExecuteParams, {"query": "q"}).build_task("react").strategy == "react"
    assert read_params(ExecuteParams, {"query": "q", "strategy": "react"}).build_task("react").strategy == "react"
    with pytest.raises(InvalidRequestError) as caught:
        read_params(ExecuteParams, {"query": "q", "strategy": "other"}).build_task("react")
    assert [violation.field for violation in caught.value.violations] == ["strategy"]
    assert "'react'" in caught.value.message


@pytest.mark.parametrize(
    ("params", "field", "words"),
    [
        ({"query": 5}, "query", "must be a string"),
        ({"query": None}, "query", "must be a string"),
        ({"strategy": 5}, "strategy", "must be a string"),
        ({"strategy_config": []}, "strategy_config", "must be an object"),
        ({"agent_capabilities": "x"}, "agent_capabilities", "must be a list"),
        ({"agent_capabilities": ["x", 1]}, "agent_capabilities.1", "must be a string"),
        ({"budget": 5}, "budget", "must be an object"),
        ({"budget": {"max_total_tokens": "5"}}, "budget.max_total_tokens", "must be a whole number"),
        ({"budget": {"max_total_tokens": True}}, "budget.max_total_tokens", "must be a whole number"),
        ({"budget": {"max_elapsed_ms": 1.5}}, "budget.max_elapsed_ms", "must be a whole number"),
        ({"budget": {"max_elapsed_ms": 0}}, "budget.max_elapsed_ms", "must be at least 1, got 0"),
        (
            {"budget": {"tokens": 1}},
            "budget.tokens",
            "known are 'max_elapsed_ms', 'max_model_calls', 'max_output_tokens', 'max_tool_calls', 'max_total_tokens'",
        ),
        ({"budget": {"max_elapsed_ms": 10**400}}, "budget.max_elapsed_ms", "must be at most 9007199254740991"),
        ({"budget": {"max_tokens": 5}}, "budget.max_tokens", "did you mean 'max_total_tokens'?"),
        ({"querry": "q"}, "querry", "did you mean 'query'?"),
        ({"include_deltas": "yes"}, "include_deltas", "must be true or false"),
    ],
)
def test_what_is_wrong_is_told_by_field_in_our_own_words(params: dict[str, Any], field: str, words: str) -> None:
    found = violations_in({"query": "q", **params})
    assert words in found[field]
    assert "Input should be" not in found[field]


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"query": "x" * 100_001}, {"query": "must be between 1 and 100000 characters"}),
        ({"query": ""}, {"query": "must be between 1 and 100000 characters"}),
        (
            {"query": "why\0", "material": "\u00e9" * 1_000_001},
            {
                "query": "must not hold NUL characters; the first is at position 3",
                "material": "must be at most 2000000 bytes of UTF-8, got 2000002",
            },
        ),
    ],
)
def test_texts_out_of_bounds_are_refused_by_the_model_in_the_words_of_the_core(
    params: dict[str, Any], words: dict[str, str]
) -> None:
    assert violations_in(params) == words
    with pytest.raises(InvalidRequestError) as core:
        check_task(Task(**params))
    assert {one.field: one.description for one in core.value.violations} == words


def test_findings_are_at_most_twenty_and_their_fields_bounded() -> None:
    found = violations_in({f"{'x' * 1000}{number}": 1 for number in range(50)} | {"y" * 1000: 1})
    assert all(len(field) <= 120 for field in found)
    with pytest.raises(InvalidRequestError) as caught:
        read_params(ExecuteParams, {f"x{number}": 1 for number in range(50)})
    assert len(caught.value.violations) == 20


def test_options_of_streams_are_refused_elsewhere() -> None:
    read_params(ExecuteParams, {"query": "q"}).refuse_stream_options()
    with pytest.raises(InvalidRequestError) as caught:
        read_params(ExecuteParams, {"include_deltas": False, "keep_running": True}).refuse_stream_options()
    assert [violation.field for violation in caught.value.violations] == ["include_deltas", "keep_running"]
    assert "Accept: text/event-stream" in caught.value.message


def test_an_execution_must_be_named() -> None:
    assert violations_in({}, ExecutionParams) == {"execution_id": "is required"}
    assert "execution_id" in violations_in({"execution_id": ""}, ExecutionParams)


def test_finish_reasons_are_named_by_their_words() -> None:
    params = read_params(ListExecutionsParams, {"finish_reason": "max_iterations"})
    assert params.finish_reason is FinishReason.MAX_ITERATIONS
    assert read_params(ListExecutionsParams, {"finish_reason": None}).finish_reason is None
    assert "'answered'" in violations_in({"finish_reason": "done"}, ListExecutionsParams)["finish_reason"]


def test_a_task_that_is_told_is_the_parameters_that_ask_for_it_again() -> None:
    told = json.loads(to_json(build_task_json(WHOLE)))
    assert read_params(ExecuteParams, told).build_task(None) == WHOLE
