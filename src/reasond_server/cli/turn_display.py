"""Shows the progress of a turn to a person: what the model does, which tools run, and the end in a few lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond import LedgerState
from reasond_server.cli.run_end import MOST_LINES, fit_end, name_replay
from reasond_server.cli.terminal import printable
from reasond_server.cli.turn_text import figures_of, lines_of_event

if TYPE_CHECKING:
    from reasond import ExecuteTurnResponse, TurnResult
    from reasond_server.cli.live import Line, LiveConsole


class TurnDisplay:
    """Shows the events of one turn on `live`; `is_kept` says that it can be shown again after this command."""

    def __init__(self, live: LiveConsole, *, is_kept: bool = True) -> None:
        self._live = live
        self._is_kept = is_kept
        self._end: list[Line] = []

    def show(self, event: ExecuteTurnResponse) -> None:
        """Show `event`, if it is of a kind that people read."""
        kind = event.WhichOneof("event")
        if kind == "delta":
            self._live.add_written(event.delta.text)
            return
        if kind == "completed" and self._live.is_folding:
            self._fold(event)
        is_begin = kind == "tool" and event.tool.state == LedgerState.LEDGER_STATE_STARTED
        if kind in {"started", "model_call", "tool", "reentered"}:
            self._live.say_now(f"{printable(event.tool.tool)} runs" if is_begin else "thinking")
        if is_begin and self._live.is_folding:
            # Its end tells the same.
            return
        for line in lines_of_event(event):
            if kind == "started":
                self._live.print_head(line)
            else:
                self._live.print_step(line)

    def show_end(self, result: TurnResult) -> None:
        """Print what the turn cost, and its warnings."""
        lines = self._end or [(figures_of(result), ""), *((f"note: {printable(each)}", "") for each in result.warnings)]
        for line, style in lines:
            self._live.print(line, style=style, is_cropped=False)

    def _fold(self, event: ExecuteTurnResponse) -> None:
        """Write the end, and keep the steps if they fit beside it."""
        self._end = fit_end(
            [(figures_of(event.completed), "dim")],
            event.completed.warnings,
            steps=self._live.step_count,
            hint=name_replay(event.turn_id) if self._is_kept else "",
        )
        self._live.settle(MOST_LINES - len(self._end))
