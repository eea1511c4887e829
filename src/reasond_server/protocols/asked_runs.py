"""What clients of other products ask for, followed to the end of a task, or to the next exit of a turn."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING

from reasond_server.access.permissions import Operation, require_permission
from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.protocols.conversations import find_question
from reasond_server.protocols.truncation import fit_window
from reasond_server.types import HistoryMessage, Principal, StreamEvent, Task
from reasond_server.types.turns import HandedOff, TurnReentry, TurnResult, TurnStart, TurnStarted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from datetime import datetime

    from reasond_server.llm.model import ChatModel
    from reasond_server.protocols.followed_runs import FollowedRun
    from reasond_server.protocols.openai_requests import Asked
    from reasond_server.reasoning.service import ReasoningService
    from reasond_server.reasoning.views import ExecutionView
    from reasond_server.turns.turn_service import TurnService


class AskedRuns:
    """Starts and follows what was asked; a turn needs the permission of `turn_operation`."""

    def __init__(self, *, reasoning: ReasoningService, turns: TurnService, turn_operation: Operation) -> None:
        self._reasoning = reasoning
        self._turns = turns
        self._turn_operation = turn_operation

    async def execute(self, caller: Principal, task: Task) -> ExecutionView:
        """Work on a task for a client that cannot come back for it, and return its log. Raises as `follow`."""
        return await self._reasoning.execute(caller, task)

    async def fit(self, asked: Asked, model: ChatModel, *, may_reduce: bool) -> Asked:
        """Return what fits the window of the model. Raises as `fit_window`."""
        share = self._turns.history_share
        return await asyncio.to_thread(fit_window, asked, model, may_reduce=may_reduce, history_share=share)

    async def work(self, caller: Principal, asked: Asked, run: FollowedRun, *, may_return: bool = False) -> datetime:
        """Let `run` take all events; return when the execution began. Raises as `follow`."""
        if isinstance(asked.source, Task) and not may_return:
            view = await self._reasoning.execute(caller, asked.source, request_id=asked.request_id)
            run.execution_id = view.result.execution_id
            for one in (*view.steps, view.result):
                run.take(one)
            return view.execution.create_time
        created = None
        async with aclosing(self.follow(caller, asked, may_return=may_return)) as events:
            async for event in events:
                created = created or event.create_time
                run.execution_id = event.execution_id
                run.take(event.event)
        if created is None:
            raise InternalError("an execution left without an event")
        return created

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

    async def find_unused_changes(self, caller: Principal, asked: Asked, execution_id: str = "") -> Sequence[str]:
        """Return warnings for what a re-entry says otherwise than the start of its turn did, and so in vain.

        With an `execution_id` only if that is the turn: another one may have begun instead.

        Raises:
            ReasondError: the turn cannot be read.
        """
        if asked.instead is None or not isinstance(asked.source, TurnReentry):
            return ()
        turn_id = asked.source.turn_id
        started = await self._turns.read_start(caller, turn_id) if execution_id in {"", turn_id} else None
        return () if started is None else _describe_unused_changes(started, asked.instead)

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


def _describe_unused_changes(started: TurnStarted, asked: TurnStart) -> Sequence[str]:
    """Return the warnings; the history of `asked` is the whole conversation, up to the results that are handed in."""
    changed = []
    if {tool.name: tool for tool in started.client_tools} != {tool.name: tool for tool in asked.client_tools}:
        changed.append("tools")
    if started.system != asked.system:
        changed.append("system message")
    began = _list_texts(started.history), started.message
    # A long question is kept as two messages.
    asked_before = (find_question(asked.history[:most]) for most in (len(started.history) + 1, len(started.history)))
    if not any(one is not None and (_list_texts(one.history), one.query) == began for one in asked_before):
        changed.append("earlier messages")
    return [
        f"The {name} of this request are others than those of the request that began the turn, which goes on with "
        "those: start a new turn, without its tool calls, to change them."
        for name in changed
    ]


def _list_texts(history: Sequence[HistoryMessage]) -> list[tuple[str, ...]]:
    return [(message.role, *message.list_texts()) for message in history]
