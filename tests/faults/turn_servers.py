"""Real servers of turns that tests kill, a model that counts what it is asked for, and tools that note their calls.

The numbers of rounds are small by default; variables of the environment raise them (`read_count`).
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import reasond
from reasond.v1.execution_pb2 import ExecutionCursor
from reasond.v1.strategies_pb2 import ToolResult
from reasond.v1.turns_pb2 import ClientTool, TurnReentry, TurnStart
from tests.engines.served import serving
from tests.faults.upstream import DONE, STREAM_HEAD, chunk, event, upstream, usage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from reasond.v1.turn_service_pb2 import ExecuteTurnResponse
    from reasond.v1.turns_pb2 import HandedOff
    from tests.engines.served import Served
    from tests.faults.upstream import Conversation

PATIENCE_S = 240.0
OPEN_FILE = ClientTool(name="open_file", description="Opens a file.")
PLUGIN = """
import asyncio, json, os

from reasond_server.tools.tool import ModelledTool, ToolArguments


class NoteArguments(ToolArguments):
    text: str = ""


class Note(ModelledTool[NoteArguments]):
    name = "note"
    description = "Notes a text."
    arguments_type = NoteArguments
    is_idempotent = False

    async def call(self, arguments, context):
        line = {"tool": self.name, "text": arguments.text, "key": context.idempotency_key}
        with open(os.environ["NOTES"], "a+", encoding="utf-8") as file:
            file.seek(0)
            is_repeated = context.idempotency_key in file.read()
            file.write(json.dumps(line) + "\\n")
        if arguments.text.startswith("hold") and not is_repeated:
            await asyncio.Event().wait()
        return {"noted": arguments.text}


class SafeNote(Note):
    name = "safe_note"
    is_idempotent = True
"""
"""The tools `note` and `safe_note`: a call whose text begins with "hold" never ends if it is the first with its key."""


def read_count(name: str, usual: int) -> int:
    """Return the number that the environment gives, else the `usual` one."""
    return int(os.environ.get(name, usual))


def ask_tool(*calls: tuple[str, dict[str, Any]]) -> bytes:
    """Return the events of a reply that calls tools."""
    made = [
        {
            "index": place,
            "id": f"call_{place}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        for place, (name, arguments) in enumerate(calls)
    ]
    delta = {"choices": [{"index": 0, "delta": {"tool_calls": made}, "finish_reason": None}]}
    return event(delta) + chunk(finish="tool_calls")


def say(text: str) -> bytes:
    """Return the events of a reply without tool calls."""
    return chunk(text) + chunk(finish="stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A request to the model: what the user said, how many results of tools it has, and the tokens it may cost."""

    text: str
    results: int
    prompt: str
    tokens: int
    most_written: int

    @classmethod
    def of(cls, body: Any) -> Asked:
        """Read a request; each byte of what it shows the model counts as a token."""
        messages = body["messages"]
        calls = [call["function"] for each in messages for call in each.get("tool_calls") or ()]
        specs = [tool["function"] for tool in body.get("tools") or ()]
        texts = [
            *[each.get("content") or "" for each in messages],
            *[one["name"] + one["arguments"] for one in calls],
            *[one["name"] + one["description"] + json.dumps(one["parameters"]) for one in specs],
        ]
        shown = sum(len(text.encode()) for text in texts)
        said = next(each["content"] for each in messages if each["role"] == "user")
        return cls(
            text=said.partition(">")[2].partition("<")[0].strip(),
            results=sum(each["role"] == "tool" for each in messages),
            prompt="\n".join(texts),
            tokens=shown + body.get("max_tokens", body.get("max_completion_tokens")),
            most_written=body.get("max_tokens", body.get("max_completion_tokens")),
        )


