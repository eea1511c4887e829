"""The phase of an execution in this process, and its transitions: one table, one function."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final


class Phase(StrEnum):
    """What an execution is doing in this process.

    QUEUED: it waits for its place, or for its first turn of the event loop.
    WORKING: its work is executed; the first trigger that ends it decides how.
    SUSPENDED: it waits in the store only, without lease, place or task.
    STOPPING: it is decided how it ends; its work cleans up, and its last event is written.
    ENDED: its log has ended, as far as this process could write it.
    LEFT: another process resumes it, or may resume it.
    """

    QUEUED = "queued"
    WORKING = "working"
    SUSPENDED = "suspended"
    STOPPING = "stopping"
    ENDED = "ended"
    LEFT = "left"

    # The hash of Enum is a Python function, and every lookup in the table would call it.
    __hash__ = str.__hash__


class Trigger(StrEnum):
    """What happens to an execution.

    FINISH, FAIL: its work reports how it ended. REFUSE: the store accepts no more entries for its log. LOSE: another
    process has its lease. FENCE: this process has lost contact with the store, so another process may have its lease.
    """

    BEGIN = "begin"
    FINISH = "finish"
    FAIL = "fail"
    REFUSE = "refuse"
    TIME_OUT = "time_out"
    CANCEL = "cancel"
    ABANDON = "abandon"
    HAND_OVER = "hand_over"
    LOSE = "lose"
    FENCE = "fence"
    SUSPEND = "suspend"
    WAKE = "wake"
    END = "end"
    LEAVE = "leave"

    __hash__ = str.__hash__


OWN_ENDS: Final = (Trigger.FINISH, Trigger.FAIL)
"""Its work ended it."""

CANCELS: Final = (Trigger.CANCEL, Trigger.ABANDON)
"""Somebody cancelled it, or its last subscriber has left: its log ends."""

LEAVES: Final = (Trigger.HAND_OVER, Trigger.LOSE, Trigger.FENCE)
"""Another process resumes it, or may resume it: this process does not end its log."""

STOP_REASONS: Final[Mapping[Trigger, str]] = {
    Trigger.CANCEL: "cancelled",
    Trigger.ABANDON: "cancelled",
    Trigger.HAND_OVER: "handed_over",
    Trigger.LOSE: "lost",
    Trigger.FENCE: "fenced",
}
"""The names of stops from outside in metrics, spans and the log of the server."""

_STOPS: Final = (*OWN_ENDS, Trigger.REFUSE, Trigger.TIME_OUT, *sorted(CANCELS), *sorted(LEAVES))

TABLE: Final[Mapping[Phase, Mapping[Trigger, Phase]]] = {
    Phase.QUEUED: {Trigger.BEGIN: Phase.WORKING},
    Phase.WORKING: {Trigger.SUSPEND: Phase.SUSPENDED, **dict.fromkeys(_STOPS, Phase.STOPPING)},
    Phase.SUSPENDED: {Trigger.WAKE: Phase.QUEUED, Trigger.REFUSE: Phase.STOPPING, Trigger.LOSE: Phase.LEFT},
    Phase.STOPPING: {Trigger.END: Phase.ENDED, Trigger.LEAVE: Phase.LEFT},
    Phase.ENDED: {},
    Phase.LEFT: {},
}
"""The next phase for each phase and trigger. Other triggers change nothing: the first of two stops counts."""


def advance(phase: Phase, trigger: Trigger) -> Phase:
    """Return the phase after `trigger`; `phase` itself if the trigger changes nothing."""
    moves = TABLE[phase]
    return moves[trigger] if trigger in moves else phase  # noqa: SIM401 - `get` is a call, three times for every run
