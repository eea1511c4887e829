from __future__ import annotations

from typing import Any

import pytest

from reasond_server.config import Settings, choose_provider, require_servable
from reasond_server.config.checks import cross_check
from reasond_server.errors.base import SettingsError, Violation

KEY = {"id": "main", "secret_env": "S"}


def settings(**sections: Any) -> Settings:
    return Settings.model_validate(sections)


def find_problems(checked: Settings) -> dict[str, str]:
    """Return the problems that the checks find, by key."""
    return {violation.field: violation.description for violation in cross_check(checked)}


def test_the_defaults_have_no_problems() -> None:
    assert find_problems(Settings()) == {}


@pytest.mark.parametrize("name", ["grpc_address", "http_address", "admin_address"])
def test_a_public_address_needs_tls_or_a_proxy_that_ends_it(name: str) -> None:
    problems = find_problems(settings(server={name: "0.0.0.0:1"}))
    assert list(problems) == [f"server.{name}"]
    assert "'0.0.0.0:1' can be reached from other machines" in problems[f"server.{name}"]
    assert find_problems(settings(server={name: "0.0.0.0:1", "tls": "terminated-upstream"})) == {}
    files = {"tls": "files", "tls_certificate": "c.pem", "tls_private_key": "k.pem"}
    assert find_problems(settings(server={name: "0.0.0.0:1"} | files)) == {}


def test_metrics_on_a_public_address_need_tls_or_a_proxy_and_are_refused_in_development() -> None:
    public = {"address": "0.0.0.0:9464"}
    assert list(find_problems(settings(metrics=public))) == ["metrics.address"]
    assert find_problems(settings(metrics=public, server={"tls": "terminated-upstream"})) == {}
    assert find_problems(settings(metrics={"address": "127.0.0.1:9464"})) == {}
    with pytest.raises(SettingsError, match=r"metrics\.address: '0\.0\.0\.0:9464' can be reached") as refused:
        require_servable(settings(metrics=public, server={"tls": "terminated-upstream"}), dev=True)
    assert [violation.field for violation in refused.value.violations] == ["metrics.address"]


def test_tls_needs_its_files_and_files_need_tls() -> None:
    assert set(find_problems(settings(server={"tls": "files"}))) == {"server.tls_certificate", "server.tls_private_key"}
    for name in ("tls_certificate", "tls_private_key", "tls_client_ca"):
        assert "has no effect" in find_problems(settings(server={name: "x.pem"}))[f"server.{name}"]


def test_a_server_without_any_address_for_grpc_is_refused() -> None:
    assert "set one" in find_problems(settings(server={"grpc_address": ""}))["server.grpc_address"]
    assert find_problems(settings(server={"grpc_address": "", "http_address": "", "grpc_unix_socket": "s"})) == {}


@pytest.mark.parametrize("llm", [{"model": "gpt-4.1"}, {"base_url": "https://host/v1"}])
def test_a_model_needs_its_provider(llm: dict[str, str]) -> None:
    assert "name the provider" in find_problems(settings(llm=llm))["llm.provider"]
    assert find_problems(settings(llm=llm | {"provider": "openai"})) == {}


def test_a_default_that_was_chosen_must_be_enabled() -> None:
    chosen = settings(reasoning={"default_strategy": "react", "enabled_strategies": ["chain_of_thought"]})
    assert "'react' is not among" in find_problems(chosen)["reasoning.default_strategy"]
    nothing = settings(reasoning={"default_strategy": "react", "enabled_strategies": []})
    assert "(none)" in find_problems(nothing)["reasoning.default_strategy"]


def test_the_rule_auto_needs_the_strategy_that_it_chooses() -> None:
    alone = settings(reasoning={"auto": True, "enabled_strategies": ["chain_of_thought"]})
    assert "needs bounded_context" in find_problems(alone)["reasoning.auto"]
    assert find_problems(settings(reasoning={"auto": True})) == {}


def test_no_strategies_at_all_is_fine_and_means_no_default() -> None:
    empty = settings(reasoning={"enabled_strategies": []})
    assert find_problems(empty) == {}
    assert empty.reasoning.effective_default_strategy is None
    assert settings(reasoning={"default_strategy": ""}).reasoning.effective_default_strategy is None
    assert Settings().reasoning.effective_default_strategy == "chain_of_thought"


