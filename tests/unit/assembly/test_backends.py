from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reasond_server.assembly.backends import (
    MAIN,
    create_model,
    find_backend_problems,
    find_rank_folders,
    read_backend_options,
)
from reasond_server.config import Settings
from reasond_server.demo import DemoModel
from reasond_server.errors.base import SettingsError
from reasond_server.llm.counting import ByteCounter
from reasond_server.llm.openai.backend_options import RetryPolicy, Timeouts
from reasond_server.llm.profiles import SchemaLevel
from reasond_server.types.usage import Price

LOCAL = "http://127.0.0.1:8080/v1"
KEY = {"OPENAI_API_KEY": "sk-one"}


def settings(**llm: Any) -> Settings:
    return Settings.model_validate({"llm": {"provider": "openai", "model": "m", **llm}})


def refusal(checked: Settings, environ: dict[str, str], name: str = "") -> str:
    with pytest.raises(SettingsError) as caught:
        read_backend_options(checked, environ, name)
    if not name:
        assert [one.field for one in find_backend_problems(checked, environ)] == [
            one.field for one in caught.value.violations
        ]
    return caught.value.full_message


async def test_without_settings_the_demo_model_answers() -> None:
    assert isinstance(create_model(Settings(), {}), DemoModel)
    assert find_backend_problems(Settings(), {}) == []


async def test_a_named_model_is_built_and_counts_as_configured() -> None:
    model = create_model(settings(base_url=LOCAL, count="bytes"), {})
    try:
        assert (model.name, list(model.warnings)) == ("m", [])
        assert isinstance(model.counter, ByteCounter)
    finally:
        await model.aclose()


async def test_a_tokenizer_file_is_relative_to_the_configuration(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=str(tmp_path)):
        create_model(settings(base_url=LOCAL, tokenizer_file="none.json"), {}, tmp_path)


def test_a_provider_without_a_model_is_refused_and_never_replaced() -> None:
    assert "llm.model is empty; name the model" in refusal(settings(model="", base_url=LOCAL), {})
    selected = refusal(Settings(), KEY)
    assert "llm.model is empty, and the provider openai was selected because OPENAI_API_KEY" in selected
    assert 'set llm.provider = "demo"' in selected


def test_every_key_reaches_the_backend() -> None:
    options = read_backend_options(
        settings(
            base_url=LOCAL,
            api_key_env="K",
            azure_api_version="2024-10-21",
            protocol="responses",
            profile="vllm",
            max_concurrency=7,
            connect_timeout_s=1.0,
            first_token_timeout_s=2.0,
            idle_timeout_s=3.0,
            total_timeout_s=4.0,
            max_attempts=5,
            first_wait_s=0.25,
            max_wait_s=6.0,
            max_line_bytes=65_536,
            max_response_bytes=131_072,
            capabilities={"context_window": 8192, "json_schema": "object"},
        ),
        {"K": " sk-two\n"},
    )
    assert (options.name, options.model, options.base_url, options.api_key) == (MAIN, "m", LOCAL, "sk-two")
    assert (options.protocol, options.azure_api_version, options.max_concurrency) == ("responses", "2024-10-21", 7)
    assert options.timeouts == Timeouts(connect_s=1.0, first_token_s=2.0, idle_s=3.0, total_s=4.0)
    assert options.retries == RetryPolicy(max_attempts=5, first_wait_s=0.25, max_wait_s=6.0)
    assert (options.max_line_bytes, options.max_response_bytes) == (65_536, 131_072)
    assert (options.profile.name, options.profile.context_window) == ("vllm", 8192)
    assert options.profile.json_schema is SchemaLevel.OBJECT
    assert "sk-two" not in repr(options)


def test_the_defaults_of_the_configuration_are_those_of_the_backend() -> None:
    options = read_backend_options(settings(base_url=LOCAL), {})
    assert (options.timeouts, options.retries) == (Timeouts(), RetryPolicy())
    assert (options.max_concurrency, options.max_line_bytes) == (64, 1_048_576)
    assert options.max_response_bytes == 8_388_608


@pytest.mark.parametrize("profile", ["llamacpp", "llamacpp-python", "ollama", "lmstudio"])
def test_a_call_of_a_local_server_waits_while_the_prompts_of_others_are_read(profile: str) -> None:
    """Seen: 1,003 tokens of a reply lost, because its server read another prompt for 416 s."""
    options = read_backend_options(settings(base_url=LOCAL, profile=profile), {})
    assert options.timeouts == Timeouts(first_token_s=900, idle_s=900, total_s=3600)
    chosen = read_backend_options(settings(base_url=LOCAL, profile=profile, idle_timeout_s=7.0), {})
    assert chosen.timeouts == Timeouts(first_token_s=900, idle_s=7, total_s=3600)
    overridden = settings(base_url=LOCAL, profile=profile, capabilities={"idle_s": 5})
    assert read_backend_options(overridden, {}).timeouts.idle_s == 5


@pytest.mark.parametrize(
    ("base_url", "environ", "expected"),
    [
        ("", KEY, "https://api.openai.com/v1"),
        ("", {"OPENAI_BASE_URL": LOCAL}, LOCAL),
        ("http://[::1]:1/v1", {"OPENAI_BASE_URL": LOCAL}, "http://[::1]:1/v1"),
    ],
)
def test_the_address_is_the_configured_one_or_the_environments_or_openais(
    base_url: str, environ: dict[str, str], expected: str
) -> None:
    assert read_backend_options(settings(base_url=base_url), environ).base_url == expected


