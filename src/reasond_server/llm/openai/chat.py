"""Chat Completions, which every server and gateway supports: bodies follow the profile, answers are read leniently."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reasond_server.dialects.finish_reasons import FinishKind, choose_worst, find_known_finish, read_finish
from reasond_server.llm.model import Message, ModelFinish, ReasoningText, Role, Text
from reasond_server.llm.openai.json_values import is_object, parse_object, write_data_url, write_texts
from reasond_server.llm.openai.protocol import (
    TOOL_CHOICES,
    AnswerEnd,
    Body,
    ThinkSplitter,
    UpstreamReportError,
    select_tools,
)
from reasond_server.llm.openai.usage_reports import read_usage
from reasond_server.llm.profiles import SchemaLevel
from reasond_server.types import ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reasond_server.llm.model import ChatRequest
    from reasond_server.llm.openai.backend_options import BackendOptions
    from reasond_server.llm.openai.protocol import Decoder
    from reasond_server.llm.profiles import ModelProfile
    from reasond_server.types import Usage


_REASONING_FIELDS = ("reasoning", "reasoning_content")
_STOP_FIELDS = ("stop_reason", "matched_stop", "stop_sequence", "stopping_word")
_NO_WORDS = frozenset({"stop", "end_turn", "eos", "length", "tool_calls", "max_tokens", "stop_sequence"})

_Piece = Text | ReasoningText | ToolCall


class ChatCompletions:
    """The `WireProtocol` of Chat Completions."""

    @property
    def path(self) -> str:
        """Path of calls, relative to the base URL."""
        return "chat/completions"

    def build_body(self, request: ChatRequest, options: BackendOptions) -> Body:
        """Return the body of `request`."""
        return build_chat_body(request, options)

    def build_decoder(self, options: BackendOptions, *, max_tokens: int = 0) -> Decoder:  # noqa: ARG002 - servers report the limit
        """Return a reader for one answer."""
        return ChatDecoder(profile=options.profile)


@dataclass(slots=True)
class _OpenCall:
    """A tool call whose arguments are incomplete."""

    call_id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class ChatDecoder:
    """Reads the chunks of one answer; only the first choice is used.

    Reasoning is read from the profile's fields, from the common fields, and from a `<think>` at the beginning of
    the content. Usage is read from any place where servers send it, and the last one counts. A refusal is text, and the
    answer ends with ModelFinish.CONTENT_FILTER.
    """

    def __init__(self, *, profile: ModelProfile) -> None:
        self._reasoning_fields = tuple(dict.fromkeys((*profile.reasoning_fields, *_REASONING_FIELDS)))
        self._stop_fields = tuple(dict.fromkeys((*profile.stop_match_fields, *_STOP_FIELDS)))
        self.held_characters = 0
        self._thinking = ThinkSplitter()
        self._calls: dict[int, list[_OpenCall]] = {}
        self._has_called = False
        self._is_refusal = False
        self._kinds: list[FinishKind] = []
        self._warnings: list[str] = []
        self._usage: Usage | None = None
        self._matched_stop: str | None = None

    def feed(self, data: bytes) -> Sequence[_Piece]:
        """Take the data of one event and return its pieces."""
        chunk = parse_object(data)
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
                    self._read_choice(choice, pieces)
        return pieces

    def find_end(self) -> AnswerEnd:
        """Return what the server reported about the end."""
        return AnswerEnd(
            reason=self._find_reason(),
            usage=self._usage,
            matched_stop=self._matched_stop,
            warnings=tuple(dict.fromkeys(self._warnings)),
        )

    def _find_reason(self) -> ModelFinish | None:
        """Return the worst reason that the server told; None if it told none."""
        if not self._kinds:
            return None
        if self._is_refusal:
            return ModelFinish.CONTENT_FILTER
        calls = [FinishKind.TOOL_CALLS] if self._has_called else []
        return ModelFinish(choose_worst([*self._kinds, *calls]).value)

    def flush(self) -> Sequence[Text | ReasoningText]:
        """Return the text that was held back."""
        return self._thinking.flush()

    def _note_usage(self, reported: object) -> None:
        self._usage = read_usage(reported) or self._usage

    def _read_choice(self, choice: dict[str, Any], pieces: list[_Piece]) -> None:
        """Add the pieces of one choice. Not a generator, like `_read_delta`, because both run for every token."""
        usage = choice.get("usage")
        if usage is not None:
            self._note_usage(usage)
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = choice.get("message")
        if isinstance(delta, dict):
            self._read_delta(delta, pieces)
        finish = choice.get("finish_reason")
        if finish is not None and (told := read_finish(finish)) is not None:
            self._end(*told, choice, pieces)

    def _read_delta(self, delta: dict[str, Any], pieces: list[_Piece]) -> None:
        for name in self._reasoning_fields:
            thought = delta.get(name)
            if thought and isinstance(thought, str):
                pieces.append(ReasoningText(text=thought))
                break
        if text := _join_text(delta.get("content")):
            pieces.extend(self._thinking.feed(text))
        refusal = delta.get("refusal")
        if refusal and isinstance(refusal, str):
            self._is_refusal = True
            pieces.append(Text(text=refusal))
        calls = delta.get("tool_calls")
        if isinstance(calls, list):
            for position, call in enumerate(calls):
                self._note_call(call, position)

    def _note_call(self, call: object, position: int) -> None:
        """Record a piece of a tool call; servers that send complete calls may omit the index."""
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
            self.held_characters += len(name)
            opened.name = name
        if isinstance(arguments, str):
            opened.arguments.append(arguments)
            self.held_characters += len(arguments)

    def _open_call(self, at: int, call_id: object, *, is_named: bool) -> _OpenCall:
        """Return the call that a piece belongs to. Some gateways send all calls with one index and different ids."""
        opened = self._calls.setdefault(at, [])
        if not opened or (is_named and call_id and opened[-1].name and call_id != opened[-1].call_id):
            opened.append(_OpenCall())
        return opened[-1]

    def _end(self, kind: FinishKind, warning: str, choice: dict[str, Any], pieces: list[_Piece]) -> None:
        if kind is FinishKind.FAILED:
            raise UpstreamReportError(choice)
        if warning:
            self._warnings.append(warning)
        native = find_known_finish(choice.get("native_finish_reason"))
        self._kinds += [kind] if native in {None, FinishKind.FAILED} else [kind, native]
        pieces.extend(self._thinking.flush())
        kind = choose_worst(self._kinds)
        if self._calls:
            pieces.extend(self._take_whole_calls(may_be_cut=kind in {FinishKind.LENGTH, FinishKind.CONTENT_FILTER}))
        for name in self._stop_fields:
            matched = choice.get(name)
            if matched and isinstance(matched, str) and matched not in _NO_WORDS:
                self._matched_stop = matched
                break

    def _take_whole_calls(self, *, may_be_cut: bool) -> Iterator[ToolCall]:
        """Yield the calls; if the answer was cut, only those with complete arguments."""
        calls, self._calls = self._calls, {}
        for at, call in enumerate(call for _, several in sorted(calls.items()) for call in several):
            arguments = "".join(call.arguments)
            if call.name and not (may_be_cut and not is_object(arguments)):
                self._has_called = True
                yield ToolCall(call_id=call.call_id or f"call_{at}", name=call.name, arguments_json=arguments or "{}")


def _join_text(content: object) -> str:
    """Return the text of a content, which some gateways send as a list of parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "".join(part for part in parts if isinstance(part, str))
    return ""


