"""Previews of texts, logs and lists of values: first and last lines, failures, and places with words of a question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reasond_server.tools.preview_room import clip
from reasond_server.tools.preview_words import find_hits, is_failure_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.tools.preview_room import PreviewRoom

MAX_ENTRY_CHARACTERS: Final = 2_000
"""Of a value in a list; failures and words are looked for in so many, and fewer are shown."""

_CLIPS: Final = (1_000, 300, 120)
_AT_ENDS: Final = 3
_PIECE_CHARACTERS: Final = 200
_LONG_LINE_CHARACTERS: Final = 2_000
# Of an entry with its number.
_LEAST_CHARACTERS: Final = 4


def write_text(text: str, *, name: str, room: PreviewRoom, words: Sequence[str]) -> str:
    """Return lines of `text` with their numbers, from 1; `name` says what the text is.

    A text of very long lines is shown in pieces with their offsets.
    """
    lines = text.splitlines()
    if len(text) > _LONG_LINE_CHARACTERS * max(1, len(lines)):
        starts = range(0, len(text), _PIECE_CHARACTERS)
        pieces = [text[at : at + _PIECE_CHARACTERS].replace("\n", " ") for at in starts]
        told = f"{name}: {len(text)} characters; pieces of {_PIECE_CHARACTERS} with their offsets"
        return write_entries(pieces, numbers=starts, told=told, room=room, words=words)
    told = f"{name}: {len(lines)} lines, {len(text)} characters"
    return write_entries(lines, numbers=range(1, len(lines) + 1), told=told, room=room, words=words)


def write_entries(
    entries: Sequence[str], *, numbers: Sequence[int], told: str, room: PreviewRoom, words: Sequence[str]
) -> str:
    """Return the title `told` and as many of `entries` as fit, in their order, each with its number.

    The first and the last ones, failures and those with one of `words` go before their neighbours, and those before
    all others. Long entries are clipped where that shows more of the first kind.
    """
    most_entries = room.most_characters // _LEAST_CHARACTERS
    order, urgent = _order_entries(entries, words, most_entries)
    text = ""
    for most in _CLIPS:

        def write(count: int, most: int = most) -> str:
            return _write_chosen(entries, numbers, sorted(order[:count]), told=told, most=most)

        shown, text = room.find_most(write, len(order))
        if shown >= urgent:
            break
    return text or room.cut(told)


def _order_entries(entries: Sequence[str], words: Sequence[str], most: int) -> tuple[Sequence[int], int]:
    """Return the numbers of at most `most` entries, the most useful first, and how many of them are urgent."""
    last = len(entries)
    ends = [*range(min(_AT_ENDS, last)), *range(max(0, last - _AT_ENDS), last)]
    hits = find_hits(entries, words)
    found = sorted(hits | {at for at, entry in enumerate(entries) if is_failure_line(entry)})
    urgent = dict.fromkeys([*ends, *found])
    around = [near for at in found for near in (at - 1, at + 1) if 0 <= near < last]
    order = list(dict.fromkeys([*urgent, *around, *range(min(last, most))]))[:most]
    return order, min(len(urgent), len(order))


def _write_chosen(
    entries: Sequence[str], numbers: Sequence[int], chosen: Sequence[int], *, told: str, most: int
) -> str:
    lines, expected = [f"{told}; {len(entries) - len(chosen)} left out" if len(chosen) < len(entries) else told], 0
    for at in chosen:
        if at > expected:
            lines.append(f"[… {at - expected} left out]")
        lines.append(f"{numbers[at]}: {clip(entries[at], most)}")
        expected = at + 1
    if expected < len(entries):
        lines.append(f"[… {len(entries) - expected} left out]")
    return "\n".join(lines)
