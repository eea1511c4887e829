from __future__ import annotations

import json
from typing import Any

import pytest

from reasond_server.llm.model import ChatRequest, Message, Role, ToolSpec
from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.chat import ChatCompletions
from reasond_server.llm.openai.transport import encode_body
from reasond_server.llm.profiles import LimitField, ModelProfile, SchemaLevel
from reasond_server.types import ToolCall

HELLO = Message(role=Role.USER, content="Hello")
TOOL = ToolSpec(name="f", description="does f", parameters={"type": "object"})
SCHEMA = {"type": "object"}


def body(request: dict[str, Any], **profile: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    options = BackendOptions(name="main", model="m", base_url="http://x/v1", profile=ModelProfile(**profile))
    asked: dict[str, Any] = {"messages": [HELLO], "max_tokens": 9} | request
    made = ChatCompletions().build_body(ChatRequest(**asked), options)
    sent: dict[str, Any] = json.loads(encode_body(options, made.data, messages=made.messages))
    return sent, made.warnings


def test_a_plain_call_streams_with_a_limit_and_asks_for_its_usage() -> None:
    assert body({"seed": 3, "stop": ["a", "a", ""]}) == (
        {
            "model": "m",
            "messages": [{"role": "user", "content": "Hello"}],
            "stream": True,
            "max_tokens": 9,
            "stream_options": {"include_usage": True},
            "temperature": 0.7,
            "seed": 3,
            "stop": ["a"],
        },
        (),
    )


def test_the_limit_goes_under_the_name_that_the_profile_knows() -> None:
    data, _ = body({}, limit_field=LimitField.MAX_COMPLETION_TOKENS, stream_usage=False)
    assert data["max_completion_tokens"] == 9
    assert "max_tokens" not in data
    assert "stream_options" not in data


@pytest.mark.parametrize(("temperature", "named"), [(0.7, ["temperature", "seed"]), (1.0, ["seed"])])
def test_sampling_that_is_not_taken_is_left_out_and_named_unless_it_is_the_default(
    temperature: float, named: list[str]
) -> None:
    data, warnings = body({"temperature": temperature, "seed": 1}, sampling=False)
    assert not {"temperature", "seed"} & set(data)
    assert [warning.partition(" ")[0] for warning in warnings] == named


@pytest.mark.parametrize(("most", "sent"), [(0, None), (1, ["a"]), (2, ["a", "b"])])
def test_no_more_stop_strings_are_sent_than_are_taken(most: int, sent: list[str] | None) -> None:
    data, warnings = body({"stop": ["a", "b"]}, max_stops=most)
    assert data.get("stop") == sent
    assert len(warnings) == (most < 2)


def test_tools_and_the_forced_choice_go_in_the_interfaces_form() -> None:
    data, warnings = body({"tools": [TOOL], "tool_choice": "f"})
    function = {"name": "f", "description": "does f", "parameters": {"type": "object"}}
    assert data["tools"] == [{"type": "function", "function": function}]
    assert data["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert body({"tools": [TOOL], "tool_choice": "required"})[0]["tool_choice"] == "required"
    assert body({"tools": [TOOL], "tool_choice": "none"})[0]["tool_choice"] == "none"
    assert not warnings


def test_tools_and_choices_that_are_not_taken_are_named() -> None:
    data, warnings = body({"tools": [TOOL]}, tools=False)
    assert "tools" not in data
    assert warnings == ("tools were left out: the model does not take them",)
    other = ToolSpec(name="g", description="", parameters={})
    data, warnings = body({"tools": [other, TOOL], "tool_choice": "f"}, named_tool_choice=False)
    assert (data["tool_choice"], [one["function"]["name"] for one in data["tools"]]) == ("required", ["f"])
    assert not warnings
    data, warnings = body({"tools": [TOOL], "tool_choice": "f"}, forced_tool_choice=False)
    assert data["tool_choice"] == "auto"
    assert warnings == ("tool_choice 'f' became 'auto': the model cannot be forced",)


@pytest.mark.parametrize(
    ("level", "form", "is_warned"),
    [
        (SchemaLevel.STRICT, "json_schema", False),
        (SchemaLevel.GUIDED, "json_schema", False),
        (SchemaLevel.OBJECT, "json_object", True),
        (SchemaLevel.NONE, None, True),
    ],
)
def test_a_schema_goes_down_the_ladder_and_adds_no_message(
    level: SchemaLevel, form: str | None, *, is_warned: bool
) -> None:
    data, warnings = body({"json_schema": SCHEMA}, json_schema=level)
    assert data.get("response_format", {}).get("type") == form
    assert len(data["messages"]) == 1
    assert bool(warnings) == is_warned


def test_system_messages_are_merged_where_only_one_is_taken() -> None:
    system = [Message(role=Role.SYSTEM, content=text) for text in ("one", "two")]
    messages = [system[0], HELLO, system[1]]
    assert len(body({"messages": messages})[0]["messages"]) == 3
    data, _ = body({"messages": messages}, several_system_messages=False)
    assert data["messages"] == [{"role": "system", "content": "one\n\ntwo"}, {"role": "user", "content": "Hello"}]
    assert len(body({"messages": [HELLO]}, several_system_messages=False)[0]["messages"]) == 1


def test_a_turn_with_tools_is_told_in_full_and_its_reasoning_only_where_it_is_wanted() -> None:
    called = ToolCall(call_id="c", name="f", arguments_json="{}")
    messages = [
        Message(role=Role.ASSISTANT, content="", tool_calls=[called], reasoning="hm"),
        Message(role=Role.TOOL, content="4", tool_call_id="c"),
    ]
    function = {"name": "f", "arguments": "{}"}
    assistant = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }
    told = {"role": "tool", "content": "4", "tool_call_id": "c"}
    assert body({"messages": messages})[0]["messages"] == [assistant, told]
    data, _ = body({"messages": messages}, sends_reasoning_back=True, reasoning_fields=("reasoning_content",))
    assert data["messages"][0] == assistant | {"reasoning_content": "hm"}


def test_a_message_is_the_same_whoever_is_sent_it_next() -> None:
    asked = Message(role=Role.USER, content="What is it?")
    said = Message(role=Role.ASSISTANT, content="hm", reasoning="well")
    for _ in range(2):
        data, _ = body({"messages": [asked, said]}, sends_reasoning_back=True)
        assert data["messages"][1] == {"role": "assistant", "content": "hm", "reasoning": "well"}
        data, _ = body({"messages": [asked, said]})
        assert data["messages"] == [
            {"role": "user", "content": "What is it?"},
            {"role": "assistant", "content": "hm"},
        ]


def test_half_a_character_in_a_message_is_sent_as_a_question_mark() -> None:
    data, _ = body({"messages": [Message(role=Role.USER, content="a\ud83db NaN")]})
    assert data["messages"][0]["content"] == "a?b NaN"


@pytest.mark.parametrize(
    ("asked", "most", "sent"), [(20, 5, 5), (3, 20, 3), (0, 20, 1), (5, 0, None), (None, 20, None)]
)
def test_probabilities_are_asked_for_where_the_profile_says_that_they_are_told(
    asked: int | None, most: int, sent: int | None
) -> None:
    data, warnings = body({"top_logprobs": asked}, most_logprobs=most)
    assert (data.get("top_logprobs"), data.get("logprobs"), warnings) == (sent, True if sent else None, ())
