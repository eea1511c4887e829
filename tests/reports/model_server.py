"""A model server on a socket of the loopback that speaks exactly the bytes of a row."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from tests.accepting import accepting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

MARK: Final = "(report {row})"
"""What a prompt must hold, so that the server knows which row is asked."""
USAGE: Final = {"prompt_tokens": 812, "completion_tokens": 24, "total_tokens": 836}
"""The usage of replies whose row does not report another one."""
DONE: Final = "data: [DONE]\n\n"
STREAM: Final = "text/event-stream"
_MARKED = re.compile(rb"\(report ([a-z0-9-]+)\)")


@dataclass(frozen=True, kw_only=True)
class Said:
    """One response: its body, and how it is sent. `is_cut`: the connection ends before the body does."""

    body: str
    status: int = 200
    content_type: str = STREAM
    is_cut: bool = False


@dataclass(kw_only=True)
class Talk:
    """What is said to the requests of one row, the last one to all further requests; `asked` are their bodies."""

    says: Sequence[Said]
    asked: list[str] = field(default_factory=list)


class ModelServer:
    """Answers requests by the row that their prompt names."""

    def __init__(self) -> None:
        self.address = ""
        self._talks: dict[str, Talk] = {}

    def begin(self, row: str, says: Sequence[Said]) -> Talk:
        """Answer the requests that name `row` with `says`, in their order."""
        talk = self._talks[row] = Talk(says=says)
        return talk

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close the connection."""
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            size = next((line.split(":")[1] for line in head.lower().split("\r\n") if "content-length:" in line), "0")
            body = await reader.readexactly(int(size))
            writer.write(_write_response(self._choose(body)))
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    def _choose(self, body: bytes) -> Said:
        found = _MARKED.search(body)
        talk = self._talks.get(found[1].decode()) if found else None
        if talk is None:
            return Said(body='{"error": {"message": "no row of the corpus"}}', status=400)
        talk.asked.append(body.decode())
        return talk.says[min(len(talk.asked), len(talk.says)) - 1]


def _write_response(said: Said) -> bytes:
    body = said.body.encode("utf-8", "surrogatepass")
    size = len(body) + 1000 if said.is_cut else len(body)
    head = f"HTTP/1.1 {said.status} OK\r\ncontent-type: {said.content_type}\r\ncontent-length: {size}\r\n"
    return f"{head}connection: close\r\n\r\n".encode() + body


@asynccontextmanager
async def serving_models() -> AsyncIterator[ModelServer]:
    """Run the server on a free port while the context is open."""
    server = ModelServer()
    async with accepting(server.serve, limit=2**20) as port:
        server.address = f"http://127.0.0.1:{port}/v1"
        yield server


def write_event(chunk: str | Mapping[str, Any]) -> str:
    """Return the event of a chunk; a text is the bytes themselves."""
    return chunk if isinstance(chunk, str) else f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"


def say_events(events: Sequence[str | Mapping[str, Any]], *, end: str = "done", **more: Any) -> Said:
    """Return a stream of `events`. `end`: "done", "open" (nothing after them) or "cut" (the connection breaks)."""
    body = "".join(map(write_event, events))
    return Said(body=body + DONE if end == "done" else body, is_cut=end == "cut", **more)


def say_text(text: str, *, finish: str = "stop") -> Said:
    """Return a usual stream that says `text`."""
    choices = [{"index": 0, "delta": {"content": text}, "finish_reason": None}]
    ending = [{"index": 0, "delta": {}, "finish_reason": finish}]
    return say_events([{"choices": choices}, {"choices": ending}, {"choices": [], "usage": USAGE}])
