"""What was said to a turn, as a person reads it who judges its calls."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from reasond_server.types.tasks import HistoryMessage, Speaker
from reasond_server.types.turns import TurnConversation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.turns.history import EndedTurn
    from reasond_server.types.turns import TurnStarted

_MOST_CHARACTERS: Final = 400_000
"""Of all texts together: as UTF-8 they fit into a message of 4 MiB, whatever they are."""


class _TextRoom:
    """How many characters may still be told."""

    def __init__(self) -> None:
        self._left = _MOST_CHARACTERS

    def take(self, text: str) -> str:
        """Return `text`, or its beginning with a note of what is left out."""
        kept = text[: self._left]
        self._left -= len(kept)
        return kept if len(kept) == len(text) else f"{kept}… [{len(text) - len(kept)} characters are left out here]"

    def has(self, message: HistoryMessage) -> bool:
        """Return whether the whole `message` fits, and count it if it does."""
        needed = sum(map(len, message.list_texts()))
        if needed > self._left:
            return False
        self._left -= needed
        return True


def write_conversation(start: TurnStarted, earlier: Sequence[EndedTurn]) -> TurnConversation | None:
    """Return what was said, with the `earlier` turns of the session; None where the store kept no content.

    All texts together have at most 400,000 characters: what is not said last is left out first, and told.
    """
    if not start.message:
        return None
    room = _TextRoom()
    message, system = room.take(start.message), room.take(start.system)
    told = start.history or [message for turn in earlier for message in _list_messages(turn)]
    kept: list[HistoryMessage] = []
    for one in reversed(told):
        if not room.has(one):
            break
        kept.insert(0, replace(one, images=()))
    return TurnConversation(
        system=system,
        history=kept,
        message=message,
        context=[replace(block, text=room.take(block.text)) for block in start.context],
        material=room.take(start.material),
        left_out_messages=len(told) - len(kept),
    )


def _list_messages(turn: EndedTurn) -> Sequence[HistoryMessage]:
    start, result = turn.progress.start, turn.progress.result
    asked = "" if start is None else start.message
    ending = "" if result is None else result.answer or f"[the turn ended: {result.finish_reason}]"
    return (
        HistoryMessage(role=Speaker.USER, text=asked),
        HistoryMessage(role=Speaker.ASSISTANT, text=ending),
    )
