"""What clients of other products ask for, followed to the end of a task, or to the next exit of a turn.

What does not fit the window of the model is reduced where the client lets it, else refused. Nobody tells a server what
its client has received: the end of a stream may be on its way when the connection breaks. So a request that was
answered whole is a new one only some seconds later, and until then gets what it began.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pydantic_core import to_json

from reasond_server.access.permissions import Operation, require_permission
from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.errors.model import ContextExhaustedError
from reasond_server.protocols.conversations import find_question
from reasond_server.protocols.openai_requests import Asked, write_input
from reasond_server.tools.previews import render_preview
from reasond_server.types import HistoryMessage, Principal, StreamEvent, Task
from reasond_server.types.turns import HandedOff, TurnReentry, TurnResult, TurnStart, TurnStarted

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from datetime import datetime

    from reasond_server.eventlog.store import ExecutionStore
    from reasond_server.executions.desk import ExecutionDesk
    from reasond_server.llm.model import ChatModel
    from reasond_server.protocols.followed_runs import FollowedRun
    from reasond_server.reasoning.service import ReasoningService
    from reasond_server.reasoning.views import ExecutionView
    from reasond_server.turns.turn_service import TurnService

_ATTACH: Final = "attach-"
"""The beginning of request ids that are made here; those of clients stand for their execution for good."""
_MOST_S: Final = 5.0
_REPLY_TOKENS: Final = 4096
_PREVIEW_TOKENS: Final = 200


class Attachments:
    """Settles what was sent whole `within_s` seconds after the last time, 5 at most; `aclose` settles the rest."""

    def __init__(self, *, store: ExecutionStore, desk: ExecutionDesk, within_s: float) -> None:
        self._store = store
        self._desk = desk
        self._within_s = min(within_s, _MOST_S)
        self._waiting: dict[str, tuple[asyncio.TimerHandle, Principal, bool, bool]] = {}
        self._tasks = set[asyncio.Task[None]]()

    async def find_request_id(self, caller: Principal, key: str, *, is_first: bool) -> str:
        """Return the request id by which a request with this digest finds its execution; empty: it begins another.

        One that its client sends for the first time begins another where an equal one is under way.
        """
        if not key:
            return ""
        digest = hashlib.sha256(f"{key}\0{caller.subject}".encode()).hexdigest()
        name = f"{_ATTACH}{digest}"
        is_taken = is_first and await self._store.find_claim(caller.tenant, name) is not None
        return "" if is_taken else name

    async def settle(self, caller: Principal, execution_id: str, request_id: str, *, is_forgotten: bool) -> None:
        """Note that an execution was answered whole; what `is_forgotten` is deleted then."""
        ends_claim = request_id.startswith(_ATTACH)
        if not ends_claim and not is_forgotten:
            return
        if self._within_s <= 0:
            await self._settle(execution_id, caller, ends_claim=ends_claim, is_forgotten=is_forgotten)
        else:
            # Who asks again had not received it.
            if execution_id in self._waiting:
                self._waiting[execution_id][0].cancel()
            timer = asyncio.get_running_loop().call_later(self._within_s, self._begin, execution_id)
            self._waiting[execution_id] = (timer, caller, ends_claim, is_forgotten)

    def _begin(self, execution_id: str) -> None:
        _, caller, ends_claim, is_forgotten = self._waiting.pop(execution_id)
        settle = self._settle(execution_id, caller, ends_claim=ends_claim, is_forgotten=is_forgotten)
        task = asyncio.create_task(settle, name=f"settling {execution_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle(self, execution_id: str, caller: Principal, *, ends_claim: bool, is_forgotten: bool) -> None:
        with suppress(ReasondError):
            if ends_claim:
                await self._store.release(caller.tenant, execution_id)
            if is_forgotten:
                await self._desk.delete(caller, execution_id)

    async def aclose(self) -> None:
        """Settle everything now."""
        for execution_id, (timer, *_) in [*self._waiting.items()]:
            timer.cancel()
            self._begin(execution_id)
        await asyncio.gather(*self._tasks)


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


def fit_window(asked: Asked, model: ChatModel, *, may_reduce: bool, history_share: float) -> Asked:
    """Return `asked` with previews in the place of the oldest results of its history, until it fits, and a warning.

    A turn leaves out earlier messages that take more than `history_share` of the window. A re-entry and a task with a
    material are left as they are: turns and strategies fit these themselves.

    Raises:
        ContextExhaustedError: it does not fit, and may not be reduced; nothing was spent.
    """
    source, window, count = asked.source, model.context_window, model.counter.count_text
    if window is None or isinstance(source, TurnReentry) or source.material:
        return asked
    room = window - min(_REPLY_TOKENS, window // 4)
    parts = [("The request has", write_input(asked), room)]
    if isinstance(source, TurnStart):
        said = "\n".join(text for message in source.history for text in message.list_texts())
        parts.append(("The earlier messages of a turn have", said, int(history_share * room)))
    surplus, most, what = max((count(text) - most, most, what) for what, text, most in parts)
    if surplus > 0 and not may_reduce:
        raise ContextExhaustedError(
            f"{what} about {surplus + most} tokens, and the model's window of {window} has room for {most} of them",
            remedy="Shorten the input, or send truncation 'auto'.",
        )
    history, previews = list(source.history), 0
    for place, message in enumerate(history if may_reduce else ()):
        if surplus <= 0:
            break
        history[place], saved, reduced = _reduce(message, model)
        surplus -= saved
        previews += reduced
    if not previews:
        return asked
    warning = (
        f"{previews} results of tools, the oldest, are shown to the model as previews: the conversation does not fit "
        f"its window of {window} tokens."
    )
    return replace(asked, source=replace(source, history=tuple(history)), warnings=(*asked.warnings, warning))


def _reduce(message: HistoryMessage, model: ChatModel) -> tuple[HistoryMessage, int, int]:
    """Return `message` with previews of its long results, the tokens that this saves, and how many there are."""
    results, saved, reduced = [], 0, 0
    for result in message.tool_results:
        whole = model.counter.count_text(result.result_json)
        if whole > 2 * _PREVIEW_TOKENS:
            preview = render_preview(
                result.result_json, tokens=_PREVIEW_TOKENS, count=model.counter.count_text, query=message.text
            )
            text = to_json(preview.text).decode()
            saved += whole - model.counter.count_text(text)
            reduced += 1
            results.append(replace(result, result_json=text))
        else:
            results.append(result)
    return replace(message, tool_results=tuple(results)), saved, reduced
