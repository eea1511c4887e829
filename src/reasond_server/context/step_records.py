"""Records of the steps of a run, for strategies and turns, and each step as messages.

Messages of a step are the model's text, its tool calls with their ids on the wire, and their results. A model with
native tools gets its calls in the provider's form and each result in a message of its own. Any other model gets its
calls as `<action>` in its text and all results in one message of the user. A call and its result always stand together.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from reasond_server.context.sections import fence
from reasond_server.context.tags import neutralize
from reasond_server.llm.model import Message, Role, TokenCounter
from reasond_server.tools.results import parse_arguments
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from reasond_server.types import ToolCall, ToolResult


class PromptMemory:
    """Keeps what was made for earlier prompts, for as long as it is made from the same.

    A message that is not made again keeps its JSON. Nothing here changes a prompt.
    """

    def __init__(self) -> None:
        self._parts: dict[str, tuple[Sequence[Message], TokenCounter, int]] = {}
        self._steps: dict[int, tuple[Sequence[Any], Sequence[Message]]] = {}

    def keep_part(
        self, source: str, messages: Sequence[Message], counter: TokenCounter, count: Callable[[], int]
    ) -> tuple[Sequence[Message], int]:
        """Return the messages of the part `source` as they were made first, and their tokens by `counter` then."""
        known = self._parts.get(source)
        if known is None or known[1] is not counter or known[0] != messages:
            known = self._parts[source] = (messages, counter, count())
        return known[0], known[2]

    def keep_step(self, place: int, key: Sequence[Any], make: Callable[[], Iterable[Message]]) -> Sequence[Message]:
        """Return the messages of the step number `place`; `key` is everything that they are made from."""
        known = self._steps.get(place)
        if known is None or known[0] != key:
            known = self._steps[place] = (key, tuple(make()))
        return known[1]


@value
class CallRecord:
    """A tool call and its result.

    Attributes:
        call: the call with an id of ours, such as c3, which is unique in the turn.
        result: the whole result; None if the call was not made.
        handle: what `read_tool_result` reads the result by; empty if it cannot be read again.
        wire_id: the provider's id of the call; an empty one or a duplicate is replaced.
        create_time: when the result came, with its time zone; it is never rendered.
    """

    call: ToolCall
    result: ToolResult | None = None
    handle: str = ""
    wire_id: str = ""
    create_time: datetime | None = None


@value
class ReasoningStepRecord:
    """A reply of the model, its calls in their order, and our message after them (seed 002, M1).

    `index` is the number of the reply in the turn. `thinking` is hidden reasoning, which only providers that require it
    get back.
    """

    index: int
    text: str
    thinking: str = ""
    calls: Sequence[CallRecord] = ()
    said: str = ""


LEFT_OUT_THOUGHT: Final = "[an earlier thought is left out]"

_NO_TEXT: Final = "[no text]"
_MAX_NATIVE_NAME: Final = 128
_NO_NAME: Final = re.compile(r"[^a-zA-Z0-9_-]")


class WireIds:
    """Ids of tool calls on the wire: the provider's own id, or a generated one if that is empty or a duplicate.

    Generated ids have nine letters and digits, which is the only form that Mistral's servers accept. `used` are ids of
    earlier calls in the same prompt.
    """

    def __init__(self, *, used: Iterable[str] = ()) -> None:
        self._used: set[str] = set(used)
        self._minted = 0

    def take(self, provider_id: str) -> str:
        """Return an id that is unique in the run."""
        wire_id = provider_id
        while not wire_id or wire_id in self._used:
            self._minted += 1
            wire_id = f"call{self._minted:05d}"
        self._used.add(wire_id)
        return wire_id


def write_step(
    *,
    text: str,
    reasoning: str,
    calls: Sequence[ToolCall],
    wire_ids: Sequence[str],
    shown: Sequence[str],
    said: str,
    is_native: bool,
) -> Iterator[Message]:
    """Yield the messages of a step; `shown` are the fenced results of `calls`, `said` is our message after them.

    `wire_ids` has an id for each call if `is_native`.
    """
    if is_native and calls:
        native = tuple(write_native_call(call, call_id=wire) for call, wire in zip(calls, wire_ids, strict=True))
        yield Message(role=Role.ASSISTANT, content=text, tool_calls=native, reasoning=reasoning)
        # Our message is added to the last result: some providers refuse a user message after a tool message.
        *before, last = shown
        for content, wire_id in zip((*before, f"{last}\n{said}".rstrip()), wire_ids, strict=True):
            yield Message(role=Role.TOOL, content=content, tool_call_id=wire_id)
        return
    written = "\n".join(part for part in (text, *map(write_action, calls)) if part) or _NO_TEXT
    yield Message(role=Role.ASSISTANT, content=written, reasoning=reasoning)
    if joined := "\n".join(part for part in (*shown, said) if part):
        yield Message(role=Role.USER, content=joined)


def write_action(call: ToolCall) -> str:
    """Return `call` as text for the history, in one form for all calls."""
    arguments = call.arguments_json.strip() or "{}"
    return f'<action>{{"tool": {neutralize(json.dumps(call.name))}, "arguments": {neutralize(arguments)}}}</action>'


def write_native_call(call: ToolCall, *, call_id: str) -> ToolCall:
    """Return `call` for the history of a provider with native tools, with its wire id.

    Servers refuse a history with invalid function names, or with arguments that are not a JSON object. Such names are
    respelled, and such arguments are left out. The result of the call has the error.
    """
    name = _NO_NAME.sub("_", call.name)[:_MAX_NATIVE_NAME] or "_"
    try:
        parse_arguments(call.arguments_json)
    except ValueError:
        return replace(call, call_id=call_id, name=name, arguments_json="{}")
    return replace(call, call_id=call_id, name=name, arguments_json=neutralize(call.arguments_json.strip() or "{}"))


def fence_observation(result: ToolResult, *, nonce: str, shown: str | None = None) -> str:
    """Return a fence with `result`, or with `shown` instead."""
    attributes = f' call="{result.call_id}"'
    return fence("observation", result.result_json if shown is None else shown, nonce=nonce, attributes=attributes)


def write_placeholder(result: ToolResult, *, handle: str, tokens: int, is_failure_kept: bool = False) -> str:
    """Return the line that replaces a result; `is_failure_kept` is whether a failed one can be read by its handle."""
    reading = f"{tokens} tokens: read_tool_result with handle {handle} shows it]"
    if result.is_error:
        return f"[left out, the call failed, {reading}" if is_failure_kept else "[left out: the call failed]"
    return f"[left out, {reading}"
