from __future__ import annotations

from typing import Any

import pytest

from reasond_server.errors.request import InvalidRequestError
from reasond_server.protocols.chat.messages import read_messages
from reasond_server.types import HistoryMessage, Speaker


def image(shown: object) -> dict[str, Any]:
    return {"type": "image_url", "image_url": shown}


def user(content: object = "q", **more: object) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def line(role: str, text: str) -> HistoryMessage:
    return HistoryMessage(role=Speaker(role), text=text)


def refuse(*messages: dict[str, Any]) -> list[tuple[str, str]]:
    with pytest.raises(InvalidRequestError) as caught:
        read_messages(messages)
    return [(one.field, one.description) for one in caught.value.violations]


def test_the_last_message_of_the_user_is_the_query_and_the_rest_has_its_own_place() -> None:
    said = read_messages(
        [
            {"role": "system", "content": "Be brief."},
            user("What is light?"),
            {"role": "assistant", "content": "A wave.", "refusal": None, "reasoning_content": "hm", "tool_calls": []},
            {"role": "developer", "content": "In English."},
            user("And sound?"),
        ]
    )
    assert said.query == "And sound?"
    assert said.system == "Be brief.\n\nIn English."
    assert said.history == (line("user", "What is light?"), line("assistant", "A wave."))


def test_consecutive_messages_of_a_role_are_joined() -> None:
    said = read_messages([user("a"), user("b"), {"role": "assistant", "content": "c"}, user("d"), user("e")])
    assert said.history == (line("user", "a\n\nb"), line("assistant", "c"))
    assert said.query == "d\n\ne"


def test_parts_of_text_are_lines_of_one_text() -> None:
    said = read_messages([user([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}])])
    assert said.query == "one\ntwo"


def test_a_message_without_words_is_no_part_of_the_history() -> None:
    assert read_messages([{"role": "assistant", "content": None}, user()]).history == ()


def test_a_name_is_told_to_have_no_effect() -> None:
    assert read_messages([user(name="Ann")]).warnings == ("The names of messages are not shown to the model.",)


@pytest.mark.parametrize(
    ("messages", "field", "part"),
    [
        ([{"role": "function", "content": "5"}], "messages.0.role", "got 'function'"),
        ([user(), {"role": "robot", "content": "5"}], "messages.1.role", "must be 'system', 'developer', 'user'"),
        ([{"content": "5"}], "messages.0.role", "got None"),
        ([{"role": ["user"], "content": "5"}], "messages.0.role", "got ['user']"),
        ([user(None)], "messages.0.content", "must be a text or a list of parts, got None"),
        ([user({"type": "text"})], "messages.0.content", "must be a text or a list of parts"),
        ([user([image({})])], "messages.0.content.0.image_url.url", "got None"),
        (
            [user([{"type": "image_url", "image_url": {"url": "http://a/b.png"}}])],
            "messages.0.content.0.image_url.url",
            "a data: URL",
        ),
        (
            [user([{"type": "image_url", "image_url": {"url": "data:image/png,x"}}])],
            "messages.0.content.0.image_url.url",
            "base64",
        ),
        ([user([{"type": "image_url", "image_url": "x"}])], "messages.0.content.0", "'image_url' is not supported"),
        ([user([{"type": "input_audio"}])], "messages.0.content.0", "'input_audio' is not supported"),
        ([user(["text"])], "messages.0.content.0", "None is not supported"),
        ([user([{"type": ["text"]}])], "messages.0.content.0", "is not supported"),
        ([user([{"type": "text", "text": 5}])], "messages.0.content.0.text", "must be a text"),
        ([user(tool_calls=[])], "messages.0.tool_calls", "is not known"),
        ([user(), {"role": "assistant", "tool_calls": [1]}], "messages.1.tool_calls", "must be a list of calls"),
        ([user(), {"role": "assistant", "content": "x"}], "messages", "must end with a message of role 'user'"),
        ([{"role": "system", "content": "x"}], "messages", "there is none"),
    ],
)
def test_what_is_not_supported_is_named(messages: list[dict[str, Any]], field: str, part: str) -> None:
    found = refuse(*messages)
    assert found[0][0] == field
    assert part in found[0][1]


def test_ten_thousand_wrong_messages_are_described_by_twenty() -> None:
    assert len(refuse(*[{"role": 5}] * 10_000)) == 20
    assert len(refuse(user([{}] * 10_000))) == 20


def test_calls_of_tools_and_their_results_are_told_to_a_strategy_as_texts() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "open_file", "arguments": '{"path": "a"}'}}
    said = read_messages(
        [
            user("Read a."),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "42"},
            {"role": "assistant", "content": "It says 42."},
            user("And b?"),
        ]
    )
    texts = [message.text for message in said.history]
    assert texts == ["Read a.", '[Called open_file with {"path": "a"}]\n\n[A tool returned: 42]\n\nIt says 42.']
    assert said.query == "And b?"


def test_images_of_the_last_message_are_those_of_the_question_and_older_ones_are_named_in_a_warning() -> None:
    shown = image({"url": "data:image/png;base64,aGk="})
    said = read_messages([user([{"type": "text", "text": "What is it?"}, shown])])
    assert (said.query, [(each.media_type, each.base64) for each in said.images]) == (
        "What is it?",
        [("image/png", "aGk=")],
    )
    later = read_messages(
        [user([{"type": "text", "text": "a"}, shown]), {"role": "assistant", "content": "A cat."}, user("Sure?")]
    )
    assert (later.images, later.warnings) == ((), ("Images of earlier messages are not shown to the model.",))
