"""The events of a response: a pure function of the events of its log.

A structural event takes one number. A delta takes as many as its text has characters, and its `sequence_number` is the
last of them, so that a client that comes back is sent the rest of a text, whatever pieces it got before
(docs/decisions/0061-wires.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from reasond_server.http_api.json_mapping import describe_step
from reasond_server.protocols.conversations import name_call
from reasond_server.protocols.responses.response_json import ECHO, SEALED, begin_response, end_response
from reasond_server.protocols.sealed_reasoning import seal
from reasond_server.types import NOTHING, Iteration, Result
from reasond_server.types.turns import CallKind, HandedOff, LedgerState, ModelCallStep, ToolStep, TurnResult
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from reasond_server.protocols.responses.response_json import ResponseRef
    from reasond_server.types import ExecutionFailure, FinishReason, Usage

_ENDS: Final = {"completed": "response.completed", "failed": "response.failed"}
_INCOMPLETE: Final = "response.incomplete"


@value
class ResponseEvent:
    """One event: `first` is the first number that it takes, and the body's `sequence_number` the last one."""

    first: int
    body: Mapping[str, Any]

    def after(self, number: int) -> Mapping[str, Any] | None:
        """Return what a client that has everything up to `number` still needs of it; None for nothing."""
        last: int = self.body["sequence_number"]
        if last <= number:
            return None
        if number < self.first or "delta" not in self.body:
            return self.body
        return {**self.body, "delta": self.body["delta"][number - self.first + 1 :]}


