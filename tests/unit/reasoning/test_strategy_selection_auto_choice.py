"""The rule `auto`: what does not fit the model's window is read by bounded_context, where the operator enabled it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.agents.cards import parse_card
from reasond_server.agents.directory import AgentDirectory
from reasond_server.errors.request import InvalidConfigError, StrategyNotFoundError, StrategyRequiredError
from reasond_server.reasoning.configuration import StrategyConfiguration
from reasond_server.reasoning.registry import StrategyRegistry
from reasond_server.reasoning.strategy_selection import Chooser, OfferedModels, measure_fit
from reasond_server.storage.sqlite_file import open_memory
from reasond_server.storage.transactions import MemoryTransactions
from reasond_server.strategies.bounded_context import BoundedContext
from reasond_server.strategies.chain_of_thought import ChainOfThought
from reasond_server.testing import FunctionModel, ScriptedModel
from reasond_server.types import HistoryMessage, Principal, Speaker, StrategySource, Task
from reasond_server.types.tasks import MeasuredChoice, TaskForm

if TYPE_CHECKING:
    from reasond_server.reasoning.strategy_selection import Selection

ALICE = Principal(subject="alice", tenant="acme", permissions=frozenset({"reasoning:execute"}))
LONG = "The wall has four gates. " * 2000
CARDS = {
    "reader": '{"id": "reader", "capabilities": ["reasoning.strategy.chain_of_thought", '
    '"reasoning.strategy.bounded_context"]}',
    "thinker": '{"id": "thinker", "capabilities": ["reasoning.strategy.chain_of_thought"]}',
}


async def choose(
    task: Task, *, caller: Principal = ALICE, default: str = "chain_of_thought", window: int | None = 8192, **more: Any
) -> Selection:
    registry = StrategyRegistry(more.get("strategies", [BoundedContext(), ChainOfThought()]))
    agents = AgentDirectory(
        rows=MemoryTransactions(open_memory()), max_agents=9, now=lambda: datetime(2026, 1, 1, tzinfo=UTC)
    )
    for name, card in CARDS.items():
        await agents.register(tenant="acme", agent_id=name, parsed=parse_card(card, max_bytes=1000))
    chooser = Chooser(
        registry=registry,
        configuration=StrategyConfiguration(registry=registry, tables={}),
        directory=agents,
        models=OfferedModels(FunctionModel(lambda _: "", context_window=window)),
        default_strategy=default,
        is_auto_enabled=more.get("is_auto_enabled", True),
        within_s=120,
        choices=more.get("choices", {}),
    )
    choice = await chooser.choose(caller, task)
    return (await chooser.apply_rule(caller, task, choice)).selection


def describe(selection: Selection) -> tuple[str, StrategySource]:
    return selection.strategy.name, selection.source


async def test_what_does_not_fit_is_read_by_bounded_context_instead_of_the_default() -> None:
    selection = await choose(Task(query="How many gates?", material=LONG))
    assert describe(selection) == ("bounded_context", StrategySource.AUTO)
    (warning,) = selection.warnings
    assert warning.startswith("The strategy 'auto' chose 'bounded_context': the task has ")
    assert warning.endswith(" tokens, and the model's window of 8192 has room for 5632.")


async def test_what_fits_gets_the_default_without_a_word() -> None:
    selection = await choose(Task(query="How many gates?", material="Four."))
    assert describe(selection) == ("chain_of_thought", StrategySource.SYSTEM)
    assert selection.warnings == ()


async def test_who_asks_for_the_rule_is_told_what_it_chose() -> None:
    selection = await choose(Task(query="How many gates?", strategy="auto"))
    assert describe(selection) == ("chain_of_thought", StrategySource.AUTO)
    assert "chose 'chain_of_thought': the task has" in selection.warnings[0]
    selection = await choose(Task(query="How many gates?", strategy="auto"), window=None)
    assert selection.warnings == (
        "The strategy 'auto' chose 'chain_of_thought': the window of the model is not known.",
    )
    assert describe(await choose(Task(query="q", material=LONG, strategy="auto")))[0] == "bounded_context"


async def test_it_is_chosen_only_where_the_operator_enabled_it() -> None:
    selection = await choose(Task(query="How many gates?", material=LONG), is_auto_enabled=False)
    assert describe(selection) == ("chain_of_thought", StrategySource.SYSTEM)
    with pytest.raises(StrategyNotFoundError, match="Strategy not found: 'auto'"):
        await choose(Task(query="q", strategy="auto"), is_auto_enabled=False)


async def test_a_strategy_that_was_named_stays_and_so_does_one_with_parameters() -> None:
    named = await choose(Task(query="q", material=LONG, strategy="chain_of_thought"))
    assert describe(named) == ("chain_of_thought", StrategySource.REQUEST)
    with_parameters = await choose(Task(query="q", material=LONG, config={"max_tokens": 300}))
    assert describe(with_parameters) == ("chain_of_thought", StrategySource.SYSTEM)
    with pytest.raises(InvalidConfigError, match="must be empty with the strategy 'auto'"):
        await choose(Task(query="q", strategy="auto", config={"max_tokens": 300}))


async def test_agents_and_permissions_bound_the_rule() -> None:
    of_agent = Task(query="q", material=LONG, agent="reader")
    assert describe(await choose(of_agent)) == ("chain_of_thought", StrategySource.AGENT)
    asked = Task(query="q", material=LONG, agent="reader", strategy="auto")
    assert describe(await choose(asked)) == ("bounded_context", StrategySource.AUTO)
    asked = Task(query="q", material=LONG, agent="thinker", strategy="auto")
    assert describe(await choose(asked)) == ("chain_of_thought", StrategySource.AUTO)
    thinker = Principal(subject="bob", tenant="acme", permissions=frozenset({"reasoning:execute:chain_of_thought"}))
    bound = await choose(Task(query="q", material=LONG), caller=thinker)
    assert describe(bound) == ("chain_of_thought", StrategySource.SYSTEM)


async def test_without_a_default_or_a_reader_there_is_nothing_to_choose() -> None:
    with pytest.raises(StrategyRequiredError):
        await choose(Task(query="q", strategy="auto"), default="")
    alone = await choose(Task(query="q", material=LONG), strategies=[ChainOfThought()])
    assert describe(alone) == ("chain_of_thought", StrategySource.SYSTEM)


async def test_instructions_and_history_take_room_too() -> None:
    said = [HistoryMessage(role=Speaker.USER, text=LONG), HistoryMessage(role=Speaker.ASSISTANT, text="So.")]
    for task in (Task(query="q", system=LONG), Task(query="q", history=said)):
        assert describe(await choose(task)) == ("bounded_context", StrategySource.AUTO)


async def test_the_reply_keeps_a_quarter_of_a_small_window_and_4096_tokens_of_a_large_one() -> None:
    for window, room in ((8192, 8192 - 2048 - 512), (100_000, 100_000 - 4096 - 512)):
        model = ScriptedModel([], context_window=window)
        words = room - model.counter.count_prompt([]) - 200
        near = await measure_fit(Task(query="q", material="gate " * words), model)
        assert near.fits
        assert near.reason.endswith(f"has room for {room}")
        over = await measure_fit(Task(query="q", material="gate " * (room + 10)), model)
        assert not over.fits


async def test_a_text_that_cannot_fit_is_not_counted() -> None:
    fit = await measure_fit(Task(query="q", material="x" * 200_000), ScriptedModel([], context_window=4096))
    assert not fit.fits
    assert fit.reason == "the task has 200001 bytes, and the model's window 4096 tokens"


MEASURED = {
    TaskForm.QUESTION: MeasuredChoice(strategy="chain_of_thought", config={"max_tokens": 321}, why="90% of 40 right"),
    TaskForm.MATERIAL: MeasuredChoice(strategy="bounded_context", config={}, why="80% of 40 right"),
    TaskForm.SCHEMA: MeasuredChoice(strategy="react", config={}, why="70% of 40 right"),
}


async def test_what_was_measured_is_taken_for_tasks_that_fit_and_told_with_its_figures() -> None:
    selection = await choose(Task(query="How many gates?"), default="bounded_context", choices=MEASURED)
    assert describe(selection) == ("chain_of_thought", StrategySource.AUTO)
    assert selection.warnings == (
        "The strategy 'auto' chose 'chain_of_thought': measured for tasks of this form: 90% of 40 right.",
    )
    selection = await choose(Task(query="How many gates?", material="Four."), choices=MEASURED)
    assert describe(selection) == ("bounded_context", StrategySource.AUTO)


async def test_a_measured_strategy_that_is_not_enabled_or_not_allowed_is_not_taken() -> None:
    selection = await choose(Task(query="q", answer_schema={"type": "object"}), choices=MEASURED)
    assert describe(selection) == ("chain_of_thought", StrategySource.SYSTEM)
    limited = Principal(subject="bob", tenant="acme", permissions=frozenset({"reasoning:execute:chain_of_thought"}))
    selection = await choose(Task(query="q", material="Four."), choices=MEASURED, caller=limited)
    assert describe(selection) == ("chain_of_thought", StrategySource.SYSTEM)


async def test_what_does_not_fit_is_read_whatever_was_measured() -> None:
    choices = {TaskForm.MATERIAL: MEASURED[TaskForm.QUESTION]}
    selection = await choose(Task(query="How many gates?", material=LONG), choices=choices)
    assert describe(selection) == ("bounded_context", StrategySource.AUTO)
