"""Tasks of A2A for verified callers: begun and gone on with by messages, read, listed, followed and cancelled."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from reasond_server.errors.base import ReasondError, show
from reasond_server.errors.executions import ExecutionNotFoundError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.protocols.a2a.a2a_errors import A2aError, A2aReason
from reasond_server.protocols.a2a.message_reader import (
    read_own,
    read_receiver,
    read_reentry,
    read_task,
    require_generation,
)
from reasond_server.protocols.a2a.task_writer import STATES, TaskWriter, write_log
from reasond_server.protocols.conversations import recall
from reasond_server.repair.service.repair_work import REPAIR
from reasond_server.types import Cursor, ExecutionState, Heartbeat, TextDelta
from reasond_server.types.turns import HandedOff
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.executions.desk import ExecutionDesk, ExecutionLog
    from reasond_server.protocols.a2a.message_reader import Json
    from reasond_server.protocols.asked_runs import AskedRuns
    from reasond_server.protocols.model_catalogue import ModelCatalogue
    from reasond_server.protocols.openai_requests import Asked
    from reasond_server.types import Budget, Execution, Principal, StreamEvent
    from reasond_server.webhooks.outbox import TaskReceivers

_LARGEST_PAGE: Final = 100
_MOST_COUNTED: Final = 1_000
_STATES: Final = {name: state for state, name in STATES.items()}


@value
class Update:
    """What a stream sends next: `body` as JSON, None for a sign of life.

    The client of a task can resume after a `sequence` of its log; 0 before the last update of an event.
    """

    execution_id: str
    sequence: int = 0
    body: dict[str, Any] | None = None

    @property
    def place(self) -> str:
        """Where a client resumes after this update; empty where it cannot."""
        return f"{self.execution_id}:{self.sequence}" if self.sequence else ""


@dataclass(eq=False, kw_only=True)
class Tasks:
    """The operations of A2A; `desk` finds executions of every kind, `budget` bounds tasks that name none.

    `receivers` keep those that clients name to be told of a task; None if the operator allows none.
    """

    runs: AskedRuns
    desk: ExecutionDesk
    catalogue: ModelCatalogue
    budget: Budget
    receivers: TaskReceivers | None

    async def send(self, caller: Principal, params: Json) -> dict[str, Any]:
        """Take a message, and return its task at its end or once it waits for input; immediately where that is asked.

        Raises:
            ReasondError: the message is refused.
        """
        wanted, is_bare = params.get("configuration", {}), read_own(params).as_message
        async with self._follow(caller, params) as (writer, _, updates):
            if is_bare or not wanted.get("returnImmediately"):
                async for _update in updates:
                    pass
        log = await self.find(caller, writer.task_id)
        # A message that is sent again may find its task further. Else what the store does not keep is told here.
        if log.execution.last_sequence > writer.generation:
            writer = write_log(log)
        task = writer.write(history_length=wanted.get("historyLength"))
        return writer.write_reply() if is_bare else {"task": task}

    def stream(self, caller: Principal, params: Json, cursor: Cursor | None) -> AsyncGenerator[Update, None]:
        """Take a message, and yield its task and the updates to its end, or until it waits for input.

        With a `cursor` the message was sent before, and the updates after it are repeated. Raises as `send`.
        """
        return self._begin(caller, params) if cursor is None else self._observe(caller, params, cursor)

    def subscribe(self, caller: Principal, params: Json, cursor: Cursor | None) -> AsyncGenerator[Update, None]:
        """Yield a task and its updates to its end; with a `cursor` those after it, also of a task that has ended.

        Raises as `get`, and A2aError: it has ended.
        """
        if cursor is not None and cursor.execution_id != params["id"]:
            text = f"is of the task {cursor.execution_id}; the request names {show(params['id'])}"
            raise InvalidRequestError.at("Last-Event-ID", text)
        return self._observe(caller, params, cursor)

    async def get(self, caller: Principal, params: Json) -> dict[str, Any]:
        """Return a task as it is now.

        Raises:
            ExecutionNotFoundError: this caller has no such task.
        """
        log = await self.find(caller, params["id"], is_read=True)
        return write_log(log).write(history_length=params.get("historyLength"))

    async def cancel(self, caller: Principal, params: Json) -> dict[str, Any]:
        """Cancel a task, and return it. Raises as `get`, and A2aError: it has ended."""
        log = await self.find(caller, params["id"])
        if not log.execution.state.has_ended:
            require_generation(params, log.events[-1].sequence)
            await self.desk.cancel(caller, params["id"])
            log = await self.find(caller, params["id"])
            if log.execution.state is ExecutionState.CANCELLED or not log.execution.state.has_ended:
                return write_log(log).write()
        raise A2aError(A2aReason.TASK_NOT_CANCELABLE, f"The task {show(params['id'])} has ended")

    async def list(self, caller: Principal, params: Json) -> dict[str, Any]:
        """Return a page of the caller's tasks, the newest first; `totalSize` counts 1,000 at most.

        A page looks at as many tasks as it may have: where a filter passes some over, it is short, and has a token.

        Raises:
            InvalidRequestError: a filter is not valid.
        """
        status, size, token = params.get("status", ""), params.get("pageSize", 50), params.get("pageToken", "")
        if status and status not in _STATES:
            raise InvalidRequestError.at("status", f"must be one of {', '.join(_STATES)}, got {show(status)}")
        if not 1 <= size <= _LARGEST_PAGE:
            raise InvalidRequestError.at("pageSize", f"must be between 1 and {_LARGEST_PAGE}, got {size}")
        state = _STATES.get(status)
        page = await self.desk.list(caller, state=state, page_size=size, page_token=token)
        tasks = [task for each in page.executions if (task := await self._list_one(caller, each, params))]
        total, rest = len(tasks), page.next_page_token
        if (token or rest) and "contextId" not in params:
            total = await self._count(caller, state)
        return {"tasks": tasks, "nextPageToken": rest, "pageSize": size, "totalSize": total}

    async def get_card(self, _caller: Principal, _params: Json) -> dict[str, Any]:
        """Tell that there is no card for callers alone.

        Raises:
            A2aError: always.
        """
        problem, remedy = "This server has no extended card", "Its public card tells all."
        raise A2aError(A2aReason.UNSUPPORTED_OPERATION, problem, remedy=remedy)

    async def create_push(self, caller: Principal, params: Json) -> dict[str, Any]:
        """Have a receiver told of a task, in place of one with the same id. Raises as `get_push`."""
        receivers, place = await self._open_push(caller, params)
        receiver = read_receiver(params, params["taskId"])
        await receivers.put(*place, receiver)
        return dict(receiver.shown)

    async def get_push(self, caller: Principal, params: Json) -> dict[str, Any]:
        """Return a receiver of a task, without its secrets.

        Raises:
            A2aError: there is none, or there are no push notifications.
            ReasondError: there is no such task, or the receiver is refused.
        """
        receivers, place = await self._open_push(caller, params)
        found = (await receivers.list(*place)).get(params["id"])
        if found is None:
            raise A2aError(A2aReason.TASK_NOT_FOUND, f"The task has no push notification config {show(params['id'])}")
        return dict(found.shown)

    async def list_push(self, caller: Principal, params: Json) -> dict[str, Any]:
        """Return the receivers of a task. Raises as `get_push`."""
        receivers, place = await self._open_push(caller, params)
        return {"configs": [each.shown for each in (await receivers.list(*place)).values()]}

    async def delete_push(self, caller: Principal, params: Json) -> dict[str, Any]:
        """Tell a receiver no more, if it is there. Raises as `get_push`."""
        receivers, place = await self._open_push(caller, params)
        await receivers.remove(*place, params["id"])
        return {}

    async def _open_push(self, caller: Principal, params: Json) -> tuple[TaskReceivers, tuple[str, str]]:
        """Return what keeps receivers, with the tenant and the id of a task. Raises as `get_push`."""
        receivers = self._require_receivers()
        task = (await self.find(caller, params["taskId"], is_read=True)).execution
        return receivers, (task.tenant, task.execution_id)

    def _require_receivers(self) -> TaskReceivers:
        if self.receivers is None:
            problem = "This server sends no push notifications"
            remedy = "Subscribe to the task, read it, or have the operator set [a2a] push_hosts."
            raise A2aError(A2aReason.PUSH_NOTIFICATION_NOT_SUPPORTED, problem, remedy=remedy)
        return self.receivers

    async def find(self, caller: Principal, task_id: str, *, is_read: bool = False) -> ExecutionLog:
        """Return the log of a task; one that `is_read` needs the permission to. Raises as `get`."""
        log = await self.desk.read(caller, task_id, with_plan=True)
        if log.execution.kind == REPAIR or not log.events:
            raise ExecutionNotFoundError(f"Execution not found: {show(task_id)}")
        if is_read:
            self.desk.require_use(caller, log.execution)
        return log

    async def _read(self, caller: Principal, params: Json) -> Asked:
        """Return what a message asks for. Raises as `send`."""
        if push := params.get("configuration", {}).get("taskPushNotificationConfig"):
            self._require_receivers().check(read_receiver(push))
        message = params["message"]
        if "taskId" not in message:
            last = message.get("referenceTaskIds", [""])[-1]
            earlier = recall(last, await self.find(caller, last, is_read=True)) if last else ()
            return read_task(params, self.catalogue, caller, earlier, budget=self.budget)
        log = await self.find(caller, message["taskId"])
        writer = write_log(log)
        if message.get("contextId", writer.context_id) != writer.context_id:
            raise InvalidRequestError.at("message.contextId", f"is not that of the task, {show(writer.context_id)}")
        asked = read_reentry(params, log, writer.handoff)
        if writer.handoff is not None:
            require_generation(params, writer.generation)
        return asked

    @asynccontextmanager
    async def _follow(
        self, caller: Principal, params: Json
    ) -> AsyncGenerator[tuple[TaskWriter, StreamEvent, AsyncGenerator[Update, None]], None]:
        """Take a message, and yield its task after the first event, that event, and the updates. Raises as `send`."""
        asked = await self._read(caller, params)
        events = self.runs.follow(caller, asked, include_deltas=asked.include_deltas, keep_running=True)
        async with aclosing(events):
            first = await anext(events)
            while isinstance(first.event, Heartbeat):
                first = await anext(events)
            log = await self.find(caller, first.execution_id)
            if push := params.get("configuration", {}).get("taskPushNotificationConfig"):
                receiver = read_receiver(push, first.execution_id)
                await self._require_receivers().put(log.execution.tenant, first.execution_id, receiver)
            writer = write_log(log, before=first.sequence + 1)
            async with aclosing(_tell(writer, events, stops=True)) as updates:
                yield writer, first, updates

    async def _begin(self, caller: Principal, params: Json) -> AsyncGenerator[Update, None]:
        """Yield the task of a message, and its updates, or the answer alone. Raises as `send`."""
        wanted, is_bare = params.get("configuration", {}), read_own(params).as_message
        async with self._follow(caller, params) as (writer, first, updates):
            task = {"task": writer.write(history_length=wanted.get("historyLength"))}
            drafts = writer.take(*first[1:]) if isinstance(first.event, TextDelta) else ()
            for body in () if is_bare else (task, *drafts):
                yield _place(writer, body)
            async for update in updates:
                yield replace(update, body=None) if is_bare else update
            if is_bare:
                yield _place(writer, writer.write_reply())

    async def _observe(self, caller: Principal, params: Json, cursor: Cursor | None) -> AsyncGenerator[Update, None]:
        """Yield a task and its updates, or those after a place in its log. Raises as `subscribe`."""
        task_id = params["id"] if cursor is None else cursor.execution_id
        log = await self.find(caller, task_id)
        if cursor is None and log.execution.state.has_ended:
            text, remedy = f"The task {show(task_id)} has ended", "Read it, or send the header Last-Event-ID."
            raise A2aError(A2aReason.UNSUPPORTED_OPERATION, text, remedy=remedy)
        after = log.events[-1].sequence if cursor is None else cursor.after_sequence
        has_deltas = bool(read_own(params).include_deltas)
        observed = await self.desk.observe(caller, task_id, after_sequence=after, include_deltas=has_deltas)
        writer = write_log(log, before=after + 1)
        async with aclosing(observed.events) as events, aclosing(_tell(writer, events)) as updates:
            if cursor is None:
                yield _place(writer, {"task": writer.write()})
            async for update in updates:
                yield update

    async def _list_one(self, caller: Principal, execution: Execution, params: Json) -> dict[str, Any] | None:
        """Return the task of an execution, if it is asked for and this caller may read it."""
        changed, since = execution.end_time or execution.create_time, params.get("statusTimestampAfter")
        is_old = since is not None and execution.state.has_ended and changed < datetime.fromisoformat(since)
        if execution.kind == REPAIR or is_old:
            return None
        try:
            writer = write_log(await self.find(caller, execution.execution_id, is_read=True))
        except ReasondError:
            return None
        if params.get("contextId", writer.context_id) != writer.context_id:
            return None
        # JSON of protos leaves out what is false.
        return writer.write(history_length=params.get("historyLength", 0), has_artifacts="includeArtifacts" in params)

    async def _count(self, caller: Principal, state: ExecutionState | None) -> int:
        count, token = 0, ""
        while count < _MOST_COUNTED:
            page = await self.desk.list(caller, state=state, page_size=_LARGEST_PAGE, page_token=token)
            count += sum(one.kind != REPAIR for one in page.executions)
            if not (token := page.next_page_token):
                break
        return count


async def _tell(
    writer: TaskWriter, events: AsyncGenerator[StreamEvent, None], *, stops: bool = False
) -> AsyncGenerator[Update, None]:
    """Yield the updates that events mean, until the task waits where that `stops`.

    Only the last update of an event has a place to resume at.

    Raises:
        ReasondError: the stream failed before the last update has told how the task ended.
    """
    try:
        async for event in events:
            *earlier, last = [None, *writer.take(event.sequence, event.create_time, event.event)]
            for body in earlier[1:]:
                yield Update(execution_id=writer.task_id, body=body)
            yield _place(writer, last)
            if stops and isinstance(event.event, HandedOff):
                break
    except ReasondError:
        if not writer.has_ended:
            raise


def _place(writer: TaskWriter, body: dict[str, Any] | None) -> Update:
    return Update(execution_id=writer.task_id, sequence=writer.generation, body=body)
