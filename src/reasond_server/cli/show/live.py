"""The console of what a person follows: on a terminal a region that is drawn anew, elsewhere one line after another.

The region has, from above: what runs, the last steps, a bar with the time left where that is known, and what happens
now. It is erased at its end, so that only lines stay that somebody wants to read afterwards.
"""

from __future__ import annotations

import contextlib
import math
import sys
from typing import TYPE_CHECKING, Final, TextIO

from reasond_server.cli.terminal import (
    crop_line,
    find_addresses,
    fit_end_of,
    fit_line,
    format_count,
    make_console,
    sanitize,
)
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rich.console import RenderableType
    from rich.live import Live
    from rich.spinner import Spinner

Line = tuple[str, str]
"""A line, and how a terminal shows it."""

MOST_LINES: Final = 5
"""The lines of an end, with the steps that stay."""

MOST_STEPS: Final = 5
_TAIL_CHARACTERS: Final = 400
_REDRAWS_PER_S: Final = 8
_SPINNER_COLUMNS: Final = 2
_INDENT: Final = "  "
_OTHER_ROWS: Final = 4
"""The rows of the region that show no steps."""
_LEAST_BAR: Final = 8
_MOST_BAR: Final = 30
_TEXT_COLUMNS: Final = 36
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600
_BAR_WIDTH = 8
_BLOCKS = ("█", "░")
_ASCII = ("#", "-")


