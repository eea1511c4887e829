"""Responses for verified callers: started, read again at any place, cancelled and deleted.

Without tools of the client a response is an execution of reasoning; with them it is a leg of a turn.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from reasond_server.access.permissions import require_permission
from reasond_server.errors.base import InternalError, ReasondError, Violation, show
from reasond_server.errors.executions import ExecutionNotFoundError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.errors.turns import TurnLeasedError
from reasond_server.http_api.event_frames import frame_event
from reasond_server.protocols.conversations import ConversationBuilder, find_question, find_reentry
from reasond_server.protocols.model_catalogue import narrow
from reasond_server.protocols.responses.recall import read_echo, recall, recall_echo, tell_items
from reasond_server.protocols.responses.response_events import ResponseWriter
from reasond_server.protocols.responses.response_json import ResponseRef, parse_item_id, parse_response_id
from reasond_server.protocols.responses.response_params import (
    list_sampling,
    read_items,
    read_schema,
    read_tools,
)
from reasond_server.protocols.turn_legs import follow_leg
from reasond_server.types import NO_BUDGET, Budget, Heartbeat, Task
from reasond_server.types.turns import Reentered, TurnReentry, TurnStart, TurnStarted
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from reasond_server.access.permissions import Operation
    from reasond_server.eventlog.store import ExecutionStore
    from reasond_server.executions.desk import ExecutionDesk, ExecutionLog
    from reasond_server.http_api.http_calls import Cursor
    from reasond_server.protocols.conversations import Dialogue, Question
    from reasond_server.protocols.model_catalogue import ModelCatalogue, ModelPreset
    from reasond_server.protocols.responses.response_params import ResponseIdParams, ResponseParams
    from reasond_server.reasoning.service import ReasoningService
    from reasond_server.turns.turn_service import TurnService
    from reasond_server.types import HistoryMessage, Principal, StreamEvent

DONE: Final = frame_event(b"[DONE]")
HEARTBEAT: Final = b": heartbeat\n\n"
_ATTACH: Final = "attach-"
"""The beginning of request ids that are made here; those of clients stand for their execution for good."""
_NO_CONVERSATIONS: Final = "is not supported: send previous_response_id, or the items of the conversation as input"


@value
class _Asked:
    """What a request asks for, and what the response tells of it."""

    source: Task | TurnStart | TurnReentry
    request_id: str
    echo: Mapping[str, Any]
    is_background: bool = False
    is_kept: bool = True
    instead: TurnStart | None = None


class Responses:
    """Answers requests of this interface. `desk` finds executions of every kind; turns need `turn_operation`."""

    def __init__(
        self,
        *,
        reasoning: ReasoningService,
        turns: TurnService,
        desk: ExecutionDesk,
        store: ExecutionStore,
        catalogue: ModelCatalogue,
        turn_operation: Operation,
    ) -> None:
        self._reasoning = reasoning
        self._turns = turns
        self._desk = desk
        self._store = store
        self._catalogue = catalogue
        self._turn_operation = turn_operation
        self._deletions = set[asyncio.Task[None]]()

    async def create(self, caller: Principal, params: ResponseParams) -> dict[str, Any]:
        """Work on a request to its end, and return the response; in the background only begin.

        Raises:
            ReasondError: the request is refused, or the run failed.
        """
        asked = await self._read(caller, params)
        async with aclosing(self._events(caller, asked)) as events:
            writer: ResponseWriter | None = None
            async for event in events:
                if isinstance(event.event, Heartbeat):
                    continue
                writer = writer or _open_writer(event, asked.echo)
                writer.take(event.event, event.create_time)
                if writer.has_ended or (asked.is_background and writer.response is not None):
                    break
        if writer is None or writer.response is None:
            raise InternalError("an execution left without an event")
        if writer.has_ended:
            await self._deliver(caller, writer.response, asked)
        return writer.response

    async def stream(
        self, caller: Principal, params: ResponseParams, _cursor: Cursor | None
    ) -> AsyncGenerator[bytes, None]:
        """Work on a request to its end, and yield the frames of its events.

        Raises:
            ReasondError: the request is refused, or the run failed; a run that failed has told so in its last event.
        """
        asked = await self._read(caller, params)
        writer: ResponseWriter | None = None
        async with aclosing(self._events(caller, asked)) as events:
            async for event in events:
                if isinstance(event.event, Heartbeat):
                    yield HEARTBEAT
                    continue
                writer = writer or _open_writer(event, asked.echo)
                frames = _frame(writer, event)
                if frames:
                    yield frames
                if writer.has_ended and writer.response is not None:
                    # Whoever closes the stream from here on has everything.
                    await asyncio.shield(self._deliver(caller, writer.response, asked))
                    yield DONE
                    break

    async def get(self, caller: Principal, params: ResponseIdParams) -> dict[str, Any]:
        """Return a response as it is now.

        Raises:
            ReasondError: this caller has no such response.
        """
        ref, log = await self._find(caller, params.response_id)
        return _write_response(ref, log)

    async def replay(
        self, caller: Principal, params: ResponseIdParams, _cursor: Cursor | None
    ) -> AsyncGenerator[bytes, None]:
        """Yield the frames of a response above the number `starting_after`, also future ones. Raises as `get`."""
        ref, log = await self._find(caller, params.response_id)
        writer, after = ResponseWriter(ref, recall_echo(ref, log)), params.starting_after
        observation = await self._desk.observe(caller, ref.execution_id, after_sequence=ref.after)
        async with aclosing(observation.events) as events:
            async for event in events:
                if isinstance(event.event, Heartbeat):
                    yield HEARTBEAT
                elif frames := _frame(writer, event, after=after):
                    yield frames
                if writer.has_ended:
                    break
        yield DONE

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
        items = tell_items(recall(ref, log, with_output=False), key=ref.key)
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
        asked = await self._read(caller, params)
        text = to_json(asked.echo.get("tools", [])).decode() if asked.echo.get("tools") else ""
        source = asked.instead if isinstance(asked.source, TurnReentry) else asked.source
        if source is not None:
            query = source.query if isinstance(source, Task) else source.message
            said = [each for message in source.history for each in message.list_texts()]
            text = "\n".join((text, source.system, query, *said))
        counter = self._reasoning.kind.models.own.counter
        return {
            "object": "response.input_tokens",
            "input_tokens": await asyncio.to_thread(counter.count_text, text),
        }

    async def _find(self, caller: Principal, response_id: str) -> tuple[ResponseRef, ExecutionLog]:
        ref = parse_response_id(response_id)
        log = await self._desk.read(caller, ref.execution_id, with_plan=True)
        if ref.after and not any(logged.sequence == ref.after + 1 for logged in log.events):
            raise ExecutionNotFoundError(f"Response not found: {show(response_id)}")
        return ref, log

    async def _read(self, caller: Principal, params: ResponseParams) -> _Asked:
        """Return what `params` ask for.

        Raises:
            ReasondError: the request is refused.
        """
        preset, warnings = self._catalogue.find(params.model), list[str]()
        conversation, question = await self._read_conversation(caller, params, warnings)
        tools, choice, found = read_tools(params)
        warnings += found
        schema = read_schema(params.text)
        reentry = find_reentry(question.results)
        is_turn = bool(tools) or reentry is not None
        if is_turn:
            require_permission(caller, self._turn_operation)
        config, unused = self._choose_config(params, preset, is_turn=is_turn)
        warnings += unused
        echo = params.echo(warnings)
        budget = narrow(_read_budget(params), preset.budget)
        own = params.reasond
        shared: dict[str, Any] = {
            "system": conversation.system,
            "history": question.history,
            "images": question.images,
            "budget": budget,
            "material": own.material,
            "echo_json": to_json(echo).decode(),
        }
        source: Task | TurnStart
        if is_turn:
            source = TurnStart(
                message=question.query,
                client_tools=tuple(tools),
                tool_choice="" if choice == "auto" else choice,
                parallel_tool_calls=params.parallel_tool_calls is not False,
                answer_schema_json="" if schema is None else to_json(schema).decode(),
                temperature=params.temperature,
                seed=params.seed,
                uses_server_tools=preset.server_tools,
                **shared,
            )
        else:
            source = Task(
                query=question.query,
                strategy=preset.strategy,
                config=config,
                agent=preset.agent or own.agent,
                model=own.model,
                answer_schema=schema,
                **shared,
            )
        return _Asked(
            source=source if reentry is None else replace(reentry, echo_json=shared["echo_json"]),
            request_id=own.request_id or await self._find_attach_id(caller, params),
            echo=echo,
            is_background=params.background is True,
            is_kept=params.store is not False,
            instead=source if reentry is not None and isinstance(source, TurnStart) else None,
        )

    async def _read_conversation(
        self, caller: Principal, params: ResponseParams, warnings: list[str]
    ) -> tuple[Dialogue, Question]:
        """Return what was said before and now, and what is asked; `warnings` gets what the caller is told of it."""
        if params.conversation is not None:
            raise InvalidRequestError.of(Violation(field="conversation", description=_NO_CONVERSATIONS))
        builder = ConversationBuilder(await self._recall(caller, params.previous_response_id))
        builder.instruct(params.instructions or "")
        if isinstance(params.input, str):
            builder.add_user(params.input)
        else:
            warnings += read_items(await self._resolve(caller, params.input or [], warnings), builder)
        conversation = builder.build()
        question = find_question(conversation.said)
        if question is None:
            raise InvalidRequestError.of(Violation(field="input", description="must have a message of the user"))
        warnings += question.warnings
        return conversation, question

    async def _find_attach_id(self, caller: Principal, params: ResponseParams) -> str:
        """Return the request id by which a retry finds the execution; empty for one that must not attach."""
        if not params.attach_key:
            return ""
        digest = hashlib.sha256(f"{params.attach_key}\0{caller.subject}".encode()).hexdigest()
        name = f"{_ATTACH}{digest}"
        # An equal request is under way, or was not delivered: this one is another.
        is_taken = params.is_first and await self._store.find_claim(caller.tenant, name) is not None
        return "" if is_taken else name

    def _choose_config(
        self, params: ResponseParams, preset: ModelPreset, *, is_turn: bool
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the parameters of the strategy, and warnings about sampling values that have no effect."""
        config = {**params.reasond.config, **preset.config}
        taken = {"temperature", "seed"} if is_turn else self._catalogue.find_parameters(preset, params.reasond.agent)
        warnings: list[str] = []
        for name, each in list_sampling(params).items():
            if name in preset.config:
                warnings.append(f"{name} has no effect: the model {params.model!r} fixes it.")
            elif name not in taken:
                warnings.append(
                    f"{name} has no effect: {'a turn' if is_turn else 'the strategy'} has no such parameter."
                )
            elif not is_turn:
                config.setdefault(name, each)
        if is_turn and preset.strategy is not None:
            warnings.append("The strategy has no effect: with tools of the client the model answers in a turn.")
        return config, warnings

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
            found: Mapping[str, Any] = _write_response(ref, log)["output"][place[1]]
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
        if _write_response(ref, log)["status"] == "in_progress":
            error = TurnLeasedError(
                f"The response {show(response_id)} has not ended yet", remedy="Send the request again when it has."
            )
            error.retry_after_s = 1.0
            raise error
        return recall(ref, log)

    def _events(self, caller: Principal, asked: _Asked) -> AsyncGenerator[StreamEvent, None]:
        """Return the events of the response."""
        if not isinstance(asked.source, Task):
            return follow_leg(self._turns, caller, asked.source, instead=asked.instead, request_id=asked.request_id)
        return self._reasoning.stream(
            caller,
            asked.source,
            request_id=asked.request_id,
            keep_running=asked.is_background,
            may_return=bool(asked.request_id),
        )

    async def _deliver(self, caller: Principal, response: Mapping[str, Any], asked: _Asked) -> None:
        """Note that the client has the whole response: the same request is a new one from now on."""
        execution_id = response["reasond"]["execution_id"]
        with suppress(ReasondError):
            if asked.request_id.startswith(_ATTACH):
                await self._store.release(caller.tenant, execution_id)
            if not asked.is_kept and response["output"][-1:] and response["output"][-1]["type"] != "function_call":
                await self._desk.delete(caller, execution_id)


