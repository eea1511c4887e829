from typing import Any

import pytest
from pydantic import ConfigDict, Field, PrivateAttr

from reasond_server.errors.base import SettingsError
from reasond_server.errors.request import InvalidConfigError
from reasond_server.reasoning.configuration import StrategyConfiguration
from reasond_server.reasoning.registry import StrategyRegistry
from reasond_server.strategies.best_of_n import BestOfN
from reasond_server.strategies.bounded_context import BoundedContext, BoundedContextConfig
from reasond_server.strategies.self_consistency import SelfConsistency
from reasond_server.strategies.strategy import ReasoningStrategy, StrategyConfig
from reasond_server.testing import ScriptedModel
from tests.unit.reasoning.conftest import Quick, QuickConfig


def configuration(registry: StrategyRegistry, **quick: Any) -> StrategyConfiguration:
    return StrategyConfiguration(registry=registry, tables={"quick": quick})


def resolve(
    registry: StrategyRegistry, system: dict[str, Any], agent: dict[str, Any], request: dict[str, Any]
) -> QuickConfig:
    config, shown = configuration(registry, **system).resolve(registry.get("quick"), request=request, agent=agent)
    assert isinstance(config, QuickConfig)
    assert shown == config.model_dump(mode="json")
    return config


def test_each_parameter_comes_from_the_highest_level_that_sets_it(registry: StrategyRegistry) -> None:
    config = resolve(
        registry,
        {"default_max_tokens": 10, "default_temperature": 1.0, "default_shout": True},
        {"max_tokens": 20, "temperature": 1.5},
        {"max_tokens": 30},
    )
    assert (config.max_tokens, config.temperature, config.shout) == (30, 1.5, True)


def test_without_any_setting_the_built_in_defaults_hold(registry: StrategyRegistry) -> None:
    assert resolve(registry, {}, {}, {}) == QuickConfig()


def test_what_no_request_changes_is_checked_once(registry: StrategyRegistry) -> None:
    configured, quick = configuration(registry, default_max_tokens=10), registry.get("quick")
    first, again = (configured.resolve(quick, request={}) for _ in range(2))
    assert first is again
    assert configured.resolve(quick, request={"max_tokens": 11})[0] != first[0]


@pytest.mark.parametrize(
    ("system", "agent", "request_values", "expected"),
    [
        ({}, {}, {}, (8192, 4096)),
        ({}, {}, {"chunk_size": 4096}, (4096, 2048)),
        ({}, {}, {"chunk_size": 1024}, (1024, 512)),
        ({}, {}, {"chunk_size": 32768}, (32768, 4096)),
        ({}, {"chunk_size": 4096}, {"max_iterations": 2}, (4096, 2048)),
        ({"default_chunk_size": 2048}, {}, {}, (2048, 1024)),
        ({"default_carryover_size": 4096}, {}, {"chunk_size": 4096}, (4096, 2048)),
        ({"default_chunk_size": 16384, "default_carryover_size": 1024}, {}, {"chunk_size": 4096}, (4096, 1024)),
        ({}, {"chunk_size": 4096}, {"carryover_size": 3000}, (4096, 3000)),
        ({}, {}, {"chunk_size": 4096, "carryover_size": 4096}, (4096, 4096)),
    ],
)
def test_a_carryover_that_nobody_set_for_the_window_is_at_most_half_of_it(
    system: dict[str, int], agent: dict[str, int], request_values: dict[str, int], expected: tuple[int, int]
) -> None:
    strategy = BoundedContext()
    tables = {strategy.name: system}
    configured = StrategyConfiguration(registry=StrategyRegistry([strategy]), tables=tables)
    config, shown_config = configured.resolve(strategy, request=request_values, agent=agent)
    assert isinstance(config, BoundedContextConfig)
    assert (config.chunk_size, config.carryover_size) == expected
    assert shown_config["carryover_size"] == expected[1]


class Lists(StrategyConfig):
    names: list[str] = Field(default_factory=list)


class Hidden(StrategyConfig):
    _seen: int = PrivateAttr(default=0)


class Thawed(StrategyConfig):
    model_config = ConfigDict(frozen=False)
    most: int = 1


