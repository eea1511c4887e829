"""The events of a response become text, reasoning, calls, an ending or an error; unknown events are ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.errors.model import ModelProtocolError
from reasond_server.llm.model import ModelFinish, ReasoningText, Text
from reasond_server.llm.openai.backend_options import BackendOptions
from reasond_server.llm.openai.protocol import AnswerEnd, UpstreamReportError
from reasond_server.llm.openai.responses import ResponsesProtocol
from reasond_server.types import ToolCall, Usage

OPTIONS = BackendOptions(name="b", model="m", base_url="http://127.0.0.1:1/v1", protocol="responses")
USAGE = {
    "input_tokens": 20,
    "output_tokens": 9,
    "total_tokens": 29,
    "input_tokens_details": {"cached_tokens": 8},
    "output_tokens_details": {"reasoning_tokens": 5},
}
MESSAGE = {"type": "message", "id": "m1", "content": [{"type": "output_text", "text": "42"}]}
CALL = {"type": "function_call", "id": "f1", "call_id": "c1", "name": "look", "arguments": '{"at":1}'}


def read(*events: dict[str, Any]) -> tuple[list[Text | ReasoningText | ToolCall], AnswerEnd]:
    decoder = ResponsesProtocol().build_decoder(OPTIONS)
    pieces = [piece for event in events for piece in decoder.feed(json.dumps(event).encode())]
    return pieces, decoder.find_end()


def delta(text: object, kind: str = "output_text", **more: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "delta": text, **more}


def completion_of(*output: object, kind: str = "completed", **more: Any) -> dict[str, Any]:
    response = {"status": kind, "output": list(output), "usage": USAGE, **more}
    return {"type": f"response.{kind}", "response": response}


def test_text_comes_from_the_deltas_and_is_not_repeated_from_the_items() -> None:
    done = {"type": "response.output_item.done", "item": MESSAGE}
    pieces, ending = read({"type": "response.created"}, delta("4"), delta("2"), delta(""), done, completion_of(MESSAGE))
    assert pieces == [Text(text="4"), Text(text="2")]
    assert ending.reason is ModelFinish.STOP
    assert ending.usage == Usage(
        input_tokens=20, output_tokens=9, cached_input_tokens=8, reasoning_tokens=5, model_calls=1
    )


def test_a_server_without_deltas_is_read_from_its_items_once() -> None:
    items: list[dict[str, Any]] = [
        {"type": "reasoning", "id": "r1", "summary": [{"type": "summary_text", "text": "Hm."}]},
        MESSAGE,
        {**MESSAGE, "id": "m2"},
    ]
    expected = [ReasoningText(text="Hm."), Text(text="42"), Text(text="42")]
    done = [{"type": "response.output_item.done", "item": item} for item in items]
    assert read(*done, completion_of(*items))[0] == expected
    assert read(completion_of(*items))[0] == expected


def test_reasoning_or_its_summary_is_passed_on_but_not_both() -> None:
    pieces, _ = read(delta("a", "reasoning_text"), delta("b", "reasoning_summary_text"), delta("c", "reasoning_text"))
    assert pieces == [ReasoningText(text="a"), ReasoningText(text="c")]
    assert read(delta("b", "reasoning_summary_text"))[0] == [ReasoningText(text="b")]


def test_reasoning_that_is_left_in_the_text_is_told_apart() -> None:
    pieces, _ = read(delta("<thi"), delta("nk>Hm"), delta("</think>"), delta("42"), completion_of())
    assert pieces == [ReasoningText(text="Hm"), Text(text="42")]


def test_what_was_held_back_comes_with_the_end() -> None:
    assert read(delta("<thi"), completion_of())[0] == [Text(text="<thi")]


def test_a_call_comes_once_and_whole() -> None:
    begun = {"type": "response.output_item.added", "item": {**CALL, "arguments": ""}}
    grown = [delta(piece, "function_call_arguments", item_id="f1") for piece in ('{"at"', ":1}", None)]
    ended = {"type": "response.function_call_arguments.done", "item_id": "f1", "arguments": '{"at":1}'}
    done = {"type": "response.output_item.done", "item": CALL}
    whole = ToolCall(call_id="c1", name="look", arguments_json='{"at":1}')
    pieces, ending = read(begun, *grown, ended, done, completion_of(CALL))
    assert pieces == [whole]
    assert ending.reason is ModelFinish.TOOL_CALLS
    assert read(done)[0] == read(completion_of(CALL))[0] == [whole]
    del ended["arguments"]
    assert read(begun, *grown, ended)[0] == [whole]


def test_calls_without_item_ids_are_told_apart_by_their_place() -> None:
    events: list[dict[str, Any]] = []
    for place, name in enumerate(("a", "b")):
        item = {"type": "function_call", "call_id": name, "name": name}
        events.append({"type": "response.output_item.added", "output_index": place, "item": item})
    events += [delta(f'{{"at":{place}}}', "function_call_arguments", output_index=place) for place in (1, 0)]
    events += [{"type": "response.function_call_arguments.done", "output_index": place} for place in (0, 1)]
    pieces, _ = read(*events)
    assert pieces == [
        ToolCall(call_id="a", name="a", arguments_json='{"at":0}'),
        ToolCall(call_id="b", name="b", arguments_json='{"at":1}'),
    ]


def test_a_call_whose_name_comes_late_waits_for_it_and_one_without_is_refused() -> None:
    begun = {"type": "response.output_item.added", "item": {"type": "function_call", "id": "f1"}}
    ended = {"type": "response.function_call_arguments.done", "item_id": "f1", "arguments": "{}"}
    done = {"type": "response.output_item.done", "item": {**CALL, "arguments": "{}"}}
    assert read(begun, ended, done)[0] == [ToolCall(call_id="c1", name="look", arguments_json="{}")]
    with pytest.raises(ModelProtocolError, match="a call of tool None"):
        read({"type": "response.output_item.done", "item": {"type": "function_call", "id": "f1"}})


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ({"reason": "max_output_tokens"}, ModelFinish.LENGTH),
        ({"reason": "content_filter"}, ModelFinish.CONTENT_FILTER),
        ({"reason": "something new"}, ModelFinish.LENGTH),
        (None, ModelFinish.LENGTH),
    ],
)
def test_an_incomplete_response_says_why(details: object, reason: ModelFinish) -> None:
    assert read(completion_of(kind="incomplete", incomplete_details=details))[1].reason is reason


@pytest.mark.parametrize(
    ("max_tokens", "more", "reason"),
    [
        (9, {}, ModelFinish.LENGTH),
        (8, {}, ModelFinish.LENGTH),
        (10, {}, ModelFinish.STOP),
        (0, {}, ModelFinish.STOP),
        (9, {"max_output_tokens": 9}, ModelFinish.STOP),
        (9, {"usage": None}, ModelFinish.STOP),
    ],
)
def test_llama_cpp_calls_a_response_complete_that_ended_at_its_limit(
    max_tokens: int, more: dict[str, Any], reason: ModelFinish
) -> None:
    decoder = ResponsesProtocol().build_decoder(OPTIONS, max_tokens=max_tokens)
    decoder.feed(json.dumps(completion_of(**more)).encode())
    assert decoder.find_end().reason is reason


def test_a_refusal_is_kept_and_counts_as_withheld() -> None:
    pieces, ending = read(delta("I will not.", "refusal"), completion_of())
    assert pieces == [Text(text="I will not.")]
    assert ending.reason is ModelFinish.CONTENT_FILTER
    item = {"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}
    pieces, ending = read(completion_of(item))
    assert (pieces, ending.reason) == ([Text(text="No.")], ModelFinish.CONTENT_FILTER)


@pytest.mark.parametrize(
    ("event", "report"),
    [
        ({"type": "response.failed", "response": {"error": {"code": "server_error"}}}, {"code": "server_error"}),
        ({"type": "error", "error": {"message": "boom"}}, {"message": "boom"}),
        ({"error": {"message": "boom"}}, {"message": "boom"}),
        ({"type": "error", "code": "x", "message": "boom"}, {"type": "error", "code": "x", "message": "boom"}),
        ({"type": "response.failed", "response": {}}, None),
    ],
)
def test_errors_that_the_server_tells_are_passed_on(event: dict[str, Any], report: object) -> None:
    with pytest.raises(UpstreamReportError) as caught:
        read(event)
    assert caught.value.report == report


@pytest.mark.parametrize("data", [b"", b"null"])
def test_events_without_anything_are_passed_over(data: bytes) -> None:
    assert not ResponsesProtocol().build_decoder(OPTIONS).feed(data)


@pytest.mark.parametrize("data", [b"{", b"[1]", b'"text"', b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json_object_breaks_the_protocol(data: bytes) -> None:
    with pytest.raises(ModelProtocolError):
        ResponsesProtocol().build_decoder(OPTIONS).feed(data)


@pytest.mark.parametrize("usage", [None, [], {}, {"input_tokens": -1, "output_tokens": 0}, {"input_tokens": True}])
def test_a_usage_that_is_none_is_none(usage: object) -> None:
    assert read({"type": "response.completed", "response": {"usage": usage}})[1].usage is None


def test_a_call_that_the_limit_cut_is_not_passed_on_and_one_with_strange_arguments_is() -> None:
    def read_end(arguments: str, **how: Any) -> tuple[list[Text | ReasoningText | ToolCall], ModelFinish | None]:
        pieces, ending = read({"type": "response.output_item.done", "item": {**CALL, "arguments": arguments}}, how)
        return pieces, ending.reason

    cut = completion_of(kind="incomplete")
    assert read_end('{"at":', **cut) == ([], ModelFinish.LENGTH)
    assert read_end('{"at":1}', **cut) == (
        [ToolCall(call_id="c1", name="look", arguments_json='{"at":1}')],
        ModelFinish.LENGTH,
    )
    strange = ToolCall(call_id="c1", name="look", arguments_json="[")
    assert read_end("[", **completion_of()) == ([strange], ModelFinish.TOOL_CALLS)
    assert read_end("", **completion_of())[0] == [ToolCall(call_id="c1", name="look", arguments_json="{}")]


def test_a_call_at_the_limit_of_a_server_that_calls_it_completed_is_cut() -> None:
    decoder = ResponsesProtocol().build_decoder(OPTIONS, max_tokens=9)
    for one in ({"type": "response.output_item.done", "item": {**CALL, "arguments": "{"}}, completion_of()):
        assert not decoder.feed(json.dumps(one).encode())
    assert decoder.find_end().reason is ModelFinish.LENGTH


def test_text_that_was_held_back_for_a_tag_comes_where_the_answer_breaks_off() -> None:
    decoder = ResponsesProtocol().build_decoder(OPTIONS)
    assert not decoder.feed(json.dumps(delta("<thi")).encode())
    assert decoder.flush() == [Text(text="<thi")]
    assert not decoder.flush()


def test_without_an_end_there_is_no_reason() -> None:
    assert read(delta("42"))[1] == AnswerEnd()


NAMES = ["type", "item", "response", "delta", "item_id", "output_index", "output", "usage", "error", "arguments"]
NAMES += ["content", "summary", "text", "call_id", "name", "id", "status", "incomplete_details", "input_tokens"]
KINDS = ["output_text.delta", "refusal.delta", "reasoning_text.delta", "output_item.added", "output_item.done"]
KINDS += ["function_call_arguments.delta", "function_call_arguments.done", "completed", "incomplete", "failed"]
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-1, 3)
    | st.sampled_from(["a", "", "function_call", "message", "reasoning", "<think>"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=12,
)
EVENTS = st.builds(
    lambda kind, rest: {**rest, "type": f"response.{kind}"},
    st.sampled_from(KINDS),
    st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6),
)


@pytest.mark.slow
@given(events=st.lists(EVENTS, max_size=6))
def test_no_event_however_malformed_raises_anything_but_our_errors(events: list[dict[str, Any]]) -> None:
    try:
        pieces, _ = read(*events)
    except (ModelProtocolError, UpstreamReportError):
        return
    for piece in pieces:
        text = piece.arguments_json if isinstance(piece, ToolCall) else piece.text
        assert isinstance(text, str)
