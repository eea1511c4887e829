"""Shows the progress of a repair to a person: candidates, verdicts, rounds, and the patch in colours."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from reasond_server.cli.repair_text import RepairLines, color_diff, write_end, write_verdict
from reasond_server.cli.run_end import MOST_LINES, fit_end, name_replay
from reasond_server.cli.run_progress import count_to
from reasond_server.cli.run_text import word_of
from reasond_server.cli.terminal import printable

if TYPE_CHECKING:
    from reasond import Repair, RepairStarted, RepairStepsResponse
    from reasond_server.cli.live import Line, LiveConsole
    from reasond_server.cli.run_progress import ShownProgress


class RepairDisplay:
    """Shows the events of one repair on `live`; `is_kept` says that it can be shown again after this command."""

    def __init__(self, live: LiveConsole, *, is_kept: bool = True) -> None:
        self._live = live
        self._lines = RepairLines()
        self._is_kept = is_kept
        self._candidates = 0
        self._most_candidates = 0
        self._end: list[Line] = []

    def show(self, event: RepairStepsResponse) -> None:
        """Show `event`, if it is of a kind that people read."""
        kind = event.WhichOneof("event")
        if kind == "delta":
            self._live.add_written(event.delta.text)
        elif kind == "started":
            self._start(event.started)
        elif kind == "candidate":
            self._live.show_progress(self._count_candidates())
        elif kind == "completed" and self._live.is_folding:
            self._fold(event)
        for line, style in self._lines.write(event):
            if kind == "started":
                self._live.print_head(line)
            else:
                self._live.print_step(line, style=style)
        if kind in {"baseline", "critique", "reflection"}:
            self._live.say_now("searching")

    def show_patch(self, result: Repair) -> None:
        """Print the patch or the plan whole."""
        if not result.patch:
            return
        is_plan = word_of(result, "goal") == "PLAN"
        self._live.print()
        for line, style in [(printable(result.patch), "")] if is_plan else color_diff(result.patch):
            self._live.print(line, style=style, is_cropped=False)
        self._live.print()

    def show_end(self, result: Repair) -> None:
        """Print whether the patch was accepted, its cost and the warnings."""
        for line, style in self._end or write_end(result):
            self._live.print(line, style=style, is_cropped=False)

    def _start(self, started: RepairStarted) -> None:
        config = json.loads(started.config_json or "{}")
        most = config.get("max_candidates")
        self._most_candidates = most if isinstance(most, int) else 0
        self._live.say_now("running the checks on the original")

    def _count_candidates(self) -> ShownProgress | None:
        if not self._most_candidates:
            return None
        self._candidates += 1
        return count_to(self._candidates, self._most_candidates, "candidate")

    def _fold(self, event: RepairStepsResponse) -> None:
        """Write the end, and keep the steps if they fit beside it."""
        self._end = fit_end(
            [*write_verdict(event.completed)],
            event.completed.warnings,
            steps=self._live.step_count,
            hint=name_replay(event.execution_id) if self._is_kept else "",
        )
        self._live.settle(MOST_LINES - len(self._end))
