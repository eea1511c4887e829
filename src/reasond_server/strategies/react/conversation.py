"""The conversation of a ReAct run as messages that fit the model's window.

Old observations are removed first: if the shown observations exceed their share of the window, the oldest are masked,
that is replaced by a line with a handle. Several are masked at once, so that the beginning of the prompt stays the same
for many calls and providers' caches can reuse it. If that is not enough, the oldest thoughts are left out, then the
newest observations are masked. A call and its result always stay together.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from reasond_server.context.calls import count_prompt
from reasond_server.context.tags import neutralize
from reasond_server.llm.model import Message, Role
from reasond_server.strategies.react.prompts import (
    fence_observation,
    write_action,
    write_native_call,
    write_placeholder,
)
from reasond_server.strategies.react.tool_use import Offer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reasond_server.llm.model import ChatModel
    from reasond_server.types import ToolCall, ToolResult

_MAX_SHOWN_TOKENS = 8_192
_SHARE_OF_ROOM = 3
_TOKENS_PER_CALL = 16
_LEFT_OUT = "[an earlier thought is left out]"
_NO_TEXT = "[no text]"


@dataclass(slots=True, kw_only=True)
class _ShownResult:
    """A result and whether it is masked; with `handle` the model can read it again."""

    call: ToolCall
    result: ToolResult
    handle: str
    tokens: int
    is_masked: bool = False

    @property
    def line(self) -> str:
        """The line that replaces the result when it is masked."""
        return write_placeholder(self.result, handle=self.handle, tokens=self.tokens)


@dataclass(slots=True, kw_only=True)
class _Cycle:
    """The text of the model, its tool calls with their wire ids, their results, and our message after them.

    `made` caches the messages of the cycle; None after a change. All cycles are sent again with every call, and an
    unchanged message keeps its JSON.
    """

    text: str
    reasoning: str
    wire_ids: Sequence[str]
    seen: list[_ShownResult]
    said: str = ""
    is_left_out: bool = False
    made: Sequence[Message] | None = None


class WireIds:
    """Ids of tool calls on the wire: the provider's own id, or a generated one if that is empty or a duplicate.

    Generated ids have nine letters and digits, which is the only form that Mistral's servers accept.
    """

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._minted = 0

    def take(self, provider_id: str) -> str:
        """Return an id that is unique in the run."""
        wire_id = provider_id
        while not wire_id or wire_id in self._used:
            self._minted += 1
            wire_id = f"call{self._minted:05d}"
        self._used.add(wire_id)
        return wire_id


@dataclass(slots=True, kw_only=True)
class Conversation:
    """The conversation of one run, which begins with `opening` (system and question).

    `is_native` is whether tool calls have the provider's form. `masked` counts the observations masked so far.
    """

    opening: Sequence[Message]
    nonce: str
    is_native: bool
    model: ChatModel
    offer: Offer = field(default_factory=Offer)
    masked: int = 0
    _cycles: list[_Cycle] = field(default_factory=list)
    _spec_tokens: int | None = None

    def add(self, *, text: str, reasoning: str = "", calls: Sequence[tuple[ToolCall, str]] = ()) -> None:
        """Add the text of the model and its tool calls, each with its wire id."""
        self._cycles.append(
            _Cycle(text=neutralize(text.strip()), reasoning=reasoning, wire_ids=[wire for _, wire in calls], seen=[])
        )

    def observe(self, call: ToolCall, result: ToolResult, *, handle: str) -> None:
        """Add the result of the next tool call of the last cycle."""
        tokens = self.model.counter.count_text(fence_observation(result, nonce=self.nonce))
        last = self._cycles[-1]
        last.seen.append(_ShownResult(call=call, result=result, handle=handle, tokens=tokens))
        last.made = None

    def say(self, text: str) -> None:
        """Add our message `text` after the last cycle."""
        if self._cycles:
            last = self._cycles[-1]
            last.said = f"{last.said}\n{text}".strip()
            last.made = None
        else:
            *before, user = self.opening
            self.opening = (*before, replace(user, content=f"{user.content}\n{text}"))

    def mask_surplus(self) -> None:
        """Mask the oldest observations if they exceed their limit; for a run whose model's window is unknown."""
        self._mask_old(_MAX_SHOWN_TOKENS)

    async def fit(self, *, window: int, writing_tokens: int, least_tokens: int) -> tuple[int, int]:
        """Shorten the conversation to fit, and return the tokens of the prompt, tools included, and of the output.

        The output should have `writing_tokens`. It gets fewer if nothing more can be left out. If the returned number
        is less than `least_tokens`, the conversation does not fit.
        """
        room = window - writing_tokens - self._count_specs()
        self._mask_old(min(_MAX_SHOWN_TOKENS, max(0, room) // _SHARE_OF_ROOM))
        prompt = await self._count_messages()
        for shorten in (self._mask_all_old, self._leave_out_thoughts, self._leave_out_thoughts, self._mask_newest):
            if prompt <= room:
                break
            shorten()
            prompt = await self._count_messages()
        if prompt > room:
            told = await self.model.count_exactly(self.build_messages()) if not self.model.counter.is_exact else None
            prompt = prompt if told is None else told
        prompt += self._count_specs()
        left = window - prompt
        return prompt, min(writing_tokens, left) if left >= least_tokens else left

    async def count_tokens(self) -> int:
        """Return the tokens of the current prompt, tools included."""
        return await self._count_messages() + self._count_specs()

    def build_messages(self) -> Sequence[Message]:
        """Return the messages to send."""
        messages = list(self.opening)
        for cycle in self._cycles:
            if cycle.made is None:
                cycle.made = tuple(self._messages_of(cycle))
            messages.extend(cycle.made)
        return tuple(messages)

    @property
    def has_native_calls(self) -> bool:
        """Whether the messages have tool calls in the provider's form."""
        return self.is_native and any(cycle.seen for cycle in self._cycles)

    def _messages_of(self, cycle: _Cycle) -> Iterator[Message]:
        text = _LEFT_OUT if cycle.is_left_out and cycle.text else cycle.text
        shown = [self._show(one) for one in cycle.seen]
        if self.is_native and cycle.seen:
            calls = tuple(
                write_native_call(one.call, call_id=wire_id)
                for one, wire_id in zip(cycle.seen, cycle.wire_ids, strict=True)
            )
            yield Message(role=Role.ASSISTANT, content=text, tool_calls=calls, reasoning=cycle.reasoning)
            # Our message is added to the last result: some providers refuse a user message after a tool message.
            shown[-1] = f"{shown[-1]}\n{cycle.said}".rstrip()
            for content, wire_id in zip(shown, cycle.wire_ids, strict=True):
                yield Message(role=Role.TOOL, content=content, tool_call_id=wire_id)
            return
        actions = [write_action(one.call) for one in cycle.seen]
        written = "\n".join(part for part in (text, *actions) if part) or _NO_TEXT
        yield Message(role=Role.ASSISTANT, content=written, reasoning=cycle.reasoning)
        if said := "\n".join(part for part in (*shown, cycle.said) if part):
            yield Message(role=Role.USER, content=said)

    def _show(self, one: _ShownResult) -> str:
        return fence_observation(one.result, nonce=self.nonce, shown=one.line if one.is_masked else None)

    def _mask_old(self, share: int) -> None:
        """If the observations exceed `share` tokens, mask the oldest down to half of it, never the newest cycle's."""
        old = [(cycle, one) for cycle in self._cycles[:-1] for one in cycle.seen if not one.is_masked]
        newest = sum(one.tokens for cycle in self._cycles[-1:] for one in cycle.seen)
        total = newest + sum(one.tokens for _, one in old)
        if total <= share:
            return
        for cycle, one in old:
            if total <= share // 2:
                break
            self._mask(cycle, one)
            total -= one.tokens if one.is_masked else 0

    def _mask_all_old(self) -> None:
        for cycle in self._cycles[:-1]:
            self._mask_all(cycle)

    def _mask_newest(self) -> None:
        for cycle in self._cycles[-1:]:
            self._mask_all(cycle)

    def _mask_all(self, cycle: _Cycle) -> None:
        for one in cycle.seen:
            self._mask(cycle, one)

    def _mask(self, cycle: _Cycle, one: _ShownResult) -> None:
        """Mask a result of `cycle`, unless it is not longer than the line that would replace it."""
        if not one.is_masked and len(one.line) < len(one.result.result_json):
            self.masked += 1
            one.is_masked = True
            cycle.made = None

    def _leave_out_thoughts(self) -> None:
        """Leave out the older half of the remaining thoughts; the second time, all except the newest."""
        standing = [cycle for cycle in self._cycles[:-1] if not cycle.is_left_out]
        is_second = any(cycle.is_left_out for cycle in self._cycles)
        for cycle in standing if is_second else standing[: (len(standing) + 1) // 2]:
            cycle.is_left_out = True
            cycle.reasoning = ""
            cycle.made = None

    def _count_specs(self) -> int:
        """Return the tokens of the tools, counted only once, because they are the same in every call."""
        if self._spec_tokens is None:
            self._spec_tokens = 0
            if self.offer.specs and self.is_native:
                tokens = self.model.counter.count_text(self.offer.whole)
                self._spec_tokens = tokens + _TOKENS_PER_CALL * len(self.offer.specs)
        return self._spec_tokens

    async def _count_messages(self) -> int:
        """Return the tokens of the messages and of their tool calls, which counters of messages do not include."""
        messages = self.build_messages()
        calls = [call for message in messages for call in message.tool_calls]
        count = self.model.counter
        extra = sum([count.count_text(call.name + call.arguments_json) + _TOKENS_PER_CALL for call in calls])
        return extra + await count_prompt(messages, count)
