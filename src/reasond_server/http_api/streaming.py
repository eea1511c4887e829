"""Executions as server-sent events: the same events as ReasonIterations, resumed by Last-Event-ID.

Each event is `id: <execution_id>:<sequence>` (logged events only), `event:` its kind and one line of JSON as
`data:`. The last one is `completed`, or `error` with a JSON-RPC error object; a failed run sends both.
Source: WHATWG HTML, section 9.2.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import to_json

from reasond_server.http_api.failures import failure_of
from reasond_server.wire.json_mapping import event_json, event_name, is_logged

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from reasond_server.http_api.calls import Call
    from reasond_server.http_api.jsonrpc import Params
    from reasond_server.types import StreamEvent

HEADERS: Final[Sequence[tuple[bytes, bytes]]] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
)
"""Headers of a stream; the second keeps nginx from holding events back."""


def wants_stream(accept: Sequence[str]) -> bool:
    """Return whether the values of the header Accept ask for server-sent events by name."""
    if not accept:
        return False
    for choice in ",".join(accept).split(","):
        media_type, *parameters = (part.strip().lower() for part in choice.split(";"))
        if media_type == "text/event-stream" and not any(re.fullmatch(r"q=0(\.0*)?", each) for each in parameters):
            return True
    return False


async def frames(call: Call, params: Params, last_event_id: str | None) -> AsyncGenerator[bytes, None]:
    """Yield the events of `call`, framed; with `last_event_id` those after it. Closing it leaves the execution."""
    try:
        async with aclosing(call.events(params, last_event_id)) as events:
            async for event in events:
                yield frame(event)
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - every failure becomes an event
        yield _frame("error", await call.explain(failure_of(error)))


def frame(event: StreamEvent) -> bytes:
    """Return one event as it goes over the wire."""
    place = f"{event.execution_id}:{event.sequence}" if is_logged(event) else ""
    return _frame(event_name(event), event_json(event), place=place)


def _frame(name: str, data: Mapping[str, Any], *, place: str = "") -> bytes:
    id_line = f"id: {place}\n" if place else ""
    return f"{id_line}event: {name}\ndata: ".encode() + to_json(data, inf_nan_mode="null") + b"\n\n"
