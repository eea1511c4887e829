from __future__ import annotations

from dataclasses import replace

import pytest

from reasond_server.assembly.core import assemble
from reasond_server.config import ReasoningSettings, Settings
from reasond_server.errors.base import SettingsError
from reasond_server.errors.request import StrategyNotFoundError
from reasond_server.protocols.model_catalogue import ModelCatalogue, ModelPreset, narrow
from reasond_server.testing import FunctionModel
from reasond_server.types import Budget, Principal


def catalogue(default: str = "chain_of_thought", **presets: ModelPreset) -> ModelCatalogue:
    settings = Settings(reasoning=ReasoningSettings(default_strategy=default))
    service = assemble(settings, model=FunctionModel(lambda _: "42")).reasoning
    return ModelCatalogue(strategies=service.strategies(), presets=presets)


def caller(*permissions: str) -> Principal:
    return Principal(subject="alice", tenant="alice", permissions=frozenset(permissions))


def test_names_stand_for_strategies() -> None:
    models = catalogue(careful=ModelPreset(strategy="react", config={"max_iterations": 3}))
    assert models.find("reasond") == ModelPreset()
    assert models.find("reasond/react") == ModelPreset(strategy="react")
    assert models.find("careful").config == {"max_iterations": 3}


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("reasond/chain-of-thought", "reasond/chain_of_thought"), ("reason", "reasond"), ("carefull", "careful")],
)
def test_an_unknown_model_is_refused_with_the_nearest_name(name: str, nearest: str) -> None:
    with pytest.raises(StrategyNotFoundError, match=f"did you mean '{nearest}'") as caught:
        catalogue(careful=ModelPreset(strategy="react")).find(name)
    assert caught.value.violations[0].field == "model"


def test_a_caller_sees_the_models_that_it_may_use() -> None:
    models = catalogue(careful=ModelPreset(strategy="react"), guided=ModelPreset(agent="guide"))
    assert "reasond/tree_of_thought" in models.list_for(caller("reasoning:execute"))
    assert models.list_for(caller("reasoning:execute:react")) == ["reasond/react", "careful", "guided"]


def test_without_a_default_strategy_the_servers_own_model_is_not_listed() -> None:
    models = catalogue(default="")
    assert "reasond" not in models.list_for(caller("admin"))
    assert models.find_parameters(models.find("reasond"), None) == frozenset()


def test_the_rule_auto_is_a_model_where_the_operator_offers_it() -> None:
    assert "reasond/auto" not in catalogue().list_for(caller("admin"))
    models = ModelCatalogue(strategies=[], offers_auto=True)
    assert models.find("reasond/auto") == ModelPreset(strategy="auto")
    assert models.list_for(caller("reasoning:execute:react")) == ["reasond/auto"]
    fixed = ModelPreset(strategy="auto", config={"temperature": 1})
    with pytest.raises(SettingsError, match="temperature is not known"):
        ModelCatalogue(strategies=[], presets={"m": fixed}, offers_auto=True)


def test_the_parameters_are_those_of_the_strategy_that_will_work() -> None:
    models = catalogue()
    assert "temperature" in models.find_parameters(models.find("reasond"), None)
    assert models.find_parameters(models.find("reasond"), "guide") == frozenset()
    assert "samples" in models.find_parameters(models.find("reasond/self_consistency"), "guide")


@pytest.mark.parametrize(
    ("preset", "part"),
    [
        (ModelPreset(strategy="reakt"), "[openai.models.m] strategy is no enabled strategy; did you mean 'react'"),
        (
            ModelPreset(strategy="react", config={"max_iteration": 3}),
            "[openai.models.m.config] max_iteration is not known; did you mean 'max_iterations'",
        ),
    ],
)
def test_a_model_that_could_never_work_stops_the_start(preset: ModelPreset, part: str) -> None:
    with pytest.raises(SettingsError) as caught:
        catalogue(m=preset)
    assert part in str(caught.value)


def test_the_lower_bound_counts() -> None:
    asked = Budget(max_total_tokens=5, max_tool_calls=0)
    assert narrow(asked, Budget(max_total_tokens=9, max_elapsed_s=2.0)) == replace(asked, max_elapsed_s=2.0)
    assert narrow(asked, Budget(max_total_tokens=4)) == replace(asked, max_total_tokens=4)
    assert narrow(asked, ModelPreset().budget) is asked
