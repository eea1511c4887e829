"""Conversations as clients send them, in the one inner shape, what they ask now, and what a log knows of them.

Each protocol reads its messages into a `ConversationBuilder`. Any well-formed history is taken: with calls of other
servers, cut, edited, or with the assistant last. Custom tools, which are called with a text, become functions with one
member, and their calls texts again. Reasoning that clients keep for us and send back unread is in a form that names its
server. Nothing in it is secret, because the client was shown the text; who forges one says only what they could have
said as a text.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import from_json, to_json

from reasond_server.errors.base import Violation, show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.protocols.message_parts import MOST_PROBLEMS, Content, read_content
from reasond_server.reasoning.strategy_work import read_planned_task
from reasond_server.requests.task_checks import MAX_QUERY_CHARACTERS
from reasond_server.types import Event, HistoryMessage, Image, Result, Speaker, ToolCall, ToolResult
from reasond_server.types.turns import (
    HandedOff,
    ModelCallStep,
    PendingCall,
    Reentered,
    TurnReentry,
    TurnResult,
    TurnStarted,
)
from reasond_server.types.values import value

if TYPE_CHECKING:
    from reasond_server.executions.desk import ExecutionLog

BETWEEN: Final = "\n\n"
"""What stands between two texts of one author."""

_GO_ON: Final = "Go on with the request, from the results of the tools above."
_CONTINUE: Final = "Continue your last message from where it ends. Repeat nothing of it."
_LOOK: Final = "See what I show you."
_CALL_ID: Final = re.compile(r"call_(?P<turn>[A-Za-z0-9-]{1,128})_(?P<etag>[0-9a-f]{32})_(?P<call>[A-Za-z0-9]{1,32})\Z")
_SEAL: Final = "reasond1."


@value
class Dialogue:
    """A conversation: `system` are its instructions, `said` all that was said, the oldest first.

    `warnings` tell what of it is not shown to the model.
    """

    system: str = ""
    said: Sequence[HistoryMessage] = ()
    warnings: Sequence[str] = ()


@value
class LastMessage:
    """What a conversation asks now: `query`, with `images`, after `history`.

    `results` are the results of tools at its end; they are part of `history`, too.
    """

    query: str
    history: Sequence[HistoryMessage]
    images: Sequence[Image] = ()
    results: Sequence[ToolResult] = ()
    warnings: Sequence[str] = ()


class ConversationBuilder:
    """Takes what was said in order, after the messages of `earlier`; neighbours of one author are joined.

    Attributes:
        warnings: what is not shown to the model, each once.
        problems: what is malformed; fields by the names of the wire.
    """

    def __init__(self, earlier: Sequence[HistoryMessage] = ()) -> None:
        self.warnings: dict[str, None] = {}
        self.problems: list[Violation] = []
        self._system: list[str] = []
        self._said = list(earlier)
        self._reasoning: list[str] = []

    def read(self, field: str, content: object, *, is_asked: bool = False) -> Content:
        """Return what a content says; see `read_content`."""
        found = read_content(field, content, is_asked=is_asked)
        self.warnings |= dict.fromkeys(found.warnings)
        self.problems += found.problems
        return found

    def refuse(self, field: str, description: str) -> None:
        """Note what is malformed."""
        self.problems.append(Violation(field=field, description=description))

    def say(self, field: str, role: object, content: object, calls: Sequence[ToolCall] = ()) -> None:
        """Add what one of OpenAI's authors says, with the `calls` of an assistant."""
        said = self.read(f"{field}.content", content, is_asked=role == "user")
        if role == "user":
            self.add_user(said.text, said.images)
        elif role == "assistant":
            self.add_assistant(said.text, calls)
        elif role in ["system", "developer"]:
            self.instruct(said.text)
        else:
            self.refuse(f"{field}.role", f"must be 'user', 'assistant', 'system' or 'developer', got {show(role)}")

    def instruct(self, text: str) -> None:
        """Add instructions, wherever they stand."""
        if text:
            self._system.append(text)

    def add_user(self, text: str, images: Sequence[Image] = ()) -> None:
        """Add what the user says and shows."""
        if not text and not images:
            return
        self._reasoning.clear()
        last = self._last(Speaker.USER)
        if last is None:
            self._said.append(HistoryMessage(role=Speaker.USER, text=text, images=tuple(images)))
        else:
            self._said[-1] = replace(last, text=_join(last.text, text), images=(*last.images, *images))

    def add_reasoning(self, text: str) -> None:
        """Add the reasoning before what the assistant says next."""
        if text:
            self._reasoning.append(text)

    def add_assistant(self, text: str, calls: Sequence[ToolCall] = ()) -> None:
        """Add what the assistant says, and the tools that it calls then."""
        if not text and not calls:
            return
        last = self._last(Speaker.ASSISTANT)
        if last is None or (text and last.tool_calls):
            last = HistoryMessage(role=Speaker.ASSISTANT)
            self._said.append(last)
        self._said[-1] = replace(
            last,
            text=_join(last.text, text),
            reasoning=_join(last.reasoning, *self._reasoning),
            tool_calls=(*last.tool_calls, *calls),
        )
        self._reasoning.clear()

    def add_result(self, call_id: str, text: str, *, is_error: bool = False) -> None:
        """Add the result of a call as the client wrote it."""
        self._reasoning.clear()
        result = ToolResult(call_id=call_id, result_json=_to_json_text(text), is_error=is_error)
        last = self._last(Speaker.TOOL)
        if last is None:
            self._said.append(HistoryMessage(role=Speaker.TOOL, tool_results=(result,)))
        else:
            self._said[-1] = replace(last, tool_results=(*last.tool_results, result))

    def build(self) -> Dialogue:
        """Return the conversation.

        Raises:
            InvalidRequestError: something that was read is malformed.
        """
        if self.problems:
            raise InvalidRequestError.of(*self.problems[:MOST_PROBLEMS])
        warnings = (*self.warnings,)[:MOST_PROBLEMS]
        return Dialogue(system=BETWEEN.join(self._system), said=tuple(self._said), warnings=warnings)

    def _last(self, speaker: Speaker) -> HistoryMessage | None:
        return self._said[-1] if self._said and self._said[-1].role is speaker else None


