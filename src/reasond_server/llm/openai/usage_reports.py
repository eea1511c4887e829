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
# Only runs of one sign make tokens that long, and no answer of some hundred bytes consists of them.
_MOST_BYTES_PER_TOKEN = 32
_SHORT_BYTES = 256
_MAX_TOKENS_REPORTED = 1_000_000_000


def complete_usage(
    reported: Usage | None, *, messages: Sequence[Message], written: str, counter: TokenCounter
) -> Usage:
    """Return the usage of a call.

    Where a report lacks prompt tokens or has far less output than came, our own count completes it
    (UsageSource.PARTIAL). Without a report all is our own count (UsageSource.ESTIMATED).
    """
    if reported is None:
        return Usage(
            input_tokens=counter.count_prompt(messages),
            output_tokens=counter.count_text(written),
            model_calls=1,
            source=UsageSource.ESTIMATED,
        )
    is_output_missing = bool(written) and reported.output_tokens <= _find_floor(written, counter)
    if reported.input_tokens and not is_output_missing:
        return reported if reported.model_calls == 1 else replace(reported, model_calls=1)
    return replace(
        reported,
        input_tokens=reported.input_tokens or counter.count_prompt(messages),
        output_tokens=counter.count_text(written) if is_output_missing else reported.output_tokens,
        model_calls=1,
        source=UsageSource.PARTIAL,
    )


def _find_floor(written: str, counter: TokenCounter) -> int:
    """Return the most tokens that cannot be true for `written`: half of an exact count, else by bytes."""
    size = len(_to_utf8(written))
    if size < _SHORT_BYTES:
        return 0
    return counter.count_text(written) // 2 if counter.is_exact else size // _MOST_BYTES_PER_TOKEN


def warn_of_truncation(reported: Usage | None, *, messages: Sequence[Message], counter: TokenCounter) -> str:
    """Return a warning if the server seems to have read only part of the prompt, else an empty text.

    The limit is 70 % of our count where that is exact. Where we estimate, it is 50 % of the estimate or of a quarter of
    the prompt's bytes, whichever is less, since an estimate may be an upper bound. Prompts under 64 tokens are not
    judged.
    """
    if reported is None or not reported.input_tokens:
        return ""
    least = _LEAST_OF_EXACT if counter.is_exact else _LEAST_OF_ESTIMATE
    if counter.is_exact:
        expected = counter.count_prompt(messages)
    else:
        expected = len(_to_utf8("".join([message.content for message in messages]))) // _BYTES_PER_TOKEN
        if reported.input_tokens < expected * least:
            # The estimate can only lower what is expected, and making it takes longer than all else here.
            expected = min(expected, counter.count_prompt(messages))
    if expected < _SMALLEST_PROMPT or reported.input_tokens >= expected * least:
        return ""
    about = "" if counter.is_exact else "about "
    return (
        f"The prompt was truncated upstream: the model server reports {reported.input_tokens} tokens of it, "
        f"we sent {about}{expected}. Raise the server's context length."
    )


def _to_utf8(text: str) -> str | bytes:
    """Return `text`, or its bytes where their number differs."""
    return text if text.isascii() else text.encode("utf-8", "replace")


def usage_of(reported: object) -> Usage | None:
    """Return a reported usage in any of the forms in use; None if it is no usage."""
    if not isinstance(reported, dict):
        return None
    output = _count(reported, "completion_tokens", "output_tokens")
    prompt = _count(reported, "prompt_tokens", "input_tokens")
    if not output and not prompt:
        return None
    prompt_details = reported.get("prompt_tokens_details") or reported.get("input_tokens_details")
    details = reported.get("completion_tokens_details") or reported.get("output_tokens_details")
    cached = _count(prompt_details, "cached_tokens") or _count(reported, "prompt_cache_hit_tokens")
    return Usage(
        input_tokens=prompt,
        output_tokens=output,
        cached_input_tokens=min(cached, prompt),
        reasoning_tokens=min(_count(details, "reasoning_tokens") or _count(reported, "reasoning_tokens"), output),
        model_calls=1,
    )


def _count(reported: object, *names: str) -> int:
    """Return the first of the named fields that is a believable count, else 0."""
    if isinstance(reported, dict):
        for name in names:
            value = reported.get(name)
            if type(value) is int and 0 < value <= _MAX_TOKENS_REPORTED:
                return value
    return 0
