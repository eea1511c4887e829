"""In which phase an execution is, as this process sees it, and what moves it on: one table, one function."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class Phase(StrEnum):
    """What an execution is doing here.

    QUEUED: it waits for its place, or for its first turn of the event loop.
    WORKING: its work goes on, and whatever comes first decides how that ends.
    SUSPENDED: it waits in the store alone, without lease, place or task.
    STOPPING: how it ends is decided; its work cleans up, and its last event is written.
    ENDED: its log has ended, as far as this process could write it.
    LEFT: another process goes on with it.
    """

    QUEUED = "queued"
    WORKING = "working"
    SUSPENDED = "suspended"
    STOPPING = "stopping"
    ENDED = "ended"
    LEFT = "left"

    # That of Enum is a call in Python, for every look into the table.
    __hash__ = str.__hash__


class Trigger(StrEnum):
    """What happens to an execution.

    FINISH, FAIL: its work reports how it ended. REFUSE: the store takes nothing more for its log. LOSE: another process
    has its lease. FENCE: this process is out of touch with the store and cannot know whether another one has.
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


CANCELS: Final = (Trigger.CANCEL, Trigger.ABANDON)
"""Somebody asked for it to stop, or nobody is left who wants it: its log ends."""

LEAVES: Final = (Trigger.HAND_OVER, Trigger.LOSE, Trigger.FENCE)
"""Another process goes on with it, or may: its log does not end here."""

STOP_REASONS: Final[Mapping[Trigger, str]] = {
    Trigger.CANCEL: "cancelled",
    Trigger.ABANDON: "cancelled",
    Trigger.HAND_OVER: "handed_over",
    Trigger.LOSE: "lost",
    Trigger.FENCE: "fenced",
}
"""What stops from outside are called in metrics, spans and the log of the server."""

_STOPS: Final = (Trigger.FINISH, Trigger.FAIL, Trigger.REFUSE, Trigger.TIME_OUT, *sorted(CANCELS), *sorted(LEAVES))

TABLE: Final[Mapping[Phase, Mapping[Trigger, Phase]]] = {
    Phase.QUEUED: {Trigger.BEGIN: Phase.WORKING},
    Phase.WORKING: {Trigger.SUSPEND: Phase.SUSPENDED, **dict.fromkeys(_STOPS, Phase.STOPPING)},
    Phase.SUSPENDED: {Trigger.WAKE: Phase.QUEUED, Trigger.REFUSE: Phase.STOPPING, Trigger.LOSE: Phase.LEFT},
    Phase.STOPPING: {Trigger.END: Phase.ENDED, Trigger.LEAVE: Phase.LEFT},
    Phase.ENDED: {},
    Phase.LEFT: {},
}
"""What each trigger does in each phase. What is not named changes nothing: the first of two stops counts."""


def advance(phase: Phase, trigger: Trigger) -> Phase:
    """Return the phase after `trigger`; `phase` itself where that changes nothing."""
    moves = TABLE[phase]
    return moves[trigger] if trigger in moves else phase  # noqa: SIM401 - `get` is a call, for every run three times
