"""Two real servers on one PostgreSQL; one is stopped for longer than its lease and then resumes.

It is stopped while each of its runs waits for a model call, and the reply arrives while it is stopped, so that each run
could continue at once when the process resumes. By then the other server has the runs and waits for its model.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

import reasond
from tests.faults.server_process import ServerProcess
from tests.faults.upstream import DONE, STREAM_HEAD, chunk, upstream, usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from reasond.v1 import reasoning_service_pb2
    from tests.faults.upstream import Conversation

pytestmark = pytest.mark.slow

PROGRAM = Path(__file__).resolve().parents[1] / "engines" / "mcp_program.py"
PATIENCE_S = 240.0
RUNS = 6
HELD_STEP = 2
STEPS = 4
FIRST, SECOND = "first", "second"
GONE = (reasond.UnavailableError, reasond.CallCancelledError)


@dataclass
class Model:
    """The model of both servers; it distinguishes them by their keys, and holds replies on request."""

    asked: Counter[tuple[str, str]] = field(default_factory=Counter)
    answered: Counter[tuple[str, str]] = field(default_factory=Counter)
    held: dict[str, list[Conversation]] = field(default_factory=lambda: {FIRST: [], SECOND: []})
    is_open: bool = False
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def serve(self, conversation: Conversation) -> None:
        """Answer a prompt, or hold it."""
        messages = conversation.json.get("messages")
        if not messages:
            await conversation.answer("404 Not Found", b"{}")
            return
        who = FIRST if f"Bearer {FIRST}" in conversation.head else SECOND
        prompt = messages[-1]["content"]
        async with self.changed:
            self.asked[who, prompt] += 1
            if f"/{HELD_STEP}/" in prompt and not self.is_open:
                self.held[who].append(conversation)
            self.changed.notify_all()
            while conversation in self.held[who]:
                await self.changed.wait()
        events = (chunk(f"reply to {prompt}"), chunk(finish="stop"), usage(10, 5), DONE)
        await conversation.send(STREAM_HEAD + b"connection: close\r\n\r\n" + b"".join(events))
        async with self.changed:
            self.answered[who, prompt] += 1
            self.changed.notify_all()

    async def until_held(self, who: str) -> None:
        """Wait until a call of each run is held."""
        async with self.changed, asyncio.timeout(PATIENCE_S):
            await self.changed.wait_for(lambda: len(self.held[who]) == RUNS)

    async def let_go(self, who: str) -> None:
        """Answer all held calls; return when the replies are sent."""
        asked = self.of(who)
        async with self.changed, asyncio.timeout(PATIENCE_S):
            self.held[who].clear()
            self.changed.notify_all()
            await self.changed.wait_for(lambda: all(self.answered[who, prompt] for prompt in asked))

    def of(self, who: str) -> dict[str, int]:
        """Return the prompts of a server with their counts."""
        return {prompt: count for (by, prompt), count in self.asked.items() if by == who}


@dataclass
class Line:
    """The connection of one server to the database, which a test cuts silently."""

    host: str
    port: int
    is_through: asyncio.Event = field(default_factory=asyncio.Event)
    carried: set[asyncio.Task[None]] = field(default_factory=set)

    def begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one more connection."""
        self.carried.add(asyncio.create_task(self.carry(reader, writer)))

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection in both directions."""
        far_reader, far_writer = await asyncio.open_connection(self.host, self.port)
        await asyncio.gather(self._pass_on(reader, far_writer), self._pass_on(far_reader, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                await self.is_through.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


@asynccontextmanager
async def line_to(url: str) -> AsyncIterator[tuple[Line, str]]:
    """Yield a line to the database at `url`, and the address to connect to."""
    parts = urlsplit(url)
    line = Line(host=parts.hostname or "", port=parts.port or 0)
    line.is_through.set()
    async with await asyncio.start_server(line.begin, "127.0.0.1", 0) as near:
        port = near.sockets[0].getsockname()[1]
        yield line, url.replace(f":{line.port}/", f":{port}/")
        line.is_through.set()
        # The servers have ended, which closed their ends of the connections.
        await asyncio.gather(*line.carried)


@dataclass
class Pair:
    """The servers, their model and the notes that their tools wrote."""

    model: Model
    notes: Path
    line: Line
    servers: dict[str, ServerProcess] = field(default_factory=dict)

    def notes_of(self, who: str) -> list[str]:
        """Return the arguments of a server's tool calls."""
        lines = self.notes.read_text("utf-8").splitlines() if self.notes.exists() else []
        return [line.partition(" ")[2] for line in lines if line.startswith(f"{who} ")]

    def client(self, who: str) -> reasond.AsyncClient:
        """Return a client of one of the servers."""
        server = self.servers[who]
        return reasond.AsyncClient(server.target, token=server.token)

    async def until_left(self, who: str) -> None:
        """Wait until a server logs for each run that it has left it to another process."""
        log = self.servers[who].log
        async with asyncio.timeout(PATIENCE_S):
            # Another process cannot set an event here.
            while log.read_text("utf-8", "replace").count("execution left to another process") < RUNS:  # noqa: ASYNC110 - as said
                await asyncio.sleep(0.05)


