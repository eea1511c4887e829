"""Chat Completions, the interface that every server and gateway has: sent by profile, read leniently."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from reasond_server.llm.model import ModelFinish, ReasoningText, Text
from reasond_server.llm.openai.chat_request import body_of
from reasond_server.llm.openai.json_values import is_object, json_object
from reasond_server.llm.openai.protocol import Ending, UpstreamReportError
from reasond_server.llm.openai.thinking import ThinkSplitter
from reasond_server.llm.openai.usage import usage_of
from reasond_server.types import ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reasond_server.llm.model import ChatRequest
    from reasond_server.llm.openai.options import BackendOptions
    from reasond_server.llm.openai.protocol import Body, Decoder
    from reasond_server.llm.profiles import ModelProfile
    from reasond_server.types import Usage

_REASONING_FIELDS = ("reasoning", "reasoning_content")
_STOP_FIELDS = ("stop_reason", "matched_stop", "stop_sequence", "stopping_word")
_FINISHES = {
    "length": ModelFinish.LENGTH,
    "max_tokens": ModelFinish.LENGTH,
    "model_length": ModelFinish.LENGTH,
    "content_filter": ModelFinish.CONTENT_FILTER,
    "safety": ModelFinish.CONTENT_FILTER,
    "tool_calls": ModelFinish.TOOL_CALLS,
    "tool_use": ModelFinish.TOOL_CALLS,
    "function_call": ModelFinish.TOOL_CALLS,
}
_FAILURES = frozenset({"error", "abort", "aborted", "cancelled", "insufficient_system_resource"})
_NO_WORDS = frozenset({"stop", "end_turn", "eos", "length", "tool_calls", "max_tokens", "stop_sequence"})

_Piece = Text | ReasoningText | ToolCall


class ChatCompletions:
    """The `WireProtocol` of Chat Completions."""

    @property
    def path(self) -> str:
        """Where calls go."""
        return "chat/completions"

    def body(self, request: ChatRequest, options: BackendOptions) -> Body:
        """Return what to send for `request`."""
        return body_of(request, options)

    def decoder(self, options: BackendOptions, *, max_tokens: int = 0) -> Decoder:  # noqa: ARG002 - servers tell of it
        """Return a reader for one answer."""
        return ChatDecoder(profile=options.profile)


@dataclass(slots=True)
class _OpenCall:
    """A tool call whose arguments still come."""

    call_id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class ChatDecoder:
    """Reads the chunks of one answer; of several choices only the first.

    Reasoning is taken from the profile's fields and from the common ones, and from a `<think>` at the beginning of
    the content. Usage is taken wherever it stands; the last one counts. A refusal is text, ended by
    ModelFinish.CONTENT_FILTER.
    """

    def __init__(self, *, profile: ModelProfile) -> None:
        self._reasoning_fields = _merged(tuple(profile.reasoning_fields), _REASONING_FIELDS)
        self._stop_fields = _merged(tuple(profile.stop_match_fields), _STOP_FIELDS)
        self._called_characters = 0
        self._thinking = ThinkSplitter()
        self._calls: dict[int, list[_OpenCall]] = {}
        self._has_called = False
        self._is_refusal = False
        self._reason: ModelFinish | None = None
        self._usage: Usage | None = None
        self._matched_stop: str | None = None

    def feed(self, data: bytes) -> Sequence[_Piece]:
        """Take the data of one event and return what came with it."""
        chunk = json_object(data)
        if chunk.get("error"):
            raise UpstreamReportError(chunk)
        usage = chunk.get("usage")
        if usage is not None:
            self._note_usage(usage)
        pieces: list[_Piece] = []
        choices = chunk.get("choices")
        if isinstance(choices, list):
            for choice in choices:
                if isinstance(choice, dict) and not choice.get("index"):
                    self._choice(choice, pieces)
        return pieces

    def ending(self) -> Ending:
        """Return what the server told of the end."""
        return Ending(reason=self._reason, usage=self._usage, matched_stop=self._matched_stop)

    def rest(self) -> Sequence[Text | ReasoningText]:
        """Return the text that was held back."""
        return self._thinking.flush()

    @property
    def held_characters(self) -> int:
        """How much of tool calls came so far."""
        return self._called_characters

    def _note_usage(self, reported: object) -> None:
        self._usage = usage_of(reported) or self._usage

    def _choice(self, choice: dict[str, Any], pieces: list[_Piece]) -> None:
        """Add what one choice brings; this and the next run for every token, so they make no generators."""
        usage = choice.get("usage")
        if usage is not None:
            self._note_usage(usage)
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = choice.get("message")
        if isinstance(delta, dict) and delta:
            self._delta(delta, pieces)
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish:
            if finish.lower() in _FAILURES:
                raise UpstreamReportError(choice)
            self._ended(finish.lower(), choice, pieces)

    def _delta(self, delta: dict[str, Any], pieces: list[_Piece]) -> None:
        content = delta.get("content")
        if len(delta) > 1 or content is None:
            for name in self._reasoning_fields:
                thought = delta.get(name)
                if thought and isinstance(thought, str):
                    pieces.append(ReasoningText(text=thought))
                    break
        if content and (text := _content(content)):
            pieces.extend(self._thinking.feed(text))
        if content is not None and len(delta) == 1:
            return
        refusal = delta.get("refusal")
        if refusal and isinstance(refusal, str):
            self._is_refusal = True
            pieces.append(Text(text=refusal))
        calls = delta.get("tool_calls")
        if isinstance(calls, list):
            for position, call in enumerate(calls):
                self._called(call, position)

    def _called(self, call: object, position: int) -> None:
        """Note a piece of a tool call; servers that send calls whole may leave out the index."""
        if not isinstance(call, dict):
            return
        index = call.get("index")
        at = index if isinstance(index, int) else position
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        name, arguments, call_id = function.get("name"), function.get("arguments"), call.get("id")
        opened = self._open_call(at, call_id, is_named=bool(name))
        if isinstance(call_id, str) and call_id:
            opened.call_id = call_id
        if isinstance(name, str) and name:
            self._called_characters += len(name)
            opened.name = name
        if isinstance(arguments, str):
            opened.arguments.append(arguments)
            self._called_characters += len(arguments)

    def _open_call(self, at: int, call_id: object, *, is_named: bool) -> _OpenCall:
        """Return the call that a piece belongs to: some gateways give all calls one index, but ids of their own."""
        opened = self._calls.setdefault(at, [])
        if not opened or (is_named and call_id and opened[-1].name and call_id != opened[-1].call_id):
            opened.append(_OpenCall())
        return opened[-1]

    def _ended(self, finish: str, choice: dict[str, Any], pieces: list[_Piece]) -> None:
        pieces.extend(self._thinking.flush())
        reason = _FINISHES.get(finish, ModelFinish.STOP)
        if self._calls:
            pieces.extend(self._whole_calls(may_be_cut=reason in {ModelFinish.LENGTH, ModelFinish.CONTENT_FILTER}))
        if reason is ModelFinish.STOP and self._has_called:
            reason = ModelFinish.TOOL_CALLS
        self._reason = ModelFinish.CONTENT_FILTER if self._is_refusal else reason
        for name in self._stop_fields:
            matched = choice.get(name)
            if isinstance(matched, str) and matched and matched not in _NO_WORDS:
                self._matched_stop = matched
                break

    def _whole_calls(self, *, may_be_cut: bool) -> Iterator[ToolCall]:
        """Yield the calls; of an answer that was cut, those whose arguments are whole."""
        calls, self._calls = self._calls, {}
        for at, call in enumerate(call for _, several in sorted(calls.items()) for call in several):
            arguments = "".join(call.arguments)
            if call.name and not (may_be_cut and not is_object(arguments)):
                self._has_called = True
                yield ToolCall(call_id=call.call_id or f"call_{at}", name=call.name, arguments_json=arguments or "{}")


@lru_cache(maxsize=64)
def _merged(first: tuple[str, ...], then: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *then)))


def _content(content: object) -> str:
    """Return the text of a content, which some gateways send in parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(part for part in parts if isinstance(part, str))
    return ""
