"""The common interface of the two protocols of OpenAI-compatible servers: bodies of requests, decoders of answers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from reasond_server.dialects.native_calls import MOST_CHARACTERS, shorten_name
from reasond_server.errors.base import show
from reasond_server.llm.model import ChatRequest, ModelFinish, ReasoningText, Text, ToolSpec
from reasond_server.types import TokenChance, ToolCall, Usage
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reasond_server.dialects.reasoning_marks import MarkReader
    from reasond_server.llm.openai.backend_options import BackendOptions
    from reasond_server.llm.profiles import ModelProfile

_Named = TypeVar("_Named", ToolSpec, ToolCall)


@value
class Body:
    """The JSON object of a call; `warnings` name the parameters that were left out or changed because of the profile.

    `messages` are the messages if they are serialised already; then `data` has no field `messages`.
    """

    data: dict[str, Any]
    messages: Sequence[bytes] = ()
    warnings: tuple[str, ...] = ()


@value
class AnswerEnd:
    """The state of the end: `reason` is None until the server reported why it stopped.

    `usage` is what the server reported (`model_calls` 1, UsageSource.REPORTED), or None. `warnings` name what was read
    against the words of the protocol. `tokens` are those of the text, if the server told their probabilities.
    """

    reason: ModelFinish | None = None
    usage: Usage | None = None
    matched_stop: str | None = None
    warnings: tuple[str, ...] = ()
    tokens: Sequence[TokenChance] = ()


class UpstreamReportError(Exception):
    """The server reported an error inside its stream; `report` is its error object, in any form.

    It never leaves the adapter: `faults.fault_of_report` converts it to one of our errors.
    """

    def __init__(self, report: object) -> None:
        super().__init__("the server reported an error")
        self.report = report


class Decoder(Protocol):
    """Reads one streamed answer, event by event.

    Incomplete content (tool calls, the possible beginning of a tag) is held back, at the latest until the event with
    the finish reason.
    """

    def feed(self, data: bytes) -> Sequence[Text | ReasoningText | ToolCall]:
        """Take the data of one server-sent event (`[DONE]` excluded) and return its pieces.

        Raises:
            UpstreamReportError: the event is an error report of the server.
            ModelProtocolError: the event breaks the protocol.
        """

    def flush(self) -> Sequence[Text | ReasoningText | ToolCall]:
        """Return the text that was held back when the answer ended, and calls that came after its finish reason.

        Incomplete tool calls are dropped.
        """

    @property
    def held_characters(self) -> int:
        """Characters of tool calls received, held back or not; it never decreases, so it shows progress."""

    def find_end(self) -> AnswerEnd:
        """Return what the server reported about the end."""


class WireProtocol(Protocol):
    """One of the two protocols. `path` is relative to the base URL."""

    @property
    def path(self) -> str:
        """Path of calls, such as `chat/completions`."""

    def build_body(self, request: ChatRequest, options: BackendOptions) -> Body:
        """Return the body of `request`, without parameters that the profile of `options` does not support."""

    def build_decoder(self, options: BackendOptions, *, max_tokens: int = 0) -> Decoder:
        """Return a reader for one answer, which was limited to `max_tokens` (0: unknown)."""


def split_content(reader: MarkReader, text: str) -> list[Text | ReasoningText]:
    """Return the next piece of content as text and reasoning; without a text, what was held back at its end."""
    pieces = reader.feed(text) if text else reader.flush()
    return [ReasoningText(text=piece.text) if piece.is_reasoning else Text(text=piece.text) for piece in pieces]


def shorten_names(request: ChatRequest, profile: ModelProfile) -> tuple[ChatRequest, Mapping[str, str]]:
    """Return `request` with names of tools that the server takes, and the names that the shortened ones stand for."""
    names = {tool.name for tool in request.tools}
    names |= {call.name for message in request.messages for call in message.tool_calls}
    short = {name: shorten_name(name) for name in names if len(name) > MOST_CHARACTERS}
    if profile.long_tool_names or not short:
        return request, {}

    def rename(given: Sequence[_Named]) -> Sequence[_Named]:
        return [replace(each, name=short.get(each.name, each.name)) for each in given]

    shortened = replace(
        request,
        tools=rename(request.tools),
        tool_choice=short.get(request.tool_choice, request.tool_choice),
        messages=[
            replace(message, tool_calls=rename(message.tool_calls)) if message.tool_calls else message
            for message in request.messages
        ],
    )
    return shortened, {each: name for name, each in short.items()}


TOOL_CHOICES = frozenset({"auto", "none", "required"})
"""Values of `tool_choice`; any other value is the name of a tool."""


def select_tools(request: ChatRequest, profile: ModelProfile, warnings: list[str]) -> tuple[Sequence[ToolSpec], str]:
    """Return the tools to offer and the tool choice, reduced to what the profile supports."""
    choice = request.tool_choice
    if choice in {"auto", "none"}:
        return request.tools, choice
    if not profile.forced_tool_choice:
        warnings.append(f"tool_choice {show(choice)} became 'auto': the model cannot be forced")
        return request.tools, "auto"
    named = [tool for tool in request.tools if tool.name == choice]
    if named and not profile.named_tool_choice:
        return named, "required"
    return request.tools, choice
