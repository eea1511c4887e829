"""The conversation of a ReAct run: its steps as records, from which `build_reasoning_context` makes each prompt.

Observations are shown whole, never as previews. If they exceed their share of the window, the oldest are masked: each
is replaced by a line with its handle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from reasond_server.context.calls import run_by_size
from reasond_server.context.reasoning_context import build_reasoning_context, name_step
from reasond_server.context.reasoning_parts import ContextInputs, ContextSettings, PromptPart, StoredRendering
from reasond_server.context.step_records import CallRecord, PromptMemory, ReasoningStepRecord
from reasond_server.llm.model import ChatModel, Message, Role
from reasond_server.strategies.react.tool_use import Offer
from reasond_server.types.turns import Rendering

_MAX_SHOWN_TOKENS: Final = 8_192
_SHARE_OF_ROOM: Final = 3
_TOKENS_PER_CALL: Final = 16
# What does not fit is masked at once: ReAct's results are short, and every change costs the provider's cache.
_ALL: Final = 1 << 62
_SETTINGS: Final = ContextSettings(preview_above_tokens=None, clear_at_least_tokens=_ALL, keep_recent=0)


@dataclass(slots=True, kw_only=True)
class Conversation:
    """The conversation of one run, which begins with `opening` (system and question).

    `is_native` is whether tool calls have the provider's form. `messages` is the prompt that `fit` has made.
    """

    opening: Sequence[Message]
    nonce: str
    is_native: bool
    model: ChatModel
    offer: Offer = field(default_factory=Offer)
    messages: Sequence[Message] = ()
    _records: list[ReasoningStepRecord] = field(default_factory=list)
    _renderings: dict[str, StoredRendering] = field(default_factory=dict)
    _memory: PromptMemory = field(default_factory=PromptMemory)
    _last_word: Sequence[PromptPart] = ()
    _spec_tokens: int | None = None

    @property
    def masked(self) -> int:
        """How many observations were masked so far."""
        thoughts = {name_step(record) for record in self._records}
        gone = [source for source, one in self._renderings.items() if one.rendering is Rendering.HANDLE]
        return len(gone) - len(thoughts.intersection(gone)) if gone else 0

    @property
    def has_native_calls(self) -> bool:
        """Whether the messages have tool calls in the provider's form."""
        return self.is_native and any(record.calls for record in self._records)

    def add(self, *, text: str, reasoning: str = "", calls: Sequence[CallRecord] = (), said: str = "") -> None:
        """Add the text of the model, its tool calls with their results, and our message `said` after them."""
        self._records.append(
            ReasoningStepRecord(index=len(self._records), text=text, thinking=reasoning, calls=calls, said=said)
        )

    def end_with(self, text: str) -> None:
        """Let the prompts from now on end with our message `text`."""
        self._last_word = (PromptPart(source="last", messages=(Message(role=Role.USER, content=text),)),)

    async def fit(self, *, window: int | None, writing_tokens: int, least_tokens: int) -> tuple[int, int]:
        """Make the prompt, shortened to fit, and return its tokens, tools included, and those of the output.

        The output should have `writing_tokens`. It gets fewer if nothing more can be left out. If the returned number
        is less than `least_tokens`, the conversation does not fit. If the window is unknown, only observations are
        masked.
        """
        specs = self._count_specs()
        room = None if window is None else window - writing_tokens - specs
        inputs = self._list_inputs(room)
        context = await run_by_size(inputs.characters, partial(build_reasoning_context, inputs))
        self.messages = context.messages
        self._renderings |= context.renderings
        prompt = context.report.prompt_tokens
        if room is not None and prompt > room and not self.model.counter.is_exact:
            exact = await self.model.count_exactly(self.messages)
            prompt = prompt if exact is None else exact
        prompt += specs
        if window is None:
            return prompt, writing_tokens
        left = window - prompt
        return prompt, min(writing_tokens, left) if left >= least_tokens else left

    def _list_inputs(self, room: int | None) -> ContextInputs:
        *system, question = self.opening
        most = _MAX_SHOWN_TOKENS if room is None else min(_MAX_SHOWN_TOKENS, max(0, room) // _SHARE_OF_ROOM)
        return ContextInputs(
            opening=(PromptPart(source="system", messages=tuple(system)),),
            question=(PromptPart(source="message", messages=(question,)),),
            records=self._records,
            tail=self._last_word,
            budget_tokens=room,
            may_exceed_budget=True,
            renderings=self._renderings,
            settings=_SETTINGS,
            most_result_tokens=most,
            counter=self.model.counter,
            nonce=self.nonce,
            is_native=self.is_native,
            memory=self._memory,
        )

    def _count_specs(self) -> int:
        """Return the tokens of the tools, counted only once, because they are the same in every call."""
        if self._spec_tokens is None:
            self._spec_tokens = 0
            if self.offer.specs and self.is_native:
                tokens = self.model.counter.count_text(self.offer.whole)
                self._spec_tokens = tokens + _TOKENS_PER_CALL * len(self.offer.specs)
        return self._spec_tokens
