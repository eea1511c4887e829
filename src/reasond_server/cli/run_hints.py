"""What a person can do about a run that costs more calls than it must, said while it can still be stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond import Iteration

_FEWEST_SEGMENTS: Final = 4
# Any text of the length of a nonce: only its tokens count.
_NONCE: Final = "qzkvhwbnmcjtrxplaoysdgeufiqh"


def find_carryover_hint(config: Mapping[str, Any], step: Iteration, query: str) -> str:
    """Return which smaller carryover_size would halve the calls that read the text; empty if none does.

    It is told at the first segment alone. `config` is the configuration of the run.
    """
    reading = step.bounded_context.reading
    if reading.segment != 1 or reading.segment_count < _FEWEST_SEGMENTS:
        return ""
    # Imported here: most runs read no text in segments.
    from reasond_server.context.window_plan import WindowLimits, suggest_carryover  # noqa: PLC0415 - see above
    from reasond_server.llm.counting import EstimatingCounter  # noqa: PLC0415 - see above
    from reasond_server.types import CarryoverMode  # noqa: PLC0415 - see above

    try:
        limits = WindowLimits(
            chunk_size=int(config["chunk_size"]),
            carryover_size=int(config["carryover_size"]),
            max_segments=int(config["max_segments"]),
            max_iterations=int(config["max_iterations"]),
            carryover_mode=CarryoverMode(config["carryover_mode"]),
        )
    except (KeyError, TypeError, ValueError):
        # Another strategy of the same kind of steps, or another release.
        return ""
    found = suggest_carryover(
        query=query, limits=limits, counter=EstimatingCounter(), nonce=_NONCE, segments=reading.segment_count
    )
    if found is None:
        return ""
    size, expected = found
    return (
        f"the text is read in {reading.segment_count} calls; with --set carryover_size={size} about {expected} would "
        f"do, with notes of at most {size} tokens in place of {limits.carryover_size}"
    )
