"""Learning from reports: tokenizer and template separately, nothing from one false report, a change from its second."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reasond_server.context.window_plan import WindowLimits, plan_windows
from reasond_server.llm.counting import EstimatingCounter, make_fork
from reasond_server.llm.counting.estimates import Calibration
from reasond_server.llm.model import Message, Role

if TYPE_CHECKING:
    from collections.abc import Sequence

MATERIAL = "The old wall has four gates, and the river passes below two of them. " * 520
LIMITS = WindowLimits(chunk_size=4096, carryover_size=1024, max_segments=512, max_iterations=3)
SHORT = [f"How many gates has wall number {'1' * length}?" for length in range(10)]


def ask(text: str) -> Sequence[Message]:
    return [Message(role=Role.SYSTEM, content="Be brief."), Message(role=Role.USER, content=text)]


def count_truly(text: str, *, hidden: int) -> int:
    """Return the count of a server whose tokens have 4.5 characters and which adds `hidden` tokens to each call."""
    return hidden + 11 + round(len(text) / 4.5)


def teach(counter: EstimatingCounter, texts: Sequence[str], *, hidden: int) -> None:
    for text in texts:
        counter.learn(ask(text), count_truly(text, hidden=hidden))


def count_calls(counter: EstimatingCounter) -> int:
    plan = plan_windows(query="How many?", material=MATERIAL, limits=LIMITS, counter=counter, nonce="q" * 28)
    return len(plan.segments)


@pytest.mark.parametrize(("hidden", "most"), [(0, 1.0), (100, 1.2), (600, 1.6)])
def test_hidden_tokens_of_short_calls_do_not_raise_the_number_of_calls_for_a_long_text(
    hidden: int, most: float
) -> None:
    counter = EstimatingCounter()
    unlearnt = count_calls(counter)
    teach(counter, SHORT, hidden=hidden)
    assert count_calls(counter) <= most * unlearnt


@pytest.mark.parametrize("before", [0, 1, 10])
@pytest.mark.parametrize("false", [5_000, 100_000])
def test_one_false_report_does_not_change_how_the_next_run_reads(before: int, false: int) -> None:
    shared = EstimatingCounter()
    teach(shared, SHORT[:before], hidden=20)
    planned = count_calls(shared)
    run = make_fork(shared)
    assert isinstance(run, EstimatingCounter)
    run.learn(ask(SHORT[0]), false)
    assert count_calls(shared) <= 1.1 * planned
    teach(run, SHORT, hidden=20)
    assert count_calls(shared) <= 1.1 * planned


def test_a_false_report_of_a_long_prompt_raises_the_estimate_by_less_than_half() -> None:
    counter = EstimatingCounter()
    teach(counter, [MATERIAL[:length] for length in range(8_000, 14_000, 1_000)], hidden=20)
    expected = counter.count_text(MATERIAL)
    counter.learn(ask(MATERIAL[:9_000]), 6_000)
    assert counter.count_text(MATERIAL) < 1.5 * expected


def test_what_two_calls_report_is_believed() -> None:
    counter = EstimatingCounter()
    teach(counter, SHORT[:2], hidden=5_000)
    for text in (*SHORT, MATERIAL):
        true = count_truly(text, hidden=5_000)
        assert true <= counter.count_prompt(ask(text)) < 1.6 * true


def test_a_tokenizer_by_letters_is_known_after_two_calls() -> None:
    counter = EstimatingCounter()
    for length in (4_000, 5_000):
        counter.learn(ask(MATERIAL[:length]), length + 20)
    assert counter.count_text(MATERIAL) >= 0.9 * len(MATERIAL)


@given(
    lengths=st.lists(st.integers(0, 20_000), min_size=1, max_size=20),
    hidden=st.integers(0, 300),
    noise=st.floats(0.97, 1.03),
)
def test_a_line_over_prompts_of_any_lengths_is_never_underestimated(
    lengths: list[int], hidden: int, noise: float
) -> None:
    counter = EstimatingCounter()
    # Two calls, one long and one short, determine the two unknown numbers.
    teach(counter, [MATERIAL[:9_000], SHORT[0]], hidden=hidden)
    for length in lengths:
        messages, reported = ask(MATERIAL[:length]), count_truly(MATERIAL[:length], hidden=hidden)
        assert counter.count_prompt(messages) >= reported
        counter.learn(messages, round(noise * reported))


@given(reports=st.lists(st.tuples(st.floats(1, 1e6), st.integers(0, 10**9)), max_size=30))
def test_whatever_is_reported_estimates_stay_within_bounds_and_can_be_restored(
    reports: list[tuple[float, int]],
) -> None:
    calibration = Calibration()
    for estimated, reported in reports:
        calibration = calibration.add_report(estimated=estimated, reported=reported)
        assert 0.25 * 1.1 <= calibration.upper_slope <= 16
        assert 0 <= calibration.upper_constant <= 1.1e6
        assert Calibration.restore(json.loads(json.dumps(calibration.snapshot()))) == calibration
