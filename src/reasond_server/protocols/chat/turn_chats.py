"""Chats with tools of the client, worked out as turns.

A hand-off of the turn is an answer with `tool_calls`. The next request of the client ends with their results, and goes
on with that turn: the ids of the calls name the turn and the hand-off, so a result cannot reach another one, and a
repeated request runs nothing twice.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from reasond_server.access.permissions import require_permission
from reasond_server.errors.base import InternalError, Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.protocols.chat.chat_params import (
    SAMPLING,
    find_refused,
    read_budget,
    read_format,
    require_question,
)
from reasond_server.protocols.chat.completion_json import (
    BETWEEN,
    DONE,
    HEARTBEAT,
    ChunkFrames,
    build_usage_json,
    describe_completion,
    keep_reasoning,
    map_finish_reason,
)
from reasond_server.protocols.chat.messages import read_messages
from reasond_server.protocols.conversations import build_tool, find_reentry, name_call
from reasond_server.protocols.model_catalogue import narrow
from reasond_server.protocols.turn_legs import follow_leg
from reasond_server.turns.history import TURN
from reasond_server.types import NOTHING, Heartbeat, TextDelta, ToolResult, Usage
from reasond_server.types.turns import (
    CallKind,
    ClientTool,
    HandedOff,
    LedgerState,
    ModelCallStep,
    ToolStep,
    TurnReentry,
    TurnResult,
    TurnStart,
)
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from datetime import datetime

    from reasond_server.access.permissions import Operation
    from reasond_server.protocols.chat.chat_params import ChatParams
    from reasond_server.protocols.model_catalogue import ModelCatalogue
    from reasond_server.turns.turn_service import TurnService
    from reasond_server.types import Principal, StreamEvent
    from reasond_server.types.turns import PendingCall

_TOOL_CALLS: Final = "tool_calls"
_TAKEN: Final = frozenset({"temperature", "seed"})


@value
class TurnChat:
    """What a chat with tools asks for: a new turn, or the results for one that waits."""

    source: TurnStart | TurnReentry
    request_id: str
    include_deltas: bool
    warnings: tuple[str, ...] = ()
    instead: TurnStart | None = None


@dataclass(slots=True)
class _Segment:
    """One segment of a turn: from its start or a re-entry to its next exit.

    `usage` is the usage of the segment alone: clients add up the usage of all answers.
    """

    turn_id: str = ""
    began: datetime | None = None
    usage: Usage = NOTHING
    texts: list[str] = field(default_factory=list)
    handoff: HandedOff | None = None
    result: TurnResult | None = None
    told_call: int = -1

    def take(self, event: StreamEvent) -> str:
        """Take in an event and return what a reader of the reasoning is told; empty for nothing."""
        found = event.event
        self.turn_id = event.execution_id
        self.began = self.began or event.create_time
        if isinstance(found, TextDelta):
            self.told_call = found.iteration_index
            return found.text
        text = ""
        if isinstance(found, ModelCallStep):
            self.usage += found.usage
            if found.index == self.told_call:
                # Whoever reads the text as it is written does not need it again.
                return BETWEEN
            text = found.text.strip() if found.calls else ""
        elif isinstance(found, ToolStep):
            text = f"{found.tool}: {found.state}" if found.state is not LedgerState.STARTED else ""
        elif isinstance(found, HandedOff):
            self.handoff = found
        elif isinstance(found, TurnResult):
            self.result = found
        if not text:
            return ""
        self.texts.append(text)
        return text + BETWEEN

    @property
    def content(self) -> str:
        """The answer; empty at a hand-off."""
        return "" if self.result is None else self.result.answer

    @property
    def finish(self) -> str:
        """OpenAI's finish reason."""
        return _TOOL_CALLS if self.result is None else map_finish_reason(self.result.finish_reason)

    def list_calls(self) -> list[dict[str, Any]]:
        """Return the pending calls.

        Raises:
            InvalidRequestError: a client of OpenAI cannot settle one of them.
        """
        if self.handoff is None:
            return []
        others = [one for one in self.handoff.calls if one.kind is not CallKind.EXECUTE]
        if others:
            raise _refuse_waiting(self.turn_id, others)
        return [
            {
                "id": name_call(self.turn_id, self.handoff.etag, one),
                "type": "function",
                "function": {"name": one.call.name, "arguments": one.call.arguments_json},
            }
            for one in self.handoff.calls
        ]

    def describe(self, warnings: Sequence[str]) -> dict[str, Any]:
        """Return what OpenAI has no place for."""
        result = self.result
        return {
            "execution_id": self.turn_id,
            "strategy": TURN,
            "finish_reason": None if result is None else result.finish_reason.value,
            "model": None if result is None else result.model,
            "model_calls": self.usage.model_calls,
            "usage_source": self.usage.source.value,
            "warnings": [*(() if result is None else result.warnings), *warnings],
        }


