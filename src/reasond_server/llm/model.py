"""The port to language models: the request of a call, the events that it streams, and the counting of its tokens."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

from reasond_server.types import Json, TokenChance, ToolCall, Usage
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from reasond_server.types.usage import Price


LONG_TEXT_CHARACTERS: Final = 16_384
"""Checking, building or counting a longer text would delay the other runs in the same event loop."""

PIECE_CHARACTERS: Final = 4096
"""Most characters that one call of a regular expression reads: no other thread runs meanwhile, about 2 ms."""

CALLERS_TIME: Final = "the caller's deadline"
"""The `limit` in the metadata of a ModelTimeoutError that `ChatRequest.time_left_s` caused."""


def _never() -> bool:
    return False


class Role(StrEnum):
    """The author of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@value
class ToolSpec:
    """A tool that the model may call; `parameters` is a JSON Schema."""

    name: str
    description: str
    parameters: Json


@value
class ImagePart:
    """An image of a message of the user; `tokens` is an upper bound of its share of the prompt, which nobody counts."""

    media_type: str
    base64: str
    tokens: int


@value
class Message:
    """One message of a prompt.

    Messages of the assistant may have its tool calls and its `reasoning`, which is sent back only to
    providers that require it. Messages of a tool have the id of the call that they answer. Messages of the user may
    have images, if the model takes any (`find_image_tokens`).
    """

    role: Role
    content: str
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str = ""
    reasoning: str = ""
    images: Sequence[ImagePart] = ()


@value
class ChatRequest:
    """One call.

    Attributes:
        messages: the prompt.
        max_tokens: most tokens that the model may write.
        temperature: sampling temperature.
        top_p: share of the probability that is sampled from; None leaves it to the provider.
        stop: strings that end the output; they are not part of it.
        is_stop_advice: the strings are only sent to providers that support them; the caller closes the call itself.
        tools: the tools that the model may call.
        tool_choice: "auto", "none", "required" or the name of a tool.
        json_schema: JSON Schema of the answer, which the server is asked to enforce; the messages tell it.
        seed: sampling seed, for providers that support one.
        top_logprobs: most alternatives of each token whose log probabilities are wanted, 0: only those of the tokens
            that are written; None: none. Servers that tell none ignore it (`find_most_logprobs`).
        label: distinguishes equal calls of one run, whichever begins first; not sent to the model.
        time_left_s: most seconds until the answer begins, retries included. The caller who sets it closes the call
            when the time is over, and keeps the text received until then.
        has_enough: returns whether the caller needs no more text. After that only the end of the call matters, for its
            usage. If the end is late, the model may produce a `Finished` itself.
        note_lost: awaited after an attempt that gave no answer but may be billed, with whether it will be repeated. It
            raises an error if no budget covers the repetition.
    """

    messages: Sequence[Message]
    max_tokens: int
    temperature: float = 0.7
    top_p: float | None = None
    stop: Sequence[str] = ()
    is_stop_advice: bool = False
    tools: Sequence[ToolSpec] = ()
    tool_choice: str = "auto"
    json_schema: Json | None = None
    seed: int | None = None
    top_logprobs: int | None = None
    label: str = ""
    time_left_s: float | None = None
    has_enough: Callable[[], bool] = field(default=_never, repr=False, compare=False)
    note_lost: Callable[[bool], Awaitable[None]] | None = field(default=None, repr=False, compare=False)


class ModelFinish(StrEnum):
    """Why the model stopped, in the providers' common words."""

    STOP = "stop"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"
    TOOL_CALLS = "tool_calls"


@value
class Text:
    """A piece of the answer's text."""

    text: str


@value
class ReasoningText:
    """A piece of hidden reasoning, which the provider sends separately from the answer; tags in it are ignored."""

    text: str


