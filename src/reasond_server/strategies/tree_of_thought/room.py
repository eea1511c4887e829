"""The room of a search over thoughts in the model's window: what calls need, and what is left for the way so far."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from reasond_server.errors import ContextExhaustedError, InvalidConfigError, Violation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import Message
    from reasond_server.strategies.tree_of_thought.prompts import TreePrompts

# Tags of a fence and its nonce, counted generously.
FENCE_TOKENS: Final = 96
LEAST_THOUGHT_TOKENS: Final = 64
_MARGIN_TOKENS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ThoughtShape:
    """What the calls of a search look like: thoughts in a proposal, their tokens, whether all are judged at once."""

    branching: int
    thought_tokens: int
    is_comparing: bool

    @property
    def shown(self) -> int:
        """Candidates in one judging prompt."""
        return self.branching if self.is_comparing else 1

    @property
    def needed_tokens(self) -> int:
        """What a call needs beside its bare prompt: its last thought shown whole, the candidates, what is written."""
        judging = self.shown * (self.thought_tokens + FENCE_TOKENS) + self.thought_tokens
        writing = max(self.branching * self.thought_tokens, judging)
        return writing + self.thought_tokens + FENCE_TOKENS + _MARGIN_TOKENS

    def bare_prompt(self, prompts: TreePrompts) -> Sequence[Message]:
        """Return the largest prompt of the run as it is without thoughts."""
        proposing = prompts.propose((), count=self.branching, is_last=True)
        judging = prompts.judge((), [""] * self.shown)
        return max(proposing, judging, key=lambda messages: len(messages[-1].content))

    def notes_room(self, bare_tokens: int, *, window: int) -> int:
        """Return the tokens that the way so far may take in a window, `bare_tokens` being those of the bare prompt.

        Raises:
            InvalidConfigError: a smaller max_tokens_per_thought would fit; says which.
            ContextExhaustedError: none would.
        """
        room = window - bare_tokens - self.needed_tokens
        if room >= 0:
            return room + self.thought_tokens
        smaller = [replace(self, thought_tokens=size) for size in range(LEAST_THOUGHT_TOKENS, self.thought_tokens)]
        fitting = [shape.thought_tokens for shape in smaller if bare_tokens + shape.needed_tokens <= window]
        if fitting:
            raise InvalidConfigError.of(
                Violation(
                    field="max_tokens_per_thought",
                    description=f"must be at most {fitting[-1]} for this task with branching {self.branching} in the "
                    f"model's context window of {window} tokens, got {self.thought_tokens}",
                )
            )
        least = replace(self, thought_tokens=LEAST_THOUGHT_TOKENS).needed_tokens
        raise ContextExhaustedError(
            f"question and material have {bare_tokens} tokens, which leaves {max(window - bare_tokens, 0)} of the "
            f"model's context window of {window}; a search with branching {self.branching} needs at least {least}",
            remedy="Shorten query or material, or use the strategy 'bounded_context', which reads long material in "
            "segments.",
            metadata={"prompt_tokens": str(bare_tokens), "context_window": str(window)},
        )
