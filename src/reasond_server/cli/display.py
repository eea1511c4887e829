"""Shows the progress of a run to a person: a line per step, and on a terminal the text as it is generated."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from reasond_server.cli.run_text import RunLines, summary
from reasond_server.cli.terminal import console, one_line, printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from rich.status import Status

    from reasond import Iteration, Reasoning, ReasonIterationsResponse

_TAIL_CHARACTERS = 400


class RunDisplay:
    """Prints the events of one run to `stream`."""

    def __init__(self, stream: TextIO) -> None:
        self._console = console(stream)
        self._progress = RunLines(is_ascii=not (stream.encoding or "").lower().startswith("utf"))
        self._status: Status | None = None
        self._written = ""

    @property
    def is_live(self) -> bool:
        """Whether text is shown while it is generated, so that deltas are needed."""
        return self._console.is_terminal and not self._console.is_dumb_terminal

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Show the progress on a terminal until the block ends."""
        if not self.is_live:
            yield
            return
        with self._console.status("waiting for the server", spinner="dots") as status:
            self._status = status
            try:
                yield
            finally:
                self._status = None

    def show(self, event: ReasonIterationsResponse) -> None:
        """Print `event`, if it is of a kind that people read."""
        kind = event.WhichOneof("event")
        if kind == "started":
            self._print(self._progress.start(event.started), style="dim")
            self._say_now("thinking")
        elif kind == "delta":
            self._written = (self._written + event.delta.text)[-_TAIL_CHARACTERS:]
            self._say_now(one_line(self._written[-self._room() :], self._room()))
        elif kind == "iteration":
            self._show_step(event.iteration)

    def answer(self, result: Reasoning) -> None:
        """Print the answer of a run that a person follows."""
        self._console.print()
        self._print(printable(result.answer) if result.answer else "(no answer)", style="bold", is_cropped=False)
        self._console.print()

    def figures(self, result: Reasoning) -> None:
        """Print the cost and the warnings of the run."""
        for line in summary(result):
            self._print(line, style="dim", is_cropped=False)
        for warning in result.warnings:
            self._print(f"note: {printable(warning)}", style="yellow", is_cropped=False)

    def _show_step(self, step: Iteration) -> None:
        width = self._console.width if self._console.is_terminal else None
        for line in self._progress.lines(step, width=width):
            self._print(line, style="green" if step.answer_found else "")
        self._written = ""
        self._say_now("thinking")

    def _print(self, line: str, *, style: str, is_cropped: bool = True) -> None:
        if self._console.is_terminal and is_cropped:
            self._console.print(line, style=style, no_wrap=True, overflow="ellipsis")
        else:
            self._console.print(line, style=style)
        self._console.file.flush()

    def _say_now(self, text: str) -> None:
        if self._status is not None:
            from rich.text import Text  # noqa: PLC0415 - rich is loaded only if there is a status line

            self._status.update(Text(text, no_wrap=True, overflow="ellipsis"))

    def _room(self) -> int:
        return max(self._console.width - 4, 20)