@value
class Finished:
    """The last event of a successful call. `usage.model_calls` is 1.

    `warnings` are for the reader of the result, for example that a parameter was left out because the provider does not
    support it. `is_stopped_in_reasoning` is true if the request had stop strings, the model reasoned, and the call
    ended with STOP before the answer began: a stop string may have matched in the reasoning. The same request without
    stop strings may get an answer. `model` is who answered, where several models stand behind one name. `tokens` are
    those of the answer's text, stop strings included, if the request asked for them and the server tells them.
    """

    reason: ModelFinish
    usage: Usage
    matched_stop: str | None = None
    warnings: Sequence[str] = ()
    is_stopped_in_reasoning: bool = False
    model: str = ""
    tokens: Sequence[TokenChance] = ()


ModelEvent = Text | ReasoningText | ToolCall | Finished


class TokenCounter(Protocol):
    """Counts tokens as the model would."""

    @property
    def is_exact(self) -> bool:
        """Whether the counts are the model's own; otherwise they are upper estimates."""

    def count_text(self, text: str) -> int:
        """Return the tokens of `text` alone."""

    def count_prompt(self, messages: Sequence[Message]) -> int:
        """Return the input tokens of a call with `messages`, the template's overhead included."""

    def head(self, text: str, tokens: int) -> str:
        """Return the longest prefix of `text` with at most `tokens` tokens."""

    def tail(self, text: str, tokens: int) -> str:
        """Return the longest suffix of `text` with at most `tokens` tokens."""


class ChatModel(Protocol):
    """A language model. One instance serves many concurrent calls."""

    @property
    def name(self) -> str:
        """Name of the model in results."""

    @property
    def warnings(self) -> Sequence[str]:
        """Warnings for every result of this model; usually empty."""

    @property
    def context_window(self) -> int | None:
        """Most tokens of prompt and output together; None if unknown."""

    @property
    def has_native_tools(self) -> bool:
        """Whether calls may have `tools`; other models find the tools in the prompt and write calls in their text."""

    @property
    def counter(self) -> TokenCounter:
        """Counts this model's tokens."""

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        """Return the server's count of the input tokens of a call with `messages`; None if it does not count."""

    async def aclose(self) -> None:
        """Close connections; the model must not be used afterwards."""

    def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the model; closing the generator frees the model.

        Raises:
            ModelError: one of its subclasses; never after `Finished`.
        """


def find_image_tokens(model: ChatModel) -> int:
    """Return the attribute `image_tokens` of `model`, the most tokens of an image in a prompt; 0: it takes none."""
    return getattr(model, "image_tokens", 0)


def can_enforce_schema(model: ChatModel) -> bool:
    """Return the attribute `enforces_schema` of `model`: whether its server holds answers to a `json_schema`."""
    return getattr(model, "enforces_schema", False)


def find_most_logprobs(model: ChatModel) -> int:
    """Return the attribute `most_logprobs` of `model`: of how many likely tokens it tells the probability; 0: none."""
    return getattr(model, "most_logprobs", 0)


def find_price(model: ChatModel) -> Price | None:
    """Return the attribute `price` of `model`, what its tokens cost; None if nobody said."""
    return getattr(model, "price", None)


Inner = TypeVar("Inner", bound=ChatModel)


class WrappedModel(Generic[Inner]):
    """A model that delegates every call to an inner model. Subclasses override what they change, mostly `stream`."""

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
    def image_tokens(self) -> int:
        """Most tokens of an image; 0: the model takes none."""
        return find_image_tokens(self._model)

    @property
    def enforces_schema(self) -> bool:
        """Whether the model's server enforces a JSON Schema."""
        return can_enforce_schema(self._model)

    @property
    def most_logprobs(self) -> int:
        """Of how many likely tokens the model's server tells the probability in the place of each token; 0: none."""
        return find_most_logprobs(self._model)

    @property
    def price(self) -> Price | None:
        """What tokens of the model cost, if that is known."""
        return find_price(self._model)

    @property
    def counter(self) -> TokenCounter:
        """Counter of the model."""
        return self._model.counter

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        """Return the count of the model's server, None if it does not count."""
        return await self._model.count_exactly(messages)

    async def aclose(self) -> None:
        """Close the model."""
        await self._model.aclose()

    def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        """Call the model. Raises the errors of the inner model."""
        return self._model.stream(request)
