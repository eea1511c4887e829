from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.context.sections import build_prompt
from reasond_server.context.step_records import CallRecord, WireIds
from reasond_server.llm.counting import ByteCounter
from reasond_server.llm.model import Message, Role, ToolSpec
from reasond_server.strategies.react.conversation import Conversation
from reasond_server.strategies.react.tool_use import Offers
from reasond_server.testing import ScriptedModel
from reasond_server.types import ToolCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import Sequence


NONCE = "qzkvhwbnmcjtrxplaoysdgeufiqh"
SPEC = ToolSpec(name="look", description="Looks.", parameters={"type": "object"})


def converse(*, is_native: bool = False) -> Conversation:
    opening = build_prompt(instructions="Work.", question="How high?", nonce=NONCE)
    offer = Offers().make([SPEC])
    return Conversation(opening=opening, nonce=NONCE, is_native=is_native, model=ScriptedModel([]), offer=offer)


def look(conversation: Conversation, *, words: int, number: int, is_error: bool = False, said: str = "") -> None:
    """Add a cycle with one call and a result of `words` words."""
    call = ToolCall(call_id=f"c{number}", name="look", arguments_json=f'{{"at":{number}}}')
    result = ToolResult(call_id=call.call_id, result_json=f'"{"word " * words}"', is_error=is_error)
    handle = "" if is_error else call.call_id
    record = CallRecord(call=call, result=result, handle=handle, wire_id=f"w{number}")
    conversation.add(text=f"Thought {number}.", reasoning="hidden", calls=[record], said=said)


async def read(conversation: Conversation) -> Sequence[Message]:
    """Return the messages for a model whose window is unknown."""
    await conversation.fit(window=None, writing_tokens=100, least_tokens=10)
    return conversation.messages


def text_of(messages: object) -> str:
    return repr(messages)


@given(st.lists(st.text(max_size=3), max_size=20))
def test_every_call_has_an_id_of_its_own_and_its_providers_where_it_can(ids: list[str]) -> None:
    wire = WireIds()
    taken = [wire.take(one) for one in ids]
    assert len(set(taken)) == len(taken)
    for at, (one, given_id) in enumerate(zip(taken, ids, strict=True)):
        if given_id and given_id not in ids[:at]:
            assert one == given_id or given_id in taken[:at]


async def test_a_word_of_ours_goes_with_the_last_message_of_the_user_or_tool() -> None:
    for is_native, role in ((True, Role.TOOL), (False, Role.USER)):
        conversation = converse(is_native=is_native)
        conversation.end_with("At once.")
        assert (await read(conversation))[-1].content.endswith("\nAt once.")
        conversation = converse(is_native=is_native)
        look(conversation, words=1, number=1, said="One.")
        conversation.end_with("Two.")
        messages = await read(conversation)
        assert messages[-1].role is role
        assert messages[-1].content.endswith(f"</observation {NONCE}>\nOne.\nTwo.")
        roles = [message.role for message in messages]
        assert all(one is not other for one, other in pairwise(roles))


@pytest.mark.parametrize(("is_native", "role"), [(True, Role.TOOL), (False, Role.USER)])
async def test_a_cycle_without_words_is_no_message(role: Role, *, is_native: bool) -> None:
    conversation = converse(is_native=is_native)
    conversation.add(text=" ", said="One.")
    (*_, question) = await read(conversation)
    assert (question.role, question.content[-5:]) == (Role.USER, "\nOne.")
    look(conversation, words=1, number=1)
    conversation.add(text="", said="Two.")
    conversation.add(text="")
    conversation.end_with("Three.")
    messages = await read(conversation)
    assert messages[-1].role is role
    assert messages[-1].content.endswith(f"</observation {NONCE}>\nTwo.\nThree.")
    conversation.add(text="A thought.")
    conversation.add(text="", said="Four.")
    assert (await read(conversation))[-1] == Message(role=Role.USER, content="Four.\nThree.")


async def test_masked_observations_stay_masked_and_so_do_those_that_were_not() -> None:
    conversation = converse()
    before: list[str] = []
    for number in range(1, 30):
        look(conversation, words=400, number=number, is_error=number == 2)
        await conversation.fit(window=12_000, writing_tokens=1_000, least_tokens=100)
        shown = [message.content for message in conversation.messages if message.role is Role.USER][1:]
        masked = [content for content in shown if "[left out" in content]
        assert shown[: len(masked)] == masked
        assert masked[: len(before)] == before
        assert "word word" in shown[-1]
        before = masked
    assert conversation.masked == len(before)
    assert "read_tool_result with handle c1 shows it" in before[0]
    assert "[left out: the call failed]" in before[1]


