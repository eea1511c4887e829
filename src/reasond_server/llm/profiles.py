"""Profiles of model servers: the parameters that a server accepts and respects, and the data that it reports.

`generic` is the interface as it was first documented. Every other profile lists only known differences, each with its
evidence. "ran" means that a run measured it; all other evidence is from documentation, source code or issues. Profiles
are merged, and later ones take precedence: the family of the model (by its name), the host (by its address), then the
operator's settings.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from difflib import get_close_matches
from enum import StrEnum
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from reasond_server.errors.base import SettingsError, Violation, show
from reasond_server.types.values import value


class LimitField(StrEnum):
    """The name of the request field that limits the output tokens."""

    MAX_TOKENS = "max_tokens"
    MAX_COMPLETION_TOKENS = "max_completion_tokens"


class SchemaLevel(StrEnum):
    """Support for a JSON Schema: enforced; enforced but not shown to the model; any JSON object; no support."""

    STRICT = "strict"
    GUIDED = "guided"
    OBJECT = "object"
    NONE = "none"


@value
class ModelProfile:
    """The capabilities of a server. An unsupported parameter is left out, and a warning names it.

    `max_stops` is the most stop strings that it accepts (0: none). `sampling` is whether temperature and seed may be
    sent. `reasoning_fields` are read in order. `stop_match_fields` report which stop string matched.
    `named_tool_choice` is whether a call of one tool can be forced by its name; if not, only that tool is offered.
    `long_tool_names` is whether a name of a tool may have more than 64 characters; if not, it is shortened on the way.
    `count_path` is the path of its token counter (relative to the base URL's root), empty if it has none.
    `most_logprobs` is of how many likely tokens it tells the log probabilities in the place of each token; 0: it tells
    none. `context_window` is in tokens, None if unknown. `image_tokens` is an upper bound of the tokens of one image in
    a prompt; 0: the model takes no images. `first_token_s`, `idle_s` and `total_s` are how long a call may wait for its
    first content, for the next and for its end, in seconds.
    """

    name: str = "generic"
    limit_field: LimitField = LimitField.MAX_TOKENS
    max_stops: int = 4
    sampling: bool = True
    reasoning_fields: Sequence[str] = ("reasoning", "reasoning_content")
    sends_reasoning_back: bool = False
    stop_match_fields: Sequence[str] = ()
    stream_usage: bool = True
    json_schema: SchemaLevel = SchemaLevel.NONE
    tools: bool = True
    forced_tool_choice: bool = True
    named_tool_choice: bool = True
    long_tool_names: bool = False
    several_system_messages: bool = True
    count_path: str = ""
    most_logprobs: int = 0
    context_window: int | None = None
    image_tokens: int = 0
    first_token_s: int = 60
    idle_s: int = 30
    total_s: int = 600


@value
class Fact:
    """The value of one field of a profile, and its evidence."""

    value: object
    evidence: str


_CONTENT_FIRST = ("reasoning_content", "reasoning")
_OPENAI_LIMIT = Fact(
    value=LimitField.MAX_COMPLETION_TOKENS, evidence="openai 3.52: max_tokens is deprecated, o-series refuse it"
)
_OPENAI_SCHEMA = Fact(value=SchemaLevel.STRICT, evidence="pydantic-ai 2.68 profiles, verified against the live API")

_WAITS: Mapping[str, Fact] = MappingProxyType(
    {
        name: Fact(value=seconds, evidence="ran: llama.cpp 2026.10 stood still for 416 s while it read another prompt")
        for name, seconds in (("first_token_s", 900), ("idle_s", 900), ("total_s", 3600))
    }
)
"""Programs that read and write with the same few processors: whoever waits there waits for the prompts of others."""

PROFILES: Mapping[str, Mapping[str, Fact]] = MappingProxyType(
    {
        "generic": {},
        "openai": {
            "limit_field": _OPENAI_LIMIT,
            "json_schema": _OPENAI_SCHEMA,
            "most_logprobs": Fact(value=20, evidence="openai 3.57, chat completions: top_logprobs from 0 to 20"),
        },
        "openai-reasoning": {
            "limit_field": _OPENAI_LIMIT,
            "max_stops": Fact(value=0, evidence="openai 3.52: o3 and o4-mini; litellm 1.106, lm-eval #3247: gpt-5"),
            "sampling": Fact(value=False, evidence='HTTP 400 "only the default (1)"; pydantic-ai 2.68 profiles'),
            "json_schema": _OPENAI_SCHEMA,
        },
        "azure": {
            "limit_field": Fact(
                value=LimitField.MAX_COMPLETION_TOKENS,
                evidence="as openai; Mistral models there refuse it (pydantic-ai #6593)",
            ),
            "json_schema": _OPENAI_SCHEMA,
        },
        "vllm": {
            "reasoning_fields": Fact(value=("reasoning", "reasoning_content"), evidence="vllm #27752, #33402"),
            "stop_match_fields": Fact(value=("stop_reason",), evidence="vllm #2976"),
            "most_logprobs": Fact(value=20, evidence="vLLM documentation: max_logprobs, 20 by default"),
            "json_schema": Fact(
                value=SchemaLevel.GUIDED, evidence="pydantic-ai #3490: the model does not see the schema"
            ),
            "forced_tool_choice": Fact(value=False, evidence="vllm #44216: ignored for gpt-oss"),
            "long_tool_names": Fact(value=True, evidence="read: vllm's FunctionDefinition bounds no name"),
            "several_system_messages": Fact(value=False, evidence="vllm #5812: some chat templates refuse them"),
            "count_path": Fact(
                value="/tokenize",
                evidence="read: vllm at 343bacaf, entrypoints/serve/tokenize/protocol.py: messages in, count out",
            ),
        },
        "sglang": {
            "reasoning_fields": Fact(value=_CONTENT_FIRST, evidence="SGLang documentation"),
            "stop_match_fields": Fact(value=("matched_stop",), evidence="sglang #1684"),
            "json_schema": Fact(value=SchemaLevel.GUIDED, evidence="SGLang documentation"),
        },
        "llamacpp": {
            **_WAITS,
            "reasoning_fields": Fact(value=_CONTENT_FIRST, evidence="ran: llama.cpp 2026.10"),
            "json_schema": Fact(value=SchemaLevel.GUIDED, evidence="ran: llama.cpp 2026.10, by grammar"),
            "most_logprobs": Fact(value=20, evidence="ran: llama.cpp 2026.10, exact against known probabilities"),
            "named_tool_choice": Fact(value=False, evidence="ran: llama.cpp 2026.10 takes a named tool for auto"),
            "count_path": Fact(value="/apply-template", evidence="ran: llama.cpp 2026.10, then /tokenize"),
        },
        "llamacpp-python": {
            **_WAITS,
            "limit_field": Fact(
                value=LimitField.MAX_TOKENS, evidence="ran: llama-cpp-python 0.3.36 ignores max_completion_tokens"
            ),
            "stream_usage": Fact(value=False, evidence="ran: llama-cpp-python 0.3.36 ignores include_usage"),
            "json_schema": Fact(value=SchemaLevel.NONE, evidence="ran: llama-cpp-python 0.3.36 answers HTTP 500"),
        },
        "ollama": {
            **_WAITS,
            "limit_field": Fact(value=LimitField.MAX_TOKENS, evidence="Ollama documentation lists no other"),
            "reasoning_fields": Fact(value=("reasoning", "reasoning_content"), evidence="Ollama documentation"),
            "json_schema": Fact(value=SchemaLevel.GUIDED, evidence="Ollama documentation; not strict: #4116"),
            "most_logprobs": Fact(value=20, evidence="read: Ollama 0.17.4 takes top_logprobs from 0 to 20"),
            "forced_tool_choice": Fact(value=False, evidence="read: Ollama 0.17.4 knows no tool_choice"),
        },
        "deepseek": {
            "limit_field": Fact(
                value=LimitField.MAX_TOKENS,
                evidence="DeepSeek documentation; max_completion_tokens is silently ignored",
            ),
            "reasoning_fields": Fact(value=_CONTENT_FIRST, evidence="DeepSeek documentation"),
            "json_schema": Fact(
                value=SchemaLevel.OBJECT, evidence='"This response_format type is unavailable now" for json_schema'
            ),
        },
        "deepseek-thinking": {
            "limit_field": Fact(
                value=LimitField.MAX_TOKENS,
                evidence="DeepSeek documentation; max_completion_tokens is silently ignored",
            ),
            "sampling": Fact(value=False, evidence="DeepSeek documentation: ignored while thinking"),
            "reasoning_fields": Fact(value=_CONTENT_FIRST, evidence="DeepSeek documentation"),
            "sends_reasoning_back": Fact(
                value=True, evidence="DeepSeek documentation: else HTTP 400 on turns with tools"
            ),
            "json_schema": Fact(
                value=SchemaLevel.OBJECT, evidence='"This response_format type is unavailable now" for json_schema'
            ),
            "forced_tool_choice": Fact(value=False, evidence="pydantic-ai 2.68 profiles: refused while thinking"),
        },
        "openrouter": {
            "limit_field": Fact(value=LimitField.MAX_TOKENS, evidence="OpenRouter documentation lists no other"),
            "reasoning_fields": Fact(value=("reasoning", "reasoning_content"), evidence="OpenRouter documentation"),
        },
        "anthropic-compat": {
            "json_schema": Fact(
                value=SchemaLevel.NONE, evidence="Anthropic documentation (api/openai-sdk): response_format is ignored"
            ),
            "several_system_messages": Fact(
                value=False, evidence="Anthropic documentation (api/openai-sdk): all are moved to the beginning"
            ),
        },
        "xai": {
            "max_stops": Fact(
                value=0, evidence="xAI documentation (reasoning): models that reason refuse stop; not run"
            ),
            "reasoning_fields": Fact(value=_CONTENT_FIRST, evidence="xAI documentation (reasoning); not run"),
            "json_schema": Fact(value=SchemaLevel.GUIDED, evidence="xAI documentation (structured outputs); not run"),
        },
        # Its usage counts reasoning beside the output, and its calls carry a signature: `dialects` reads both.
        "gemini": {
            "json_schema": Fact(
                value=SchemaLevel.GUIDED, evidence="Google documentation (gemini-api/docs/openai); not run"
            ),
        },
        "mistral": {
            "limit_field": Fact(
                value=LimitField.MAX_TOKENS, evidence="openclaude #739, eca #231: HTTP 422 for max_completion_tokens"
            ),
            "json_schema": Fact(
                value=SchemaLevel.GUIDED, evidence="Mistral documentation (custom structured outputs); not run"
            ),
        },
        "groq": {
            "json_schema": Fact(
                value=SchemaLevel.NONE, evidence="langchain #34155: refused by some models and not known beforehand"
            ),
        },
        "lmstudio": {
            **_WAITS,
            "reasoning_fields": Fact(value=_CONTENT_FIRST, evidence="LM Studio documentation: by a setting; not run"),
            "json_schema": Fact(
                value=SchemaLevel.GUIDED, evidence="litellm 1.106 get_supported_openai_params; not run"
            ),
        },
    }
)

# Patterns for the model's name without its vendor, in lower case; the first match counts.
_FAMILIES = (
    (re.compile(r"(o[134]|gpt-[5-9])([-.:]|$)"), "openai-reasoning"),
    (re.compile(r"(gpt-4|gpt-3\.5|chatgpt)"), "openai"),
    (re.compile(r"deepseek-reasoner([-.:]|$)"), "deepseek-thinking"),
    # Documentation (guides/thinking_mode): these think unless they are told not to.
    (re.compile(r"deepseek-(?:v[4-9]-)?(?:flash|pro)([-.:]|$)"), "deepseek-thinking"),
    (re.compile(r"deepseek-chat([-.:]|$)"), "deepseek"),
)
# Names of hosts, or their endings (".…"). For local hosts, `_PORTS` has ports that only one program uses.
_HOSTS = (
    ("api.openai.com", "openai"),
    (".openai.azure.com", "azure"),
    (".services.ai.azure.com", "azure"),
    (".cognitiveservices.azure.com", "azure"),
    ("openrouter.ai", "openrouter"),
    ("api.deepseek.com", "deepseek"),
    ("api.anthropic.com", "anthropic-compat"),
    ("api.x.ai", "xai"),
    ("generativelanguage.googleapis.com", "gemini"),
    ("api.mistral.ai", "mistral"),
    ("api.groq.com", "groq"),
)
# OpenAI's models that only Responses serves, according to their model pages (2026-11): pro, codex and deep research.
_RESPONSES_ONLY = re.compile(r"(o[134]|gpt-[5-9]).*-(pro|codex|deep-research)([-.:]|$)")
_PORTS = {11434: "ollama", 1234: "lmstudio"}
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


def find_family(model: str) -> str:
    """Return the name of the profile of the model family that the name `model` belongs to; empty if unknown."""
    own = model.rpartition("/")[2].lower()
    return next((name for pattern, name in _FAMILIES if pattern.match(own)), "")


def find_host_profile(base_url: str) -> str:
    """Return the name of the profile of the server at `base_url`; empty if the address is not known."""
    try:
        parts = urlsplit(base_url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return ""
    for ending, name in _HOSTS:
        if host == ending or (ending.startswith(".") and host.endswith(ending)):
            return name
    return _PORTS.get(port or 0, "") if host in _LOCAL_HOSTS else ""


def is_hosted(base_url: str) -> bool:
    """Return whether `base_url` belongs to a known provider, which requires a key."""
    return find_host_profile(base_url) not in {"", *_PORTS.values()}


def needs_responses(model: str, base_url: str) -> bool:
    """Return whether `model` at `base_url` is a model of OpenAI that Chat Completions does not serve."""
    return find_host_profile(base_url) in {"openai", "azure"} and bool(_RESPONSES_ONLY.match(model.lower()))


def find_profile(model: str, base_url: str, configured: str = "auto") -> ModelProfile:
    """Return the profile of `model` at `base_url`: the configured one, or for "auto" family and host merged.

    Raises:
        SettingsError: there is no profile with the configured name.
    """
    if configured != "auto":
        if configured not in PROFILES:
            alike = get_close_matches(configured, PROFILES, n=1, cutoff=0.6)
            hint = f"Did you mean {alike[0]}? " if alike else ""
            raise SettingsError(
                f"the profile {show(configured)} is not known",
                remedy=f"{hint}Known are auto, {', '.join(PROFILES)}.",
            )
        return _lay_over(configured)
    family, host = find_family(model), find_host_profile(base_url)
    # The family `openai-reasoning` includes every fact of the host `openai`.
    layers = [family] if host and family.startswith(host) else [family, host]
    return _lay_over(*(layer for layer in layers if layer))


def _lay_over(*names: str) -> ModelProfile:
    """Return the named profiles merged into one; later ones take precedence."""
    facts: dict[str, Any] = {field: fact.value for name in names for field, fact in PROFILES[name].items()}
    return replace(ModelProfile(), name="+".join(names) or "generic", **facts)


def merge(profile: ModelProfile, overrides: Mapping[str, object], *, section: str = "llm.capabilities") -> ModelProfile:
    """Return `profile` with the operator's `overrides`, TOML values from `section`.

    Raises:
        SettingsError: a field is unknown or its value has the wrong type; the error lists all such fields.
    """
    known = {field.name: getattr(ModelProfile(), field.name) for field in fields(ModelProfile) if field.name != "name"}
    problems: list[Violation] = []
    values: dict[str, Any] = {}
    for name, override in overrides.items():
        if name not in known:
            alike = get_close_matches(name, known, n=1, cutoff=0.6)
            hint = f"did you mean {alike[0]}?" if alike else f"known are {', '.join(known)}"
            problems.append(Violation(field=f"{section}.{name}", description=f"is no capability; {hint}"))
            continue
        try:
            values[name] = _check_value(override, known[name])
        except ValueError as error:
            description = f"must be {error}, not {show(override)}"
            problems.append(Violation(field=f"{section}.{name}", description=description))
    if problems:
        text = "; ".join(f"{problem.field} {problem.description}" for problem in problems)
        raise SettingsError(text, remedy="See docs/guides/model-backends.md.", violations=problems)
    return replace(profile, **values)


def _check_value(value: object, default: object) -> object:
    """Return `value` in the type of `default`; the text of a ValueError is the expected type."""
    if isinstance(default, StrEnum):
        choices = [str(choice) for choice in type(default)]
        if value not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return type(default)(str(value))
    if isinstance(default, bool):
        if not isinstance(value, bool):
            raise ValueError("true or false")  # noqa: TRY004 - the caller reports values of every kind alike
        return value
    if isinstance(default, str):
        if not isinstance(value, str) or (value and not value.startswith("/")):
            raise ValueError('a path that begins with "/", or empty')
        return value
    if isinstance(default, tuple):
        if not isinstance(value, list | tuple) or not all(isinstance(item, str) and item for item in value):
            raise ValueError("a list of names")
        return tuple(value)
    lowest = 1 if default is None else 0
    if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
        raise ValueError(f"a whole number of at least {lowest}")
    return value


def find_differences(profile: ModelProfile, base: ModelProfile) -> dict[str, object]:
    """Return the fields in which `profile` differs from `base`, without the name, as TOML values."""
    names = [field.name for field in fields(ModelProfile) if field.name != "name"]
    changed = [name for name in names if getattr(profile, name) != getattr(base, name)]
    values = {name: getattr(profile, name) for name in changed}
    return {name: _to_plain(value) for name, value in values.items() if value is not None}


def _to_plain(value: object) -> object:
    if isinstance(value, StrEnum):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
