from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration

from reasond import ExecutionStarted, FinishReason, Iteration, Metrics, Reasoning, StrategySource, Usage
from reasond.v1.strategies_pb2 import (
    BoundedContextMetrics,
    BoundedContextStep,
    ReadingProgress,
    Savings,
    SavingsBaseline,
    Thought,
)
from reasond_server.cli.show.figures import get_finish_reason, summarize
from reasond_server.cli.show.live import render_bar
from reasond_server.cli.show.run import RunLines
from reasond_server.cli.terminal import format_seconds

BOUNDED = '{"chunk_size": 2048, "max_iterations": 5}'


def start_of(config: str = BOUNDED, strategy: str = "bounded_context") -> ExecutionStarted:
    return ExecutionStarted(
        strategy=strategy, strategy_source=StrategySource.STRATEGY_SOURCE_AGENT, model="demo", config_json=config
    )


def reading(segment: int, carryover: str, *, is_exact: bool = True) -> Iteration:
    return Iteration(
        index=segment - 1,
        usage=Usage(input_tokens=1400, output_tokens=100),
        elapsed=Duration(nanos=7_000_000),
        bounded_context=BoundedContextStep(
            text=f"Segment {segment}",
            carryover=carryover,
            window_tokens=1500,
            is_window_exact=is_exact,
            reading=ReadingProgress(segment=segment, segment_count=3),
        ),
    )


def line_of(progress: RunLines, step: Iteration) -> str:
    """Return the line of a step; fail if it has more than one."""
    (line,) = progress.format_step(step)
    return line


def test_the_first_line_names_strategy_source_model_and_window() -> None:
    line = RunLines().start(start_of())
    assert line == "bounded_context (chosen by the agent), model demo, windows of 2,048 tokens"
    assert RunLines().start(start_of("{}", "other")) == "other (chosen by the agent), model demo"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (StrategySource.STRATEGY_SOURCE_REQUEST, "as asked"),
        (StrategySource.STRATEGY_SOURCE_SYSTEM, "the default of this server"),
        (StrategySource.STRATEGY_SOURCE_UNSPECIFIED, "unspecified"),
    ],
)
def test_the_first_line_says_in_plain_words_who_chose(source: StrategySource.ValueType, words: str) -> None:
    one = ExecutionStarted(strategy="s", strategy_source=source, model="m")
    assert RunLines().start(one) == f"s ({words}), model m"


def test_a_reading_step_shows_segment_window_tokens_time_and_what_was_newly_noted() -> None:
    progress = RunLines()
    progress.start(start_of())
    assert line_of(progress, reading(1, "First.\nSecond.")) == (
        "read 1/3      ██████░░  1,500/2,048  in  1,400  out   100     7 ms  noted: Second."
    )
    assert line_of(progress, reading(2, "First.\nSecond.")).endswith("nothing new")
    assert line_of(progress, reading(3, "First.\nThird.")).endswith("noted: Third.")


def test_what_does_not_fit_beside_the_figures_gets_a_line_of_its_own_and_what_is_short_does_not() -> None:
    progress = RunLines()
    progress.start(start_of())
    note = "The only Remedy is a most serene and quiet Air, found on the tops of the highest Mountains."
    figures, below = progress.format_step(reading(1, note), width=80)
    assert figures == "read 1/3      ██████░░  1,500/2,048  in  1,400  out   100     7 ms"
    assert below.startswith("    noted: The only Remedy is")
    assert below.endswith("…")
    assert len(below) <= 80
    (line,) = progress.format_step(reading(2, note), width=80)
    assert line.endswith("7 ms  nothing new")
    assert progress.format_step(reading(2, note), width=70) == [line.removesuffix("  nothing new")]
    (line,) = progress.format_step(reading(3, f"{note}\nMore."), width=200)
    assert line.endswith("7 ms  noted: More.")


