"""Start, repeat, follow, leave, resume, cancel and delete in any order, compared with a short model."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from reasond_server.access.permissions import require_strategy
from reasond_server.agents.directory import AgentDirectory
from reasond_server.base.clock import Clock
from reasond_server.errors.executions import CursorExpiredError, ExecutionNotFoundError
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.executions.desk import ExecutionDesk
from reasond_server.llm.counting import WordPieceCounter
from reasond_server.llm.model import Finished, ModelFinish, Text
from reasond_server.reasoning.configuration import StrategyConfiguration
from reasond_server.reasoning.registry import StrategyRegistry
from reasond_server.reasoning.service import Policy, ReasoningService
from reasond_server.reasoning.strategy_selection import OfferedModels
from reasond_server.reasoning.strategy_work import ReasoningKind
from reasond_server.reasoning.views import read_view
from reasond_server.runs.followers import Follower
from reasond_server.runs.runner import Runner, RunnerLimits
from reasond_server.storage.sqlite_file import open_memory
from reasond_server.storage.transactions import MemoryTransactions
from reasond_server.types import ExecutionState, Heartbeat, Principal, Task, Usage
from tests.simulation.scripted import Listed
from tests.simulation.virtual import VirtualLoop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine, Sequence

    from reasond_server.llm.model import ChatRequest, Message, ModelEvent, TokenCounter
    from reasond_server.types import StreamEvent

pytestmark = pytest.mark.slow

ANN = Principal(subject="ann", tenant="acme", permissions=frozenset({"admin"}))
STEPS = 3
A_WHILE_S = 0.5


class GatedModel:
    """Answers a prompt after the test releases it; counts its answers."""

    name = "gated"
    warnings: Sequence[str] = ()
    context_window = None
    has_native_tools = False

    def __init__(self) -> None:
        self.open: dict[str, asyncio.Future[None]] = {}
        self.answered: Counter[str] = Counter()

    @property
    def counter(self) -> TokenCounter:
        return WordPieceCounter()

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        return self.counter.count_prompt(messages)

    async def aclose(self) -> None:
        return

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        prompt = request.messages[-1].content
        gate = self.open[prompt] = asyncio.get_running_loop().create_future()
        try:
            await gate
        finally:
            del self.open[prompt]
        yield Text(text=f"to {prompt}")
        self.answered[prompt] += 1
        yield Finished(reason=ModelFinish.STOP, usage=Usage(input_tokens=2, output_tokens=3, model_calls=1))


@dataclass(eq=False)
class Expected:
    """The expected state of one execution: the number of its steps, and its status."""

    tag: str
    keeps_running: bool
    steps: int = 0
    broken_off: int = 0
    followers: int = 0
    state: ExecutionState = ExecutionState.RUNNING
    is_deleted: bool = False

    @property
    def events(self) -> int:
        return 1 + self.steps + (self.state is not ExecutionState.RUNNING)

    def leave(self) -> None:
        self.followers -= 1
        if not self.followers and not self.keeps_running:
            self.cancel()

    def cancel(self) -> None:
        if self.state is ExecutionState.RUNNING:
            self.state = ExecutionState.CANCELLED
            self.broken_off += 1


@dataclass(eq=False)
class Stream:
    """A follower: its execution and the events that it has read."""

    of: str
    after: int
    events: list[StreamEvent] = field(default_factory=list)
    task: asyncio.Task[None] | None = None


class Executions(RuleBasedStateMachine):
    """The service on a memory store, compared with its expected state."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.model = GatedModel()
        self.runner, self.service = self.do(self.assemble())
        self.expected: dict[str, Expected] = {}
        self.holders: dict[str, str] = {}
        self.streams: list[Stream] = []
        self.seen: dict[tuple[str, int], object] = {}
        self.tags = 0

    async def assemble(self) -> tuple[Runner, ReasoningService]:
        ids, registry = iter(range(1, 10_000)), StrategyRegistry([Listed()])
        clock = Clock(
            now=self.loop.now,
            monotonic=self.loop.time,
            new_id=lambda: f"e{next(ids)}",
            new_nonce=lambda: "0" * 32,
            random=lambda: 0.5,
        )
        store = MemoryExecutionStore(max_bytes=2**26, now=self.loop.now, monotonic=self.loop.time)
        limits = RunnerLimits(max_concurrent=100, retention_s=1e6)
        kind = ReasoningKind(clock=clock, find_strategy=registry.get, models=OfferedModels(self.model))
        runner = Runner(store=store, model=self.model, clock=clock, limits=limits, kinds=[kind])
        runner.begin()
        follower = Follower(store=store, runner=runner, clock=clock, heartbeat_interval_s=10)
        service = ReasoningService(
            registry=registry,
            configuration=StrategyConfiguration(registry=registry, tables={}),
            directory=AgentDirectory(rows=MemoryTransactions(open_memory()), max_agents=1, now=self.loop.now),
            store=store,
            runner=runner,
            desk=ExecutionDesk(
                store=store,
                runner=runner,
                follower=follower,
                kind=kind.kind,
                require_use=lambda caller, execution: require_strategy(caller, execution.strategy),
            ),
            kind=kind,
            clock=clock,
            policy=Policy(default_strategy="listed"),
        )
        return runner, service

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)

    def settle(self) -> None:
        self.do(asyncio.sleep(A_WHILE_S))

    def follow(self, events: AsyncGenerator[StreamEvent, None], *, after: int) -> Stream:
        stream = Stream(of="", after=after)

        async def read() -> None:
            async with aclosing(events) as source:
                async for event in source:
                    stream.of = event.execution_id
                    if not isinstance(event.event, Heartbeat):
                        stream.events.append(event)

        async def begin() -> None:
            stream.task = asyncio.create_task(read())

        self.do(begin())
        self.settle()
        return stream

    @rule(request_id=st.sampled_from(["", "one", "two"]), keep_running=st.booleans())
    def start(self, request_id: str, *, keep_running: bool) -> None:
        """Start a run, or repeat the request with that request id."""
        holder = self.holders.get(request_id, "")
        known = self.expected.get(holder)
        if known is None:
            self.tags += 1
        tag = known.tag if known else f"q{self.tags}"
        query = json.dumps({"tag": tag, "steps": [{"calls": 1, "tool": ""}] * STEPS})
        events = self.service.stream(ANN, Task(query=query), request_id=request_id, keep_running=keep_running)
        stream = self.follow(events, after=0)
        if known is not None and known.state is not ExecutionState.CANCELLED:
            assert stream.of == holder, "the same request was answered by another execution"
            known.keeps_running = known.keeps_running or (keep_running and known.state is ExecutionState.RUNNING)
        else:
            assert stream.of not in self.expected, "a new request was answered by an old execution"
            # Model replies to an earlier execution of the same request are not requested again.
            steps = known.steps if known else 0
            broken_off = known.broken_off if known else 0
            self.expected[stream.of] = Expected(tag=tag, keeps_running=keep_running, steps=steps, broken_off=broken_off)
            if request_id:
                self.holders[request_id] = stream.of
        self.join(stream)

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), keep_running=st.booleans())
    def resume(self, data: st.DataObject, *, keep_running: bool) -> None:
        """Follow an execution from any of its sequence numbers."""
        name = data.draw(st.sampled_from(sorted(self.expected)))
        known = self.expected[name]
        if known.is_deleted:
            return
        after = data.draw(st.integers(0, known.events))
        events = self.service.desk.resume(ANN, name, after_sequence=after, keep_running=keep_running)
        stream = self.follow(events, after=after)
        stream.of = name
        if known.state is ExecutionState.RUNNING:
            known.keeps_running = known.keeps_running or keep_running
        self.join(stream)

    def join(self, stream: Stream) -> None:
        self.expected[stream.of].followers += self.expected[stream.of].state is ExecutionState.RUNNING
        self.streams.append(stream)

    @precondition(lambda self: self.streams)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        """Disconnect a follower."""
        stream = self.streams.pop(data.draw(st.integers(0, len(self.streams) - 1)))
        assert stream.task is not None
        was_open = not stream.task.done()
        stream.task.cancel()
        self.settle()
        if was_open:
            self.expected[stream.of].leave()

    @precondition(lambda self: self.model.open)
    @rule(data=st.data())
    def answer(self, data: st.DataObject) -> None:
        """Let the model answer one of its pending calls."""
        prompt = data.draw(st.sampled_from(sorted(self.model.open)))
        self.model.open[prompt].set_result(None)
        self.settle()
        tag, number, _ = prompt.split("/")
        (known,) = (one for one in self.expected.values() if one.tag == tag and one.state is ExecutionState.RUNNING)
        assert int(number) == known.steps
        known.steps += 1
        if known.steps == STEPS:
            known.state = ExecutionState.SUCCEEDED

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Cancel a running or ended execution."""
        name = data.draw(st.sampled_from(sorted(self.expected)))
        if not self.expected[name].is_deleted:
            self.do(self.service.desk.cancel(ANN, name))
            self.settle()
            self.expected[name].cancel()

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """Delete a running or ended execution."""
        name = data.draw(st.sampled_from(sorted(self.expected)))
        known = self.expected[name]
        if known.is_deleted:
            return
        self.streams = [stream for stream in self.streams if stream.of != name]
        self.do(self.service.desk.delete(ANN, name))
        self.settle()
        known.cancel()
        known.is_deleted = True
        self.holders = {request_id: holder for request_id, holder in self.holders.items() if holder != name}

    @rule(seconds=st.sampled_from([1.0, 20.0, 100.0]))
    def wait(self, seconds: float) -> None:
        """Let time pass: leases are renewed, nothing else changes."""
        self.do(asyncio.sleep(seconds))

    @invariant()
    def every_execution_is_as_expected(self) -> None:
        for name, known in self.expected.items():
            try:
                view = self.do(read_view(self.service.desk, ANN, name))
            except (ExecutionNotFoundError, CursorExpiredError):
                assert known.is_deleted, f"{name} is gone"
                continue
            assert not known.is_deleted
            assert (view.execution.state, view.execution.last_sequence) == (known.state, known.events), name
            assert len(view.steps) == known.steps
            if known.state is not ExecutionState.RUNNING:
                assert view.result.metrics.usage.model_calls == known.steps + known.broken_off

    @invariant()
    def every_follower_has_all_events_once_and_in_order(self) -> None:
        for stream in self.streams:
            wanted = list(range(stream.after + 1, self.expected[stream.of].events + 1))
            assert [event.sequence for event in stream.events] == wanted, stream.of
            for event in stream.events:
                assert self.seen.setdefault((stream.of, event.sequence), event) == event

    @invariant()
    def no_call_was_answered_twice(self) -> None:
        for prompt, answers in self.model.answered.items():
            tag = prompt.split("/")[0]
            deleted = sum(one.is_deleted for one in self.expected.values() if one.tag == tag)
            assert answers <= 1 + deleted, prompt

    def teardown(self) -> None:
        self.loop.run(self.runner.stop())
        assert self.loop.faults == []


TestExecutions = Executions.TestCase
TestExecutions.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
