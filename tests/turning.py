"""Servers of turns on one store, with a scripted model, for tests: real stores, a real runner, real tools."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from reasond_server.base.clock import Clock
from reasond_server.errors.limits import StoreUnavailableError
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.executions.desk import ExecutionDesk
from reasond_server.runs.followers import Follower
from reasond_server.runs.runner import Runner, RunnerLimits
from reasond_server.testing import Reply, ScriptedModel
from reasond_server.tools.execution import Tools
from reasond_server.tools.tool import ModelledTool, ToolArguments, ToolContext, ToolFailedError
from reasond_server.turns.policy import TurnPolicy
from reasond_server.turns.turn_service import TurnService
from reasond_server.turns.turn_work import TurnKind
from reasond_server.types import Cursor, Principal, ToolCall, ToolResult
from reasond_server.types.turns import ClientTool, Decision, HandedOff, TurnReentry, TurnStart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from reasond_server.eventlog.store import ExecutionStore
    from reasond_server.llm.model import ChatModel
    from reasond_server.turns.providers import ContextProvider
    from reasond_server.turns.turn_service import TurnView
    from reasond_server.types import StreamEvent

CALLER = Principal(subject="sub:ann", tenant="acme", permissions=frozenset({"admin"}))
LIMITS = RunnerLimits(max_concurrent=8, retention_s=60, lease_s=15, reattach_s=1)


class NoteArguments(ToolArguments):
    text: str = ""


class Note(ModelledTool[NoteArguments]):
    """A tool that counts its calls by their idempotency keys; it fails where the text begins with "fail"."""

    name: ClassVar[str] = "note"
    description: ClassVar[str] = "Notes a text."
    arguments_type: ClassVar[type[ToolArguments]] = NoteArguments

    def __init__(self, *, name: str = "note", is_idempotent: bool = False) -> None:
        self.name = name  # type: ignore[misc]  # a class variable of others, this test's own here
        self.is_idempotent = is_idempotent
        self.calls: list[tuple[str, str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun = asyncio.Event()

    async def call(self, arguments: NoteArguments, context: ToolContext) -> object:
        self.calls.append((arguments.text, context.idempotency_key))
        self.begun.set()
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            if arguments.text == "deaf":
                await asyncio.sleep(0.5)
            raise
        if arguments.text.startswith("fail"):
            raise ToolFailedError("the disk is full")
        if arguments.text.startswith("["):
            return json.loads(arguments.text)
        return {"noted": arguments.text}


def ask_tools(*calls: tuple[str, dict[str, Any]], text: str = "") -> Reply:
    """Return a reply that calls tools."""
    made = tuple(
        ToolCall(call_id=f"call_{name}_{place}", name=name, arguments_json=json.dumps(arguments))
        for place, (name, arguments) in enumerate(calls)
    )
    return Reply(text=text, tool_calls=made)


def client_tool(name: str = "open_file") -> ClientTool:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    return ClientTool(name=name, description="Opens a file.", parameters_json=json.dumps(schema))


@dataclass(slots=True)
class WallClock:
    """A clock that a test moves on."""

    moved_s: float = 0.0
    since: datetime = field(default_factory=lambda: datetime(2026, 11, 23, tzinfo=UTC))

    def now(self) -> datetime:
        return self.since + timedelta(seconds=self.monotonic())

    def monotonic(self) -> float:
        return self.moved_s + asyncio.get_event_loop().time()

    def clock(self) -> Clock:
        return Clock(now=self.now, monotonic=self.monotonic, new_id=lambda: os.urandom(16).hex())


class TurnServer:
    """One process that works out turns over `store`."""

    def __init__(
        self,
        store: ExecutionStore,
        replies: Sequence[str | Reply],
        *,
        tools: Sequence[Any] = (),
        policy: TurnPolicy | None = None,
        records_content: bool = True,
        time: WallClock | None = None,
        context_window: int | None = 32_768,
        has_native_tools: bool = True,
        providers: Sequence[ContextProvider] = (),
        backends: Mapping[str, ChatModel] | None = None,
        served: ScriptedModel | None = None,
        **model: Any,
    ) -> None:
        self.time = time or WallClock()
        clock = self.time.clock()
        self.model = served or ScriptedModel(
            replies, has_native_tools=has_native_tools, context_window=context_window, **model
        )
        self.store = store
        self.is_killed = False
        policy = policy or TurnPolicy()
        source = Tools(tools=tools)
        self.kind = TurnKind(
            clock=clock,
            store=store,
            tools=source,
            policy=policy,
            records_content=records_content,
            providers=providers,
            backends=backends,
        )
        limits = replace(LIMITS, records_content=records_content)
        self.runner = Runner(store=store, model=self.model, clock=clock, limits=limits, kinds=[self.kind])
        follower = Follower(store=store, runner=self.runner, clock=clock, heartbeat_interval_s=30)
        self.service = TurnService(
            store=store,
            runner=self.runner,
            desk=ExecutionDesk(
                store=store,
                runner=self.runner,
                follower=follower,
                kind=self.kind.kind,
                require_use=lambda _caller, _execution: None,
            ),
            kind=self.kind,
            policy=policy,
            clock=clock,
            tool_names=lambda: source.names,
        )

    async def run(self, source: TurnStart | TurnReentry, **options: Any) -> TurnView:
        return await self.service.run(CALLER, source, **options)

    async def events(self, source: TurnStart | TurnReentry | Cursor, **options: Any) -> list[StreamEvent]:
        async with aclosing(self.service.stream(CALLER, source, **options)) as events:
            return [event async for event in events]

    async def log(self, turn_id: str) -> list[Any]:
        return [logged.event for logged in await self.store.read(CALLER.tenant, turn_id)]

    async def wait_for_calls(self, count: int) -> None:
        """Wait until the model was called `count` times."""
        async with asyncio.timeout(60):
            while len(self.model.requests) < count:  # noqa: ASYNC110 - the scripted model tells nobody of a call
                await asyncio.sleep(0.01)

    async def wait_for_suspension(self, turn_id: str) -> None:
        """Wait until no run of this server works on the turn."""
        run = self.runner.find_live(turn_id)
        if run is not None:
            await run.wait_for_end()

    async def round(self) -> None:
        """Do the upkeep once, as it is done every third of a lease."""
        await self.runner._recoverer.lease_keeper.round()

    async def kill(self) -> None:
        """End like a process that is killed: write nothing more. Its leases are over at once: tests need not wait."""
        self.is_killed = True
        runs = dict(self.runner.runs.by_id)
        for run in runs.values():
            run.log.close(StoreUnavailableError("dead"))
        for run in runs.values():
            assert run.driver is not None
            run.driver.cancel()
            await asyncio.wait([run.driver])
        for execution_id, run in runs.items():
            await self.runner._driver.give_back(execution_id, run.log.fence)

    async def stop(self) -> None:
        """Stop, unless it was killed: a dead process does not wait for its runs."""
        if not self.is_killed:
            await self.runner.stop()


def settle(
    turn_id: str, handoff: HandedOff, answer: Callable[[ToolCall], object] = lambda call: {"path": call.call_id}
) -> TurnReentry:
    """Return the re-entry that settles all calls of `handoff`: results by `answer`, and approvals."""
    wanted = [one for one in handoff.calls if one.kind.name != "APPROVE"]
    return TurnReentry(
        turn_id=turn_id,
        etag=handoff.etag,
        results=tuple(ToolResult(call_id=one.call.call_id, result_json=json.dumps(answer(one.call))) for one in wanted),
        decisions=tuple(
            Decision(call_id=one.call.call_id, is_approved=True) for one in handoff.calls if one.kind.name == "APPROVE"
        ),
    )


def serve_in_memory(replies: Sequence[str | Reply], **options: Any) -> TurnServer:
    """Return a server on a store in memory."""
    time = WallClock()
    store = MemoryExecutionStore(max_bytes=10**8, now=time.now, monotonic=time.monotonic)
    return TurnServer(store, replies, time=time, **options)
