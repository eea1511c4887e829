from __future__ import annotations

import math
from typing import Any

import pytest
from google.protobuf import duration_pb2

from reasond.v1 import execution_pb2, reasoning_service_pb2, strategies_pb2
from reasond_server.errors.base import Violation
from reasond_server.errors.request import InvalidConfigError, InvalidRequestError, StrategyRequiredError
from reasond_server.grpc_api.requests import (
    name_request_fields,
    read_budget,
    read_finish_reason,
    read_seconds,
    read_task,
    read_trace_view,
    require_task,
)
from reasond_server.types import Budget, FinishReason, Task


def transfer(**fields: Any) -> execution_pb2.ReasoningTask:
    """Return a task, serialized and parsed again."""
    task = execution_pb2.ReasoningTask(**fields)
    return execution_pb2.ReasoningTask.FromString(task.SerializeToString())


def test_a_bare_question_becomes_a_bare_task() -> None:
    assert read_task(transfer(query="q")) == Task(query="q")


def test_every_field_reaches_the_task() -> None:
    task = read_task(
        transfer(
            query="q",
            material="m",
            strategy="chain_of_thought",
            chain_of_thought=strategies_pb2.ChainOfThoughtConfig(max_tokens=200),
            agent="a",
            agent_capabilities=["one", "two"],
            budget=execution_pb2.Budget(
                max_total_tokens=5,
                max_model_calls=4,
                max_tool_calls=0,
                max_elapsed=duration_pb2.Duration(seconds=1, nanos=500_000_000),
            ),
        )
    )

    assert task == Task(
        query="q",
        material="m",
        strategy="chain_of_thought",
        config={"max_tokens": 200},
        agent="a",
        agent_capabilities=("one", "two"),
        budget=Budget(max_total_tokens=5, max_model_calls=4, max_tool_calls=0, max_elapsed_s=1.5),
    )


def test_a_config_alone_selects_its_strategy_even_when_it_sets_nothing() -> None:
    task = read_task(transfer(query="q", bounded_context=strategies_pb2.BoundedContextConfig()))

    assert (task.strategy, task.config) == ("bounded_context", {})


def test_only_what_is_set_is_in_the_config_and_zero_counts_as_set() -> None:
    config = strategies_pb2.ChainOfThoughtConfig(temperature=0.0, show_reasoning=False)

    assert read_task(transfer(query="q", chain_of_thought=config)).config == {
        "temperature": 0.0,
        "show_reasoning": False,
    }


def test_enums_become_the_words_of_the_domain_and_unspecified_is_unset() -> None:
    tree = strategies_pb2.TreeOfThoughtConfig(
        search=strategies_pb2.TREE_SEARCH_BEST_FIRST, evaluator=strategies_pb2.TREE_EVALUATOR_UNSPECIFIED, seed=2**40
    )

    assert read_task(transfer(query="q", tree_of_thought=tree)).config == {"search": "best_first", "seed": 2**40}


def test_an_enum_value_that_nobody_declared_is_refused_by_its_path() -> None:
    config = strategies_pb2.BoundedContextConfig()
    config.carryover_mode = 99  # type: ignore[assignment]  # what a newer client might send

    with pytest.raises(InvalidRequestError, match=r"task\.bounded_context\.carryover_mode must be one of .*, not 99"):
        read_task(transfer(query="q", bounded_context=config))


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_temperature_that_is_no_number_is_refused(number: float) -> None:
    config = strategies_pb2.ReactConfig(temperature=number)

    with pytest.raises(InvalidRequestError, match=r"task\.react\.temperature must be a finite number"):
        read_task(transfer(query="q", react=config))


def test_a_config_of_another_strategy_is_refused() -> None:
    config = strategies_pb2.SelfConsistencyConfig(samples=3)

    with pytest.raises(
        InvalidRequestError, match=r"task\.self_consistency is the config of another strategy than 'react'"
    ):
        read_task(transfer(query="q", strategy="react", self_consistency=config))


