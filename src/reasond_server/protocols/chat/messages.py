"""The messages of a chat, read into the inner shape. They are taken as texts: nothing in them chooses anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from reasond_server.errors.base import show
from reasond_server.protocols.conversations import ConversationBuilder, Dialogue
from reasond_server.protocols.custom_tools import write_arguments
from reasond_server.protocols.message_parts import MOST_PROBLEMS
from reasond_server.types import ToolCall

_SYSTEM: Final = frozenset({"system", "developer"})
_RESULTS: Final = frozenset({"tool", "function"})
_ROLES: Final = frozenset({*_SYSTEM, *_RESULTS, "user", "assistant"})
_NO_CONTENT: Final = "must be a text or a list of parts, got None"
_MEMBERS: Final = frozenset({"role", "content"})
# Members of single authors; an assistant's last four are those of earlier answers, which are not shown again.
_OWN_MEMBERS: Final = {
    "assistant": frozenset({"tool_calls", "function_call", "reasoning_content", "reasoning"})
    | {"refusal", "annotations", "audio", "reasoning_details"},
    "tool": frozenset({"tool_call_id", "name"}),
    "function": frozenset({"name"}),
}


def read_messages(messages: Sequence[Mapping[str, Any]]) -> tuple[Dialogue, Sequence[str]]:
    """Return the conversation, and warnings about what is not shown to the model.

    Raises:
        InvalidRequestError: a message has a role or content that is not supported.
    """
    builder = ConversationBuilder()
    unknown: dict[str, None] = {}
    for place, message in enumerate(messages):
        field, role = f"messages.{place}", message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            description = f"must be 'system', 'developer', 'user', 'assistant' or 'tool', got {show(role)}"
            builder.refuse(f"{field}.role", description)
        else:
            unknown |= dict.fromkeys(message.keys() - _MEMBERS - _OWN_MEMBERS.get(role, frozenset()))
            _read_message(field, role, message, builder)
    dialogue = builder.build()
    names = sorted(str(name)[:64] for name in unknown)[:MOST_PROBLEMS]
    return dialogue, [
        *dialogue.warnings,
        *(f"The member {name} of messages is not shown to the model." for name in names),
    ]


def _read_message(field: str, role: str, message: Mapping[str, Any], builder: ConversationBuilder) -> None:
    """Read one message into `builder`."""
    given, calls = message.get("content"), list[ToolCall]()
    if given is None and role in {*_SYSTEM, "user"}:
        builder.refuse(f"{field}.content", _NO_CONTENT)
    if role in _RESULTS:
        text = builder.read(f"{field}.content", given).text
        builder.add_result(str(message.get("tool_call_id") or message.get("name") or "call"), text)
        return
    if role == "assistant":
        calls = _read_calls(field, message, builder)
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        builder.add_reasoning(reasoning if isinstance(reasoning, str) else "")
    builder.say(field, role, given, calls)


def _read_calls(field: str, message: Mapping[str, Any], builder: ConversationBuilder) -> list[ToolCall]:
    """Return the calls of an earlier answer; none of them if one is malformed."""
    given = message.get("tool_calls") or []
    if old := message.get("function_call"):
        given = [{"id": old.get("name") if isinstance(old, dict) else "", "function": old}]
    calls: list[ToolCall] = []
    for call in given if isinstance(given, list) else [None]:
        made = (call.get("function") or call.get("custom")) if isinstance(call, dict) else None
        text = made.get("input") if isinstance(made, dict) else None
        if not isinstance(call, dict) or not isinstance(made, dict):
            builder.refuse(f"{field}.tool_calls", "must be a list of calls of functions")
            return []
        calls.append(
            ToolCall(
                call_id=str(call.get("id") or made.get("name") or "call"),
                name=str(made.get("name") or "unnamed"),
                arguments_json=str(made.get("arguments") or "{}") if text is None else write_arguments(text),
            )
        )
    return calls
