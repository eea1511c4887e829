"""The console of a run that a person follows: lines that stay, and on a terminal one line of what happens now."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from reasond_server.cli.terminal import console, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

    from rich.status import Status

_TAIL_CHARACTERS = 400


class LiveConsole:
    """Prints lines to `stream`; on a terminal the last line shows the text that is being generated."""

    def __init__(self, stream: TextIO) -> None:
        self._console = console(stream)
        self._status: Status | None = None
        self._written = ""

    @property
    def is_live(self) -> bool:
        """Whether text is shown while it is generated, so that deltas are needed."""
        return self._console.is_terminal and not self._console.is_dumb_terminal

    @property
    def width(self) -> int | None:
        """The columns of the terminal; None if there is none, so lines may have any length."""
        return self._console.width if self._console.is_terminal else None

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

    def print(self, line: str = "", *, style: str = "", is_cropped: bool = True) -> None:
        """Print a line; on a terminal it is cut to the width unless `is_cropped` is False."""
        if self._console.is_terminal and is_cropped:
            self._console.print(line, style=style, no_wrap=True, overflow="ellipsis")
        else:
            self._console.print(line, style=style)
        self._console.file.flush()

    def say_now(self, text: str) -> None:
        """Show on a terminal what happens now, until the next call."""
        self._written = ""
        self._update(text)

    def add_written(self, text: str) -> None:
        """Show on a terminal the end of the text that is being generated."""
        self._written = (self._written + text)[-_TAIL_CHARACTERS:]
        room = max(self._console.width - 4, 20)
        self._update(one_line(self._written[-room:], room))

    def _update(self, text: str) -> None:
        if self._status is not None:
            from rich.text import Text  # noqa: PLC0415 - rich is loaded only if there is a status line

            self._status.update(Text(text, no_wrap=True, overflow="ellipsis"))
