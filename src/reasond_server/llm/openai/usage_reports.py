"""The usage of a call: as the server reports it, with missing or impossible numbers replaced by our own counts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from reasond_server.llm.counting.estimates import count_at_least
from reasond_server.llm.counting.requests import (
    bound_extras,
    bound_messages,
    count_bytes,
    count_content_bytes,
    count_request,
)
from reasond_server.types import Usage, UsageSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.dialects.usage_forms import ReportedUsage
    from reasond_server.llm.model import ChatRequest, Message, TokenCounter

_LEAST_OF_EXACT = 0.7
_LEAST_OF_ESTIMATE = 0.5
_BYTES_PER_TOKEN = 4
# By `count_at_least`.
_LEAST_BYTES_PER_TOKEN = 4
_SMALLEST_PROMPT = 64
_SHORT_BYTES = 256
# A report is doubtful if it exceeds the bytes of the prompt, or the limit of the answer, by more than this. Templates
# add less.
_DOUBTFUL_TOKENS = 1024
# No server adds more hidden tokens than this, neither to a prompt nor to an answer.
_MOST_HIDDEN_TOKENS = 100_000
_HIDDEN_PROMPT = (
    f"The model server reports over {_DOUBTFUL_TOKENS} tokens more than the prompt can have: it adds a prompt of its "
    "own, or its report is false."
)
_HIDDEN_OUTPUT = (
    f"The model server reports over {_DOUBTFUL_TOKENS} tokens more than it was allowed and wrote: it reasons beyond "
    "max_tokens unseen, or its report is false."
)
_TOO_FEW = "The model server reports {reported} tokens of an answer that has more: our own count takes their place."
_IMPOSSIBLE = "The model server reports {reported} tokens of {what}, which cannot be: our own count takes their place."


def settle_usage(
    reported: Usage | None, *, request: ChatRequest, written: str, counter: TokenCounter
) -> tuple[Usage, Sequence[str]]:
    """Return the usage of a call, and warnings about doubtful or impossible reports.

    Our own count replaces prompt tokens that are missing or impossibly many, and output tokens that are impossibly few
    or many (UsageSource.PARTIAL). If both are replaced, or there is no report, the source is UsageSource.ESTIMATED.
    """
    if reported is None:
        counted = count_request(request, counter)
        usage = Usage(
            input_tokens=counted,
            output_tokens=counter.count_text(written),
            model_calls=1,
            source=UsageSource.ESTIMATED,
        )
        return usage, ()
    size = count_content_bytes(request.messages)
    given, doubt_of_prompt = _check_prompt(reported.input_tokens, request, size)
    output, doubt_of_output = _check_output(reported.output_tokens, request, written, counter)
    truncated = warn_of_truncation(reported, request.messages, size, counter=counter) if given else ""
    warnings = [warning for warning in (doubt_of_prompt, doubt_of_output, truncated) if warning]
    if given and output is not None:
        return reported if reported.model_calls == 1 else replace(reported, model_calls=1), warnings
    source = UsageSource.PARTIAL if given or output is not None else UsageSource.ESTIMATED
    given = given or count_request(request, counter)
    output = counter.count_text(written) if output is None else output
    usage = replace(
        reported,
        input_tokens=given,
        output_tokens=output,
        cached_input_tokens=min(reported.cached_input_tokens, given),
        reasoning_tokens=min(reported.reasoning_tokens, output),
        model_calls=1,
        source=source,
    )
    return usage, warnings


def _check_prompt(reported: int, request: ChatRequest, size: int) -> tuple[int, str]:
    """Return the reported tokens of the prompt, 0 if they are missing or impossible, and a warning, empty for none.

    The contents of its messages have `size` bytes.
    """
    excess = reported - size
    if excess > _DOUBTFUL_TOKENS:
        excess = reported - bound_messages(request.messages) - bound_extras(request)
    if excess <= _DOUBTFUL_TOKENS:
        return reported, ""
    if excess <= _MOST_HIDDEN_TOKENS:
        return reported, _HIDDEN_PROMPT
    return 0, _IMPOSSIBLE.format(reported=reported, what="the prompt")


def _check_output(reported: int, request: ChatRequest, written: str, counter: TokenCounter) -> tuple[int | None, str]:
    """Return the reported tokens of the output, None if they are impossible, and a warning, empty for none."""
    size = count_bytes(written)
    if written and reported < max(1, _find_floor(reported, written, size, counter)):
        return None, _TOO_FEW.format(reported=reported)
    excess = reported - max(request.max_tokens, size)
    if excess <= _DOUBTFUL_TOKENS:
        return reported, ""
    if excess <= _MOST_HIDDEN_TOKENS:
        return reported, _HIDDEN_OUTPUT
    return None, _IMPOSSIBLE.format(reported=reported, what="the answer")


def _find_floor(reported: int, written: str, size: int, counter: TokenCounter) -> int:
    """Return the fewest possible tokens of `written`: more than half of an exact count, else a lower estimate.

    For a short text it is 0, because any number is possible, and for a report that no lower estimate exceeds.
    """
    if size < _SHORT_BYTES:
        return 0
    if counter.is_exact:
        return counter.count_text(written) // 2 + 1
    # No byte counts more than a quarter of a token there, and counting takes long.
    return 0 if reported * _LEAST_BYTES_PER_TOKEN >= size else count_at_least(written)


def warn_of_truncation(reported: Usage, messages: Sequence[Message], size: int, *, counter: TokenCounter) -> str:
    """Return a warning if the server seems to have read only part of `messages` with `size` bytes, else an empty text.

    The limit is 70 % of an exact count. If we only estimate, it is 50 % of the smaller one of the estimate and a
    quarter of the prompt's bytes, because an estimate may be an upper bound. Prompts under 64 tokens are not checked.
    """
    least = _LEAST_OF_EXACT if counter.is_exact else _LEAST_OF_ESTIMATE
    if counter.is_exact:
        expected = counter.count_prompt(messages)
    else:
        expected = size // _BYTES_PER_TOKEN
        if reported.input_tokens < expected * least:
            # The estimate can only reduce `expected`, and it takes longer than the rest of this function.
            expected = min(expected, counter.count_prompt(messages))
    if expected < _SMALLEST_PROMPT or reported.input_tokens >= expected * least:
        return ""
    about = "" if counter.is_exact else "about "
    return (
        f"The prompt was truncated upstream: the model server reports {reported.input_tokens} tokens of it, "
        f"we sent {about}{expected}. Raise the server's context length."
    )


def build_usage(report: ReportedUsage) -> Usage:
    """Return the usage of one call; a report that contradicts itself counts as an estimate."""
    return Usage(
        input_tokens=report.prompt,
        output_tokens=report.output,
        cached_input_tokens=report.cached,
        reasoning_tokens=report.reasoning,
        model_calls=1,
        source=UsageSource.ESTIMATED if report.doubts else UsageSource.REPORTED,
    )
