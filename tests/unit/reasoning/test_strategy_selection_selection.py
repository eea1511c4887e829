import pytest

from reasond_server.errors.base import SettingsError
from reasond_server.errors.request import StrategyNotFoundError, StrategyNotSupportedError, StrategyRequiredError
from reasond_server.reasoning.registry import StrategyRegistry
from reasond_server.reasoning.strategy_selection import SelectionInputs, select
from reasond_server.types import StrategySource
from tests.unit.reasoning.conftest import Quick


def choose(registry: StrategyRegistry, inputs: SelectionInputs) -> tuple[str, StrategySource]:
    selection = select(inputs, registry)
    return selection.strategy.name, selection.source


def test_the_request_goes_before_the_agent_and_the_system(registry: StrategyRegistry) -> None:
    inputs = SelectionInputs(requested="slow", offered=["quick", "slow"], default="quick")
    assert choose(registry, inputs) == ("slow", StrategySource.REQUEST)


def test_the_agent_goes_before_the_system_in_its_own_order(registry: StrategyRegistry) -> None:
    assert choose(registry, SelectionInputs(offered=["react", "slow", "quick"], default="quick")) == (
        "slow",
        StrategySource.AGENT,
    )


def test_capabilities_of_the_request_choose_like_an_agent(registry: StrategyRegistry) -> None:
    assert choose(registry, SelectionInputs(narrowed_to=["slow"], default="quick")) == ("slow", StrategySource.AGENT)


def test_capabilities_of_the_request_can_only_narrow_the_agents(registry: StrategyRegistry) -> None:
    inputs = SelectionInputs(offered=["slow", "quick"], narrowed_to=["quick", "react"])
    assert choose(registry, inputs) == ("quick", StrategySource.AGENT)
    with pytest.raises(StrategyNotSupportedError, match="does not offer 'slow'"):
        select(SelectionInputs(requested="slow", offered=["quick"], narrowed_to=["slow", "quick"]), registry)


def test_the_system_default_is_the_last_resort(registry: StrategyRegistry) -> None:
    assert choose(registry, SelectionInputs(default="quick")) == ("quick", StrategySource.SYSTEM)


def test_without_any_choice_the_error_names_the_strategies(registry: StrategyRegistry) -> None:
    with pytest.raises(StrategyRequiredError) as refused:
        select(SelectionInputs(), registry)
    assert refused.value.remedy == "Set 'strategy' to one of: quick, slow."
    with pytest.raises(StrategyRequiredError) as refused:
        select(SelectionInputs(), StrategyRegistry())
    assert refused.value.remedy.startswith("No strategy is enabled on this server")


def test_an_unknown_strategy_is_refused_with_the_names_that_exist(registry: StrategyRegistry) -> None:
    with pytest.raises(StrategyNotFoundError) as refused:
        select(SelectionInputs(requested="quik"), registry)
    assert refused.value.message == "Strategy not found: 'quik'"
    assert refused.value.full_message == (
        "Strategy not found: 'quik'. Enabled here: 'quick', 'slow'; did you mean 'quick'?"
    )
    assert refused.value.violations[0].description == "is not enabled here. Enabled here: 'quick', 'slow'"


def test_with_no_strategy_enabled_every_name_is_refused() -> None:
    with pytest.raises(StrategyNotFoundError) as refused:
        select(SelectionInputs(requested="quick"), StrategyRegistry())
    assert refused.value.full_message == "Strategy not found: 'quick'. Enabled here: none."


def test_an_agent_without_any_enabled_strategy_is_not_supported(registry: StrategyRegistry) -> None:
    with pytest.raises(StrategyNotSupportedError, match=r"none of the agent's strategies \('react'\) is enabled"):
        select(SelectionInputs(offered=["react"], default="quick"), registry)
    with pytest.raises(StrategyNotSupportedError, match=r"strategies \(none\)"):
        select(SelectionInputs(offered=[], default="quick"), registry)


def test_among_the_agents_strategies_one_that_the_caller_may_use_is_preferred(registry: StrategyRegistry) -> None:
    inputs = SelectionInputs(offered=["slow", "quick"], allowed=frozenset({"quick"}))
    assert choose(registry, inputs) == ("quick", StrategySource.AGENT)
    assert choose(registry, SelectionInputs(offered=["slow"], allowed=frozenset({"quick"}))) == (
        "slow",
        StrategySource.AGENT,
    )


def test_a_name_can_be_registered_once() -> None:
    with pytest.raises(SettingsError, match="Two strategies are named 'quick'"):
        StrategyRegistry([Quick(), Quick()])
