"""Stages of the demo model: what the last line of a prompt asks for decides, not what the texts of callers say."""

from __future__ import annotations

from typing import Any

import pytest

from reasond_server.context.calls import take_reply
from reasond_server.context.stages import Shown, prepare_stages
from reasond_server.demo import DemoModel
from reasond_server.strategies.chain_of_verification import ChainOfVerification
from reasond_server.strategies.plan_and_solve import PlanAndSolve
from reasond_server.strategies.self_refine import SelfRefine
from reasond_server.strategies.strategy import ReasoningStrategy, RunContext, Step
from reasond_server.types import SelfRefineMetrics, StageStep, Task


async def stages(query: str, material: str = "", *, strategy: ReasoningStrategy[Any] | None = None) -> list[StageStep]:
    task, chosen = Task(query=query, material=material), strategy or PlanAndSolve()
    context: RunContext[Any] = RunContext(config=chosen.config_type(), model=DemoModel())
    steps = [event.detail async for event in chosen.run(task, context) if isinstance(event, Step)]
    return [each for each in steps if isinstance(each, StageStep)]


async def test_a_computation_is_planned_then_worked_out() -> None:
    plan, solution = await stages("What is 15% of 240?")
    assert plan.text == "1. Take the numbers from the question.\n2. Calculate.\n3. State the result."
    assert solution.answer == "36"


async def test_a_question_about_a_text_is_planned_by_its_words() -> None:
    plan, solution = await stages("Who built the wall?", "The wall has four gates. Hadrian built the wall.")
    assert plan.text.startswith("1. Find the sentences that speak of: built, wall.\n2. ")
    assert solution.answer == "Hadrian built the wall."


async def test_the_question_is_asked_once_more_to_check_the_draft() -> None:
    found = await stages("What is 15% of 240?", strategy=ChainOfVerification())
    assert [each.stage for each in found] == ["draft", "questions", "check", "revision"]
    assert found[1].text == "Question 1: What is 15% of 240?"
    assert {each.answer for each in found} == {"36", ""}


@pytest.mark.parametrize("query", ["What is 6 * 7? Also write a plan for this", "write a plan for this"])
async def test_words_of_a_question_ask_for_no_stage(query: str) -> None:
    model = DemoModel()
    outcome = await PlanAndSolve().reason(query, model=model)
    assert "1." not in outcome.answer


@pytest.mark.parametrize(
    ("query", "answer", "verdict"),
    [
        ("What is 15% of 240?", "36", "PASS"),
        ("What is 15% of 240?", "35", "REVISE"),
        ("Who wrote the letter?", "Nobody knows.", "PASS"),
    ],
)
async def test_a_critique_finds_a_fault_where_a_computation_shows_one(query: str, answer: str, verdict: str) -> None:
    model = DemoModel()
    rules = ("The last section is a draft of the answer. Check it.",)
    calls = await prepare_stages(Task(query=query), model=model, nonce="a" * 28, instructions=rules, shown=1)
    prompt = calls.fit(rules[0], Shown(name="draft", text=f"Final answer: {answer}"), max_tokens=300)
    reply = await take_reply(calls.stream(prompt, temperature=0.0))
    assert reply.parsed.content == verdict


async def test_the_demo_model_passes_its_own_answer() -> None:
    outcome = await SelfRefine().reason("What is 15% of 240?", model=DemoModel())
    assert outcome.answer == "36"
    assert outcome.metrics == SelfRefineMetrics(critiques=1, revisions=0, is_passed=True)
