"""What a run cost and how it ended, in words. Nothing is printed here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from reasond_server.cli.terminal import one_line

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration

    from reasond import Metrics, Reasoning, Savings

_NANOS: Final = 1e9
_SHOWN_ANSWERS: Final = 3
_ANSWER_WIDTH: Final = 24


def span_of(duration: Duration) -> float:
    """Return `duration` in seconds."""
    return duration.seconds + duration.nanos / _NANOS


def seconds(span_s: float) -> str:
    """Return a time for a person: milliseconds below one second, else seconds."""
    if span_s < 1:
        return f"{span_s * 1000:.0f} ms"
    return f"{span_s:.1f} s"


def finish_reason_of(result: Reasoning) -> str:
    """Return how the run ended, without the prefix of the enum."""
    return word_of(result, "finish_reason")


def word_of(message: Any, name: str) -> str:  # noqa: ANN401 - any message with an enum of that name
    """Return the name of the enum field `name` without its prefix."""
    enum = message.DESCRIPTOR.fields_by_name[name].enum_type
    value = enum.values_by_number.get(getattr(message, name))
    prefix = str(enum.values_by_number[0].name).removesuffix("UNSPECIFIED")
    return str(value.name).removeprefix(prefix) if value else "UNKNOWN"


def summary(result: Reasoning) -> list[str]:
    """Return the lines that follow an answer: how it ended, tokens, time, and what its strategy reports."""
    usage, metrics = result.metrics.usage, result.metrics
    tokens = f"{metrics.total_tokens:,} tokens ({usage.input_tokens:,} in, {usage.output_tokens:,} out)"
    ending = finish_reason_of(result).lower().replace("_", " ")
    calls = _counted(usage.model_calls, "model call")
    return [f"{ending}; {calls}, {tokens}, {seconds(span_of(metrics.execution_time))}", *_specific(metrics)]


def _specific(metrics: Metrics) -> list[str]:
    match metrics.WhichOneof("strategy_specific"):
        case "bounded_context":
            return _bounded_context(metrics)
        case "react":
            return [_react(metrics)]
        case "tree_of_thought":
            return [_tree_of_thought(metrics)]
        case "self_consistency":
            return [_self_consistency(metrics)]
    return []


def _bounded_context(metrics: Metrics) -> list[str]:
    figures = metrics.bounded_context
    count = "counted" if figures.is_window_exact else "estimated"
    own = f"; {_counted(figures.carryover_calls, 'call')} for carryovers alone" if figures.carryover_calls else ""
    saved: dict[str, list[str]] = {}
    for name in ("savings", "reprompt_savings"):
        if figures.HasField(name):
            one = getattr(figures, name)
            saved.setdefault(_saved(one), []).append(_baseline(one))
    # Both are the same where the text was read and nothing was asked twice.
    lines = [f"against {', or '.join(baselines)}: {pct}" for pct, baselines in saved.items()]
    return [f"largest window: {figures.peak_window_tokens:,} tokens, {count}{own}", *lines]


def _saved(saved: Savings) -> str:
    return (
        f"attention {_less(saved.attention_pct)}, cache reads {_less(saved.kv_read_pct)}, "
        f"largest context {_less(saved.peak_context_pct)}, tokens {_less(saved.tokens_pct)}"
    )


def _react(metrics: Metrics) -> str:
    figures = metrics.react
    failed = f" ({figures.failed_tool_calls} failed)" if figures.failed_tool_calls else ""
    line = f"{_counted(figures.total_iterations, 'cycle')}, {_counted(figures.tool_calls, 'tool call')}{failed}"
    if figures.corrections:
        line += f", {_counted(figures.corrections, 'correction')}"
    return f"{line}, {figures.masked_observations} masked" if figures.masked_observations else line


def _tree_of_thought(metrics: Metrics) -> str:
    figures = metrics.tree_of_thought
    return (
        f"{_counted(figures.nodes_evaluated, 'node')} judged, {figures.nodes_pruned} pruned, "
        f"{figures.nodes_duplicate} duplicate, depth {figures.depth_reached}, best score {figures.best_score:.2f}"
    )


def _self_consistency(metrics: Metrics) -> str:
    figures = metrics.self_consistency
    votes = [f"{one.votes} for {one_line(one.answer, _ANSWER_WIDTH)}" for one in figures.votes[:_SHOWN_ANSWERS]]
    more = [f"{len(figures.votes) - _SHOWN_ANSWERS} other answers"] if len(figures.votes) > _SHOWN_ANSWERS else []
    line = f"{_counted(figures.samples, 'sample')}: {', '.join([*votes, *more]) or 'no votes'}"
    line += f"; margin {figures.margin * 100:.0f} %"
    if figures.is_stopped_early:
        line += ", decided early"
    return f"{line}, no answer had votes enough" if figures.is_abstained else line


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _baseline(saved: Savings) -> str:
    word = word_of(saved, "baseline").lower()
    return {"single_pass": "one call that holds everything", "reprompt": "calls that resend everything"}.get(word, word)


def _less(saved_pct: float) -> str:
    """Return a saving as the change that a reader sees: what was saved is less."""
    return f"{0.0 - round(saved_pct, 1):+.1f} %"
