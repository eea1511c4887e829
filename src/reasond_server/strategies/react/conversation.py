"""The conversation of a ReAct run as messages that fit the model's window.

Old observations are removed first: if the shown observations exceed their share of the window, the oldest are masked,
that is replaced by a line with a handle. Several are masked at once, so that the beginning of the prompt stays the same
for many calls and providers' caches can reuse it. If that is not enough, the oldest thoughts are left out, then the
newest observations are masked. A call and its result always stay together (`context.shown_steps`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from reasond_server.context.calls import count_prompt
from reasond_server.context.shown_steps import ShownResult, ShownSteps, count_calls
from reasond_server.strategies.react.tool_use import Offer
from reasond_server.types.turns import Rendering

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reasond_server.llm.model import ChatModel, Message
    from reasond_server.types import ToolCall, ToolResult

_MAX_SHOWN_TOKENS = 8_192
_SHARE_OF_ROOM = 3
_TOKENS_PER_CALL = 16


@dataclass(slots=True, kw_only=True)
class Conversation:
    """The conversation of one run, which begins with `opening` (system and question).

    `is_native` is whether tool calls have the provider's form.
    """

    opening: Sequence[Message]
    nonce: str
    is_native: bool
    model: ChatModel
    offer: Offer = field(default_factory=Offer)
    _shown: ShownSteps = field(init=False)
    _spec_tokens: int | None = None

    def __post_init__(self) -> None:
        self._shown = ShownSteps(nonce=self.nonce, is_native=self.is_native)

    @property
    def masked(self) -> int:
        """How many observations were masked so far."""
        return self._shown.cleared

    def add(self, *, text: str, reasoning: str = "", calls: Sequence[tuple[ToolCall, str]] = ()) -> None:
        """Add the text of the model and its tool calls, each with its wire id."""
        self._shown.add(text=text, reasoning=reasoning, wire_ids=[wire for _, wire in calls])

    def observe(self, call: ToolCall, result: ToolResult, *, handle: str) -> None:
        """Add the result of the next tool call of the last cycle; failures cannot be read again."""
        tokens = self.model.counter.count_text(self._shown.fence(result))
        kept = "" if result.is_error else handle
        self._shown.observe(ShownResult(call=call, result=result, handle=kept, tokens=tokens, full_tokens=tokens))

    def say(self, text: str) -> None:
        """Add our message `text` after the last cycle."""
        if self._shown.steps:
            self._shown.steps[-1].say(text)
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
        prompt = 0
        for _ in self._shorten():
            prompt = await self._count_messages()
            if prompt <= room:
                break
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
        return (*self.opening, *self._shown.build_messages())

    @property
    def has_native_calls(self) -> bool:
        """Whether the messages have tool calls in the provider's form."""
        return self.is_native and any(step.seen for step in self._shown.steps)

    def _shorten(self) -> Iterator[None]:
        """Leave out more and more, and yield before each time."""
        yield
        self._shown.clear_oldest(keep=self._count_newest())
        yield
        self._shown.leave_out_thoughts()
        yield
        self._shown.leave_out_thoughts()
        yield
        self._shown.clear_oldest(keep=0)
        yield

    def _mask_old(self, share: int) -> None:
        """If the observations exceed `share` tokens, mask the oldest down to half of it, never the newest cycle's."""
        newest = self._count_newest()
        shown = [one for step in self._shown.steps for one in step.seen]
        old = [one for one in shown[: len(shown) - newest] if one.rendering is Rendering.FULL]
        total = sum(one.full_tokens for one in (*old, *shown[len(shown) - newest :]))
        if total > share:
            self._shown.clear_oldest(keep=newest, tokens=total - share // 2)

    def _count_newest(self) -> int:
        """Return the number of observations of the newest cycle."""
        return len(self._shown.steps[-1].seen) if self._shown.steps else 0

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
        messages, counter = self.build_messages(), self.model.counter
        return count_calls(messages, counter) + await count_prompt(messages, counter)
