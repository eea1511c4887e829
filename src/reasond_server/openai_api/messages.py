"""The messages of a chat: what they say to a strategy. They are taken as texts: nothing in them chooses anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from reasond_server.errors import InvalidRequestError, Violation, show
from reasond_server.types import HistoryMessage, Speaker
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_MOST_PROBLEMS: Final = 20
_SYSTEM: Final = frozenset({"system", "developer"})
_ROLES: Final = frozenset({*_SYSTEM, "user", "assistant"})
_TOOL_ROLES: Final = frozenset({"tool", "function"})
_TEXT_PARTS: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_TOOL_CALLS: Final = ("tool_calls", "function_call")
# What clients send back of an earlier answer: it is not shown to the model again.
_OF_ANSWERS: Final = frozenset({"reasoning", "reasoning_content", "refusal", "annotations", "audio", *_TOOL_CALLS})
_BETWEEN: Final = "\n\n"


@value
class Said:
    """The messages of a chat: `query` is what the user said last, `history` what was said before."""

    query: str
    system: str = ""
    history: tuple[HistoryMessage, ...] = ()
    warnings: tuple[str, ...] = ()


def read_messages(messages: Sequence[Mapping[str, Any]]) -> Said:
    """Return what the messages say; consecutive messages of a role are joined.

    Raises:
        InvalidRequestError: a message has a role or content that is not supported, or none of the user comes last.
    """
    system: list[str] = []
    lines: list[tuple[str, list[str]]] = []
    problems: list[Violation] = []
    has_names = False
    for place, message in enumerate(messages):
        role, text, found = _read_message(f"messages.{place}", message)
        problems += found
        if len(problems) >= _MOST_PROBLEMS:
            break
        has_names = has_names or message.get("name") is not None
        if role in _SYSTEM:
            system.append(text)
        elif lines and lines[-1][0] == role:
            lines[-1][1].append(text)
        else:
            lines.append((role, [text]))
    if not problems and (not lines or lines[-1][0] != "user"):
        last = f"after the last one of role {lines[-1][0]!r}" if lines else "and there is none"
        description = f"must end with a message of role 'user', {last}: it is what is asked"
        problems.append(Violation(field="messages", description=description))
    if problems:
        raise InvalidRequestError.of(*problems[:_MOST_PROBLEMS])
    said = [(role, _join(texts)) for role, texts in lines]
    return Said(
        query=said[-1][1],
        system=_join(system),
        history=tuple(HistoryMessage(role=Speaker(role), text=text) for role, text in said[:-1] if text),
        warnings=("The names of messages are not shown to the model.",) if has_names else (),
    )


def _read_message(field: str, message: Mapping[str, Any]) -> tuple[str, str, list[Violation]]:
    """Return the role and the text of a message, and what is wrong with it."""
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        if isinstance(role, str) and role in _TOOL_ROLES:
            description = f"{role!r} is not supported: tools of clients are not called here"
        else:
            description = f"must be 'system', 'developer', 'user' or 'assistant', got {show(role)}"
        return "", "", [Violation(field=f"{field}.role", description=description)]
    found = list(_find_unknown(field, role, message))
    text, wrong = _read_content(f"{field}.content", message.get("content"), may_be_null=role == "assistant")
    return role, text, found + wrong


def _find_unknown(field: str, role: str, message: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield the members of a message that are not supported."""
    for name in message:
        if name in {"role", "content", "name"}:
            continue
        if role != "assistant" or name not in _OF_ANSWERS:
            yield Violation(field=f"{field}.{name[:100]}", description="is not known")
        elif name in _TOOL_CALLS and message[name]:
            yield Violation(
                field=f"{field}.{name}", description="is not supported: tools of clients are not called here"
            )


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


def _join(texts: Sequence[str]) -> str:
    return _BETWEEN.join(text for text in texts if text)
