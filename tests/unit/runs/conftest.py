"""A runner with a memory store, a strategy whose behaviour a test chooses, and a clock that a test moves."""

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import pytest

from reasond_server.base.clock import Clock
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.llm.counting import WordPieceCounter
from reasond_server.llm.model import (
    ChatRequest,
    Finished,
    Message,
    ModelEvent,
    ModelFinish,
    Role,
    Text,
    TokenCounter,
)
from reasond_server.reasoning.strategy_work import Assignment, ReasoningWork
from reasond_server.runs.runner import Runner, RunnerLimits
from reasond_server.runs.work import WorkRequest
from reasond_server.strategies.strategy import (
    Outcome,
    ReasoningStrategy,
    RunContext,
    Step,
    StrategyConfig,
    StrategyEvent,
    Wrote,
)
from reasond_server.types import Budget, CustomMetrics, CustomStep, FinishReason, StrategySource, Task, Usage
from tests.simulation.virtual import VirtualLoop


class EchoModel:
    """Returns the given word letter by letter. A test can hold it before the first letter."""

    def __init__(self) -> None:
        self.calls = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.called = asyncio.Event()
        self.waited = asyncio.Event()
        self.closed = asyncio.Event()

    name = "echo"
    warnings: Sequence[str] = ("the echo model only repeats",)
    context_window = None

    @property
    def counter(self) -> TokenCounter:
        return WordPieceCounter()

    @property
    def has_native_tools(self) -> bool:
        return False

    async def count_exactly(self, messages: Sequence[Message]) -> int | None:
        return self.counter.count_prompt(messages)

    async def aclose(self) -> None:
        return

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        self.called.set()
        self.calls += 1
        try:
            if not self.gate.is_set():
                self.waited.set()
            await self.gate.wait()
            word = request.messages[-1].content
            for letter in word:
                yield Text(text=letter)
            usage = Usage(input_tokens=10, output_tokens=len(word), model_calls=1)
            yield Finished(reason=ModelFinish.STOP, usage=usage)
        finally:
            self.closed.set()


@dataclass
class Script:
    """The behaviour of the scripted strategy: one model call for each word, and the way in which it ends."""

    words: Sequence[str] = ("one", "two")
    finish: FinishReason = FinishReason.ANSWERED
    before_step: Callable[[int], None] = lambda _index: None
    waits_for: asyncio.Event | None = None
    extra: Any = None
    error: BaseException | None = None
    ends: bool = True
    cleaned_up: asyncio.Event = field(default_factory=asyncio.Event)


class Scripted(ReasoningStrategy[StrategyConfig]):
    """Calls the model once for each word of its script; every call is one step."""

    name = "scripted"
    description = "Does what a test tells it."
    config_type = StrategyConfig

    def __init__(self, script: Script) -> None:
        self.script = script

    async def run(self, task: Task, context: RunContext[StrategyConfig]) -> AsyncGenerator[StrategyEvent, None]:
        try:
            if self.script.waits_for is not None:
                await self.script.waits_for.wait()
            for index, word in enumerate(self.script.words):
                self.script.before_step(index)
                text = ""
                request = ChatRequest(messages=[Message(role=Role.USER, content=word)], max_tokens=50)
                async for event in context.model.stream(request):
                    if isinstance(event, Text):
                        text += event.text
                        yield Wrote(text=event.text)
                yield Step(
                    detail=CustomStep(data={"text": text, "query": task.query, "extra": self.script.extra}),
                    answer_found=index == len(self.script.words) - 1,
                    metrics=CustomMetrics(data={"steps": index + 1}),
                )
            if self.script.error is not None:
                raise self.script.error
            if self.script.ends:
                metrics = CustomMetrics(data={"steps": len(self.script.words)})
                yield Outcome(answer=" ".join(self.script.words), finish_reason=self.script.finish, metrics=metrics)
        finally:
            self.script.cleaned_up.set()


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on a loop with virtual time: when the loop is idle, time advances to the next timer at once."""

    @functools.wraps(test)
    def run(*arguments: object, **fixtures: object) -> None:
        VirtualLoop().run(test(*arguments, **fixtures))

    return run


def passed_s() -> float:
    """Return the seconds that passed in virtual time."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop.passed_s


class ManualClock:
    """A clock that only a test moves."""

    def __init__(self) -> None:
        self.time = datetime(2026, 11, 21, tzinfo=UTC)
        self.ids = count(1)

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.time.timestamp()

    def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)

    def clock(self) -> Clock:
        return Clock(now=self.now, monotonic=self.monotonic, new_id=lambda: f"e{next(self.ids)}")


@pytest.fixture
def time() -> ManualClock:
    return ManualClock()


@pytest.fixture
def model() -> EchoModel:
    return EchoModel()


@pytest.fixture
def store(time: ManualClock) -> MemoryExecutionStore:
    return MemoryExecutionStore(max_bytes=1_000_000, now=time.now, monotonic=time.monotonic)


@pytest.fixture
async def runner(store: MemoryExecutionStore, model: EchoModel, time: ManualClock) -> AsyncGenerator[Runner, None]:
    runner = Runner(store=store, model=model, clock=time.clock(), limits=RunnerLimits(max_concurrent=3, retention_s=60))
    yield runner
    await runner.stop()


@pytest.fixture
def assign(time: ManualClock) -> Callable[..., ReasoningWork]:
    def make(
        script: Script | None = None,
        *,
        query: str = "why?",
        agent: str | None = None,
        strategy: ReasoningStrategy[StrategyConfig] | None = None,
        budget: Budget | None = None,
        **request: Any,
    ) -> ReasoningWork:
        task = Task(query=query, agent=agent, budget=budget or Budget())
        assignment = Assignment(
            task=task,
            strategy=strategy or Scripted(script or Script()),
            strategy_source=StrategySource.REQUEST,
            config=StrategyConfig(),
            shown_config={},
        )
        asked = WorkRequest(**{"tenant": "acme", "keep_running": True, **request}, budget=task.budget)
        return ReasoningWork(assignment=assignment, request=asked, clock=time.clock())

    return make


@pytest.fixture
async def servers(time: ManualClock, assign: Any) -> AsyncGenerator[Any, None]:
    from tests.unit.runs.servers import Servers  # noqa: PLC0415 - that module imports this one

    servers = Servers(time, assign)
    yield servers
    for runner in servers.runners:
        await runner.stop()
