"""Savings follow the formulas of the module and keep their sign."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from reasond_server.context.window_accounts import OnePassPrompt, SavingsMeter, WindowAccounts
from reasond_server.context.window_fitting import FittedWindow
from reasond_server.context.window_plan import Window, WindowLimits, plan_windows
from reasond_server.llm.counting import ByteCounter, WordPieceCounter
from reasond_server.types import ReadingProgress, Savings, SavingsBaseline, Usage, UsageSource

if TYPE_CHECKING:
    from reasond_server.llm.model import TokenCounter


def meter(*windows: tuple[int, int]) -> SavingsMeter:
    made = SavingsMeter()
    for given, written in windows:
        made.add(Usage(input_tokens=given, output_tokens=written, model_calls=1))
    return made


def compare(made: SavingsMeter, prompt: int, baseline: SavingsBaseline = SavingsBaseline.SINGLE_PASS) -> Savings:
    savings = made.compare(baseline, prompt_tokens=prompt)
    assert savings is not None
    assert savings.baseline is baseline
    return savings


def test_one_window_saves_nothing_and_is_not_compared() -> None:
    for made in (meter(), meter((10, 5))):
        assert all(made.compare(baseline, prompt_tokens=10) is None for baseline in SavingsBaseline)


def test_two_windows_are_compared_with_one_pass() -> None:
    savings = compare(meter((10, 10), (14, 6)), 20)
    # Attention: 2 T(20) = 420 against T(36) = 666.
    # KV reads: T(20) - T(10) = 155 and T(20) - T(14) = 105 against T(36) - T(20) = 456.
    assert savings.attention_pct == pytest.approx(100 * (1 - 420 / 666))
    assert savings.kv_read_pct == pytest.approx(100 * (1 - 260 / 456))
    assert savings.tokens_pct == pytest.approx(100 * (1 - 40 / 36))
    assert savings.peak_context_pct == pytest.approx(100 * (1 - 20 / 36))
    assert savings.tokens_pct < 0


def test_the_published_case_comes_out() -> None:
    """The published figures, in per cent: a prompt of 500 tokens, chunks of 8192, carryovers of 4096, five windows."""
    savings = compare(meter((500, 8192), *[(4596, 4096)] * 4), 500)
    assert [round(one) for one in (savings.tokens_pct, savings.attention_pct, savings.kv_read_pct)] == [-73, 40, 53]
    assert round(savings.peak_context_pct) == 65


def test_reprompting_sends_all_that_was_written_again_for_every_window_that_reasons() -> None:
    savings = compare(meter((10, 10), (14, 6)), 20, SavingsBaseline.REPROMPT)
    # 20 + 10 tokens in the first step, 20 + 16 in the second; T(30) = 465 and T(36) = 666.
    assert savings.tokens_pct == pytest.approx(100 * (1 - 40 / 66))
    assert savings.attention_pct == pytest.approx(100 * (1 - 420 / (465 + 666)))
    assert savings.kv_read_pct == pytest.approx(100 * (1 - 260 / 456))


def test_reading_windows_are_no_steps_of_reprompting() -> None:
    made = SavingsMeter()
    for is_reading in (True, True):
        made.add(Usage(input_tokens=10, output_tokens=5, model_calls=1), is_reading=is_reading)
    assert compare(made, 20, SavingsBaseline.REPROMPT).tokens_pct == compare(made, 20).tokens_pct == 0.0
    made.add(Usage(input_tokens=10, output_tokens=5, model_calls=1))
    assert compare(made, 20, SavingsBaseline.REPROMPT).tokens_pct == pytest.approx(100 * (1 - 45 / 35))


def test_calls_for_carryovers_are_spent_and_no_baseline_makes_them() -> None:
    made = meter((10, 10), (14, 6))
    made.add_carryover(Usage(input_tokens=20, output_tokens=4, model_calls=1))
    assert compare(made, 20).tokens_pct == pytest.approx(100 * (1 - 64 / 36))
    assert compare(made, 20).peak_context_pct == pytest.approx(100 * (1 - 24 / 36))


def test_windows_without_output_divide_by_nothing() -> None:
    savings = compare(meter((0, 0), (0, 0)), 0)
    assert savings.attention_pct == savings.kv_read_pct == savings.tokens_pct == savings.peak_context_pct == 0.0


def test_usage_that_nobody_reported_is_not_measured() -> None:
    made = meter((10, 10), (14, 6))
    assert compare(made, 20).is_measured
    made.add_carryover(Usage(input_tokens=20, output_tokens=4, model_calls=1, source=UsageSource.ESTIMATED))
    assert not compare(made, 20).is_measured


LIMITS = WindowLimits(chunk_size=2048, carryover_size=512, max_segments=9, max_iterations=3)
COUNTER = WordPieceCounter()
PLAN = plan_windows(query="Why?", material="wall " * 3000, limits=LIMITS, counter=COUNTER, nonce="a" * 16)


def build_fitted(*, segment: int = 0, is_again: bool = False) -> FittedWindow:
    """Return the window that reads `segment`, or a reasoning window if `segment` is 0."""
    reading = ReadingProgress(segment=segment, segment_count=len(PLAN.segments)) if segment else None
    window = Window(reading=reading, is_last=False)
    messages = PLAN.build_prompt(window, notes="n")
    return FittedWindow(
        window=window,
        plan=PLAN,
        counter=COUNTER,
        messages=messages,
        notes="n",
        counted_tokens=COUNTER.count_prompt(messages),
        max_tokens=100,
        is_exact=True,
        is_again=is_again,
    )


def one_pass(*windows: tuple[FittedWindow, int], counter: TokenCounter = COUNTER) -> OnePassPrompt:
    made = OnePassPrompt(counter)
    for window, reported in windows:
        made.add(window, reported=reported)
    return made


def test_one_pass_has_the_first_prompt_and_what_later_ones_show_anew() -> None:
    first, second, thought = build_fitted(segment=1), build_fitted(segment=2), build_fitted()
    text = COUNTER.count_text(PLAN.segments[1])
    made = one_pass(*((each, each.counted_tokens) for each in (first, second, thought)))
    assert first.counted_tokens + text - 3 <= made.tokens <= first.counted_tokens + text
    assert made.is_measured


def test_what_a_server_adds_to_each_prompt_is_in_one_pass_once() -> None:
    windows = [build_fitted(segment=1), build_fitted(segment=2), build_fitted(segment=3)]
    plain = one_pass(*((each, each.counted_tokens) for each in windows))
    more = one_pass(*((each, each.counted_tokens + 70) for each in windows))
    assert more.tokens == plain.tokens + 70


def test_prompts_without_text_tell_what_an_estimated_count_is_worth() -> None:
    first, second, thought = build_fitted(segment=1), build_fitted(segment=2), build_fitted()
    exact = one_pass(*((each, each.counted_tokens) for each in (first, second, thought)))
    bytewise = one_pass(*((each, each.counted_tokens) for each in (first, second, thought)), counter=ByteCounter())
    assert bytewise.tokens == pytest.approx(exact.tokens, rel=0.01)
    assert not bytewise.is_measured


def test_text_that_is_shown_again_is_no_new_text() -> None:
    first = build_fitted(segment=1)
    made = one_pass(
        (first, 900), (build_fitted(segment=1, is_again=True), 950), (build_fitted(), 300), counter=ByteCounter()
    )
    assert made.tokens == 900
    assert made.is_measured


@pytest.mark.parametrize("reported", [0, 1, 10**9])
def test_whatever_is_reported_one_pass_is_between_the_first_prompt_and_all_of_them(reported: int) -> None:
    for counter in (COUNTER, ByteCounter()):
        made = one_pass(
            (build_fitted(segment=1), 500), (build_fitted(segment=2), reported), (build_fitted(), 1), counter=counter
        )
        assert 500 <= made.tokens <= 500 + reported


def usage_of(given: int, written: int) -> Usage:
    return Usage(input_tokens=given, output_tokens=written, model_calls=1)


def book(accounts: WindowAccounts, usage: Usage, **more: Any) -> int:
    values: dict[str, Any] = {
        "summary": None,
        "is_exact": True,
        "is_answered": False,
        "is_generated": True,
        "fitted": build_fitted(),
        "elapsed_s": 0.5,
    }
    return accounts.book(usage, **(values | more))


def test_a_journal_begins_empty_and_knows_its_capacity() -> None:
    accounts = WindowAccounts(PLAN, counter=COUNTER)
    assert accounts.is_empty
    assert accounts.warnings == ()
    metrics = accounts.metrics
    assert metrics.total_iterations == metrics.carryover_calls == metrics.carryover_compressions == 0
    assert metrics.capacity_tokens == 2048 + 2 * (2048 - 512)
    assert metrics.savings is None


def test_every_window_is_a_line_in_order() -> None:
    accounts = WindowAccounts(PLAN, counter=COUNTER)
    assert book(accounts, usage_of(100, 50), fitted=build_fitted(segment=1)) == 150
    assert book(accounts, usage_of(200, 70), is_answered=True, is_generated=False) == 270
    first, second = accounts.metrics.iterations
    assert (first.iteration, first.tokens, first.is_reading, first.carryover_generated) == (0, 150, True, True)
    assert (second.iteration, second.tokens, second.has_answer, second.execution_time_s) == (1, 270, True, 0.5)
    assert accounts.metrics.carryover_compressions == 1
    assert accounts.metrics.reading_iterations == 1
    assert not accounts.is_empty


def test_a_summary_is_a_call_of_its_window_whose_larger_size_counts() -> None:
    accounts = WindowAccounts(PLAN, counter=COUNTER)
    assert book(accounts, usage_of(100, 1000), summary=usage_of(1150, 200)) == 1350
    assert book(accounts, usage_of(100, 1900), summary=usage_of(10, 20)) == 2000
    metrics = accounts.metrics
    assert metrics.carryover_calls == 2
    assert metrics.peak_window_tokens == 2000
    assert metrics.savings is not None
    spent, single = 1100 + 1350 + 2000 + 30, 100 + 2900
    assert round(metrics.savings.tokens_pct, 6) == round(100 * (1 - spent / single), 6)


def test_one_window_that_was_not_exact_spoils_the_promise_for_the_run() -> None:
    accounts = WindowAccounts(PLAN, counter=COUNTER)
    book(accounts, usage_of(1, 1), is_exact=False)
    book(accounts, usage_of(1, 1))
    assert not accounts.metrics.is_window_exact


def test_a_warning_is_kept_once_and_an_empty_one_not_at_all() -> None:
    accounts = WindowAccounts(PLAN, counter=COUNTER)
    for text in ("a", "", "b", "a"):
        accounts.warn(text)
    assert accounts.warnings == ("a", "b")
