from importlib.metadata import EntryPoint

import pytest

from reasond_server.errors import SettingsError
from reasond_server.reasoning.registry import ENTRY_POINT_GROUP, discover


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=value, group=ENTRY_POINT_GROUP)


def test_the_built_in_strategies_are_found_like_any_other() -> None:
    assert discover(["chain_of_thought", "bounded_context"]).names == ["bounded_context", "chain_of_thought"]


def test_nothing_is_loaded_that_is_not_enabled() -> None:
    assert discover([], installed=[point("broken", "nowhere:Nothing")]).names == []


def test_an_enabled_strategy_that_is_not_installed_names_the_installed_ones() -> None:
    installed = [point("quick", "tests.unit.reasoning.conftest:Quick")]
    with pytest.raises(SettingsError) as refused:
        discover(["quik"], installed=installed)
    assert refused.value.full_message == (
        "[reasoning] enabled_strategies names 'quik', which is not installed; did you mean 'quick'?. "
        "Installed are: quick. Install its package or remove the name."
    )


@pytest.mark.parametrize("value", ["nowhere:Nothing", "json:nothing", "json:loads"])
def test_a_strategy_that_cannot_be_loaded_is_named(value: str) -> None:
    with pytest.raises(SettingsError, match=f"Strategy 'broken' \\({value}\\) could not be loaded"):
        discover(["broken"], installed=[point("broken", value)])


@pytest.mark.parametrize("value", ["builtins:dict", "tests.unit.reasoning.conftest:Quick"])
def test_something_else_than_the_named_strategy_is_refused(value: str) -> None:
    with pytest.raises(SettingsError, match="does not give a ReasoningStrategy of that name"):
        discover(["other"], installed=[point("other", value)])
