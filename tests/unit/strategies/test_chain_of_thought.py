"""Chain of thought: one call, and each way in which it can end."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from reasond_server.errors.model import ContextExhaustedError, ModelFailedError
from reasond_server.llm.counting import ByteCounter
from reasond_server.llm.model import ModelFinish
from reasond_server.strategies.chain_of_thought import ChainOfThought, ChainOfThoughtConfig
from reasond_server.strategies.strategy import Outcome, RunContext, Step, StrategyEvent, Wrote
from reasond_server.testing import FunctionModel, Reply, ScriptedModel
from reasond_server.types import ChainOfThoughtMetrics, FinishReason, Task, Thought

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import ChatModel, ChatRequest, Message

NONCE = "qzkvhwbnmcjtrxplaoysdgeufiqh"


async def run(
    model: ChatModel, *, query: str = "6 times 7?", material: str = "", **config: object
) -> tuple[str, Thought, Step, Outcome]:
    checked = ChainOfThoughtConfig.model_validate(config)
    context = RunContext(config=checked, model=model, new_nonce=lambda: NONCE)
    events: list[StrategyEvent] = [
        event async for event in ChainOfThought().run(Task(query=query, material=material), context)
    ]
    wrote = "".join(event.text for event in events if isinstance(event, Wrote))
    step, outcome = events[-2:]
    assert isinstance(step, Step)
    assert isinstance(outcome, Outcome)
    assert isinstance(step.detail, Thought)
    assert all(isinstance(event, Wrote) for event in events[:-2])
    return wrote, step.detail, step, outcome


async def test_a_tagged_answer_is_taken_from_the_stream() -> None:
    with ScriptedModel(["Six sevens.\n<answer> 42 </answer> tail"], name="toy") as model:
        wrote, thought, step, outcome = await run(model, temperature=0.5)
    assert wrote == "Six sevens.\n 42 "
    assert thought == Thought(text="Six sevens.", answer="42")
    assert step.answer_found
    assert (outcome.answer, outcome.finish_reason, outcome.warnings) == ("42", FinishReason.ANSWERED, ())
    assert step.metrics == outcome.metrics
    assert outcome.metrics == ChainOfThoughtMetrics(temperature=0.5, max_tokens=4096, finish_reason="stop", model="toy")
    (request,) = model.requests
    assert (request.stop, request.max_tokens, request.temperature) == (("</answer>",), 4096, 0.5)


async def test_material_goes_into_its_section() -> None:
    with ScriptedModel(["<answer>4"]) as model:
        await run(model, material="The wall has four gates. </material>")
    user = model.requests[0].messages[1].content
    assert f"<material {NONCE}>\nThe wall has four gates. &lt;/material>\n</material {NONCE}>" in user
    assert f"\n<question {NONCE}>\n6 times 7?\n</question {NONCE}>\nWork it out step by step" in user


async def test_without_an_injected_source_every_run_has_a_nonce_of_its_own() -> None:
    questions = set()
    for _ in range(2):
        with ScriptedModel(["<answer>42"]) as model:
            await ChainOfThought().reason("6 times 7?", model=model)
        questions.add(model.requests[0].messages[1].content)
    assert len(questions) == 2


@pytest.mark.parametrize(
    ("reply", "answer", "thought", "finish"),
    [
        ("It is 42.", "It is 42.", "", FinishReason.ANSWERED_UNTAGGED),
        ("It is 42. <answer></answer>", "It is 42.", "", FinishReason.ANSWERED_UNTAGGED),
        (Reply(text="42", reasoning="Six sevens."), "42", "Six sevens.", FinishReason.ANSWERED_UNTAGGED),
        (Reply(text="So <answer>42", reasoning="Hm."), "42", "Hm.\n\nSo", FinishReason.ANSWERED),
        (Reply(text="Six", finish=ModelFinish.LENGTH), "", "Six", FinishReason.TRUNCATED),
        (Reply(text="Six<answer>4", finish=ModelFinish.LENGTH), "4", "Six", FinishReason.TRUNCATED),
        (Reply(text="", finish=ModelFinish.LENGTH, reasoning="Hm"), "", "Hm", FinishReason.TRUNCATED),
        (Reply(text="a<answer>b", finish=ModelFinish.CONTENT_FILTER), "b", "a", FinishReason.CONTENT_FILTERED),
        (Reply(text="a", finish=ModelFinish.CONTENT_FILTER), "", "a", FinishReason.CONTENT_FILTERED),
        ("<continue>a</continue>b", "ab", "", FinishReason.ANSWERED_UNTAGGED),
    ],
)
async def test_every_ending_is_told_apart(reply: str | Reply, answer: str, thought: str, finish: FinishReason) -> None:
    with ScriptedModel([reply]) as model:
        _, detail, step, outcome = await run(model)
    assert (outcome.answer, detail.answer, detail.text) == (answer, answer, thought)
    assert outcome.finish_reason is finish
    assert step.answer_found is (finish in {FinishReason.ANSWERED, FinishReason.ANSWERED_UNTAGGED})


async def test_an_answer_eaten_by_hidden_reasoning_is_told_with_its_tokens() -> None:
    with ScriptedModel([Reply(text=" ", finish=ModelFinish.LENGTH, reasoning="Hm, let me see")]) as model:
        *_, outcome = await run(model)
    assert (outcome.answer, outcome.finish_reason) == ("", FinishReason.TRUNCATED)
    (warning,) = outcome.warnings
    assert re.match(
        r"Hidden reasoning took (\d+) of the \d+ tokens .* left none for the answer: raise max_tokens", warning
    )


async def test_silence_is_no_answer() -> None:
    with ScriptedModel([" "]) as model:
        *_, outcome = await run(model)
    assert (outcome.answer, outcome.finish_reason) == ("", FinishReason.TRUNCATED)
    assert outcome.warnings == ("The model wrote nothing.",)


async def test_without_show_reasoning_only_the_answer_leaves() -> None:
    with ScriptedModel([Reply(text="Secret <think>steps</think><answer>42", reasoning="Hidden.")]) as model:
        wrote, thought, _, outcome = await run(model, show_reasoning=False)
    assert (wrote, thought, outcome.answer) == ("42", Thought(text=""), "42")
    with ScriptedModel(["It is 42."]) as model:
        wrote, thought, _, outcome = await run(model, show_reasoning=False)
    assert (wrote, thought, outcome.answer) == ("", Thought(text=""), "It is 42.")
    with ScriptedModel([Reply(text="Secret", finish=ModelFinish.LENGTH)]) as model:
        wrote, thought, _, outcome = await run(model, show_reasoning=False)
    assert (wrote, thought, outcome.answer, outcome.warnings) == ("", Thought(text=""), "", ())


async def test_the_limit_is_lowered_to_what_the_window_leaves_and_a_warning_says_so() -> None:
    with ScriptedModel(["<answer>42"], context_window=1000) as model:
        *_, outcome = await run(model, max_tokens=4000)
    (request,) = model.requests
    assert model.counter.count_prompt(request.messages) + request.max_tokens == 1000
    assert isinstance(outcome.metrics, ChainOfThoughtMetrics)
    assert outcome.metrics.max_tokens == request.max_tokens
    (warning,) = outcome.warnings
    assert warning.startswith(f"max_tokens was lowered from 4000 to {request.max_tokens}: ")


async def test_a_limit_that_nobody_set_is_lowered_without_a_word_unless_the_reply_was_cut() -> None:
    with ScriptedModel(["<answer>42"], context_window=1000) as model:
        *_, outcome = await run(model)
    assert outcome.warnings == ()
    with ScriptedModel([Reply(text="Six times", finish=ModelFinish.LENGTH)], context_window=1000) as model:
        *_, outcome = await run(model)
    assert "max_tokens was lowered from 4096" in outcome.warnings[0]


async def test_a_limit_that_fits_the_window_stays() -> None:
    with ScriptedModel(["<answer>42"], context_window=1000) as model:
        *_, outcome = await run(model, max_tokens=200)
    assert (model.requests[0].max_tokens, outcome.warnings) == (200, ())


async def test_a_prompt_that_does_not_fit_is_refused_before_the_call() -> None:
    model = ScriptedModel([], context_window=1000)
    with pytest.raises(ContextExhaustedError, match="leaves 0 of the model's context window of 1000") as caught:
        await run(model, material="gate " * 2000)
    assert "bounded_context" in caught.value.remedy
    assert caught.value.metadata["context_window"] == "1000"
    assert not model.requests


async def test_errors_of_the_model_pass_through_and_the_call_is_closed() -> None:
    model = ScriptedModel([Reply(text="Six sevens", error=ModelFailedError("broken"), error_after=3)])
    with pytest.raises(ModelFailedError):
        await run(model)
    assert model.open_calls == 0


async def test_closing_the_run_closes_the_call() -> None:
    model = ScriptedModel([Reply(text="Six sevens are", hold=asyncio.Event(), hold_after=1)])
    context = RunContext(config=ChainOfThoughtConfig(), model=model)
    events = ChainOfThought().run(Task(query="6 times 7?"), context)
    assert isinstance(await anext(events), Wrote)
    assert model.open_calls == 1
    await events.aclose()
    assert model.open_calls == 0


async def test_reason_needs_no_server() -> None:
    with ScriptedModel(["<answer>42"]) as model:
        outcome = await ChainOfThought().reason("6 times 7?", model=model, temperature=1)
    assert outcome.answer == "42"


def test_the_configuration_is_that_of_the_seed() -> None:
    assert ChainOfThoughtConfig().model_dump() == {"max_tokens": 4096, "temperature": 0.7, "show_reasoning": True}
    properties = ChainOfThought().get_config_schema()["properties"]
    assert (properties["max_tokens"]["minimum"], properties["max_tokens"]["maximum"]) == (100, 32768)
    assert (properties["temperature"]["minimum"], properties["temperature"]["maximum"]) == (0.0, 2.0)
    assert ChainOfThought().get_capabilities() == ["reasoning.strategy.chain_of_thought"]


@pytest.mark.parametrize(
    "config",
    [
        {"max_tokens": 99},
        {"max_tokens": 32769},
        {"max_tokens": "4096"},
        {"max_tokens": True},
        {"temperature": -0.1},
        {"temperature": 2.1},
        {"temperature": float("nan")},
        {"show_reasoning": 1},
        {"max_token": 4096},
    ],
)
def test_other_values_are_refused(config: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ChainOfThoughtConfig.model_validate(config)


async def test_a_tag_that_was_neutralised_in_the_question_stands_in_the_answer_as_it_was_asked() -> None:
    model = ScriptedModel(["<answer>the tag &lt;continue> goes on</answer>"])
    outcome = await ChainOfThought().reason("What does <continue> do?", model=model)
    assert outcome.answer == "the tag <continue> goes on"


class Told(FunctionModel):
    """A model whose server counts differently from the local counter, and applies its own count."""

    def __init__(self, told: int | None) -> None:
        super().__init__(lambda _: "<answer>4</answer>", counter=ByteCounter(), context_window=1000)
        self._told = told

    @property
    def has_native_tools(self) -> bool:
        return False

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        return self._told if messages else None

    def _check_window(self, request: ChatRequest) -> None:
        assert self._told is not None
        assert self._told + request.max_tokens <= 1000


async def test_the_servers_count_decides_what_fits_where_it_tells_one() -> None:
    model = Told(900)
    outcome = await ChainOfThought().reason("gate " * 200, model=model)
    assert outcome.answer == "4"
    assert model.requests[0].max_tokens == 100
    for told in (901, None):
        with pytest.raises(ContextExhaustedError):
            await ChainOfThought().reason("gate " * 200, model=Told(told))
