"""The room that a prompt leaves in the model's window: how much may be written after it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from reasond_server.errors import ContextExhaustedError
from reasond_server.llm.model import LONG_TEXT_CHARACTERS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import ChatModel, Message, TokenCounter

LEAST_TOKENS: Final = 100


async def writing_room(
    messages: Sequence[Message], *, max_tokens: int, model: ChatModel
) -> tuple[int, tuple[str, ...]]:
    """Return how many tokens the model may write after `messages`, and a warning if these are fewer than `max_tokens`.

    Raises:
        ContextExhaustedError: there is no room for `LEAST_TOKENS`.
    """
    window = model.context_window
    if window is None:
        return max_tokens, ()
    told = await model.count_exactly(messages)
    prompt = await own_count(messages, model.counter) if told is None else told
    room = window - prompt
    if room < LEAST_TOKENS:
        raise ContextExhaustedError(
            f"the prompt has {prompt} tokens, which leaves {max(room, 0)} of the model's context window of {window}; "
            f"at least {LEAST_TOKENS} are needed to answer",
            remedy="Shorten query or material, or use the strategy 'bounded_context', which reads long material in "
            "segments.",
            metadata={"prompt_tokens": str(prompt), "context_window": str(window)},
        )
    if room >= max_tokens:
        return max_tokens, ()
    warning = (
        f"max_tokens was lowered from {max_tokens} to {room}: the prompt has {prompt} tokens and the model's "
        f"context window {window}."
    )
    return room, (warning,)


async def own_count(messages: Sequence[Message], counter: TokenCounter) -> int:
    """Return the tokens of `messages` by `counter`; what takes long is counted beside the event loop."""
    if sum(len(message.content) for message in messages) > LONG_TEXT_CHARACTERS:
        return await asyncio.to_thread(counter.count_prompt, messages)
    return counter.count_prompt(messages)
