from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from reasond_server.agents.cards import parse_card
from reasond_server.agents.directory import AgentDirectory
from reasond_server.errors.access import PermissionMissingError
from reasond_server.errors.request import (
    AgentNotFoundError,
    InvalidConfigError,
    StrategyNotFoundError,
    StrategyRequiredError,
)
from reasond_server.reasoning.configuration import StrategyConfiguration
from reasond_server.reasoning.registry import StrategyRegistry
from reasond_server.reasoning.strategy_selection import NO_STRATEGY_NAMED, Chooser, OfferedModels, preface_model
from reasond_server.storage.sqlite_file import open_memory
from reasond_server.storage.transactions import MemoryTransactions
from reasond_server.strategies.strategy import StrategyConfig
from reasond_server.testing import ScriptedModel
from reasond_server.types import Principal, StrategySource, Task
from tests.unit.reasoning.conftest import Quick, Slow

if TYPE_CHECKING:
    from reasond_server.reasoning.strategy_selection import ChosenStrategy

ALICE = Principal(subject="alice", tenant="acme", permissions=frozenset({"reasoning:execute"}))
CARD = '{"id": "a1", "capabilities": ["reasoning.strategy.slow"], "strategy_config": {"slow": {"max_tokens": 7}}}'


class ArmedConfig(StrategyConfig):
    is_armed: bool = True

    @property
    def uses_tools(self) -> bool:
        return self.is_armed


class Armed(Quick):
    name: ClassVar[str] = "armed"
    config_type: ClassVar[Any] = ArmedConfig


async def directory() -> AgentDirectory:
    agents = AgentDirectory(
        rows=MemoryTransactions(open_memory()), max_agents=9, now=lambda: datetime(2026, 1, 1, tzinfo=UTC)
    )
    await agents.register(tenant="acme", agent_id="a1", parsed=parse_card(CARD, max_bytes=1000))
    return agents


async def choose_all(task: Task, *, caller: Principal = ALICE, default: str = "") -> ChosenStrategy:
    registry = StrategyRegistry([Quick(), Slow(), Armed()])
    chooser = Chooser(
        registry=registry,
        configuration=StrategyConfiguration(registry=registry, tables={"slow": {"default_temperature": 1.5}}),
        directory=await directory(),
        models=OfferedModels(ScriptedModel([])),
        default_strategy=default,
        within_s=120,
    )
    choice = await chooser.choose(caller, task)
    assert choice.shown_config == choice.config.model_dump(mode="json")
    return choice


async def choose(task: Task, *, caller: Principal = ALICE, default: str = "") -> tuple[str, StrategySource, Any]:
    choice = await choose_all(task, caller=caller, default=default)
    return choice.selection.strategy.name, choice.selection.source, choice.shown_config


async def test_the_request_wins_over_the_operator_and_nobody_is_no_choice() -> None:
    name, source, _ = await choose(Task(query="why?", strategy="quick"), default="slow")
    assert (name, source) == ("quick", StrategySource.REQUEST)
    name, source, _ = await choose(Task(query="why?"), default="slow")
    assert (name, source) == ("slow", StrategySource.SYSTEM)
    with pytest.raises(StrategyRequiredError):
        await choose(Task(query="why?"))
    with pytest.raises(StrategyNotFoundError, match="Strategy not found: 'quik'") as refused:
        await choose(Task(query="why?", strategy="quik"))
    assert "did you mean 'quick'?" in refused.value.remedy


async def test_an_agent_brings_its_strategy_and_parameters_of_its_own() -> None:
    name, source, shown = await choose(Task(query="why?", agent="a1", config={"shout": True}))
    assert (name, source) == ("slow", StrategySource.AGENT)
    assert shown == {"max_tokens": 7, "temperature": 1.5, "shout": True}
    with pytest.raises(AgentNotFoundError):
        await choose(Task(query="why?", agent="a2"))


async def test_capabilities_that_name_no_strategy_narrow_nothing() -> None:
    name, _, _ = await choose(Task(query="why?", agent_capabilities=["chess"]), default="quick")
    assert name == "quick"


async def test_capabilities_that_name_no_strategy_are_told_of() -> None:
    chosen = await choose_all(Task(query="why?", agent_capabilities=["foo"]), default="quick")
    assert chosen.selection.warnings == (NO_STRATEGY_NAMED,)
    told = await choose_all(Task(query="why?", agent_capabilities=["foo", "reasoning.strategy.quick"]))
    assert told.selection.warnings == ()


async def test_what_the_caller_may_not_use_is_refused() -> None:
    bound = Principal(subject="bob", tenant="acme", permissions=frozenset({"reasoning:execute:slow"}))
    assert (await choose(Task(query="why?", strategy="slow"), caller=bound))[0] == "slow"
    with pytest.raises(PermissionMissingError):
        await choose(Task(query="why?", strategy="quick"), caller=bound)


async def test_tools_need_their_permission_only_where_the_configuration_uses_them() -> None:
    with pytest.raises(PermissionMissingError, match="reasoning:tools"):
        await choose(Task(query="why?", strategy="armed"))
    assert (await choose(Task(query="why?", strategy="armed", config={"is_armed": False})))[0] == "armed"


async def test_a_wrong_parameter_is_refused_with_the_bound() -> None:
    with pytest.raises(InvalidConfigError, match="max_tokens must be at least 1, got 0"):
        await choose(Task(query="why?", strategy="quick", config={"max_tokens": 0}))


def test_a_task_that_says_nothing_before_a_prompt_has_the_model_as_it_is() -> None:
    model = ScriptedModel(["42"])
    assert preface_model(model, Task(query="What?", stop=("\n",), echo_json="{}", model="small")) is model
    assert preface_model(model, Task(query="What?", system="Be brief.")) is not model
    assert preface_model(model, Task(query="What?", answer_schema={})) is not model
