"""Savings are what the formulas of the module say, signed."""

from __future__ import annotations

from typing import Any

import pytest

from reasond_server.context.window_accounts import SavingsMeter, WindowAccounts
from reasond_server.context.window_plan import WindowLimits, plan_windows
from reasond_server.llm.counting import WordPieceCounter
from reasond_server.types import SavingsBaseline, Usage


def meter(prompt: int, *windows: tuple[int, int]) -> SavingsMeter:
    made = SavingsMeter(single_pass_tokens=prompt)
    for given, written in windows:
        made.add(Usage(input_tokens=given, output_tokens=written, model_calls=1))
    return made


def test_one_window_saves_nothing_and_is_not_compared() -> None:
    assert meter(10).savings is None
    assert meter(10, (10, 5)).savings is None


def test_two_windows_are_compared_with_one_pass() -> None:
    savings = meter(20, (10, 10), (14, 6)).savings
    assert savings is not None
    assert savings.baseline is SavingsBaseline.SINGLE_PASS
    # T(20) = 210 twice against T(36) = 666; decoding reads T(20) - T(10) = 155 and T(20) - T(14) = 105 against 456.
    assert savings.attention_pct == pytest.approx(100 * (1 - 420 / 666))
    assert savings.kv_read_pct == pytest.approx(100 * (1 - 260 / 456))
    assert savings.tokens_pct == pytest.approx(100 * (1 - 40 / 36))
    assert savings.peak_context_pct == pytest.approx(100 * (1 - 20 / 36))
    assert savings.tokens_pct < 0


def test_the_published_case_comes_out() -> None:
    """q = 500, C = 8192, m = 4096, five windows: facts D1 -73, D3 40, D5 53, D8 65 per cent."""
    savings = meter(500, (500, 8192), *[(4596, 4096)] * 4).savings
    assert savings is not None
    assert [round(one) for one in (savings.tokens_pct, savings.attention_pct, savings.kv_read_pct)] == [-73, 40, 53]
    assert round(savings.peak_context_pct) == 65


def test_reprompting_sends_all_that_was_written_again_for_every_window_that_reasons() -> None:
    savings = meter(20, (10, 10), (14, 6)).reprompt_savings
    assert savings is not None
    assert savings.baseline is SavingsBaseline.REPROMPT
    # 20 + 10 tokens in the first step, 20 + 16 in the second; T(30) = 465 and T(36) = 666.
    assert savings.tokens_pct == pytest.approx(100 * (1 - 40 / 66))
    assert savings.attention_pct == pytest.approx(100 * (1 - 420 / (465 + 666)))
    assert savings.kv_read_pct == pytest.approx(100 * (1 - 260 / 456))


def test_reading_windows_are_no_steps_of_reprompting() -> None:
    made = SavingsMeter(single_pass_tokens=20)
    for is_reading in (True, True):
        made.add(Usage(input_tokens=10, output_tokens=5, model_calls=1), is_reading=is_reading)
    assert made.savings is not None
    assert made.reprompt_savings is not None
    assert made.reprompt_savings.tokens_pct == made.savings.tokens_pct == 0.0
    made.add(Usage(input_tokens=10, output_tokens=5, model_calls=1))
    assert made.reprompt_savings.tokens_pct == pytest.approx(100 * (1 - 45 / 35))


def test_calls_for_carryovers_are_spent_and_no_baseline_makes_them() -> None:
    made = meter(20, (10, 10), (14, 6))
    made.add_carryover(Usage(input_tokens=20, output_tokens=4, model_calls=1))
    assert made.savings is not None
    assert made.savings.tokens_pct == pytest.approx(100 * (1 - 64 / 36))
    assert made.savings.peak_context_pct == pytest.approx(100 * (1 - 24 / 36))


def test_windows_without_output_divide_by_nothing() -> None:
    savings = meter(0, (0, 0), (0, 0)).savings
    assert savings is not None
    assert savings.attention_pct == savings.kv_read_pct == savings.tokens_pct == savings.peak_context_pct == 0.0


LIMITS = WindowLimits(chunk_size=2048, carryover_size=512, max_segments=9, max_iterations=3)
PLAN = plan_windows(query="Why?", material="", limits=LIMITS, counter=WordPieceCounter(), nonce="a" * 16)


def usage_of(given: int, written: int) -> Usage:
    return Usage(input_tokens=given, output_tokens=written, model_calls=1)


def book(accounts: WindowAccounts, usage: Usage, **more: Any) -> int:
    values: dict[str, Any] = {
        "summary": None,
        "is_exact": True,
        "is_answered": False,
        "is_generated": True,
        "is_reading": False,
        "elapsed_s": 0.5,
    }
    return accounts.book(usage, **(values | more))


def test_a_journal_begins_empty_and_knows_its_capacity() -> None:
    accounts = WindowAccounts(PLAN)
    assert accounts.is_empty
    assert accounts.warnings == ()
    metrics = accounts.metrics
    assert metrics.total_iterations == metrics.carryover_calls == metrics.carryover_compressions == 0
    assert metrics.capacity_tokens == 2048 + 2 * (2048 - 512)
    assert metrics.savings is None


def test_every_window_is_a_line_in_order() -> None:
    accounts = WindowAccounts(PLAN)
    assert book(accounts, usage_of(100, 50), is_reading=True) == 150
    assert book(accounts, usage_of(200, 70), is_answered=True, is_generated=False) == 270
    first, second = accounts.metrics.iterations
    assert (first.iteration, first.tokens, first.is_reading, first.carryover_generated) == (0, 150, True, True)
    assert (second.iteration, second.tokens, second.has_answer, second.execution_time_s) == (1, 270, True, 0.5)
    assert accounts.metrics.carryover_compressions == 1
    assert accounts.metrics.reading_iterations == 1
    assert not accounts.is_empty


def test_a_summary_is_a_call_of_its_window_whose_larger_size_counts() -> None:
    accounts = WindowAccounts(PLAN)
    assert book(accounts, usage_of(100, 1000), summary=usage_of(1150, 200)) == 1350
    assert book(accounts, usage_of(100, 1900), summary=usage_of(10, 20)) == 2000
    metrics = accounts.metrics
    assert metrics.carryover_calls == 2
    assert metrics.peak_window_tokens == 2000
    assert metrics.savings is not None
    spent, single = 1100 + 1350 + 2000 + 30, PLAN.single_pass_tokens + 2900
    assert round(metrics.savings.tokens_pct, 6) == round(100 * (1 - spent / single), 6)


def test_one_window_that_was_not_exact_spoils_the_promise_for_the_run() -> None:
    accounts = WindowAccounts(PLAN)
    book(accounts, usage_of(1, 1), is_exact=False)
    book(accounts, usage_of(1, 1))
    assert not accounts.metrics.is_window_exact


def test_a_warning_is_kept_once_and_an_empty_one_not_at_all() -> None:
    accounts = WindowAccounts(PLAN)
    for text in ("a", "", "b", "a"):
        accounts.warn(text)
    assert accounts.warnings == ("a", "b")