_DEFAULT_TEMPERATURE = 1.0
_SCHEMA_NAME = "answer"


def build_chat_body(request: ChatRequest, options: BackendOptions) -> Body:
    """Return the body of a call. It always requests a stream and always limits the tokens.

    A parameter that the profile does not support is left out, and a warning names it. If the server does not enforce a
    JSON Schema or does not show it to the model, a system message has the schema.
    """
    profile = options.profile
    warnings: list[str] = []
    data: dict[str, Any] = {
        "model": options.model,
        "stream": True,
        profile.limit_field.value: request.max_tokens,
    }
    if profile.stream_usage:
        data["stream_options"] = {"include_usage": True}
    data |= _build_sampling(request, profile, warnings)
    if request.stop:
        data |= _build_stops(request, profile, warnings)
    if request.tools:
        data |= _build_tools(request, profile, warnings)
    if request.json_schema is not None:
        data |= _build_schema(request, profile, warnings)
    messages = [write_texts(each) for each in build_messages(request, options)]
    return Body(data=data, messages=messages, warnings=tuple(warnings))


def build_messages(request: ChatRequest, options: BackendOptions) -> list[dict[str, Any]]:
    """Return the messages of a call in their wire form."""
    return [_message_to_json(message, options.profile) for message in _arrange_messages(request, options.profile)]


