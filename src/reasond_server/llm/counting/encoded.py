"""What counters that run a real tokenizer share: cutting a text at a number of tokens, and the template's share."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from copy import copy
from typing import TYPE_CHECKING, Self

from reasond_server.llm.counting.template import TemplateAllowance

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import Message
    from reasond_server.types import Json

_SURROGATE = re.compile("[\ud800-\udfff]")
_FIRST_GUESS = 4
# Learning encodes a prompt once more; the template's share shows just as well in short ones.
_LEARNT_FROM_CHARACTERS = 20_000


class EncodedCounter(ABC):
    """Counts by encoding. A million characters take tens of milliseconds: long texts belong in a thread.

    Tokenizers promise little about parts of a text: a beginning may even have a token more than the whole. So
    `head` and `tail` cut between two tokens and count what they return; it never has more tokens than asked for,
    and next to never could it be longer. Lone surrogates, which a model may write, count as U+FFFD.

    Args:
        template: what each message costs beyond its content; learnt if not given.
    """

    def __init__(self, *, template: TemplateAllowance | None = None) -> None:
        self._template = TemplateAllowance() if template is None else template

    @property
    def is_exact(self) -> bool:
        """Whether prompts are counted exactly: their texts are, their template only where it was configured."""
        return self._template.is_configured

    def count_text(self, text: str) -> int:
        """Return the tokens of `text` alone; names of special tokens in it are plain text."""
        return self._count(_encodable(text))

    def count_prompt(self, messages: Sequence[Message]) -> int:
        """Return the tokens of all contents and the template's share."""
        return self._count_contents(messages) + self._template.tokens(len(messages))

    def learn(self, messages: Sequence[Message], reported: int) -> None:
        """Take note that a prompt of `messages` had `reported` tokens; long prompts are left out."""
        if sum(len(message.content) for message in messages) <= _LEARNT_FROM_CHARACTERS:
            texts = self._count_contents(messages)
            self._template.learn(messages=len(messages), text_tokens=texts, reported=reported)

    def fork(self) -> Self:
        """Return a counter with the same tokenizer that learns the template on its own; itself where it is exact."""
        if self.is_exact:
            return self
        forked = copy(self)
        forked._template = self._template.fork()  # noqa: SLF001 - another of the same class
        return forked

    def snapshot(self) -> Json:
        """Return what was learnt of the template."""
        return self._template.snapshot()

    def restore(self, snapshot: Json) -> None:
        """Know of the template what `snapshot` tells. Raises InternalError: it is none of such a counter."""
        self._template.restore(snapshot)

    def head(self, text: str, tokens: int) -> str:
        """Return a longest beginning of `text` that has at most `tokens` tokens."""
        if tokens <= 0:
            return ""
        guess = tokens * _FIRST_GUESS
        while guess < len(text) and self.count_text(text[:guess]) <= tokens:
            guess *= 2
        window = _encodable(text[:guess])
        most, kept = tokens, window
        while kept and self._count(kept) > tokens:
            kept = window[: self._beginning(window, most)]
            most -= max(1, self._count(kept) - tokens)
        return text[: len(kept)]

    def tail(self, text: str, tokens: int) -> str:
        """Return a longest end of `text` that has at most `tokens` tokens."""
        if tokens <= 0:
            return ""
        guess = tokens * _FIRST_GUESS
        while guess < len(text) and self.count_text(text[-guess:]) <= tokens:
            guess *= 2
        window = _encodable(text[-guess:])
        most, kept = tokens, window
        while kept and self._count(kept) > tokens:
            kept = window[len(window) - self._end(window, most) :]
            most -= max(1, self._count(kept) - tokens)
        return text[len(text) - len(kept) :]

    def _count_contents(self, messages: Sequence[Message]) -> int:
        return sum(self.count_text(message.content) for message in messages)

    @abstractmethod
    def _count(self, text: str) -> int:
        """Return the tokens of `text`, which has no lone surrogates."""

    @abstractmethod
    def _beginning(self, text: str, tokens: int) -> int:
        """Return how many whole characters the first `tokens` tokens of `text` cover; 0 for none."""

    @abstractmethod
    def _end(self, text: str, tokens: int) -> int:
        """Return how many whole characters the last `tokens` tokens of `text` cover; 0 for none."""


def _encodable(text: str) -> str:
    """Return `text`, as long, in a form that every tokenizer takes."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)
