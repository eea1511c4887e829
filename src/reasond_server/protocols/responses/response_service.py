"""Responses for verified callers: started, read again at any place, cancelled and deleted.

Without tools of the client a response is an execution of reasoning; with them it is a leg of a turn.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from reasond_server.errors.base import InternalError, ReasondError, Violation, show
from reasond_server.errors.executions import ExecutionNotFoundError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.errors.turns import TurnLeasedError
from reasond_server.executions.desk import ExecutionLog
from reasond_server.http_api.exchange import frame_event
from reasond_server.protocols.conversations import ConversationBuilder
from reasond_server.protocols.openai_endpoint import DONE, HEARTBEAT
from reasond_server.protocols.openai_requests import plan, write_input
from reasond_server.protocols.recalled_conversations import recall
from reasond_server.protocols.responses.echoes import read_echo, recall_echo, tell_items
from reasond_server.protocols.responses.response_events import ResponseWriter
from reasond_server.protocols.responses.response_json import ResponseRef, parse_item_id, parse_response_id
from reasond_server.protocols.responses.response_params import read_inputs, read_items
from reasond_server.protocols.truncation import fit_window
from reasond_server.types import Heartbeat, Task
from reasond_server.types.turns import Reentered, TurnReentry, TurnStarted
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence

    from reasond_server.executions.desk import ExecutionDesk
    from reasond_server.llm.model import ChatModel
    from reasond_server.protocols.asked_runs import AskedRuns
    from reasond_server.protocols.attachments import Attachments
    from reasond_server.protocols.conversations import Dialogue
    from reasond_server.protocols.document_parts import DocumentTexts
    from reasond_server.protocols.model_catalogue import ModelCatalogue
    from reasond_server.protocols.openai_requests import Asked
    from reasond_server.protocols.responses.response_params import ResponseIdParams, ResponseParams
    from reasond_server.types import Cursor, HistoryMessage, Principal, StreamEvent

_NO_CONVERSATIONS: Final = "is not supported: send previous_response_id, or the items of the conversation as input"

_QUIET_S: Final = 5.0
_COMMIT_S: Final = 1.0


@value
class _ResponseInputs:
    """What a request asks for, and what the response tells of it."""

    asked: Asked
    echo: Mapping[str, Any]
    is_background: bool = False
    is_streamed: bool = False


class Responses:
    """Answers requests of this interface. `desk` finds executions of every kind, `model` counts tokens of input."""

    def __init__(
        self,
        *,
        runs: AskedRuns,
        desk: ExecutionDesk,
        catalogue: ModelCatalogue,
        model: ChatModel,
        attachments: Attachments,
        documents: DocumentTexts,
    ) -> None:
        self._runs = runs
        self._desk = desk
        self._catalogue = catalogue
        self._model = model
        self._attachments = attachments
        self._documents = documents

    async def create(self, caller: Principal, params: ResponseParams) -> dict[str, Any]:
        """Work on a request to its end, and return the response; in the background only begin.

        Raises:
            ReasondError: the request is refused, or the run failed.
        """
        options = await self._read(caller, params)
        if isinstance(options.asked.source, Task) and not (options.is_background or options.asked.request_id):
            return await self._execute(caller, options.asked.source, options)
        async with aclosing(self._events(caller, options)) as events:
            writer: ResponseWriter | None = None
            async for event in events:
                if isinstance(event.event, Heartbeat):
                    continue
                writer = writer or _open_writer(event, options.echo)
                writer.take(event.event, event.create_time)
                if writer.has_ended or (options.is_background and writer.response is not None):
                    break
        if writer is None or writer.response is None:
            raise InternalError("an execution left without an event")
        if writer.has_ended:
            await self._settle(caller, writer.response, options.asked.request_id)
        return writer.response

    async def _execute(self, caller: Principal, task: Task, options: _ResponseInputs) -> dict[str, Any]:
        """Work on a task whose client cannot come back for it, and return the response once it is in the store.

        Raises:
            ReasondError: nothing was started.
        """
        try:
            view = await self._runs.execute(caller, task)
        except ReasondError as error:
            if not error.execution_id:
                raise
            ref, log = await self._find(caller, ResponseRef(execution_id=error.execution_id).response_id)
        else:
            await self._desk.runner.runs.wait_for_commits(caller.tenant, within_s=_COMMIT_S)
            ref = ResponseRef(execution_id=view.execution.execution_id)
            log = ExecutionLog(execution=view.execution, events=view.events)
        response = write_response(ref, log, options.echo)
        await self._settle(caller, response, "")
        return response

    async def stream(
        self, caller: Principal, params: ResponseParams, _cursor: Cursor | None
    ) -> AsyncGenerator[bytes, None]:
        """Work on a request to its end, and yield the frames of its events.

        Raises:
            ReasondError: the request is refused, or the run failed; a run that failed has told so in its last event.
        """
        options = await self._read(caller, params)
        sent = self._tell(
            caller,
            self._events(caller, options),
            open_writer=lambda first: _open_writer(first, options.echo),
            request_id=options.asked.request_id,
        )
        async with aclosing(sent):
            async for frames in sent:
                yield frames

    async def _tell(
        self,
        caller: Principal,
        events: AsyncGenerator[StreamEvent, None],
        *,
        open_writer: Callable[[StreamEvent], ResponseWriter],
        request_id: str,
        after: int = -1,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the frames above the number `after` that a writer makes of `events`."""
        writer: ResponseWriter | None = None
        now = asyncio.get_running_loop().time
        told_s = now()
        async with aclosing(events):
            async for event in events:
                frames = HEARTBEAT
                if not isinstance(event.event, Heartbeat):
                    writer = writer or open_writer(event)
                    frames = _frame(writer, event, after=after)
                if not frames and now() - told_s > _QUIET_S:
                    # Text that is not told before its step.
                    frames = HEARTBEAT
                if frames:
                    yield frames
                    told_s = now()
                if writer is not None and writer.has_ended and writer.response is not None:
                    await self._settle(caller, writer.response, request_id)
                    break
        yield DONE

    async def get(self, caller: Principal, params: ResponseIdParams) -> dict[str, Any]:
        """Return a response as it is now.

        Raises:
            ReasondError: this caller has no such response.
        """
        return write_response(*await self._find(caller, params.response_id))

    async def replay(
        self, caller: Principal, params: ResponseIdParams, _cursor: Cursor | None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the frames of a response above the number `starting_after`, also future ones. Raises as `get`."""
        ref, log = await self._find(caller, params.response_id)
        # Whoever reads goes on for a client that has left, and leaves like one.
        events = self._desk.resume(
            caller, ref.execution_id, after_sequence=ref.after, include_deltas=True, may_return=True
        )
        sent = self._tell(
            caller,
            events,
            open_writer=lambda _: ResponseWriter(ref, recall_echo(ref, log)),
            request_id=log.execution.request_id,
            after=params.starting_after,
        )
        async with aclosing(sent):
            async for frames in sent:
                yield frames

    async def cancel(self, caller: Principal, params: ResponseIdParams) -> dict[str, Any]:
        """Stop a response, and return it; one that has ended stays as it is. Raises as `get`."""
        ref, log = await self._find(caller, params.response_id)
        if not log.execution.state.has_ended:
            await self._desk.cancel(caller, ref.execution_id)
        return await self.get(caller, params)

    async def delete(self, caller: Principal, params: ResponseIdParams) -> dict[str, Any]:
        """Forget a response, with the execution that it is, or is a leg of. Raises as `get`."""
        ref, _ = await self._find(caller, params.response_id)
        await self._desk.delete(caller, ref.execution_id)
        return {"id": params.response_id, "object": "response", "deleted": True}

    async def list_input(self, caller: Principal, params: ResponseIdParams) -> dict[str, Any]:
        """Return a page of what the response was asked with. Raises as `get`."""
        ref, log = await self._find(caller, params.response_id)
        items = tell_items(recall(ref.execution_id, log, after=ref.after, with_output=False), key=ref.key)
        if params.order != "asc":
            items.reverse()
        ids = [item["id"] for item in items]
        if params.after and params.after not in ids:
            raise InvalidRequestError.of(Violation(field="after", description="must be the id of an input item"))
        first = ids.index(params.after) + 1 if params.after else 0
        page = items[first : first + params.limit]
        return {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": first + len(page) < len(items),
        }

    async def count_input(self, caller: Principal, params: ResponseParams) -> dict[str, Any]:
        """Return how many tokens a request has, as the model's counter has them; nothing is started.

        Raises:
            ReasondError: the request is refused.
        """
        options = await self._read(caller, params)
        tokens = await asyncio.to_thread(self._model.counter.count_text, write_input(options.asked))
        return {"object": "response.input_tokens", "input_tokens": tokens}

    async def _find(self, caller: Principal, response_id: str) -> tuple[ResponseRef, ExecutionLog]:
        ref = parse_response_id(response_id)
        log = await self._desk.read(caller, ref.execution_id, with_plan=True)
        if ref.after and not any(logged.sequence == ref.after + 1 for logged in log.events):
            raise ExecutionNotFoundError(f"Response not found: {show(response_id)}")
        return ref, log

    async def _read(self, caller: Principal, params: ResponseParams) -> _ResponseInputs:
        """Return what `params` ask for.

        Raises:
            ReasondError: the request is refused.
        """
        params = await self._documents.unfold(caller, params, "input")
        warnings = list(params.warnings)
        dialogue = await self._read_dialogue(caller, params, warnings)
        asked = plan(read_inputs(params, dialogue), self._catalogue)
        if params.truncation is not None:
            may_reduce = params.truncation == "auto"
            asked = await asyncio.to_thread(fit_window, asked, self._model, may_reduce=may_reduce)
        warnings += asked.warnings
        unused: Sequence[str] = ()
        if isinstance(asked.source, TurnReentry):
            # A turn that cannot be read is no re-entry: another one begins instead, and uses everything.
            with suppress(ReasondError):
                unused = await self._runs.find_unused_changes(caller, asked, asked.source.turn_id)
        return _ResponseInputs(
            asked=replace(
                asked,
                source=replace(asked.source, echo_json=to_json(params.echo((*warnings, *unused))).decode()),
                request_id=params.reasond.request_id
                or await self._attachments.find_request_id(caller, params.attach_key, is_first=params.is_first),
            ),
            echo=params.echo(warnings),
            is_background=params.background is True,
            is_streamed=params.stream is True,
        )

    async def _read_dialogue(self, caller: Principal, params: ResponseParams, warnings: list[str]) -> Dialogue:
        """Return what was said before and now; `warnings` gets what the caller is told of it."""
        if params.conversation is not None:
            raise InvalidRequestError.of(Violation(field="conversation", description=_NO_CONVERSATIONS))
        builder = ConversationBuilder(await self._recall(caller, params.previous_response_id))
        builder.instruct(params.instructions or "")
        if isinstance(params.input, str):
            builder.add_user(params.input)
        else:
            warnings += read_items(await self._resolve(caller, params.input or [], warnings), builder)
        return builder.build()

    async def _resolve(
        self, caller: Principal, items: Sequence[Mapping[str, Any]], warnings: list[str]
    ) -> Sequence[Mapping[str, Any]]:
        """Return `items` with what references stand for; one that stands for nothing is passed over, and told."""
        resolved: list[Mapping[str, Any]] = []
        for item in items:
            found: Mapping[str, Any] | None = item
            is_bare = item.keys() == {"id"}
            if item.get("type") == "item_reference" or is_bare:
                found = await self._find_item(caller, str(item.get("id")))
                if found is None:
                    warnings.append(f"The item {show(item.get('id'))} is not here, and is passed over.")
            if found is not None:
                resolved.append(found)
        return resolved

    async def _find_item(self, caller: Principal, item_id: str) -> Mapping[str, Any] | None:
        place = parse_item_id(item_id)
        if place is None:
            return None
        with suppress(ReasondError, IndexError):
            ref, log = await self._find(caller, place[0].response_id)
            found: Mapping[str, Any] = write_response(ref, log)["output"][place[1]]
            return found
        return None

    async def _recall(self, caller: Principal, response_id: str | None) -> Sequence[HistoryMessage]:
        """Return the conversation up to the end of a response.

        Raises:
            ReasondError: there is no such response, or it has not ended.
        """
        if response_id is None:
            return ()
        ref, log = await self._find(caller, response_id)
        if write_response(ref, log)["status"] == "in_progress":
            error = TurnLeasedError(
                f"The response {show(response_id)} has not ended yet", remedy="Send the request again when it has."
            )
            error.retry_after_s = 1.0
            raise error
        return recall(ref.execution_id, log, after=ref.after)

    async def _settle(self, caller: Principal, response: Mapping[str, Any], request_id: str) -> None:
        """Note that a response was sent whole; one that waits for results of tools is kept."""
        is_waiting = bool(response["output"]) and response["output"][-1]["type"] == "function_call"
        is_forgotten = not response["store"] and not is_waiting
        execution_id = response["reasond"]["execution_id"]
        await self._attachments.settle(caller, execution_id, request_id, is_forgotten=is_forgotten)

    def _events(self, caller: Principal, options: _ResponseInputs) -> AsyncGenerator[StreamEvent, None]:
        """Return the events of the response."""
        may_return = bool(options.asked.request_id) or options.is_streamed or options.is_background
        return self._runs.follow(
            caller,
            options.asked,
            include_deltas=options.is_streamed,
            keep_running=options.is_background,
            may_return=may_return,
        )


def _open_writer(event: StreamEvent, echo: Mapping[str, Any]) -> ResponseWriter:
    """Return the writer of a response that begins with `event`; what the log has of its request goes before `echo`."""
    found = event.event
    kept = read_echo(found.echo_json) if isinstance(found, TurnStarted | Reentered) else {}
    return ResponseWriter(ResponseRef(execution_id=event.execution_id, after=event.sequence - 1), kept or echo)


def _frame(writer: ResponseWriter, event: StreamEvent, *, after: int) -> bytes:
    bodies = [each.after(after) for each in writer.take(event.event, event.create_time)]
    return b"".join(
        frame_event(to_json(body, inf_nan_mode="null"), name=body["type"]) for body in bodies if body is not None
    )


def write_response(ref: ResponseRef, log: ExecutionLog, echo: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the response as it is at the end of `log`; without an `echo` the log tells of its request."""
    writer = ResponseWriter(ref, recall_echo(ref, log) if echo is None else echo)
    for logged in log.events:
        if logged.sequence > ref.after:
            writer.take(logged.event, logged.create_time)
    if writer.response is None:
        raise ExecutionNotFoundError(f"Response not found: {show(ref.response_id)}")
    return writer.response
