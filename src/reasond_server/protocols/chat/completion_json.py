"""The JSON that every completion is made of: ids, usage, and the chunks of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from reasond_server.http_api.exchange import frame_event
from reasond_server.protocols.conversations import BETWEEN
from reasond_server.protocols.custom_tools import read_text
from reasond_server.protocols.followed_runs import FollowedRun, write_usage
from reasond_server.types import FinishReason, StreamEvent, ToolCall, Usage

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping
    from datetime import datetime


_LENGTH: Final = "length"
_FINISHES: Final = {
    FinishReason.ANSWERED: "stop",
    FinishReason.ANSWERED_UNTAGGED: "stop",
    FinishReason.CONTENT_FILTERED: "content_filter",
}


class ChunkFrames:
    """Writes the chunks of one stream; the first one of the choice at each `place` is `begin`."""

    def __init__(self, *, model: str, includes_usage: bool) -> None:
        self._model = model
        self._includes_usage = includes_usage
        self._head = b""

    def begin(self, place: int, event: StreamEvent) -> bytes:
        """Return the first chunk of a choice, which names its author; the first `event` has the id and the time."""
        about = describe_completion(event.execution_id, event.create_time, self._model, kind="chat.completion.chunk")
        self._head = self._head or to_json(about)[:-1]
        return self.choose(place, {"role": "assistant", "content": ""})

    def reason(self, place: int, text: str) -> bytes:
        """Return a chunk of reasoning, under both names that clients read."""
        return self.choose(place, {"reasoning_content": text, "reasoning": text})

    def choose(
        self,
        place: int,
        delta: Mapping[str, Any],
        finish: str | None = None,
        *,
        logprobs: object = None,
        **more: object,
    ) -> bytes:
        """Return a chunk with `delta` and the tokens of its content; `more` are members of its own."""
        choice = {"index": place, "delta": delta, "logprobs": wrap_logprobs(logprobs), "finish_reason": finish}
        return self._write({"choices": [choice], **({"usage": None} if self._includes_usage else {}), **more})

    def tell_usage(self, usage: Usage) -> bytes:
        """Return the chunk of the usage; empty if it was not asked for."""
        return (
            self._write({"choices": [], "usage": write_usage(usage, "prompt", "completion")})
            if self._includes_usage
            else b""
        )

    def _write(self, rest: dict[str, Any]) -> bytes:
        return frame_event(self._head + b"," + to_json(rest, inf_nan_mode="null")[1:])


class ChoiceFrames:
    """Writes the chunks of the choice at `place`: its thinking is reasoning, its text content."""

    def __init__(self, frames: ChunkFrames, place: int, run: FollowedRun) -> None:
        self._frames = frames
        self._place = place
        self._run = run
        self._has_thought = False
        self._is_next = False

    def think(self, text: str) -> Iterator[bytes]:
        """Yield a chunk of reasoning, apart from that of an earlier step."""
        yield self._frames.reason(self._place, BETWEEN + text if self._is_next else text)
        self._has_thought, self._is_next = True, False

    def end_thinking(self) -> Iterator[bytes]:
        """Yield nothing; what is thought from here on belongs to another step."""
        self._is_next = self._has_thought
        yield from ()

    def say(self, text: str, *, is_whole: bool = True) -> Iterator[bytes]:
        """Yield a chunk of content."""
        yield from self.end_thinking()
        if text:
            logprobs = self._run.logprobs if is_whole else None
            yield self._frames.choose(self._place, {"content": text}, logprobs=logprobs)


def describe_completion(execution_id: str, created: datetime, model: str, *, kind: str) -> dict[str, Any]:
    """Return the first members of a completion or of a chunk."""
    return {
        "id": f"chatcmpl-{execution_id}",
        "object": kind,
        "created": int(created.timestamp()),
        "model": model,
    }


def wrap_logprobs(tokens: object) -> object:
    """Return the tokens of a content as a choice has them; None if they were not asked for."""
    return None if tokens is None else {"content": tokens, "refusal": None}


def map_finish_reason(reason: FinishReason | None) -> str:
    """Return OpenAI's finish reason, None being calls; an answer that something has cut short ends by its length."""
    return "tool_calls" if reason is None else _FINISHES.get(reason, _LENGTH)


def write_call(call: ToolCall, custom: Container[str]) -> dict[str, Any]:
    """Return a call of a tool of the client; `custom` has the names of those that are called with a text."""
    if call.name in custom:
        made = {"name": call.name, "input": read_text(call.arguments_json)}
        return {"id": call.call_id, "type": "custom", "custom": made}
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
