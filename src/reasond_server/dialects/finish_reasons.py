"""Why a model stopped, in the words of many gateways. A word of no row is never a whole answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

from reasond_server.errors.base import show


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
