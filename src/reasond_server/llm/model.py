"""The port to language models: what a call is given, what it streams back, how its tokens are counted."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.types import Usage


class Role(StrEnum):
    """Who speaks in a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a prompt."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """One call. `max_tokens` bounds what the model writes; `stop` are strings that end it, not returned."""

    messages: Sequence[Message]
    max_tokens: int
    temperature: float = 0.7
    stop: Sequence[str] = ()


class ModelFinish(StrEnum):
    """Why the model stopped, in the providers' common words."""

    STOP = "stop"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Answer text, as it comes."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningText:
    """Hidden reasoning that the provider shows apart from the answer; tags in it do not count."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The last event of a call that ended well. `usage.model_calls` is 1."""

    reason: ModelFinish
    usage: Usage
    matched_stop: str | None = None


ModelEvent = Text | ReasoningText | Finished


class TokenCounter(Protocol):
    """Counts tokens as the model would."""

    @property
    def is_exact(self) -> bool:
        """Whether the counts are the model's own; otherwise they are upper estimates."""
        ...

    def count_text(self, text: str) -> int:
        """Return the tokens of `text` alone."""
        ...

    def count_prompt(self, messages: Sequence[Message]) -> int:
        """Return the input tokens of a call with `messages`, the template's overhead included."""
        ...

    def head(self, text: str, tokens: int) -> str:
        """Return the longest beginning of `text` that has at most `tokens` tokens."""
        ...

    def tail(self, text: str, tokens: int) -> str:
        """Return the longest end of `text` that has at most `tokens` tokens."""
        ...


class ChatModel(Protocol):
    """A language model. One instance serves many calls at once."""

    @property
    def name(self) -> str:
        """Name of the model, as results report it."""
        ...

    @property
    def warnings(self) -> Sequence[str]:
        """What every result of this model must tell its reader; usually empty."""
        ...

    @property
    def context_window(self) -> int | None:
        """Most tokens of prompt and output together; None if unknown."""
        ...

    @property
    def counter(self) -> TokenCounter:
        """Counts this model's tokens."""
        ...

    def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the model; closing the generator frees the model.

        Raises:
            ModelError: as its subclasses say; nothing after `Finished`.
        """
        ...
