"""Tasks of A2A for verified callers: begun and gone on with by messages, read, listed, followed and cancelled."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from reasond_server.errors.base import ReasondError, Violation, show
from reasond_server.errors.executions import ExecutionNotFoundError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.protocols.a2a.a2a_errors import (
    PUSH_NOT_SUPPORTED,
    TASK_NOT_CANCELABLE,
    UNSUPPORTED_OPERATION,
    A2aError,
)
from reasond_server.protocols.a2a.message_reader import read_own, read_reentry, read_task, require_generation
from reasond_server.protocols.a2a.task_writer import STATES, TaskWriter, write_log
from reasond_server.protocols.recalled_conversations import recall
from reasond_server.repair.service.repair_work import REPAIR
from reasond_server.types import Heartbeat, TextDelta
from reasond_server.types.turns import HandedOff
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from reasond_server.executions.desk import ExecutionDesk, ExecutionLog
    from reasond_server.protocols.a2a.a2a_params import ListTasksParams, SendParams, TaskParams
    from reasond_server.protocols.asked_runs import AskedRuns
    from reasond_server.protocols.model_catalogue import ModelCatalogue
    from reasond_server.protocols.openai_requests import Asked
    from reasond_server.types import Budget, Cursor, Execution, ExecutionState, HistoryMessage, Principal, StreamEvent

_MOST_LISTED: Final = 1_000
_PAGE: Final = 100
_STATES: Final = {name: state for state, name in STATES.items()}


@value
class Update:
    """What a stream sends next: `body` as JSON, None for a sign of life; `place` is where a client resumes after it."""

    body: dict[str, Any] | None
    place: str = ""


class Tasks:
    """The operations of A2A; `desk` finds executions of every kind, `budget` bounds tasks that name none."""

    def __init__(self, *, runs: AskedRuns, desk: ExecutionDesk, catalogue: ModelCatalogue, budget: Budget) -> None:
        self._runs = runs
        self._desk = desk
        self._catalogue = catalogue
        self._budget = budget

    async def send(self, caller: Principal, params: SendParams) -> dict[str, Any]:
        """Take a message, and return its task at its end or once it waits for input; immediately where that is asked.

        Raises:
            ReasondError: the message is refused.
        """
        asked = await self._read(caller, params)
        task_id = ""
        try:
            async with aclosing(self._runs.follow(caller, asked, keep_running=True)) as events:
                async for event in events:
                    task_id = event.execution_id
                    if params.configuration.return_immediately:
                        break
        except ReasondError as error:
            if not error.execution_id:
                raise
            # The task tells that it failed.
            task_id = error.execution_id
        log = await self._find(caller, task_id)
        return {"task": write_log(log).write(history_length=params.configuration.history_length)}

    def stream(self, caller: Principal, params: SendParams, cursor: Cursor | None) -> AsyncGenerator[Update, None]:
        """Take a message, and yield its task and the updates to its end, or until it waits for input.

        With a `cursor` the message was sent before, and the updates after it are repeated. Raises as `send`.
        """
        return self._begin(caller, params) if cursor is None else self._observe(caller, cursor.execution_id, cursor)

    def subscribe(self, caller: Principal, params: TaskParams, cursor: Cursor | None) -> AsyncGenerator[Update, None]:
        """Yield a task and its updates to its end; with a `cursor` those after it, also of a task that has ended.

        Raises as `get`, and A2aError: it has ended.
        """
        if cursor is not None and cursor.execution_id != params.id:
            text = f"is of the task {cursor.execution_id}; the request names {show(params.id)}"
            raise InvalidRequestError.of(Violation(field="Last-Event-ID", description=text))
        return self._observe(caller, params.id, cursor)

    async def get(self, caller: Principal, params: TaskParams) -> dict[str, Any]:
        """Return a task as it is now.

        Raises:
            ExecutionNotFoundError: this caller has no such task.
        """
        log = await self._find(caller, params.id, is_read=True)
        return write_log(log).write(history_length=params.history_length)

    async def cancel(self, caller: Principal, params: TaskParams) -> dict[str, Any]:
        """Cancel a task, and return it. Raises as `get`, and A2aError: it has ended."""
        writer = write_log(await self._find(caller, params.id))
        if not writer.has_ended:
            require_generation(read_own(params.own), writer.generation)
            await self._desk.cancel(caller, params.id)
            writer = write_log(await self._find(caller, params.id))
            if writer.is_cancelled or not writer.has_ended:
                return writer.write()
        raise A2aError(TASK_NOT_CANCELABLE, f"The task {show(params.id)} has ended")

    async def list(self, caller: Principal, params: ListTasksParams) -> dict[str, Any]:
        """Return a page of the caller's tasks, the newest first; `totalSize` counts 1,000 at most.

        Raises:
            InvalidRequestError: a filter is not valid.
        """
        if params.status and params.status not in {*_STATES, "TASK_STATE_UNSPECIFIED"}:
            known = ", ".join(_STATES)
            text = f"must be one of {known}, got {show(params.status)}"
            raise InvalidRequestError.of(Violation(field="status", description=text))
        state = _STATES.get(params.status)
        tasks: list[dict[str, Any]] = []
        token, seen = params.page_token, 0
        while len(tasks) < params.page_size and seen < _MOST_LISTED:
            page = await self._desk.list(caller, state=state, page_size=params.page_size - len(tasks), page_token=token)
            seen += len(page.executions)
            for execution in page.executions:
                task = await self._list_one(caller, execution, params)
                if task is not None:
                    tasks.append(task)
            token = page.next_page_token
            if not token:
                break
        total = len(tasks)
        if (token or params.page_token) and not params.context_id:
            total = await self._count(caller, state)
        return {"tasks": tasks, "nextPageToken": token, "pageSize": params.page_size, "totalSize": total}

    async def _read(self, caller: Principal, params: SendParams) -> Asked:
        """Return what a message asks for. Raises as `send`."""
        if params.configuration.task_push_notification_config is not None:
            raise build_push_error()
        message = params.message
        if not message.task_id:
            earlier = await self._recall(caller, message.reference_task_ids)
            return read_task(params, self._catalogue, caller, earlier, budget=self._budget)
        log = await self._find(caller, message.task_id)
        writer = write_log(log)
        if message.context_id and message.context_id != writer.context_id:
            text = f"is not that of the task, {show(writer.context_id)}"
            raise InvalidRequestError.of(Violation(field="message.contextId", description=text))
        asked = read_reentry(params, log, writer.handoff)
        if writer.handoff is not None:
            require_generation(read_own(params.own), writer.generation)
        return asked

    async def _recall(self, caller: Principal, task_ids: Sequence[str] | None) -> Sequence[HistoryMessage]:
        """Return the conversation to the end of the last task that a message refers to. Raises as `get`."""
        if not task_ids:
            return ()
        return recall(task_ids[-1], await self._find(caller, task_ids[-1], is_read=True))

    async def _find(self, caller: Principal, task_id: str, *, is_read: bool = False) -> ExecutionLog:
        """Return the log of a task; one that `is_read` needs the permission to. Raises as `get`."""
        log = await self._desk.read(caller, task_id, with_plan=True)
        if log.execution.kind == REPAIR or not log.events:
            raise ExecutionNotFoundError(f"Execution not found: {show(task_id)}")
        if is_read:
            self._desk.require_use(caller, log.execution)
        return log

    async def _begin(self, caller: Principal, params: SendParams) -> AsyncGenerator[Update, None]:
        """Yield the task of a message, and its updates. Raises as `send`."""
        asked = await self._read(caller, params)
        writer: TaskWriter | None = None
        async with aclosing(self._runs.follow(caller, asked, keep_running=True)) as events:
            try:
                async for event in events:
                    if writer is None and not isinstance(event.event, Heartbeat):
                        log = await self._find(caller, event.execution_id)
                        writer = write_log(log, before=event.sequence + 1)
                        task = writer.write(history_length=params.configuration.history_length)
                        yield _place(writer, event.execution_id, {"task": task})
                        continue
                    for update in _tell(writer, event):
                        yield update
                    if isinstance(event.event, HandedOff):
                        break
            except ReasondError:
                # The last update has told how the task failed.
                if writer is None or not writer.has_ended:
                    raise

    async def _observe(self, caller: Principal, task_id: str, cursor: Cursor | None) -> AsyncGenerator[Update, None]:
        """Yield a task and its updates, or those after a place in its log. Raises as `subscribe`."""
        log = await self._find(caller, task_id)
        if cursor is None and write_log(log).has_ended:
            raise A2aError(
                UNSUPPORTED_OPERATION,
                f"The task {show(task_id)} has ended",
                remedy="Read it, or send the header Last-Event-ID to have its updates again.",
            )
        after = log.events[-1].sequence if cursor is None else cursor.after_sequence
        observed = await self._desk.observe(caller, task_id, after_sequence=after)
        writer = write_log(log, before=after + 1)
        async with aclosing(observed.events) as events:
            if cursor is None:
                yield _place(writer, task_id, {"task": writer.write()})
            try:
                async for event in events:
                    for update in _tell(writer, event):
                        yield update
            except ReasondError:
                if not writer.has_ended:
                    raise

    async def _list_one(
        self, caller: Principal, execution: Execution, params: ListTasksParams
    ) -> dict[str, Any] | None:
        """Return the task of an execution, if it is asked for and this caller may read it."""
        changed = execution.end_time or execution.create_time
        since = params.status_timestamp_after
        if execution.kind == REPAIR or (since is not None and execution.state.has_ended and changed < since):
            return None
        try:
            writer = write_log(await self._find(caller, execution.execution_id, is_read=True))
        except ReasondError:
            return None
        if params.context_id and writer.context_id != params.context_id:
            return None
        return writer.write(
            history_length=0 if params.history_length is None else params.history_length,
            has_artifacts=params.include_artifacts,
        )

    async def _count(self, caller: Principal, state: ExecutionState | None) -> int:
        count, token = 0, ""
        while count < _MOST_LISTED:
            page = await self._desk.list(caller, state=state, page_size=_PAGE, page_token=token)
            count += sum(one.kind != REPAIR for one in page.executions)
            token = page.next_page_token
            if not token:
                break
        return count


def build_push_error() -> A2aError:
    """Return the refusal of everything about push notifications."""
    problem = "This server sends no push notifications to addresses of clients"
    return A2aError(PUSH_NOT_SUPPORTED, problem, remedy="Subscribe to the task, or read it.")


async def refuse(error: A2aError, _caller: Principal, _params: object) -> dict[str, Any]:
    """Refuse an operation that is not offered.

    Raises:
        A2aError: always.
    """
    raise error.copy()


def _tell(writer: TaskWriter | None, event: StreamEvent) -> Iterator[Update]:
    """Yield the updates that an event means; only the last has a place to resume at."""
    if writer is None or isinstance(event.event, Heartbeat | TextDelta):
        yield Update(body=None)
        return
    updates = [*writer.take(event.sequence, event.create_time, event.event)]
    for update in updates:
        yield _place(writer, event.execution_id if update is updates[-1] else "", update)


def _place(writer: TaskWriter, task_id: str, body: dict[str, Any]) -> Update:
    return Update(body=body, place=f"{task_id}:{writer.generation}" if task_id else "")
