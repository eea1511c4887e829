"""Direct: the question as it is, and each way in which the one call can end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from reasond_server.errors.model import ContextExhaustedError
from reasond_server.llm.model import Message, ModelFinish, Role
from reasond_server.strategies.direct import Direct, DirectConfig
from reasond_server.strategies.strategy import Outcome, RunContext, Step, StrategyEvent, Wrote
from reasond_server.testing import Reply, ScriptedModel
from reasond_server.types import FinishReason, Task, Thought

if TYPE_CHECKING:
    from reasond_server.llm.model import ChatModel

NONCE = "qzkvhwbnmcjtrxplaoysdgeufiqh"


async def run(model: ChatModel, task: Task, **config: object) -> list[StrategyEvent]:
    context = RunContext(config=DirectConfig.model_validate(config), model=model, new_nonce=lambda: NONCE)
    return [event async for event in Direct().run(task, context)]


async def test_nothing_is_sent_but_the_question_and_the_material() -> None:
    with ScriptedModel(["Four.", "Five."]) as model:
        await run(model, Task(query="How many gates?"))
        await run(model, Task(query="How many gates?", material="The wall has four gates."), temperature=0.5)
    first, second = model.requests
    assert first.messages == (Message(role=Role.USER, content="How many gates?"),)
    assert second.messages == (Message(role=Role.USER, content="How many gates?\n\nThe wall has four gates."),)
    assert (first.temperature, second.temperature, first.stop) == (0.0, 0.5, ())


async def test_the_whole_reply_is_the_answer_and_hidden_reasoning_is_not() -> None:
    with ScriptedModel(
        [Reply(text="6 * 7 = 42.\n\nThe answer is <answer>42</answer>.", reasoning="Let me see.")]
    ) as model:
        *wrote, step, outcome = await run(model, Task(query="6 times 7?"))
    assert "".join(event.text for event in wrote if isinstance(event, Wrote)) == outcome_text(outcome)
    assert outcome_text(outcome) == "6 * 7 = 42.\n\nThe answer is <answer>42</answer>."
    assert isinstance(step, Step)
    assert step.detail == Thought(text="Let me see.", answer=outcome_text(outcome))
    assert step.answer_found


def outcome_text(outcome: StrategyEvent) -> str:
    assert isinstance(outcome, Outcome)
    return outcome.answer


@pytest.mark.parametrize(
    ("reply", "finish"),
    [
        (Reply(text="Four."), FinishReason.ANSWERED),
        (Reply(text="Four", finish=ModelFinish.LENGTH), FinishReason.TRUNCATED),
        (Reply(text="Four", finish=ModelFinish.CONTENT_FILTER), FinishReason.CONTENT_FILTERED),
        (Reply(text=" "), FinishReason.TRUNCATED),
    ],
)
async def test_each_end_of_the_call_is_told(reply: Reply, finish: FinishReason) -> None:
    with ScriptedModel([reply]) as model:
        *_, outcome = await run(model, Task(query="How many gates?"))
    assert isinstance(outcome, Outcome)
    assert outcome.finish_reason is finish


async def test_a_question_that_does_not_fit_is_refused_before_anything_is_spent() -> None:
    with ScriptedModel([], context_window=150) as model, pytest.raises(ContextExhaustedError):
        await run(model, Task(query="word " * 200))
