"""Responses for verified callers: started, read again at any place, cancelled and deleted, and told to webhooks.

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
from reasond_server.executions.desk import ExecutionLog, read_log
from reasond_server.http_api.exchange import frame_event
from reasond_server.protocols.conversations import ConversationBuilder, recall
from reasond_server.protocols.openai_endpoint import DONE, HEARTBEAT
from reasond_server.protocols.openai_requests import plan, write_input
from reasond_server.protocols.responses.response_events import ResponseWriter
from reasond_server.protocols.responses.response_json import ResponseRef, parse_response_id, recall_echo, tell_items
from reasond_server.protocols.responses.response_params import ResponseParams, read_inputs, read_items
from reasond_server.types import Heartbeat, Task
from reasond_server.types.turns import Reentered

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from reasond_server.eventlog.store import ExecutionStore
    from reasond_server.executions.desk import ExecutionDesk
    from reasond_server.llm.model import ChatModel
    from reasond_server.protocols.asked_runs import AskedRuns, Attachments
    from reasond_server.protocols.message_parts import DocumentTexts
    from reasond_server.protocols.model_catalogue import ModelCatalogue
    from reasond_server.protocols.openai_requests import Asked
    from reasond_server.protocols.responses.response_params import ResponseIdParams
    from reasond_server.types import Cursor, HistoryMessage, Principal, StreamEvent

_ELSEWHERE: Final = {
    "conversation": "is not kept here: send previous_response_id, or the items of the conversation as input",
    "prompt": "is not kept here: send its text as instructions, with its variables filled in",
}
_QUIET_S: Final = 5.0
_COMMIT_S: Final = 1.0
_TOLD: Final = frozenset({"completed", "failed", "cancelled", "incomplete"})


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
        asked, echo = await self._read(caller, params)
        writer = ResponseWriter(echo)
        if isinstance(asked.source, Task) and not (params.background or asked.request_id):
            log = await self._execute(caller, asked.source)
            for logged in log.events:
                writer.take(log.execution.execution_id, logged)
        else:
            async with aclosing(self._follow(caller, params, asked)) as events:
                async for event in events:
                    writer.take(event.execution_id, event)
                    if writer.has_ended or (params.background and writer.response):
                        break
        if not writer.response:
            raise InternalError("an execution left without an event")
        if writer.has_ended:
            await self._settle(caller, writer.response, asked.request_id)
        return writer.response

    async def _execute(self, caller: Principal, task: Task) -> ExecutionLog:
        """Work on a task whose client cannot come back for it, and return its log once it is in the store.

        Raises:
            ReasondError: nothing was started.
        """
        try:
            view = await self._runs.execute(caller, task)
        except ReasondError as error:
            if not error.execution_id:
                raise
            return await self._desk.read(caller, error.execution_id)
        run = self._desk.runner.find_live(view.execution.execution_id)
        if run is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_COMMIT_S):
                    await run.log.wait_for_commit()
        return ExecutionLog(execution=view.execution, events=view.events)

    async def stream(
        self, caller: Principal, params: ResponseParams | ResponseIdParams, _cursor: Cursor | None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the frames of a request to its end, or of a response above a number, also future ones.

        Raises:
            ReasondError: the request is refused, there is no such response, or the run failed; a run that failed has
                told so in its last event.
        """
        after = -1
        if isinstance(params, ResponseParams):
            asked, echo = await self._read(caller, params)
            request_id, events = asked.request_id, self._follow(caller, params, asked)
        else:
            ref, log = await self._find(caller, params.response_id)
            after, request_id, echo = params.starting_after, log.execution.request_id, recall_echo(log)
            # Whoever reads goes on for a client that has left, and leaves like one.
            events = self._desk.resume(
                caller, ref.execution_id, after_sequence=ref.after, include_deltas=True, may_return=True
            )
        writer, now = ResponseWriter(echo), asyncio.get_running_loop().time
        told_s = now()
        async with aclosing(events):
            async for event in events:
                bodies = [each.after(after) for each in writer.take(event.execution_id, event)]
                frames = b"".join(map(_frame, filter(None, bodies)))
                # Other text is not told before its step.
                if isinstance(event.event, Heartbeat) or (not frames and now() - told_s > _QUIET_S):
                    frames = HEARTBEAT
                if frames:
                    yield frames
                    told_s = now()
                if writer.has_ended:
                    await self._settle(caller, writer.response, request_id)
                    break
        yield DONE

    async def get(self, caller: Principal, params: ResponseIdParams) -> dict[str, Any]:
        """Return a response as it is now.

        Raises:
            ReasondError: this caller has no such response.
        """
        return write_response(*await self._find(caller, params.response_id))

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
        said = recall(ref.execution_id, log, after=ref.after, with_output=False)
        items = [
            {"id": f"in_{ref.key}_{place}", "status": "completed", **item}
            for place, item in enumerate(item for message in said for item in tell_items(message))
        ][:: 1 if params.order == "asc" else -1]
        ids = [item["id"] for item in items]
        if params.after and params.after not in ids:
            raise InvalidRequestError.at("after", "must be the id of an input item")
        first = ids.index(params.after) + 1 if params.after else 0
        page = slice(first, first + params.limit)
        return {
            "object": "list",
            "data": items[page],
            "first_id": next(iter(ids[page]), None),
            "last_id": next(reversed(ids[page]), None),
            "has_more": page.stop < len(items),
        }

    async def count_input(self, caller: Principal, params: ResponseParams) -> dict[str, Any]:
        """Return how many tokens a request has, as the model's counter has them; nothing is started.

        Raises:
            ReasondError: the request is refused.
        """
        asked, _ = await self._read(caller, params)
        tokens = await asyncio.to_thread(self._model.counter.count_text, write_input(asked))
        return {"object": "response.input_tokens", "input_tokens": tokens}

    async def _find(self, caller: Principal, response_id: str) -> tuple[ResponseRef, ExecutionLog]:
        ref = parse_response_id(response_id)
        log = await self._desk.read(caller, ref.execution_id, with_plan=True)
        if ref.after and not any(logged.sequence == ref.after + 1 for logged in log.events):
            raise ExecutionNotFoundError(f"Response not found: {show(response_id)}")
        return ref, log

    async def _read(self, caller: Principal, params: ResponseParams) -> tuple[Asked, Mapping[str, Any]]:
        """Return what `params` ask for, and what the response tells of it.

        Raises:
            ReasondError: the request is refused.
        """
        params = await self._documents.unfold(caller, params, "input")
        if named := [name for name in _ELSEWHERE if getattr(params, name)]:
            raise InvalidRequestError.of(*(Violation(field=name, description=_ELSEWHERE[name]) for name in named))
        builder = ConversationBuilder(await self._recall(caller, params.previous_response_id))
        builder.instruct(params.instructions or "")
        if isinstance(params.input, str):
            builder.add_user(params.input)
        else:
            read_items([each async for each in self._resolve(caller, params.input or (), builder)], builder)
        dialogue = builder.build()
        asked = plan(read_inputs(params, dialogue), self._catalogue)
        if params.truncation is not None:
            asked = await self._runs.fit(asked, self._model, may_reduce=params.truncation == "auto")
        warnings = (*params.warnings, *dialogue.warnings, *asked.warnings)
        unused: Sequence[str] = ()
        # A turn that cannot be read is no re-entry: another one begins instead, and uses everything.
        with suppress(ReasondError):
            unused = await self._runs.find_unused_changes(caller, asked)
        key = await self._attachments.find_request_id(caller, params.attach_key, is_first=params.is_first)
        echo = params.echo(warnings)
        return replace(
            asked,
            source=replace(asked.source, echo_json=to_json({**echo, "warnings": (*warnings, *unused)}).decode()),
            instead=asked.instead and replace(asked.instead, echo_json=to_json(echo).decode()),
            request_id=params.reasond.request_id or key,
        ), echo

    async def _resolve(
        self, caller: Principal, items: Sequence[Mapping[str, Any]], builder: ConversationBuilder
    ) -> AsyncGenerator[Mapping[str, Any], None]:
        """Yield `items` with what references stand for; one that stands for nothing is passed over, and told."""
        for item in items:
            if item.get("type") != "item_reference" and item.keys() != {"id"}:
                yield item
            elif found := await self._find_item(caller, str(item.get("id"))):
                yield found
            else:
                builder.warnings[f"The item {show(item.get('id'))} is not here, and is passed over."] = None

    async def _find_item(self, caller: Principal, item_id: str) -> Mapping[str, Any] | None:
        response_key = item_id.partition("_")[2].rpartition("_i")[0]
        with suppress(ReasondError):
            output = write_response(*await self._find(caller, f"resp_{response_key}"))["output"]
            return next((item for item in output if item["id"] == item_id), None)
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
        is_waiting = bool(response["output"]) and response["output"][-1]["type"].endswith("_call")
        is_forgotten = not response["store"] and not is_waiting
        execution_id = response["reasond"]["execution_id"]
        await self._attachments.settle(caller, execution_id, request_id, is_forgotten=is_forgotten)

    def _follow(self, caller: Principal, params: ResponseParams, asked: Asked) -> AsyncGenerator[StreamEvent, None]:
        return self._runs.follow(
            caller,
            asked,
            include_deltas=params.stream is True,
            keep_running=params.background is True,
            may_return=bool(asked.request_id or params.stream or params.background),
        )