class TurnChats:
    """Answers chats with tools; `operation` is the one whose permission they need."""

    def __init__(self, *, service: TurnService, catalogue: ModelCatalogue, operation: Operation) -> None:
        self._service = service
        self._catalogue = catalogue
        self._operation = operation

    async def create(self, caller: Principal, params: ChatParams) -> dict[str, Any]:
        """Work on a turn to its next exit, and return the completion.

        Raises:
            ReasondError: the request is refused, or the turn failed.
        """
        asked, segment = self._read(caller, params), _Segment()
        async with aclosing(self._events(caller, asked)) as events:
            async for event in events:
                segment.take(event)
        if segment.began is None:
            raise InternalError("a turn left without an event")
        kept, cut = keep_reasoning(segment.texts)
        reasoning, calls = BETWEEN.join(kept), segment.list_calls()
        message: dict[str, Any] = {
            "role": "assistant",
            "content": segment.content or (None if calls else ""),
            "refusal": None,
            "reasoning_content": reasoning,
            "reasoning": reasoning,
        }
        if calls:
            message[_TOOL_CALLS] = calls
        return {
            **describe_completion(segment.turn_id, segment.began, params.model, kind="chat.completion"),
            "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": segment.finish}],
            "usage": build_usage_json(segment.usage),
            "reasond": segment.describe((*asked.warnings, *cut)),
        }

    async def stream(self, caller: Principal, params: ChatParams) -> AsyncGenerator[bytes, None]:
        """Work on a turn to its next exit, and yield the frames of the stream.

        Raises:
            ReasondError: the request is refused, or the turn failed.
        """
        asked, segment = self._read(caller, params), _Segment()
        frames = ChunkFrames(model=params.model, includes_usage=params.includes_usage)
        async with aclosing(self._events(caller, asked)) as events:
            async for event in events:
                if segment.began is None:
                    yield frames.begin(event)
                if text := segment.take(event):
                    yield frames.reason(text)
                elif isinstance(event.event, Heartbeat):
                    yield HEARTBEAT
        calls = [{"index": place, **call} for place, call in enumerate(segment.list_calls())]
        if calls:
            yield frames.choose({_TOOL_CALLS: calls})
        if segment.content:
            yield frames.choose({"content": segment.content})
        yield frames.choose({}, segment.finish, reasond=segment.describe(asked.warnings))
        if usage := frames.tell_usage(segment.usage):
            yield usage
        yield DONE

    def _read(self, caller: Principal, params: ChatParams) -> TurnChat:
        require_permission(caller, self._operation)
        return read_turn(params, self._catalogue)

    async def _events(self, caller: Principal, asked: TurnChat) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events of a leg; a client that leaves cancels the turn, unless it may come back for it."""
        turn_id = ""
        events = follow_leg(
            self._service,
            caller,
            asked.source,
            instead=asked.instead,
            request_id=asked.request_id,
            include_deltas=asked.include_deltas,
        )
        try:
            async with aclosing(events):
                async for event in events:
                    turn_id = event.execution_id
                    yield event
        except (GeneratorExit, asyncio.CancelledError):
            if turn_id and isinstance(asked.source, TurnStart) and not asked.request_id:
                await asyncio.shield(self._service.cancel(caller, turn_id))
            raise


def is_turn(params: ChatParams) -> bool:
    """Return whether a chat is worked out as a turn: it offers tools, or has results for a turn that waits here."""
    if params.tools and params.tool_choice != "none":
        return True
    results = itertools.takewhile(lambda message: message.get("role") == "tool", reversed(params.messages))
    named = [ToolResult(call_id=str(message.get("tool_call_id")), result_json="") for message in results]
    return find_reentry(named) is not None


def read_turn(params: ChatParams, catalogue: ModelCatalogue) -> TurnChat:
    """Return what a chat with tools asks for.

    Raises:
        StrategyNotFoundError: there is no such model.
        InvalidRequestError: a parameter cannot be done.
    """
    preset, own = catalogue.find(params.model), params.reasond
    schema, wrong = read_format(params.response_format)
    tools, choice, odd = _read_tools(params)
    problems = [*find_refused(params), *wrong, *odd]
    if problems:
        raise InvalidRequestError.of(*problems[:20])
    conversation, found = read_messages(params.messages)
    question = require_question(conversation)
    stop = params.stop or ()
    warnings = [*params.warnings, *found, *question.warnings]
    temperature, seed = _take_number(params, "temperature", warnings), _take_number(params, "seed", warnings)
    unused = [name for name in SAMPLING if name not in _TAKEN and getattr(params, name) is not None]
    warnings += [f"{name} has no effect: a turn has no such parameter." for name in unused]
    warnings += [
        f"reasond.{name} has no effect with tools." for name in ("config", "agent", "model") if getattr(own, name)
    ]
    if preset.strategy is not None or preset.config or preset.agent is not None:
        warnings.append(f"The strategy of {show(params.model)} has no effect: with tools the model answers in a turn.")
    start = TurnStart(
        message=question.query,
        material=own.material,
        client_tools=tuple(tools),
        budget=narrow(read_budget(params), preset.budget),
        system=conversation.system,
        history=question.history,
        images=question.images,
        tool_choice="" if choice == "auto" else choice,
        parallel_tool_calls=params.parallel_tool_calls is not False,
        answer_schema_json="" if schema is None else to_json(schema).decode(),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        temperature=temperature,
        seed=None if seed is None else int(seed),
        uses_server_tools=preset.server_tools,
    )
    reentry = find_reentry(question.results)
    return TurnChat(
        source=reentry or start,
        instead=start if reentry is not None else None,
        request_id="" if reentry is not None else own.request_id,
        include_deltas=preset.include_deltas if own.include_deltas is None else own.include_deltas,
        warnings=tuple(warnings),
    )


def _take_number(params: ChatParams, name: str, warnings: list[str]) -> float | None:
    """Return a sampling value; one that is no number is named in `warnings`."""
    given = getattr(params, name)
    if given is None or (isinstance(given, int | float) and not isinstance(given, bool)):
        return given
    warnings.append(f"{name} has no effect: it must be a number, got {show(given)}.")
    return None


def _read_tools(params: ChatParams) -> tuple[Sequence[ClientTool], str, Sequence[Violation]]:
    """Return the tools that the client offers, which call is forced, and what is wrong with them."""
    problems: list[Violation] = []
    found: list[ClientTool] = []
    for place, tool in enumerate(params.tools or ()):
        function = tool.get("function")
        if tool.get("type") not in {"function", None} or not isinstance(function, dict):
            text = f"must have the type 'function', and a function; got the type {show(tool.get('type'))}"
            problems.append(Violation(field=f"tools.{place}", description=text))
            continue
        found.append(build_tool(function.get("name"), function.get("description"), function.get("parameters")))
    choice = params.tool_choice or "auto"
    if isinstance(choice, dict):
        named = choice.get("function") or choice.get("allowed_tools") or {}
        choice = (
            str(named.get("name") or named.get("mode") or choice.get("name") or "") if isinstance(named, dict) else ""
        )
        if "tools" in named:
            allowed = {(each.get("function") or each).get("name") for each in named["tools"] if isinstance(each, dict)}
            found = [tool for tool in found if tool.name in allowed]
    if choice not in {"auto", "none", "required", *(tool.name for tool in found)}:
        text = f"must be 'auto', 'none', 'required' or name a function that is offered, got {show(params.tool_choice)}"
        problems.append(Violation(field="tool_choice", description=text))
    return found, str(choice), problems


def _refuse_waiting(turn_id: str, calls: Sequence[PendingCall]) -> InvalidRequestError:
    """Return the error for a turn that waits for a person, which OpenAI's interface has no words for."""
    kinds = ", ".join(f"{one.call.name} ({one.kind})" for one in calls)
    return InvalidRequestError(
        f"The turn {turn_id} waits for a decision that this interface cannot give: {kinds}",
        remedy=f"Decide with `reasond turns resolve {turn_id}`, or have the operator take the tool out of [turns] "
        "needs_approval.",
    )
