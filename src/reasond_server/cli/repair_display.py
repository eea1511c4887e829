"""Shows the progress of a repair to a person: candidates, verdicts, rounds, and the patch in colours."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.cli.live import LiveConsole
from reasond_server.cli.repair_text import RepairLines, color_diff, write_end
from reasond_server.cli.run_text import word_of
from reasond_server.cli.terminal import printable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import TextIO

    from reasond import Repair, RepairStepsResponse


class RepairDisplay:
    """Prints the events of one repair to `stream`."""

    def __init__(self, stream: TextIO) -> None:
        self._live = LiveConsole(stream)
        self._lines = RepairLines()

    @property
    def is_live(self) -> bool:
        """Whether text is shown while it is generated, so that deltas are needed."""
        return self._live.is_live

    def open(self) -> AbstractContextManager[None]:
        """Return the context in which the progress is shown on a terminal."""
        return self._live.open()

    def show(self, event: RepairStepsResponse) -> None:
        """Print `event`, if it is of a kind that people read."""
        kind = event.WhichOneof("event")
        if kind == "delta":
            self._live.add_written(event.delta.text)
            return
        for line, style in self._lines.write(event):
            self._live.print(line, style=style)
        if kind == "started":
            self._live.say_now("running the checks on the original")
        elif kind in {"baseline", "critique", "reflection"}:
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
        for line, style in write_end(result):
            self._live.print(line, style=style, is_cropped=False)
