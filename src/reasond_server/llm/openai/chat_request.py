"""The body of a Chat Completions call, as far as a server's profile allows it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reasond_server.errors import shown
from reasond_server.llm.model import Message, Role
from reasond_server.llm.openai.json_values import json_of_texts
from reasond_server.llm.openai.protocol import Body
from reasond_server.llm.profiles import SchemaLevel

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reasond_server.llm.model import ChatRequest, ToolSpec
    from reasond_server.llm.openai.options import BackendOptions
    from reasond_server.llm.profiles import ModelProfile
    from reasond_server.types import ToolCall

_DEFAULT_TEMPERATURE = 1.0
_SCHEMA_NAME = "answer"
_LONGEST_KEPT = 16_384
TOOL_CHOICES = frozenset({"auto", "none", "required"})
"""What may be said of tools; anything else is the name of one."""


def body_of(request: ChatRequest, options: BackendOptions) -> Body:
    """Return what to send. It always asks for a stream and always sets a limit of tokens.

    A parameter that the profile does not support is left out and named in the warnings; a JSON Schema that the
    server would not show to the model, or not enforce, is told to the model in a system message.
    """
    profile = options.profile
    warnings: list[str] = []
    data: dict[str, Any] = {
        "model": options.model,
        "stream": True,
        profile.limit_field.value: request.max_tokens,
    }
    if profile.stream_usage:
        data["stream_options"] = {"include_usage": True}
    data |= _sampling(request, profile, warnings)
    if request.stop:
        data |= _stops(request, profile, warnings)
    if request.tools:
        data |= _tools(request, profile, warnings)
    if request.json_schema is not None:
        data |= _schema(request, profile, warnings)
    messages = [message.kept_form or _written(message, profile) for message in _messages(request, profile)]
    return Body(data=data, messages=messages, warnings=tuple(warnings))


def messages_of(request: ChatRequest, options: BackendOptions) -> list[dict[str, Any]]:
    """Return the messages of a call as they are sent."""
    return [_message(message, options.profile) for message in _messages(request, options.profile)]


def _written(message: Message, profile: ModelProfile) -> bytes:
    """Return a message as JSON; it is kept where it is the same for all servers, and short: long ones are few."""
    form = json_of_texts(_message(message, profile))
    if not message.reasoning and len(form) <= _LONGEST_KEPT:
        message.keep_form(form)
    return form


def _messages(request: ChatRequest, profile: ModelProfile) -> Sequence[Message]:
    if request.json_schema is None and profile.several_system_messages:
        return request.messages
    messages = list(request.messages)
    if request.json_schema is not None and profile.json_schema is not SchemaLevel.STRICT:
        schema = json.dumps(request.json_schema, ensure_ascii=False)
        told = f"Answer with one JSON value that satisfies this JSON Schema, and with nothing else:\n{schema}"
        at = sum(1 for _ in _leading_system(messages))
        messages.insert(at, Message(role=Role.SYSTEM, content=told))
    if not profile.several_system_messages:
        messages = _merged(messages)
    return messages


def _leading_system(messages: Sequence[Message]) -> Iterable[Message]:
    for message in messages:
        if message.role is not Role.SYSTEM:
            return
        yield message


def _merged(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with all system messages as one, at the beginning."""
    system = [message.content for message in messages if message.role is Role.SYSTEM]
    others = [message for message in messages if message.role is not Role.SYSTEM]
    return [Message(role=Role.SYSTEM, content="\n\n".join(system)), *others] if system else others


def _message(message: Message, profile: ModelProfile) -> dict[str, Any]:
    # Formatted, because `value` of an enumeration takes four times as long, and histories have many messages.
    data: dict[str, Any] = {"role": f"{message.role}", "content": message.content}
    if message.tool_calls:
        data["tool_calls"] = [_call(call) for call in message.tool_calls]
        data["content"] = message.content or None
    if message.role is Role.TOOL:
        data["tool_call_id"] = message.tool_call_id
    if message.reasoning and profile.sends_reasoning_back and profile.reasoning_fields:
        data[profile.reasoning_fields[0]] = message.reasoning
    return data


def _call(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments_json},
    }


def _sampling(request: ChatRequest, profile: ModelProfile, warnings: list[str]) -> dict[str, Any]:
    wanted: dict[str, Any] = {"temperature": request.temperature}
    if request.seed is not None:
        wanted["seed"] = request.seed
    if profile.sampling:
        return wanted
    if request.temperature == _DEFAULT_TEMPERATURE:
        del wanted["temperature"]
    warnings.extend(f"{name} was left out: the model does not take it" for name in wanted)
    return {}


def _stops(request: ChatRequest, profile: ModelProfile, warnings: list[str]) -> dict[str, Any]:
    wanted = list(dict.fromkeys(word for word in request.stop if word))
    sent = wanted[: profile.max_stops]
    if len(sent) < len(wanted) and not request.is_stop_advice:
        warnings.append(
            f"stop was shortened to {len(sent)} of {len(wanted)} strings, which is what the model takes; "
            "the others end the answer on our side"
        )
    return {"stop": sent} if sent else {}


def _tools(request: ChatRequest, profile: ModelProfile, warnings: list[str]) -> dict[str, Any]:
    if not profile.tools:
        warnings.append("tools were left out: the model does not take them")
        return {}
    offered, choice = demanded(request, profile, warnings)
    tools = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in offered
    ]
    named = {"type": "function", "function": {"name": choice}}
    return {"tools": tools, "tool_choice": choice if choice in TOOL_CHOICES else named}


def demanded(request: ChatRequest, profile: ModelProfile, warnings: list[str]) -> tuple[Sequence[ToolSpec], str]:
    """Return the tools to offer and how to demand one, as far as the profile allows it."""
    choice = request.tool_choice
    if choice in {"auto", "none"}:
        return request.tools, choice
    if not profile.forced_tool_choice:
        warnings.append(f"tool_choice {shown(choice)} became 'auto': the model cannot be forced")
        return request.tools, "auto"
    named = [tool for tool in request.tools if tool.name == choice]
    if named and not profile.named_tool_choice:
        return named, "required"
    return request.tools, choice


def _schema(request: ChatRequest, profile: ModelProfile, warnings: list[str]) -> dict[str, Any]:
    level = profile.json_schema
    if level in {SchemaLevel.STRICT, SchemaLevel.GUIDED}:
        wanted = {"name": _SCHEMA_NAME, "schema": request.json_schema, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": wanted}}
    warnings.append("json_schema is told to the model but not enforced by it")
    return {"response_format": {"type": "json_object"}} if level is SchemaLevel.OBJECT else {}
