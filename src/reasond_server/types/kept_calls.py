"""Calls of models as they are kept for whoever looks into a run."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from reasond_server.types.kinds import Word
from reasond_server.types.usage import Usage
from reasond_server.types.values import value


@value
class PromptMessage:
    """A message of a prompt: its text, with the calls of tools that it has, and how many images it has."""

    role: Word
    text: str
    images: int = 0


@value
class ModelCall:
    """What a model was sent and what came back.

    `number` counts the calls of the execution from 1, in the order in which they ended, which was at `create_time`.
    `outcome` is how the model says that it ended, "closed" if the work left it, or the reason of an error.
    `left_out_characters` of the texts are not kept.
    """

    number: int
    create_time: datetime
    elapsed_s: float
    model: Word
    label: Word
    prompt: Sequence[PromptMessage]
    tools: Sequence[Word]
    max_tokens: int
    temperature: float
    text: str
    thinking: str
    tool_calls: Sequence[str]
    usage: Usage
    outcome: Word
    left_out_characters: int = 0

    @property
    def characters(self) -> int:
        """How many characters its texts have."""
        texts = (self.text, self.thinking, *self.tool_calls, *(each.text for each in self.prompt))
        return sum(map(len, texts))
