"""A model server on a real socket that follows a test's script exactly, and records the requests."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.accepting import accepting

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
DONE = b"data: [DONE]\n\n"
PATIENCE_S = 180.0


@dataclass(slots=True)
class Conversation:
    """One request, and the means to answer it; `gone` is set once the client has closed its end."""

    head: str
    body: bytes
    writer: asyncio.StreamWriter
    gone: asyncio.Event

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, status: str, body: bytes, *headers: str) -> None:
        head = "\r\n".join((f"HTTP/1.1 {status}", f"content-length: {len(body)}", "connection: close", *headers))
        await self.send(head.encode() + b"\r\n\r\n" + body)

    async def until_gone(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.gone.wait()

    def abort(self) -> None:
        self.writer.transport.abort()


@dataclass(slots=True)
class Upstream:
    """The server: the n-th script answers the n-th request; the last one answers all further requests."""

    scripts: tuple[Callable[[Conversation], Awaitable[None]], ...]
    conversations: list[Conversation] = field(default_factory=list)
    address: str = ""
    came: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def calls(self) -> int:
        return len(self.conversations)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        watching: asyncio.Task[None] | None = None
        gone = asyncio.Event()
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            body = await reader.readexactly(_length(head))
            conversation = Conversation(head=head, body=body, writer=writer, gone=gone)
            watching = asyncio.create_task(_watch(reader, conversation.gone))
            self.conversations.append(conversation)
            self.came.set()
            await self.scripts[min(self.calls, len(self.scripts)) - 1](conversation)
        except (ConnectionError, asyncio.IncompleteReadError):
            # The script may notice before the watcher does.
            gone.set()
        finally:
            if watching is not None:
                watching.cancel()
            writer.close()


async def _watch(reader: asyncio.StreamReader, gone: asyncio.Event) -> None:
    try:
        while await reader.read(1024):
            pass
    except ConnectionError:
        pass
    gone.set()


def _length(head: str) -> int:
    lines = (line.partition(":") for line in head.lower().splitlines())
    return next((int(value) for name, _, value in lines if name == "content-length"), 0)


@asynccontextmanager
async def upstream(*scripts: Callable[[Conversation], Awaitable[None]]) -> AsyncIterator[Upstream]:
    """Run a server on a free port of the loopback."""
    running = Upstream(scripts=scripts)
    async with accepting(running.serve) as port:
        running.address = f"http://127.0.0.1:{port}/v1"
        yield running


def chunk(text: str | None = None, *, finish: str | None = None, **more: Any) -> bytes:
    """Return the event of one chunk of an answer."""
    delta = {} if text is None else {"content": text}
    choice = {"index": 0, "delta": delta, "finish_reason": finish} | more
    return event({"choices": [choice]})


def event(value: object) -> bytes:
    """Return a server-sent event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def usage(prompt: int, output: int) -> bytes:
    """Return the event that reports the usage."""
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output}})


def streaming(*events: bytes) -> Callable[[Conversation], Awaitable[None]]:
    """Return a script that sends `events` and closes the connection, which ends the body."""

    async def script(conversation: Conversation) -> None:
        await conversation.send(STREAM_HEAD + b"connection: close\r\n\r\n" + b"".join(events))

    return script


def refusing(status: str, body: object = b"", *headers: str) -> Callable[[Conversation], Awaitable[None]]:
    """Return a script that answers with `status`."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()

    async def script(conversation: Conversation) -> None:
        await conversation.answer(status, content, "content-type: application/json", *headers)

    return script


GOOD = (chunk("Hello"), chunk(" world"), chunk(finish="stop"), usage(10, 2), DONE)
