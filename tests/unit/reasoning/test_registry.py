from importlib.metadata import EntryPoint

import pytest

from reasond_server.errors.base import SettingsError
from reasond_server.reasoning.registry import STRATEGIES, discover


def point(name: str, value: str) -> EntryPoint:
    return EntryPoint(name=name, value=value, group=STRATEGIES.group)


def test_the_built_in_strategies_are_found_like_any_other() -> None:
    assert discover(["chain_of_thought", "bounded_context"]).names == ["bounded_context", "chain_of_thought"]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("builtins:dict", "gives no strategy: dict is no ReasoningStrategy"),
        ("tests.unit.reasoning.conftest:Quick", "gives a strategy named 'quick'"),
    ],
)
def test_something_else_than_the_named_strategy_is_refused(value: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        discover(["other"], installed=[point("other", value)])
