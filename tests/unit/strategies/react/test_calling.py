"""The calls of one run by themselves; what the run makes of them stands in test_strategy.py."""

from __future__ import annotations

import pytest

from reasond_server.errors import TokenBudgetExhaustedError
from reasond_server.strategies.react.calling import Calling
from reasond_server.tools.calculator import Calculator
from reasond_server.tools.source import Tools
from reasond_server.types import FinishReason, ToolCall


def calling(*, most: int = 3, is_budgets: bool = False, allowed: int | None = None) -> Calling:
    toolbox = Tools(tools=[Calculator()]).toolbox(max_calls=allowed)
    return Calling(tools=toolbox, most=most, is_budgets=is_budgets)


def call(expression: str, call_id: str = "x") -> ToolCall:
    return ToolCall(call_id=call_id, name="calculator", arguments_json=f'{{"expression": "{expression}"}}')


async def test_the_same_call_is_told_the_second_time_and_refused_the_third() -> None:
    made = calling(most=9)
    notes = []
    for _ in range(3):
        result, note = await made.make(made.minted(call("1 + 1")))
        notes.append(note)
    assert notes[0] == notes[2] == ""
    assert "as c1" in notes[1]
    assert result.is_error
    assert (made.made, made.failed) == (2, 1)
    assert made.stop is not None
    assert made.stop.finish_reason is FinishReason.MAX_ITERATIONS


@pytest.mark.parametrize(
    ("is_budgets", "reason", "limit"),
    [
        (False, FinishReason.MAX_ITERATIONS, " max_tool_calls"),
        (True, FinishReason.BUDGET_EXHAUSTED, "budget.max_tool_calls"),
    ],
)
async def test_no_more_calls_are_made_than_allowed(*, is_budgets: bool, reason: FinishReason, limit: str) -> None:
    made = calling(most=1, is_budgets=is_budgets)
    assert made.stop is None
    first, _ = await made.make(made.minted(call("1 + 1")))
    second, _ = await made.make(made.minted(call("1 + 2")))
    assert (first.is_error, second.is_error, made.made) == (False, True, 1)
    assert made.stop is not None
    assert made.stop.finish_reason is reason
    assert limit in made.stop.warning


async def test_a_toolbox_that_allows_no_more_ends_the_calls() -> None:
    made = calling(allowed=1)
    await made.make(made.minted(call("1 + 1")))
    result, _ = await made.make(made.minted(call("1 + 2")))
    assert result.is_error
    assert made.stop is not None
    assert made.stop.finish_reason is FinishReason.BUDGET_EXHAUSTED
    assert made.stop.warning
    with pytest.raises(TokenBudgetExhaustedError):
        await made.tools.call(call("1 + 3"))


def test_ids_are_ours_and_texts_can_be_encoded() -> None:
    made = calling()
    assert made.minted(call("1", call_id="")).call_id == "c1"
    again = made.minted(ToolCall(call_id="c1", name="n\ud800" + "x" * 500, arguments_json="{}"))
    assert (again.call_id, len(again.name), again.name[:2]) == ("c2", 128, "n?")
