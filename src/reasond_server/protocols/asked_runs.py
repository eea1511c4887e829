"""What clients of other products ask for, followed to the end of a task, or to the next exit of a turn."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from reasond_server.access.permissions import require_permission
from reasond_server.errors.base import ReasondError
from reasond_server.types import Task
from reasond_server.types.turns import HandedOff, TurnResult, TurnStart

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.access.permissions import Operation
    from reasond_server.protocols.openai_requests import Asked
    from reasond_server.reasoning.service import ReasoningService
    from reasond_server.turns.turn_service import TurnService
    from reasond_server.types import Principal, StreamEvent


class AskedRuns:
    """Starts and follows what was asked; a turn needs the permission of `turn_operation`."""

    def __init__(self, *, reasoning: ReasoningService, turns: TurnService, turn_operation: Operation) -> None:
        self._reasoning = reasoning
        self._turns = turns
        self._turn_operation = turn_operation

    async def follow(
        self,
        caller: Principal,
        asked: Asked,
        *,
        include_deltas: bool = False,
        keep_running: bool = False,
        may_return: bool = False,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events. Whoever leaves cancels the run, unless they come back for it with a request id.

        With `may_return` a turn goes on to its exit without its client.

        Raises:
            ReasondError: the request is refused, or the run failed.
        """
        if isinstance(asked.source, Task):
            events = self._reasoning.stream(
                caller,
                asked.source,
                request_id=asked.request_id,
                include_deltas=include_deltas,
                keep_running=keep_running,
                may_return=may_return,
            )
        else:
            require_permission(caller, self._turn_operation)
            events = self._follow_leg(caller, asked, include_deltas=include_deltas)
        last: StreamEvent | None = None
        try:
            async with aclosing(events):
                async for event in events:
                    last = event
                    yield event
        except (GeneratorExit, asyncio.CancelledError):
            is_new_turn = isinstance(asked.source, TurnStart) and not asked.request_id and not may_return
            if last is not None and is_new_turn and not isinstance(last.event, HandedOff | TurnResult):
                await asyncio.shield(self._turns.cancel(caller, last.execution_id))
            raise

    async def _follow_leg(
        self, caller: Principal, asked: Asked, *, include_deltas: bool
    ) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events of a leg; a re-entry that settles nothing here becomes the turn that is asked instead."""
        assert not isinstance(asked.source, Task)  # noqa: S101 - `follow` has looked
        has_begun = False
        events = self._turns.stream(caller, asked.source, request_id=asked.request_id, include_deltas=include_deltas)
        try:
            async with aclosing(events):
                async for event in events:
                    has_begun = True
                    yield event
        except ReasondError:
            if has_begun or asked.instead is None:
                raise
        else:
            return
        events = self._turns.stream(caller, asked.instead, request_id=asked.request_id, include_deltas=include_deltas)
        async with aclosing(events):
            async for event in events:
                yield event