def test_an_estimated_window_says_so_and_terminals_without_unicode_get_ascii() -> None:
    progress = RunLines(is_ascii=True)
    progress.start(start_of())
    assert "######--" in (line := line_of(progress, reading(1, "a", is_exact=False)))
    assert "~1,500/2,048" in line


def test_reasoning_steps_are_counted_apart_from_reading() -> None:
    progress = RunLines()
    progress.start(start_of())
    line_of(progress, reading(1, "a"))
    step = Iteration(index=1, answer_found=True, bounded_context=BoundedContextStep(text="\nBecause.\nMore."))
    line = line_of(progress, step)
    assert line.startswith("step 1/5 ")
    assert line.endswith("answer found; Because.")


def test_steps_of_other_strategies_have_no_window() -> None:
    progress = RunLines()
    progress.start(start_of("{}", "chain_of_thought"))
    line = line_of(progress, Iteration(usage=Usage(input_tokens=1, output_tokens=2), thought=Thought(text="So.")))
    assert line == "step 1/1      in      1  out     2     0 ms  So."
    progress.start(start_of("{}", "unknown"))
    assert line_of(progress, Iteration(index=1)) == "step 2        in      0  out     0     0 ms"


def test_what_a_model_wrote_cannot_command_the_terminal_or_break_the_line() -> None:
    progress = RunLines()
    progress.start(start_of("{}", "chain_of_thought"))
    line = line_of(progress, Iteration(thought=Thought(text="a\x1b[2J\rb" + "c" * 1000)))
    assert not {"\x1b", "\r", "\n"} & set(line)
    assert len(line) < 200


@pytest.mark.parametrize(
    ("share", "expected"), [(0, "--------"), (0.5, "####----"), (1, "########"), (7, "########"), (-1, "--------")]
)
def test_a_bar_is_full_to_its_share(share: float, expected: str) -> None:
    assert render_bar(share, is_ascii=True) == expected


@pytest.mark.parametrize(("span", "expected"), [(0.0004, "0 ms"), (0.25, "250 ms"), (1, "1.0 s"), (61.26, "61.3 s")])
def test_times_have_a_unit_that_fits(span: float, expected: str) -> None:
    assert format_seconds(span) == expected


def result(bounded_context: BoundedContextMetrics | None = None) -> Reasoning:
    return Reasoning(
        finish_reason=FinishReason.FINISH_REASON_ANSWERED_UNTAGGED,
        metrics=Metrics(
            total_tokens=1234,
            usage=Usage(input_tokens=1200, output_tokens=34, model_calls=1),
            execution_time=Duration(seconds=2),
            bounded_context=bounded_context,
        ),
    )


def test_the_end_is_summed_up_in_one_line() -> None:
    assert get_finish_reason(result()) == "ANSWERED_UNTAGGED"
    assert summarize(result()) == ["answered untagged; 1 model call, 1,234 tokens (1,200 in, 34 out), 2.0 s"]


def test_bounded_context_adds_its_largest_window_and_signed_savings() -> None:
    savings = Savings(
        baseline=SavingsBaseline.SAVINGS_BASELINE_SINGLE_PASS,
        attention_pct=95,
        tokens_pct=-39.4,
        peak_context_pct=96,
        is_measured=True,
    )
    lines = summarize(result(BoundedContextMetrics(peak_window_tokens=1968, savings=savings)))
    assert lines[1] == "largest window: 1,968 tokens (estimated)"
    assert lines[2] == (
        "saved against one call that holds everything: attention +95.0 %, KV-cache reads 0 %, "
        "peak context +96.0 %, tokens -39.4 % (minus: more was spent)"
    )
    assert len(summarize(result(BoundedContextMetrics(is_window_exact=True)))) == 2


def test_a_finish_reason_of_a_newer_server_is_no_fault() -> None:
    newer = Reasoning()
    newer.MergeFromString(b"\x28\x63")
    assert get_finish_reason(newer) in {"UNKNOWN", "UNSPECIFIED"}
