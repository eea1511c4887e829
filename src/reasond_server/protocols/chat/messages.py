"""The messages of a chat: what they say to a strategy. They are taken as texts: nothing in them chooses anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.types import HistoryMessage, Image, Speaker
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_MOST_PROBLEMS: Final = 20
_SYSTEM: Final = frozenset({"system", "developer"})
_RESULT: Final = "tool"
_ROLES: Final = frozenset({*_SYSTEM, "user", "assistant", _RESULT})
_TEXT_PARTS: Final = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
# What clients send back of an earlier answer: it is not shown to the model again.
_OF_ANSWERS: Final = frozenset({"reasoning", "reasoning_content", "refusal", "annotations", "audio", "function_call"})
_MEMBERS: Final = {"assistant": _OF_ANSWERS | {"tool_calls"}, _RESULT: frozenset({"tool_call_id"})}
_BETWEEN: Final = "\n\n"


@value
class ChatTranscript:
    """The messages of a chat: `query` is what the user said last, with `images`, `history` what was said before."""

    query: str
    system: str = ""
    history: tuple[HistoryMessage, ...] = ()
    images: tuple[Image, ...] = ()
    warnings: tuple[str, ...] = ()


def read_messages(messages: Sequence[Mapping[str, Any]]) -> ChatTranscript:
    """Return what the messages say; consecutive messages of a role are joined.

    Calls of tools and their results are told as texts of the assistant.

    Raises:
        InvalidRequestError: a message has a role or content that is not supported, or none of the user comes last.
    """
    system: list[str] = []
    lines: list[tuple[str, list[str]]] = []
    images: list[Image] = []
    problems: list[Violation] = []
    has_names = has_older_images = False
    for place, message in enumerate(messages):
        role, text, seen, found = _read_message(f"messages.{place}", message)
        problems += found
        if len(problems) >= _MOST_PROBLEMS:
            break
        has_names = has_names or message.get("name") is not None
        if role in _SYSTEM:
            system.append(text)
        elif lines and lines[-1][0] == role:
            lines[-1][1].append(text)
            images += seen
        else:
            lines.append((role, [text]))
            has_older_images = has_older_images or bool(images)
            images = seen
    if not problems and (not lines or lines[-1][0] != "user"):
        last = f"after the last one of role {lines[-1][0]!r}" if lines else "and there is none"
        description = f"must end with a message of role 'user', {last}: it is what is asked"
        problems.append(Violation(field="messages", description=description))
    if problems:
        raise InvalidRequestError.of(*problems[:_MOST_PROBLEMS])
    said = [(role, _join(texts)) for role, texts in lines]
    return ChatTranscript(
        query=said[-1][1],
        system=_join(system),
        history=tuple(HistoryMessage(role=Speaker(role), text=text) for role, text in said[:-1] if text),
        images=tuple(images),
        warnings=(
            *(("The names of messages are not shown to the model.",) if has_names else ()),
            *(("Images of earlier messages are not shown to the model.",) if has_older_images else ()),
        ),
    )


def _read_message(field: str, message: Mapping[str, Any]) -> tuple[str, str, list[Image], list[Violation]]:
    """Return the role, the text and the images of a message, and what is wrong with it."""
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        description = f"must be 'system', 'developer', 'user', 'assistant' or 'tool', got {show(role)}"
        return "", "", [], [Violation(field=f"{field}.role", description=description)]
    found = list(_find_unknown(field, role, message))
    content, images = message.get("content"), list[Image]()
    if role == "user" and isinstance(content, list):
        content, images, odd = _take_images(f"{field}.content", content)
        found += odd
    text, wrong = _read_content(f"{field}.content", content, may_be_null=role == "assistant")
    found += wrong
    if role == _RESULT:
        return "assistant", f"[A tool returned: {text}]", [], found
    if calls := message.get("tool_calls"):
        told = list(_tell_calls(calls))
        if not told:
            found.append(Violation(field=f"{field}.tool_calls", description="must be a list of calls of functions"))
        text = _join([text, *told])
    return role, text, images, found


def _take_images(field: str, parts: Sequence[Any]) -> tuple[list[Any], list[Image], list[Violation]]:
    """Return the parts that are no images, the images, and what is wrong with them."""
    others: list[Any] = []
    images: list[Image] = []
    found: list[Violation] = []
    for place, part in enumerate(parts):
        shown = part.get("image_url") if isinstance(part, dict) and part.get("type") == "image_url" else None
        if not isinstance(shown, dict):
            others.append(part)
            continue
        scheme, _, content = str(shown.get("url")).partition(",")
        media_type, _, encoding = scheme.removeprefix("data:").partition(";")
        if scheme.startswith("data:") and encoding == "base64":
            images.append(Image(media_type=media_type, base64=content))
        else:
            text = f"must be a data: URL in base64, because no images are fetched here; got {show(shown.get('url'))}"
            found.append(Violation(field=f"{field}.{place}.image_url.url", description=text))
    return others, images, found[:_MOST_PROBLEMS]


def read_results(messages: Sequence[Mapping[str, Any]]) -> Sequence[tuple[str, str]]:
    """Return the id and the text of each result at the end of `messages`, in their order.

    Raises:
        InvalidRequestError: a result has no id of a call, or its content is no text.
    """
    results: list[tuple[str, str]] = []
    problems: list[Violation] = []
    for place in range(len(messages) - 1, -1, -1):
        message = messages[place]
        if message.get("role") != _RESULT:
            break
        call_id = message.get("tool_call_id")
        if not isinstance(call_id, str) or not call_id:
            problems.append(Violation(field=f"messages.{place}.tool_call_id", description="is required"))
        text, wrong = _read_content(f"messages.{place}.content", message.get("content"), may_be_null=True)
        problems += wrong
        results.append((str(call_id), text))
    if problems:
        raise InvalidRequestError.of(*problems[:_MOST_PROBLEMS])
    return results[::-1]


def _tell_calls(calls: object) -> Iterator[str]:
    """Yield what an earlier answer called."""
    for call in calls if isinstance(calls, list) else ():
        made = call.get("function") if isinstance(call, dict) else None
        if isinstance(made, dict):
            yield f"[Called {made.get('name')} with {made.get('arguments')}]"


def _find_unknown(field: str, role: str, message: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield the members of a message that are not supported."""
    for name in message:
        known = _MEMBERS.get(role, frozenset())
        if name not in {"role", "content", "name"} and name not in known:
            yield Violation(field=f"{field}.{name[:100]}", description="is not known")


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
