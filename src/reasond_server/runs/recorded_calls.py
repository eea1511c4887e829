"""The records of a run's calls: those from which a call is replayed without making it again, and those for people.

What a model call was sent and what came back is kept for whoever looks at the run. Such records share the log's tenant,
retention and deletion. Texts beyond the bounds of a call and of a run are left out, so that they cannot fill a log; the
figures of every call are kept.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, field, fields, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from reasond_server.errors.executions import NotResumableError
from reasond_server.errors.reasons import build_error
from reasond_server.eventlog.store import Record
from reasond_server.eventlog.stored import codec
from reasond_server.llm.counting.requests import render_call
from reasond_server.llm.model import ChatRequest, Finished, Message, ModelEvent, ModelFinish, ReasoningText, Text
from reasond_server.types import Json, TokenChance, ToolCall, Usage, UsageSource
from reasond_server.types.executions import ModelCall, PromptMessage
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from reasond_server.errors.base import ReasondError
    from reasond_server.llm.metered_model import EndedCall

VERSION = 1
MOST_CHARACTERS_OF_CALL: Final = 65_536
MOST_CHARACTERS_OF_RUN: Final = 1_048_576
CALL_KEY: Final = "call::"
_GAP: Final = "\n[…]\n"


class ReplayError(NotResumableError):
    """The record of a call cannot be read."""


@value
class RecordedCall:
    """A model call: its events with the text joined, its usage, and how it ended.

    The last event is `Finished`, or `error` is set, or the work closed the call after the last event. `is_clamped`
    says that the budget had shortened a call of the run by then. `lost_tokens` as in `MeteredModel`, of this call.
    `settings` are those of `read_settings`; empty if the call was recorded before they were.
    """

    events: Sequence[ModelEvent]
    usage: Usage
    error: ReasondError | None = None
    is_clamped: bool = False
    lost_tokens: int = 0
    settings: Json = field(default_factory=dict)


class AnswerParts:
    """Collects the events of a call and joins its text."""

    def __init__(self) -> None:
        self._done: list[ModelEvent] = []
        self._kind: type[Text | ReasoningText] | None = None
        self._pieces: list[str] = []

    def add(self, event: ModelEvent) -> None:
        """Add `event`."""
        if isinstance(event, Text | ReasoningText):
            if self._kind is not type(event):
                self._join_text()
                self._kind = type(event)
            self._pieces.append(event.text)
        else:
            self._join_text()
            self._done.append(event)

    def join(self) -> Sequence[ModelEvent]:
        """Return the collected events."""
        self._join_text()
        return tuple(self._done)

    def _join_text(self) -> None:
        if self._kind is not None:
            self._done.append(self._kind(text="".join(self._pieces)))
            self._kind, self._pieces = None, []


def encode_call(call: RecordedCall) -> str:
    """Return `call` as JSON text."""
    row: dict[str, Any] = {
        "v": VERSION,
        "events": [_write_event_row(event) for event in call.events],
        "usage": _write_usage_row(call.usage),
    }
    if call.error is not None:
        row["error"] = write_error_row(call.error)
    if call.is_clamped:
        row["clamped"] = True
    if call.lost_tokens:
        row["lost"] = call.lost_tokens
    if call.settings:
        row["with"] = call.settings
    return _write_row(row)


def decode_call(body: str) -> RecordedCall:
    """Return the call that `body` holds.

    Raises:
        ReplayError: another version of this program wrote it.
    """
    row = read_row(body)
    return RecordedCall(
        events=tuple(_read_event(each) for each in row["events"]),
        usage=_read_usage(row["usage"]),
        error=read_error(row["error"]) if "error" in row else None,
        is_clamped=row.get("clamped", False),
        lost_tokens=row.get("lost", 0),
        settings=row.get("with", {}),
    )


def read_usage(body: str) -> Usage:
    """Return the usage of the call in `body`; no usage if it is not a model call.

    Raises:
        ReplayError: `body` is not the record of a call.
    """
    try:
        row: dict[str, Any] = json.loads(body)
        spent = row.get("usage")
        return Usage() if spent is None else _read_usage(spent)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ReplayError("the record of a call cannot be read") from None


def encode_count(count: int | None) -> str:
    """Return `count`, the answer to a request for an exact count, as JSON text."""
    return _write_row({"v": VERSION, "count": count})


def decode_count(body: str) -> int | None:
    """Return the count that `body` holds. Raises as `decode_call`."""
    count: int | None = read_row(body)["count"]
    return count


def compute_request_digest(request: ChatRequest) -> str:
    """Return a digest that is equal only for requests that ask the model the same in words.

    `read_settings` has the rest: a release may choose other bounds, and what was paid is not paid again for that.
    """
    return _digest_request(request)


def compute_older_digest(request: ChatRequest) -> str:
    """Return the digest that logs had before words alone decided; it is equal only for equal requests."""
    return _digest_request(request, **read_settings(request))


def _digest_request(request: ChatRequest, **settings: object) -> str:
    rest = {
        **settings,
        "tools": [asdict(tool) for tool in request.tools],
        "tool_choice": request.tool_choice,
        "json_schema": request.json_schema,
        "label": request.label,
    }
    return compute_texts_digest(*_list_texts(request.messages), json.dumps(rest, sort_keys=True, default=dict))


def read_settings(request: ChatRequest) -> dict[str, Any]:
    """Return the parameters that are no words, as they are recorded with a call."""
    return {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stop": [*request.stop],
        "seed": request.seed,
    }


def compute_messages_digest(messages: Sequence[Message]) -> str:
    """Return a digest that is equal only for equal prompts."""
    return compute_texts_digest(*_list_texts(messages))


def compute_texts_digest(*texts: str) -> str:
    """Return a digest of 128 bits of the texts, as hexadecimal digits."""
    parts = [f"{_measure_size(text)}:{text}" for text in texts]
    return hashlib.blake2b("".join(parts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _measure_size(text: str) -> int:
    """Return the bytes of `text` in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _list_texts(messages: Sequence[Message]) -> list[str]:
    texts: list[str] = []
    for message in messages:
        if message.images:
            texts += [text for image in message.images for text in (image.media_type, image.base64)]
        if not (message.tool_calls or message.tool_call_id or message.reasoning):
            # The same as json.dumps gives, but faster: histories are long, and nearly all messages are plain.
            texts += (message.content, f'["{message.role}", "", "", []]')
            continue
        calls = [_call_row(call) for call in message.tool_calls]
        marks = [message.role, message.tool_call_id, message.reasoning, calls]
        texts += (message.content, json.dumps(marks))
    return texts


