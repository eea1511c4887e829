"""Self-refine: when it stops, which answer it gives, and what happens where critique, revision or budget fail."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import ContextExhaustedError, ModelFailedError
from reasond_server.llm.metered_model import MeteredModel
from reasond_server.llm.model import ModelFinish
from reasond_server.strategies.self_refine import SelfRefine, SelfRefineConfig, read_verdict
from reasond_server.strategies.strategy import Outcome, RunContext, Step, Wrote
from reasond_server.testing import FunctionModel, Reply
from reasond_server.types import Budget, FinishReason, SelfRefineMetrics, StageStep, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

NONCE = "a" * 28
QUERY = "What is six times seven?"
PASS = "Nothing.\n<answer>PASS</answer>"
REVISE = "The sum is wrong.\n<answer>REVISE</answer>"
BEFORE = "the answer is that of before."


async def run(
    *replies: str | Reply, budget: Budget | None = None, window: int | None = None, **config: Any
) -> tuple[FunctionModel, Sequence[StageStep], Outcome]:
    given = iter(replies)
    model = FunctionModel(lambda _: next(given), context_window=window)
    task = Task(query=QUERY, budget=budget or Budget())
    metered = MeteredModel(model=model, budget=task.budget)
    context = RunContext(config=SelfRefineConfig.model_validate(config), model=metered, new_nonce=lambda: NONCE)
    events = [event async for event in SelfRefine().run(task, context)]
    steps = [event.detail for event in events if isinstance(event, Step)]
    outcome = events[-1]
    assert isinstance(outcome, Outcome)
    assert any(isinstance(event, Wrote) for event in events)
    return model, [step for step in steps if isinstance(step, StageStep)], outcome


def draft(answer: str) -> str:
    return f"Hm. <answer>{answer}</answer>"


async def test_it_stops_when_the_critique_finds_nothing() -> None:
    model, steps, outcome = await run(draft("42"), PASS)
    assert (outcome.answer, outcome.finish_reason, outcome.warnings) == ("42", FinishReason.ANSWERED, ())
    assert outcome.metrics == SelfRefineMetrics(critiques=1, revisions=0, is_passed=True)
    assert [(step.stage, step.text, step.answer) for step in steps] == [
        ("draft", "Hm.", "42"),
        ("critique", "Nothing.", ""),
    ]
    assert [request.temperature for request in model.requests] == [0.7, 0.0]


async def test_a_revision_sees_draft_and_critique_and_is_criticised_in_its_turn() -> None:
    model, steps, outcome = await run(draft("41"), REVISE, draft("42"), PASS)
    assert (outcome.answer, outcome.finish_reason) == ("42", FinishReason.ANSWERED)
    assert [step.stage for step in steps] == ["draft", "critique", "revision", "critique"]
    revising = model.requests[2].messages[-1].content
    assert "Final answer: 41" in revising
    assert "The sum is wrong." in revising
    again = model.requests[3].messages[-1].content
    assert "Final answer: 42" in again
    assert "41" not in again
    assert len({request.messages[0] for request in model.requests}) == 1


async def test_the_last_revision_is_given_uncriticised_and_it_is_told() -> None:
    model, _, outcome = await run(draft("40"), REVISE, draft("41"), REVISE, draft("42"), max_rounds=2)
    assert (outcome.answer, outcome.finish_reason) == ("42", FinishReason.MAX_ITERATIONS)
    assert outcome.warnings == ("The last of 2 revisions was not criticised any more (max_rounds).",)
    assert outcome.metrics == SelfRefineMetrics(critiques=2, revisions=2, is_passed=False)
    assert len(model.requests) == 5


@pytest.mark.parametrize("answers", [["42", "42.0"], ["41", "42", "41"]])
async def test_an_answer_that_was_there_before_ends_the_run(answers: list[str]) -> None:
    first, *others = answers
    rounds = [reply for answer in others for reply in (REVISE, draft(answer))]
    _, _, outcome = await run(draft(first), *rounds)
    assert (outcome.answer, outcome.finish_reason) == (answers[-1], FinishReason.ANSWERED)
    assert outcome.metrics == SelfRefineMetrics(
        critiques=len(others), revisions=len(others), is_passed=False, is_repeated=True
    )
    assert "gave an answer that was there before" in outcome.warnings[0]


@pytest.mark.parametrize(
    ("critique", "told"),
    [
        ("", "has no verdict that can be read"),
        ("It is fine, pass it on", "has no verdict that can be read"),
        ("<answer>PASS or REVISE</answer>", "has no verdict that can be read"),
        ("<answer>REVISE</answer>", "names no fault"),
        (Reply(text="The sum is", finish=ModelFinish.LENGTH), "was cut off before its verdict"),
        (Reply(text="The sum is", finish=ModelFinish.CONTENT_FILTER), "was withheld by the provider"),
    ],
)
async def test_a_critique_without_a_verdict_leaves_the_draft_and_it_is_told(critique: str | Reply, told: str) -> None:
    model, _, outcome = await run(draft("42"), critique)
    assert (outcome.answer, outcome.finish_reason) == ("42", FinishReason.ANSWERED)
    assert outcome.warnings == (f"Critique 1 {told}: {BEFORE}",)
    assert outcome.metrics == SelfRefineMetrics(critiques=1, revisions=0, is_passed=False)
    assert len(model.requests) == 2


@pytest.mark.parametrize(
    "revision",
    [
        "",
        Reply(text="<answer>4", finish=ModelFinish.LENGTH),
        Reply(text="<answer>4", finish=ModelFinish.CONTENT_FILTER),
    ],
)
async def test_a_revision_without_a_whole_answer_leaves_the_one_before(revision: str | Reply) -> None:
    _, steps, outcome = await run(draft("42"), REVISE, revision)
    assert (outcome.answer, outcome.finish_reason) == ("42", FinishReason.ANSWERED)
    assert outcome.warnings == (f"Revision 1 has no whole answer: {BEFORE}",)
    assert steps[-1].stage == "revision"


@pytest.mark.parametrize("place", [1, 2])
async def test_a_call_that_fails_after_the_draft_leaves_its_answer(place: int) -> None:
    replies: list[str | Reply] = [draft("42"), REVISE, draft("41")]
    replies[place] = Reply(error=ModelFailedError("The model broke off"), error_after=0)
    _, _, outcome = await run(*replies)
    assert (outcome.answer, outcome.finish_reason) == ("42", FinishReason.ANSWERED)
    assert outcome.warnings == (f"A call after the draft failed (MODEL_FAILED): {BEFORE}",)


async def test_a_draft_that_fails_fails_the_run() -> None:
    with pytest.raises(ModelFailedError):
        await run(Reply(error=ModelFailedError("The model broke off"), error_after=0))


async def test_a_draft_without_an_answer_is_not_criticised() -> None:
    model, _, outcome = await run(Reply(text="<answer>4", finish=ModelFinish.LENGTH))
    assert (outcome.answer, outcome.finish_reason, len(model.requests)) == ("4", FinishReason.TRUNCATED, 1)


@pytest.mark.parametrize("calls", [1, 2, 3, 4])
async def test_a_budget_that_ends_early_leaves_the_last_whole_answer(calls: int) -> None:
    budget = Budget(max_model_calls=calls)
    replies = [draft("40"), REVISE, draft("41"), REVISE, draft("42")]
    model, _, outcome = await run(*replies, budget=budget)
    assert len(model.requests) == calls
    assert (outcome.answer, outcome.finish_reason) == ("40" if calls < 3 else "41", FinishReason.BUDGET_EXHAUSTED)
    assert outcome.warnings == ("The budget ended before the answer was refined to the end.",)


async def test_a_budget_without_room_for_the_draft_is_refused() -> None:
    with pytest.raises(TokenBudgetExhaustedError):
        await run(draft("42"), budget=Budget(max_total_tokens=20))


async def test_long_drafts_and_critiques_stay_in_the_window() -> None:
    long = "word " * 600
    replies = [long + draft("41"), "word " * 300 + REVISE, draft("42"), PASS]
    model, _, outcome = await run(*replies, window=1500)
    assert outcome.answer == "42"
    for request in model.requests:
        assert model.counter.count_prompt(request.messages) + request.max_tokens <= 1500
    assert any("Only the end was shown" in warning for warning in outcome.warnings)
    assert "Final answer: 41" in model.requests[1].messages[-1].content


async def test_a_window_without_room_for_draft_and_critique_is_refused_before_a_call() -> None:
    model = FunctionModel(lambda _: draft("42"), context_window=500)
    with pytest.raises(ContextExhaustedError):
        await SelfRefine().reason(QUERY, model=model)
    assert not model.requests


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("PASS", True),
        ("pass.", True),
        ("**REVISE**", False),
        ("The sum is wrong.\nRevise", False),
        ("PASS\nbut look again", None),
        ("passed", None),
        ("PASS REVISE", None),
        ("", None),
        (" \n", None),
    ],
)
def test_a_verdict_is_one_word_on_the_last_line(text: str, verdict: bool | None) -> None:  # noqa: FBT001 - a case
    assert read_verdict(text) is verdict
