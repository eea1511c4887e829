"""Chat Completions, which every server and gateway supports: bodies follow the profile, answers are read leniently."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeAlias

from reasond_server.dialects.native_calls import NativeCalls, read_failed_call, write_call
from reasond_server.dialects.reasoning_marks import FIELDS, MarkReader, read_content, read_fields
from reasond_server.dialects.stream_forms import (
    FinishKind,
    choose_worst,
    find_known_finish,
    is_error_report,
    is_filtered,
    read_finish,
    read_logprobs,
)
from reasond_server.dialects.usage_forms import find_usages, merge_reports, read_report
from reasond_server.llm.model import ChatRequest, Message, ModelFinish, ReasoningText, Role, Text
from reasond_server.llm.openai.json_values import parse_json, parse_object, write_data_url, write_texts
from reasond_server.llm.openai.protocol import (
    TOOL_CHOICES,
    AnswerEnd,
    Body,
    UpstreamReportError,
    select_tools,
    split_content,
)
from reasond_server.llm.openai.usage_reports import build_usage
from reasond_server.llm.profiles import ModelProfile, SchemaLevel

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reasond_server.llm.openai.backend_options import BackendOptions
    from reasond_server.llm.openai.protocol import Decoder
    from reasond_server.types import TokenChance, ToolCall


_NO_CHUNKS = frozenset({b"", b"null", b'""', b"{}"})
_FIRST = (None, 0, "0")
_THOUGHT_TAG = re.compile(r"</?thought>")
_INVENTED = "The model went on with a message of another speaker, which was not read."
_STOP_FIELDS = ("stop_reason", "matched_stop", "stop_sequence", "stopping_word")
_NO_WORDS = frozenset({"stop", "end_turn", "eos", "length", "tool_calls", "max_tokens", "stop_sequence"})

_Piece: TypeAlias = "Text | ReasoningText | ToolCall"


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


class ChatDecoder:
    """Reads the chunks of one answer; only the first choice is used.

    What gateways send beside the standard is read by the tables of `dialects`: reasoning from the profile's members,
    from others and from marks in the content, calls and usage in any of their forms. A refusal is text, and the answer
    ends with ModelFinish.CONTENT_FILTER.
    """

    def __init__(self, *, profile: ModelProfile) -> None:
        self._reasoning_fields = tuple(dict.fromkeys((*profile.reasoning_fields, *FIELDS)))
        self._stop_fields = tuple(dict.fromkeys((*profile.stop_match_fields, *_STOP_FIELDS)))
        self._marks = MarkReader()
        self._calls = NativeCalls()
        self._is_refusal = False
        self._kinds: list[FinishKind] = []
        self._warnings: list[str] = []
        self._report: Mapping[str, Any] = {}
        self._matched_stop: str | None = None
        self._content_characters = 0
        self._tokens: list[TokenChance] = []

    @property
    def held_characters(self) -> int:
        """Characters of tool calls received."""
        return self._calls.characters

    def feed(self, data: bytes) -> Sequence[_Piece]:
        """Take the data of one event and return its pieces; `null` and nothing are no chunk."""
        if data in _NO_CHUNKS:
            return ()
        chunks = parse_json(data) if data[:1] == b"[" else parse_object(data)
        pieces: list[_Piece] = []
        for chunk in chunks if isinstance(chunks, list) else (chunks,):
            if isinstance(chunk, dict):
                self._read_chunk(chunk, pieces)
        return pieces

    def _read_chunk(self, chunk: dict[str, Any], pieces: list[_Piece]) -> None:
        choices = chunk.get("choices")
        if (failed := read_failed_call(chunk.get("error"))) is not None:
            choices = [failed]
        elif chunk.get("error") or (not choices and is_error_report(chunk)):
            raise UpstreamReportError(chunk)
        for report in find_usages(chunk):
            self._report = merge_reports(self._report, report)
            if not (choices or self._kinds) and self._calls.are_whole:
                # The usage of all stands last; some never say that they ended for calls (earendil-works/pi#6226).
                self._kinds.append(FinishKind.TOOL_CALLS)
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("index") in _FIRST:
                self._read_choice(choice, pieces)

    def find_end(self) -> AnswerEnd:
        """Return what the server reported about the end."""
        report = read_report(self._report)
        invented = (_INVENTED,) if self._marks.has_invented else ()
        doubts = report.doubts if report is not None else ()
        return AnswerEnd(
            reason=self._find_reason(),
            usage=None if report is None else build_usage(report),
            matched_stop=self._matched_stop,
            warnings=tuple(dict.fromkeys((*self._warnings, *invented, *doubts))),
            tokens=tuple(self._tokens),
        )

    def _find_reason(self) -> ModelFinish | None:
        """Return the worst reason that the server told; None if it told none."""
        if not self._kinds:
            return None
        if self._is_refusal:
            return ModelFinish.CONTENT_FILTER
        calls = [FinishKind.TOOL_CALLS] if self._calls.has_called else []
        return ModelFinish(choose_worst([*self._kinds, *calls]).value)

    def flush(self) -> Sequence[_Piece]:
        """Return the text that was held back, and calls that came after the finish reason."""
        return [*split_content(self._marks, ""), *(self._take_calls() if self._kinds else ())]

    def _read_choice(self, choice: dict[str, Any], pieces: list[_Piece]) -> None:
        """Add the pieces of one choice. Not a generator, like `_read_delta`, because both run for every token."""
        if choice.get("error"):
            raise UpstreamReportError(choice)
        if choice.get("usage") is not None:
            self._report = merge_reports(self._report, choice["usage"])
        if (found := choice.get("logprobs")) is not None:
            self._tokens += read_logprobs(found)
        delta = choice.get("delta")
        if isinstance(delta, dict):
            self._read_delta(delta, pieces)
        elif isinstance(message := choice.get("message"), dict):
            # Some gateways end their stream with the whole message once more.
            self._read_delta(message, pieces, has_content=not self._content_characters)
        elif isinstance(text := choice.get("text"), str) and text:
            pieces.extend(split_content(self._marks, text))
        finish = choice.get("finish_reason")
        if finish is not None and (found := read_finish(finish)) is not None:
            self._end(*found, choice, pieces)

    def _read_delta(self, delta: dict[str, Any], pieces: list[_Piece], *, has_content: bool = True) -> None:
        thought = read_fields(delta, self._reasoning_fields)
        if thought and has_content:
            pieces.append(ReasoningText(text=thought))
        content = delta.get("content")
        if content and has_content:
            self._read_content(content, pieces, is_thought=_is_thought(delta))
        refusal = delta.get("refusal")
        if refusal and isinstance(refusal, str):
            self._is_refusal = True
            pieces.append(Text(text=refusal))
        calls = delta.get("tool_calls")
        if calls:
            for position, call in enumerate(calls if isinstance(calls, list) else [calls]):
                self._calls.add(call, position)
        if isinstance(called := delta.get("function_call"), dict):
            self._calls.add(called, 0)

    def _read_content(self, content: object, pieces: list[_Piece], *, is_thought: bool) -> None:
        for position, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, dict) and part.get("type") == "tool_use":
                self._calls.add(part, position)
        is_number = isinstance(content, int | float) and not isinstance(content, bool)
        for piece in read_content(f"{content}" if is_number else content):
            self._content_characters += len(piece.text)
            if piece.is_reasoning or is_thought:
                thought = _THOUGHT_TAG.sub("", piece.text) if is_thought else piece.text
                if thought:
                    pieces.append(ReasoningText(text=thought))
            elif piece.text:
                pieces.extend(split_content(self._marks, piece.text))

    def _end(self, kind: FinishKind, warning: str, choice: dict[str, Any], pieces: list[_Piece]) -> None:
        if kind is FinishKind.FAILED:
            raise UpstreamReportError(choice)
        if warning:
            self._warnings.append(warning)
        native = find_known_finish(choice.get("native_finish_reason"))
        self._kinds += [kind] if native in {None, FinishKind.FAILED} else [kind, native]
        if is_filtered(choice):
            self._kinds.append(FinishKind.CONTENT_FILTER)
        pieces.extend(split_content(self._marks, ""))
        pieces.extend(self._take_calls())
        for name in self._stop_fields:
            matched = choice.get(name)
            if matched and isinstance(matched, str) and matched not in _NO_WORDS:
                self._matched_stop = matched
                break

    def _take_calls(self) -> Iterator[ToolCall]:
        """Yield the calls; if the answer was cut, only those with complete arguments."""
        cut = {FinishKind.LENGTH, FinishKind.CONTENT_FILTER}
        return self._calls.take(may_be_cut=not cut.isdisjoint(self._kinds))


def _is_thought(delta: dict[str, Any]) -> bool:
    """Return whether the content of a chunk is a thought, as Gemini's interface for OpenAI's clients marks it."""
    extra = delta.get("extra_content")
    google = extra.get("google") if isinstance(extra, dict) else None
    return isinstance(google, dict) and google.get("thought") is True


_DEFAULT_TEMPERATURE = 1.0
_SCHEMA_NAME = "answer"


def build_chat_body(request: ChatRequest, options: BackendOptions) -> Body:
    """Return the body of a call. It always requests a stream and always limits the tokens.

    A parameter that the profile does not support is left out, and a warning names it.
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
    if request.top_logprobs is not None and profile.most_logprobs:
        # llama.cpp tells nothing at all where no alternatives are asked for.
        data |= {"logprobs": True, "top_logprobs": max(1, min(request.top_logprobs, profile.most_logprobs))}
    if request.json_schema is not None:
        data |= _build_schema(request, profile, warnings)
    messages = [write_texts(each) for each in build_messages(request, options)]
    return Body(data=data, messages=messages, warnings=tuple(warnings))


