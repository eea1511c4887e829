from __future__ import annotations

from dataclasses import fields, replace

import pytest

from reasond_server.errors.base import SettingsError
from reasond_server.llm.profiles import (
    PROFILES,
    LimitField,
    ModelProfile,
    SchemaLevel,
    find_differences,
    find_family,
    find_host_profile,
    find_profile,
    is_hosted,
    merge,
    needs_responses,
)

OLD, NEW = LimitField.MAX_TOKENS, LimitField.MAX_COMPLETION_TOKENS
STRICT, GUIDED, OBJECT, NONE = SchemaLevel.STRICT, SchemaLevel.GUIDED, SchemaLevel.OBJECT, SchemaLevel.NONE
NO = False

# limit, stops, sampling, first reasoning field, sent back, match fields, usage, schema,
# forced tool, named tool, systems, count
MATRIX = {
    "generic": (OLD, 4, True, "reasoning", NO, (), True, NONE, True, True, True, ""),
    "openai": (NEW, 4, True, "reasoning", NO, (), True, STRICT, True, True, True, ""),
    "openai-reasoning": (NEW, 0, NO, "reasoning", NO, (), True, STRICT, True, True, True, ""),
    "azure": (NEW, 4, True, "reasoning", NO, (), True, STRICT, True, True, True, ""),
    "vllm": (OLD, 4, True, "reasoning", NO, ("stop_reason",), True, GUIDED, NO, True, NO, "/tokenize"),
    "sglang": (OLD, 4, True, "reasoning_content", NO, ("matched_stop",), True, GUIDED, True, True, True, ""),
    "llamacpp": (OLD, 4, True, "reasoning_content", NO, (), True, GUIDED, True, NO, True, "/apply-template"),
    "llamacpp-python": (OLD, 4, True, "reasoning", NO, (), NO, NONE, True, True, True, ""),
    "ollama": (OLD, 4, True, "reasoning", NO, (), True, GUIDED, NO, True, True, ""),
    "deepseek": (OLD, 4, True, "reasoning_content", NO, (), True, OBJECT, True, True, True, ""),
    "deepseek-thinking": (OLD, 4, NO, "reasoning_content", True, (), True, OBJECT, NO, True, True, ""),
    "openrouter": (OLD, 4, True, "reasoning", NO, (), True, NONE, True, True, True, ""),
    "anthropic-compat": (OLD, 4, True, "reasoning", NO, (), True, NONE, True, True, NO, ""),
    "xai": (OLD, 0, True, "reasoning_content", NO, (), True, GUIDED, True, True, True, ""),
    "gemini": (OLD, 4, True, "reasoning", NO, (), True, GUIDED, True, True, True, ""),
    "mistral": (OLD, 4, True, "reasoning", NO, (), True, GUIDED, True, True, True, ""),
    "groq": (OLD, 4, True, "reasoning", NO, (), True, NONE, True, True, True, ""),
    "lmstudio": (OLD, 4, True, "reasoning_content", NO, (), True, GUIDED, True, True, True, ""),
}


def row(profile: ModelProfile) -> tuple[object, ...]:
    return (
        *(profile.limit_field, profile.max_stops, profile.sampling, profile.reasoning_fields[0]),
        *(profile.sends_reasoning_back, tuple(profile.stop_match_fields), profile.stream_usage, profile.json_schema),
        *(profile.forced_tool_choice, profile.named_tool_choice, profile.several_system_messages, profile.count_path),
    )


def test_the_matrix_names_every_profile() -> None:
    assert tuple(MATRIX) == tuple(PROFILES)


@pytest.mark.parametrize("name", MATRIX)
def test_a_profile_says_what_the_matrix_says(name: str) -> None:
    profile = find_profile("any", "http://any", name)
    assert profile.name == name
    assert row(profile) == MATRIX[name]
    assert set(profile.reasoning_fields) == {"reasoning", "reasoning_content"}, "reading is lenient everywhere"


@pytest.mark.parametrize("name", MATRIX)
def test_whatever_differs_from_generic_cites_its_evidence(name: str) -> None:
    known = {field.name for field in fields(ModelProfile)} - {"name"}
    assert set(PROFILES[name]) <= known
    for field, fact in PROFILES[name].items():
        assert len(fact.evidence) >= 10, field
        assert type(fact.value) is type(getattr(ModelProfile(), field)), field
    assert find_differences(find_profile("m", "u", name), ModelProfile()).keys() <= PROFILES[name].keys()


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("o3", "openai-reasoning"),
        ("o4-mini-2025-04-16", "openai-reasoning"),
        ("openai/gpt-5.1", "openai-reasoning"),
        ("GPT-6-astra", "openai-reasoning"),
        ("gpt-4o-mini", "openai"),
        ("gpt-3.5-turbo", "openai"),
        ("chatgpt-4o-latest", "openai"),
        ("deepseek-reasoner", "deepseek-thinking"),
        ("deepseek-chat", "deepseek"),
        ("deepseek-v4-flash", "deepseek-thinking"),
        ("deepseek-ai/DeepSeek-R1", ""),
        ("gpt-oss-20b", ""),
        ("gpt-50", ""),
        ("o30", ""),
        ("olmo-2", ""),
        ("qwen3-8b", ""),
        ("", ""),
    ],
)
def test_a_family_is_told_by_the_name(model: str, family: str) -> None:
    assert find_family(model) == family


