"""One line of a longer text, for lists of executions."""

from __future__ import annotations

from typing import Final

_MOST_CHARACTERS: Final = 200
_LOOKED_AT: Final = 2_000
"""How many characters of a text are looked at: it may have two million."""


def write_headline(text: str) -> str:
    """Return the first line of `text` that says something: at most 200 characters, all of them printable."""
    for line in text.lstrip()[:_LOOKED_AT].splitlines():
        kept = "".join(filter(str.isprintable, " ".join(line.split())))
        if kept:
            return kept if len(kept) <= _MOST_CHARACTERS else f"{kept[: _MOST_CHARACTERS - 1]}…"
    return ""
