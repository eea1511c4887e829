"""The entry point of turns: starts them, takes re-entries, and reads turns, sessions and tool results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.types import Principal, StreamEvent
    from reasond_server.types.turns import (
        ResultExcerpt,
        ResultPart,
        SessionView,
        Turn,
        TurnReentry,
        TurnResult,
        TurnStart,
    )


@value
class TurnCursor:
    """A place in the log of a turn, to follow it from."""

    turn_id: str
    after_sequence: int = 0


@value
class TurnView:
    """A turn, and how it ended; None before that."""

    turn: Turn
    result: TurnResult | None = None


@value
class TurnPage:
    """One page of turns, newest first; the token is empty on the last page."""

    turns: Sequence[Turn]
    next_page_token: str


@value
class SessionPage:
    """One page of sessions, last changed first; the token is empty on the last page."""

    sessions: Sequence[SessionView]
    next_page_token: str


class TurnService:
    """Works out turns for verified callers."""

    def stream(
        self,
        caller: Principal,
        source: TurnStart | TurnReentry | TurnCursor,
        *,
        request_id: str = "",
        include_deltas: bool = False,
        follow: bool = False,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Start a turn, go on with one or attach to one; yield its events to the next exit, with `follow` to the end.

        Events of the class TurnDelta and Heartbeat are not logged. A turn that failed raises its error after its last
        event. Closing the iterator never affects the turn.
        """
        raise NotImplementedError

    async def run(self, caller: Principal, source: TurnStart | TurnReentry, *, request_id: str = "") -> TurnView:
        """Start a turn or go on with one, and return it at the next exit: its end, or a hand-off."""
        raise NotImplementedError

    async def get(self, caller: Principal, turn_id: str) -> TurnView:
        """Return a turn with its ledger."""
        raise NotImplementedError

    async def list(
        self, caller: Principal, *, session_id: str = "", page_size: int = 0, page_token: str = ""
    ) -> TurnPage:
        """Return a page of the caller's turns."""
        raise NotImplementedError

    async def cancel(self, caller: Principal, turn_id: str) -> Turn:
        """Cancel a turn that runs or waits, and return it."""
        raise NotImplementedError

    async def delete(self, caller: Principal, turn_id: str) -> None:
        """Cancel the turn if it has not ended, and forget it."""
        raise NotImplementedError

    async def read_tool_result(
        self, caller: Principal, turn_id: str, call_id: str, part: ResultPart, *, max_bytes: int = 0
    ) -> ResultExcerpt:
        """Return a part of the whole result of a tool call; `max_bytes` 0 means 3 MiB."""
        raise NotImplementedError

    async def get_session(self, caller: Principal, session_id: str) -> SessionView:
        """Return a session."""
        raise NotImplementedError

    async def list_sessions(self, caller: Principal, *, page_size: int = 0, page_token: str = "") -> SessionPage:
        """Return a page of the caller's sessions."""
        raise NotImplementedError

    async def delete_session(self, caller: Principal, session_id: str) -> None:
        """Forget a session and its turns."""
        raise NotImplementedError
