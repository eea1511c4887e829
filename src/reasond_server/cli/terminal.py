"""Where text for a person goes: stdout where it is a terminal, else stderr; text of others is made harmless."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def human_stream() -> TextIO:
    """Return the stream for people; what a program reads from stdout stays clean."""
    return sys.stdout if sys.stdout.isatty() else sys.stderr


def console(stream: TextIO) -> Console:
    """Return a console that prints text as it is, with colours only where a terminal and NO_COLOR allow."""
    from rich.console import Console  # noqa: PLC0415 - 40 ms that only commands with colours pay

    return Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=not stream.isatty())


def write(text: str, *, stream: TextIO | None = None) -> None:
    """Write `text` and a line end to `stream`, or else to stdout, at once."""
    target = stream or sys.stdout
    target.write(f"{text}\n")
    target.flush()


def printable(text: str) -> str:
    """Return `text` without characters that command a terminal; line breaks and tabs stay."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text).encode("utf-8", "replace").decode("utf-8")


def one_line(text: str, width: int) -> str:
    """Return `text` on one line of at most `width` characters, an ellipsis where it was cut."""
    flat = " ".join(printable(text).split())
    return flat if len(flat) <= width else f"{flat[: max(width - 1, 0)].rstrip()}…"