def _call_row(call: ToolCall) -> list[str]:
    row = [call.call_id, call.name, call.arguments_json]
    return [*row, call.extra_json] if call.extra_json else row


def _write_event_row(event: ModelEvent) -> list[Any]:
    if isinstance(event, Text):
        return ["text", event.text]
    if isinstance(event, ReasoningText):
        return ["reasoning", event.text]
    if isinstance(event, ToolCall):
        return ["call", *_call_row(event)]
    usage = _write_usage_row(event.usage)
    row = ["finished", event.reason, event.matched_stop, [*event.warnings], usage, event.is_stopped_in_reasoning]
    if event.tokens:
        return [*row, event.model, [[each.text, each.logprob, *map(list, each.top)] for each in event.tokens]]
    return [*row, event.model] if event.model else row


def _read_event(row: Sequence[Any]) -> ModelEvent:
    kind, first, *rest = row
    if kind == "text":
        return Text(text=first)
    if kind == "reasoning":
        return ReasoningText(text=first)
    if kind == "call":
        return ToolCall(call_id=first, name=rest[0], arguments_json=rest[1], extra_json="".join(rest[2:]))
    return Finished(
        reason=ModelFinish(first),
        matched_stop=rest[0],
        warnings=tuple(rest[1]),
        usage=_read_usage(rest[2]),
        is_stopped_in_reasoning=rest[3],
        model="".join(rest[4:5]),
        tokens=tuple(
            TokenChance(text=text, logprob=logprob, top=tuple((other, chance) for other, chance in top))
            for text, logprob, *top in chain.from_iterable(rest[5:])
        ),
    )


_USAGE: Final = tuple(each.name for each in fields(Usage))


def _write_usage_row(usage: Usage) -> dict[str, Any]:
    # The same as `asdict` returns, without its copies.
    return {name: getattr(usage, name) for name in _USAGE}


def _read_usage(row: dict[str, Any]) -> Usage:
    return Usage(**{**row, "source": UsageSource(row["source"])})