@asynccontextmanager
async def two_servers(folder: Path, store_url: str) -> AsyncIterator[Pair]:
    """Run both servers; they are killed in the end."""
    async with AsyncExitStack() as stack:
        line, first_url = await stack.enter_async_context(line_to(store_url))
        pair = Pair(model=Model(), notes=folder / "notes", line=line)
        place = await stack.enter_async_context(upstream(pair.model.serve))

        def end_all() -> None:
            for server in pair.servers.values():
                server.kill()

        stack.callback(end_all)
        for who in (FIRST, SECOND):
            config = folder / f"{who}.toml"
            config.write_text(
                "[tools.mcp.t]\n"
                f"command = {json.dumps(sys.executable)}\nargs = {json.dumps([str(PROGRAM)])}\n"
                f"connect_timeout_s = {PATIENCE_S:g}\n"
                f'env = {{ NOTES = {json.dumps(str(pair.notes))}, WHO = "{who}" }}\n',
                encoding="utf-8",
            )
            environ = {
                "REASOND_CONFIG": str(config),
                "REASOND__STORE__URL": first_url if who == FIRST else store_url,
                "REASOND__STORE__LEASE_S": "3",
                "REASOND__LLM__PROVIDER": "openai",
                "REASOND__LLM__BASE_URL": place.address,
                "REASOND__LLM__MODEL": "fake",
                "OPENAI_API_KEY": who,
            }
            pair.servers[who] = ServerProcess.start(folder, who, environ)
        await asyncio.gather(*(server.until_ready() for server in pair.servers.values()))
        yield pair


async def follow(pair: Pair, number: int, turns: list[str], begun: Callable[[str], None]) -> list[bytes]:
    """Start a run, or follow it from its first event, on the servers in turn; return the received events."""
    query = json.dumps({"tag": f"q{number}", "steps": [{"calls": 1, "tool": "t__note" if number % 2 else ""}] * STEPS})
    events: list[reasoning_service_pb2.ReasonIterationsResponse] = []
    execution_id, attempt = "", 0
    async with asyncio.timeout(PATIENCE_S):
        while True:
            async with pair.client(turns[attempt % len(turns)]) as client:
                attempt += 1
                stream = (
                    client.resume(execution_id, after_sequence=events[-1].sequence)
                    if events
                    else client.reason_iterations(query, strategy="listed", request_id=f"r{number}")
                )
                try:
                    async with stream:
                        async for event in stream:
                            if event.WhichOneof("event") in {"heartbeat", "delta"}:
                                continue
                            assert event.sequence == len(events) + 1
                            events.append(event)
                            execution_id = event.execution_id
                            begun(execution_id)
                            if event.HasField("completed"):
                                return [one.SerializeToString(deterministic=True) for one in events]
                except GONE:
                    await asyncio.sleep(0.1)


async def log_at(pair: Pair, who: str, execution_id: str) -> list[bytes]:
    """Return the log as one of the servers returns it now."""
    async with pair.client(who) as client:
        told = await client.get_execution(execution_id)
        stream = client.resume(execution_id, keep_running=True)
        events = []
        async with stream, asyncio.timeout(PATIENCE_S):
            async for event in stream:
                if event.WhichOneof("event") in {"heartbeat", "delta"}:
                    continue
                events.append(event.SerializeToString(deterministic=True))
                if event.sequence == told.execution.last_sequence:
                    return events
    return events


@pytest.mark.parametrize("is_cut_off", [False, True])
async def test_a_server_that_wakes_up_after_its_lease_makes_no_call_and_writes_nothing(
    tmp_path: Path, postgres_url: str, *, is_cut_off: bool
) -> None:
    async with two_servers(tmp_path, postgres_url) as pair:
        model, ids = pair.model, set[str]()
        first = pair.servers[FIRST].process
        at_first = [asyncio.create_task(follow(pair, n, [FIRST], ids.add)) for n in range(RUNS)]
        await model.until_held(FIRST)
        # A second client of each run sends the same request to the other server.
        at_second = [asyncio.create_task(follow(pair, n, [SECOND], ids.add)) for n in range(RUNS)]
        os.kill(first.pid, signal.SIGSTOP)
        await model.until_held(SECOND)
        names, before = sorted(ids), [await log_at(pair, SECOND, name) for name in sorted(ids)]
        asked, noted = model.of(FIRST), pair.notes_of(FIRST)
        assert (len(names), len(noted)) == (RUNS, HELD_STEP * RUNS // 2)
        if is_cut_off:
            # The stopped server gets no notice that it has lost its runs: it has only its clock.
            pair.line.is_through.clear()
        await model.let_go(FIRST)
        os.kill(first.pid, signal.SIGCONT)
        await pair.until_left(FIRST)
        assert (model.of(FIRST), pair.notes_of(FIRST)) == (asked, noted)
        pair.line.is_through.set()
        # Its next request succeeds, after everything that it may still have written.
        async with pair.client(FIRST) as client:
            result = await client.reason(
                '{"tag": "q99", "steps": [{"calls": 1, "tool": "t__note"}]}', strategy="listed"
            )
            assert result.answer == "q99"
            await client.get_execution(result.execution_id)
        assert pair.notes_of(FIRST) == [*noted, "q99/0"]
        assert [await log_at(pair, SECOND, name) for name in names] == before
        model.is_open = True
        await model.let_go(SECOND)
        logs = await asyncio.gather(*at_first)
        assert await asyncio.gather(*at_second) == logs
        assert [await log_at(pair, FIRST, name) for name in names] == sorted(logs)
        assert (model.of(FIRST), pair.notes_of(FIRST)) == ({**asked, "q99/0/0": 1}, [*noted, "q99/0"])
        assert set(model.asked.values()) == {1}
        assert sorted(pair.notes_of(FIRST) + pair.notes_of(SECOND)) == sorted(
            ["q99/0", *(f"q{n}/{step}" for n in range(1, RUNS, 2) for step in range(STEPS))]
        )
