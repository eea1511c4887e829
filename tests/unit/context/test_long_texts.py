"""Long texts are read in threads, so that the event loop takes its turns for others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reasond_server.context import tags
from reasond_server.demo.demo_model import DemoModel
from reasond_server.llm.counting import tokenizers
from reasond_server.llm.model import LONG_TEXT_CHARACTERS
from reasond_server.strategies.bounded_context import BoundedContext, BoundedContextConfig
from reasond_server.strategies.chain_of_thought import ChainOfThought, ChainOfThoughtConfig
from reasond_server.strategies.strategy import Outcome, RunContext
from reasond_server.types import Task
from tests.watched_patterns import watch_patterns

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from reasond_server.strategies.strategy import StrategyEvent


def read_in_windows(text: str) -> AsyncGenerator[StrategyEvent, None]:
    config = BoundedContextConfig(chunk_size=32768, carryover_size=512)
    return BoundedContext().run(
        Task(query="What is it?", material=text), RunContext(config=config, model=DemoModel(context_window=10**6))
    )


def ask_at_once(text: str) -> AsyncGenerator[StrategyEvent, None]:
    model = DemoModel(context_window=10**6)
    return ChainOfThought().run(Task(query=text), RunContext(config=ChainOfThoughtConfig(), model=model))


@pytest.mark.slow
@pytest.mark.parametrize("unit", ["< ", "\uff1c", "word ", "&lt;answer>"])
@pytest.mark.parametrize("ask", [read_in_windows, ask_at_once])
async def test_no_turn_of_the_event_loop_reads_a_long_text(
    ask: Callable[[str], AsyncGenerator[StrategyEvent, None]], unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = unit * (8 * LONG_TEXT_CHARACTERS // len(unit))
    reading = watch_patterns(monkeypatch, tags, tokenizers)
    async with reading.watch_turns():
        events = [event async for event in ask(text)]
    assert isinstance(events[-1], Outcome)
    assert sum(reading.calls) > len(text)
    assert max(reading.turns) <= 4 * LONG_TEXT_CHARACTERS