def _open_writer(event: StreamEvent, echo: Mapping[str, Any]) -> ResponseWriter:
    """Return the writer of a response that begins with `event`; what the log has of its request goes before `echo`."""
    found = event.event
    kept = read_echo(found.echo_json) if isinstance(found, TurnStarted | Reentered) else {}
    return ResponseWriter(ResponseRef(execution_id=event.execution_id, after=event.sequence - 1), kept or echo)


def _frame(writer: ResponseWriter, event: StreamEvent, *, after: int = -1) -> bytes:
    bodies = [each.after(after) for each in writer.take(event.event, event.create_time)]
    return b"".join(
        frame_event(to_json(body, inf_nan_mode="null"), name=body["type"]) for body in bodies if body is not None
    )


def _write_response(ref: ResponseRef, log: ExecutionLog) -> dict[str, Any]:
    """Return the response as it is at the end of `log`."""
    writer = ResponseWriter(ref, recall_echo(ref, log))
    for logged in log.events:
        if logged.sequence > ref.after:
            writer.take(logged.event, logged.create_time)
    if writer.response is None:
        raise ExecutionNotFoundError(f"Response not found: {show(ref.response_id)}")
    return writer.response


def _read_budget(params: ResponseParams) -> Budget:
    own = params.reasond.budget
    budget = NO_BUDGET if own is None else own.budget()
    limits = Budget(max_output_tokens=params.max_output_tokens, max_tool_calls=params.max_tool_calls)
    return budget if limits == NO_BUDGET else narrow(budget, limits)
