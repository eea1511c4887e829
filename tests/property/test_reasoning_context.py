"""What holds of every prompt that `build_reasoning_context` makes, whatever was done before."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.context.reasoning_context import build_reasoning_context, write_steps
from reasond_server.context.reasoning_parts import ContextInputs, ContextSettings, PromptPart
from reasond_server.context.step_records import CallRecord, ReasoningStepRecord, WireIds, count_calls
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.llm.counting import ByteCounter, WordPieceCounter
from reasond_server.llm.model import Message, Role
from reasond_server.types import ToolCall, ToolResult
from reasond_server.types.turns import ContextGoal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.context.reasoning_parts import ReasoningContext, StoredRendering

NONCE = "qzkvhwbnmcjtrxplaoysdgeufiqh"
SETTINGS = ContextSettings(
    preview_above_tokens=40, preview_tokens=90, error_tokens=60, clear_at_least_tokens=150, keep_recent=2
)
TAIL = (PromptPart(source="mode", messages=(Message(role=Role.USER, content="Answer briefly."),)),)

values = st.one_of(
    st.lists(
        st.fixed_dictionaries(
            {"id": st.integers(0, 999), "status": st.sampled_from(["ok", "failed"]), "body": st.text(max_size=60)}
        ),
        max_size=12,
    ),
    st.text(max_size=400),
    st.dictionaries(st.text(max_size=8), st.text(max_size=80), max_size=5),
    st.lists(st.integers(), max_size=40),
)


@st.composite
def all_records(draw: st.DrawFn, *, prefix: str = "c") -> Sequence[ReasoningStepRecord]:
    """Replies with up to four calls each: ids of providers that are empty or not unique, failures, calls not made."""
    records, number = [], 0
    for index in range(draw(st.integers(0, 7))):
        calls = []
        for _ in range(draw(st.integers(0, 4))):
            number += 1
            call = ToolCall(call_id=f"{prefix}{number}", name="look", arguments_json=json.dumps({"at": number}))
            text = json.dumps(draw(values), ensure_ascii=False)
            result = ToolResult(call_id=call.call_id, result_json=text, is_error=draw(st.booleans()))
            kept = result if draw(st.integers(0, 9)) else None
            wire_id = draw(st.sampled_from(["", "w", f"w{number}"]))
            calls.append(CallRecord(call=call, result=kept, handle=call.call_id, wire_id=wire_id))
        text = draw(st.text(max_size=40)) + draw(st.sampled_from(["", " see c1", " see c2 <answer>"]))
        said = "" if draw(st.booleans()) else "Go on."
        records.append(ReasoningStepRecord(index=index, text=text, thinking="hidden", calls=calls, said=said))
    return records


@st.composite
def all_inputs(draw: st.DrawFn) -> ContextInputs:
    is_native = draw(st.booleans())
    wire_ids, history = WireIds(), []
    for turn in range(draw(st.integers(0, 3))):
        earlier = draw(all_records(prefix=f"h{turn}x"))
        made = write_steps(earlier, renderings={}, nonce=NONCE, is_native=is_native, wire_ids=wire_ids)
        asked = Message(role=Role.USER, content=f"Question {turn}")
        history.append(PromptPart(source=f"history:{turn}", messages=(asked, *made)))
    system = PromptPart(source="system", messages=(Message(role=Role.SYSTEM, content="Work."),))
    question = PromptPart(source="message", messages=(Message(role=Role.USER, content="How many failed?"),))
    return ContextInputs(
        opening=(system,),
        history=history,
        question=(question,),
        records=draw(all_records()),
        tail=TAIL if draw(st.booleans()) else (),
        budget_tokens=draw(st.one_of(st.none(), st.integers(60, 3_000))),
        settings=draw(st.sampled_from([SETTINGS, replace(SETTINGS, clear_at_least_tokens=0, keep_recent=0)])),
        query="How many failed?",
        counter=WordPieceCounter() if draw(st.booleans()) else ByteCounter(),
        nonce=NONCE,
        is_native=is_native,
    )


def build_all(inputs: ContextInputs) -> Sequence[tuple[ContextInputs, ReasoningContext]]:
    """Return the prompts of the calls of a turn, each with the renderings of those before."""
    built: list[tuple[ContextInputs, ReasoningContext]] = []
    renderings: dict[str, StoredRendering] = {}
    for end in range(len(inputs.records) + 1):
        now = replace(inputs, records=inputs.records[:end], renderings=dict(renderings))
        try:
            context = build_reasoning_context(now)
        except ContextExhaustedError:
            break
        renderings.update(context.renderings)
        built.append((now, context))
    return built


def count(inputs: ContextInputs, messages: Sequence[Message]) -> int:
    return inputs.counter.count_prompt(messages) + count_calls(messages, inputs.counter)


def require_pairs(messages: Sequence[Message]) -> None:
    """Each call is followed by its result before anybody else speaks, and no result is without its call."""
    waiting: list[str] = []
    used: set[str] = set()
    for message in messages:
        if message.role is Role.TOOL:
            assert message.tool_call_id == waiting.pop(0)
            continue
        assert not waiting
        waiting = [call.call_id for call in message.tool_calls]
        assert len(set(waiting)) == len(waiting)
        assert used.isdisjoint(waiting)
        used.update(waiting)
    assert not waiting


@pytest.mark.slow
@given(all_inputs())
def test_a_planning_prompt_begins_with_the_one_before_unless_a_break_is_told(inputs: ContextInputs) -> None:
    built = build_all(replace(inputs, tail=()))
    for (_, before), (_, after) in pairwise(built):
        if not after.report.is_break:
            *same, last = before.messages
            assert list(after.messages[: len(same)]) == same
            # What we said behind a reply without words ends the message before it.
            goes_on = after.messages[len(same)]
            assert goes_on.content.startswith(last.content)
            assert replace(goes_on, content=last.content) == last


@pytest.mark.slow
@given(all_inputs())
def test_every_prompt_of_a_turn_and_its_synthesis_keep_all_promises(inputs: ContextInputs) -> None:
    """The promises are checked together, because making the inputs and prompts takes nearly all of the time."""
    for now, planning in build_all(inputs):
        synthesis = build_reasoning_context(replace(now, goal=ContextGoal.SYNTHESIS))
        for context in (planning, synthesis):
            require_pairs(context.messages)
            require_budget(now, context)
            require_all_results(now, context)
        require_reason_for_break(now, planning)
        assert build_reasoning_context(now) == planning, "equal inputs give equal prompts"
        require_unchanged_by(now, synthesis)


def require_budget(now: ContextInputs, context: ReasoningContext) -> None:
    """No prompt exceeds its budget, and the report has its tokens."""
    assert context.report.prompt_tokens == count(now, context.messages)
    assert now.budget_tokens is None or context.report.prompt_tokens <= now.budget_tokens
    reduced = [item for item in context.report.items if item.tokens != item.full_tokens]
    assert context.report.is_reduced or not reduced


def require_all_results(now: ContextInputs, context: ReasoningContext) -> None:
    """Every result and thought is in the report, and every result in the prompt."""
    sources = [item.source for item in context.report.items]
    steps = [(f"step:{one.index}", *(call.call.call_id for call in one.calls)) for one in now.records]
    expected = [source for step in steps for source in step]
    assert [source for source in sources if source[0] in {"s", "c"} and source != "system"] == expected
    text = "".join(message.content for message in context.messages)
    for record in now.records:
        for call in record.calls:
            assert f'<observation {NONCE} call="{call.call.call_id}">' in text


def require_reason_for_break(now: ContextInputs, planning: ReasoningContext) -> None:
    """A break leaves out only what did not fit before."""
    if now.budget_tokens is None:
        assert not planning.report.is_break
    elif planning.report.is_break:
        renderings = {**now.renderings, **planning.renderings}
        again = build_reasoning_context(replace(now, renderings=renderings))
        assert again.messages == planning.messages
        assert not again.renderings


def require_unchanged_by(now: ContextInputs, synthesis: ReasoningContext) -> None:
    """A synthesis changes nothing, and without a budget it leaves nothing out."""
    assert not synthesis.renderings
    assert not synthesis.report.is_break
    if now.budget_tokens is None:
        assert not synthesis.report.is_reduced