def write_error_row(error: ReasondError) -> dict[str, Any]:
    """Return the stored form of an error."""
    return {
        "reason": error.reason,
        "message": error.message,
        "remedy": error.remedy,
        "metadata": error.metadata,
        "retry_after_s": error.retry_after_s,
    }


def read_error(row: dict[str, Any]) -> ReasondError:
    """Return the error from its stored form `row`, made by `write_error_row`."""
    error = build_error(row["reason"], row["message"])
    error.remedy, error.metadata, error.retry_after_s = row["remedy"], row["metadata"], row["retry_after_s"]
    return error


def read_row(body: str) -> dict[str, Any]:
    """Return the object in the `body` of a record.

    Raises:
        ReplayError: another version of this program wrote it.
    """
    row: dict[str, Any] = json.loads(body)
    if row.get("v") != VERSION:
        raise ReplayError("the record of a call was written by another version of the server and cannot be read")
    return row


def _write_row(row: dict[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":"))


class CallRecorder:
    """Writes a record of each ended call, of all of them at most `most` characters.

    `records` are those that earlier lives of the run left, `part` is what tells the calls of one part of a run from
    those of others.
    """

    def __init__(
        self,
        *,
        records: Iterable[Record],
        write: Callable[[Record], None],
        now: Callable[[], datetime],
        most: int = MOST_CHARACTERS_OF_RUN,
        part: str = "",
    ) -> None:
        self._key = f"{CALL_KEY}{part}"
        kept = [record for record in records if record.key.startswith(self._key)]
        self._count = len(kept)
        self._room = most - sum(len(record.body) for record in kept)
        self._write = write
        self._now = now

    def note(self, ended: EndedCall) -> None:
        """Write the record of a call."""
        self._count += 1
        request, texts = ended.request, _Texts(min(MOST_CHARACTERS_OF_CALL, max(0, self._room)))
        # What came back is kept first, and of the prompt the last messages: they differ most from call to call.
        text, thinking = texts.keep(ended.text), texts.keep(ended.thinking)
        tool_calls = tuple(texts.keep(each) for each in ended.tool_calls)
        prompt = [_show_message(each, texts) for each in reversed(request.messages)]
        call = ModelCall(
            number=self._count,
            create_time=self._now(),
            elapsed_s=ended.elapsed_s,
            model=ended.model,
            label=request.label,
            prompt=tuple(reversed(prompt)),
            tools=tuple(tool.name for tool in request.tools),
            max_tokens=request.max_tokens,
            temperature=request.temperature,
            text=text,
            thinking=thinking,
            tool_calls=tool_calls,
            usage=ended.usage,
            outcome=ended.outcome,
            left_out_characters=texts.left_out,
        )
        self._room -= texts.kept
        self._write(Record(key=f"{self._key}{self._count}", body=codec.encode_call(call)))


class _Texts:
    """Shortens texts in their middle until they fit into the `room` that is left."""

    def __init__(self, room: int) -> None:
        self._room = room
        self.kept = self.left_out = 0

    def keep(self, text: str) -> str:
        """Return as much of `text` as there is room for, of its begin and its end."""
        # As JSON it is kept in UTF-8, which has no form for half a character.
        text = text.encode("utf-8", "replace").decode()
        room = self._room - self.kept
        self.kept += min(len(text), room)
        if len(text) <= room:
            return text
        self.left_out += len(text) - room
        return f"{text[: room - room // 2]}{_GAP}{text[len(text) - room // 2 :]}" if room else ""


def _show_message(message: Message, texts: _Texts) -> PromptMessage:
    parts = [message.content, *map(render_call, message.tool_calls)]
    return PromptMessage(role=message.role, text=texts.keep("\n".join(filter(None, parts))), images=len(message.images))


def read_calls(records: Iterable[Record], *, after: int = 0) -> Iterator[ModelCall]:
    """Yield the calls among the records of a log, oldest first and numbered from 1, without the first `after` ones.

    Raises:
        InternalError: one of them cannot be read.
    """
    kept = [record for record in records if record.key.startswith(CALL_KEY)]
    for number, record in enumerate(kept[after:], start=after + 1):
        # The log may begin with the calls of the run that this one replaced.
        yield replace(codec.decode_call(record.body), number=number)