class Made(StrategyConfig):
    seed: int = Field(default_factory=lambda: 7)


@pytest.mark.parametrize("kind", [Lists, Hidden, Thawed, Made])
def test_a_configuration_that_a_run_can_change_is_made_anew_for_each(kind: type[StrategyConfig]) -> None:
    class Changing(Quick):
        name = "changing"
        config_type = kind  # type: ignore[assignment]  # another configuration than that of Quick

    configured = StrategyConfiguration(registry=StrategyRegistry([Changing()]), tables={})
    first, other = (configured.resolve(Changing(), request={})[0] for _ in range(2))
    assert (first == other, first is other) == (True, False)


def refusal(registry: StrategyRegistry, request: dict[str, Any], agent: dict[str, Any] | None = None) -> str:
    with pytest.raises(InvalidConfigError) as refused:
        configuration(registry, max_allowed_tokens=500).resolve(registry.get("quick"), request=request, agent=agent)
    assert refused.value.reason == "INVALID_CONFIG"
    return refused.value.message.removeprefix("Request validation failed: ")


@pytest.mark.parametrize(
    ("request_values", "message"),
    [
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"max_tokens": 1001}, "max_tokens must be at most 1000, got 1001"),
        ({"max_tokens": 501}, "max_tokens must be at most 500 on this server, got 501"),
        ({"max_tokens": "9"}, "max_tokens must be a whole number, got '9'"),
        ({"max_tokens": True}, "max_tokens must be a whole number, got True"),
        ({"shout": 1}, "shout must be true or false, got 1"),
        ({"temperature": "hot"}, "temperature must be a number, got 'hot'"),
        ({"temperatur": 1}, "temperatur is not known; did you mean 'temperature'?"),
        ({"zzz": 1}, "zzz is not known; known are 'max_tokens', 'shout', 'temperature'"),
    ],
)
def test_a_bad_value_is_named_with_its_limit(
    registry: StrategyRegistry, request_values: dict[str, Any], message: str
) -> None:
    assert refusal(registry, request_values) == message


def test_all_bad_values_are_named_at_once(registry: StrategyRegistry) -> None:
    assert refusal(registry, {"max_tokens": 0, "temperature": 3}) == (
        "max_tokens must be at least 1, got 0; temperature must be at most 2, got 3"
    )


def test_a_bad_value_of_the_agent_says_where_it_comes_from(registry: StrategyRegistry) -> None:
    assert refusal(registry, {}, {"max_tokens": 0}) == "max_tokens must be at least 1, got 0 (set by the agent's card)"


def test_a_long_value_comes_back_shortened(registry: StrategyRegistry) -> None:
    assert len(refusal(registry, {"max_tokens": "x" * 100_000})) < 200


def test_a_key_of_the_operator_that_names_no_parameter_is_refused(registry: StrategyRegistry) -> None:
    with pytest.raises(SettingsError, match="default_max_token is not known; did you mean 'default_max_tokens'"):
        configuration(registry, default_max_token=1)


def test_a_default_above_its_ceiling_is_refused_at_start(registry: StrategyRegistry) -> None:
    with pytest.raises(SettingsError, match=r"max_tokens must be at most 50 on this server, got 100"):
        configuration(registry, max_allowed_tokens=50)


def test_a_ceiling_is_a_number(registry: StrategyRegistry) -> None:
    with pytest.raises(SettingsError, match="max_allowed_temperature must be a number, got 'x'"):
        configuration(registry, max_allowed_temperature="x")


def test_what_takes_no_numbers_has_no_ceiling(registry: StrategyRegistry) -> None:
    with pytest.raises(SettingsError, match="max_allowed_shout is a ceiling of 'shout', which takes no numbers"):
        configuration(registry, max_allowed_shout=1)


def test_the_ceilings_are_told_by_parameter(registry: StrategyRegistry) -> None:
    configured = configuration(registry, default_max_tokens=7, max_allowed_tokens=500)
    assert configured.ceilings(registry.get("quick")) == {"max_tokens": 500}
    assert configuration(registry).ceilings(registry.get("quick")) == {}


