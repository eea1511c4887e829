"""Messages of Anthropic's clients: their blocks, read into the one inner shape of conversations."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic_core import to_json

from reasond_server.errors.base import show
from reasond_server.protocols.conversations import ConversationBuilder, Dialogue
from reasond_server.protocols.message_parts import read_content
from reasond_server.protocols.sealed_reasoning import unseal
from reasond_server.types import ToolCall

# Tuples, because a client may send a list in the place of a name.
_SHOWN: Final = ("text", "image", "document", "search_result")
_ROLES: Final = ("user", "assistant", "system")
# A line that a client changes with each request: before the prompt it would end every prefix that a model server keeps.
_BILLING: Final = re.compile(r"x-anthropic-billing-header:[^\n]*\n*")
# Where the parts that blocks are read as have what is wrong with them.
_SOURCES: Final = re.compile(r"\.(?:image_url\.url|file\.file_data)\Z")


def read_system(given: str | Sequence[Mapping[str, Any]] | None) -> str:
    """Return the instructions, without the line of accounting that some clients begin them with."""
    texts = [given] if isinstance(given, str) else [str(block.get("text") or "") for block in given or ()]
    kept = [
        _BILLING.sub("", text, count=1) if text.startswith("x-anthropic-billing-header:") else text for text in texts
    ]
    return "\n\n".join(text for text in kept if text)


def read_messages(messages: Sequence[Mapping[str, Any]], *, system: str) -> Dialogue:
    """Return the conversation.

    Raises:
        InvalidRequestError: a message is malformed.
    """
    builder = ConversationBuilder()
    builder.instruct(system)
    for place, message in enumerate(messages):
        field, role, content = f"messages.{place}", message.get("role"), message.get("content")
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if role not in _ROLES:
            builder.refuse(f"{field}.role", f"must be 'user' or 'assistant', got {show(role)}")
        elif not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
            builder.refuse(f"{field}.content", f"must be a text or a list of blocks, got {show(content)}")
        elif role == "assistant":
            _read_assistant(blocks, builder)
        else:
            _read_user(f"{field}.content", blocks, builder, is_system=role == "system")
    builder.problems = [replace(one, field=_SOURCES.sub(".source", one.field)) for one in builder.problems]
    return builder.build()


def _read_user(
    field: str, blocks: Sequence[Mapping[str, Any]], builder: ConversationBuilder, *, is_system: bool
) -> None:
    """Read what the user says, after the results that the message has."""
    said: list[Mapping[str, Any]] = []
    for place, block in enumerate(blocks):
        kind = block.get("type")
        if kind == "tool_result":
            given = block.get("content")
            nested = [_convert(each) for each in given] if isinstance(given, list) else given
            text = builder.read(f"{field}.{place}.content", nested).text
            builder.add_result(str(block.get("tool_use_id") or ""), text, is_error=block.get("is_error") is True)
        elif kind in _SHOWN:
            said.append(_convert(block))
        else:
            said.append({"type": "text", "text": ""})
            _pass_over(kind, builder)
    content = builder.read(field, said, is_asked=not is_system)
    if is_system:
        builder.instruct(content.text)
    else:
        builder.add_user(content.text.strip("\n"), content.images)


def _read_assistant(blocks: Sequence[Mapping[str, Any]], builder: ConversationBuilder) -> None:
    """Read what the model said and thought, and the tools that it called."""
    for block in blocks:
        kind = block.get("type")
        if kind == "text":
            builder.add_assistant(str(block.get("text") or ""))
        elif kind == "thinking":
            builder.add_reasoning(unseal(block.get("signature")) or str(block.get("thinking") or ""))
        elif kind == "tool_use":
            call = ToolCall(
                call_id=str(block.get("id") or ""),
                name=str(block.get("name") or "unnamed"),
                arguments_json=to_json(block.get("input") or {}).decode(),
            )
            builder.add_assistant("", [call])
        else:
            _pass_over(kind, builder)


def _pass_over(kind: object, builder: ConversationBuilder) -> None:
    builder.warnings[f"Blocks of the type {show(kind)} are not shown to the model."] = None


def _convert(block: object) -> Mapping[str, Any]:
    """Return a block as the part that `read_content` knows."""
    if not isinstance(block, dict):
        return {"type": None}
    kind, given = block.get("type"), block.get("source")
    source = given if isinstance(given, dict) else {}
    if kind == "image":
        url = source.get("url") or f"data:{source.get('media_type')};base64,{source.get('data') or ''}"
        return {"type": "image_url", "image_url": {"url": url}}
    if kind == "search_result":
        texts = [block.get("title"), given, read_content("", block.get("content"), is_asked=False).text]
        return {"type": "text", "text": "\n".join(str(text) for text in texts if text)}
    return _convert_document(block, source) if kind == "document" else block


def _convert_document(block: Mapping[str, Any], source: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a document as the part that `read_content` knows."""
    title, data = block.get("title") or "document", source.get("data") or ""
    if source.get("type") == "content":
        given = source.get("content")
        data = read_content("", [given] if isinstance(given, dict) else given).text
    if source.get("type") in ["text", "content"]:
        return {"type": "text", "text": f"File {show(title)}:\n{data}"}
    return {"type": "file", "file": {"filename": title, "file_data": data}}
