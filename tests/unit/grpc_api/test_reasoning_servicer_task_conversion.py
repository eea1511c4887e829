"""A task that is told is the one that was asked for: every field comes back, and asks for the same again."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from reasond.v1 import execution_pb2
from reasond_server.grpc_api.reasoning_servicer import fill_task
from reasond_server.grpc_api.requests import read_task
from reasond_server.types import Budget, HistoryMessage, Image, Speaker, Task, ToolCall, ToolResult

WHOLE = Task(
    query="q",
    material="m",
    strategy="tree_of_thought",
    config={"max_depth": 2, "search": "best_first", "temperature": 0.0, "seed": None},
    agent="a",
    agent_capabilities=("c1", "c2"),
    budget=Budget(max_total_tokens=1, max_model_calls=2, max_tool_calls=0, max_elapsed_s=1.5, max_output_tokens=3),
    system="s",
    history=(
        HistoryMessage(role=Speaker.USER, text="u", images=(Image(media_type="image/png", base64="aGk="),)),
        HistoryMessage(
            role=Speaker.ASSISTANT,
            text="a",
            reasoning="r",
            tool_calls=(ToolCall(call_id="c1", name="search", arguments_json="{}"),),
        ),
        HistoryMessage(role=Speaker.TOOL, tool_results=(ToolResult(call_id="c1", result_json="1", is_error=True),)),
    ),
    model="big",
    stop=("x", "y"),
    images=(Image(media_type="image/png", base64="iVBORw0KGgo="),),
    answer_schema={"type": "object", "properties": {"ä": {"type": "integer"}}},
)


def message_of(task: Task, *, strategy: str = "chain_of_thought") -> execution_pb2.ReasoningTask:
    message = execution_pb2.ReasoningTask()
    fill_task(message, task, strategy=strategy)
    return message


def test_a_task_with_everything_comes_back_whole() -> None:
    default = Task(query="")
    told = [each.name for each in fields(Task) if each.name != "echo_json"]
    assert all(getattr(WHOLE, name) != getattr(default, name) for name in told), "set every field"
    config = {name: value for name, value in WHOLE.config.items() if value is not None}
    read = read_task(message_of(WHOLE))
    assert {each.name: getattr(read, each.name) for each in fields(Task)} == {
        each.name: config if each.name == "config" else getattr(WHOLE, each.name) for each in fields(Task)
    }


def test_every_field_of_the_proto_is_written() -> None:
    config = execution_pb2.ReasoningTask.DESCRIPTOR.oneofs_by_name["config"]
    alone = {field.name for field in execution_pb2.ReasoningTask.DESCRIPTOR.fields if field.containing_oneof != config}
    assert alone <= {field.name for field, _ in message_of(WHOLE).ListFields()}


def test_a_task_that_sets_nothing_sets_nothing() -> None:
    assert message_of(Task(query="q")) == execution_pb2.ReasoningTask(query="q")


@pytest.mark.parametrize(
    ("task", "strategy", "expected"),
    [
        ({"config": {"samples": 3}}, "self_consistency", {"config": {"samples": 3}, "strategy": "self_consistency"}),
        ({"config": {"rounds": [1]}}, "debate", {"config": {"rounds": [1]}, "strategy": "debate"}),
        ({"strategy": "debate", "config": {"x": 1}}, "debate", {"config": {"x": 1}, "strategy": "debate"}),
    ],
)
def test_a_configuration_stands_with_the_strategy_whose_it_is(
    task: dict[str, Any], strategy: str, expected: dict[str, Any]
) -> None:
    read = read_task(message_of(Task(query="q", **task), strategy=strategy))
    assert {name: getattr(read, name) for name in expected} == expected
