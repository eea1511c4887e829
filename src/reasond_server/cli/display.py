"""Shows the progress of a run to a person: its steps, how far it has come, and its end in a few lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.cli.run_end import MOST_LINES, describe_end, fit_end, has_own_words, name_replay
from reasond_server.cli.run_hints import find_carryover_hint
from reasond_server.cli.run_progress import RunProgress
from reasond_server.cli.run_text import RunLines, summary
from reasond_server.cli.terminal import printable

if TYPE_CHECKING:
    from reasond import Iteration, Reasoning, ReasonIterationsResponse
    from reasond_server.cli.live import Line, LiveConsole


class RunDisplay:
    """Shows the events of one run on `live`; `query` is the question, if it is known.

    `is_kept` says that the run can be shown again after this command.
    """

    def __init__(self, live: LiveConsole, *, query: str = "", is_kept: bool = True) -> None:
        self._query = query
        self._is_kept = is_kept
        self._live = live
        self._lines = RunLines(is_ascii=live.is_ascii)
        self._progress = RunProgress()
        self._hint = ""
        self._end: list[Line] = []

    def show(self, event: ReasonIterationsResponse) -> None:
        """Show `event`, if it is of a kind that people read."""
        kind = event.WhichOneof("event")
        if kind == "started":
            self._live.print_head(self._lines.start(event.started))
            self._progress = RunProgress(strategy=self._lines.strategy, config=self._lines.config)
            self._live.say_now("thinking")
        elif kind == "delta":
            self._live.add_written(event.delta.text)
        elif kind == "iteration":
            self._show_step(event.iteration)
        elif kind == "completed" and self._live.is_folding:
            self._fold(event)

    def answer(self, result: Reasoning) -> None:
        """Print the answer of a run that a person follows."""
        self._live.print_answer(result.answer)

    def figures(self, result: Reasoning) -> None:
        """Print what the run did and cost, and its warnings."""
        if not self._live.is_folding:
            remarks = [(f"note: {printable(warning)}", "yellow") for warning in result.warnings]
            self._end = [*((line, "dim") for line in summary(result)), *remarks]
        for line, style in self._end:
            self._live.print(line, style=style, is_cropped=False)

    def _show_step(self, step: Iteration) -> None:
        if hint := find_carryover_hint(self._lines.config, step, self._query):
            self._hint = hint
            self._live.print_remark(f"note: {hint}")
        style = "green" if step.answer_found else ""
        if self._live.is_folding:
            self._live.show_progress(self._progress.take(step))
            if line := self._lines.tell(step, width=self._live.width or 0):
                self._live.print_step(line, style=style)
        else:
            for line in self._lines.lines(step, width=self._live.width):
                self._live.print(line, style=style)
        self._live.say_now("thinking")

    def _fold(self, event: ReasonIterationsResponse) -> None:
        """Write the end, and keep the steps if they fit beside it."""
        result, news = event.completed, self._lines.news
        is_seen_whole = news.windows == result.metrics.bounded_context.reading_iterations
        figures = describe_end(result, news=news.count if is_seen_whole else None)
        # How a run ended without an answer is a line of its own, which the command writes.
        most = MOST_LINES - has_own_words(result)
        self._end = fit_end(
            figures,
            [*([self._hint] if self._hint else []), *result.warnings],
            steps=self._live.step_count,
            hint=name_replay(event.execution_id) if self._is_kept else "",
            most=most,
        )
        self._live.settle(most - len(self._end))
