"""The room of a preview: text is cleaned, counted and taken only if it fits."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from reasond_server.tools.results import escape_unseen

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CLIPPED: Final = "…"
"""Ends a value that is cut."""

# Tables and logs have 2 to 5 characters in a token. A longer text is too large and is not even counted.
_MAX_CHARACTERS_PER_TOKEN: Final = 12
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f]")


class PreviewRoom:
    """At most `tokens` tokens by `count`."""

    def __init__(self, *, tokens: int, count: Callable[[str], int]) -> None:
        self.tokens = tokens
        self.most_characters = max(0, tokens) * _MAX_CHARACTERS_PER_TOKEN
        self.count = count

    def take(self, text: str) -> str | None:
        """Return `text` with invisible characters as escapes; None if that does not fit."""
        if len(text) > self.most_characters:
            return None
        shown = _clean(text)
        return shown if self.count(shown) <= self.tokens else None

    def cut(self, text: str) -> str:
        """Return `text`, without its end where it does not fit."""
        shown = _clean(text[: self.most_characters])
        while shown and self.count(shown) > self.tokens:
            shown = shown[: len(shown) * 9 // 10]
        return shown

    def find_most(self, write: Callable[[int], str], most: int) -> tuple[int, str]:
        """Return the greatest number from 0 to `most` whose text fits, with the text; if none fits, (-1, "").

        `write` must give longer texts for greater numbers.
        """
        best, shown, low, high = -1, "", 0, most
        while low <= high:
            middle = (low + high + 1) // 2 if best >= 0 else low
            text = self.take(write(middle))
            if text is None:
                high = middle - 1
            else:
                best, shown, low = middle, text, middle + 1
        return best, shown

    def share(self, tokens: int) -> PreviewRoom:
        """Return a room of `tokens`, counted alike."""
        return PreviewRoom(tokens=tokens, count=self.count)


def clip(text: str, most: int | None) -> str:
    """Return `text`; if it is longer than `most`, its beginning and the mark CLIPPED."""
    return text if most is None or len(text) <= most else text[:most] + CLIPPED


def list_names(names: Sequence[str], most: int = 40) -> str:
    """Return the names in one line, each clipped, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(clip(" ".join(name.split()), 60) for name in names[:most]) + more


def _clean(text: str) -> str:
    return _CONTROL.sub(lambda found: json.dumps(found[0])[1:-1], escape_unseen(text))
