"""The books of a run."""

from __future__ import annotations

from typing import Any

from reasond_server.context.journal import Journal
from reasond_server.context.windows import WindowLimits, plan_windows
from reasond_server.llm.counting import WordPieceCounter
from reasond_server.types import Usage

LIMITS = WindowLimits(chunk_size=2048, carryover_size=512, max_segments=9, max_iterations=3)
PLAN = plan_windows(query="Why?", material="", limits=LIMITS, counter=WordPieceCounter(), nonce="a" * 16)


def used(given: int, written: int) -> Usage:
    return Usage(input_tokens=given, output_tokens=written, model_calls=1)


def book(journal: Journal, usage: Usage, **more: Any) -> int:
    values: dict[str, Any] = {
        "summary": None,
        "is_exact": True,
        "is_answered": False,
        "is_generated": True,
        "is_reading": False,
        "elapsed_s": 0.5,
    }
    return journal.book(usage, **(values | more))


def test_a_journal_begins_empty_and_knows_its_capacity() -> None:
    journal = Journal(PLAN)
    assert journal.is_empty
    assert journal.warnings == ()
    metrics = journal.metrics
    assert metrics.total_iterations == metrics.carryover_calls == metrics.carryover_compressions == 0
    assert metrics.capacity_tokens == 2048 + 2 * (2048 - 512)
    assert metrics.savings is None


def test_every_window_is_a_line_in_order() -> None:
    journal = Journal(PLAN)
    assert book(journal, used(100, 50), is_reading=True) == 150
    assert book(journal, used(200, 70), is_answered=True, is_generated=False) == 270
    first, second = journal.metrics.iterations
    assert (first.iteration, first.tokens, first.is_reading, first.carryover_generated) == (0, 150, True, True)
    assert (second.iteration, second.tokens, second.has_answer, second.execution_time_s) == (1, 270, True, 0.5)
    assert journal.metrics.carryover_compressions == 1
    assert journal.metrics.reading_iterations == 1
    assert not journal.is_empty


def test_a_summary_is_a_call_of_its_window_whose_larger_size_counts() -> None:
    journal = Journal(PLAN)
    assert book(journal, used(100, 1000), summary=used(1150, 200)) == 1350
    assert book(journal, used(100, 1900), summary=used(10, 20)) == 2000
    metrics = journal.metrics
    assert metrics.carryover_calls == 2
    assert metrics.peak_window_tokens == 2000
    assert metrics.savings is not None
    spent, single = 1100 + 1350 + 2000 + 30, PLAN.single_pass_tokens + 2900
    assert round(metrics.savings.tokens_pct, 6) == round(100 * (1 - spent / single), 6)


def test_one_window_that_was_not_exact_spoils_the_promise_for_the_run() -> None:
    journal = Journal(PLAN)
    book(journal, used(1, 1), is_exact=False)
    book(journal, used(1, 1))
    assert not journal.metrics.is_window_exact


def test_a_warning_is_kept_once_and_an_empty_one_not_at_all() -> None:
    journal = Journal(PLAN)
    for text in ("a", "", "b", "a"):
        journal.warn(text)
    assert journal.warnings == ("a", "b")
