"""Records of the steps of a run, for strategies and turns, and the steps as a prompt shows them.

Messages of a step are the model's text, its tool calls with their ids on the wire, and their results. A model with
native tools gets its calls in the provider's form and each result in a message of its own. Any other model gets its
calls as `<action>` in its text and all results in one message of the user. A call and its result always stand together.

Steps are shortened until the prompt fits. Results are replaced by lines with their handles, the oldest first, and
several at once: so the beginning of the prompt stays the same for many calls, and providers' caches can reuse it.
Thoughts are left out, the oldest first. A call is left out only together with its whole step.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from reasond_server.context.sections import fence
from reasond_server.context.tags import neutralize
from reasond_server.llm.model import Message, Role, TokenCounter
from reasond_server.tools.results import parse_arguments
from reasond_server.types.turns import Rendering
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from reasond_server.types import ToolCall, ToolResult


_TOKENS_PER_CALL: Final = 16


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


@dataclass(slots=True, kw_only=True)
class ShownResult:
    """A result as it is shown: whole, or as `text`. `tokens` are those of what is shown, `full_tokens` of the whole.

    With `handle` the model can read it again.
    """

    call: ToolCall
    result: ToolResult
    handle: str
    tokens: int
    full_tokens: int
    rendering: Rendering = Rendering.FULL
    text: str = ""

    @property
    def line(self) -> str:
        """The line that replaces the result when it is left out."""
        result, handle, is_kept = self.result, self.handle, bool(self.handle)
        return write_placeholder(result, handle=handle, tokens=self.full_tokens, is_failure_kept=is_kept)

    @property
    def shown(self) -> str:
        """What is shown, without the fence."""
        return self.result.result_json if self.rendering is Rendering.FULL else self.text


@dataclass(slots=True, kw_only=True)
class ShownStep:
    """The text of the model, its tool calls with their wire ids, their results, and our message after them.

    `is_left_out` is whether its text is, `is_gone` whether all of it is. `made` caches the messages of the step; None
    after a change.
    """

    text: str
    reasoning: str
    wire_ids: Sequence[str]
    seen: list[ShownResult] = field(default_factory=list)
    said: str = ""
    is_left_out: bool = False
    is_gone: bool = False
    made: Sequence[Message] | None = None


@dataclass(slots=True, kw_only=True)
class ShownSteps:
    """The steps of one run. Nothing is left out whose replacement is as long by `count`.

    With `memory`, steps that are shown as in earlier prompts keep their messages.
    """

    nonce: str
    is_native: bool
    count: Callable[[str], int] = len
    memory: PromptMemory | None = None
    steps: list[ShownStep] = field(default_factory=list)

    def add(self, *, text: str, reasoning: str, wire_ids: Sequence[str]) -> ShownStep:
        """Add the text of the model and the wire ids of its tool calls; return the step."""
        step = ShownStep(text=text.strip(), reasoning=reasoning, wire_ids=wire_ids)
        self.steps.append(step)
        return step

    def observe(self, shown: ShownResult) -> None:
        """Add the result of the next tool call of the last step."""
        self.steps[-1].seen.append(shown)
        self.steps[-1].made = None

    def fence(self, result: ToolResult, shown: str | None = None) -> str:
        """Return `result`, or `shown` instead, as the model reads it."""
        return fence_observation(result, nonce=self.nonce, shown=shown)

    def build_messages(self, before: Sequence[Message] = ()) -> Sequence[Message]:
        """Return the messages of all steps that stand, behind those that stand `before` them.

        A step without text and calls is then no message, because models repeat what stands for nothing: our message
        after it ends the message before.
        """
        messages = list(before)
        for place, step in enumerate(self.steps):
            if step.is_gone:
                continue
            if before and not (step.text or step.seen):
                messages = add_text(messages, step.said)
                continue
            if step.made is None:
                step.made = self._make_messages(place, step)
            messages.extend(step.made)
        return messages

    def _make_messages(self, place: int, step: ShownStep) -> Sequence[Message]:
        text = LEFT_OUT_THOUGHT if step.is_left_out and step.text else step.text
        calls, shown = [one.call for one in step.seen], [one.shown for one in step.seen]

        def write() -> Iterator[Message]:
            return write_step(
                text=neutralize(text),
                reasoning=step.reasoning,
                calls=calls,
                wire_ids=step.wire_ids,
                shown=[self.fence(one.result, each) for one, each in zip(step.seen, shown, strict=True)],
                said=step.said,
                is_native=self.is_native,
            )

        if self.memory is None:
            return tuple(write())
        key = (text, step.reasoning, calls, step.wire_ids, shown, step.said, self.is_native, self.nonce)
        return self.memory.keep_step(place, key, write)

    def forget_messages(self) -> None:
        """Build all messages again, after results were changed one by one."""
        for step in self.steps:
            step.made = None

    def clear_oldest(self, *, keep: int, tokens: int | None = None) -> int:
        """Replace the oldest results by their lines until they had `tokens` tokens, or all; return how many they had.

        The newest `keep` results stay, and so does a result that is not longer than its line.
        """
        everything = [(step, one) for step in self.steps for one in step.seen]
        gone = 0
        for step, one in everything[: max(0, len(everything) - keep)]:
            if tokens is not None and gone >= tokens:
                break
            if one.rendering is not Rendering.HANDLE and self._is_shorter(one.line, one.shown):
                gone += one.tokens
                one.text, one.rendering = one.line, Rendering.HANDLE
                one.tokens = self.count(self.fence(one.result, one.line))
                step.made = None
        return gone

    def leave_out_steps(self) -> int:
        """Leave out the older half of the standing steps; return how many."""
        standing = [step for step in self.steps if not step.is_gone]
        chosen = standing[: (len(standing) + 1) // 2]
        for step in chosen:
            step.is_gone = step.is_left_out = True
            for one in step.seen:
                one.rendering, one.text, one.tokens = Rendering.HANDLE, one.line, 0
        return len(chosen)

    def describe_gone(self) -> str:
        """Return the line that stands for the steps that are left out; empty if none is."""
        gone = [step for step in self.steps if step.is_gone]
        handles = [one.handle for step in gone for one in step.seen if one.handle]
        if not gone:
            return ""
        reading = (
            f"; read_tool_result reads their results by the handles {handles[0]} to {handles[-1]}" if handles else ""
        )
        return f"[{len(gone)} earlier steps with their calls are left out{reading}]"

    def leave_out_thoughts(self) -> int:
        """Leave out the older half of the remaining thoughts; the second time, all except the newest. Return how many.

        Hidden reasoning is left out with its thought.
        """
        standing = [
            step for step in self.steps[:-1] if not step.is_left_out and self._is_shorter(LEFT_OUT_THOUGHT, step.text)
        ]
        is_second = any(step.is_left_out for step in self.steps)
        chosen = standing if is_second else standing[: (len(standing) + 1) // 2]
        for step in chosen:
            step.is_left_out = True
            step.reasoning = ""
            step.made = None
        return len(chosen)

    def _is_shorter(self, replacement: str, shown: str) -> bool:
        return self.count(replacement) < self.count(shown)


def add_text(messages: list[Message], text: str) -> list[Message]:
    """Return `messages` with `text` at the end of the last one, unless that is the model's."""
    if not text:
        return messages
    last = messages[-1] if messages else None
    # Some providers refuse a user message after a tool message, and some templates two messages of the user.
    if last is not None and last.role in {Role.USER, Role.TOOL}:
        return [*messages[:-1], replace(last, content=f"{last.content}\n{text}")]
    return [*messages, Message(role=Role.USER, content=text)]


def count_calls(messages: Sequence[Message], counter: TokenCounter) -> int:
    """Return the tokens of the tool calls in `messages`, which counters of messages do not include."""
    texts = [call.name + call.arguments_json for message in messages for call in message.tool_calls]
    return counter.count_text("\n".join(texts)) + _TOKENS_PER_CALL * len(texts) if texts else 0
