"""Formats a run as text: a line for each step, then its finish reason and its cost. Prints nothing."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from reasond_server.cli.reading_news import ReadingNews
from reasond_server.cli.terminal import columns, one_line, printable
from reasond_server.types import STEPS

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration

    from reasond import (
        BoundedContextStep,
        ExecutionStarted,
        Iteration,
        Metrics,
        ReactStep,
        Reasoning,
        Sample,
        Savings,
        ScoredAnswer,
        StageStep,
        ToolResult,
        TreeStep,
    )

_BAR_WIDTH = 8
_NOTE_WIDTH = 120
_INDENT = "    "
_NOTHING_NEW = "nothing new"
_BLOCKS = ("█", "░")
_ASCII = ("#", "-")
_SOURCES = MappingProxyType(
    {
        "REQUEST": "as asked",
        "AGENT": "chosen by the agent",
        "SYSTEM": "the default of this server",
        "AUTO": "chosen by size",
    }
)
_CALLS: Final = MappingProxyType({"chain_of_thought": 1, "plan_and_solve": 2})
_SAMPLE_WIDTH: Final = 48
_LEAST_SHARE: Final = 12
_MOST_PARSED: Final = 10_000
_NANOS: Final = 1e9
_SHOWN_ANSWERS: Final = 3
_ANSWER_WIDTH: Final = 24
_SAVINGS: Final = MappingProxyType(
    {
        "attention_pct": "attention",
        "kv_read_pct": "KV-cache reads",
        "peak_context_pct": "peak context",
        "tokens_pct": "tokens",
    }
)
"""The figures of the API's savings, by the words that stand for them."""


@dataclass(slots=True, kw_only=True)
class RunLines:
    """Keeps the state of a run that the line of the next step needs."""

    strategy: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    readings: int = 0
    notes: frozenset[str] = frozenset()
    votes: Counter[str] = field(default_factory=Counter)
    news: ReadingNews = field(default_factory=ReadingNews)
    is_ascii: bool = False

    def start(self, started: ExecutionStarted) -> str:
        """Store the configuration of the run, and return the line that describes it."""
        self.strategy = started.strategy
        self.config = json.loads(started.config_json or "{}")
        source = word_of(started, "strategy_source")
        window = self.config.get("chunk_size")
        size = f", windows of {window:,} tokens" if isinstance(window, int) else ""
        chosen = _SOURCES.get(source, source.lower())
        return f"{printable(started.strategy)} ({chosen}), model {printable(started.model)}{size}"

    def lines(self, step: Iteration, *, width: int | None = None) -> list[str]:
        """Return the line of `step`: number and total, window, tokens, time, outcome.

        The outcome is put on its own line if both do not fit `width` columns (None: no limit), and is omitted if
        it is empty.
        """
        usage = step.usage
        tokens = f"in {usage.input_tokens:>6,}  out {usage.output_tokens:>5,}"
        parts = [f"{self._place(step):<12}", *self._window(step), tokens, f"{seconds(span_of(step.elapsed)):>7}"]
        figures, note = "  ".join(parts), self._note(step, width)
        if not note:
            return [figures]
        if width is None or columns(figures) + 2 + columns(note) <= width:
            return [f"{figures}  {note}"]
        if note == _NOTHING_NEW:
            return [figures]
        return [figures, _INDENT + one_line(note, max(width - len(_INDENT), 1))]

    def tell(self, step: Iteration, *, width: int) -> str:
        """Return what `step` brought, without figures, in at most `width` columns; empty if it brought nothing new."""
        place = self._place(step)
        if step.bounded_context.HasField("reading") and not step.answer_found:
            found = self.news.find(step.bounded_context)
            return one_line(f"segment {step.bounded_context.reading.segment}: {found}", width) if found else ""
        note = self._note(step, width)
        return one_line(f"{place}: {note}" if note else place, width)

    def _place(self, step: Iteration) -> str:
        """Return the number of the step and the total; reading steps are counted separately."""
        reading = step.bounded_context.reading
        if step.bounded_context.HasField("reading"):
            self.readings += 1
            return f"read {reading.segment}/{reading.segment_count}"
        number = step.index - self.readings + 1
        if step.WhichOneof("detail") == "tree":
            return f"node {number}"
        word, limit = ("sample", "samples") if step.WhichOneof("detail") == "sample" else ("step", "max_iterations")
        most = self.config.get(limit, _CALLS.get(self.strategy))
        return f"{word} {number}/{most}" if most else f"{word} {number}"

    def _window(self, step: Iteration) -> list[str]:
        """Return the fill level of the window; empty for steps without a window."""
        size = self.config.get("chunk_size")
        if step.WhichOneof("detail") != "bounded_context" or not isinstance(size, int):
            return []
        used = step.bounded_context.window_tokens
        sign = "" if step.bounded_context.is_window_exact else "~"
        return [f"{bar(used / size, is_ascii=self.is_ascii)} {sign + format(used, ','):>6}/{size:,}"]

    def _note(self, step: Iteration, width: int | None) -> str:
        """Return the outcome of the step, by its kind; for a window that read text, its new note."""
        if step.bounded_context.HasField("reading") and not step.answer_found:
            noted = self._newly_noted(step.bounded_context.carryover)
            return "; ".join(part for part in (describe_carryover(step.bounded_context), noted) if part)
        if step.WhichOneof("detail") == "sample":
            self.votes[step.sample.normalized_answer] += 1
        room = _NOTE_WIDTH if width is None else min(max(width - len(_INDENT), 1), _NOTE_WIDTH)
        return note_of(step, votes=self.votes[step.sample.normalized_answer], width=room)

    def _newly_noted(self, carryover: str) -> str:
        """Return the last line of `carryover` that the previous carryover did not have."""
        lines = [line.strip() for line in carryover.splitlines() if line.strip()]
        new = [line for line in lines if line not in self.notes]
        self.notes = frozenset(lines)
        return one_line(f"noted: {new[-1]}", _NOTE_WIDTH) if new else _NOTHING_NEW


