"""What a run did and cost: the figures of its metrics, whole or in a few lines that need no manual."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from reasond_server.cli.terminal import fit_line, format_count, format_seconds, get_enum_name, get_seconds

if TYPE_CHECKING:
    from reasond import BoundedContextMetrics, Metrics, Reasoning, Savings, ScoredAnswer, Usage
    from reasond_server.cli.show.live import Line

_SAVINGS: Final = MappingProxyType(
    {
        "attention_pct": "attention",
        "kv_read_pct": "KV-cache reads",
        "peak_context_pct": "peak context",
        "tokens_pct": "tokens",
    }
)
"""The figures of the API's savings, by the words that stand for them."""

_SHOWN_ANSWERS: Final = 3
_ANSWER_WIDTH: Final = 24
_ANSWERED: Final = frozenset({"ANSWERED", "ANSWERED_UNTAGGED"})


def get_finish_reason(result: Reasoning) -> str:
    """Return the finish reason of the run without the prefix of the enum."""
    return get_enum_name(result, "finish_reason")


def summarize(result: Reasoning) -> list[str]:
    """Return the lines that follow an answer: finish reason, tokens, time, and the strategy's metrics."""
    usage, metrics = result.metrics.usage, result.metrics
    tokens = f"{metrics.total_tokens:,} tokens ({usage.input_tokens:,} in, {usage.output_tokens:,} out)"
    ending = get_finish_reason(result).lower().replace("_", " ")
    calls = format_count(usage.model_calls, "model call")
    return [
        f"{ending}; {calls}, {tokens}{format_cost(usage)}, {format_seconds(get_seconds(metrics.execution_time))}",
        *describe_strategy(metrics),
    ]


def format_cost(usage: Usage) -> str:
    """Return what the tokens cost, after a comma; empty where the server has no price."""
    return f", ${usage.cost_usd:,.4f}" if usage.HasField("cost_usd") else ""


def describe_strategy(metrics: Metrics) -> list[str]:
    """Return the lines of the metrics that only the strategy has."""
    kind = metrics.WhichOneof("strategy_specific")
    if kind == "bounded_context":
        return _describe_bounded_context(metrics)
    describe = {
        "best_of_n": _describe_best_of_n,
        "chain_of_verification": _describe_chain_of_verification,
        "plan_and_solve": _describe_plan_and_solve,
        "program_of_thought": _describe_program_of_thought,
        "react": _describe_react,
        "self_consistency": _describe_self_consistency,
        "self_refine": _describe_self_refine,
        "tree_of_thought": _describe_tree_of_thought,
    }.get(kind or "")
    return [] if describe is None else [describe(metrics)]


def _describe_bounded_context(metrics: Metrics) -> list[str]:
    figures = metrics.bounded_context
    count = "counted by the model's own tokenizer" if figures.is_window_exact else "estimated"
    own = f"; {format_count(figures.carryover_calls, 'call')} for carryovers alone" if figures.carryover_calls else ""
    saved: dict[str, list[str]] = {}
    for name in ("savings", "reprompt_savings"):
        if figures.HasField(name):
            one = getattr(figures, name)
            saved.setdefault(_describe_savings(one), []).append(_name_baseline(one))
    # Both savings are equal if the text was read once and no call was repeated.
    lines = [f"saved against {', or '.join(baselines)}: {pct}" for pct, baselines in saved.items()]
    return [f"largest window: {figures.peak_window_tokens:,} tokens ({count}){own}", *lines]


def _describe_savings(saved: Savings) -> str:
    """Return the figures of the API with its signs and its words, and what a minus means if there is one."""
    figures = {word: getattr(saved, name) for name, word in _SAVINGS.items()}
    text = ", ".join(f"{word} {_format_percent(figure)}" for word, figure in figures.items())
    notes = [] if saved.is_measured else ["estimated"]
    notes += ["minus: more was spent"] if any(round(figure, 1) < 0 for figure in figures.values()) else []
    return f"{text} ({'; '.join(notes)})" if notes else text


def _describe_react(metrics: Metrics) -> str:
    figures = metrics.react
    failed = f" ({figures.failed_tool_calls} failed)" if figures.failed_tool_calls else ""
    line = f"{format_count(figures.total_iterations, 'cycle')}, {format_count(figures.tool_calls, 'tool call')}{failed}"
    if figures.corrections:
        line += f", {format_count(figures.corrections, 'correction')}"
    return f"{line}, {figures.masked_observations} masked" if figures.masked_observations else line


def _describe_tree_of_thought(metrics: Metrics) -> str:
    figures = metrics.tree_of_thought
    return (
        f"{format_count(figures.nodes_evaluated, 'node')} judged, {figures.nodes_pruned} pruned, "
        f"{figures.nodes_duplicate} duplicate, depth {figures.depth_reached}, best score {figures.best_score:.2f}"
    )


