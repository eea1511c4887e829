"""Savings are what the formulas of the module say, signed."""

from __future__ import annotations

import pytest

from reasond_server.context.savings import SavingsMeter
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
