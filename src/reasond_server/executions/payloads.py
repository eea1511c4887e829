"""What a third party's strategy may put into a log: JSON, not too deep, so that every transport can carry it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from reasond_server.errors import InternalError
from reasond_server.types import CustomMetrics, CustomStep

if TYPE_CHECKING:
    from reasond_server.types import StepDetail, StrategyMetrics

MAX_DEPTH = 16


def depth_of(value: object) -> int:
    """Return how deep objects and arrays are nested in `value`; stops counting one past MAX_DEPTH."""
    depth, level = 0, [value]
    while level and depth <= MAX_DEPTH + 1:
        level = [
            child
            for parent in level
            for child in (parent.values() if isinstance(parent, dict) else parent if isinstance(parent, list) else ())
        ]
        depth += 1
    return depth - 1


def require_payload(value: StepDetail | StrategyMetrics | None, *, strategy: str) -> None:
    """Refuse a custom step or custom metrics that are no JSON object or nested too deep.

    Raises:
        InternalError: it names the strategy and what is wrong, for the author of the strategy.
    """
    if not isinstance(value, CustomStep | CustomMetrics):
        return
    try:
        text = json.dumps(value.data, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        text = ""
    if not text.startswith("{") or depth_of(json.loads(text)) > MAX_DEPTH:
        kind = type(value).__name__
        raise InternalError(
            f"strategy {strategy!r} yielded a {kind} that is no JSON object of {MAX_DEPTH} levels at most"
        )
