"""The wire formats of a model server, for both protocols, so that one test covers both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tests.faults.upstream import DONE, chunk, event

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.types import Json

CALL_ID, ITEM_ID = "c1", "f1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Speech:
    """The events of one protocol. `nothings` are events without content, well-formed or not."""

    protocol: Literal["chat", "responses"]
    path: str
    nothings: Mapping[str, bytes]

    def text(self, text: str) -> bytes:
        """Return a piece of the answer."""
        if self.protocol == "chat":
            return chunk(text)
        return event({"type": "response.output_text.delta", "item_id": "m1", "output_index": 0, "delta": text})

    def thought(self, text: str) -> bytes:
        """Return a piece of reasoning."""
        if self.protocol == "chat":
            return event({"choices": [{"index": 0, "delta": {"reasoning_content": text}}]})
        return event({"type": "response.reasoning_text.delta", "item_id": "r1", "output_index": 0, "delta": text})

    def refusal(self, text: str) -> bytes:
        """Return a piece of a refusal."""
        if self.protocol == "chat":
            return event({"choices": [{"index": 0, "delta": {"refusal": text}}]})
        return event({"type": "response.refusal.delta", "item_id": "m1", "output_index": 0, "delta": text})

    def call(self, name: str, *pieces: str) -> tuple[bytes, ...]:
        """Return the beginning of a tool call and pieces of its arguments, without an end."""
        if self.protocol == "chat":
            begun = {"index": 0, "id": CALL_ID, "function": {"name": name, "arguments": ""}}
            grown = [{"index": 0, "function": {"arguments": piece}} for piece in pieces]
            return tuple(event({"choices": [{"index": 0, "delta": {"tool_calls": [one]}}]}) for one in (begun, *grown))
        item = {"type": "function_call", "id": ITEM_ID, "call_id": CALL_ID, "name": name, "arguments": ""}
        kind = "response.function_call_arguments.delta"
        return (
            event({"type": "response.output_item.added", "output_index": 0, "item": item}),
            *(event({"type": kind, "item_id": ITEM_ID, "output_index": 0, "delta": piece}) for piece in pieces),
        )

    def end(self, reason: str = "stop", *, usage: object = None) -> bytes:
        """Return all events of the end: "stop", "length" or "content_filter", and the usage if there is one."""
        if self.protocol == "chat":
            told = b"" if usage is None else event({"choices": [], "usage": usage})
            return chunk(finish=reason) + told + DONE
        response: dict[str, Any] = {"status": "completed", "output": [], "usage": usage, "max_output_tokens": 100}
        if reason != "stop":
            why = {"length": "max_output_tokens"}.get(reason, reason)
            response |= {"status": "incomplete", "incomplete_details": {"reason": why}}
        return event({"type": f"response.{response['status']}", "response": response})

    def usage(self, read: object, written: object) -> Json:
        """Return a usage in this protocol's format."""
        names = ("prompt_tokens", "completion_tokens") if self.protocol == "chat" else ("input_tokens", "output_tokens")
        return dict(zip(names, (read, written), strict=True))

    def errors(self, words: str) -> Mapping[str, bytes]:
        """Return events that report an error, in the forms in use."""
        common = {
            "object": event({"error": {"message": words}}),
            "named": b"event: error\n" + event({"message": words}),
            "status": event({"error": {"message": words, "code": 502}}),
        }
        if self.protocol == "chat":
            return common | {"finish": chunk(finish="error"), "text": event({"error": words})}
        return common | {
            "typed": event({"type": "error", "code": "server_error", "message": words}),
            "failed": event({"type": "response.failed", "response": {"error": {"message": words}}}),
        }


CHAT = Speech(
    protocol="chat",
    path="/v1/chat/completions",
    nothings={
        "no choices": event({"choices": []}),
        "null choices": event({"choices": None}),
        "no fields": event({}),
        "empty text": chunk(""),
        "null text": event({"choices": [{"index": 0, "delta": {"content": None}}]}),
    },
)
RESPONSES = Speech(
    protocol="responses",
    path="/v1/responses",
    nothings={
        "created": event({"type": "response.created", "response": {"status": "in_progress"}}),
        "no fields": event({}),
        "unknown": event({"type": "response.news", "delta": "none of ours"}),
        "empty text": event({"type": "response.output_text.delta", "delta": ""}),
        "null text": event({"type": "response.output_text.delta", "delta": None}),
    },
)
SPEECHES = (CHAT, RESPONSES)