def _arrange_messages(request: ChatRequest, profile: ModelProfile) -> Sequence[Message]:
    if request.json_schema is None and profile.several_system_messages:
        return request.messages
    messages = list(request.messages)
    if request.json_schema is not None and profile.json_schema is not SchemaLevel.STRICT:
        schema = json.dumps(request.json_schema, ensure_ascii=False)
        told = f"Answer with one JSON value that satisfies this JSON Schema, and with nothing else:\n{schema}"
        at = next((at for at, message in enumerate(messages) if message.role is not Role.SYSTEM), len(messages))
        messages.insert(at, Message(role=Role.SYSTEM, content=told))
    if not profile.several_system_messages:
        messages = _merge_system(messages)
    return messages


def _merge_system(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with all system messages merged into one at the beginning."""
    system = [message.content for message in messages if message.role is Role.SYSTEM]
    others = [message for message in messages if message.role is not Role.SYSTEM]
    return [Message(role=Role.SYSTEM, content="\n\n".join(system)), *others] if system else others


def _message_to_json(message: Message, profile: ModelProfile) -> dict[str, Any]:
    # An f-string is four times as fast as `.value` of an enum, and histories have many messages.
    data: dict[str, Any] = {"role": f"{message.role}", "content": message.content}
    if message.images:
        pictures = [{"type": "image_url", "image_url": {"url": write_data_url(image)}} for image in message.images]
        data["content"] = [{"type": "text", "text": message.content}, *pictures]
    if message.tool_calls:
        data["tool_calls"] = [_call_to_json(call) for call in message.tool_calls]
        data["content"] = message.content or None
    if message.role is Role.TOOL:
        data["tool_call_id"] = message.tool_call_id
    if message.reasoning and profile.sends_reasoning_back and profile.reasoning_fields:
        data[profile.reasoning_fields[0]] = message.reasoning
    return data


def _call_to_json(call: ToolCall) -> dict[str, Any]:
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments_json},
    }


def _build_sampling(request: ChatRequest, profile: ModelProfile, warnings: list[str]) -> dict[str, Any]:
    wanted: dict[str, Any] = {"temperature": request.temperature}
    if request.seed is not None:
        wanted["seed"] = request.seed
    if request.top_p is not None:
        wanted["top_p"] = request.top_p
    if profile.sampling:
        return wanted
    if request.temperature == _DEFAULT_TEMPERATURE:
        del wanted["temperature"]
    warnings.extend(f"{name} was left out: the model does not take it" for name in wanted)
    return {}


def _build_stops(request: ChatRequest, profile: ModelProfile, warnings: list[str]) -> dict[str, Any]:
    wanted = list(dict.fromkeys([word for word in request.stop if word]))
    sent = wanted[: profile.max_stops]
    if len(sent) < len(wanted) and not request.is_stop_advice:
        warnings.append(
            f"stop was shortened to {len(sent)} of {len(wanted)} strings, which is what the model takes; "
            "the others end the answer on our side"
        )
    return {"stop": sent} if sent else {}


def _build_tools(request: ChatRequest, profile: ModelProfile, warnings: list[str]) -> dict[str, Any]:
    if not profile.tools:
        warnings.append("tools were left out: the model does not take them")
        return {}
    offered, choice = select_tools(request, profile, warnings)
    tools = [
        {
            "type": "function",
            "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
        }
        for tool in offered
    ]
    named = {"type": "function", "function": {"name": choice}}
    return {"tools": tools, "tool_choice": choice if choice in TOOL_CHOICES else named}


def _build_schema(request: ChatRequest, profile: ModelProfile, warnings: list[str]) -> dict[str, Any]:
    level = profile.json_schema
    if level in {SchemaLevel.STRICT, SchemaLevel.GUIDED}:
        wanted = {"name": _SCHEMA_NAME, "schema": request.json_schema, "strict": True}
        return {"response_format": {"type": "json_schema", "json_schema": wanted}}
    warnings.append("json_schema is told to the model but not enforced by it")
    return {"response_format": {"type": "json_object"}} if level is SchemaLevel.OBJECT else {}
