"""The messages of a chat, read into the inner shape. They are taken as texts: nothing in them chooses anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.protocols.conversations import ConversationBuilder, read_image
from reasond_server.types import Image, ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.protocols.conversations import Dialogue

_MOST_PROBLEMS: Final = 20
_SYSTEM: Final = frozenset({"system", "developer"})
_RESULTS: Final = frozenset({"tool", "function"})
_ROLES: Final = frozenset({*_SYSTEM, *_RESULTS, "user", "assistant"})
_TEXT_PARTS: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
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
    for place, message in enumerate(messages):
        field, role = f"messages.{place}", message.get("role")
        if not isinstance(role, str) or role not in _ROLES:
            description = f"must be 'system', 'developer', 'user', 'assistant' or 'tool', got {show(role)}"
            problems.append(Violation(field=f"{field}.role", description=description))
        else:
            unknown |= dict.fromkeys(message.keys() - _MEMBERS - _OWN_MEMBERS.get(role, frozenset()))
            problems += _read_message(field, role, message, builder)
        if len(problems) >= _MOST_PROBLEMS:
            break
    if problems:
        raise InvalidRequestError.of(*problems[:_MOST_PROBLEMS])
    names = sorted(str(name)[:64] for name in unknown)[:_MOST_PROBLEMS]
    return builder.build(), [f"The member {name} of messages is not shown to the model." for name in names]


def _read_message(
    field: str, role: str, message: Mapping[str, Any], builder: ConversationBuilder
) -> Sequence[Violation]:
    """Read one message into `builder`; return what is wrong with it."""
    content, images, found = message.get("content"), list[Image](), list[Violation]()
    if role == "user" and isinstance(content, list):
        content, images, found = _take_images(f"{field}.content", content)
    text, wrong = _read_content(f"{field}.content", content, may_be_null=role not in {*_SYSTEM, "user"})
    found += wrong
    if role in _SYSTEM:
        builder.instruct(text)
    elif role == "user":
        builder.add_user(text, images)
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


def _take_images(field: str, parts: Sequence[Any]) -> tuple[list[Any], list[Image], list[Violation]]:
    """Return the parts that are no images, the images, and what is wrong with them."""
    others: list[Any] = []
    images: list[Image] = []
    found: list[Violation] = []
    for place, part in enumerate(parts):
        shown = part.get("image_url") if isinstance(part, dict) and part.get("type") == "image_url" else None
        if shown is None:
            others.append(part)
            continue
        url = shown.get("url") if isinstance(shown, dict) else shown
        read = read_image(f"{field}.{place}.image_url.url", url)
        if isinstance(read, Violation):
            found.append(read)
        else:
            images.append(read)
    return others, images, found[:_MOST_PROBLEMS]


def _read_content(field: str, content: object, *, may_be_null: bool) -> tuple[str, list[Violation]]:
    """Return the text of a message's content, which is a text or a list of parts."""
    if isinstance(content, str):
        return content, []
    if content is None and may_be_null:
        return "", []
    if not isinstance(content, list):
        return "", [Violation(field=field, description=f"must be a text or a list of parts, got {show(content)}")]
    texts: list[str] = []
    found: list[Violation] = []
    for place, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get(_TEXT_PARTS[kind]) if isinstance(kind, str) and kind in _TEXT_PARTS else None
        if isinstance(text, str):
            texts.append(text)
        elif isinstance(kind, str) and kind in _TEXT_PARTS:
            found.append(Violation(field=f"{field}.{place}.{_TEXT_PARTS[kind]}", description="must be a text"))
        else:
            description = f"must be of type 'text': {show(kind)} is not supported"
            found.append(Violation(field=f"{field}.{place}", description=description))
        if len(found) >= _MOST_PROBLEMS:
            break
    return "\n".join(texts), found
