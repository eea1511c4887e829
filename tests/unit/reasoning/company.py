"""Several servers on one store with one slow model, and callers that disconnect."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Sequence

from reasond_server.access.permissions import require_strategy
from reasond_server.agents.directory import AgentDirectory
from reasond_server.eventlog.stored.sqlite_store import MemoryExecutionStore
from reasond_server.executions.desk import ExecutionDesk
from reasond_server.limits.callers import NO_LIMITS, CallerLimits
from reasond_server.llm.model import ChatRequest, Finished, Message, ModelEvent, ModelFinish, Role, Text
from reasond_server.reasoning.configuration import StrategyConfiguration
from reasond_server.reasoning.registry import StrategyRegistry
from reasond_server.reasoning.service import Policy, ReasoningService
from reasond_server.reasoning.strategy_selection import OfferedModels
from reasond_server.reasoning.strategy_work import ReasoningKind
from reasond_server.runs.followers import Follower
from reasond_server.runs.runner import Runner, RunnerLimits
from reasond_server.storage.sqlite_file import open_memory
from reasond_server.storage.transactions import MemoryTransactions
from reasond_server.strategies.strategy import (
    Outcome,
    ReasoningStrategy,
    RunContext,
    Step,
    StrategyConfig,
    StrategyEvent,
)
from reasond_server.types import CustomMetrics, CustomStep, FinishReason, Principal, Task, Usage
from tests.unit.runs.conftest import EchoModel, ManualClock

ALICE = Principal(subject="alice", tenant="acme", permissions=frozenset({"reasoning:execute"}))
LIMITS = RunnerLimits(max_concurrent=9, retention_s=10_000, lease_s=15, reattach_s=30)


class Timed(EchoModel):
    """Takes two seconds for each call, and notes the calls that began and the calls that succeeded."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: Counter[str] = Counter()
        self.heard: Counter[str] = Counter()

    async def stream(self, request: ChatRequest) -> AsyncGenerator[ModelEvent, None]:
        word = request.messages[-1].content
        self.begun[word] += 1
        await asyncio.sleep(1)
        yield Text(text=word)
        await asyncio.sleep(1)
        self.heard[word] += 1
        yield Finished(reason=ModelFinish.STOP, usage=Usage(input_tokens=10, output_tokens=1, model_calls=1))


class Grouped(ReasoningStrategy[StrategyConfig]):
    """Calls the model for each word of the query. The calls of a group are concurrent; each group is one step."""

    name = "grouped"
    description = "Calls in groups."
    config_type = StrategyConfig
    is_replayable = True

    async def run(self, task: Task, context: RunContext[StrategyConfig]) -> AsyncGenerator[StrategyEvent, None]:
        groups = json.loads(task.query)
        metrics = CustomMetrics(data={})
        for group in groups:
            texts = await asyncio.gather(*(_answer(context, word) for word in group))
            yield Step(detail=CustomStep(data={"texts": texts}), answer_found=False, metrics=metrics)
        yield Outcome(answer=task.query, finish_reason=FinishReason.ANSWERED, metrics=metrics)


class Forgetful(Grouped):
    """The same strategy, but it cannot be replayed."""

    is_replayable = False


async def _answer(context: RunContext[StrategyConfig], word: str) -> str:
    request = ChatRequest(messages=[Message(role=Role.USER, content=word)], max_tokens=50)
    return "".join([event.text async for event in context.model.stream(request) if isinstance(event, Text)])


class Shared(MemoryExecutionStore):
    is_durable = True


class Company:
    """Servers on one store with one model."""

    def __init__(
        self, strategy: ReasoningStrategy[StrategyConfig] | None = None, *, limits: CallerLimits = NO_LIMITS
    ) -> None:
        self.limits = limits
        self.time = ManualClock()
        self.store = Shared(max_bytes=10**8, now=self.time.now, monotonic=self.time.monotonic)
        self.model = Timed()
        self.strategy = strategy or Grouped()
        self.runners: list[Runner] = []

    def service(self) -> ReasoningService:
        registry = StrategyRegistry([self.strategy])
        clock = self.time.clock()
        kind = ReasoningKind(clock=clock, find_strategy=registry.get, models=OfferedModels(self.model))
        runner = Runner(
            store=self.store,
            model=self.model,
            clock=clock,
            limits=LIMITS,
            kinds=[kind],
            carry_over=self.limits.carry_over,
        )
        self.runners.append(runner)
        return ReasoningService(
            registry=registry,
            configuration=StrategyConfiguration(registry=registry, tables={}),
            directory=AgentDirectory(rows=MemoryTransactions(open_memory()), max_agents=1, now=clock.now),
            store=self.store,
            runner=runner,
            desk=ExecutionDesk(
                store=self.store,
                runner=runner,
                follower=Follower(store=self.store, runner=runner, clock=clock, heartbeat_interval_s=0.5),
                kind=kind.kind,
                require_use=lambda caller, execution: require_strategy(caller, execution.strategy),
            ),
            kind=kind,
            clock=clock,
            policy=Policy(default_strategy="grouped"),
            limits=self.limits,
        )


def task_of(groups: Sequence[Sequence[str]]) -> Task:
    return Task(query=json.dumps(groups), strategy="grouped")


async def leave_after(seconds: float, call: Awaitable[object]) -> None:
    """Act as a caller whose connection breaks after `seconds`."""
    going = asyncio.ensure_future(call)
    await asyncio.wait([going], timeout=seconds)
    going.cancel()
    await asyncio.wait([going])
