"""Estimates: additive, never larger than the number of bytes, rounded up, and closer with every report."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.llm.counting import ByteCounter, EstimatingCounter, Learner
from reasond_server.llm.counting.estimates import Calibration, count_at_least
from reasond_server.llm.counting.requests import count_bytes
from reasond_server.llm.model import Message, Role
from tests.unit.llm.counting.tokenizer_samples import SAMPLES

TEXTS = st.text(
    alphabet=st.one_of(st.sampled_from("abcXYZ  \n\t.,<>/0123456789é你😀_"), st.characters(codec=None)), max_size=120
)


def calibrate(*ratios: float) -> EstimatingCounter:
    counter = EstimatingCounter()
    for ratio in ratios:
        counter.observe(estimated=1000, reported=int(1000 * ratio))
    return counter


COUNTERS = st.sampled_from([calibrate(), calibrate(0.3, 0.3), calibrate(1.1, 0.9), calibrate(7.5, 7.0, 8.0)])


@given(COUNTERS, TEXTS, st.integers(-1, 60))
def test_a_head_is_the_longest_beginning_within_the_limit(counter: EstimatingCounter, text: str, limit: int) -> None:
    head = counter.head(text, limit)
    assert text.startswith(head)
    assert counter.count_text(head) <= max(0, limit)
    assert head == text or counter.count_text(text[: len(head) + 1]) > limit


@given(COUNTERS, TEXTS, st.integers(-1, 60))
def test_a_tail_is_the_longest_end_within_the_limit(counter: EstimatingCounter, text: str, limit: int) -> None:
    tail = counter.tail(text, limit)
    assert text.endswith(tail)
    assert counter.count_text(tail) <= max(0, limit)
    assert tail == text or counter.count_text(text[len(text) - len(tail) - 1 :]) > limit


@given(COUNTERS, TEXTS, TEXTS)
def test_a_joined_text_has_no_more_tokens_than_its_parts_and_no_fewer_than_either(
    counter: EstimatingCounter, one: str, other: str
) -> None:
    joined = counter.count_text(one + other)
    assert joined <= counter.count_text(one) + counter.count_text(other)
    assert joined >= max(counter.count_text(one), counter.count_text(other))


@given(COUNTERS, TEXTS)
def test_no_estimate_is_above_the_bytes(counter: EstimatingCounter, text: str) -> None:
    assert counter.count_text(text) <= ByteCounter().count_text(text)


def test_the_margin_falls_while_reports_agree_and_rises_when_they_do_not() -> None:
    assert Calibration().margin == pytest.approx(0.4)
    assert calibrate(2.0).calibration.margin == pytest.approx(0.4)
    steady = calibrate(*[2.0] * 20)
    assert steady.calibration.slope == pytest.approx(2.0, rel=0.1)
    assert steady.calibration.margin == pytest.approx(0.1, abs=0.02)
    steady.observe(estimated=1000, reported=3000)
    assert steady.calibration.slope > 2.1
    assert 0.15 < steady.calibration.margin < 0.4


@given(st.lists(st.floats(0.97, 1.03), min_size=2, max_size=40), st.floats(0.4, 4.0))
def test_a_model_whose_prompts_vary_by_three_per_cent_is_never_underestimated(noise: list[float], true: float) -> None:
    counter = EstimatingCounter()
    for each in noise:
        calibration = counter.calibration
        expected = calibration.upper_constant + 10_000 * calibration.upper_slope
        assert not calibration.reports or expected >= 10_000 * true * each
        counter.observe(estimated=10_000, reported=round(10_000 * true * each))


def test_reports_of_nothing_and_of_cut_prompts_teach_nothing() -> None:
    counter = EstimatingCounter()
    messages = [Message(role=Role.USER, content="wall " * 1000)]
    counter.learn(messages, 0)
    counter.learn(messages, 10)
    counter.learn([], 10)
    assert counter.calibration.reports == 0
    counter.learn(messages, 1000)
    assert counter.calibration.reports == 1
    assert isinstance(counter, Learner)
    assert not isinstance(ByteCounter(), Learner)
    assert not counter.is_exact


def test_learning_brings_the_estimate_of_a_prompt_to_just_above_the_truth() -> None:
    counter = EstimatingCounter()
    messages = [Message(role=Role.SYSTEM, content="Be brief."), Message(role=Role.USER, content="wall " * 1000)]
    for _ in range(10):
        counter.learn(messages, 1234)
    assert 1234 < counter.count_prompt(messages) < 1234 * 1.2


def test_english_prose_is_not_underestimated_before_any_report() -> None:
    prose = "It was a bright cold day in April, and the clocks were striking thirteen. " * 50
    # Usually a word is one token, and a punctuation mark too: 14 and 2 in every sentence.
    assert 50 * 16 <= EstimatingCounter().count_text(prose) <= 50 * 16 * 2


@pytest.mark.parametrize("script", SAMPLES)
def test_the_lower_estimate_is_below_the_truth_in_every_script(script: str) -> None:
    sample = SAMPLES[script]
    assert sample.fewest / 12 <= count_at_least(sample.text) < sample.fewest


@given(TEXTS)
def test_the_lower_estimate_is_at_most_a_quarter_of_the_bytes(text: str) -> None:
    # `usage_reports` relies on it, so that it need not count.
    assert 4 * count_at_least(text) <= count_bytes(text)


@pytest.mark.parametrize("script", SAMPLES)
def test_bytes_are_above_the_truth_in_every_script(script: str) -> None:
    sample = SAMPLES[script]
    # SentencePiece puts a blank before a text. The allowance for each message covers that token.
    assert ByteCounter().count_text(sample.text) + 1 >= sample.most


def test_reports_from_many_threads_do_not_break_it() -> None:
    counter = EstimatingCounter()

    def report() -> None:
        for _ in range(500):
            counter.observe(estimated=100, reported=150)

    threads = [threading.Thread(target=report) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 100 * counter.calibration.slope + counter.calibration.constant == pytest.approx(150, rel=0.05)


@pytest.mark.parametrize("unit", ["a", " ", ".", "你", " word", "\n \t", "1"])
def test_two_megabytes_of_anything_are_counted_and_cut_in_linear_time(unit: str) -> None:
    text = unit * (2_000_000 // len(unit))
    counter = EstimatingCounter()
    tokens = counter.count_text(text)
    assert counter.tail(text, tokens) == text
    assert counter.head(text, tokens) == text
