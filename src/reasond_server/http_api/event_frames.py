"""Server-sent events: their headers, their frames, and sending them. Source: WHATWG HTML, section 9.2."""

from __future__ import annotations

import re
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.http_api.exchange import Send

STREAM_HEADERS: Final[Sequence[tuple[bytes, bytes]]] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
    (b"cache-control", b"no-store"),
)
"""Headers of a stream; the second prevents nginx from buffering events."""


def wants_stream(accept: Sequence[str]) -> bool:
    """Return whether the values of the header Accept name the type of server-sent events."""
    if not accept:
        return False
    for choice in ",".join(accept).split(","):
        media_type, *parameters = (part.strip().lower() for part in choice.split(";"))
        if media_type == "text/event-stream" and not any(re.fullmatch(r"q=0(\.0*)?", each) for each in parameters):
            return True
    return False


def frame_event(data: bytes, *, name: str = "", place: str = "") -> bytes:
    """Return one event; `data` is one line, `name` its kind, and `place` the id by which a client resumes after it."""
    id_line = f"id: {place}\n" if place else ""
    name_line = f"event: {name}\n" if name else ""
    return f"{id_line}{name_line}data: ".encode() + data + b"\n\n"


async def send_stream(send: Send, events: AsyncGenerator[bytes, None]) -> None:
    """Send a whole answer that consists of framed events, each as it comes."""
    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})
    async with aclosing(events):
        async for event in events:
            await send({"type": "http.response.body", "body": event, "more_body": True})
    await send({"type": "http.response.body", "body": b""})