@pytest.mark.parametrize(
    ("llm", "environ", "provider"),
    [
        ({}, {}, "demo"),
        ({}, {"OPENAI_API_KEY": ""}, "demo"),
        ({}, {"OPENAI_API_KEY": "sk-x"}, "openai"),
        ({}, {"OPENAI_BASE_URL": "http://127.0.0.1:1"}, "openai"),
        ({"provider": "demo"}, {"OPENAI_API_KEY": "sk-x"}, "demo"),
        ({"provider": "openai"}, {}, "openai"),
    ],
)
def test_the_provider_is_the_configured_one_or_the_environments(
    llm: dict[str, str], environ: dict[str, str], provider: str
) -> None:
    assert choose_provider(settings(llm=llm), environ) == provider


def refusal(checked: Settings, *, dev: bool) -> str:
    with pytest.raises(SettingsError) as caught:
        require_servable(checked, dev=dev)
    return caught.value.message


def test_a_server_needs_a_key_unless_it_is_for_development() -> None:
    assert "auth.keys: is empty, so nobody could authenticate" in refusal(Settings(), dev=False)
    require_servable(Settings(), dev=True)
    require_servable(settings(auth={"keys": [KEY]}), dev=False)


def test_development_stays_on_this_machine() -> None:
    public = settings(server={"http_address": "0.0.0.0:1", "tls": "terminated-upstream"})
    assert "server.http_address: '0.0.0.0:1'" in refusal(public, dev=True)


def test_what_is_wrong_besides_is_refused_in_one_go() -> None:
    also = [Violation(field="llm.model", description="is empty")]
    with pytest.raises(SettingsError, match=r"llm\.model: is empty"):
        require_servable(Settings(), dev=True, also=also)
    with pytest.raises(SettingsError, match="2 problems"):
        require_servable(Settings(), dev=False, also=also)


@pytest.mark.parametrize("section", ["llm", "llm.backends.spare"])
def test_the_keys_of_a_backend_fit_each_other(section: str) -> None:
    def problems(**keys: object) -> dict[str, str]:
        return find_problems(settings(llm=keys if section == "llm" else {"backends": {"spare": keys}}))

    assert "needs it" in problems(count="tokenizer")[f"{section}.tokenizer_file"]
    assert "has no effect" in problems(count="bytes", tokenizer_file="t.json")[f"{section}.tokenizer_file"]
    assert problems(count="tokenizer", tokenizer_file="t.json") == {}
    assert problems(tokenizer_file="t.json") == {}
    assert f"more than {section}.max_wait_s (20.0)" in problems(first_wait_s=30.0)[f"{section}.first_wait_s"]


SHARED = {"store": {"url": "postgresql://here/reasond"}}


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"store": {"url": ""}}, "store.url"),
        ({"store": {"url": "memory:"}}, "store.url"),
        ({"store": {"url": "sqlite:////var/reasond.db"}}, "store.url"),
        ({"server": {"grpc_unix_socket": "/run/reasond"}}, "server.grpc_unix_socket"),
        ({"server": {"admin_address": "127.0.0.1:9"}}, "server.admin_address"),
        ({"limits": {"requests_per_minute": 5}}, "limits.storage"),
        ({"limits": {"requests_per_hour": 5}}, "limits.storage"),
        ({"limits": {"concurrent_requests": 5}}, "limits.storage"),
        ({"limits": {"tokens_per_minute": 5}}, "limits.storage"),
        ({"limits": {"tokens_per_day": 5}}, "limits.storage"),
    ],
)
def test_several_workers_are_refused_what_only_one_can_have(sections: dict[str, dict[str, Any]], field: str) -> None:
    merged: dict[str, dict[str, Any]] = {**SHARED, **sections}
    alone = Settings.model_validate({**merged, "server": {**merged.get("server", {}), "workers": 1}})
    assert [*cross_check(alone)] == []
    together = Settings.model_validate({**merged, "server": {**merged.get("server", {}), "workers": 2}})
    (problem,) = cross_check(together)
    assert problem.field == field
    assert "server.workers = 2" in problem.description


def test_several_workers_with_a_shared_store_and_shared_limits_are_fine_but_not_in_development() -> None:
    limits = {"requests_per_minute": 5, "storage": "redis", "redis_url": "redis://127.0.0.1:1/0"}
    checked = Settings.model_validate({**SHARED, "limits": limits, "server": {"workers": 2}})
    assert [*cross_check(checked)] == []
    with pytest.raises(SettingsError, match="the key of --dev is known to one process only"):
        require_servable(checked, dev=True)