def _frame(body: Mapping[str, Any]) -> bytes:
    return frame_event(to_json(body, inf_nan_mode="null"), name=body["type"])


def write_response(ref: ResponseRef, log: ExecutionLog) -> dict[str, Any]:
    """Return the response as it is at the end of `log`."""
    writer = ResponseWriter(recall_echo(log))
    for logged in log.events:
        if logged.sequence > ref.after:
            writer.take(ref.execution_id, logged)
    if not writer.response:
        raise ExecutionNotFoundError(f"Response not found: {show(ref.response_id)}")
    return writer.response


async def write_response_event(
    store: ExecutionStore, tenant: str, execution_id: str, *, sequence: int, created_s: float
) -> bytes | None:
    """Return the event of the response that had ended at the event `sequence` of its log, such as response.completed.

    None if it was not asked for in the background, or is gone. `created_s` is in seconds since 1970.

    Raises:
        ReasondError: the store cannot be read.
    """
    log = await read_log(store, tenant, execution_id, until=sequence)
    if log is None:
        return None
    begun = [each.sequence - 1 for each in log.events if isinstance(each.event, Reentered)]
    ref = ResponseRef(execution_id=execution_id, after=begun[-1] if begun else 0)
    response = write_response(ref, log)
    status = response["status"]
    if not response["background"] or status not in _TOLD:
        return None
    data = {"id": ref.response_id}
    event = {"id": f"evt_{execution_id}_{sequence}", "object": "event", "created_at": int(created_s)}
    return to_json({**event, "type": f"response.{status}", "data": data})
