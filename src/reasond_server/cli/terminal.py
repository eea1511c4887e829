"""Chooses the stream for people (stdout if it is a terminal, else stderr) and makes foreign text harmless."""

from __future__ import annotations

import bisect
import itertools
import re
import sys
import unicodedata
from typing import TYPE_CHECKING, Any, Final, TextIO

if TYPE_CHECKING:
    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.timestamp_pb2 import Timestamp
    from rich.console import Console


# More combining marks on one letter would overwrite the lines above and below.
_STACK = re.compile(r"([\u0300-\u036f\u20d0-\u20ff]{4})[\u0300-\u036f\u20d0-\u20ff]+")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_ADDRESS = re.compile(r"https?://[^\s<>\"'`]*[^\s<>\"'`.,;:!?)\]}]")
_EMOJI_STYLE = "\N{VARIATION SELECTOR-16}"
_NANOS: Final = 1e9


def choose_stream() -> TextIO:
    """Return the stream for people; it is not stdout if a program reads that."""
    return sys.stdout if sys.stdout.isatty() else sys.stderr


def make_console(stream: TextIO) -> Console:
    """Return a console that prints text as it is, with colours only if a terminal and NO_COLOR allow them."""
    from rich.console import Console  # noqa: PLC0415 - its import takes 40 ms, and only commands with colours need it

    return Console(file=stream, highlight=False, markup=False, emoji=False, soft_wrap=not stream.isatty())


def write(text: str, *, stream: TextIO | None = None) -> None:
    """Write `text` and a line end to `stream`, by default stdout, and flush it."""
    target = stream or sys.stdout
    target.write(f"{text}\n")
    target.flush()


def sanitize(text: str) -> str:
    """Return `text` without terminal control characters; line breaks and tabs are kept."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text).encode("utf-8", "replace").decode("utf-8")


def escape_controls(text: str) -> str:
    """Return the JSON `text` with terminal control characters as escapes, which mean the same to a reader of JSON."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def fit_line(text: str, width: int) -> str:
    """Return `text` on one line of at most `width` columns, with an ellipsis if it was cut: at a word if possible."""
    return crop_line(" ".join(sanitize(text).split()), width)


def crop_line(line: str, width: int) -> str:
    """Return `line` with its blanks, cut as `fit_line` does."""
    flat = _STACK.sub(r"\1", line)
    if count_columns(flat) <= width:
        return flat
    ends = list(itertools.accumulate(map(_measure, flat[: max(width, 0)])))
    # The ellipsis takes a column; a character of two columns may leave one column unused.
    kept = bisect.bisect_right(ends, max(width - 1, 0))
    words_end = flat.rfind(" ", 0, kept + 1)
    # A word that takes more than half of the line is cut all the same: else little of the text would be left.
    return f"{flat[: words_end if 2 * words_end > kept else kept].rstrip()}…"


def fit_end_of(text: str, width: int) -> str:
    """Return the last words of `text` that fit on one line of `width` columns; the end of a word only if none fits."""
    words = _STACK.sub(r"\1", sanitize(text[-4 * max(width, 1) :])).split()
    kept: list[str] = []
    left = width
    for word in reversed(words):
        left -= count_columns(word) + bool(kept)
        if left < 0:
            break
        kept.insert(0, word)
    return " ".join(kept) or fit_line("".join(words[-1:])[-width:], width)


def find_addresses(text: str) -> list[tuple[int, int]]:
    """Return where addresses of the web begin and end in `text`; what follows a sentence is no part of one."""
    return [found.span() for found in _ADDRESS.finditer(text)]


def count_columns(text: str) -> int:
    """Return the width of `text` in terminal columns: wide East Asian characters take two, combining ones none."""
    return len(text) if text.isascii() else sum(map(_measure, text))


def _measure(character: str) -> int:
    if character == _EMOJI_STYLE:
        # It makes a picture of two columns of a character that has one.
        return 1
    if unicodedata.combining(character) or unicodedata.category(character) in {"Cf", "Me", "Mn"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"F", "W"} else 1


def get_seconds(duration: Duration) -> float:
    """Return `duration` in seconds."""
    return duration.seconds + duration.nanos / _NANOS


def format_seconds(span_s: float) -> str:
    """Format `span_s` (seconds): milliseconds below one second, else seconds."""
    if span_s < 1:
        return f"{span_s * 1000:.0f} ms"
    return f"{span_s:.1f} s"


def format_time(moment: Timestamp) -> str:
    """Return `moment` in UTC, to the second."""
    return f"{moment.ToDatetime():%Y-%m-%dT%H:%M:%SZ}"


def describe_state(message: Any) -> str:  # noqa: ANN401 - an Execution or a Turn
    """Return how an execution has ended, or what it does before: not every one that succeeded has an answer."""
    return get_enum_name(message, "finish_reason" if message.finish_reason else "state").lower()


def get_enum_name(message: Any, name: str) -> str:  # noqa: ANN401 - any message with an enum of that name
    """Return the name of the enum field `name` without its prefix."""
    enum = message.DESCRIPTOR.fields_by_name[name].enum_type
    value = enum.values_by_number.get(getattr(message, name))
    prefix = str(enum.values_by_number[0].name).removesuffix("UNSPECIFIED")
    return str(value.name).removeprefix(prefix) if value else "UNKNOWN"


def format_count(count: int, noun: str) -> str:
    """Return `count` with its noun, in the plural unless it is 1."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