def find_question(said: Sequence[HistoryMessage]) -> LastMessage | None:
    """Return what is asked after all that was said; None if nothing was."""
    if not said:
        return None
    *before, last = said
    if last.role is Speaker.TOOL:
        return LastMessage(query=_GO_ON, history=said, results=last.tool_results)
    if last.role is Speaker.ASSISTANT:
        if last.tool_calls:
            return LastMessage(query=_GO_ON, history=said)
        warning = "The last message is the assistant's: the model is asked to continue it."
        return LastMessage(query=_CONTINUE, history=said, warnings=(warning,))
    text = last.text if last.text.strip() else _LOOK
    if len(text) > MAX_QUERY_CHARACTERS:
        # What is too long for one question is said in two messages, which prompts join again.
        at = text.find("\n", len(text) - MAX_QUERY_CHARACTERS) + 1 or len(text) - MAX_QUERY_CHARACTERS
        if text[at:].strip():
            before.append(HistoryMessage(role=Speaker.USER, text=text[:at]))
            text = text[at:]
    return LastMessage(query=text, history=tuple(before), images=last.images)


def name_call(turn_id: str, etag: str, pending: PendingCall) -> str:
    """Return the id by which a client knows a pending call; its result tells where it belongs."""
    return f"call_{turn_id}_{etag}_{pending.call.call_id}"


def find_reentry(results: Sequence[ToolResult]) -> TurnReentry | None:
    """Return the re-entry that `results` could be; None if they answer no call of one hand-off of this server."""
    named = [_CALL_ID.match(result.call_id) for result in results]
    handoffs = {(match["turn"], match["etag"]) for match in named if match is not None}
    if None in named or len(handoffs) != 1:
        return None
    ((turn_id, etag),) = handoffs
    settled = [
        replace(result, call_id=match["call"])
        for result, match in zip(results, named, strict=True)
        if match is not None
    ]
    return TurnReentry(turn_id=turn_id, etag=etag, results=tuple(settled))


