"""The port to language models: what a call is given, what it streams back, how its tokens are counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from reasond_server.types import ToolCall
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from reasond_server.types import Json, Usage


LONG_TEXT_CHARACTERS = 50_000
"""Checking, building or counting a longer text takes long enough to be felt by other runs in the same event loop."""

CALLERS_TIME: Final = "the caller's deadline"
"""What a ModelTimeoutError names as its `limit` where `ChatRequest.time_left_s` was the limit."""


def _never() -> bool:
    return False


class Role(StrEnum):
    """Who speaks in a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSpec:
    """A tool that the model may call; `parameters` is a JSON Schema."""

    name: str
    description: str
    parameters: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a prompt.

    Messages of the assistant may carry the calls it made and its `reasoning`, which is sent back only to
    providers that want it. Messages of a tool name the call that they answer.

    A history is sent again with every call, so a message keeps the JSON in which it was sent. `kept_form` is empty
    until `keep_form` and is not part of the message's value.
    """

    role: Role
    content: str
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str = ""
    reasoning: str = ""
    kept_form: bytes = field(default=b"", init=False, repr=False, compare=False)

    def keep_form(self, form: bytes) -> None:
        """Keep the JSON in which this message is sent."""
        object.__setattr__(self, "kept_form", form)


@value
class ChatRequest:
    """One call.

    Attributes:
        messages: the prompt.
        max_tokens: bounds what the model writes.
        temperature: of the sampling.
        stop: strings that end what the model writes; they are not returned.
        is_stop_advice: the caller closes the call itself, and the strings only go to providers that take them.
        tools: what the model may call.
        tool_choice: "auto", "none", "required" or the name of a tool.
        json_schema: the form of the answer.
        seed: of the sampling, for providers that take one.
        label: distinguishes equal calls of one run, whichever begins first; not sent to the model.
        time_left_s: bounds the seconds until the answer begins, retries included. Who set it closes the call when the
            time is over, and has what came until then.
        has_enough: whether the caller wants no more of the text. What comes then is the end of the call, for its usage,
            and a model that keeps its caller waiting for that may say itself how the call ended.
    """

    messages: Sequence[Message]
    max_tokens: int
    temperature: float = 0.7
    stop: Sequence[str] = ()
    is_stop_advice: bool = False
    tools: Sequence[ToolSpec] = ()
    tool_choice: str = "auto"
    json_schema: Json | None = None
    seed: int | None = None
    label: str = ""
    time_left_s: float | None = None
    has_enough: Callable[[], bool] = field(default=_never, repr=False, compare=False)


class ModelFinish(StrEnum):
    """Why the model stopped, in the providers' common words."""

    STOP = "stop"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    TOOL_CALLS = "tool_calls"


@value
class Text:
    """Answer text, as it comes."""

    text: str


@value
class ReasoningText:
    """Hidden reasoning that the provider shows apart from the answer; tags in it do not count."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The last event of a call that ended well. `usage.model_calls` is 1.

    `warnings` tell what the result's reader should know of this call, such as a parameter that the provider
    does not take and that was therefore left out. `is_stopped_in_reasoning` tells that the model was sent stop strings,
    reasoned, and ended with STOP before its answer began: a stop string may have ended it there, and without stop
    strings the same request may be answered.
    """

    reason: ModelFinish
    usage: Usage
    matched_stop: str | None = None
    warnings: Sequence[str] = ()
    is_stopped_in_reasoning: bool = False


ModelEvent = Text | ReasoningText | ToolCall | Finished


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
    def has_native_tools(self) -> bool:
        """Whether calls may carry `tools`; other models are told of tools in the prompt and call them in their text."""
        ...

    @property
    def counter(self) -> TokenCounter:
        """Counts this model's tokens."""
        ...

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        """Return the input tokens of a call with `messages` as the server counts them; None if it does not say."""
        ...

    async def aclose(self) -> None:
        """Close connections; nothing is called afterwards."""
        ...

    def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the model; closing the generator frees the model.

        Raises:
            ModelError: as its subclasses say; nothing after `Finished`.
        """
        ...


Inner = TypeVar("Inner", bound=ChatModel)


class WrappedModel(Generic[Inner]):
    """A model that passes every call on to the model inside. Subclasses override what they change, mostly `stream`."""

    def __init__(self, *, model: Inner) -> None:
        self._model = model

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._model.name

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings of the model."""
        return self._model.warnings

    @property
    def context_window(self) -> int | None:
        """Window of the model in tokens, if known."""
        return self._model.context_window

    @property
    def has_native_tools(self) -> bool:
        """Whether the model takes tools."""
        return self._model.has_native_tools

    @property
    def counter(self) -> TokenCounter:
        """Counter of the model."""
        return self._model.counter

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        """Return what the model's server counts."""
        return await self._model.count_exactly(messages)

    async def aclose(self) -> None:
        """Close the model."""
        await self._model.aclose()

    def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the model. Raises as it does."""
        return self._model.stream(request)
