"""The two ways of speaking to an OpenAI-compatible server, behind one shape: what is sent, and how answers are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reasond_server.llm.model import ChatRequest, ModelFinish, ReasoningText, Text
    from reasond_server.llm.openai.options import BackendOptions
    from reasond_server.types import ToolCall, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Body:
    """The JSON object of a call; `warnings` name the parameters that the profile made us leave out or alter.

    `messages` are those of its field of that name, each as JSON, where they were written already; `data` lacks it then.
    """

    data: dict[str, Any]
    messages: Sequence[bytes] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What is known of the end so far: `reason` is None until the server told why it stopped.

    `usage` is as the server reported it (`model_calls` 1, UsageSource.REPORTED), None if it did not.
    """

    reason: ModelFinish | None = None
    usage: Usage | None = None
    matched_stop: str | None = None


class UpstreamReportError(Exception):
    """The server tells an error inside its stream; `report` is its error object, whatever its form.

    It never leaves the adapter: `faults.reported` makes an error of ours of it, which depends on whether tokens came.
    """

    def __init__(self, report: object) -> None:
        super().__init__("the server reported an error")
        self.report = report


class Decoder(Protocol):
    """Reads one streamed answer, event by event.

    What is held back until it is complete (tool calls, a tag that may begin) comes with the event that tells the end.
    """

    def feed(self, data: bytes) -> Sequence[Text | ReasoningText | ToolCall]:
        """Take the data of one server-sent event (`[DONE]` excluded) and return what came with it.

        Raises:
            UpstreamReportError: the event is an error that the server tells.
            ModelProtocolError: the event is not what the protocol says.
        """
        ...

    def rest(self) -> Sequence[Text | ReasoningText]:
        """Return the text that was held back, where the answer broke off; calls that are not whole are dropped."""
        ...

    @property
    def held_characters(self) -> int:
        """How much of tool calls came that is held back; it only grows, and so tells that content comes."""
        ...

    def ending(self) -> Ending:
        """Return what the server told of the end."""
        ...


class WireProtocol(Protocol):
    """One of the provider interfaces. `path` is relative to the base URL."""

    @property
    def path(self) -> str:
        """Where calls go, such as `chat/completions`."""
        ...

    def body(self, request: ChatRequest, options: BackendOptions) -> Body:
        """Return what to send for `request`, as far as the profile of `options` allows."""
        ...

    def decoder(self, options: BackendOptions, *, max_tokens: int = 0) -> Decoder:
        """Return a reader for one answer, which was limited to `max_tokens` (0: the reader need not know)."""
        ...