@pytest.mark.parametrize("is_native", [True, False])
async def test_what_does_not_fit_is_left_out_and_calls_keep_their_results(is_native: bool) -> None:  # noqa: FBT001 - a parameter of the test
    conversation = converse(is_native=is_native)
    for number in range(1, 12):
        look(conversation, words=60, number=number)
    look(conversation, words=2_000, number=12)
    prompt, room = await conversation.fit(window=1_400, writing_tokens=400, least_tokens=100)
    assert prompt + room <= 1_400
    assert room >= 100
    text = text_of(conversation.messages)
    assert "an earlier thought is left out" not in text
    assert "word word" not in text
    assert conversation.masked == 12
    calls = [call.call_id for message in conversation.messages for call in message.tool_calls]
    results = [message.tool_call_id for message in conversation.messages if message.role is Role.TOOL]
    assert calls == results == ([f"w{number}" for number in range(1, 13)] if is_native else [])


async def test_long_thoughts_are_left_out_and_are_no_masked_observations() -> None:
    conversation = converse()
    for _ in range(8):
        conversation.add(text="I think and think. " * 20, said="Go on.")
    await conversation.fit(window=1_100, writing_tokens=400, least_tokens=100)
    assert text_of(conversation.messages).count("an earlier thought is left out") == 4
    assert conversation.masked == 0


async def test_a_result_that_is_shorter_than_its_placeholder_is_never_masked() -> None:
    conversation = converse()
    for number in range(1, 9):
        look(conversation, words=1 if number % 2 else 200, number=number)
    await conversation.fit(window=600, writing_tokens=100, least_tokens=50)
    assert conversation.masked == 4
    assert text_of(conversation.messages).count('"word "') == 4


async def test_a_conversation_that_cannot_fit_says_how_much_is_left() -> None:
    conversation = converse()
    _, room = await conversation.fit(window=30, writing_tokens=20, least_tokens=10)
    assert room < 10


async def test_without_a_known_window_only_observations_are_bounded() -> None:
    conversation = converse()
    for number in range(1, 30):
        look(conversation, words=1_000, number=number)
    prompt, room = await conversation.fit(window=None, writing_tokens=500, least_tokens=100)
    assert prompt < 12_000
    assert room == 500
    assert conversation.masked


async def test_observations_that_fit_are_whole_however_long() -> None:
    conversation = converse()
    look(conversation, words=3_000, number=1)
    assert text_of(await read(conversation)).count("word ") == 3_000


async def test_a_prompt_is_counted_once() -> None:
    counted: list[int] = []

    class Counting(ByteCounter):
        def count_prompt(self, messages: Sequence[Message]) -> int:
            counted.append(super().count_prompt(messages))
            return counted[-1]

    conversation = converse(is_native=True)
    conversation.model = ScriptedModel([], counter=Counting())
    look(conversation, words=1, number=1)
    prompt, _ = await conversation.fit(window=10_000, writing_tokens=500, least_tokens=100)
    assert len(counted) == 1
    assert counted[0] < prompt


async def test_tools_and_calls_count_although_counters_of_messages_do_not_see_them() -> None:
    native, plain = converse(is_native=True), converse()
    for conversation in (native, plain):
        conversation.add(text="Hm.")
    without, _ = await native.fit(window=10_000, writing_tokens=100, least_tokens=100)
    assert without > (await plain.fit(window=10_000, writing_tokens=100, least_tokens=100))[0]
    look(native, words=1, number=1)
    with_call, _ = await native.fit(window=10_000, writing_tokens=100, least_tokens=100)
    assert with_call > native.model.counter.count_prompt(native.messages)
    prompt, tight = await native.fit(window=with_call + 60, writing_tokens=100, least_tokens=10)
    assert tight == 60
    assert prompt + tight == with_call + 60


@pytest.mark.parametrize("is_native", [True, False])
async def test_what_did_not_change_is_the_same_message_in_every_call(is_native: bool) -> None:  # noqa: FBT001 - a parameter
    conversation = converse(is_native=is_native)
    look(conversation, words=1, number=1)
    first = await read(conversation)
    look(conversation, words=1, number=2)
    second = await read(conversation)
    assert all(one is other for one, other in zip(first, second[: len(first)], strict=True))
    conversation.end_with("Go on.")
    third = await read(conversation)
    assert all(one is other for one, other in zip(first, third[: len(first)], strict=True))
    assert third[:-1] == second[:-1]
    assert third[-1].content == f"{second[-1].content}\nGo on."