def test_the_schema_shows_the_defaults_and_ceilings_of_this_server(registry: StrategyRegistry) -> None:
    configured = configuration(registry, default_max_tokens=7, max_allowed_tokens=500, max_allowed_temperature=1.5)
    properties = configured.schema(registry.get("quick"))["properties"]
    assert (properties["max_tokens"]["default"], properties["max_tokens"]["maximum"]) == (7, 500)
    assert properties["temperature"]["maximum"] == 1.5


@pytest.mark.parametrize(
    ("key", "ceiling", "words"),
    [
        ("max_allowed_tokens", 5000, "max_allowed_tokens bounds 'max_tokens', which must be at most 1000, got 5000"),
        ("max_allowed_tokens", 0, "max_allowed_tokens bounds 'max_tokens', which must be at least 1, got 0"),
        ("max_allowed_tokens", 4.5, "max_allowed_tokens bounds 'max_tokens', which must be a whole number, got 4.5"),
        ("max_allowed_temperature", float("nan"), "which must be at most 2, got nan"),
    ],
)
def test_a_ceiling_out_of_the_range_of_its_parameter_is_refused(
    registry: StrategyRegistry, key: str, ceiling: float, words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        configuration(registry, **{key: ceiling})


def test_everything_wrong_in_all_tables_is_told_at_once(registry: StrategyRegistry) -> None:
    tables: dict[str, dict[str, Any]] = {
        "quick": {"default_max_token": 1, "max_allowed_tokens": 5000, "default_temperature": 3, "default_shout": 1},
        "bounded_context": {"default_chunk_size": 1, "default_mode": "tail"},
    }
    with pytest.raises(SettingsError) as refused:
        StrategyConfiguration(registry=StrategyRegistry([*registry, BoundedContext()]), tables=tables)
    assert {one.field.removeprefix("reasoning.strategies.") for one in refused.value.violations} == {
        "quick.default_max_token",
        "quick.max_allowed_tokens",
        "quick.default_temperature",
        "quick.default_shout",
        "bounded_context.default_chunk_size",
        "bounded_context.default_mode",
    }


@pytest.mark.parametrize(
    ("strategy", "table", "words"),
    [
        (
            BoundedContext(),
            {"default_chunk_size": 2048, "default_carryover_size": 4096},
            r"bounded_context\.default_chunk_size must leave room beside carryover_size 4096",
        ),
        (SelfConsistency(), {"default_temperature": 0.0}, r"default_temperature must be above 0 with 5 samples"),
        (BestOfN(), {"default_temperature": 0.0}, r"default_temperature must be above 0 with 5 samples"),
        (BestOfN(), {"default_check_program": "pass"}, r"default_check_program is run by the verifier 'program' alone"),
    ],
)
def test_defaults_that_pass_one_by_one_and_never_run_together_are_refused(
    strategy: ReasoningStrategy[Any], table: dict[str, Any], words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        configure_alone(strategy, table)


@pytest.mark.parametrize(
    ("strategy", "table"),
    [
        (BestOfN(), {"default_verifier": "schema"}),
        (BestOfN(), {"default_verifier": "program"}),
        (BoundedContext(), {"default_chunk_size": 16384}),
        (SelfConsistency(), {"default_temperature": 0.0, "default_samples": 1}),
    ],
)
def test_defaults_that_fit_some_tasks_or_another_model_are_taken(
    strategy: ReasoningStrategy[Any], table: dict[str, Any]
) -> None:
    configure_alone(strategy, table)


def configure_alone(strategy: ReasoningStrategy[Any], table: dict[str, Any]) -> None:
    with ScriptedModel([], context_window=8192) as model:
        StrategyConfiguration(registry=StrategyRegistry([strategy]), tables={strategy.name: table}, model=model)


def test_a_whole_number_may_be_written_with_a_point(registry: StrategyRegistry) -> None:
    config = resolve(registry, {"default_max_tokens": 9.0}, {}, {"temperature": 1.0})
    assert (config.max_tokens, type(config.max_tokens)) == (9, int)
    assert resolve(registry, {}, {}, {"max_tokens": 30.0}).max_tokens == 30
    assert refusal(registry, {"max_tokens": 30.5}) == "max_tokens must be a whole number, got 30.5"
    assert "must be a whole number" in refusal(registry, {"max_tokens": float("inf")})
