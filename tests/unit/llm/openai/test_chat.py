from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.errors.model import ModelProtocolError
from reasond_server.llm.model import ChatRequest, ImagePart, Message, ModelFinish, ReasoningText, Role, Text
from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.chat import ChatCompletions, ChatDecoder, build_messages
from reasond_server.llm.openai.protocol import UpstreamReportError
from reasond_server.llm.profiles import ModelProfile
from reasond_server.types import ToolCall

OPTIONS = BackendOptions(name="main", model="m", base_url="http://127.0.0.1/v1")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["stop", "a", "<think>"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "choices",
                    "delta",
                    "content",
                    "usage",
                    "tool_calls",
                    "function",
                    "name",
                    "index",
                    "error",
                    "finish_reason",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


def feed(*choices: dict[str, Any], profile: ModelProfile | None = None) -> tuple[ChatDecoder, list[Any]]:
    decoder = ChatDecoder(profile=profile or ModelProfile())
    pieces = [piece for choice in choices for piece in decoder.feed(json.dumps({"choices": [choice]}).encode())]
    return decoder, pieces


def delta(**fields: Any) -> dict[str, Any]:
    return {"index": 0, "delta": fields}


@given(st.lists(JSON, max_size=5))
def test_any_json_is_read_or_refused_as_ours(values: list[Any]) -> None:
    decoder = ChatCompletions().build_decoder(OPTIONS)
    for value in values:
        try:
            decoder.feed(json.dumps(value).encode())
        except (ModelProtocolError, UpstreamReportError):
            return
    decoder.find_end()


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content", "thought"])
def test_reasoning_is_read_from_the_common_fields_and_the_profiles(name: str) -> None:
    _, pieces = feed(delta(**{name: "hm"}), profile=ModelProfile(reasoning_fields=("thought",)))
    assert pieces == [ReasoningText(text="hm")]


def test_reasoning_that_stands_in_two_fields_is_taken_once() -> None:
    assert feed(delta(reasoning="hm", reasoning_content="hm"))[1] == [ReasoningText(text="hm")]


def test_content_in_parts_and_a_whole_message_are_read() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "image"}, 3, {"type": "text", "text": "lo"}]
    assert feed(delta(content=parts))[1] == [Text(text="Hel"), Text(text="lo")]
    assert feed({"message": {"content": "Hello"}, "finish_reason": "stop"})[1] == [Text(text="Hello")]


def test_calls_of_tools_are_put_together_and_passed_on_at_the_end() -> None:
    decoder, pieces = feed(
        delta(tool_calls=[{"index": 1, "id": "b", "function": {"name": "g", "arguments": ""}}]),
        delta(tool_calls=[{"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x'}}, None, {"index": 0}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '":1}'}}]),
        delta(tool_calls=[{"index": 2, "function": {"arguments": "no name"}}]),
    )
    assert pieces == []
    assert decoder.held_characters == len('{"x":1}') + len("no name") + 2
    _, pieces = feed(delta(tool_calls=[{"function": {"name": "f"}}]) | {"finish_reason": "stop"})
    assert pieces == [ToolCall(call_id="call_0", name="f", arguments_json="{}")]
    ended = decoder.feed(b'{"choices": [{"finish_reason": "stop"}]}')
    assert ended == [
        ToolCall(call_id="a", name="f", arguments_json='{"x":1}'),
        ToolCall(call_id="b", name="g", arguments_json="{}"),
    ]
    assert decoder.find_end().reason is ModelFinish.TOOL_CALLS


@pytest.mark.parametrize("name", ["stop_reason", "matched_stop", "stop_sequence", "stopping_word", "halted_by"])
def test_the_stop_string_that_matched_is_read_where_it_is_told(name: str) -> None:
    profile = ModelProfile(stop_match_fields=("halted_by",))
    decoder, _ = feed({"index": 0, "finish_reason": "stop", name: "</answer>"}, profile=profile)
    assert decoder.find_end().matched_stop == "</answer>"


@pytest.mark.parametrize("value", [128_009, None, "", "stop", "end_turn", ["x"]])
def test_token_ids_and_reasons_are_no_stop_strings(value: object) -> None:
    decoder, _ = feed({"index": 0, "finish_reason": "stop", "stop_reason": value})
    assert decoder.find_end().matched_stop is None


def decode_calls(*pieces: dict[str, Any], finish: str = "tool_calls") -> list[Any]:
    decoder = ChatDecoder(profile=ModelProfile())
    fed = [{"choices": [{"delta": {"tool_calls": [piece]}}]} for piece in pieces]
    return [
        piece
        for one in (*fed, {"choices": [{"finish_reason": finish}]})
        for piece in decoder.feed(json.dumps(one).encode())
    ]


def test_calls_under_one_index_are_told_apart_by_their_ids() -> None:
    one, other = ({"index": 0, "id": id_, "function": {"name": "f", "arguments": '{"x":'}} for id_ in "ab")
    rest = {"index": 0, "function": {"arguments": "1}"}}
    repeated = {"index": 0, "id": "b", "function": {"arguments": "1}"}}
    assert decode_calls(one, rest, other, repeated) == [
        ToolCall(call_id=id_, name="f", arguments_json='{"x":1}') for id_ in "ab"
    ]


@pytest.mark.parametrize("finish", ["length", "content_filter"])
def test_of_an_answer_that_was_cut_only_whole_calls_are_passed_on(finish: str) -> None:
    whole = {"index": 0, "id": "a", "function": {"name": "f", "arguments": '{"x":1}'}}
    cut = {"index": 1, "id": "b", "function": {"name": "g", "arguments": '{"x":1'}}
    assert decode_calls(whole, cut, finish=finish) == [ToolCall(call_id="a", name="f", arguments_json='{"x":1}')]
    assert len(decode_calls(whole, cut)) == 2


def test_text_that_was_held_back_for_a_tag_comes_where_the_answer_breaks_off() -> None:
    decoder = ChatDecoder(profile=ModelProfile())
    decoder.feed(json.dumps({"choices": [{"delta": {"content": "<think>so</thi"}}]}).encode())
    assert decoder.flush() == [ReasoningText(text="</thi")]
    assert not decoder.flush()


def test_a_think_tag_that_never_closed_is_reasoning() -> None:
    _, pieces = feed(delta(content="<think>hm</thi"), {"index": 0, "finish_reason": "length"})
    assert pieces == [ReasoningText(text="hm"), ReasoningText(text="</thi")]


def test_images_are_parts_of_the_users_message() -> None:
    image = ImagePart(media_type="image/png", base64="iVBORw0KGgo=", tokens=900)
    message = Message(role=Role.USER, content="Why?", images=(image,))
    assert build_messages(ChatRequest(messages=(message,), max_tokens=9), OPTIONS) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Why?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
            ],
        }
    ]
