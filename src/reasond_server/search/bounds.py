"""Upper bounds of prompts in tokens, for what is reserved before a call."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import Message, TokenCounter

_BYTES_PER_MESSAGE = 64


def prompt_bound(messages: Sequence[Message], counter: TokenCounter) -> int:
    """Return the tokens of a prompt, or its bytes where the counter only estimates: a token is at least one byte."""
    if counter.is_exact:
        return counter.count_prompt(messages)
    return sum(len(message.content.encode("utf-8", "replace")) + _BYTES_PER_MESSAGE for message in messages)