def build_messages(request: ChatRequest, options: BackendOptions) -> list[dict[str, Any]]:
    """Return the messages of a call in their wire form."""
    return [_convert_message(message, options.profile) for message in _arrange_messages(request, options.profile)]


def _arrange_messages(request: ChatRequest, profile: ModelProfile) -> Sequence[Message]:
    return request.messages if profile.several_system_messages else _merge_system(request.messages)


def _merge_system(messages: Sequence[Message]) -> list[Message]:
    """Return the messages with all system messages merged into one at the beginning."""
    system = [message.content for message in messages if message.role is Role.SYSTEM]
    others = [message for message in messages if message.role is not Role.SYSTEM]
    return [Message(role=Role.SYSTEM, content="\n\n".join(system)), *others] if system else others


def _convert_message(message: Message, profile: ModelProfile) -> dict[str, Any]:
    # An f-string is four times as fast as `.value` of an enum, and histories have many messages.
    data: dict[str, Any] = {"role": f"{message.role}", "content": message.content}
    if message.images:
        pictures = [{"type": "image_url", "image_url": {"url": write_data_url(image)}} for image in message.images]
        data["content"] = [{"type": "text", "text": message.content}, *pictures]
    if message.tool_calls:
        data["tool_calls"] = [write_call(call) for call in message.tool_calls]
        data["content"] = message.content or None
    if message.role is Role.TOOL:
        data["tool_call_id"] = message.tool_call_id
    if message.reasoning and profile.sends_reasoning_back and profile.reasoning_fields:
        data[profile.reasoning_fields[0]] = message.reasoning
    return data


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
    warnings.append("json_schema was left out: the server does not enforce it")
    return {"response_format": {"type": "json_object"}} if level is SchemaLevel.OBJECT else {}
