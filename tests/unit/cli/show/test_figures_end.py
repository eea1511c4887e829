from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from reasond import BoundedContextMetrics, FinishReason, Metrics, ReactMetrics, Reasoning, Usage
from reasond.v1.strategies_pb2 import Savings
from reasond_server.cli.show.figures import describe_end, has_own_words
from reasond_server.cli.show.live import fit_end

USAGE = Usage(model_calls=58, input_tokens=70_016, output_tokens=18_741)


def make_result(**specific: object) -> Reasoning:
    return Reasoning(
        finish_reason=FinishReason.FINISH_REASON_ANSWERED,
        metrics=Metrics(usage=USAGE, execution_time=Duration(seconds=90), **specific),  # type: ignore[arg-type]  # one kind
    )


def test_a_reading_ends_with_what_it_found_and_what_it_saved() -> None:
    figures = BoundedContextMetrics(
        total_iterations=58,
        reading_iterations=57,
        peak_window_tokens=1_729,
        is_window_exact=True,
        savings=Savings(attention_pct=95.4, tokens_pct=-61.3, is_measured=True),
    )
    assert [line for line, _ in describe_end(make_result(bounded_context=figures), news=11)] == [
        "answered after 90.0 s: 58 model calls, 70,016 tokens read, 18,741 written",
        "57 segments read, 11 with something new, at most 1,729 tokens at a time",
        "against one call that holds everything: 95 % less attention, 61 % more tokens",
    ]


def test_what_was_not_seen_is_not_told_and_an_estimate_is_called_one() -> None:
    figures = BoundedContextMetrics(
        total_iterations=3, reading_iterations=2, peak_window_tokens=900, savings=Savings(attention_pct=0.4)
    )
    assert [line for line, _ in describe_end(make_result(bounded_context=figures))][1:] == [
        "2 segments read, at most about 900 tokens at a time",
        "against one call that holds everything: about as much attention, as many tokens",
    ]
    alone = BoundedContextMetrics(total_iterations=1, peak_window_tokens=900, is_window_exact=True)
    assert describe_end(make_result(bounded_context=alone))[1:] == [("1 window, at most 900 tokens at a time", "dim")]


def test_other_strategies_tell_their_own_figures() -> None:
    result = make_result(react=ReactMetrics(total_iterations=2, tool_calls=1))
    assert describe_end(result)[1:] == [("2 cycles, 1 tool call", "dim")]


def test_steps_give_way_to_the_command_that_shows_them_again() -> None:
    figures = [("one", "dim"), ("two", "dim")]
    assert fit_end(figures, ["x"], steps=2, hint="h") == [*figures, ("note: x", "yellow")]
    assert fit_end(figures, ["x"], steps=3, hint="h") == [*figures, ("note: x", "yellow"), ("each step: h", "dim")]
    assert fit_end(figures, ["x"], steps=3) == [*figures, ("note: x", "yellow")]
    assert fit_end(figures, ["x"] * 4, steps=0, most=4)[2:] == [
        ("note: x", "yellow"),
        ("note: x (and 2 more notes)", "yellow"),
    ]


def test_a_run_without_an_answer_of_its_own_has_a_line_that_says_so() -> None:
    assert not has_own_words(make_result())
    assert has_own_words(Reasoning(finish_reason=FinishReason.FINISH_REASON_TRUNCATED))
