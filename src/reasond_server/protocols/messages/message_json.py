"""A message as Anthropic's clients read it: its blocks, whole, and as the frames of a stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pydantic_core import from_json, to_json

from reasond_server.http_api.exchange import frame_event
from reasond_server.protocols.sealed_reasoning import seal
from reasond_server.types import FinishReason, ToolCall, Usage

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reasond_server.protocols.followed_runs import FollowedRun

_STOPS: Final = {
    FinishReason.ANSWERED: "end_turn",
    FinishReason.ANSWERED_UNTAGGED: "end_turn",
    FinishReason.CONTENT_FILTERED: "refusal",
}
PING: Final = frame_event(b'{"type":"ping"}', name="ping")


def describe_message(execution_id: str, model: str) -> dict[str, Any]:
    """Return a message as it begins."""
    return {
        "id": f"msg_{execution_id}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


def describe_end(run: FollowedRun) -> dict[str, Any]:
    """Return why a message ends; an answer that something has cut short ends by its length."""
    reason = run.finish_reason
    stop = "tool_use" if reason is None else _STOPS.get(reason, "max_tokens")
    return {"stop_reason": "stop_sequence" if run.stop_sequence else stop, "stop_sequence": run.stop_sequence}


def build_usage(usage: Usage) -> dict[str, Any]:
    """Return the usage by Anthropic's names: what came from a cache is no part of the other input."""
    return {
        "input_tokens": usage.input_tokens - usage.cached_input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_input_tokens,
        "output_tokens": usage.output_tokens,
    }


def build_thinking(text: str) -> dict[str, Any]:
    """Return a block of thinking; its signature brings it back."""
    return {"type": "thinking", "thinking": text, "signature": seal(text)}


def build_call(call: ToolCall) -> dict[str, Any]:
    """Return the block of a call."""
    return {"type": "tool_use", "id": call.call_id, "name": call.name, "input": from_json(call.arguments_json or "{}")}


class MessageFrames:
    """Writes the frames of one stream; blocks follow each other, and a thinking may come in pieces."""

    def __init__(self) -> None:
        self._place = 0
        self._thought: list[str] = []
        self._is_saying = False

    def begin(self, execution_id: str, model: str) -> bytes:
        """Return the first frame."""
        return _frame("message_start", message=describe_message(execution_id, model))

    def think(self, text: str) -> Iterator[bytes]:
        """Yield a piece of thinking, in a block that is open, or opens."""
        if not self._thought:
            yield self._open({"type": "thinking", "thinking": "", "signature": ""})
        self._thought.append(text)
        yield self._write({"type": "thinking_delta", "thinking": text})

    def end_thinking(self) -> Iterator[bytes]:
        """Yield the end of the thinking, if one is open."""
        if self._thought:
            sealed = seal("".join(self._thought))
            self._thought.clear()
            yield self._write({"type": "signature_delta", "signature": sealed})
            yield self._close()

    def say(self, text: str, *, is_whole: bool = True) -> Iterator[bytes]:
        """Yield a piece of text, in a block that is open, or opens; and its end after the last one."""
        if not self._is_saying:
            yield from self.end_thinking()
            yield self._open({"type": "text", "text": ""})
        if text:
            yield self._write({"type": "text_delta", "text": text})
        self._is_saying = not is_whole
        if is_whole:
            yield self._close()

    def call(self, call: ToolCall) -> Iterator[bytes]:
        """Yield a block of a call."""
        yield self._open({**build_call(call), "input": {}})
        yield self._write({"type": "input_json_delta", "partial_json": call.arguments_json or "{}"})
        yield self._close()

    def end(self, run: FollowedRun, own: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield the last frames; `own` is what Anthropic has no place for."""
        yield _frame("message_delta", delta=describe_end(run), usage=build_usage(run.usage), reasond=own)
        yield _frame("message_stop")

    def _open(self, block: Mapping[str, Any]) -> bytes:
        return _frame("content_block_start", index=self._place, content_block=block)

    def _write(self, delta: Mapping[str, Any]) -> bytes:
        return _frame("content_block_delta", index=self._place, delta=delta)

    def _close(self) -> bytes:
        self._place += 1
        return _frame("content_block_stop", index=self._place - 1)


def _frame(kind: str, **members: object) -> bytes:
    return frame_event(to_json({"type": kind, **members}, inf_nan_mode="null"), name=kind)