@dataclass
class TurnServers:
    """Servers on one store, with the model that all of them call and the file in which their tools note calls.

    The model answers a request by `script`, and says that it wrote as much as it was allowed to.
    """

    folder: Path
    script: Callable[[Asked], bytes]
    environ: dict[str, str] = field(default_factory=dict)
    asked: list[Asked] = field(default_factory=list)
    takes_s: Callable[[], float] = lambda: 0.0
    count: int = 0

    async def answer(self, conversation: Conversation) -> None:
        """Answer one request."""
        body = conversation.json
        if "messages" not in body:
            await conversation.answer("404 Not Found", b"{}")
            return
        asked = Asked.of(body)
        self.asked.append(asked)
        await asyncio.sleep(self.takes_s())
        told = usage(asked.tokens - asked.most_written, asked.most_written)
        await conversation.send(STREAM_HEAD + b"connection: close\r\n\r\n" + self.script(asked) + told + DONE)

    @asynccontextmanager
    async def server(self, **more: str) -> AsyncIterator[TurnServer]:
        """Run one more server while the context lasts, or until it is killed."""
        self.count += 1
        async with AsyncExitStack() as stack:
            served = await stack.enter_async_context(
                serving(self.folder, f"server{self.count}", {**self.environ, **more})
            )
            options = {"grpc.use_local_subchannel_pool": 1}
            client = reasond.AsyncClient(served.grpc, token=served.token, options=options)
            yield TurnServer(served=served, client=await stack.enter_async_context(client))

    @property
    def notes(self) -> Sequence[dict[str, str]]:
        """The calls of tools that have begun."""
        file = self.folder / "notes"
        return [json.loads(line) for line in file.read_text("utf-8").splitlines()] if file.exists() else []

    def count_notes(self) -> Counter[str]:
        """Return how often each text was noted."""
        return Counter(note["text"] for note in self.notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnServer:
    """One server, and a client of it."""

    served: Served
    client: reasond.AsyncClient

    @property
    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self.served.process.poll() is None

    def kill(self) -> None:
        """End it by SIGKILL, like a crash."""
        self.served.process.kill()
        self.served.process.wait()

    async def end(self) -> int:
        """End it by SIGTERM and return its exit code."""
        self.served.process.terminate()
        return await asyncio.to_thread(self.served.process.wait, PATIENCE_S)

    async def follow(
        self, source: TurnStart | TurnReentry | ExecutionCursor, **options: Any
    ) -> list[ExecuteTurnResponse]:
        """Return the logged events to the next exit, also those of a turn that failed."""
        found: list[ExecuteTurnResponse] = []
        try:
            async for each in self.client.execute_turn(source, reconnect=False, **options):
                found += [each] if each.WhichOneof("event") not in {"delta", "heartbeat"} else []
        except reasond.ReasondError:
            if not (found and found[-1].HasField("completed")):
                raise
        return found

    async def read_log(self, turn_id: str) -> list[ExecuteTurnResponse]:
        """Return the log of a turn once it has ended; fail if its numbers have gaps."""
        async with asyncio.timeout(PATIENCE_S):
            events = await self.follow(ExecutionCursor(execution_id=turn_id), follow=True)
        assert [each.sequence for each in events] == [*range(1, len(events) + 1)]
        assert events[-1].HasField("completed")
        return events


def settle(turn_id: str, handoff: HandedOff, value: str) -> TurnReentry:
    """Return the re-entry that settles all calls of `handoff` with `value`."""
    results = [ToolResult(call_id=each.call.call_id, result_json=json.dumps(value)) for each in handoff.calls]
    return TurnReentry(turn_id=turn_id, etag=handoff.etag, results=results)


@asynccontextmanager
async def open_servers(folder: Path, store_url: str, script: Callable[[Asked], bytes]) -> AsyncIterator[TurnServers]:
    """Yield servers of which none runs yet; their model is there."""
    plugin = folder / "plugin"
    info = plugin / "noting_tools-1.dist-info"
    info.mkdir(parents=True)
    (plugin / "noting_tools.py").write_text(PLUGIN, "utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: noting-tools\nVersion: 1\n", "utf-8")
    points = "[reasond.tools]\nnote = noting_tools:Note\nsafe_note = noting_tools:SafeNote\n"
    (info / "entry_points.txt").write_text(points, "utf-8")
    servers = TurnServers(folder=folder, script=script)
    async with upstream(servers.answer) as model:
        servers.environ = {
            "PYTHONPATH": os.pathsep.join([str(plugin), os.environ.get("PYTHONPATH", "")]),
            "NOTES": str(folder / "notes"),
            "OPENAI_API_KEY": "none",
            "REASOND__STORE__URL": store_url,
            "REASOND__STORE__LEASE_S": "3",
            "REASOND__LLM__PROVIDER": "openai",
            "REASOND__LLM__BASE_URL": model.address,
            "REASOND__LLM__MODEL": "fake",
            "REASOND__REASONING__PERFORMANCE__MAX_CONCURRENT_REQUESTS": "200",
            "REASOND__SERVER__DRAIN_GRACE_S": "2",
            "REASOND__TOOLS__ENABLED": '["note", "safe_note"]',
            "REASOND__TURNS__MAX_TOKENS": "256",
        }
        yield servers
