"""Every registered strategy passes the conformance suite that authors of strategies use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.llm.model import Role
from reasond_server.reasoning.registry import STRATEGIES
from reasond_server.testing import FunctionPrograms, Reply, StrategyConformance
from reasond_server.tools.calculator import Calculator
from reasond_server.tools.execution import Tools
from reasond_server.tools.programs import ProgramResult
from reasond_server.types import ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.llm.model import ChatRequest
    from reasond_server.strategies.strategy import ReasoningStrategy

MATERIAL = "The wall has four gates.\n\nThe river runs north of it.\n\n" * 30
REGISTERED = sorted(point.name for point in STRATEGIES.find_installed() if "reasond_server." in point.value)
CONFIGS: Mapping[str, list[dict[str, Any]]] = {
    "bounded_context": [{"chunk_size": 1024, "carryover_size": 512}],
    "chain_of_verification": [{"max_questions": 2}],
    "program_of_thought": [{"max_attempts": 2}],
    "react": [{"max_iterations": 3}],
    "tree_of_thought": [{"max_depth": 2, "branching": 2}],
    "self_consistency": [{"samples": 3}, {"samples": 12, "confidence": 0.6}],
    "self_aggregation": [{"chains": 3, "group": 2, "rounds": 2}],
    "self_refine": [{"max_rounds": 2}],
    "best_of_n": [
        {"samples": 3},
        {"samples": 2, "min_score": 0.5},
        {"samples": 3, "judge": "tournament"},
        {"verifier": "program", "check_program": "pass"},
    ],
}
"""Small runs, so that every place in them is looked at; a strategy that is not named runs with its defaults."""

PROGRAMS = FunctionPrograms(lambda _: "42")

HEAVY = {"stays_within_the_window", "survives_hostile_replies"}
CHECKS = [pytest.param(name, marks=[pytest.mark.slow] * (name in HEAVY)) for name in StrategyConformance.CHECKS]


def strategy_of(name: str) -> ReasoningStrategy[Any]:
    (strategy,) = STRATEGIES.load([name])
    return strategy


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", REGISTERED)
async def test_a_registered_strategy_conforms(name: str, check: str) -> None:
    for place, config in enumerate(CONFIGS.get(name, [{}])):
        materials = ["", MATERIAL]
        if check == "stays_within_the_window":
            # This check uses long texts of its own in windows of several sizes.
            materials.pop()
        elif check == "survives_hostile_replies" and place:
            # What replies are read to does not depend on it.
            materials.pop(0)
        for material in materials:
            conformance = StrategyConformance(strategy_of(name), config=config, material=material, programs=PROGRAMS)
            if reason := await conformance.check(check):
                pytest.skip(reason)


@pytest.mark.parametrize("name", REGISTERED)
async def test_reason_takes_a_query_alone_as_fr_1_2_has_it_and_says_which_model_answered(name: str) -> None:
    outcome = await strategy_of(name).reason("What is 7 times 6?", programs=PROGRAMS)
    assert "42" in outcome.answer
    assert any("demo model" in warning for warning in outcome.warnings)


def calls_natively(request: ChatRequest) -> str | Reply:
    """Call the calculator twice, then answer; answer at once if calls are not allowed."""
    done = sum(message.role is Role.TOOL for message in request.messages)
    if done == 2 or request.tool_choice == "none":
        return "<answer>42</answer>"
    call = ToolCall(call_id=f"x{done}", name="calculator", arguments_json=f'{{"expression": "6 * {done}"}}')
    return Reply(text="Let me see.", tool_calls=(call,))


def write_programs(request: ChatRequest) -> str:
    """Write a program that fails, then one that prints the answer."""
    is_second = "Find the mistake" in request.messages[-1].content
    return f"So be it.\n```python\nprint({'6 * 7' if is_second else '6 * '})\n```"


@pytest.mark.parametrize("check", CHECKS)
async def test_program_of_thought_with_programs_that_fail_first_conforms(check: str) -> None:
    programs = FunctionPrograms(lambda source: "42" if "6 * 7" in source else ProgramResult(output="", exit_code=1))
    conformance = StrategyConformance(strategy_of("program_of_thought"), reply=write_programs, programs=programs)
    assert not await conformance.check(check)


def calls_in_text(request: ChatRequest) -> str:
    """Do the same with the text protocol."""
    done = sum(message.role is Role.ASSISTANT for message in request.messages)
    if done == 2 or "No tools can be called" in request.messages[-1].content:
        return "<answer>42</answer>"
    return f'Let me see. <action>{{"tool": "calculator", "arguments": {{"expression": "6 * {done}"}}}}</action>'


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("is_native", [True, False])
async def test_react_with_tools_conforms(is_native: bool, check: str) -> None:  # noqa: FBT001 - a case
    conformance = StrategyConformance(
        strategy_of("react"),
        config={"max_iterations": 4, "allow_tool_use": True},
        material="The wall has four gates.",
        reply=calls_natively if is_native else calls_in_text,
        tools=Tools(tools=[Calculator()]),
        has_native_tools=is_native,
    )
    assert not await conformance.check(check)
