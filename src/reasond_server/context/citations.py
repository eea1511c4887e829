"""Citations in summaries: `[c3:120-180]` points to characters 120 to 180 of the result with the handle c3."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_CITATION: Final = re.compile(r"\[([A-Za-z0-9_./-]{1,128}):(\d{1,12})-(\d{1,12})\]")


@value
class BrokenCitation:
    """A citation that points to nothing, as it is written, and why."""

    text: str
    reason: str


def check_citations(summary: str, results: Mapping[str, str]) -> Sequence[BrokenCitation]:
    """Return the citations in `summary` that point to no text; `results` are whole results as JSON, by their handles.

    Offsets are characters of that JSON, as `read_tool_result` counts them; the first is 0, and the second is the end.
    """
    broken: list[BrokenCitation] = []
    for found in _CITATION.finditer(summary):
        reason = _find_fault(results.get(found[1]), int(found[2]), int(found[3]))
        if reason:
            broken.append(BrokenCitation(text=found[0], reason=reason))
    return tuple(broken)


def _find_fault(result: str | None, start: int, end: int) -> str:
    if result is None:
        return "there is no such result"
    if start >= end:
        return "the end is not after the beginning"
    return "" if end <= len(result) else f"the result has {len(result)} characters"
