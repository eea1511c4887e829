from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.demo import DemoModel
from reasond_server.errors.limits import TokenBudgetExhaustedError
from reasond_server.errors.model import ContextExhaustedError, ModelUnavailableError
from reasond_server.llm.metered_model import MeteredModel
from reasond_server.llm.model import Role
from reasond_server.strategies.react import React, ReactConfig
from reasond_server.strategies.strategy import Outcome, RunContext, Step, Wrote
from reasond_server.testing import FunctionModel, Reply, ScriptedModel
from reasond_server.tools.calculator import Calculator
from reasond_server.tools.execution import Tools
from reasond_server.types import (
    Budget,
    CostClass,
    FinishReason,
    Task,
    ToolCall,
    ToolResult,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.llm.model import ChatRequest
from tests.unit.strategies.react.parts import CALL, Recorder, events_of, metrics_of, native, run, text_of


async def test_a_budget_that_ends_keeps_the_steps() -> None:
    budget = Budget(max_model_calls=1)
    with ScriptedModel([CALL]) as model:
        metered = MeteredModel(model=model, budget=budget)
        context = RunContext(config=ReactConfig(allow_tool_use=True), model=metered, tools=Recorder())
        events = [event async for event in React().run(Task(query="?"), context)]
    *_, step, outcome = events
    assert isinstance(step, Step)
    assert isinstance(outcome, Outcome)
    assert outcome.finish_reason is FinishReason.BUDGET_EXHAUSTED


async def test_the_last_call_of_a_budget_is_kept_for_the_answer() -> None:
    for budget in (Budget(max_model_calls=2), Budget(max_total_tokens=1_400)):
        tools = Recorder()
        with ScriptedModel([CALL, "<answer>x</answer>"]) as model:
            metered = MeteredModel(model=model, budget=budget)
            _, outcome = await run(metered, tools, budget=budget, max_tokens_per_step=200)
        assert outcome.answer == "x"
        assert "The budget left room for one more call" in outcome.warnings[0]


async def test_a_budget_that_covers_nothing_is_an_error() -> None:
    budget = Budget(max_total_tokens=10)
    model = MeteredModel(model=ScriptedModel([]), budget=budget)
    with pytest.raises(TokenBudgetExhaustedError):
        await run(model, budget=budget)


async def test_an_error_of_the_model_passes_through_after_the_steps() -> None:
    error = ModelUnavailableError("gone")
    with ScriptedModel([CALL, Reply(error=error)]) as model:
        context = RunContext(config=ReactConfig(allow_tool_use=True), model=model, tools=Recorder())
        events = React().run(Task(query="?"), context)
        while not isinstance(await anext(events), Step):
            pass
        with pytest.raises(ModelUnavailableError):
            await anext(events)


def exploring(places: int) -> Callable[[ChatRequest], str]:
    """Return a model that calls `look` for `places` places, then answers."""
    made = iter(range(places))

    def reply(request: ChatRequest) -> str:
        at = next(made, None)
        if at is None or "No tools can be called" in text_of(request):
            return "<answer>done</answer>"
        return f'Thought {at}. <action>{{"tool": "look", "arguments": {{"at": {at}}}}}</action>'

    return reply


async def test_old_observations_are_masked_in_batches_and_the_prompts_beginning_stays() -> None:
    model = FunctionModel(exploring(20), context_window=8_000)
    tools = Recorder(lambda call: json.dumps(f"{call.call_id} " + "word " * 500))
    _, outcome = await run(model, tools, max_iterations=30, max_tool_calls=30, max_tokens_per_step=200)
    assert outcome.answer == "done"
    masked = metrics_of(outcome).masked_observations
    assert 10 <= masked < 20
    changes = 0
    for before, after in zip(model.requests, model.requests[1:], strict=False):
        changes += tuple(after.messages[: len(before.messages)]) != tuple(before.messages)
    assert changes < masked
    last = text_of(model.requests[-1])
    assert "read_tool_result with handle c1 shows it" in last
    assert "c20 word" in last
    for request in model.requests:
        assert model.counter.count_prompt(request.messages) + request.max_tokens <= 8_000


@pytest.mark.parametrize(
    ("arguments", "handle"),
    [('{"handle": "c1"}', "c1"), ('{"handle": "c 1\\n"}', "c2"), ("{}", "c2"), ("no JSON", "c2")],
)
async def test_a_masked_reading_points_to_what_was_read(arguments: str, handle: str) -> None:
    replies: list[str | Reply] = [
        native(("a", "look", "{}")),
        native(("b", "read_tool_result", arguments)),
        *(native((f"x{at}", "look", f'{{"at": {at}}}')) for at in range(8)),
        "<answer>x</answer>",
    ]
    with ScriptedModel(replies, has_native_tools=True, context_window=8_000) as model:
        await run(model, Recorder(lambda _: json.dumps("word " * 500)), max_iterations=12, max_tool_calls=12)
    reading = model.requests[-1].messages[5]
    assert reading.tool_call_id == "b"
    assert f"read_tool_result with handle {handle} shows it" in reading.content


async def test_long_thoughts_are_left_out_before_the_window_overflows() -> None:
    places = iter(range(100))

    def reply(request: ChatRequest) -> str:
        if "No tools can be called" in text_of(request):
            return "<answer>done</answer>"
        return "thought " * 300 + f'<action>{{"tool": "look", "arguments": {{"at": {next(places)}}}}}</action>'

    model = FunctionModel(reply, context_window=3_000)
    _, outcome = await run(model, max_iterations=20, max_tool_calls=50, max_tokens_per_step=400)
    assert outcome.answer == "done"
    assert "an earlier thought is left out" in text_of(model.requests[-1])
    for request in model.requests:
        assert model.counter.count_prompt(request.messages) + request.max_tokens <= 3_000


async def test_a_prompt_that_does_not_fit_is_refused_before_anything_is_spent() -> None:
    model = ScriptedModel([], context_window=500)
    with pytest.raises(ContextExhaustedError, match="at least 100 are needed") as caught:
        await run(model, material="word " * 1_000)
    assert "bounded_context" in caught.value.remedy
    assert model.requests == []


async def test_a_conversation_that_no_longer_fits_ends_with_what_there_is() -> None:
    def reply(_: ChatRequest) -> str:
        return f'I look.<action>{{"tool": "look", "arguments": {{"at": "{"far " * 900}"}}}}</action>'

    model = FunctionModel(reply, context_window=2_600)
    steps, outcome = await run(model, max_iterations=9, max_tool_calls=50, max_tokens_per_step=1_400)
    assert steps
    assert outcome.finish_reason is FinishReason.TRUNCATED
    assert "at least 100 are needed" in outcome.warnings[-1]


async def test_a_server_that_refuses_a_later_prompt_ends_the_run_with_what_there_is() -> None:
    """Its window was not known, so only it could say that the conversation had become too long."""
    refusal = ContextExhaustedError("The prompt does not fit its context")
    with ScriptedModel([CALL, Reply(error=refusal)]) as model:
        steps, outcome = await run(model)
    assert len(steps) == 1
    assert outcome.finish_reason is FinishReason.TRUNCATED
    assert "does not fit" in outcome.warnings[-1]
    with ScriptedModel([Reply(error=refusal)]) as model, pytest.raises(ContextExhaustedError):
        await run(model)


async def test_a_long_prompt_is_built_and_counted_beside_the_event_loop() -> None:
    with ScriptedModel(["<answer>x</answer>"], context_window=100_000) as model:
        _, outcome = await run(model, material="word " * 15_000)
    assert outcome.answer == "x"


async def test_the_demo_model_has_the_calculator_work_it_out() -> None:
    box = Tools(tools=[Calculator()]).open_toolbox(max_calls=None)
    steps, outcome = await run(DemoModel(), box, query="What is 12.5% of 640?")
    assert json.loads(steps[0].observations[0].result_json)["result"] == 80
    assert outcome.answer == "80"


async def test_cancelling_in_a_tool_closes_everything() -> None:
    began = asyncio.Event()

    class Endless(Recorder):
        async def call(self, call: ToolCall) -> ToolResult:
            began.set()
            await asyncio.Event().wait()
            return await super().call(call)

    model = ScriptedModel([CALL])
    work = asyncio.create_task(run(model, Endless()))
    await began.wait()
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert model.open_calls == 0


async def test_cancelling_in_a_call_of_the_model_closes_it() -> None:
    model = ScriptedModel([Reply(text="some words here", hold=asyncio.Event(), hold_after=1)])
    events = React().run(Task(query="?"), RunContext(config=ReactConfig(), model=model))
    assert isinstance(await anext(events), Wrote)
    await events.aclose()
    assert (model.open_calls, model.closed) == (0, 1)


@pytest.mark.slow
@given(
    st.lists(
        st.text(max_size=80) | st.sampled_from([CALL, "<answer>", "<action>", "</action>", "Observation: "]),
        max_size=12,
    )
)
def test_any_replies_end_in_one_outcome_within_the_cycles(replies: list[str]) -> None:
    left = iter(replies)
    model = FunctionModel(lambda _: next(left, "<answer>end</answer>"))
    steps, outcome = asyncio.run(run(model, max_iterations=6))
    assert 1 <= len(steps) <= 6
    assert len(model.requests) == len(steps)
    assert outcome.finish_reason not in {FinishReason.FAILED, FinishReason.CANCELLED}


@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=20), st.text(max_size=40)), min_size=1, max_size=4))
def test_any_native_calls_keep_calls_and_results_together(calls: list[tuple[str, str, str]]) -> None:
    left = iter([native(*calls), native(*calls)])
    model = FunctionModel(lambda _: next(left, "<answer>end</answer>"), has_native_tools=True)
    asyncio.run(run(model))
    for request in model.requests:
        made = [call.call_id for message in request.messages for call in message.tool_calls]
        answered = [message.tool_call_id for message in request.messages if message.role is Role.TOOL]
        assert made == answered
        assert len(set(made)) == len(made)


async def test_the_same_replies_give_the_same_events() -> None:
    runs = [await events_of(ScriptedModel([CALL, CALL, "<answer>x</answer>"]), Recorder()) for _ in range(2)]
    assert runs[0] == runs[1]
    assert React.is_replayable


def test_the_parameters_are_those_of_the_contract() -> None:
    properties = React().get_config_schema()["properties"]
    assert {name: (one["default"], one.get("minimum"), one.get("maximum")) for name, one in properties.items()} == {
        "max_iterations": (10, 1, 50),
        "max_tokens_per_step": (2048, 100, 8192),
        "temperature": (0.7, 0.0, 2.0),
        "allow_tool_use": (False, None, None),
        "max_tool_calls": (10, 0, 50),
    }
    assert React.cost_class is CostClass.LINEAR
    assert ReactConfig(allow_tool_use=True).uses_tools
    assert not ReactConfig().uses_tools