def _describe_self_consistency(metrics: Metrics) -> str:
    figures = metrics.self_consistency
    votes = [f"{one.votes} for {fit_line(one.answer, _ANSWER_WIDTH)}" for one in figures.votes[:_SHOWN_ANSWERS]]
    more = [f"{len(figures.votes) - _SHOWN_ANSWERS} other answers"] if len(figures.votes) > _SHOWN_ANSWERS else []
    line = f"{format_count(figures.samples, 'sample')}: {', '.join([*votes, *more]) or 'no votes'}"
    line += f"; margin {figures.margin * 100:.0f} %"
    if figures.is_stopped_early:
        line += f", decided early: {format_count(figures.saved_samples, 'sample')} saved"
    if figures.error_bound and figures.votes:
        line += f", another winner at most {figures.error_bound * 100:.3g} % probable"
    return f"{line}, no answer had votes enough" if figures.is_abstained else line


def _describe_self_refine(metrics: Metrics) -> str:
    figures = metrics.self_refine
    line = f"{format_count(figures.critiques, 'critique')}, {format_count(figures.revisions, 'revision')}"
    if figures.is_passed:
        return f"{line}; the last critique found nothing"
    return f"{line}; the last revision repeated an answer" if figures.is_repeated else line


def _describe_best_of_n(metrics: Metrics) -> str:
    figures = metrics.best_of_n
    shown = [_describe_answer(one) for one in figures.answers[:_SHOWN_ANSWERS]]
    more = [f"{len(figures.answers) - _SHOWN_ANSWERS} other answers"] if len(figures.answers) > _SHOWN_ANSWERS else []
    line = f"{format_count(figures.samples, 'sample')}, {format_count(figures.judgements, 'judgement')}: "
    line += ", ".join([*shown, *more]) or "no answers"
    return f"{line}; no answer had score enough" if figures.is_abstained else line


def _describe_answer(answer: ScoredAnswer) -> str:
    score = f"score {answer.score:.2f}" if answer.HasField("score") else "not judged"
    return f"{fit_line(answer.answer, _ANSWER_WIDTH)} ({score}, {format_count(answer.votes, 'vote')})"


def _describe_chain_of_verification(metrics: Metrics) -> str:
    figures = metrics.chain_of_verification
    change = "the draft was corrected" if figures.is_revised else "the answer is that of the draft"
    return f"{format_count(figures.questions, 'question')} about the draft, {figures.answered} answered; {change}"


def _describe_plan_and_solve(metrics: Metrics) -> str:
    figures = metrics.plan_and_solve
    return f"a plan of {format_count(figures.plan_steps, 'step')}" if figures.is_planned else "no plan"


def _describe_program_of_thought(metrics: Metrics) -> str:
    figures = metrics.program_of_thought
    failed = f" ({figures.failed_attempts} without an answer)" if figures.failed_attempts else ""
    time = format_seconds(get_seconds(figures.program_time))
    return f"{format_count(figures.attempts, 'program')}{failed}, run for {time}"


def _name_baseline(saved: Savings) -> str:
    word = get_enum_name(saved, "baseline").lower()
    return {"single_pass": "one call that holds everything", "reprompt": "calls that resend everything"}.get(word, word)


def _format_percent(saved_pct: float) -> str:
    """Format a saving in per cent with its sign, which is minus if more was spent than by the baseline."""
    rounded = round(saved_pct, 1)
    return f"{rounded:+.1f} %" if rounded else "0 %"


def has_own_words(result: Reasoning) -> bool:
    """Return whether an error or a warning of its own says how the run ended."""
    return get_finish_reason(result) not in _ANSWERED


def describe_end(result: Reasoning, *, news: int | None = None) -> list[Line]:
    """Return what a run did and cost; `news` is how many segments brought something new, if all were seen."""
    usage, metrics = result.metrics.usage, result.metrics
    ending = get_finish_reason(result).lower().replace("_", " ")
    tokens = f"{usage.input_tokens:,} tokens read, {usage.output_tokens:,} written"
    calls = format_count(usage.model_calls, "model call")
    lines = [
        f"{ending} after {format_seconds(get_seconds(metrics.execution_time))}: {calls}, {tokens}{format_cost(usage)}"
    ]
    if metrics.WhichOneof("strategy_specific") == "bounded_context":
        lines += _describe_windows(metrics.bounded_context, news)
    else:
        lines += describe_strategy(metrics)
    return [(line, "dim") for line in lines]


def _describe_windows(figures: BoundedContextMetrics, news: int | None) -> list[str]:
    about = "" if figures.is_window_exact else "about "
    size = f"at most {about}{figures.peak_window_tokens:,} tokens at a time"
    if not figures.reading_iterations:
        return [f"{format_count(figures.total_iterations, 'window')}, {size}", *_compare_savings(figures)]
    found = "" if news is None else f", {news:,} with something new"
    return [f"{format_count(figures.reading_iterations, 'segment')} read{found}, {size}", *_compare_savings(figures)]


def _compare_savings(figures: BoundedContextMetrics) -> list[str]:
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
