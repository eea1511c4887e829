"""What model servers say when a prompt or an answer does not fit: the numbers of their windows, read from their errors.

A row is read only in an error that a server reports, never in what a model writes. A limit of the prompt alone counts
as the window of prompt and answer together, which is never too much.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from reasond_server.types.values import value

_N: Final = r"(?P<window>\d[\d,_.]{0,11}\d)"
_P: Final = r"(?P<prompt>\d[\d,_.]{0,11}\d)"
_ROWS: Final = (
    # openai, vllm-project/vllm#20409, ogx-ai/ogx#4534, AIDotNet/OpenCowork#82
    rf"maximum context length (?:is|of) (?:only )?{_N} tokens",
    # Mistral documentation of errors
    rf"too large for model with {_N} maximum context length",
    # Fireworks documentation of errors
    rf"prompt is too long: {_P}, model maximum context length: {_N}",
    # LM Studio, vllm-project/vllm#33418
    rf"context length (?:is|of) only {_N}",
    # QwenLM/Qwen3#1321
    rf"input \({_P} tokens\) is longer than the model's context length \({_N} tokens\)",
    # sgl-project/sglang#4048
    rf"input length \({_P} tokens\) exceeds the maximum allowed length \({_N} tokens\)",
    # whoz-oss/coday#26, anthropics/claude-code#12186
    rf"prompt is too long: {_P} tokens > {_N} maximum",
    # docker/docker-agent#569, Aider-AI/aider#3618
    rf"exceed context limit: {_P} \+ \d+ >\s+{_N}",
    # google-gemini/gemini-cli#6678, google-gemini/gemini-cli#22609
    rf"input token count(?: \({_P}\))? exceeds the maximum number of tokens allowed \(?{_N}",
    # abetlen/llama-cpp-python#462
    rf"requested tokens \({_P}\) exceed context window of {_N}",
    # cline/cline#3120
    rf"maximum prompt length is {_N} but the request contains {_P}",
    # huggingface/text-generation-inference, Together
    rf"`inputs`(?: tokens)? \+ `max_new_tokens` must be <= {_N}",
    # Cohere and watsonx, as litellm 1.106 knows their words
    rf"tokens(?: in the prompt)?(?: \d+)? cannot exceed (?:the total tokens limit )?{_N}",
    # DashScope documentation of errors
    rf"range of input length should be \[\d+, {_N}\]",
    # MoonshotAI/MoonshotAI-Cookbook#18, Moonshot
    rf"(?:model token limit|max length exceeded, max length): ?{_N}",
    # Cerebras documentation of errors
    rf"current length is {_P} while limit is {_N}",
    # NousResearch/hermes-agent#53359
    rf"request \({_P} tokens\) exceeds the available context size \({_N} tokens\)",
    # second-state/WasmEdge-WASINN-examples#50
    rf"prompt too long \({_P} tokens, max {_N}\)",
)
_TOLD: Final = tuple(re.compile(row, re.IGNORECASE) for row in _ROWS)
# What means that a prompt is too long, without a number that could be read.
_PHRASES: Final = (
    "maximum context length",
    "max context length",
    "context length",
    "context size",
    "context window",
    "context limit",
    "prompt is too long",
    "prompt too long",
    "input is too long",
    "input length exceeds",
    "input token count exceeds",
    "exceeds the maximum number of tokens allowed",
    "exceeds max length",
    "maximum prompt length",
    "model token limit",
    "too many tokens",
)
# llama.cpp names its numbers (ggml-org/llama.cpp#15780), and gateways quote its whole report in a message.
_MEMBERS: Final = re.compile(r'"?n_ctx"?: ?(?P<window>\d+)')
_PROMPTS: Final = re.compile(r'"?n_prompt_tokens"?: ?(?P<prompt>\d+)')
# OpenAI and Azure, of gpt-5 and the o-series: nextlevelbuilder/goclaw#245
_STARVED: Final = "could not finish the message because max_tokens"
_LEAST_WINDOW: Final = 256
_MOST_WINDOW: Final = 100_000_000
_MOST_CHARACTERS: Final = 4_000


@value
class TooLong:
    """A report that a prompt is too long; `window` and `prompt` are tokens, 0 where they are not told."""

    window: int = 0
    prompt: int = 0


def read_too_long(report: Mapping[str, Any]) -> TooLong | None:
    """Return what the error object `report` of a model server says of a prompt that is too long; None for others."""
    message = report.get("message")
    text = message[:_MOST_CHARACTERS] if isinstance(message, str) else ""
    named = text + "".join(f" {name}: {report.get(name)}" for name in ("n_ctx", "n_prompt_tokens"))
    found = [row.search(text) for row in _TOLD] + [_MEMBERS.search(named), _PROMPTS.search(named)]
    groups = [each.groupdict() for each in found if each is not None]
    window = next((number for each in groups if (number := _read_number(each.get("window")))), 0)
    prompt = next((number for each in groups if (number := _read_number(each.get("prompt")))), 0)
    is_told = bool(window) or any(phrase in text.lower() for phrase in _PHRASES)
    return TooLong(window=window, prompt=prompt) if is_told else None


def is_starved(report: Mapping[str, Any]) -> bool:
    """Return whether the error object `report` says that hidden reasoning took all tokens of the answer."""
    return _STARVED in str(report.get("message"))[:_MOST_CHARACTERS].lower()


def _read_number(text: str | None) -> int:
    """Return the number of a text such as "128,000"; 0 for one that is no window."""
    digits = re.sub(r"[^\d]", "", text or "")
    number = int(digits) if digits else 0
    return number if _LEAST_WINDOW <= number <= _MOST_WINDOW else 0
