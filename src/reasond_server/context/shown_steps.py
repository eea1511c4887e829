"""The steps of a run as a prompt shows them, shortened until the prompt fits.

Results are replaced by lines with their handles, the oldest first, and several at once: so the beginning of the prompt
stays the same for many calls, and providers' caches can reuse it. Thoughts are left out, the oldest first. A call is
left out only together with its whole step.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from reasond_server.context.step_records import (
    LEFT_OUT_THOUGHT,
    fence_observation,
    write_placeholder,
    write_step,
)
from reasond_server.context.tags import neutralize
from reasond_server.types.turns import Rendering

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from reasond_server.context.step_records import PromptMemory
    from reasond_server.llm.model import Message, TokenCounter
    from reasond_server.types import ToolCall, ToolResult

_TOKENS_PER_CALL: Final = 16


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

    def build_messages(self) -> Sequence[Message]:
        """Return the messages of all steps that stand."""
        messages: list[Message] = []
        for place, step in enumerate(self.steps):
            if step.is_gone:
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


def count_calls(messages: Sequence[Message], counter: TokenCounter) -> int:
    """Return the tokens of the tool calls in `messages`, which counters of messages do not include."""
    texts = [call.name + call.arguments_json for message in messages for call in message.tool_calls]
    return counter.count_text("\n".join(texts)) + _TOKENS_PER_CALL * len(texts) if texts else 0