class LiveConsole:
    """Prints lines to `stream`; on a terminal that can be drawn on, steps are folded unless `is_verbose` is set."""

    def __init__(self, stream: TextIO, *, is_verbose: bool = False) -> None:
        self._console = make_console(stream)
        # FORCE_COLOR makes a terminal of every stream for rich; a file can have colours and cannot be drawn on.
        self._is_terminal = stream.isatty() and self._console.is_terminal
        self._is_verbose = is_verbose
        self._encoding = stream.encoding or "ascii"
        self.is_ascii = not self._encoding.lower().startswith("utf")
        self._region: Live | None = None
        self._spinner: Spinner | None = None
        # The region is drawn by a thread of its own: what it reads is replaced and never changed.
        self._head: Line = ("", "")
        self._remark: Line = ("", "")
        self._steps: tuple[Line, ...] = ()
        self.step_count = 0
        self._is_held = False
        self._progress: ShownProgress | None = None
        self._now = "waiting for the server"
        self._written = ""

    @property
    def is_live(self) -> bool:
        """Whether text is shown while it is generated, so that deltas are needed."""
        return self._is_terminal and not self._console.is_dumb_terminal

    @property
    def is_folding(self) -> bool:
        """Whether steps are shown while they are news, and do not stay."""
        return self.is_live and not self._is_verbose

    @property
    def width(self) -> int | None:
        """The columns of the terminal; None if there is none, so lines may have any length."""
        return self._console.width if self._is_terminal else None

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Draw the region on a terminal until the block ends; the steps that are left are printed then."""
        if not self.is_live:
            yield
            return
        from rich.live import Live  # noqa: PLC0415 - loaded only if there is a region
        from rich.spinner import Spinner  # noqa: PLC0415 - see above

        self._is_held = False
        self._spinner = Spinner("line" if self.is_ascii else "dots")
        region = Live(
            console=self._console, get_renderable=self._draw, refresh_per_second=_REDRAWS_PER_S, transient=True
        )
        try:
            with region:
                self._region = region
                yield
        finally:
            self._region = None
            if not self._is_held:
                self._print_steps()
                self._forget_steps()

    def hold_steps(self) -> None:
        """Keep the steps of this region for the next one, instead of printing them at its end."""
        self._is_held = self.is_folding

    def ask(self, question: str) -> str:
        """Return the line that a person types, without its end; `question` stands below the steps that are held.

        Where steps are folded, all of it is erased afterwards.
        """
        width, stream = self.width, self._console.file
        rows = self._print_steps()
        stream.write(question)
        stream.flush()
        typed = sys.stdin.readline()
        if width is not None and width == self.width and self.is_folding and typed.endswith("\n"):
            from rich.cells import cell_len  # noqa: PLC0415 - loaded only if there is a terminal
            from rich.control import Control  # noqa: PLC0415 - see above
            from rich.segment import ControlType  # noqa: PLC0415 - see above

            shown = (question + typed).splitlines()
            rows += sum(max(math.ceil(cell_len(line) / width), 1) for line in shown)
            self._console.control(Control(*((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)) * rows))
        return typed.rstrip("\r\n")

    def print(self, line: str = "", *, style: str = "", is_cropped: bool = True) -> None:
        """Print a line that stays; on a terminal it is cut to the width unless `is_cropped` is False."""
        if self._is_terminal and is_cropped:
            self._console.print(crop_line(line, self._console.width), style=style, no_wrap=True, overflow="ellipsis")
        else:
            self._console.print(self._link(line), style=style)
        self._console.file.flush()

    def print_answer(self, answer: str) -> None:
        """Print an answer, which is the text of somebody else, between two empty lines."""
        self.print()
        self.print(sanitize(answer) if answer else "(no answer)", style="bold", is_cropped=False)
        self.print()

    def print_head(self, line: str) -> None:
        """Print what runs; where steps are folded it stands above them."""
        if self.is_folding:
            self._head = (line, "dim")
        else:
            self.print(line, style="dim")

    def print_remark(self, line: str) -> None:
        """Print what a person may do about the run; where steps are folded it stands above them."""
        if self.is_folding:
            self._remark = (line, "yellow")
        else:
            self.print(line, style="yellow", is_cropped=False)

    def print_step(self, line: str, *, style: str = "") -> None:
        """Print a step; where steps are folded the last ones are shown."""
        if self._region is None or not self.is_folding:
            self.print(line, style=style)
            return
        self._steps = (*self._steps, (line, style))[-MOST_STEPS:]
        self.step_count += 1

    def settle(self, room: int) -> bool:
        """Let the steps stay if there were at most `room` of them; return whether they do."""
        stays = self.step_count <= min(room, MOST_STEPS)
        if not stays:
            self._forget_steps()
        return stays

    def show_progress(self, progress: ShownProgress | None) -> None:
        """Show how far the run has come; None shows no bar."""
        self._progress = progress

    def say_now(self, text: str) -> None:
        """Show on a terminal what happens now, until the next call."""
        self._written = ""
        self._now = text

    def add_written(self, text: str) -> None:
        """Show on a terminal the end of the text that is being generated."""
        self._written = (self._written + text)[-_TAIL_CHARACTERS:]

    def _link(self, text: str) -> RenderableType:
        """Return `text` with its addresses as links, which a terminal opens even where they take several rows."""
        if not self.is_live or not (places := find_addresses(text)):
            return text
        from rich.style import Style  # noqa: PLC0415 - loaded only if there is a terminal
        from rich.text import Text  # noqa: PLC0415 - see above

        shown = Text(text)
        for first, last in places:
            shown.stylize(Style(link=text[first:last]), first, last)
        return shown

    def _draw(self) -> RenderableType:
        from rich.console import Group  # noqa: PLC0415 - loaded only if there is a region
        from rich.text import Text  # noqa: PLC0415 - see above

        # A terminal that counts a character as wider than we do must not wrap the line.
        room = max(self._console.width - 1, 1)
        shown = [line for line in (self._head, self._remark) if line[0]] if self.is_folding else []
        steps = self._steps[-max(self._console.height - _OTHER_ROWS, 1) :]
        shown += [(_INDENT + line, style) for line, style in steps]
        now = fit_end_of(self._written, room - _SPINNER_COLUMNS) or self._now
        if self._progress is not None:
            shown.append((_INDENT + now, "dim"))
            now = draw_bar(self._progress, width=room - _SPINNER_COLUMNS, is_ascii=self.is_ascii)
        assert self._spinner is not None  # noqa: S101 - for mypy: the region is open
        self._spinner.update(text=Text(self._fit(now, room - _SPINNER_COLUMNS)))
        return Group(*(Text(self._fit(line, room), style=style) for line, style in shown), self._spinner)

    def _fit(self, line: str, room: int) -> str:
        indent = line[: len(line) - len(line.lstrip())]
        text = indent + fit_line(line, room - len(indent))
        # What cannot be encoded would be written as an escape sequence, which takes more columns.
        return text.encode(self._encoding, "replace").decode(self._encoding)

    def _print_steps(self) -> int:
        """Print the last steps, and return how many rows that took."""
        if earlier := self.step_count - len(self._steps):
            self.print(f"{_INDENT}({earlier} earlier step{'' if earlier == 1 else 's'})", style="dim")
        for line, style in self._steps:
            self.print(_INDENT + line, style=style)
        return len(self._steps) + bool(earlier)

    def _forget_steps(self) -> None:
        self._steps, self.step_count = (), 0


class Display:
    """What a person sees of an execution on `live`; `is_kept` says that it can be shown again after this command."""

    def __init__(self, live: LiveConsole, *, is_kept: bool = True) -> None:
        self._live = live
        self._is_kept = is_kept
        self._end: list[Line] = []

    def fold(
        self, figures: Sequence[Line], remarks: Iterable[str], *, execution_id: str, most: int = MOST_LINES
    ) -> None:
        """Write an end of at most `most` lines, and keep the steps if they fit beside it."""
        hint = name_replay(execution_id) if self._is_kept else ""
        self._end = fit_end(figures, remarks, steps=self._live.step_count, hint=hint, most=most)
        self._live.settle(most - len(self._end))

    def print_end(self, lines: Iterable[Line]) -> None:
        """Print the end that was written, or else `lines`."""
        for line, style in self._end or lines:
            self._live.print(line, style=style, is_cropped=False)


@value
class ShownProgress:
    """`done` of `total` steps, and what that means in words; `left_s` (seconds) is None where it is not known."""

    done: int
    total: int
    text: str
    left_s: float | None = None


def draw_bar(progress: ShownProgress, *, width: int, is_ascii: bool) -> str:
    """Return the bar and its text, in `width` columns if the bar can have four of them."""
    left = "" if progress.left_s is None else f", about {describe_span(progress.left_s)} left"
    text = f"{progress.text}{left}"
    # The bar keeps its size while the text changes, unless the terminal is narrow.
    size = min(max(width - _TEXT_COLUMNS, _LEAST_BAR), _MOST_BAR, max(width - len(text) - 1, _LEAST_BAR // 2))
    return f"{render_bar(progress.done / progress.total, is_ascii=is_ascii, width=size)} {text}"


def describe_span(span_s: float) -> str:
    """Return `span_s` (seconds) as a person says it: 12 s, 5 min, 2 h 10 min."""
    if span_s < _MINUTE_S:
        return f"{max(round(span_s), 1)} s"
    if span_s < _HOUR_S:
        return f"{round(span_s / _MINUTE_S)} min"
    hours, rest_s = divmod(span_s, _HOUR_S)
    return f"{hours:.0f} h {rest_s // _MINUTE_S:.0f} min"


def count_to(done: int, most: int, noun: str) -> ShownProgress:
    """Return the progress of what is done at most `most` times."""
    return ShownProgress(done=min(done, most), total=max(most, 1), text=f"{noun} {done:,} of at most {most:,}")


def render_bar(share: float, *, is_ascii: bool = False, width: int = _BAR_WIDTH) -> str:
    """Return a bar of `width` characters that is full to `share` (0.0-1.0)."""
    full, empty = _ASCII if is_ascii else _BLOCKS
    filled = round(min(max(share, 0.0), 1.0) * width)
    return full * filled + empty * (width - filled)


def fit_end(
    figures: Sequence[Line], remarks: Iterable[str], *, steps: int, hint: str = "", most: int = MOST_LINES
) -> list[Line]:
    """Return at most `most` lines: the figures, then remarks, then `hint` if the `steps` before do not fit as well.

    Remarks that find no room are counted in the last one.
    """
    notes = [f"note: {sanitize(remark)}" for remark in remarks]
    is_folded = bool(steps) and len(figures) + len(notes) + steps > most
    hints: list[Line] = [(f"each step: {hint}", "dim")] if is_folded and hint else []
    room = max(most - len(figures) - len(hints), 1)
    if (left := len(notes) - room) > 0:
        notes = [*notes[: room - 1], f"{notes[room - 1]} (and {format_count(left, 'more note')})"]
    return [*figures, *((note, "yellow") for note in notes), *hints]


def name_replay(execution_id: str) -> str:
    """Return the command that shows each line of an execution again."""
    return f"reasond executions follow {sanitize(execution_id)} --verbose"
