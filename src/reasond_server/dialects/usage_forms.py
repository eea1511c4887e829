"""The usage of a call in the forms of many gateways. What was paid is never read as less than a report can mean."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from reasond_server.types.values import value

_MOST_READ: Final = 10**12
_NUMBER: Final = re.compile(r"\s*\+?(\d{1,3}(?:,\d{3})+|\d{1,13})(?:\.\d{1,6})?\s*")

# Where a chunk or a choice may hold its usage: the standard; Groq (vercel/ai#1651); Gemini; Anthropic's and Responses'
# events passed through; Bedrock; Cohere; llama.cpp, whose `timings` come without being asked for.
_PLACES: Final = (
    ("usage",),
    ("x_groq", "usage"),
    ("usage_metadata",),
    ("usageMetadata",),
    ("message", "usage"),
    ("response", "usage"),
    ("delta", "usage"),
    ("metadata", "usage"),
    ("data", "usage"),
    ("token_usage",),
    ("usage", "tokens"),
    ("meta", "tokens"),
    ("amazon-bedrock-invocationMetrics",),
    ("timings",),
)
# Chat Completions, Responses and Anthropic, Gemini, Ollama, Bedrock, llama.cpp.
_PROMPT: Final = (
    *("prompt_tokens", "input_tokens", "promptTokenCount", "prompt_token_count", "prompt_eval_count"),
    *("inputTokens", "inputTokenCount", "promptTokens", "prompt_n", "input_token_count", "num_input_tokens"),
    *("num_prompt_tokens", "tokens_evaluated"),
)
_OUTPUT: Final = (
    *("completion_tokens", "output_tokens", "candidatesTokenCount", "candidates_token_count", "eval_count"),
    *("outputTokens", "outputTokenCount", "completionTokens", "generated_tokens", "predicted_n", "generation_tokens"),
    *("generated_token_count", "output_token_count", "num_output_tokens", "num_completion_tokens", "tokens_predicted"),
)
_TOTAL: Final = ("total_tokens", "totalTokenCount", "total_token_count", "totalTokens")
_DETAILS_OF_PROMPT: Final = ("prompt_tokens_details", "input_tokens_details")
_DETAILS_OF_OUTPUT: Final = ("completion_tokens_details", "output_tokens_details")
_REASONING: Final = ("reasoning_tokens", "thinking_tokens", "thoughtsTokenCount", "thoughts_token_count")
# OpenAI, DeepSeek, Moonshot, Anthropic, Gemini, Bedrock.
_CACHED: Final = (
    *("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens", "cachedContentTokenCount"),
    *("cached_content_token_count", "cacheReadInputTokens", "cache_n", "input_cached_tokens", "cached_input_tokens"),
    "num_cached_tokens",
)
# What Anthropic, Bedrock and llama.cpp count beside the tokens of the prompt, or within them.
_PARTS: Final = (
    *("cache_read_input_tokens", "cacheReadInputTokens", "cache_creation_input_tokens", "cacheWriteInputTokens"),
    "cache_n",
)
# Names under which the parts of the cache are never within the prompt.
_SPLIT: Final = frozenset({"input_tokens", "inputTokens", "prompt_n"})


@value
class ReportedUsage:
    """What a gateway reported, in our terms: the cached tokens are a part of the prompt, reasoning one of the output.

    `doubts` are the contradictions in it; then the figures are the largest that it can mean.
    """

    prompt: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0
    doubts: Sequence[str] = ()


def find_usages(holder: Mapping[str, Any]) -> Iterator[object]:
    """Yield the reports in a chunk or a choice."""
    if "prompt_eval_count" in holder:
        # Ollama's own form has its figures beside the message.
        yield holder
    for first, *rest in _PLACES:
        # Every chunk is looked through, and most have none of these.
        if first not in holder:
            continue
        found: object = holder[first]
        for name in rest:
            found = found.get(name) if isinstance(found, dict) else None
        yield from found if isinstance(found, list) else () if found is None else (found,)


def merge_reports(before: Mapping[str, Any], report: object) -> Mapping[str, Any]:
    """Return the report of a stream after another one: of two numbers of one name the larger one counts.

    Some gateways report the prompt at the beginning and the output at the end, others all again with each chunk.
    """
    if not isinstance(report, dict):
        return before
    merged = dict(before)
    for name, part in report.items():
        if isinstance(part, dict):
            earlier = merged.get(name)
            merged[name] = merge_reports(earlier if isinstance(earlier, dict) else {}, part)
        elif (number := read_number(part)) > read_number(merged.get(name)):
            merged[name] = number
    return merged


def read_report(report: object) -> ReportedUsage | None:
    """Return what a report means; None if it tells neither the prompt nor the output.

    Reasoning is beside the output (xAI, Gemini: UKGovernmentBEIS/inspect_ai#5528, vercel/ai#6738) if the total has room
    for it there, or the output has none. Parts of the cache are beside the prompt (Anthropic) if they are more than it,
    by their name, or by the total.
    """
    if not isinstance(report, dict):
        return None
    name, prompt = _find(report, _PROMPT)
    output, total = _find(report, _OUTPUT)[1], _find(report, _TOTAL)[1]
    if not (prompt or output or total):
        return None
    hidden = _find_detail(report, _DETAILS_OF_OUTPUT, _REASONING)
    cached = _find_detail(report, _DETAILS_OF_PROMPT, _CACHED)
    prompt = _add_cache(report, name, prompt, output, total)
    doubts: list[str] = []
    if hidden and (hidden > output or (total and total >= prompt + output + hidden)):
        is_within = 0 < total <= prompt + output
        if is_within:
            doubts.append(_CONTRADICTION.format(f"{hidden} tokens of reasoning within {output} of output"))
        output = max(output, hidden) if is_within else output + hidden
    if total > prompt + output:
        # Thoughts that only the total has, or a prompt that only the total has.
        prompt, output = (prompt, total - prompt) if prompt else (total - output, output)
    elif 0 < total < prompt + output and not doubts:
        doubts.append(_CONTRADICTION.format(f"{total} tokens in all, and {prompt} of prompt with {output} of output"))
    return ReportedUsage(
        prompt=min(prompt, _MOST_READ),
        output=min(output, _MOST_READ),
        cached=min(cached, prompt),
        reasoning=min(hidden, output),
        doubts=doubts,
    )


_CONTRADICTION: Final = "The report of the model server contradicts itself: {}. The larger figures are charged."


def read_number(value: object) -> int:
    """Return a count of tokens, which may be a text or have a point; 0 for anything else."""
    if isinstance(value, str):
        found = _NUMBER.fullmatch(value)
        return int(found[1].replace(",", "")) if found else 0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        return 0
    return min(int(value), _MOST_READ)


def _find(report: Mapping[str, Any], names: Sequence[str]) -> tuple[str, int]:
    found = [(name, number) for name in names if name in report and (number := read_number(report[name]))]
    return found[0] if found else ("", 0)


def _find_detail(report: Mapping[str, Any], places: Sequence[str], names: Sequence[str]) -> int:
    """Return a part of the prompt or of the output, which stands in its details or beside them."""
    details = [report[place] for place in places if place in report]
    return max([_find(holder, names)[1] for holder in (*details, report) if isinstance(holder, dict)])


def _add_cache(report: Mapping[str, Any], name: str, prompt: int, output: int, total: int) -> int:
    """Return the tokens of the whole prompt, with the parts of it that were in the cache."""
    parts = sum([read_number(report[part]) for part in _PARTS if part in report])
    if "cache_creation_input_tokens" not in report and isinstance(written := report.get("cache_creation"), dict):
        # Anthropic's parts by the time that they are kept.
        parts += sum(map(read_number, written.values()))
    if not parts:
        # DeepSeek tells both parts of the prompt.
        missed = read_number(report.get("prompt_cache_miss_tokens"))
        return max(prompt, missed + read_number(report.get("prompt_cache_hit_tokens"))) if missed else prompt
    is_beside = name in _SPLIT or parts > prompt or total >= prompt + parts + output
    # A total that has no room for them says that they are within the prompt, if they fit there.
    is_within = parts <= prompt and 0 < total < prompt + parts + output
    return prompt + parts if is_beside and not is_within else prompt
