"""Calls in stages share their beginning, fence earlier texts, and fit the model's window whatever those texts are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.context.calls import LEAST_TOKENS, ModelReply, take_reply
from reasond_server.context.stages import Shown, StageCalls, prepare_stages
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.testing import FunctionModel
from reasond_server.types import Task

NONCE = "a" * 28
TASK = Task(query="What is six times seven?", material="The wall has four gates.")
RULES = ("Answer.", "Say what is wrong with the draft.")


async def calls(window: int | None, task: Task = TASK, *, shown: int = 2) -> tuple[FunctionModel, StageCalls]:
    model = FunctionModel(lambda _: "<answer>42</answer>", context_window=window)
    return model, await prepare_stages(task, model=model, nonce=NONCE, instructions=RULES, shown=shown)


async def test_prompts_have_one_beginning_and_end_with_the_instruction() -> None:
    _, stages = await calls(None)
    first = stages.fit(RULES[0], max_tokens=300)
    second = stages.fit(RULES[1], Shown(name="draft", text="It is <answer>42</answer>."), max_tokens=300)
    assert first.messages[0] == second.messages[0]
    user = second.messages[1].content
    assert user.startswith(first.messages[1].content.removesuffix(RULES[0]))
    assert user.endswith(
        f'<passage {NONCE} name="draft">\nIt is &lt;answer>42&lt;/answer>.\n</passage {NONCE}>\n{RULES[1]}'
    )
    assert (first.max_tokens, second.max_tokens, stages.warnings) == (300, 300, ())


@given(
    window=st.integers(700, 4000),
    sizes=st.lists(st.integers(0, 3000), max_size=2),
    most=st.integers(LEAST_TOKENS, 4000),
    word=st.sampled_from(["gate ", "<answer>", "\u00e9"]),
)
async def test_whatever_is_shown_prompt_and_reply_stay_in_the_window(
    window: int, sizes: list[int], most: int, word: str
) -> None:
    model, stages = await calls(window)
    texts = [Shown(name=f"text{place}", text=word * size) for place, size in enumerate(sizes)]
    prompt = stages.fit(RULES[1], *texts, max_tokens=most)
    assert LEAST_TOKENS <= prompt.max_tokens <= most
    assert model.counter.count_prompt(prompt.messages) + prompt.max_tokens <= window


async def test_of_a_text_that_is_too_long_the_end_is_shown_and_a_short_one_stays_whole() -> None:
    _, stages = await calls(1500)
    long = Shown(name="draft", text="gate " * 5000 + "the end")
    prompt = stages.fit(RULES[1], long, Shown(name="critique", text="It is short."), max_tokens=200)
    assert "the end\n</passage" in prompt.messages[1].content
    assert "\nIt is short.\n" in prompt.messages[1].content
    assert prompt.max_tokens == 200
    assert stages.warnings == ("Only the end was shown to the model, for want of room, of: draft.",)


async def test_a_reply_that_may_not_be_as_long_as_asked_is_told() -> None:
    _, stages = await calls(1500)
    prompt = stages.fit(RULES[0], max_tokens=4000)
    assert prompt.max_tokens < 1500
    limit = f"A call could write only {prompt.max_tokens} of 4000 tokens"
    assert stages.warnings == (f"{limit}: the model's context window of 1500 has no more room.",)


async def test_a_window_without_room_is_refused_before_a_call() -> None:
    with pytest.raises(ContextExhaustedError, match="at least 484 are needed to answer"):
        await calls(500)


async def test_a_reply_is_taken_whole() -> None:
    _, stages = await calls(None)
    reply = await take_reply(stages.stream(stages.fit(RULES[0], max_tokens=300), temperature=0.0))
    assert isinstance(reply, ModelReply)
    assert reply.parsed.content == "42"
