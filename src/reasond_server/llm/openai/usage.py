"""What a call cost: as the server reports it, mended where it leaves something out, or as we count it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from reasond_server.types import Usage, UsageSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import Message, TokenCounter

_LEAST_OF_EXACT = 0.7
_LEAST_OF_ESTIMATE = 0.5
_BYTES_PER_TOKEN = 4
_SMALLEST_PROMPT = 64


def settled(reported: Usage | None, *, messages: Sequence[Message], written: str, counter: TokenCounter) -> Usage:
    """Return the usage of a call.

    A report without prompt tokens, or without output although text came, is filled up with our own count and is
    UsageSource.PARTIAL; without a report all is our own count, UsageSource.ESTIMATED.
    """
    if reported is None:
        return Usage(
            input_tokens=counter.count_prompt(messages),
            output_tokens=counter.count_text(written),
            model_calls=1,
            source=UsageSource.ESTIMATED,
        )
    is_output_missing = not reported.output_tokens and bool(written)
    if reported.input_tokens and not is_output_missing:
        return replace(reported, model_calls=1)
    return replace(
        reported,
        input_tokens=reported.input_tokens or counter.count_prompt(messages),
        output_tokens=counter.count_text(written) if is_output_missing else reported.output_tokens,
        model_calls=1,
        source=UsageSource.PARTIAL,
    )


def truncation_warning(reported: Usage | None, *, messages: Sequence[Message], counter: TokenCounter) -> str:
    """Return a warning if the server seems to have read only part of the prompt, else an empty text.

    It does where it reports less than 70 % of our exact count. Where we only estimate, less than 50 % of the
    smaller one of the estimate and a quarter of the prompt's bytes, since an estimate may be an upper bound.
    Prompts of which we expect fewer than 64 tokens are not judged.
    """
    if reported is None or not reported.input_tokens:
        return ""
    expected, least = counter.count_prompt(messages), _LEAST_OF_EXACT
    if not counter.is_exact:
        size = sum(len(message.content.encode("utf-8", "replace")) for message in messages)
        expected, least = min(expected, size // _BYTES_PER_TOKEN), _LEAST_OF_ESTIMATE
    if expected < _SMALLEST_PROMPT or reported.input_tokens >= expected * least:
        return ""
    about = "" if counter.is_exact else "about "
    return (
        f"The prompt was truncated upstream: the model server reports {reported.input_tokens} tokens of it, "
        f"we sent {about}{expected}. Raise the server's context length."
    )