def bar(share: float, *, is_ascii: bool = False, width: int = _BAR_WIDTH) -> str:
    """Return a bar of `width` characters that is full to `share` (0.0-1.0)."""
    full, empty = _ASCII if is_ascii else _BLOCKS
    filled = round(min(max(share, 0.0), 1.0) * width)
    return full * filled + empty * (width - filled)


def note_of(step: Iteration, *, votes: int, width: int) -> str:
    """Return the outcome of `step` on one line of at most `width` columns; `votes` counts samples with its answer."""
    kind = step.WhichOneof("detail")
    if kind == "react":
        text = _cycle(step.react, width)
    elif kind == "tree":
        text = _node(step.tree)
    elif kind == "sample":
        text = _sample(step.sample, votes)
    elif kind == "stage":
        text = _stage(step.stage)
    elif kind == "bounded_context":
        parts = (describe_carryover(step.bounded_context), _first_line(step.bounded_context.text))
        text = "; ".join(part for part in parts if part)
    else:
        headline = next((each.headline for each in STEPS.kinds.values() if each.wire_tag == kind), "")
        text = _first_line(getattr(getattr(step, str(kind)), headline)) if headline else ""
    mark = "answer found; " if step.answer_found else ""
    return one_line(f"{mark}{text}".rstrip("; "), width)


def describe_carryover(window: BoundedContextStep) -> str:
    """Return how the carryover of a window was compressed, and what was lost; empty if it has no carryover."""
    if not window.HasField("carryover_report"):
        return ""
    report = window.carryover_report
    text = f"notes {report.before_tokens:,}->{report.after_tokens:,}"
    if report.dropped:
        text += f", dropped {', '.join(f'{one.tokens:,} of {one_line(one.part, 12)}' for one in report.dropped[:4])}"
    return f"{text}, fell back: {one_line(report.fallback_reason, 60)}" if report.fallback_reason else text


