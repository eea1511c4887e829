"""What a run shows of itself while it goes on, as text: a line per step. Nothing is printed here."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from reasond_server.cli.figures import seconds, span_of, word_of
from reasond_server.cli.notes import carried, note_of
from reasond_server.cli.terminal import columns, one_line, printable

if TYPE_CHECKING:
    from reasond import ExecutionStarted, Iteration

_BAR_WIDTH = 8
_NOTE_WIDTH = 120
_INDENT = "    "
_NOTHING_NEW = "nothing new"
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
    votes: Counter[str] = field(default_factory=Counter)
    is_ascii: bool = False

    def start(self, started: ExecutionStarted) -> str:
        """Take over how the run is configured, and return the line that says so."""
        self.strategy = started.strategy
        self.config = json.loads(started.config_json or "{}")
        source = word_of(started, "strategy_source")
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
        figures, note = "  ".join(parts), self._note(step, width)
        if not note:
            return [figures]
        if width is None or columns(figures) + 2 + columns(note) <= width:
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
        number = step.index - self.readings + 1
        if step.WhichOneof("detail") == "tree":
            return f"node {number}"
        word, limit = ("sample", "samples") if step.WhichOneof("detail") == "sample" else ("step", "max_iterations")
        most = self.config.get(limit, 1 if self.strategy == "chain_of_thought" else None)
        return f"{word} {number}/{most}" if most else f"{word} {number}"

    def _window(self, step: Iteration) -> list[str]:
        """Return how full the window was, nothing for steps without one."""
        size = self.config.get("chunk_size")
        if step.WhichOneof("detail") != "bounded_context" or not isinstance(size, int):
            return []
        used = step.bounded_context.window_tokens
        sign = "" if step.bounded_context.is_window_exact else "~"
        return [f"{bar(used / size, is_ascii=self.is_ascii)} {sign + format(used, ','):>6}/{size:,}"]

    def _note(self, step: Iteration, width: int | None) -> str:
        """Return what came of the step, by its kind; of a window that read, what was newly noted."""
        if step.bounded_context.HasField("reading") and not step.answer_found:
            noted = self._newly_noted(step.bounded_context.carryover)
            return "; ".join(part for part in (carried(step.bounded_context), noted) if part)
        if step.WhichOneof("detail") == "sample":
            self.votes[step.sample.normalized_answer] += 1
        room = _NOTE_WIDTH if width is None else min(max(width - len(_INDENT), 1), _NOTE_WIDTH)
        return note_of(step, votes=self.votes[step.sample.normalized_answer], width=room)

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