def test_a_wrong_address_in_the_environment_is_refused_without_being_shown() -> None:
    words = refusal(settings(), {"OPENAI_BASE_URL": "https://me:hunter2@host/v1"})
    assert "OPENAI_BASE_URL must start with" in words
    assert "hunter2" not in words


@pytest.mark.parametrize(
    "base_url",
    [
        "",
        "https://x.openai.azure.com",
        "https://openrouter.ai/api/v1",
        "https://api.deepseek.com",
        "https://api.anthropic.com/v1",
    ],
)
def test_a_known_provider_needs_a_key(base_url: str) -> None:
    assert "llm.api_key_env names OPENAI_API_KEY, which is not set" in refusal(settings(base_url=base_url), {})
    assert "is empty, but" in refusal(settings(base_url=base_url, api_key_env=""), {})
    assert read_backend_options(settings(base_url=base_url), KEY).api_key == "sk-one"


def test_another_server_may_do_without_a_key_unless_one_was_named() -> None:
    assert read_backend_options(settings(base_url=LOCAL), {}).api_key == ""
    assert read_backend_options(settings(base_url="https://gpu.example/v1", api_key_env=""), KEY).api_key == ""
    assert "names VLLM_KEY, which is not set; set it, or" in refusal(
        settings(base_url=LOCAL, api_key_env="VLLM_KEY"), {}
    )


@pytest.mark.parametrize("key", ["sk\r\nX-Evil: 1", "schlüssel", "a b"])
def test_a_key_that_fits_no_header_is_refused_without_being_shown(key: str) -> None:
    words = refusal(settings(base_url=LOCAL), {"OPENAI_API_KEY": key})
    assert "whose value holds characters that no key has" in words
    assert key not in words


def test_a_profile_and_capabilities_are_checked_before_the_start() -> None:
    words = refusal(settings(base_url=LOCAL, profile="vlm", capabilities={"max_stops": 1}), {})
    assert "llm.profile the profile 'vlm' is not known" in words
    words = refusal(settings(base_url=LOCAL, capabilities={"max_stop": 1}), {})
    assert "llm.capabilities.max_stop is no capability" in words


def test_models_of_openai_that_have_no_other_interface_use_responses() -> None:
    assert read_backend_options(settings(model="gpt-5-pro"), KEY).protocol == "responses"
    assert read_backend_options(settings(model="gpt-5-pro", protocol="chat"), KEY).protocol == "chat"
    assert read_backend_options(settings(model="gpt-5"), KEY).protocol == "chat"


def test_a_named_backend_stands_beside_the_main_one() -> None:
    both = settings(base_url=LOCAL, backends={"spare": {"model": "gpt-4o"}, "broken": {}})
    spare = read_backend_options(both, {**KEY, "OPENAI_BASE_URL": LOCAL}, "spare")
    assert (spare.name, spare.base_url) == ("spare", "https://api.openai.com/v1"), "the variable is for [llm] alone"
    assert spare.profile.name == "openai"
    assert "llm.backends.broken.model is empty; name the model" in refusal(both, KEY, "broken")
    assert {one.field for one in find_backend_problems(both, KEY)} == {"llm.backends.broken.model"}
    demo = Settings.model_validate({"llm": {"provider": "demo", "backends": {"broken": {"base_url": LOCAL}}}})
    assert {one.field for one in find_backend_problems(demo, {})} == {"llm.backends.broken.model"}


def test_an_unknown_backend_is_refused_with_those_that_exist() -> None:
    with pytest.raises(SettingsError) as caught:
        read_backend_options(settings(backends={"spare": {"model": "x"}}), {}, "spear")
    assert caught.value.message == "There is no backend 'spear'"
    assert "[llm.backends]: spare" in caught.value.remedy


def test_ranks_are_looked_for_where_tiktoken_and_we_keep_them() -> None:
    assert find_rank_folders({}) == ()
    assert find_rank_folders({"TIKTOKEN_CACHE_DIR": "/t", "HOME": "/h"}) == (
        Path("/t"),
        Path("/h/.cache/reasond/tiktoken"),
    )
    assert find_rank_folders({"HOME": "/h", "XDG_CACHE_HOME": "/x"}) == (Path("/x/reasond/tiktoken"),)


def test_a_price_without_its_sister_is_refused_by_the_name_of_the_missing_one() -> None:
    assert "llm.output_price_usd" in refusal(settings(base_url=LOCAL, input_price_usd=2.5), {})
    assert "llm.input_price_usd" in refusal(settings(base_url=LOCAL, output_price_usd=2.5), {})
    assert "llm.input_price_usd" in refusal(settings(base_url=LOCAL, cached_input_price_usd=2.5), {})


def test_input_from_the_cache_costs_what_other_input_does_unless_the_operator_says_otherwise() -> None:
    same = read_backend_options(settings(base_url=LOCAL, input_price_usd=2, output_price_usd=8), {})
    assert same.price == Price(input_usd=2, cached_input_usd=2, output_usd=8)
    own = settings(base_url=LOCAL, input_price_usd=2, output_price_usd=8, cached_input_price_usd=0.5)
    assert read_backend_options(own, {}).price == Price(input_usd=2, cached_input_usd=0.5, output_usd=8)
    assert read_backend_options(settings(base_url=LOCAL), {}).price is None
