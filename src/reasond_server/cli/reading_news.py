"""What a window that read a part of a text noted that no window before it had noted."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from reasond import BoundedContextStep

_NUMBER: Final = re.compile(r"\d+")
_MARKED: Final = re.compile(r"[-*\u2022>#\s]+")


@dataclass(slots=True)
class ReadingNews:
    """Keeps the lines that were noted so far; `count` is how many of the windows noted something new."""

    count: int = 0
    windows: int = 0
    _known: set[str] = field(default_factory=set)

    def find(self, window: BoundedContextStep) -> str:
        """Return the last line of the notes of `window` that is new; empty if none is."""
        self.windows += 1
        found = ""
        for each in window.carryover.splitlines():
            line = _MARKED.sub(" ", each).strip()
            shape = _shape_of(line, window)
            # A line that ends with a colon is the label of a part of the notes.
            if line and shape not in self._known and not line.endswith(":"):
                found = line
            self._known.add(shape)
        self.count += bool(found)
        return found


def _shape_of(line: str, window: BoundedContextStep) -> str:
    """Return `line`; where it counts segments, without its numbers, because it is noted anew in each window."""
    numbers = set(_NUMBER.findall(line))
    is_count = {str(window.reading.segment), str(window.reading.segment_count)} <= numbers
    return _NUMBER.sub("#", line) if is_count else line
