"""The Responses protocol, for models that require it and for servers that support it.

It has no stop strings and no seed. The reader of the stream enforces stop strings, so they need no warning. A seed is
left out, and a warning names it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reasond_server.dialects.native_calls import clean_arguments, clean_name
from reasond_server.dialects.reasoning_marks import MarkReader
from reasond_server.dialects.usage_forms import read_report
from reasond_server.errors.base import show
from reasond_server.errors.model import ModelProtocolError
from reasond_server.llm.model import ChatRequest, Message, ModelFinish, ReasoningText, Role, Text
from reasond_server.llm.openai.json_values import is_object, parse_object, write_data_url
from reasond_server.llm.openai.protocol import (
    TOOL_CHOICES,
    AnswerEnd,
    Body,
    Decoder,
    UpstreamReportError,
    select_tools,
    split_content,
)
from reasond_server.llm.openai.usage_reports import build_usage
from reasond_server.llm.profiles import ModelProfile, SchemaLevel
from reasond_server.types import ToolCall, Usage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from reasond_server.llm.openai.backend_options import BackendOptions


_SCHEMA_NAME = "answer"


class ResponsesProtocol:
    """Calls of `responses`, streamed and not stored at the provider."""

    @property
    def path(self) -> str:
        """Path of calls: `responses`."""
        return "responses"

    def build_body(self, request: ChatRequest, options: BackendOptions) -> Body:
        """Return the body of `request`, without parameters that the profile of `options` does not support."""
        profile = options.profile
        warnings: list[str] = []
        instructions, messages = _split_instructions(request, profile)
        data: dict[str, Any] = {
            "model": options.model,
            "input": [item for message in messages for item in _list_items(message, profile)],
            "max_output_tokens": request.max_tokens,
            "stream": True,
            "store": False,
        }
        if instructions:
            data["instructions"] = instructions
        sampling = {"temperature": request.temperature}
        if request.top_p is not None:
            sampling["top_p"] = request.top_p
        if profile.sampling:
            data.update(sampling)
        else:
            warnings.extend(f"{name} was left out: the model does not take it" for name in sampling)
        if request.seed is not None:
            warnings.append("seed was left out: the Responses protocol has none")
        _add_tools(data, request, profile, warnings)
        _add_schema(data, request, profile, warnings)
        return Body(data=data, warnings=tuple(warnings))

    def build_decoder(self, options: BackendOptions, *, max_tokens: int = 0) -> Decoder:  # noqa: ARG002 - one form of answer
        """Return a reader for one answer."""
        return ResponsesDecoder(max_tokens=max_tokens)


def _split_instructions(request: ChatRequest, profile: ModelProfile) -> tuple[str, Sequence[Message]]:
    """Split off the leading system messages, or all of them if the model accepts only one."""
    messages = request.messages
    first = next((place for place, message in enumerate(messages) if message.role is not Role.SYSTEM), len(messages))
    leading, rest = [message.content for message in messages[:first]], list(messages[first:])
    if not profile.several_system_messages:
        leading += [message.content for message in rest if message.role is Role.SYSTEM]
        rest = [message for message in rest if message.role is not Role.SYSTEM]
    return "\n\n".join(leading), rest


def _list_items(message: Message, profile: ModelProfile) -> Iterator[dict[str, Any]]:
    """Yield the input items of `message`."""
    if message.role is Role.TOOL:
        yield {"type": "function_call_output", "call_id": message.tool_call_id, "output": message.content}
        return
    if message.images:
        pictures = [{"type": "input_image", "image_url": write_data_url(image)} for image in message.images]
        shown = [{"type": "input_text", "text": message.content}, *pictures]
        yield {"type": "message", "role": message.role.value, "content": shown}
        return
    if message.role is not Role.ASSISTANT:
        yield {"type": "message", "role": message.role.value, "content": message.content}
        return
    if message.reasoning and profile.sends_reasoning_back:
        content = [{"type": "reasoning_text", "text": message.reasoning}]
        yield {"type": "reasoning", "summary": [], "content": content}
    if message.content:
        # llama.cpp refuses a string here, although the interface allows it.
        content = [{"type": "output_text", "text": message.content}]
        yield {"type": "message", "role": "assistant", "content": content}
    for call in message.tool_calls:
        yield {
            "type": "function_call",
            "call_id": call.call_id,
            "name": call.name,
            "arguments": call.arguments_json,
        }


def _add_tools(data: dict[str, Any], request: ChatRequest, profile: ModelProfile, warnings: list[str]) -> None:
    if not request.tools:
        return
    if not profile.tools:
        warnings.append("tools were left out: the model does not take them")
        return
    offered, choice = select_tools(request, profile, warnings)
    data["tools"] = [
        {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            # The default is true, which refuses most schemas.
            "strict": False,
        }
        for tool in offered
    ]
    data["tool_choice"] = choice if choice in TOOL_CHOICES else {"type": "function", "name": choice}


def _add_schema(data: dict[str, Any], request: ChatRequest, profile: ModelProfile, warnings: list[str]) -> None:
    if request.json_schema is None:
        return
    if profile.json_schema in {SchemaLevel.STRICT, SchemaLevel.GUIDED}:
        schema = {"type": "json_schema", "name": _SCHEMA_NAME, "schema": request.json_schema, "strict": True}
        data["text"] = {"format": schema}
        return
    warnings.append("json_schema was left out: the server does not enforce it")
    if profile.json_schema is SchemaLevel.OBJECT:
        data["text"] = {"format": {"type": "json_object"}}


_Piece = Text | ReasoningText | ToolCall
_NO_EVENTS = frozenset({b"", b"null"})
_TEXT_KINDS = ("message", "reasoning")


@dataclass(slots=True)
class _OpenToolCall:
    """A tool call whose arguments are incomplete."""

    call_id: object
    name: object
    pieces: list[str] = field(default_factory=list)


class ResponsesDecoder:
    """Reads the events of one response; unknown events are ignored.

    Text and reasoning are read from the deltas, or from the finished items if the server sends no deltas. If the text
    begins with `<think>…</think>`, that part is reasoning.

    A response that ended at its limit is `incomplete`, but llama.cpp reports `completed`. By the protocol, a response
    repeats its limit. So if a response does not repeat it and used all of its tokens, the limit counts as the reason.

    Args:
        max_tokens: the limit that was sent; 0 for none.
    """

    def __init__(self, *, max_tokens: int = 0) -> None:
        self._max_tokens = max_tokens
        self.held_characters = 0
        self._calls: dict[str, _OpenToolCall] = {}
        self._called: set[str] = set()
        self._doubtful: list[ToolCall] = []
        self._streamed: set[object] = set()
        self._told: set[object] = set()
        self._reasoning_from = ""
        self._marks = MarkReader()
        self._is_refused = False
        self._ending = AnswerEnd()
        self._readers: Mapping[str, Callable[[dict[str, Any]], Sequence[_Piece]]] = {
            "response.output_text.delta": self._read_text,
            "response.refusal.delta": self._read_refusal,
            "response.reasoning_text.delta": self._read_reasoning,
            "response.reasoning_summary_text.delta": self._read_reasoning,
            "response.output_item.added": self._begin_item,
            "response.function_call_arguments.delta": self._grow_call,
            "response.function_call_arguments.done": self._end_call,
            "response.output_item.done": self._end_item,
            "response.completed": self._end,
            "response.incomplete": self._end,
            "response.failed": self._fail,
            "error": self._fail,
        }

    def feed(self, data: bytes) -> Sequence[_Piece]:
        """Take the data of one event and return its pieces.

        Raises:
            UpstreamReportError: the event is an error report of the server.
            ModelProtocolError: the event breaks the protocol.
        """
        if data in _NO_EVENTS:
            return ()
        event = parse_object(data)
        kind = event.get("type")
        if not isinstance(kind, str) and event.get("error") is not None:
            kind = "error"
        reader = self._readers.get(kind) if isinstance(kind, str) else None
        return () if reader is None else reader(event)

    def find_end(self) -> AnswerEnd:
        """Return what the server reported about the end."""
        return self._ending

    def flush(self) -> Sequence[Text | ReasoningText]:
        """Return the text that was held back."""
        return split_content(self._marks, "")

    def _read_text(self, event: dict[str, Any]) -> Sequence[_Piece]:
        self._streamed.add("message")
        return self._split(event.get("delta"))

    def _read_refusal(self, event: dict[str, Any]) -> Sequence[_Piece]:
        self._is_refused = True
        return self._read_text(event)

    def _read_reasoning(self, event: dict[str, Any]) -> Sequence[_Piece]:
        """Return a piece of the reasoning or of its summary, whichever the server sent first."""
        self._streamed.add("reasoning")
        self._reasoning_from = self._reasoning_from or event["type"]
        delta = event.get("delta")
        if event["type"] != self._reasoning_from or not isinstance(delta, str) or not delta:
            return ()
        return (ReasoningText(text=delta),)

    def _split(self, text: object) -> Sequence[_Piece]:
        """Return the content and the reasoning inside it as separate pieces."""
        return split_content(self._marks, text) if isinstance(text, str) and text else ()

    def _begin_item(self, event: dict[str, Any]) -> Sequence[_Piece]:
        item = _read_member(event, "item")
        if item.get("type") == "function_call":
            self._calls[_find_key(event, item.get("id"))] = _OpenToolCall(
                call_id=item.get("call_id"), name=item.get("name")
            )
        return ()

    def _grow_call(self, event: dict[str, Any]) -> Sequence[_Piece]:
        call = self._calls.get(_find_key(event, event.get("item_id")))
        delta = event.get("delta")
        if call is not None and isinstance(delta, str):
            call.pieces.append(delta)
            self.held_characters += len(delta)
        return ()

    def _end_call(self, event: dict[str, Any]) -> Sequence[_Piece]:
        """Return a call if it has an id and a name; the finished item has the rest of any other call."""
        call = self._calls.get(_find_key(event, event.get("item_id")))
        if call is None or not (call.call_id and call.name):
            return ()
        return self._finish_call(call, event.get("arguments"))

    def _end_item(self, event: dict[str, Any]) -> Sequence[_Piece]:
        item = _read_member(event, "item")
        if item.get("type") == "function_call":
            begun = self._calls.get(_find_key(event, item.get("id"))) or _OpenToolCall(call_id=None, name=None)
            begun.call_id, begun.name = item.get("call_id") or begun.call_id, item.get("name") or begun.name
            return self._finish_call(begun, item.get("arguments"))
        self._told.add(_find_text_kind(item))
        return () if _find_text_kind(item) in self._streamed else self._read_texts(item)

    def _read_texts(self, item: dict[str, Any]) -> Sequence[_Piece]:
        """Return the text or reasoning of a finished item."""
        kind = _find_text_kind(item)
        if not kind:
            return ()
        listed = _to_list(item.get("content")) or _to_list(item.get("summary"))
        parts = [part for part in listed if isinstance(part, dict)]
        self._is_refused = self._is_refused or any(part.get("type") == "refusal" for part in parts)
        texts = [text for part in parts if isinstance(text := part.get("text") or part.get("refusal"), str)]
        if kind == "reasoning":
            return [ReasoningText(text=text) for text in texts]
        return [piece for text in texts for piece in self._split(text)]

    def _finish_call(self, call: _OpenToolCall, arguments: object) -> Sequence[_Piece]:
        """Return the call, once. Its arguments are those of the final event, else the streamed ones.

        A call whose arguments are not a JSON object waits for the end, which shows whether the limit cut it.
        """
        if not (isinstance(call.call_id, str) and isinstance(call.name, str) and call.call_id and call.name):
            raise ModelProtocolError(
                f"the model's provider sent a call of tool {show(call.name)} under the id {show(call.call_id)}"
            )
        if call.call_id in self._called:
            return ()
        self._called.add(call.call_id)
        whole = clean_arguments(arguments or "".join(call.pieces))
        made = ToolCall(call_id=call.call_id, name=clean_name(call.name), arguments_json=whole)
        if is_object(made.arguments_json):
            return (made,)
        self._doubtful.append(made)
        return ()

    def _end(self, event: dict[str, Any]) -> Sequence[_Piece]:
        """Record the finish reason and the usage; return the pieces that no earlier event had."""
        response = _read_member(event, "response")
        passed_on = self._told | self._streamed
        items = [item for item in _to_list(response.get("output")) if isinstance(item, dict)]
        pieces: list[_Piece] = []
        for item in items:
            if item.get("type") == "function_call":
                pieces += self._end_item({"item": item})
            elif _find_text_kind(item) not in passed_on:
                pieces += self._read_texts(item)
        report = read_report(response.get("usage"))
        usage = None if report is None else build_usage(report)
        reason = self._find_reason(event["type"], response, usage)
        self._ending = AnswerEnd(reason=reason, usage=usage, warnings=() if report is None else tuple(report.doubts))
        is_cut = reason in {ModelFinish.LENGTH, ModelFinish.CONTENT_FILTER}
        return [*pieces, *self.flush(), *(() if is_cut else self._doubtful)]

    def _find_reason(self, kind: str, response: dict[str, Any], usage: Usage | None) -> ModelFinish:
        if self._is_refused:
            return ModelFinish.CONTENT_FILTER
        if kind == "response.incomplete" or response.get("status") == "incomplete":
            details = response.get("incomplete_details")
            reason = details.get("reason") if isinstance(details, dict) else None
            return ModelFinish.CONTENT_FILTER if reason == "content_filter" else ModelFinish.LENGTH
        is_used_up = usage is not None and 0 < self._max_tokens <= usage.output_tokens
        is_cut = is_used_up and response.get("max_output_tokens") is None
        if self._called and not (is_cut and self._doubtful):
            return ModelFinish.TOOL_CALLS
        return ModelFinish.LENGTH if is_cut else ModelFinish.STOP

    def _fail(self, event: dict[str, Any]) -> Sequence[_Piece]:
        """Raise the error that the server reported."""
        response = event.get("response")
        raise UpstreamReportError(response.get("error") if isinstance(response, dict) else event.get("error", event))


def _read_member(event: dict[str, Any], name: str) -> dict[str, Any]:
    value = event.get(name)
    if not isinstance(value, dict):
        raise ModelProtocolError(f"the model's provider sent {show(event.get('type'))} without its {name}")
    return value


def _find_key(event: dict[str, Any], item_id: object) -> str:
    """Return the key of an item: its id, or its index if the server sends no id."""
    return f"#{event.get('output_index')}" if item_id is None else str(item_id)


def _find_text_kind(item: dict[str, Any]) -> str:
    """Return the kind of text in an item; empty if it has no text."""
    kind = item.get("type")
    return kind if isinstance(kind, str) and kind in _TEXT_KINDS else ""


def _to_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
