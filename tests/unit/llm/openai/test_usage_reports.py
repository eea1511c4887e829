from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.llm.counting import ByteCounter, EstimatingCounter, WordPieceCounter
from reasond_server.llm.model import Message, Role
from reasond_server.llm.openai.usage_reports import complete_usage, warn_of_truncation
from reasond_server.types import Usage, UsageSource

LONG = [Message(role=Role.USER, content="word " * 1000)]


def report(tokens: int) -> Usage:
    return Usage(input_tokens=tokens, output_tokens=1, model_calls=1)


@pytest.mark.parametrize(("tokens", "is_warned"), [(699, True), (710, False), (1004, False), (3000, False), (0, False)])
def test_an_exact_count_warns_below_seventy_per_cent(tokens: int, *, is_warned: bool) -> None:
    counter = WordPieceCounter()
    assert counter.count_prompt(LONG) == pytest.approx(1004, abs=2)
    assert bool(warn_of_truncation(report(tokens), messages=LONG, counter=counter)) == is_warned


@pytest.mark.parametrize(("tokens", "is_warned"), [(624, True), (625, False), (1000, False)])
def test_an_estimate_warns_below_half_of_a_quarter_of_the_bytes(tokens: int, *, is_warned: bool) -> None:
    assert bool(warn_of_truncation(report(tokens), messages=LONG, counter=ByteCounter())) == is_warned


def test_a_short_prompt_and_a_missing_report_are_not_judged() -> None:
    short = [Message(role=Role.USER, content="hello")]
    assert not warn_of_truncation(report(1), messages=short, counter=WordPieceCounter())
    assert not warn_of_truncation(None, messages=LONG, counter=WordPieceCounter())


def test_without_a_report_all_is_counted_here() -> None:
    usage = complete_usage(None, messages=LONG, written="one two", counter=WordPieceCounter())
    assert (usage.output_tokens, usage.model_calls, usage.source) == (2, 1, UsageSource.ESTIMATED)


@pytest.mark.parametrize(("counter", "too_few"), [(WordPieceCounter(), 250), (ByteCounter(), 78)])
def test_far_fewer_tokens_than_came_are_not_believed(counter: WordPieceCounter | ByteCounter, too_few: int) -> None:
    written = "word " * 500
    lie = Usage(input_tokens=7, output_tokens=too_few, model_calls=1)
    mended = complete_usage(lie, messages=LONG, written=written, counter=counter)
    assert (mended.output_tokens, mended.source) == (counter.count_text(written), UsageSource.PARTIAL)
    truth = Usage(input_tokens=7, output_tokens=too_few + 1, model_calls=1)
    assert complete_usage(truth, messages=LONG, written=written, counter=counter) == truth


def test_one_token_for_a_short_run_of_signs_is_believed() -> None:
    told = Usage(input_tokens=7, output_tokens=1, model_calls=1)
    assert complete_usage(told, messages=LONG, written="=" * 255, counter=ByteCounter()) == told


@given(st.lists(st.text(max_size=400), max_size=3), st.integers(1, 400))
def test_the_estimate_is_made_only_where_it_can_matter_and_the_warning_is_the_same(
    texts: list[str], tokens: int
) -> None:
    messages = [Message(role=Role.USER, content=text) for text in texts]
    counter = EstimatingCounter()
    size = sum(len(text.encode("utf-8", "replace")) for text in texts)
    expected = min(counter.count_prompt(messages), size // 4)
    is_warned = expected >= 64 and tokens < expected * 0.5
    assert bool(warn_of_truncation(report(tokens), messages=messages, counter=counter)) == is_warned
