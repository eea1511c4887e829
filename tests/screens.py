"""Terminals of tests: pyte draws what a program writes, as the terminal of a person does."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import select
import struct
import sys
import termios
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

import pyte

from tests.forking import ForkedProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

COMMAND = (str(Path(sys.executable).with_name("reasond")),)
LIMIT_S = 180.0
_ROWS = 24
_HISTORY = 5_000


class DrawnTerminal:
    """What a person sees of a terminal of `width` columns."""

    def __init__(self, width: int) -> None:
        self._screen = pyte.HistoryScreen(width, _ROWS, history=_HISTORY)
        self._stream = pyte.ByteStream(self._screen)
        self.output = b""

    def feed(self, written: bytes) -> None:
        """Draw what was written."""
        self.output += written
        # pyte forgets what follows these. Without them emojis are as wide as on a terminal that cannot join them.
        for joiner in ("\N{ZERO WIDTH JOINER}", "\N{VARIATION SELECTOR-16}"):
            written = written.replace(joiner.encode(), b"")
        self._stream.feed(written)

    @property
    def rows(self) -> list[str]:
        """All rows that are not empty, those above the screen included."""
        columns = range(self._screen.columns)
        above = ["".join(row[column].data for column in columns) for row in self._screen.history.top]
        return [row.rstrip() for row in (*above, *self.screen) if row.strip()]

    @property
    def screen(self) -> list[str]:
        """The rows that a person sees without scrolling."""
        return self._screen.display

    @property
    def has_cursor(self) -> bool:
        """Whether the cursor is shown."""
        return not self._screen.cursor.hidden


class TerminalStream(io.StringIO):
    """A stream that says that it is a terminal, for code of this process."""

    encoding = "utf-8"

    def __init__(self, width: int = 80) -> None:
        super().__init__()
        self._width = width

    def isatty(self) -> bool:
        return True

    def draw(self) -> DrawnTerminal:
        """Return what a person sees of it now."""
        drawn = DrawnTerminal(self._width)
        drawn.feed(self.getvalue().replace("\n", "\r\n").encode())
        return drawn


class TerminalCommand:
    """`reasond` on a terminal of its own."""

    def __init__(self, process: ForkedProcess, terminal: int, width: int) -> None:
        self._process = process
        self._terminal = terminal
        self.drawn = DrawnTerminal(width)

    def wait_for(self, is_there: Callable[[Self], bool]) -> None:
        """Draw until the condition holds."""
        limit = time.monotonic() + LIMIT_S
        while not is_there(self):
            assert time.monotonic() < limit, self.drawn.rows
            assert self._read() or is_there(self), self.drawn.rows

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._terminal, text.encode())

    def finish(self) -> int:
        """Draw to the end; return the exit code."""
        while self._read():
            pass
        return self._process.wait(LIMIT_S)

    def _read(self) -> bool:
        """Draw what comes within a moment; return False at the end."""
        if select.select([self._terminal], [], [], 0.05)[0]:
            try:
                written = os.read(self._terminal, 65_536)
            except OSError:
                # So the last closed end of a terminal is told on Linux.
                written = b""
            if not written:
                return False
            self.drawn.feed(written)
        return True


@contextmanager
def open_terminal(
    *arguments: str, environ: Mapping[str, str], width: int = 80, stdout: int | None = None
) -> Iterator[TerminalCommand]:
    """Run `reasond` on a terminal of `width` columns, which is killed with the block; stdout may be elsewhere."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, width, 0, 0))
    known = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
    terminal = Path(os.ttyname(its))
    process = ForkedProcess(
        *arguments,
        environ={**known, "TERM": "xterm-256color", **environ},
        folder=Path.cwd(),
        stdin=terminal,
        stdout=terminal if stdout is None else Path("/proc", str(os.getpid()), "fd", str(stdout)),
        stderr=terminal,
        # Ctrl-C reaches the processes of the session whose terminal it is.
        is_session=True,
    )
    os.close(its)
    try:
        yield TerminalCommand(process, mine, width)
    finally:
        process.kill()
        process.wait()
        os.close(mine)
