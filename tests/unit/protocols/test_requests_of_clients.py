"""Odd but real requests: what clients send beside the standard is answered, and told, or refused by its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from reasond_server.testing import FunctionModel, Reply
from reasond_server.types import ToolCall
from tests.unit.protocols.chat.chatting import CHAT, serve_chats

if TYPE_CHECKING:
    from reasond_server.llm.model import ChatRequest

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
USER: Final[dict[str, Any]] = {"role": "user", "content": "What is 6 times 7?"}
OBJECT: Final[dict[str, Any]] = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
WEATHER: Final = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
IMAGE: Final = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}


def call(arguments: object = "{}") -> dict[str, Any]:
    called = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [called]}


def result(content: object) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "c1", "content": content}


def speak(content: object) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def use(content: object) -> list[dict[str, Any]]:
    used = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "weather", "input": {}}]}
    return [USER, used, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": content}]}]


# By client: the path, what is sent beside the model, and what reaches the model or is told; "" is any answer.
ANSWERED: Final[dict[str, tuple[str, dict[str, Any], str]]] = {
    "LibreChat: thoughts of an earlier answer": (
        CHAT,
        {
            "messages": [
                USER,
                speak([{"type": "think", "think": "hm"}, {"type": "text", "text": "forty-two"}]),
                USER,
            ]
        },
        "forty-two",
    ),
    "Mistral's clients: a thought in parts": (
        CHAT,
        {
            "messages": [
                USER,
                speak([{"type": "thinking", "thinking": []}, {"type": "text", "text": "forty-two"}]),
                USER,
            ]
        },
        "the type 'thinking' that the user did not say",
    ),
    "Mistral's clients: any tool": (CHAT, {"tools": [WEATHER], "tool_choice": "any"}, "tool_calls"),
    "gateways: any tool, as an object": (CHAT, {"tools": [WEATHER], "tool_choice": {"type": "any"}}, "tool_calls"),
    "gateways: no tool, as an object": (CHAT, {"tools": [WEATHER], "tool_choice": {"type": "none"}}, "It is 42."),
    "n8n: numbers of one kind": (CHAT, {"max_tokens": 4096.0, "n": 1.0, "seed": 7.0}, ""),
    "Continue: an empty stop string": (CHAT, {"stop": ["", "END"], "prediction": {"type": "content"}}, ""),
    "Open WebUI: a tool of two servers": (CHAT, {"tools": [WEATHER, WEATHER]}, ""),
    "Open WebUI: what it knows of the chat": (CHAT, {"chat_id": "1", "features": {}, "variables": {}}, "chat_id"),
    "Cursor: tools as responses have them": (CHAT, {"tools": [{"type": "function", "name": "weather"}]}, ""),
    "llama.cpp's clients: a schema beside json_object": (
        CHAT,
        {"response_format": {"type": "json_object", "schema": OBJECT}},
        '\\"n\\"',
    ),
    "Together's clients: a schema beside json_schema": (
        CHAT,
        {"response_format": {"type": "json_schema", "schema": OBJECT}},
        '\\"n\\"',
    ),
    "promptfoo: instructions alone": (CHAT, {"messages": [{"role": "system", "content": "Say forty-two."}]}, "42"),
    "a part that is no list": (CHAT, {"messages": [{"role": "user", "content": {"type": "text", "text": "x"}}]}, ""),
    "parts that are texts": (CHAT, {"messages": [{"role": "user", "content": ["forty-two"]}]}, "forty-two"),
    "LangChain: an image of a tool": (
        CHAT,
        {"messages": [USER, call(), result([{"type": "text", "text": "forty-two"}, IMAGE])]},
        "the type 'image_url' that the user did not say",
    ),
    "a result that is an object": (CHAT, {"messages": [USER, call(), result({"forty": "two"})]}, "forty"),
    "a result that is a list of objects": (CHAT, {"messages": [USER, call(), result([{"forty": "two"}])]}, "forty"),
    "arguments that are an object": (CHAT, {"messages": [USER, call({"a": 1}), result("x")]}, ""),
    "arguments that are cut": (CHAT, {"messages": [USER, call('{"a": '), result("x")]}, ""),
    "aider: a prefix of the answer": (
        CHAT,
        {"messages": [USER, {**speak("It is"), "prefix": True}]},
        "continue",
    ),
    "Roo Code: reasoning as responses have it": (CHAT, {"reasoning": {"effort": "high"}}, "reasoning"),
    "OpenRouter's clients": (
        CHAT,
        {"provider": {}, "transforms": ["middle-out"], "usage": {"include": True}},
        "provider",
    ),
    "Spring AI: members without a value": (
        CHAT,
        {
            "messages": [USER, {**speak("x"), "refusal": None, "audio": None, "tool_calls": None}, USER],
            "tools": [],
        },
        "",
    ),
    "DSPy: several answers": (CHAT, {"n": 3, "temperature": 0.7}, ""),
    "n8n: an item without an id": (
        RESPONSES,
        {"input": [{**USER, "type": "message", "id": None, "status": None}], "truncation": "auto"},
        "",
    ),
    "AI SDK: an item of another server": (
        RESPONSES,
        {"input": [USER, {"type": "item_reference", "id": "msg_abc"}], "include": ["web_search_call.action.sources"]},
        "msg_abc",
    ),
    "Codex: a shell of another server": (
        RESPONSES,
        {
            "input": [
                USER,
                {"type": "local_shell_call", "id": "i", "call_id": "l", "action": {"command": ["ls"], "env": {}}},
                {"type": "local_shell_call_output", "id": "l", "output": "forty-two"},
            ]
        },
        "forty-two",
    ),
    "AI SDK: a shell of another server": (
        RESPONSES,
        {
            "input": [
                USER,
                {"type": "shell_call", "call_id": "s", "action": {"commands": ["ls"]}, "status": "completed"},
                {"type": "shell_call_output", "call_id": "s", "output": [{"stdout": "forty-two", "stderr": ""}]},
            ]
        },
        "forty-two",
    ),
    "openai-agents: a patch of another server": (
        RESPONSES,
        {
            "input": [
                USER,
                {"type": "apply_patch_call", "call_id": "p", "operation": {"type": "delete_file", "path": "x"}},
                {"type": "apply_patch_call_output", "call_id": "p", "status": "failed", "output": "forty-two"},
            ]
        },
        "forty-two",
    ),
    "openai: a call and an approval of a remote MCP server": (
        RESPONSES,
        {
            "input": [
                USER,
                {"type": "mcp_list_tools", "id": "m", "server_label": "x", "tools": []},
                {
                    "type": "mcp_call",
                    "id": "c",
                    "server_label": "x",
                    "name": "f",
                    "arguments": "{}",
                    "output": "forty-two",
                },
                {"type": "mcp_approval_request", "id": "r", "server_label": "x", "name": "f", "arguments": "{}"},
                {"type": "mcp_approval_response", "approval_request_id": "r", "approve": True},
            ],
            "tools": [{"type": "mcp", "server_label": "x", "server_url": "https://example.com"}],
        },
        "forty-two",
    ),
    "openai: code that another server ran": (
        RESPONSES,
        {
            "input": [
                USER,
                {
                    "type": "code_interpreter_call",
                    "id": "c",
                    "code": "6*7",
                    "container_id": "k",
                    "outputs": [{"type": "logs", "logs": "forty-two"}],
                },
                USER,
            ]
        },
        "forty-two",
    ),
    "openai: files that another server searched": (
        RESPONSES,
        {
            "input": [
                USER,
                {"type": "file_search_call", "id": "f", "queries": ["q"], "results": [{"text": "forty-two"}]},
                USER,
            ]
        },
        "forty-two",
    ),
    "openai: an image that another server made": (
        RESPONSES,
        {"input": [USER, {"type": "image_generation_call", "id": "g", "status": "completed", "result": "aGk="}, USER]},
        "image_generation_call",
    ),
    "openai: a screen of a computer": (
        RESPONSES,
        {
            "input": [
                USER,
                {"type": "computer_call", "id": "i", "call_id": "c", "action": {"type": "screenshot"}},
                {
                    "type": "computer_call_output",
                    "call_id": "c",
                    "output": {"type": "computer_screenshot", "image_url": "data:image/png;base64,aGk="},
                },
            ]
        },
        "computer_screenshot",
    ),
    "AI SDK: a file of a tool": (
        RESPONSES,
        {
            "input": [
                USER,
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {
                    "type": "function_call_output",
                    "call_id": "c",
                    "output": [
                        {"type": "input_text", "text": "forty-two"},
                        {
                            "type": "input_file",
                            "filename": "a.zip",
                            "file_data": "data:application/zip;base64,UEsDBAAA",
                        },
                    ],
                },
            ]
        },
        "which the user did not send, cannot be read",
    ),
    "AI SDK: an effort within the input": (
        RESPONSES,
        {"input": [{"type": "configuration_update", "reasoning": {"effort": "low"}}, USER]},
        "configuration_update",
    ),
    "openai: members of this autumn": (
        RESPONSES,
        {
            "input": "x",
            "service_tier": "flex",
            "safety_identifier": "s",
            "prompt_cache_key": "k",
            "prompt_cache_retention": "24h",
            "stream_options": {"include_obfuscation": False},
            "context_management": [{"type": "compaction", "compact_threshold": 1000}],
            "moderation": {"model": "m"},
        },
        "context_management",
    ),
    "openai: allowed tools that are no tools": (
        RESPONSES,
        {
            "input": "x",
            "tools": [{"type": "function", "name": "weather", "parameters": {}}],
            "tool_choice": {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "function": "x"}, {"type": "function", "name": ["x"]}, {"type": "mcp"}],
            },
        },
        "",
    ),
    "Codex: tools of others": (
        RESPONSES,
        {"input": "x", "tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}},
        "web_search",
    ),
    "an output that is an object": (
        RESPONSES,
        {
            "input": [
                USER,
                {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": {"forty": "two"}},
            ]
        },
        "forty",
    ),
    "instructions without input": (RESPONSES, {"instructions": "Say forty-two."}, "42"),
    "Claude Code: a tool that was found": (
        MESSAGES,
        {"messages": use([{"type": "tool_reference", "tool_name": "x"}])},
        "tool_reference",
    ),
    "Claude Code: context and effort": (
        MESSAGES,
        {"messages": [USER], "context_management": {"edits": []}, "output_config": {"effort": "medium"}},
        "context_management",
    ),
    "Zed: no stop sequences": (MESSAGES, {"messages": [USER], "stop_sequences": [], "top_k": None}, ""),
    "AI SDK: blocks of the vendor's server": (
        MESSAGES,
        {
            "messages": [
                USER,
                speak([{"type": "server_tool_use", "id": "s"}, {"type": "text", "text": "x"}]),
                USER,
            ]
        },
        "server_tool_use",
    ),
    "a result without content": (MESSAGES, {"messages": use(None)}, ""),
}
REFUSED: Final[dict[str, tuple[str, dict[str, Any], str]]] = {
    "instructor: functions": (CHAT, {"functions": [{"name": "f"}]}, "functions"),
    "AI SDK: sound": (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
        "messages.0.content.0",
    ),
    "a file by its id": (
        RESPONSES,
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
        "input.0.content.0.file_data",
    ),
    "openai: instructions that are kept elsewhere": (
        RESPONSES,
        {"prompt": {"id": "pmpt_1", "version": "2", "variables": {"city": "Paris"}}},
        "prompt",
    ),
    "AI SDK: a conversation that is kept elsewhere": (
        RESPONSES,
        {"input": "x", "conversation": {"id": "conv_1"}},
        "conversation",
    ),
    "openai-agents: a forced tool that is not offered": (
        RESPONSES,
        {"input": "x", "tool_choice": {"type": "custom", "name": "patch"}},
        "tool_choice",
    ),
    "a schema that is none": (
        CHAT,
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
        "response_format.json_schema.schema",
    ),
    "a name with a dot": (CHAT, {"tools": [{"function": {"name": "a.b"}}]}, "tools.0.function.name"),
}


def reply(request: ChatRequest) -> Reply | str:
    """Call the tool that is forced, and repeat what was asked."""
    if request.tools and request.tool_choice not in {"auto", "none"}:
        return Reply(tool_calls=(ToolCall(call_id="c", name="weather", arguments_json="{}"),))
    if any("JSON Schema" in message.content for message in request.messages):
        return '<answer>{"n": 42}</answer>'
    asked = " ".join(text for message in request.messages for text in (message.content, message.reasoning))
    return f"{asked[-2000:].replace('<', '[')} It is 42.<answer>It is 42.</answer>"


@pytest.mark.parametrize("client", ANSWERED)
async def test_what_clients_send_beside_the_standard_is_answered(client: str) -> None:
    path, body, told = ANSWERED[client]
    async with serve_chats(FunctionModel(reply, has_native_tools=True)) as site:
        asked = {"model": "reasond", **({"messages": [USER]} if path == CHAT else {}), **body}
        if path == MESSAGES:
            asked |= {"max_tokens": 1000, "thinking": {"type": "adaptive"}}
        answer = await site.client.post(path, json=asked)
    assert answer.status_code == 200, answer.text
    assert told in answer.text


@pytest.mark.parametrize("client", REFUSED)
async def test_what_cannot_be_done_names_its_place(client: str) -> None:
    path, body, param = REFUSED[client]
    async with serve_chats() as site:
        answer = await site.client.post(path, json={"model": "reasond", "messages": [USER], **body})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_slashes_that_base_urls_add_change_nothing() -> None:
    async with serve_chats() as site:
        for path in ("/v1//chat/completions", "/v1/chat/completions/"):
            answer = await site.client.post(path, json={"model": "reasond", "messages": [USER]})
            assert answer.status_code == 200, path
