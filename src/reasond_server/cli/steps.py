"""What a run shows of itself, as text: a line per step, the figures of its end. Nothing is printed here."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from reasond_server.cli.terminal import one_line, printable

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration

    from reasond import ExecutionStarted, Iteration, Metrics, Reasoning

_BAR_WIDTH = 8
_NOTE_WIDTH = 120
_INDENT = "    "
_NOTHING_NEW = "nothing new"
_NANOS = 1e9
_BLOCKS = ("█", "░")
_ASCII = ("#", "-")
_SOURCES = MappingProxyType(
    {"REQUEST": "as asked", "AGENT": "chosen by the agent", "SYSTEM": "the default of this server"}
)


@dataclass(slots=True, kw_only=True)
class Progress:
    """Remembers of a run what the line of the next step needs."""

    strategy: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    readings: int = 0
    notes: frozenset[str] = frozenset()
    is_ascii: bool = False

    def start(self, started: ExecutionStarted) -> str:
        """Take over how the run is configured, and return the line that says so."""
        self.strategy = started.strategy
        self.config = json.loads(started.config_json or "{}")
        source = _name_of(started, "strategy_source")
        window = self.config.get("chunk_size")
        size = f", windows of {window:,} tokens" if isinstance(window, int) else ""
        chosen = _SOURCES.get(source, source.lower())
        return f"{printable(started.strategy)} ({chosen}), model {printable(started.model)}{size}"

    def lines(self, step: Iteration, *, width: int | None = None) -> list[str]:
        """Return the line of `step`: which of how many, window, tokens, time, what came of it.

        What came of it stands on a line of its own where both do not fit `width` columns, and is left out if it
        was nothing. None is as wide as it takes.
        """
        usage = step.usage
        tokens = f"in {usage.input_tokens:>6,}  out {usage.output_tokens:>5,}"
        parts = [f"{self._place(step):<12}", *self._window(step), tokens, f"{seconds(span_of(step.elapsed)):>7}"]
        figures, note = "  ".join(parts), self._note(step)
        if not note:
            return [figures]
        if width is None or len(figures) + 2 + len(note) <= width:
            return [f"{figures}  {note}"]
        if note == _NOTHING_NEW:
            return [figures]
        return [figures, _INDENT + one_line(note, max(width - len(_INDENT), 1))]

    def _place(self, step: Iteration) -> str:
        """Return which step of how many it is; reading is counted apart."""
        reading = step.bounded_context.reading
        if step.bounded_context.HasField("reading"):
            self.readings += 1
            return f"read {reading.segment}/{reading.segment_count}"
        most = self.config.get("max_iterations", 1 if self.strategy == "chain_of_thought" else None)
        number = step.index - self.readings + 1
        return f"step {number}/{most}" if most else f"step {number}"

    def _window(self, step: Iteration) -> list[str]:
        """Return how full the window was, nothing for steps without one."""
        size = self.config.get("chunk_size")
        if step.WhichOneof("detail") != "bounded_context" or not isinstance(size, int):
            return []
        used = step.bounded_context.window_tokens
        sign = "" if step.bounded_context.is_window_exact else "~"
        return [f"{bar(used / size, is_ascii=self.is_ascii)} {sign + format(used, ','):>6}/{size:,}"]

    def _note(self, step: Iteration) -> str:
        """Return what came of the step: the answer, what was newly noted, or its first line."""
        kind = step.WhichOneof("detail")
        detail = getattr(step, kind) if kind else None
        if kind == "bounded_context" and step.bounded_context.HasField("reading") and not step.answer_found:
            return self._newly_noted(step.bounded_context.carryover)
        text = next((line for line in getattr(detail, "text", "").splitlines() if line.strip()), "")
        mark = "answer found; " if step.answer_found else ""
        return one_line(f"{mark}{text}".rstrip("; "), _NOTE_WIDTH)

    def _newly_noted(self, carryover: str) -> str:
        """Return the last line of `carryover` that was not in the one before."""
        lines = [line.strip() for line in carryover.splitlines() if line.strip()]
        new = [line for line in lines if line not in self.notes]
        self.notes = frozenset(lines)
        return one_line(f"noted: {new[-1]}", _NOTE_WIDTH) if new else _NOTHING_NEW


def bar(share: float, *, is_ascii: bool = False) -> str:
    """Return a bar of eight characters that is full to `share` (0.0-1.0)."""
    full, empty = _ASCII if is_ascii else _BLOCKS
    filled = round(min(max(share, 0.0), 1.0) * _BAR_WIDTH)
    return full * filled + empty * (_BAR_WIDTH - filled)


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
    return _name_of(result, "finish_reason")


def summary(result: Reasoning) -> list[str]:
    """Return the lines that follow an answer: how it ended, tokens, time, window, what was saved."""
    usage, metrics = result.metrics.usage, result.metrics
    calls = f"{usage.model_calls} model call{'' if usage.model_calls == 1 else 's'}"
    tokens = f"{metrics.total_tokens:,} tokens ({usage.input_tokens:,} in, {usage.output_tokens:,} out)"
    ending = finish_reason_of(result).lower().replace("_", " ")
    lines = [f"{ending}; {calls}, {tokens}, {seconds(span_of(metrics.execution_time))}"]
    if metrics.WhichOneof("strategy_specific") == "bounded_context":
        lines += _bounded_context(metrics)
    return lines


def _bounded_context(metrics: Metrics) -> list[str]:
    figures = metrics.bounded_context
    count = "counted" if figures.is_window_exact else "estimated"
    lines = [f"largest window: {figures.peak_window_tokens:,} tokens, {count}"]
    if figures.HasField("savings"):
        saved = figures.savings
        baseline = _name_of(saved, "baseline").lower().replace("_", " ")
        lines.append(
            f"against {_article(baseline)}: attention {_less(saved.attention_pct)}, "
            f"cache reads {_less(saved.kv_read_pct)}, largest context {_less(saved.peak_context_pct)}, "
            f"tokens {_less(saved.tokens_pct)}"
        )
    return lines


def _article(baseline: str) -> str:
    return {"single pass": "one call that holds everything", "reprompt": "calls that resend everything"}.get(
        baseline, baseline
    )


def _less(saved_pct: float) -> str:
    """Return a saving as the change that a reader sees: what was saved is less."""
    return f"{0.0 - round(saved_pct, 1):+.1f} %"


def _name_of(message: Any, name: str) -> str:  # noqa: ANN401 - any message with an enum of that name
    """Return the name of the enum field `name` without its prefix."""
    enum = message.DESCRIPTOR.fields_by_name[name].enum_type
    value = enum.values_by_number.get(getattr(message, name))
    prefix = str(enum.values_by_number[0].name).removesuffix("UNSPECIFIED")
    return str(value.name).removeprefix(prefix) if value else "UNKNOWN"