def _cycle(cycle: ReactStep, width: int) -> str:
    """Return thought, first action and its observation; each gets at least its share of the line."""
    thought = _first_line(cycle.thought)
    if not cycle.actions:
        return thought
    call, results = cycle.actions[0], cycle.observations[:1]
    more = f" (+{len(cycle.actions) - 1} more)" if len(cycle.actions) > 1 else ""
    share = max((width - columns(more)) // 3, _LEAST_SHARE)
    seen = "".join(f" -> {'error: ' if one.is_error else ''}{_result(one, share)}" for one in results)
    action = one_line(f"{call.tool}({call.arguments_json})", share)
    room = max(width - columns(action) - columns(seen) - columns(more) - len(" | "), _LEAST_SHARE)
    return f"{one_line(thought, room)} | {action}{seen}{more}" if thought else f"{action}{seen}{more}"


def _result(result: ToolResult, width: int) -> str:
    """Return a result: a string without JSON quotes, the field `result` of an object, else the whole value."""
    text = result.result_json
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(text) if len(text) <= _MOST_PARSED else None
        value = value.get("result", value) if isinstance(value, dict) else value
        text = str(value) if isinstance(value, str | int | float) else text
    return one_line(text, width)


def _node(node: TreeStep) -> str:
    """Return depth, score and state of a node, then its answer or its thought."""
    fate = ", pruned" if node.is_pruned else ""
    text = f"= {node.answer}" if node.answer else _first_line(node.thought)
    return f"depth {node.depth}, score {node.score:.2f}{fate}; {text}"


def _sample(sample: Sample, votes: int) -> str:
    """Return the answer of a sample and how many samples gave the same answer so far."""
    if not sample.normalized_answer:
        return f"no answer; {_first_line(sample.text)}"
    return f"{one_line(sample.answer, _SAMPLE_WIDTH)} ({votes} vote{'' if votes == 1 else 's'})"


def _stage(stage: StageStep) -> str:
    """Return the name and the score of a stage, then its answer or its text."""
    score = f", score {stage.score:.2f}" if stage.HasField("score") else ""
    text = f"= {stage.answer}" if stage.answer else _first_line(stage.text)
    return f"{stage.stage}{score}; {text}"


def _first_line(text: str) -> str:
    return next((line for line in text.splitlines() if line.strip()), "")


def span_of(duration: Duration) -> float:
    """Return `duration` in seconds."""
    return duration.seconds + duration.nanos / _NANOS


def seconds(span_s: float) -> str:
    """Format `span_s` (seconds): milliseconds below one second, else seconds."""
    if span_s < 1:
        return f"{span_s * 1000:.0f} ms"
    return f"{span_s:.1f} s"


def finish_reason_of(result: Reasoning) -> str:
    """Return the finish reason of the run without the prefix of the enum."""
    return word_of(result, "finish_reason")


def word_of(message: Any, name: str) -> str:  # noqa: ANN401 - any message with an enum of that name
    """Return the name of the enum field `name` without its prefix."""
    enum = message.DESCRIPTOR.fields_by_name[name].enum_type
    value = enum.values_by_number.get(getattr(message, name))
    prefix = str(enum.values_by_number[0].name).removesuffix("UNSPECIFIED")
    return str(value.name).removeprefix(prefix) if value else "UNKNOWN"


def summary(result: Reasoning) -> list[str]:
    """Return the lines that follow an answer: finish reason, tokens, time, and the strategy's metrics."""
    usage, metrics = result.metrics.usage, result.metrics
    tokens = f"{metrics.total_tokens:,} tokens ({usage.input_tokens:,} in, {usage.output_tokens:,} out)"
    ending = finish_reason_of(result).lower().replace("_", " ")
    calls = count_of(usage.model_calls, "model call")
    return [f"{ending}; {calls}, {tokens}, {seconds(span_of(metrics.execution_time))}", *describe_strategy(metrics)]


def describe_strategy(metrics: Metrics) -> list[str]:
    """Return the lines of the metrics that only the strategy has."""
    kind = metrics.WhichOneof("strategy_specific")
    if kind == "bounded_context":
        return _bounded_context(metrics)
    describe = {
        "best_of_n": _best_of_n,
        "chain_of_verification": _chain_of_verification,
        "plan_and_solve": _plan_and_solve,
        "program_of_thought": _program_of_thought,
        "react": _react,
        "self_consistency": _self_consistency,
        "self_refine": _self_refine,
        "tree_of_thought": _tree_of_thought,
    }.get(kind or "")
    return [] if describe is None else [describe(metrics)]


def _bounded_context(metrics: Metrics) -> list[str]:
    figures = metrics.bounded_context
    count = "counted by the model's own tokenizer" if figures.is_window_exact else "estimated"
    own = f"; {count_of(figures.carryover_calls, 'call')} for carryovers alone" if figures.carryover_calls else ""
    saved: dict[str, list[str]] = {}
    for name in ("savings", "reprompt_savings"):
        if figures.HasField(name):
            one = getattr(figures, name)
            saved.setdefault(_describe_savings(one), []).append(_baseline(one))
    # Both savings are equal if the text was read once and no call was repeated.
    lines = [f"saved against {', or '.join(baselines)}: {pct}" for pct, baselines in saved.items()]
    return [f"largest window: {figures.peak_window_tokens:,} tokens ({count}){own}", *lines]


def _describe_savings(saved: Savings) -> str:
    """Return the figures of the API with its signs and its words, and what a minus means if there is one."""
    figures = {word: getattr(saved, name) for name, word in _SAVINGS.items()}
    text = ", ".join(f"{word} {_percent(figure)}" for word, figure in figures.items())
    notes = [] if saved.is_measured else ["estimated"]
    notes += ["minus: more was spent"] if any(round(figure, 1) < 0 for figure in figures.values()) else []
    return f"{text} ({'; '.join(notes)})" if notes else text


def _react(metrics: Metrics) -> str:
    figures = metrics.react
    failed = f" ({figures.failed_tool_calls} failed)" if figures.failed_tool_calls else ""
    line = f"{count_of(figures.total_iterations, 'cycle')}, {count_of(figures.tool_calls, 'tool call')}{failed}"
    if figures.corrections:
        line += f", {count_of(figures.corrections, 'correction')}"
    return f"{line}, {figures.masked_observations} masked" if figures.masked_observations else line


def _tree_of_thought(metrics: Metrics) -> str:
    figures = metrics.tree_of_thought
    return (
        f"{count_of(figures.nodes_evaluated, 'node')} judged, {figures.nodes_pruned} pruned, "
        f"{figures.nodes_duplicate} duplicate, depth {figures.depth_reached}, best score {figures.best_score:.2f}"
    )


def _self_consistency(metrics: Metrics) -> str:
    figures = metrics.self_consistency
    votes = [f"{one.votes} for {one_line(one.answer, _ANSWER_WIDTH)}" for one in figures.votes[:_SHOWN_ANSWERS]]
    more = [f"{len(figures.votes) - _SHOWN_ANSWERS} other answers"] if len(figures.votes) > _SHOWN_ANSWERS else []
    line = f"{count_of(figures.samples, 'sample')}: {', '.join([*votes, *more]) or 'no votes'}"
    line += f"; margin {figures.margin * 100:.0f} %"
    if figures.is_stopped_early:
        line += ", decided early"
    return f"{line}, no answer had votes enough" if figures.is_abstained else line


def _self_refine(metrics: Metrics) -> str:
    figures = metrics.self_refine
    line = f"{count_of(figures.critiques, 'critique')}, {count_of(figures.revisions, 'revision')}"
    if figures.is_passed:
        return f"{line}; the last critique found nothing"
    return f"{line}; the last revision repeated an answer" if figures.is_repeated else line


def _best_of_n(metrics: Metrics) -> str:
    figures = metrics.best_of_n
    shown = [_describe_answer(one) for one in figures.answers[:_SHOWN_ANSWERS]]
    more = [f"{len(figures.answers) - _SHOWN_ANSWERS} other answers"] if len(figures.answers) > _SHOWN_ANSWERS else []
    line = f"{count_of(figures.samples, 'sample')}, {count_of(figures.judgements, 'judgement')}: "
    line += ", ".join([*shown, *more]) or "no answers"
    return f"{line}; no answer had score enough" if figures.is_abstained else line


def _describe_answer(answer: ScoredAnswer) -> str:
    score = f"score {answer.score:.2f}" if answer.HasField("score") else "not judged"
    return f"{one_line(answer.answer, _ANSWER_WIDTH)} ({score}, {count_of(answer.votes, 'vote')})"


def _chain_of_verification(metrics: Metrics) -> str:
    figures = metrics.chain_of_verification
    change = "the draft was corrected" if figures.is_revised else "the answer is that of the draft"
    return f"{count_of(figures.questions, 'question')} about the draft, {figures.answered} answered; {change}"


def _plan_and_solve(metrics: Metrics) -> str:
    figures = metrics.plan_and_solve
    return f"a plan of {count_of(figures.plan_steps, 'step')}" if figures.is_planned else "no plan"


def _program_of_thought(metrics: Metrics) -> str:
    figures = metrics.program_of_thought
    failed = f" ({figures.failed_attempts} without an answer)" if figures.failed_attempts else ""
    return f"{count_of(figures.attempts, 'program')}{failed}, run for {seconds(span_of(figures.program_time))}"


def count_of(count: int, noun: str) -> str:
    """Return `count` with its noun, in the plural unless it is 1."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _baseline(saved: Savings) -> str:
    word = word_of(saved, "baseline").lower()
    return {"single_pass": "one call that holds everything", "reprompt": "calls that resend everything"}.get(word, word)


def _percent(saved_pct: float) -> str:
    """Format a saving in per cent with its sign, which is minus if more was spent than by the baseline."""
    rounded = round(saved_pct, 1)
    return f"{rounded:+.1f} %" if rounded else "0 %"
