from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.errors.request import InvalidRequestError
from reasond_server.protocols.chat.chat_params import read_messages
from reasond_server.protocols.conversations import find_question
from reasond_server.types import HistoryMessage, Speaker, ToolCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.protocols.conversations import LastMessage


def image(shown: object) -> dict[str, Any]:
    return {"type": "image_url", "image_url": shown}


def user(content: object = "q", **more: object) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def line(role: str, text: str) -> HistoryMessage:
    return HistoryMessage(role=Speaker(role), text=text)


def ask(*messages: dict[str, Any]) -> LastMessage:
    conversation, _ = read_messages(messages)
    question = find_question(conversation.said)
    assert question is not None
    return question


def refuse(*messages: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(InvalidRequestError) as caught:
        read_messages(messages)
    return [(one.field, one.description) for one in caught.value.violations]


def warn(*messages: dict[str, Any]) -> Sequence[str]:
    return read_messages(messages)[1]


def test_the_last_message_of_the_user_is_the_query_and_the_rest_has_its_own_place() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        user("What is light?"),
        {"role": "assistant", "content": "A wave.", "refusal": None, "reasoning_content": "hm", "tool_calls": []},
        {"role": "developer", "content": "In English."},
        user("And sound?"),
    ]
    question = ask(*messages)
    assert question.query == "And sound?"
    assert read_messages(messages)[0].system == "Be brief.\n\nIn English."
    assert question.history == (
        line("user", "What is light?"),
        HistoryMessage(role=Speaker.ASSISTANT, text="A wave.", reasoning="hm"),
    )


def test_consecutive_messages_of_a_role_are_joined() -> None:
    question = ask(user("a"), user("b"), {"role": "assistant", "content": "c"}, user("d"), user("e"))
    assert question.history == (line("user", "a\n\nb"), line("assistant", "c"))
    assert question.query == "d\n\ne"


def test_parts_of_text_are_lines_of_one_text() -> None:
    assert ask(user([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}])).query == "one\ntwo"


def test_a_message_without_words_is_no_part_of_the_history() -> None:
    assert ask({"role": "assistant", "content": None}, user()).history == ()


def test_members_that_are_not_shown_are_told() -> None:
    assert warn(user(name="Ann"), {"role": "assistant", "content": "x", "cache_control": {}}, user()) == [
        "The member cache_control of messages is not shown to the model.",
        "The member name of messages is not shown to the model.",
    ]


@pytest.mark.parametrize(
    ("messages", "field", "part"),
    [
        ([user(), {"role": "robot", "content": "5"}], "messages.1.role", "must be 'system', 'developer', 'user'"),
        ([{"content": "5"}], "messages.0.role", "got None"),
        ([{"role": ["user"], "content": "5"}], "messages.0.role", "got ['user']"),
        ([user(None)], "messages.0.content", "must be a text or a list of parts, got None"),
        ([user(5)], "messages.0.content", "must be a text or a list of parts"),
        ([user([image({})])], "messages.0.content.0.image_url.url", "got None"),
        ([user([image({"url": "http://a/b.png"})])], "messages.0.content.0.image_url.url", "a data: URL"),
        ([user([image({"url": "data:image/png,x"})])], "messages.0.content.0.image_url.url", "base64"),
        ([user([image("x")])], "messages.0.content.0.image_url.url", "got 'x'"),
        ([user([{"type": "input_audio"}])], "messages.0.content.0", "'input_audio' is not supported"),
        ([user([5])], "messages.0.content.0", "5 is not supported"),
        ([user([{"type": ["text"]}])], "messages.0.content.0", "is not supported"),
        ([user([{"type": "text", "text": 5}])], "messages.0.content.0.text", "must be a text"),
        ([user(), {"role": "assistant", "tool_calls": [1]}], "messages.1.tool_calls", "must be a list of calls"),
    ],
)
def test_what_is_not_supported_is_named(messages: list[dict[str, Any]], field: str, part: str) -> None:
    found = refuse(*messages)
    assert found[0][0] == field
    assert part in found[0][1]


def test_ten_thousand_wrong_messages_are_described_by_twenty() -> None:
    assert len(refuse(*[{"role": 5}] * 10_000)) == 20
    assert len(refuse(user([{}] * 10_000))) == 20


def test_calls_of_tools_and_their_results_are_calls_and_results_of_the_history() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "open_file", "arguments": '{"path": "a"}'}}
    old = {"role": "assistant", "content": None, "function_call": {"name": "count", "arguments": "{}"}}
    question = ask(
        user("Read a."),
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "42"},
        old,
        {"role": "function", "name": "count", "content": "two"},
        {"role": "assistant", "content": "It says 42."},
        user("And b?"),
    )
    assert question.history[1].tool_calls == (ToolCall(call_id="1", name="open_file", arguments_json='{"path": "a"}'),)
    assert question.history[2].tool_results == (ToolResult(call_id="1", result_json="42"),)
    assert question.history[3].tool_calls == (ToolCall(call_id="count", name="count", arguments_json="{}"),)
    assert question.history[4].tool_results == (ToolResult(call_id="count", result_json='"two"'),)
    assert question.query == "And b?"


def test_images_stand_where_they_were_shown() -> None:
    shown = image({"url": "data:image/png;base64,aGk="})
    question = ask(user([{"type": "text", "text": "What is it?"}, shown]))
    assert (question.query, [(each.media_type, each.base64) for each in question.images]) == (
        "What is it?",
        [("image/png", "aGk=")],
    )
    later = ask(user([{"type": "text", "text": "a"}, shown]), {"role": "assistant", "content": "A cat."}, user("Sure?"))
    assert (len(later.images), len(later.history[0].images)) == (0, 1)


def test_a_conversation_that_ends_with_the_assistant_is_continued() -> None:
    question = ask(user(), {"role": "assistant", "content": "It is"})
    assert question.history[-1].text == "It is"
    assert "Continue your last message" in question.query
    assert question.warnings == ("The last message is the assistant's: the model is asked to continue it.",)


def test_a_message_that_is_too_long_for_one_question_is_said_in_two() -> None:
    text = "\n".join(["A line of a long text."] * 10_000)
    question = ask(user(text))
    assert len(question.query) <= 100_000
    assert question.history[-1].text + question.query == text
