"""The Responses protocol: for models that need it, and for servers that have it beside Chat Completions.

It has no stop strings and no seed. Stop strings are enforced where the stream is read, so nothing is lost and
nothing is warned of; a seed is left out and named.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reasond_server.llm.model import Role
from reasond_server.llm.openai.chat_request import TOOL_CHOICES, demanded
from reasond_server.llm.openai.protocol import Body, Decoder
from reasond_server.llm.openai.response_events import ResponsesDecoder
from reasond_server.llm.profiles import SchemaLevel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reasond_server.llm.model import ChatRequest, Message
    from reasond_server.llm.openai.options import BackendOptions
    from reasond_server.llm.profiles import ModelProfile

_SCHEMA_NAME = "answer"


class ResponsesProtocol:
    """Calls of `responses`, streamed and not stored at the provider."""

    @property
    def path(self) -> str:
        """Where calls go: responses."""
        return "responses"

    def body(self, request: ChatRequest, options: BackendOptions) -> Body:
        """Return what to send for `request`, as far as the profile of `options` allows."""
        profile = options.profile
        warnings: list[str] = []
        instructions, messages = _instructions(request, profile)
        data: dict[str, Any] = {
            "model": options.model,
            "input": [item for message in messages for item in _items(message, profile)],
            "max_output_tokens": request.max_tokens,
            "stream": True,
            "store": False,
        }
        if instructions:
            data["instructions"] = instructions
        if profile.sampling:
            data["temperature"] = request.temperature
        else:
            warnings.append("temperature was left out: the model does not take it")
        if request.seed is not None:
            warnings.append("seed was left out: the Responses protocol has none")
        _add_tools(data, request, profile, warnings)
        _add_schema(data, request, profile, warnings)
        return Body(data=data, warnings=tuple(warnings))

    def decoder(self, options: BackendOptions, *, max_tokens: int = 0) -> Decoder:  # noqa: ARG002 - one form of answer
        """Return a reader for one answer."""
        return ResponsesDecoder(max_tokens=max_tokens)


def _instructions(request: ChatRequest, profile: ModelProfile) -> tuple[str, Sequence[Message]]:
    """Split off what the system says first; all it says where the model takes one system message only.

    A JSON Schema that the server would not show to the model, or not enforce, is told here.
    """
    messages = request.messages
    first = next((place for place, message in enumerate(messages) if message.role is not Role.SYSTEM), len(messages))
    leading, rest = [message.content for message in messages[:first]], list(messages[first:])
    if request.json_schema is not None and profile.json_schema is not SchemaLevel.STRICT:
        schema = json.dumps(request.json_schema, ensure_ascii=False)
        leading.append(f"Answer with one JSON value that satisfies this JSON Schema, and with nothing else:\n{schema}")
    if not profile.several_system_messages:
        leading += [message.content for message in rest if message.role is Role.SYSTEM]
        rest = [message for message in rest if message.role is not Role.SYSTEM]
    return "\n\n".join(leading), rest


def _items(message: Message, profile: ModelProfile) -> Iterator[dict[str, Any]]:
    """Yield the input items that stand for `message`."""
    if message.role is Role.TOOL:
        yield {"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content}
        return
    if message.role is not Role.ASSISTANT:
        yield {"type": "message", "role": message.role.value, "content": message.content}
        return
    if message.reasoning and profile.sends_reasoning_back:
        content = [{"type": "reasoning_text", "text": message.reasoning}]
        yield {"type": "reasoning", "summary": [], "content": content}
    if message.content:
        # llama.cpp refuses a bare string here, which the interface allows.
        content = [{"type": "output_text", "text": message.content}]
        yield {"type": "message", "role": "assistant", "content": content}
    for call in message.tool_calls:
        yield {
            "type": "function_call",
            "call_id": call.call_id,
            "name": call.name,
            "arguments": call.arguments_json,
        }


def _add_tools(data: dict[str, Any], request: ChatRequest, profile: ModelProfile, warnings: list[str]) -> None:
    if not request.tools:
        return
    if not profile.tools:
        warnings.append("tools were left out: the model does not take them")
        return
    offered, choice = demanded(request, profile, warnings)
    data["tools"] = [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            # Left out it means true, which refuses most schemas.
            "strict": False,
        }
        for tool in offered
    ]
    data["tool_choice"] = choice if choice in TOOL_CHOICES else {"type": "function", "name": choice}


def _add_schema(data: dict[str, Any], request: ChatRequest, profile: ModelProfile, warnings: list[str]) -> None:
    if request.json_schema is None:
        return
    if profile.json_schema in {SchemaLevel.STRICT, SchemaLevel.GUIDED}:
        schema = {"type": "json_schema", "name": _SCHEMA_NAME, "schema": request.json_schema, "strict": True}
        data["text"] = {"format": schema}
        return
    warnings.append("json_schema is told to the model but not enforced by it")
    if profile.json_schema is SchemaLevel.OBJECT:
        data["text"] = {"format": {"type": "json_object"}}
