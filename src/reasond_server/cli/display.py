"""Shows the progress of a run to a person: a line per step, and on a terminal the text as it is generated."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.cli.live import LiveConsole
from reasond_server.cli.run_hints import find_carryover_hint
from reasond_server.cli.run_text import RunLines, summary
from reasond_server.cli.terminal import printable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import TextIO

    from reasond import Iteration, Reasoning, ReasonIterationsResponse


class RunDisplay:
    """Prints the events of one run to `stream`; `query` is the question, if it is known."""

    def __init__(self, stream: TextIO, *, query: str = "") -> None:
        self._query = query
        self._live = LiveConsole(stream)
        self._progress = RunLines(is_ascii=not (stream.encoding or "").lower().startswith("utf"))

    @property
    def is_live(self) -> bool:
        """Whether text is shown while it is generated, so that deltas are needed."""
        return self._live.is_live

    def open(self) -> AbstractContextManager[None]:
        """Return the context in which the progress is shown on a terminal."""
        return self._live.open()

    def show(self, event: ReasonIterationsResponse) -> None:
        """Print `event`, if it is of a kind that people read."""
        kind = event.WhichOneof("event")
        if kind == "started":
            self._live.print(self._progress.start(event.started), style="dim")
            self._live.say_now("thinking")
        elif kind == "delta":
            self._live.add_written(event.delta.text)
        elif kind == "iteration":
            self._show_step(event.iteration)

    def answer(self, result: Reasoning) -> None:
        """Print the answer of a run that a person follows."""
        self._live.print()
        self._live.print(printable(result.answer) if result.answer else "(no answer)", style="bold", is_cropped=False)
        self._live.print()

    def figures(self, result: Reasoning) -> None:
        """Print the cost and the warnings of the run."""
        for line in summary(result):
            self._live.print(line, style="dim", is_cropped=False)
        for warning in result.warnings:
            self._live.print(f"note: {printable(warning)}", style="yellow", is_cropped=False)

    def _show_step(self, step: Iteration) -> None:
        if hint := find_carryover_hint(self._progress.config, step, self._query):
            self._live.print(f"note: {hint}", style="yellow", is_cropped=False)
        for line in self._progress.lines(step, width=self._live.width):
            self._live.print(line, style="green" if step.answer_found else "")
        self._live.say_now("thinking")
