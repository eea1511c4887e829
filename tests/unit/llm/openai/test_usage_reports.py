from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.dialects.usage_forms import read_report
from reasond_server.llm.counting import ByteCounter, EstimatingCounter, WordPieceCounter
from reasond_server.llm.model import ChatRequest, Message, Role, ToolSpec
from reasond_server.llm.openai.usage_reports import build_usage, settle_usage, warn_of_truncation
from reasond_server.types import ToolCall, Usage, UsageSource
from tests.unit.llm.counting.tokenizer_samples import SAMPLES

if TYPE_CHECKING:
    from reasond_server.llm.model import TokenCounter

LONG = [Message(role=Role.USER, content="word " * 1000)]
LONG_BYTES = 5000
ASK = ChatRequest(messages=LONG, max_tokens=2000)


def report(tokens: int) -> Usage:
    return Usage(input_tokens=tokens, output_tokens=1, model_calls=1)


@pytest.mark.parametrize(("tokens", "is_warned"), [(699, True), (710, False), (1004, False), (3000, False)])
def test_an_exact_count_warns_below_seventy_per_cent(tokens: int, *, is_warned: bool) -> None:
    counter = WordPieceCounter()
    assert counter.count_prompt(LONG) == pytest.approx(1004, abs=2)
    assert bool(warn_of_truncation(report(tokens), LONG, LONG_BYTES, counter=counter)) == is_warned


@pytest.mark.parametrize(("tokens", "is_warned"), [(624, True), (625, False), (1000, False)])
def test_an_estimate_warns_below_half_of_a_quarter_of_the_bytes(tokens: int, *, is_warned: bool) -> None:
    assert bool(warn_of_truncation(report(tokens), LONG, LONG_BYTES, counter=ByteCounter())) == is_warned


def test_a_short_prompt_and_a_missing_report_are_not_judged() -> None:
    short = [Message(role=Role.USER, content="hello")]
    assert not warn_of_truncation(report(1), short, 5, counter=WordPieceCounter())
    for missing in (report(0), None):
        assert not settle_usage(missing, request=ASK, written="x", counter=WordPieceCounter())[1]


def settle(
    reported: Usage | None, written: str, counter: TokenCounter, request: ChatRequest = ASK
) -> tuple[Usage, list[str]]:
    usage, warnings = settle_usage(reported, request=request, written=written, counter=counter)
    return usage, [*warnings]


def test_without_a_report_all_is_counted_here() -> None:
    usage, _ = settle(None, "one two", WordPieceCounter())
    assert (usage.output_tokens, usage.model_calls, usage.source) == (2, 1, UsageSource.ESTIMATED)


@pytest.mark.parametrize(("counter", "too_few"), [(WordPieceCounter(), 250), (ByteCounter(), 279)])
def test_far_fewer_tokens_than_came_are_not_believed(counter: WordPieceCounter | ByteCounter, too_few: int) -> None:
    written = "word " * 500
    lie = Usage(input_tokens=1000, output_tokens=too_few, model_calls=1)
    mended, _ = settle(lie, written, counter)
    assert (mended.output_tokens, mended.source) == (counter.count_text(written), UsageSource.PARTIAL)
    truth = Usage(input_tokens=1000, output_tokens=too_few + 1, model_calls=1)
    assert settle(truth, written, counter) == (truth, [])


def test_one_token_for_a_short_run_of_signs_is_believed() -> None:
    told = Usage(input_tokens=1000, output_tokens=1, model_calls=1)
    assert settle(told, "=" * 255, ByteCounter()) == (told, [])


@pytest.mark.parametrize("counter", [EstimatingCounter(), ByteCounter()], ids=["estimate", "bytes"])
@pytest.mark.parametrize("script", SAMPLES)
def test_the_fewest_tokens_that_a_text_can_have_are_believed_in_every_script(
    script: str, counter: TokenCounter
) -> None:
    sample = SAMPLES[script]
    told = Usage(input_tokens=1000, output_tokens=4 * sample.fewest, model_calls=1)
    assert settle(told, 4 * sample.text, counter) == (told, [])


@pytest.mark.parametrize("impossible", [200_000, 999_999_999, 10**30])
def test_more_tokens_than_there_can_be_give_way_to_our_count_with_a_warning(impossible: int) -> None:
    counter, written = WordPieceCounter(), "one two three"
    told = read_report({"prompt_tokens": impossible, "completion_tokens": impossible, "cached_tokens": impossible})
    assert told is not None
    reported = build_usage(told)
    usage, warnings = settle(reported, written, counter)
    assert (usage.input_tokens, usage.output_tokens) == (counter.count_prompt(LONG), counter.count_text(written))
    assert usage.cached_input_tokens <= usage.input_tokens
    assert usage.source is UsageSource.ESTIMATED
    assert len(warnings) == 2
    assert all("our own count takes their place" in warning for warning in warnings)


def test_what_a_server_may_hide_is_believed_with_a_warning() -> None:
    hidden = Usage(input_tokens=25_000, output_tokens=5_000, model_calls=1)
    usage, warnings = settle(hidden, "one two three", ByteCounter())
    assert usage == hidden
    assert ["adds a prompt of its own" in warnings[0], "beyond max_tokens unseen" in warnings[1]] == [True, True]


def test_a_template_and_hidden_reasoning_within_the_limit_are_no_reason_for_a_warning() -> None:
    told = Usage(input_tokens=len(LONG[0].content) + 600, output_tokens=ASK.max_tokens, model_calls=1)
    assert settle(told, "yes", ByteCounter()) == (told, [])


def test_tools_calls_and_schemas_are_part_of_what_is_counted_here() -> None:
    counter = WordPieceCounter()
    tool = ToolSpec(name="look", description="Looks at walls. " * 60, parameters={"type": "object"})
    call = ToolCall(call_id="c1", name="look", arguments_json='{"at": "' + "wall " * 60 + '"}')
    told = [*LONG, Message(role=Role.ASSISTANT, content="", tool_calls=(call,))]
    bare, _ = settle(None, "so", counter, replace(ASK, messages=told))
    for changes, least in (({"tools": (tool,)}, 180), ({"json_schema": {"title": "wall " * 40}}, 40)):
        usage, _ = settle(None, "so", counter, replace(ASK, messages=told, **changes))
        assert usage.input_tokens >= bare.input_tokens + least
    assert bare.input_tokens >= counter.count_prompt(told) + 60
    reported = Usage(input_tokens=bare.input_tokens + 1500, output_tokens=3, model_calls=1)
    assert settle(reported, "so", counter, replace(ASK, messages=told, tools=(tool,)))[1] == []


@pytest.mark.slow
@given(st.lists(st.text(max_size=400), max_size=3), st.integers(1, 400))
def test_the_estimate_is_made_only_where_it_can_matter_and_the_warning_is_the_same(
    texts: list[str], tokens: int
) -> None:
    messages = [Message(role=Role.USER, content=text) for text in texts]
    counter = EstimatingCounter()
    size = sum(len(text.encode("utf-8", "replace")) for text in texts)
    expected = min(counter.count_prompt(messages), size // 4)
    is_warned = expected >= 64 and tokens < expected * 0.5
    assert bool(warn_of_truncation(report(tokens), messages, size, counter=counter)) == is_warned
