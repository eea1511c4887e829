"""A TCP proxy on the loopback that cuts connections after a seeded number of bytes, refuses them, or says nothing."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from reasond_server.base.addresses import split_address

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

CHUNK_BYTES: Final = 4096
PREFACE_BYTES: Final = 24
FRAME_HEAD_BYTES: Final = 9
HEADERS_FRAME: Final = 1
END_STREAM: Final = 1
SHORT_CUT: Final = (200, 1500)
LONG_CUT: Final = (1500, 2500)
"""Bytes of the server after which a connection is cut; behind every third cut, a long one, an event has come."""


@dataclass(slots=True)
class CutPlan:
    """How often connections are cut, by chance with a seed; `left` cuts are still to come.

    `long_cut` has the least and the most bytes of every third cut: enough for a whole answer, so that a client that
    begins again gets further.
    """

    seed: int
    left: int
    long_cut: tuple[int, int] = LONG_CUT
    _chance: random.Random = field(init=False)
    _drawn: int = 0

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)  # noqa: S311 - repeatable, no secret

    def draw(self) -> tuple[int, bool] | None:
        """Return the bytes after which the next connection is cut and whether it is reset; None: it is not cut."""
        if self.left <= 0:
            return None
        self._drawn += 1
        bounds = self.long_cut if self._drawn % 3 == 0 else SHORT_CUT
        return self._chance.randint(*bounds), self._chance.random() < 0.5


@dataclass(slots=True)
class FrameWatch:
    """Finds frames of HTTP/2 that begin a call, or end one, in the bytes of one direction of a connection.

    `is_from_client`: what a client sends begins with a preface.
    """

    is_from_client: bool
    _buffer: bytearray = field(default_factory=bytearray)
    _rest: int = 0

    def __post_init__(self) -> None:
        self._rest = PREFACE_BYTES if self.is_from_client else 0

    def find(self, data: bytes, *, flags: int = 0) -> int | None:
        """Return where in `data`, the next bytes, a HEADERS frame with `flags` begins; below 0: in earlier ones."""
        found, start = None, -len(self._buffer)
        self._buffer += data
        while len(self._buffer) >= self._rest + FRAME_HEAD_BYTES:
            start += self._rest
            del self._buffer[: self._rest]
            if found is None and self._buffer[3] == HEADERS_FRAME and self._buffer[4] & flags == flags:
                found = start
            self._rest = FRAME_HEAD_BYTES + int.from_bytes(self._buffer[:3], "big")
        return found


@dataclass(eq=False)
class CuttingProxy:
    """Passes connections on to `upstream`, and does to them what it is told.

    Attributes:
        upstream: where connections go, host:port; while it is empty, they wait.
        cuts: the cuts by number of bytes.
        refuses_s: for so many seconds from the first connection on, connections are closed at once.
        is_silent: connections are taken, and nothing is passed on.
        statuses_cut: so many connections are cut where the status of a call would follow its last message.
        tell_call: called before the beginning of a call is passed on.
        cuts_made: the connections that were cut.
        connections: those that were passed on.
        address: where the proxy listens, host:port.
    """

    upstream: str
    cuts: CutPlan | None = None
    refuses_s: float = 0.0
    is_silent: bool = False
    statuses_cut: int = 0
    tell_call: Callable[[], None] = lambda: None
    cuts_made: int = 0
    connections: int = 0
    address: str = ""
    _first: float | None = None
    _is_up: asyncio.Event = field(default_factory=asyncio.Event)
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._is_up.set()

    def move(self, upstream: str) -> None:
        """Pass new connections on to `upstream`; without one, let them wait."""
        self.upstream = upstream
        if upstream:
            self._is_up.set()
        else:
            self._is_up.clear()

    def cut_all(self) -> None:
        """Reset every connection."""
        self.cuts_made += bool(self._open)
        for writer in self._open:
            writer.transport.abort()

    def begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a connection."""
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """Close all connections."""
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._first = time.monotonic() if self._first is None else self._first
        self._open.add(writer)
        try:
            if self.is_silent:
                await reader.read()
            elif time.monotonic() - self._first >= self.refuses_s:
                await self._is_up.wait()
                await self._pass_on(reader, writer)
        except OSError:
            pass  # either side may close at any moment
        finally:
            self._open.discard(writer)
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes on in both directions until one side closes, or the connection is cut."""
        cut = self.cuts.draw() if self.cuts is not None else None
        from_server, to_server = await asyncio.open_connection(*split_address(self.upstream))
        self._open.add(to_server)
        self.connections += 1
        up = asyncio.create_task(self._send_up(reader, to_server))
        down = asyncio.create_task(self._send_down(from_server, writer, cut))
        try:
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._open.discard(to_server)
            to_server.transport.abort()
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)

    async def _send_up(self, reader: asyncio.StreamReader, to_server: asyncio.StreamWriter) -> None:
        watch = FrameWatch(is_from_client=True)
        while data := await reader.read(CHUNK_BYTES):
            if watch.find(data) is not None:
                self.tell_call()
            to_server.write(data)
            await to_server.drain()

    async def _send_down(
        self, from_server: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: tuple[int, bool] | None
    ) -> None:
        passed = 0
        watch = FrameWatch(is_from_client=False)
        while data := await from_server.read(CHUNK_BYTES):
            if self.statuses_cut and (status := watch.find(data, flags=END_STREAM)) is not None:
                self.statuses_cut -= 1
                self.cuts_made += 1
                writer.write(data[: max(status, 0)])
                await writer.drain()
                writer.close()
                return
            if cut is not None and passed + len(data) >= cut[0]:
                writer.write(data[: cut[0] - passed])
                await writer.drain()
                if self.cuts is not None and self.cuts.left > 0:
                    self.cuts.left -= 1
                    self.cuts_made += 1
                if not cut[1]:
                    writer.close()
                return
            passed += len(data)
            writer.write(data)
            await writer.drain()


@asynccontextmanager
async def listening(proxy: CuttingProxy) -> AsyncIterator[CuttingProxy]:
    """Let a proxy listen on a free port of the loopback while the context lasts."""
    server = await asyncio.start_server(proxy.begin, "127.0.0.1", 0)
    proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        await proxy.close()