@pytest.mark.parametrize(
    ("base_url", "host"),
    [
        ("https://api.openai.com/v1", "openai"),
        ("https://API.OpenAI.com./v1", "openai"),
        ("https://api.openai.com.evil.example/v1", ""),
        ("https://notopenrouter.ai/api/v1", ""),
        ("https://mine.openai.azure.com", "azure"),
        ("https://mine.services.ai.azure.com/openai/v1", "azure"),
        ("https://openrouter.ai/api/v1", "openrouter"),
        ("https://api.deepseek.com", "deepseek"),
        ("https://api.anthropic.com/v1", "anthropic-compat"),
        ("https://api.x.ai/v1", "xai"),
        ("https://generativelanguage.googleapis.com/v1beta/openai", "gemini"),
        ("https://api.mistral.ai/v1", "mistral"),
        ("https://api.groq.com/openai/v1", "groq"),
        ("http://localhost:11434/v1", "ollama"),
        ("http://[::1]:1234/v1", "lmstudio"),
        ("http://10.0.0.1:11434/v1", ""),
        ("http://127.0.0.1:8000/v1", ""),
        ("http://host:99999/v1", ""),
        ("http://[::1", ""),
        ("", ""),
    ],
)
def test_a_host_is_told_by_the_address_and_no_look_alike_passes(base_url: str, host: str) -> None:
    assert find_host_profile(base_url) == host
    assert is_hosted(base_url) == (host not in {"", "ollama", "lmstudio"})


def test_the_host_goes_over_the_family() -> None:
    mixed = find_profile("openai/gpt-5", "https://openrouter.ai/api/v1")
    assert mixed.name == "openai-reasoning+openrouter"
    assert (mixed.limit_field, mixed.max_stops, mixed.sampling) == (OLD, 0, False)
    assert mixed.json_schema is STRICT
    assert row(find_profile("gpt-5", "https://api.openai.com/v1")) == MATRIX["openai-reasoning"]
    assert row(find_profile("o3", "https://x.openai.azure.com")) == MATRIX["openai-reasoning"]
    assert row(find_profile("deepseek-reasoner", "https://api.deepseek.com")) == MATRIX["deepseek-thinking"]
    assert find_profile("qwen3", "http://gpu.example:8000/v1") == ModelProfile()


def test_a_configured_profile_is_taken_as_it_is() -> None:
    assert find_profile("gpt-5", "https://api.openai.com/v1", "generic") == ModelProfile()
    with pytest.raises(SettingsError, match="'vlllm' is not known") as caught:
        find_profile("m", "u", "vlllm")
    assert "Did you mean vllm? Known are auto, generic" in caught.value.remedy


@pytest.mark.parametrize(
    ("model", "base_url", "expected"),
    [
        ("gpt-5-pro", "https://api.openai.com/v1", True),
        ("o3-deep-research", "https://api.openai.com/v1", True),
        ("gpt-5.1-codex-max", "https://x.openai.azure.com", True),
        ("gpt-5", "https://api.openai.com/v1", False),
        ("gpt-5-pro", "http://localhost:8000/v1", False),
    ],
)
def test_some_models_have_the_responses_interface_only(model: str, base_url: str, expected: bool) -> None:  # noqa: FBT001 - a case
    assert needs_responses(model, base_url) is expected


def test_the_operators_word_goes_over_all() -> None:
    overrides: dict[str, object] = {
        "limit_field": "max_completion_tokens",
        "max_stops": 0,
        "sampling": False,
        "reasoning_fields": ["thinking"],
        "json_schema": "guided",
        "count_path": "/tokenize",
        "context_window": 8192,
    }
    merged = merge(ModelProfile(), overrides)
    assert merged == replace(
        ModelProfile(),
        limit_field=NEW,
        max_stops=0,
        sampling=False,
        reasoning_fields=("thinking",),
        json_schema=GUIDED,
        count_path="/tokenize",
        context_window=8192,
    )
    assert find_differences(merged, ModelProfile()) == overrides
    assert merge(ModelProfile(), {}) == ModelProfile()
    assert find_differences(ModelProfile(), merged).get("context_window", "unset") == "unset"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max_stop", 4, "llm.capabilities.max_stop is no capability; did you mean max_stops?"),
        ("name", "x", "is no capability; known are limit_field"),
        ("limit_field", "tokens", "must be one of max_tokens, max_completion_tokens, not 'tokens'"),
        ("json_schema", True, "must be one of strict"),
        ("max_stops", -1, "at least 0"),
        ("max_stops", True, "whole number"),
        ("context_window", 0, "at least 1"),
        ("sampling", "yes", "true or false"),
        ("count_path", "tokenize", 'begins with "/"'),
        ("count_path", 1, "path"),
        ("reasoning_fields", "reasoning", "list of names"),
        ("stop_match_fields", [""], "list of names"),
    ],
)
def test_what_no_profile_can_say_is_refused_with_the_key(name: str, value: object, words: str) -> None:
    with pytest.raises(SettingsError) as caught:
        merge(ModelProfile(), {name: value})
    assert words in caught.value.message
    assert [violation.field for violation in caught.value.violations] == [f"llm.capabilities.{name}"]


def test_all_wrong_capabilities_are_named_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        merge(ModelProfile(), {"max_stops": "4", "tool": True}, section="llm.backends.b.capabilities")
    assert [violation.field for violation in caught.value.violations] == [
        "llm.backends.b.capabilities.max_stops",
        "llm.backends.b.capabilities.tool",
    ]
