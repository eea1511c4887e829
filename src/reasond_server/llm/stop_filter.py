"""Stop strings in a stream: only the text before the first one passes, however the stream is split into pieces."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Passes text up to the first stop string; holds back text that may become one.

    The first stop string is the one that is complete first; if two are complete at the same character, the longer.
    So the result does not depend on how the text was split into pieces. Empty stop strings are ignored.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(dict.fromkeys([word for word in stop if word])) if stop else ()
        self._longest = max(map(len, self._stop)) if self._stop else 0
        self._held = ""
        self.matched: str | None = None

    def feed(self, piece: str) -> str:
        """Take the next piece and return the text that passes; after a match no text passes."""
        if not self._stop:
            return piece
        if self.matched is not None:
            return ""
        text = self._held + piece
        match = min(self._find_ends(text), default=None)
        if match is not None:
            _, start, self.matched = match
            self._held = ""
            return text[:start]
        kept = self._count_undecided(text)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def flush(self) -> str:
        """Return the text that was held back: the stream ended, so it is not a stop string."""
        held, self._held = self._held, ""
        return held

    def _find_ends(self, text: str) -> list[tuple[int, int, str]]:
        """Return the end, the start and the stop string itself for the first match of each stop string in `text`."""
        found = ((text.find(word), word) for word in self._stop)
        return [(start + len(word), start, word) for start, word in found if start >= 0]

    def _count_undecided(self, text: str) -> int:
        """Return the length of the longest suffix of `text` that begins a stop string."""
        longest = min(self._longest - 1, len(text))
        for length in range(longest, 0, -1):
            if any(word.startswith(text[len(text) - length :]) for word in self._stop):
                return length
        return 0
