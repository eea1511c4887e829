"""The messages of a chat, read into the inner shape. They are taken as texts: nothing in them chooses anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.protocols.conversations import ConversationBuilder
from reasond_server.protocols.message_parts import MOST_PROBLEMS, read_content
from reasond_server.types import ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.protocols.conversations import Dialogue

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
    problems: list[Violation] = []
    unknown: dict[str, None] = {}
    passed_over: dict[str, None] = {}
    for place, message in enumerate(messages):
        field, role = f"messages.{place}", message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            description = f"must be 'system', 'developer', 'user', 'assistant' or 'tool', got {show(role)}"
            problems.append(Violation(field=f"{field}.role", description=description))
        else:
            unknown |= dict.fromkeys(message.keys() - _MEMBERS - _OWN_MEMBERS.get(role, frozenset()))
            problems += _read_message(field, role, message, builder, passed_over)
        if len(problems) >= MOST_PROBLEMS:
            break
    if problems:
        raise InvalidRequestError.of(*problems[:MOST_PROBLEMS])
    names = sorted(str(name)[:64] for name in unknown)[:MOST_PROBLEMS]
    warnings = [*passed_over, *(f"The member {name} of messages is not shown to the model." for name in names)]
    return builder.build(), warnings


def _read_message(
    field: str, role: str, message: Mapping[str, Any], builder: ConversationBuilder, warnings: dict[str, None]
) -> Sequence[Violation]:
    """Read one message into `builder`; return what is wrong with it."""
    found = list[Violation]()
    given = message.get("content")
    if given is None and role in {*_SYSTEM, "user"}:
        found.append(Violation(field=f"{field}.content", description=_NO_CONTENT))
    content = read_content(f"{field}.content", given, is_asked=role == "user")
    found += content.problems
    warnings |= dict.fromkeys(content.warnings)
    text = content.text
    if role in _SYSTEM:
        builder.instruct(text)
    elif role == "user":
        builder.add_user(text, content.images)
    elif role in _RESULTS:
        builder.add_result(str(message.get("tool_call_id") or message.get("name") or "call"), text)
    else:
        calls, odd = _read_calls(field, message)
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        builder.add_reasoning(reasoning if isinstance(reasoning, str) else "")
        builder.add_assistant(text, calls)
        found += odd
    return found


def _read_calls(field: str, message: Mapping[str, Any]) -> tuple[list[ToolCall], list[Violation]]:
    """Return the calls of an earlier answer, and what is wrong with them."""
    given = message.get("tool_calls") or []
    if old := message.get("function_call"):
        given = [{"id": old.get("name") if isinstance(old, dict) else "", "function": old}]
    calls: list[ToolCall] = []
    for call in given if isinstance(given, list) else [None]:
        made = (call.get("function") or call.get("custom")) if isinstance(call, dict) else None
        if not isinstance(call, dict) or not isinstance(made, dict):
            text = "must be a list of calls of functions"
            return [], [Violation(field=f"{field}.tool_calls", description=text)]
        calls.append(
            ToolCall(
                call_id=str(call.get("id") or made.get("name") or "call"),
                name=str(made.get("name") or "unnamed"),
                arguments_json=str(made.get("arguments") or made.get("input") or "{}"),
            )
        )
    return calls, []