class ResponseWriter:
    """Writes the events of one response from the events of its log, each of which `take` gets in order.

    Attributes:
        response: the response object as it is now; None before the first event.
        has_ended: whether the last event was taken.
    """

    def __init__(self, ref: ResponseRef, echo: Mapping[str, Any]) -> None:
        self._ref = ref
        self._echo = {**ECHO, **echo}
        self._number = 0
        self._usage = NOTHING
        self.response: dict[str, Any] | None = None
        self.has_ended = False

    def take(self, event: object, create_time: datetime) -> Sequence[ResponseEvent]:
        """Return the events for the next event of the log."""
        return () if self.has_ended else list(self._take(event, create_time))

    def _take(self, event: object, at: datetime) -> Iterator[ResponseEvent]:
        if self.response is None:
            self.response = begin_response(self._ref, self._echo, created_at=int(at.timestamp()))
            yield self._tell("response.created", response=self.response)
            yield self._tell("response.in_progress", response=self.response)
        if isinstance(event, Iteration):
            yield from self._reason(describe_step(event))
        elif isinstance(event, ModelCallStep):
            self._usage += event.usage
            yield from self._reason(event.thinking)
            if event.calls:
                # No message: some clients take the first one for the answer.
                yield from self._reason(event.text.strip())
        elif isinstance(event, ToolStep):
            if event.state is not LedgerState.STARTED:
                yield from self._reason(f"{event.tool}: {event.state}")
        elif isinstance(event, HandedOff):
            yield from self._hand_off(event)
            yield self._end(at, self._usage)
        elif isinstance(event, Result):
            self._warn(event.warnings)
            yield from self._say(event.answer_json or event.answer)
            yield self._end(at, event.metrics.usage, event.finish_reason, event.error)
        elif isinstance(event, TurnResult):
            self._warn(event.warnings)
            yield from self._say(event.answer)
            yield self._end(at, self._usage, event.finish_reason, event.error)

    def _hand_off(self, event: HandedOff) -> Iterator[ResponseEvent]:
        for pending in event.calls:
            if pending.kind is not CallKind.EXECUTE:
                yield from self._say(f"The server waits for a decision about the call of {pending.call.name}.")
                continue
            call = {
                "type": "function_call",
                "call_id": name_call(self._ref.execution_id, event.etag, pending),
                "name": pending.call.name,
            }
            item = {**call, "id": self._name_item("fc"), "arguments": "", "status": "in_progress"}
            place = self._place
            yield self._tell("response.output_item.added", output_index=place, item=item)
            where = {"item_id": item["id"], "output_index": place}
            arguments = pending.call.arguments_json or "{}"
            yield from self._write("response.function_call_arguments.delta", arguments, where)
            yield self._tell("response.function_call_arguments.done", **where, name=call["name"], arguments=arguments)
            yield self._close({**item, "arguments": arguments, "status": "completed"})

    def _reason(self, text: str) -> Iterator[ResponseEvent]:
        """Yield an item of reasoning whose summary is `text`; nothing for an empty one."""
        if not text.strip():
            return
        item: dict[str, Any] = {
            "type": "reasoning",
            "id": self._name_item("rs"),
            "summary": [],
            "encrypted_content": seal(text) if SEALED in self._echo.get("include", ()) else None,
        }
        yield self._tell("response.output_item.added", output_index=self._place, item=item)
        where = {"item_id": item["id"], "output_index": self._place, "summary_index": 0}
        part = {"type": "summary_text", "text": ""}
        yield self._tell("response.reasoning_summary_part.added", **where, part=part)
        yield from self._write("response.reasoning_summary_text.delta", text, where)
        yield self._tell("response.reasoning_summary_text.done", **where, text=text)
        yield self._tell("response.reasoning_summary_part.done", **where, part={**part, "text": text})
        yield self._close({**item, "summary": [{**part, "text": text}]})

    def _say(self, text: str) -> Iterator[ResponseEvent]:
        """Yield a message of the assistant; nothing for an empty one."""
        if not text:
            return
        item: dict[str, Any] = {"type": "message", "id": self._name_item("msg"), "role": "assistant"}
        begun = {**item, "status": "in_progress", "content": []}
        yield self._tell("response.output_item.added", output_index=self._place, item=begun)
        where = {"item_id": item["id"], "output_index": self._place, "content_index": 0}
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield self._tell("response.content_part.added", **where, part=part)
        yield from self._write("response.output_text.delta", text, where, logprobs=[])
        yield self._tell("response.output_text.done", **where, text=text, logprobs=[])
        yield self._tell("response.content_part.done", **where, part={**part, "text": text})
        yield self._close({**item, "status": "completed", "content": [{**part, "text": text}]})

    def _end(
        self,
        at: datetime,
        usage: Usage,
        reason: FinishReason | None = None,
        error: ExecutionFailure | None = None,
    ) -> ResponseEvent:
        assert self.response is not None  # noqa: S101 - `_take` has begun it
        self.has_ended = True
        self.response = end_response(
            self.response, reason=reason, error=error, usage=usage, completed_at=int(at.timestamp())
        )
        return self._tell(_ENDS.get(self.response["status"], _INCOMPLETE), response=self.response)

    def _warn(self, warnings: Sequence[str]) -> None:
        assert self.response is not None  # noqa: S101 - as above
        own = self.response["reasond"]
        # Events that were told have the object as it was.
        self.response = {**self.response, "reasond": {**own, "warnings": [*own["warnings"], *warnings]}}

    @property
    def _place(self) -> int:
        """The place of the item that is being written."""
        return 0 if self.response is None else len(self.response["output"])

    def _name_item(self, prefix: str) -> str:
        return f"{prefix}_{self._ref.key}_i{self._place}"

    def _close(self, item: Mapping[str, Any]) -> ResponseEvent:
        assert self.response is not None  # noqa: S101 - as above
        told = self._tell("response.output_item.done", output_index=self._place, item=item)
        self.response = {**self.response, "output": [*self.response["output"], item]}
        return told

    def _write(self, kind: str, text: str, where: Mapping[str, Any], **more: object) -> Iterator[ResponseEvent]:
        if text:
            yield self._tell(kind, len(text), **where, delta=text, **more)

    def _tell(self, kind: str, takes: int = 1, /, **members: object) -> ResponseEvent:
        first = self._number
        self._number += takes
        return ResponseEvent(first=first, body={"type": kind, "sequence_number": self._number - 1, **members})
