"""Keeps what each model call of a run was sent and what came back, as records of its log.

They share the log's tenant, retention and deletion. Texts beyond the bounds of a call and of a run are left out, so
that they cannot fill a log; the figures of every call are kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from reasond_server.eventlog.store import Record
from reasond_server.eventlog.stored.codec import decode_call, encode_call
from reasond_server.llm.counting.requests import render_call
from reasond_server.types.executions import ModelCall, PromptMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from datetime import datetime

    from reasond_server.llm.metered_model import EndedCall
    from reasond_server.llm.model import Message

MOST_CHARACTERS_OF_CALL: Final = 65_536
MOST_CHARACTERS_OF_RUN: Final = 1_048_576
CALL_KEY: Final = "call::"
_GAP: Final = "\n[…]\n"


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
        self._write(Record(key=f"{self._key}{self._count}", body=encode_call(call)))


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
        yield replace(decode_call(record.body), number=number)
