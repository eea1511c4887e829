"""Streams of responses in tests: their events, and what a client that resumes puts together."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tests.unit.protocols.chat.chatting import ChatSite

RESPONSES = "/v1/responses"
TOOL = {
    "type": "function",
    "name": "search",
    "description": "Searches.",
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
    "strict": False,
}


async def respond(site: ChatSite, *, headers: Mapping[str, str] | None = None, **body: Any) -> dict[str, Any]:
    """Return the response object."""
    answer = await site.client.post(RESPONSES, json={"model": "reasond", **body}, headers=headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def stream_response(
    site: ChatSite, *, headers: Mapping[str, str] | None = None, **body: Any
) -> list[dict[str, Any]]:
    """Return the events of a response that is streamed."""
    sent = {"model": "reasond", "stream": True, **body}
    answer = await site.client.post(RESPONSES, json=sent, headers=headers)
    assert answer.status_code == 200, answer.text
    return read_frames(answer.text)


async def resume(site: ChatSite, response_id: str, *, after: int | None = None) -> list[dict[str, Any]]:
    """Return the events of a response after a number."""
    place = {} if after is None else {"starting_after": str(after)}
    answer = await site.client.get(f"{RESPONSES}/{response_id}", params={"stream": "true", **place})
    assert answer.status_code == 200, answer.text
    return read_frames(answer.text)


def read_frames(text: str) -> list[dict[str, Any]]:
    """Return the events of a stream, which ends as it must; each is named as its type."""
    *frames, done = [frame for frame in text.split("\n\n") if frame and not frame.startswith(":")]
    assert done == "data: [DONE]"
    events = []
    for frame in frames:
        name, data = frame.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


def put_together(events: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the text of each item, as a client has it that adds up deltas."""
    texts: dict[str, str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            texts[event["item_id"]] = texts.get(event["item_id"], "") + event["delta"]
    return texts


def cut_before(events: Sequence[Mapping[str, Any]], number: int) -> list[dict[str, Any]]:
    """Return what a client has that got everything up to `number`, a part of a delta included."""
    kept: list[dict[str, Any]] = []
    for event in events:
        last = event["sequence_number"]
        if last <= number:
            kept.append(dict(event))
        elif "delta" in event and (first := last - len(event["delta"]) + 1) <= number:
            kept.append({**event, "sequence_number": number, "delta": event["delta"][: number - first + 1]})
    return kept
