"""Legs of turns for the clients of other products, whose results may belong to a hand-off here or to another server."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from reasond_server.errors.base import ReasondError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.turns.turn_service import TurnService
    from reasond_server.types import Principal, StreamEvent
    from reasond_server.types.turns import TurnReentry, TurnStart


async def follow_leg(
    service: TurnService,
    caller: Principal,
    source: TurnStart | TurnReentry,
    *,
    instead: TurnStart | None = None,
    request_id: str = "",
    include_deltas: bool = False,
) -> AsyncGenerator[StreamEvent, None]:
    """Yield the events of a leg; a re-entry that settles nothing here becomes the turn that `instead` starts.

    Raises:
        ReasondError: as `TurnService.stream`.
    """
    has_begun = False
    events = service.stream(caller, source, request_id=request_id, include_deltas=include_deltas)
    try:
        async with aclosing(events):
            async for event in events:
                has_begun = True
                yield event
    except ReasondError:
        if has_begun or instead is None:
            raise
    else:
        return
    events = service.stream(caller, instead, request_id=request_id, include_deltas=include_deltas)
    async with aclosing(events):
        async for event in events:
            yield event
