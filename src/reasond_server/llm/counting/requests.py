"""The size of a whole call: its messages, and its tools, tool calls and schema, which counters do not see."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from reasond_server.llm.model import LONG_TEXT_CHARACTERS, ChatRequest, Message, TokenCounter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.types import ToolCall


_BYTES_PER_MESSAGE = 64
_TOKENS_PER_EXTRA = 16


def count_request(request: ChatRequest, counter: TokenCounter) -> int:
    """Return the input tokens of a call by `counter`, with its tools, its tool calls and its schema."""
    return counter.count_prompt(request.messages) + count_extras(request, counter)


def count_extras(request: ChatRequest, counter: TokenCounter) -> int:
    """Return the tokens that a call has in addition to its message contents: tools, calls, a schema and images."""
    tokens = sum([counter.count_text(text) + _TOKENS_PER_EXTRA for text in _list_extras(request)])
    return tokens + bound_images(request.messages)


def has_long_text(messages: Sequence[Message]) -> bool:
    """Return whether counting `messages` would delay other runs in the same event loop."""
    # A loop, because a comprehension is a call, and each model call asks.
    characters = 0
    for message in messages:
        characters += len(message.content)
    return characters > LONG_TEXT_CHARACTERS


def bound_messages(messages: Sequence[Message]) -> int:
    """Return an upper bound of a prompt's tokens, valid for every tokenizer: a token is at least one byte."""
    return count_content_bytes(messages) + _BYTES_PER_MESSAGE * len(messages)


def count_content_bytes(messages: Sequence[Message]) -> int:
    """Return the bytes of the contents of all messages in UTF-8."""
    return sum([count_bytes(message.content) for message in messages])


def bound_extras(request: ChatRequest) -> int:
    """Return an upper bound of the tokens that `count_extras` counts."""
    tokens = sum([count_bytes(text) + _BYTES_PER_MESSAGE for text in _list_extras(request)])
    return tokens + bound_images(request.messages)


def bound_images(messages: Sequence[Message]) -> int:
    """Return an upper bound of the tokens of all images in `messages`."""
    tokens = 0
    for message in messages:
        if message.images:
            tokens += sum([image.tokens for image in message.images])
    return tokens


def count_bytes(text: str) -> int:
    """Return the bytes of `text` in UTF-8; a lone surrogate counts as one byte."""
    # `isascii` reads a stored flag, not the characters.
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


def render_call(call: ToolCall) -> str:
    """Return the text that a model writes for a tool call."""
    return f"{call.name}{call.arguments_json}"


def _list_extras(request: ChatRequest) -> list[str]:
    """Return the texts of a call that are not contents of messages."""
    texts = [render_call(call) for message in request.messages if message.tool_calls for call in message.tool_calls]
    if request.tools:
        texts.extend(f"{tool.name}{tool.description}{json.dumps(tool.parameters)}" for tool in request.tools)
    if request.json_schema is not None:
        texts.append(json.dumps(request.json_schema))
    return texts