def test_a_custom_config_belongs_to_the_strategy_that_is_named() -> None:
    task = transfer(query="q", strategy="mine")
    task.custom.update({"rounds": 3, "names": ["a"]})

    assert read_task(task).config == {"rounds": 3, "names": ["a"]}


def test_a_custom_config_without_a_strategy_is_refused() -> None:
    task = transfer(query="q")
    task.custom.SetInParent()

    with pytest.raises(InvalidRequestError, match=r"task\.strategy is required with a custom config"):
        read_task(task)


def test_a_request_without_a_task_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="task is required"):
        require_task(reasoning_service_pb2.ReasonRequest())


@pytest.mark.parametrize(
    ("seconds", "nanos"), [(1, -1), (-1, 1), (0, 10**9), (0, -(10**9)), (315_576_000_001, 0), (-315_576_000_001, 0)]
)
def test_a_malformed_duration_is_refused(seconds: int, nanos: int) -> None:
    budget = execution_pb2.Budget(max_elapsed=duration_pb2.Duration(seconds=seconds, nanos=nanos))

    with pytest.raises(
        InvalidRequestError, match=r"task\.budget\.max_elapsed must be -315576000000 to 315576000000 seconds"
    ):
        read_budget(budget, path="task.budget")


def test_a_negative_duration_is_understood() -> None:
    assert read_seconds(duration_pb2.Duration(seconds=-1, nanos=-500_000_000), path="p") == -1.5


def test_an_empty_budget_sets_no_bound() -> None:
    assert read_budget(execution_pb2.Budget(), path="task.budget") == Budget()


def test_trace_views_are_understood() -> None:
    known = execution_pb2.TraceView

    assert read_trace_view(0) == known.TRACE_VIEW_NONE
    assert read_trace_view(3) == known.TRACE_VIEW_FULL


@pytest.mark.parametrize("number", [4, -1])
def test_a_trace_view_that_nobody_declared_is_refused(number: int) -> None:
    with pytest.raises(InvalidRequestError, match="trace_view must be one of TRACE_VIEW_UNSPECIFIED, "):
        read_trace_view(number)


def test_finish_reasons_are_understood() -> None:
    assert read_finish_reason(0) is None
    assert {read_finish_reason(number) for number in range(1, 10)} == set(FinishReason)


def test_a_finish_reason_that_nobody_declared_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="finish_reason must be one of"):
        read_finish_reason(10)


def test_fields_of_the_core_are_named_as_fields_of_the_request() -> None:
    error = InvalidRequestError.of(
        Violation(field="query", description="x"),
        Violation(field="budget.max_model_calls", description="x"),
        Violation(field="request_id", description="x"),
        Violation(field="task.react", description="x"),
    )

    name_request_fields(error, transfer(query="q"))

    assert [violation.field for violation in error.violations] == [
        "task.query",
        "task.budget.max_model_calls",
        "request_id",
        "task.react",
    ]


def test_parameters_are_named_inside_the_config_that_was_sent() -> None:
    config = strategies_pb2.ChainOfThoughtConfig(max_tokens=1)
    error = InvalidConfigError.of(Violation(field="max_tokens", description="must be at least 100"))

    name_request_fields(error, transfer(query="q", chain_of_thought=config))

    assert error.violations[0].field == "task.chain_of_thought.max_tokens"
    assert error.message == "Request validation failed: max_tokens must be at least 100"


def test_parameters_of_another_level_are_named_too() -> None:
    error = InvalidConfigError.of(Violation(field="max_tokens", description="x"))

    name_request_fields(error, transfer(query="q"))

    assert error.violations[0].field == "task.config.max_tokens"


def test_a_strategy_that_is_missing_is_named_as_a_field_of_the_task() -> None:
    error = StrategyRequiredError("none", violations=[Violation(field="strategy", description="is required")])

    name_request_fields(error, transfer(query="q"))

    assert error.violations[0].field == "task.strategy"
