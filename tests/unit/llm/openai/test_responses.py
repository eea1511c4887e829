"""The requests of the Responses protocol, and how a profile changes them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from reasond_server.llm.model import ChatRequest, ImagePart, Message, Role, ToolSpec
from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.responses import ResponsesProtocol
from reasond_server.llm.profiles import ModelProfile, SchemaLevel
from reasond_server.types import ToolCall

OPTIONS = BackendOptions(name="b", model="m-1", base_url="http://127.0.0.1:1/v1", protocol="responses")
USER = Message(role=Role.USER, content="Why?")
TOOL = ToolSpec(name="look", description="Looks.", parameters={"type": "object"})
REQUEST = ChatRequest(messages=(USER,), max_tokens=50, temperature=0.5, stop=("</answer>",))


def body(request: ChatRequest = REQUEST, **profile: Any) -> tuple[dict[str, Any], tuple[str, ...]]:
    options = replace(OPTIONS, profile=ModelProfile(name="p", **profile))
    made = ResponsesProtocol().build_body(request, options)
    return made.data, made.warnings


def test_a_plain_call_is_streamed_not_stored_and_says_nothing_of_stop_strings() -> None:
    data, warnings = body()
    assert data == {
        "model": "m-1",
        "input": [{"type": "message", "role": "user", "content": "Why?"}],
        "max_output_tokens": 50,
        "temperature": 0.5,
        "stream": True,
        "store": False,
    }
    assert not warnings
    assert ResponsesProtocol().path == "responses"


def test_what_the_system_says_first_becomes_the_instructions() -> None:
    messages = (
        Message(role=Role.SYSTEM, content="Be brief."),
        Message(role=Role.SYSTEM, content="Be kind."),
        USER,
        Message(role=Role.SYSTEM, content="Now answer."),
    )
    data, warnings = body(replace(REQUEST, messages=messages))
    assert data["instructions"] == "Be brief.\n\nBe kind."
    assert [item["role"] for item in data["input"]] == ["user", "system"]
    assert not warnings


def test_a_model_with_one_system_message_gets_them_joined() -> None:
    late = (USER, Message(role=Role.SYSTEM, content="Now answer."))
    data, _ = body(replace(REQUEST, messages=late), several_system_messages=False)
    assert data["instructions"] == "Now answer."
    assert [item["role"] for item in data["input"]] == ["user"]


@pytest.mark.parametrize("is_sent_back", [False, True])
def test_calls_of_tools_and_their_results_are_items_of_their_own(*, is_sent_back: bool) -> None:
    call = ToolCall(call_id="c1", name="look", arguments_json='{"at":1}')
    messages = (
        USER,
        Message(role=Role.ASSISTANT, content="", tool_calls=(call,), reasoning="Hm."),
        Message(role=Role.TOOL, content="A wall.", tool_call_id="c1"),
        Message(role=Role.ASSISTANT, content="So."),
    )
    data, _ = body(replace(REQUEST, messages=messages), sends_reasoning_back=is_sent_back)
    reasoning = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    assert data["input"][1:] == [
        *([reasoning] if is_sent_back else []),
        {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at":1}'},
        {"type": "function_call_output", "call_id": "c1", "output": "A wall."},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "So."}]},
    ]


def test_what_cannot_be_sent_is_named() -> None:
    request = replace(REQUEST, seed=7, tools=(TOOL,), json_schema={"type": "object"})
    data, warnings = body(request, sampling=False, tools=False, json_schema=SchemaLevel.NONE)
    assert not {"temperature", "seed", "tools", "tool_choice", "text", "stop"} & set(data)
    assert [warning.split()[0] for warning in warnings] == ["temperature", "seed", "tools", "json_schema"]


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ("look", {"type": "function", "name": "look"}),
    ],
)
def test_tools_are_sent_with_their_choice(choice: str, sent: object) -> None:
    data, warnings = body(replace(REQUEST, tools=(TOOL,), tool_choice=choice))
    (tool,) = data["tools"]
    assert (tool["name"], tool["parameters"], tool["strict"]) == ("look", {"type": "object"}, False)
    assert data["tool_choice"] == sent
    assert not warnings


@pytest.mark.parametrize(("choice", "is_altered"), [("auto", False), ("none", False), ("required", True)])
def test_a_choice_that_is_not_obeyed_is_not_forced(choice: str, *, is_altered: bool) -> None:
    data, warnings = body(replace(REQUEST, tools=(TOOL,), tool_choice=choice), forced_tool_choice=False)
    assert data["tool_choice"] == ("auto" if is_altered else choice)
    assert len(warnings) == is_altered


@pytest.mark.parametrize("level", [SchemaLevel.STRICT, SchemaLevel.GUIDED, SchemaLevel.OBJECT])
def test_a_schema_is_asked_for_as_far_as_it_is_followed(level: SchemaLevel) -> None:
    schema = {"type": "object", "properties": {}}
    data, warnings = body(replace(REQUEST, json_schema=schema), json_schema=level)
    if level is SchemaLevel.OBJECT:
        assert data["text"] == {"format": {"type": "json_object"}}
        assert warnings == ("json_schema was left out: the server does not enforce it",)
    else:
        assert data["text"]["format"]["type"] == "json_schema"
        assert data["text"]["format"]["schema"] == schema
        assert not warnings
    assert "JSON Schema" not in data.get("instructions", "")


def test_images_are_parts_of_the_users_message() -> None:
    image = ImagePart(media_type="image/png", base64="iVBORw0KGgo=", tokens=900)
    data, _ = body(replace(REQUEST, messages=(replace(USER, images=(image,)),)))
    assert data["input"][0]["content"] == [
        {"type": "input_text", "text": "Why?"},
        {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="},
    ]
