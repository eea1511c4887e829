"""The end of a run in a few lines that need no manual: what it did, what it cost, and where to read more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reasond_server.cli.run_text import count_of, describe_strategy, finish_reason_of, seconds, span_of
from reasond_server.cli.terminal import printable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reasond import BoundedContextMetrics, Reasoning
    from reasond_server.cli.live import Line

MOST_LINES: Final = 5
_ANSWERED: Final = frozenset({"ANSWERED", "ANSWERED_UNTAGGED"})


def fit_end(
    figures: Sequence[Line], remarks: Iterable[str], *, steps: int, hint: str = "", most: int = MOST_LINES
) -> list[Line]:
    """Return at most `most` lines: the figures, then remarks, then `hint` if the `steps` before do not fit as well.

    Remarks that find no room are counted in the last one.
    """
    notes = [f"note: {printable(remark)}" for remark in remarks]
    is_folded = bool(steps) and len(figures) + len(notes) + steps > most
    hints: list[Line] = [(f"each step: {hint}", "dim")] if is_folded and hint else []
    room = max(most - len(figures) - len(hints), 1)
    if (left := len(notes) - room) > 0:
        notes = [*notes[: room - 1], f"{notes[room - 1]} (and {count_of(left, 'more note')})"]
    return [*figures, *((note, "yellow") for note in notes), *hints]


def name_replay(execution_id: str) -> str:
    """Return the command that shows each line of an execution again."""
    return f"reasond executions follow {printable(execution_id)} --verbose"


def has_own_words(result: Reasoning) -> bool:
    """Return whether an error or a warning of its own says how the run ended."""
    return finish_reason_of(result) not in _ANSWERED


def describe_end(result: Reasoning, *, news: int | None = None) -> list[Line]:
    """Return what a run did and cost; `news` is how many segments brought something new, if all were seen."""
    usage, metrics = result.metrics.usage, result.metrics
    ending = finish_reason_of(result).lower().replace("_", " ")
    tokens = f"{usage.input_tokens:,} tokens read, {usage.output_tokens:,} written"
    calls = count_of(usage.model_calls, "model call")
    lines = [f"{ending} after {seconds(span_of(metrics.execution_time))}: {calls}, {tokens}"]
    if metrics.WhichOneof("strategy_specific") == "bounded_context":
        lines += _describe_windows(metrics.bounded_context, news)
    else:
        lines += describe_strategy(metrics)
    return [(line, "dim") for line in lines]


def _describe_windows(figures: BoundedContextMetrics, news: int | None) -> list[str]:
    about = "" if figures.is_window_exact else "about "
    size = f"at most {about}{figures.peak_window_tokens:,} tokens at a time"
    if not figures.reading_iterations:
        return [f"{count_of(figures.total_iterations, 'window')}, {size}", *_describe_savings(figures)]
    found = "" if news is None else f", {news:,} with something new"
    return [f"{count_of(figures.reading_iterations, 'segment')} read{found}, {size}", *_describe_savings(figures)]


def _describe_savings(figures: BoundedContextMetrics) -> list[str]:
    if not figures.HasField("savings"):
        return []
    saved = figures.savings
    about = "" if saved.is_measured else "about "
    parts = _compare(saved.attention_pct, "attention"), _compare(saved.tokens_pct, "tokens")
    return [f"against one call that holds everything: {about}{', '.join(parts)}"]


def _compare(saved_pct: float, noun: str) -> str:
    if abs(saved_pct) < 1:
        return f"as much {noun}" if noun == "attention" else f"as many {noun}"
    less = "less" if noun == "attention" else "fewer"
    return f"{abs(saved_pct):.0f} % {less if saved_pct > 0 else 'more'} {noun}"
