"""Streams as gateways really send them, beside what the standard of server-sent events says, and why a model stopped.

A word of no row is never a whole answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from reasond_server.errors.base import show
from reasond_server.types import TokenChance

_ENDS: Final = frozenset({b"[done]", b'"[done]"', b"done", b"[end]"})
_DATA: Final = b"data:"
# What proxies make of the comments that keep a stream open (mnfst/llm-gateway#2053).
_NOTHING: Final = frozenset({b"ping", b"keep-alive", b"keepalive", b"heartbeat"})
# FastAPI, Cloudflare, vLLM, Bedrock: errors that are called otherwise than `error`.
_CODES: Final = ("code", "status", "status_code", "statusCode")


def is_end(data: bytes) -> bool:
    """Return whether the data of an event says that the stream has ended."""
    return len(data) <= 8 and data.strip().lower() in _ENDS  # noqa: PLR2004 - the longest of them


def split_data(data: bytes) -> Sequence[bytes]:
    """Return the chunks in the data of one event.

    Some gateways separate events by one line feed (anomalyco/opencode#27365), so that the lines of an event are chunks,
    and some put `data:` before data that has it already.
    """
    data = data.strip()
    while data.startswith(_DATA):
        data = data[len(_DATA) :].lstrip()
    if data.startswith(b":") or data.lower() in _NOTHING:
        return ()
    if b"\n" not in data and b"}{" in data and not _is_json(data):
        return _split_values(data.decode(errors="replace"))
    if b"\n" not in data or _is_json(data):
        return (data,)
    return [part for line in data.split(b"\n") for part in split_data(line)]


def _split_values(text: str) -> Sequence[bytes]:
    """Return the chunks of data that has several without anything between them."""
    found, place = [], 0
    decoder = json.JSONDecoder()
    while place < len(text):
        try:
            end = decoder.raw_decode(text, place)[1]
        except (ValueError, RecursionError):
            return (text.encode(),)
        found.append(text[place:end].encode())
        place = end
    return found


def split_body(body: bytes) -> Sequence[bytes]:
    """Return the chunks in a body that is no stream of events: one JSON value, or one for each line."""
    body = body.strip().removeprefix(b"\xef\xbb\xbf").lstrip()
    if _is_json(body):
        return (body,)
    lines = [line.strip() for line in body.split(b"\n") if line.strip()]
    return lines if len(lines) > 1 and all(map(_is_json, lines)) else (body,)


def is_whole(data: bytes) -> bool:
    """Return whether the data of an event is the end of the stream or chunks that are whole JSON."""
    return all(is_end(chunk) or _is_json(chunk) for chunk in split_data(data))


def is_error_report(chunk: Mapping[str, Any]) -> bool:
    """Return whether a chunk without choices reports an error under another name than `error`."""
    if chunk.get("object") == "error" or chunk.get("type") == "error":
        return True
    if chunk.get("detail") or chunk.get("errors"):
        return True
    return isinstance(chunk.get("message"), str) and any(chunk.get(code) for code in _CODES)


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


_LEAST: Final = -9999.0
"""What stands for a probability of 0, as OpenAI writes it."""


def read_logprobs(report: object) -> Sequence[TokenChance]:
    """Return the tokens of a member `logprobs`; those that cannot be read are left out."""
    content = report.get("content") if isinstance(report, dict) else None
    return [
        TokenChance(text=one["token"], logprob=_read(one), top=tuple(_list_top(one.get("top_logprobs"))))
        for one in (content if isinstance(content, list) else ())
        if _is_token(one)
    ]


def _list_top(entries: object) -> Sequence[tuple[str, float]]:
    return [(one["token"], _read(one)) for one in (entries if isinstance(entries, list) else ()) if _is_token(one)]


def _is_token(one: object) -> bool:
    return isinstance(one, dict) and isinstance(one.get("token"), str)


def _read(one: dict[str, Any]) -> float:
    """Return a log probability as a number from -9999 to 0."""
    value = one.get("logprob")
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return _LEAST
    return min(0.0, max(_LEAST, float(value)))


class FinishKind(StrEnum):
    """What a finish reason means; a later member of a stream counts more than an earlier one."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    """The answer was cut, or the gateway went on without what belongs to it."""
    CONTENT_FILTER = "content_filter"
    FAILED = "failed"
    """The model's server failed; the answer is lost."""


_ORDER: Final = tuple(FinishKind)

# Sources: the documents of OpenAI, Anthropic, Bedrock (Converse), Gemini, Cohere, Mistral, DeepSeek and Zhipu;
# BerriAI/litellm#24373, langgenius/dify#7559, promptfoo/promptfoo#9905, mozilla-ai/any-llm#1202.
_WORDS: Final[Mapping[FinishKind, str]] = {
    FinishKind.STOP: (
        "stop end_turn stop_sequence stop_token eos eos_token eos_found end complete completed finished done"
    ),
    FinishKind.TOOL_CALLS: "tool_calls tool_call tool_use function_call function_calls",
    FinishKind.LENGTH: (
        "length max_tokens max_output_tokens max_completion_tokens max_new_tokens max_length model_length "
        "token_limit limit length_capped context_length context_length_exceeded context_window_exceeded error_limit "
        "incomplete model_context_window_exceeded truncated repetition max_total_tokens max_context max_context_length "
        "max_time cut_off length_exceeded overlength loop_detected timeout_exceeded"
    ),
    FinishKind.CONTENT_FILTER: (
        "content_filter content_filtered content_moderation moderation safety sensitive recitation blocklist blocked "
        "prohibited_content spii image_safety image_prohibited_content image_recitation image_other language refusal "
        "guardrail_intervened guardrails guardrail model_armor jailbreak error_toxic policy_violation censored"
    ),
    FinishKind.FAILED: (
        "error abort aborted cancel cancelled canceled insufficient_system_resource network_error timeout failed "
        "failure server_error internal_error engine_overloaded overloaded rate_limit user_cancel"
    ),
}
_KINDS: Final = {word: kind for kind, words in _WORDS.items() for word in words.split()}
# DashScope's own interface sends the text "null" while the model writes.
_NOT_YET: Final = frozenset({"", "null", "none"})
_PREFIXES: Final = ("finishreason.", "finish_reason_", "stopreason.", "stop_reason_")


def read_finish(reported: object) -> tuple[FinishKind, str] | None:
    """Return what a finish reason means, with a warning if its word is unknown (else ""); None if it tells no end.

    Case, hyphens and prefixes of enumerations (`FinishReason.STOP`) do not matter. An unknown reason is LENGTH: nobody
    knows that the answer is whole.
    """
    word = _fold(reported) if isinstance(reported, str) else None
    if reported is None or reported is False or word in _NOT_YET:
        return None
    if word in _KINDS:
        return _KINDS[word], ""
    # "content_filter: PROHIBITED_CONTENT", as gateways join two vocabularies.
    known = [_KINDS[part] for each in (word or "").split(":") if (part := each.strip("_")) in _KINDS]
    if len(known) > 1:
        return choose_worst(known), ""
    return FinishKind.LENGTH, (
        f"The model server ended the answer for the reason {show(reported)}, which nobody here knows: the answer is "
        "taken for incomplete."
    )


def find_known_finish(reported: object) -> FinishKind | None:
    """Return what a word means that stands beside the finish reason, such as OpenRouter's; None if it is unknown."""
    return _KINDS.get(_fold(reported)) if isinstance(reported, str) else None


def is_filtered(choice: Mapping[str, Any]) -> bool:
    """Return whether Azure's filter says that it took a part of a choice."""
    results = choice.get("content_filter_results")
    found = results.values() if isinstance(results, dict) else ()
    return any(isinstance(one, dict) and one.get("filtered") is True for one in found)


def choose_worst(kinds: Iterable[FinishKind]) -> FinishKind:
    """Return the reason of a stream that told several: the one that takes most from the answer."""
    return max(kinds, key=_ORDER.index)


def _fold(word: str) -> str:
    word = word.strip().lower().replace("-", "_").replace(" ", "_")
    for prefix in _PREFIXES:
        word = word.removeprefix(prefix)
    return word