def _to_json_text(text: str) -> str:
    """Return the text of a result as JSON: as it is if it is JSON, else as a JSON string."""
    try:
        from_json(text, allow_inf_nan=False)
    except ValueError:
        return to_json(text).decode()
    return text


def _join(*texts: str) -> str:
    return BETWEEN.join(text for text in texts if text)


def describe_text(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of the function that stands for a custom tool; it shows the model the grammar, if any."""
    text: dict[str, Any] = {"type": "string"}
    form = tool.get("format")
    grammar = form.get("grammar", form) if isinstance(form, dict) else None
    if isinstance(grammar, dict) and (definition := grammar.get("definition")):
        text["description"] = f"A text that this {grammar.get('syntax') or ''} grammar allows:\n{definition}"
    return {"type": "object", "properties": {"input": text}, "required": ["input"]}


def find_custom_names(tools: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the names of the custom tools among those that a client has sent."""
    custom = [tool.get("custom") or tool for tool in tools if tool.get("type") == "custom"]
    return frozenset(str(tool.get("name")) for tool in custom if isinstance(tool, dict))


def read_text(arguments_json: str) -> str:
    """Return the text in the arguments of a call; arguments of another form as they are."""
    try:
        arguments = from_json(arguments_json)
    except ValueError:
        return arguments_json
    text = arguments.get("input") if isinstance(arguments, dict) else None
    return text if isinstance(text, str) else arguments_json


def write_arguments(text: object) -> str:
    """Return the arguments with `text` in them, as JSON."""
    return to_json({"input": text}).decode()


def seal(text: str) -> str:
    """Return a reasoning in its sealed form."""
    return _SEAL + base64.urlsafe_b64encode(text.encode("utf-8", "replace")).decode()


def unseal(sealed: object) -> str:
    """Return the reasoning in a sealed form; empty for one of another server."""
    with suppress(ValueError):
        if isinstance(sealed, str) and sealed.startswith(_SEAL):
            return base64.b64decode(sealed.removeprefix(_SEAL), altchars=b"-_", validate=True).decode()
    return ""


def recall(
    execution_id: str, log: ExecutionLog, *, after: int = 0, with_output: bool = True
) -> Sequence[HistoryMessage]:
    """Return what was said until the leg after the event `after` ended, or without its output until it began."""
    builder, etag = _recall_start(log), ""
    for logged in log.events[1:]:
        event, is_own = logged.event, logged.sequence > after
        if isinstance(event, Reentered):
            if is_own and logged.sequence != after + 1:
                break
            for result in event.results:
                name = f"call_{execution_id}_{etag}_{result.call_id}"
                builder.add_result(name, result.result_json, is_error=result.is_error)
        elif is_own and not with_output:
            break
        elif isinstance(event, HandedOff):
            etag = event.etag
            builder.add_assistant("", [_recall_call(execution_id, etag, one) for one in event.calls])
        else:
            builder.add_assistant(_find_text(event))
    return builder.build().said


def _recall_start(log: ExecutionLog) -> ConversationBuilder:
    """Return a builder that has what was said before the execution, and what it was asked."""
    first = log.events[0].event if log.events else None
    if isinstance(first, TurnStarted):
        builder = ConversationBuilder(first.history)
        builder.add_user(first.message, first.images)
        return builder
    task = read_planned_task(log.plan) if log.plan else None
    if task is None:
        return ConversationBuilder()
    builder = ConversationBuilder(task.history)
    builder.add_user(task.query, task.images)
    return builder


def _recall_call(execution_id: str, etag: str, pending: PendingCall) -> ToolCall:
    name = name_call(execution_id, etag, pending)
    return ToolCall(call_id=name, name=pending.call.name, arguments_json=pending.call.arguments_json)


def _find_text(event: Event) -> str:
    """Return what the assistant says to its client in an event."""
    if isinstance(event, ModelCallStep):
        return event.text.strip() if event.calls else ""
    if isinstance(event, Result):
        return event.answer_json or event.answer
    return event.answer if isinstance(event, TurnResult) else ""
