import hashlib
import json
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.errors.model import ModelRateLimitedError
from reasond_server.llm.model import ChatRequest, Finished, Message, ModelFinish, ReasoningText, Role, Text, ToolSpec
from reasond_server.runs.recorded_calls import (
    AnswerParts,
    RecordedCall,
    ReplayError,
    compute_messages_digest,
    compute_older_digest,
    compute_request_digest,
    decode_call,
    decode_count,
    encode_call,
    encode_count,
    read_settings,
    read_usage,
)
from reasond_server.types import TokenChance, ToolCall, Usage, UsageSource

ANY = st.text(st.characters(), max_size=30)
USAGES = st.builds(
    Usage,
    input_tokens=st.integers(0, 10**9),
    output_tokens=st.integers(0, 10**9),
    model_calls=st.integers(0, 3),
    source=st.sampled_from(UsageSource),
)
TOKENS = st.builds(
    TokenChance,
    text=ANY,
    logprob=st.floats(-9999, 0),
    top=st.lists(st.tuples(ANY, st.floats(-9999, 0)), max_size=2).map(tuple),
)
EVENTS = st.one_of(
    st.builds(Text, text=ANY),
    st.builds(ReasoningText, text=ANY),
    st.builds(ToolCall, call_id=ANY, name=ANY, arguments_json=ANY),
    st.builds(
        Finished,
        reason=st.sampled_from(ModelFinish),
        usage=USAGES,
        matched_stop=st.none() | ANY,
        warnings=st.lists(ANY, max_size=2).map(tuple),
        model=ANY,
        tokens=st.lists(TOKENS, max_size=2).map(tuple),
    ),
)
REQUEST = ChatRequest(messages=[Message(role=Role.USER, content="why?")], max_tokens=10)


@given(st.lists(EVENTS, max_size=5).map(tuple), USAGES, st.booleans())
def test_a_call_is_read_as_it_was_written(events: tuple[Text, ...], usage: Usage, is_clamped: bool) -> None:  # noqa: FBT001 - drawn by hypothesis
    call = RecordedCall(events=events, usage=usage, is_clamped=is_clamped)
    assert decode_call(encode_call(call)) == call
    assert read_usage(encode_call(call)) == usage


def test_an_error_keeps_its_class_its_texts_and_its_wait() -> None:
    error = ModelRateLimitedError("slow down", remedy="Wait.", metadata={"a": "b"}, retry_after_s=3.0)
    kept = decode_call(encode_call(RecordedCall(events=(), usage=Usage(), error=error))).error
    assert isinstance(kept, ModelRateLimitedError)
    assert (kept.message, kept.remedy, kept.metadata, kept.retry_after_s) == ("slow down", "Wait.", {"a": "b"}, 3.0)


@pytest.mark.parametrize("count", [None, 0, 7])
def test_a_count_is_read_as_it_was_written(count: int | None) -> None:
    assert decode_count(encode_count(count)) == count
    assert read_usage(encode_count(count)) == Usage()


def test_a_record_of_another_version_is_refused() -> None:
    row = json.loads(encode_count(1))
    with pytest.raises(ReplayError, match="another version"):
        decode_count(json.dumps({**row, "v": 2}))


@given(st.lists(st.sampled_from([Text(text="a"), Text(text="b"), ReasoningText(text="r")])))
def test_joined_pieces_say_the_same_in_the_same_order(events: list[Text | ReasoningText]) -> None:
    parts = AnswerParts()
    for event in events:
        parts.add(event)
    heard = [event for event in parts.join() if isinstance(event, Text | ReasoningText)]
    for kind in (Text, ReasoningText):
        assert "".join(e.text for e in heard if isinstance(e, kind)) == "".join(
            e.text for e in events if isinstance(e, kind)
        )
    assert all(type(one) is not type(other) for one, other in pairwise(heard))


@pytest.mark.parametrize(
    "other",
    [
        replace(REQUEST, label="sample 1"),
        replace(REQUEST, tool_choice="none"),
        replace(REQUEST, json_schema={"type": "object"}),
        replace(REQUEST, tools=[ToolSpec(name="t", description="d", parameters={})]),
        replace(REQUEST, messages=[Message(role=Role.SYSTEM, content="why?")]),
        replace(REQUEST, messages=[Message(role=Role.USER, content="why"), Message(role=Role.USER, content="?")]),
        replace(REQUEST, messages=[Message(role=Role.USER, content="why?", reasoning="r")]),
        replace(
            REQUEST,
            messages=[
                Message(role=Role.USER, content="why?", tool_calls=[ToolCall(call_id="1", name="n", arguments_json="")])
            ],
        ),
    ],
)
def test_whatever_a_model_is_asked_in_other_words_has_another_digest(other: ChatRequest) -> None:
    assert compute_request_digest(other) != compute_request_digest(REQUEST)


@pytest.mark.parametrize(
    "other",
    [
        replace(REQUEST, max_tokens=11),
        replace(REQUEST, temperature=0.1),
        replace(REQUEST, top_p=0.1),
        replace(REQUEST, stop=["x"]),
        replace(REQUEST, seed=1),
    ],
)
def test_parameters_that_are_no_words_are_told_beside_the_digest(other: ChatRequest) -> None:
    assert compute_request_digest(other) == compute_request_digest(REQUEST)
    assert compute_older_digest(other) != compute_older_digest(REQUEST)
    assert read_settings(other) != read_settings(REQUEST)


def test_the_time_that_is_left_is_no_part_of_a_request() -> None:
    later = replace(REQUEST, time_left_s=3.0)
    assert compute_request_digest(later) == compute_request_digest(REQUEST)
    assert compute_older_digest(later) == compute_older_digest(REQUEST)
    assert compute_messages_digest(REQUEST.messages) == compute_messages_digest(tuple(REQUEST.messages))


def digest_as_first_written(*texts: str) -> str:
    """Return the digest that logs have contained since version 1 of records, computed in the simplest way."""
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(b"%d:" % len(encoded))
        digest.update(encoded)
    return digest.hexdigest()


@given(
    st.lists(
        st.builds(
            Message,
            role=st.sampled_from(Role),
            content=ANY,
            tool_calls=st.lists(st.builds(ToolCall, call_id=ANY, name=ANY, arguments_json=ANY), max_size=1),
            tool_call_id=st.just("") | ANY,
            reasoning=st.just("") | ANY,
        ),
        max_size=4,
    )
)
def test_digests_stay_what_logs_hold_already(messages: list[Message]) -> None:
    texts: list[str] = []
    for one in messages:
        calls = [[call.call_id, call.name, call.arguments_json] for call in one.tool_calls]
        texts += (one.content, json.dumps([one.role, one.tool_call_id, one.reasoning, calls]))
    assert compute_messages_digest(messages) == digest_as_first_written(*texts)
