"""A task of A2A as the log of an execution tells it, whole or as updates; no process keeps anything else of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic.alias_generators import to_camel
from pydantic_core import from_json

from reasond_server.protocols.a2a.message_reader import EXTENSION, read_echo
from reasond_server.protocols.followed_runs import FollowedRun
from reasond_server.reasoning.strategy_work import read_planned_task
from reasond_server.requests.payloads import restore_whole
from reasond_server.types import ExecutionState, Heartbeat, Result, TextDelta
from reasond_server.types.turns import HandedOff, Reentered, TurnResult, TurnStarted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from reasond_server.executions.desk import ExecutionLog
    from reasond_server.types import Event

STATES: Final = {
    ExecutionState.RUNNING: "TASK_STATE_WORKING",
    ExecutionState.SUSPENDED: "TASK_STATE_INPUT_REQUIRED",
    ExecutionState.SUCCEEDED: "TASK_STATE_COMPLETED",
    ExecutionState.FAILED: "TASK_STATE_FAILED",
    ExecutionState.CANCELLED: "TASK_STATE_CANCELED",
}
_STEPS: Final = "steps"
_ANSWER: Final = "answer"
_JSON: Final = "application/json"


class TaskWriter:
    """Takes the events of a log in order. `handoff` is what the task waits for; `generation` its last event.

    `context_id` is the context that the client has named; without one, a context of the task alone. `draft` says
    whether the client has text that is not logged; None if that is not known.
    """

    def __init__(self, log: ExecutionLog) -> None:
        """Begin the task of `log`, before its first event."""
        self._run = FollowedRun()
        self._run.execution_id = self.task_id = self.context_id = log.execution.execution_id
        self._steps: list[dict[str, Any]] = []
        self._answer: list[dict[str, Any]] = []
        self._history: list[dict[str, Any]] = []
        self._warnings: list[str] = []
        self._is_json = False
        self.draft: bool | None = False
        self._status: dict[str, Any] = {"state": "TASK_STATE_SUBMITTED", "timestamp": _tell(log.execution.create_time)}
        self.handoff: HandedOff | None = None
        self.has_ended = False
        self.generation = 0
        asked = read_planned_task(log.plan) if log.plan and log.execution.kind == "reasoning" else None
        if asked is not None:
            self._begin(asked.echo_json)

    def take(self, sequence: int, at: datetime, event: Event | Heartbeat | TextDelta) -> Iterator[dict[str, Any]]:
        """Take in an event, and yield the updates that it means.

        Text that is being written is appended to the steps; once its step is logged, all of them take its place.
        """
        if isinstance(event, Heartbeat | TextDelta):
            if isinstance(event, TextDelta):
                has_begun = bool(self._steps) or self.draft is True
                yield self._update_artifact(_STEPS, [{"text": event.text}], append=has_begun)
                self.draft = True
            return
        self.generation = sequence
        step = self._run.take(event).strip()
        if isinstance(event, TurnStarted):
            self._begin(event.echo_json)
            self._is_json = bool(event.answer_schema_json)
        if self._status["state"] == "TASK_STATE_SUBMITTED":
            self._status = {"state": STATES[ExecutionState.RUNNING], "timestamp": _tell(at)}
        if step:
            self._steps.append({"text": step})
            is_next = len(self._steps) > 1 and self.draft is False
            yield self._update_artifact(_STEPS, self._steps[-1:] if is_next else self._steps, append=is_next)
            self.draft = False
        if isinstance(event, HandedOff):
            self.handoff = event
            yield self._change(ExecutionState.SUSPENDED, at, _describe_handoff(event))
        elif isinstance(event, Reentered):
            self.handoff = None
            if "message" in self._status:
                self._history.append(self._status["message"])
            self._remember(event.echo_json)
            yield self._change(ExecutionState.RUNNING, at)
        elif isinstance(event, Result | TurnResult):
            yield from self._end(at, event)

    def write(self, *, history_length: int | None = None, has_artifacts: bool = True) -> dict[str, Any]:
        """Return the task as it is now, with at most `history_length` of its last messages; None for all."""
        task: dict[str, Any] = {"id": self.task_id, "contextId": self.context_id, "status": self._status}
        named = ((_ANSWER, self._answer), (_STEPS, self._steps))
        artifacts = [{"artifactId": name, "name": name, "parts": [*parts]} for name, parts in named if parts]
        if artifacts and has_artifacts:
            task["artifacts"] = artifacts
        history = self._history if history_length is None else self._history[-history_length:] if history_length else []
        if history:
            task["history"] = [*history]
        own: dict[str, Any] = {"generation": self.generation, "warnings": self._warnings}
        if self.has_ended:
            own |= {to_camel(name): value for name, value in self._run.describe(self._warnings).items()}
        return {**task, "metadata": {EXTENSION: own}}

    def write_reply(self) -> dict[str, Any]:
        """Return the answer as a message, or without one the task."""
        return {"message": self._write_message(self._answer)} if self._answer else {"task": self.write()}

    def _begin(self, echo_json: str) -> None:
        echo = read_echo(echo_json)
        self._warnings += echo.get("warnings", ())
        self.context_id = echo.get("contextId") or self.task_id
        self._remember(echo_json)

    def _remember(self, echo_json: str) -> None:
        """Add what a log keeps of a message of the client to the history."""
        if echo := read_echo(echo_json):
            echo.pop("warnings", None)
            self._history.append({**echo, "taskId": self.task_id, "contextId": self.context_id})

    def _end(self, at: datetime, event: Result | TurnResult) -> Iterator[dict[str, Any]]:
        self.handoff, self.has_ended = None, True
        if content := self._run.content:
            is_json = self._is_json or (isinstance(event, Result) and bool(event.answer_json))
            self._answer = [write_answer(content, is_json=is_json)]
            yield self._update_artifact(_ANSWER, self._answer, append=False)
        state = ExecutionState.after(event.finish_reason) if event.finish_reason else ExecutionState.SUCCEEDED
        yield self._change(state, at, [] if event.error is None else [{"text": event.error.headline}])

    def _change(self, state: ExecutionState, at: datetime, parts: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
        message = {"message": self._write_message(parts)} if parts else {}
        self._status = {"state": STATES[state], "timestamp": _tell(at), **message}
        return {"statusUpdate": self._place({"status": self._status})}

    def _update_artifact(self, name: str, parts: Sequence[dict[str, Any]], *, append: bool) -> dict[str, Any]:
        artifact = {"artifactId": name, "name": name, "parts": [*parts]}
        return {"artifactUpdate": self._place({"artifact": artifact, "append": append, "lastChunk": name == _ANSWER})}

    def _place(self, update: dict[str, Any]) -> dict[str, Any]:
        metadata = {EXTENSION: {"generation": self.generation}}
        return {"taskId": self.task_id, "contextId": self.context_id, **update, "metadata": metadata}

    def _write_message(self, parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
        names = {"messageId": f"{self.task_id}-{self.generation}", "taskId": self.task_id, "contextId": self.context_id}
        return {**names, "role": "ROLE_AGENT", "parts": [*parts]}


def write_answer(content: str, *, is_json: bool) -> dict[str, Any]:
    """Return an answer as a part."""
    return {"data": _read_json(content), "mediaType": _JSON} if is_json else {"text": content}


def write_log(log: ExecutionLog, *, before: int | None = None) -> TaskWriter:
    """Return the task of a log, or as it was before the event `before`."""
    writer = TaskWriter(log)
    for logged in log.events:
        if before is None or logged.sequence < before:
            for _ in writer.take(logged.sequence, logged.create_time, logged.event):
                pass
    writer.draft = None
    return writer


def _describe_handoff(event: HandedOff) -> Sequence[dict[str, Any]]:
    """Return the parts that tell what a task waits for: a sentence for people, and the calls for programs."""
    calls = [
        {"callId": one.call.call_id, "name": one.call.name, "kind": one.kind.value}
        | {"arguments": _read_json(one.call.arguments_json or "{}"), "idempotencyKey": one.idempotency_key}
        for one in event.calls
    ]
    names = ", ".join(one.call.name for one in event.calls)
    data = {"toolCalls": calls, "etag": event.etag, "expireTime": _tell(event.expire_time)}
    return [{"text": f"Waits for: {names}."}, {"data": data, "mediaType": _JSON}]


def _read_json(text: str) -> object:
    """Return the value of a text that should be JSON; the text if it is none, or none that every binding can send."""
    try:
        return restore_whole(from_json(text))
    except ValueError:
        return text


def _tell(at: datetime) -> str:
    """Return a time as ProtoJSON has it."""
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
