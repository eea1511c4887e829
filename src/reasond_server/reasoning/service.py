"""The front door of the core: both transports call this object and nothing behind it."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from reasond_server.access.permissions import allowed_strategies, require_strategy, require_tools
from reasond_server.agents.cards import strategies_of
from reasond_server.errors import InternalError, InvalidRequestError, StoreUnavailableError, Violation
from reasond_server.executions.following import Follower
from reasond_server.executions.run import Assignment
from reasond_server.executions.store import ExecutionFilter
from reasond_server.reasoning.paging import place_of, token_after
from reasond_server.reasoning.requests import check_task, digest_of
from reasond_server.reasoning.selection import Selection, Wish, select
from reasond_server.types import Iteration, Metrics, Result

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from reasond_server.agents.directory import AgentDirectory, RegisteredAgent
    from reasond_server.executions.runner import Clock, Runner
    from reasond_server.executions.store import ExecutionStore
    from reasond_server.llm.model import ChatModel
    from reasond_server.reasoning.configuration import StrategyConfiguration
    from reasond_server.reasoning.registry import StrategyRegistry
    from reasond_server.strategies.strategy import ReasoningStrategy, StrategyConfig
    from reasond_server.types import CostClass, Execution, FinishReason, Json, Principal, StreamEvent, Task

_DEFAULT_PAGE = 50
_LARGEST_PAGE = 100
# The rest of a caller's time is for the last event to be written and sent.
_DEADLINE_SHARE = 0.95
# Checking a longer text takes long enough to be felt by other runs in the same event loop.
_LONG_TEXT_CHARACTERS = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionView:
    """An execution with its result and steps; both are partial until it has ended well."""

    execution: Execution
    result: Result
    steps: Sequence[Iteration]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPage:
    """One page of executions, newest first; the token is empty on the last page."""

    executions: Sequence[Execution]
    next_page_token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyInfo:
    """What clients are told of a strategy; `config_schema` is JSON Schema, draft 2020-12.

    `ceilings` holds the operator's by parameter. `cost_class` is None where the strategy does not say how its
    model calls grow, and `cost_formula` is then empty.
    """

    name: str
    description: str
    config_schema: Json
    default_config: Json
    capabilities: Sequence[str]
    is_default: bool
    ceilings: Json = field(default_factory=dict)
    cost_class: CostClass | None = None
    cost_formula: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the operator decided for the front door."""

    default_strategy: str = ""
    heartbeat_interval_s: float = 10.0
    flush_interval_s: float = 0.03
    selection_timeout_s: float = 0.05


class ReasoningService:
    """Starts, follows, looks up, cancels and forgets executions on behalf of a verified caller."""

    def __init__(
        self,
        *,
        registry: StrategyRegistry,
        configuration: StrategyConfiguration,
        directory: AgentDirectory,
        store: ExecutionStore,
        runner: Runner,
        model: ChatModel,
        clock: Clock,
        policy: Policy,
    ) -> None:
        self._registry = registry
        self._configuration = configuration
        self._directory = directory
        self._store = store
        self._runner = runner
        self._model = model
        self._policy = policy
        self._follower = Follower(
            store=store,
            runner=runner,
            clock=clock,
            heartbeat_interval_s=policy.heartbeat_interval_s,
            flush_interval_s=policy.flush_interval_s,
        )

    @property
    def model_name(self) -> str:
        """Name of the model behind the strategies."""
        return self._model.name

    @property
    def model_warnings(self) -> Sequence[str]:
        """What callers should know about the model."""
        return self._model.warnings

    def strategies(self) -> Sequence[StrategyInfo]:
        """Return the enabled strategies by name, with the schema, defaults and ceilings that apply here."""
        return [
            StrategyInfo(
                name=strategy.name,
                description=strategy.description,
                config_schema=self._configuration.schema(strategy),
                default_config=self._configuration.resolve(strategy, request={}).model_dump(mode="json"),
                capabilities=strategy.get_capabilities(),
                is_default=strategy.name == self._policy.default_strategy,
                ceilings=self._configuration.ceilings(strategy),
                cost_class=strategy.cost_class,
                cost_formula=strategy.cost_formula,
            )
            for strategy in self._registry
        ]

    async def execute(
        self, caller: Principal, task: Task, *, request_id: str = "", deadline_s: float | None = None
    ) -> ExecutionView:
        """Work `task` out and return the result; the last event of the same log that `stream` follows.

        Raises:
            ReasondError: nothing was started, or the run failed: then `execution_id` is set and what it did can
                be read with `get`.
        """
        execution_id = ""
        async with aclosing(self.stream(caller, task, request_id=request_id, deadline_s=deadline_s)) as events:
            async for event in events:
                execution_id = event.execution_id
        return await self.get(caller, execution_id)

    async def stream(
        self,
        caller: Principal,
        task: Task,
        *,
        request_id: str = "",
        include_deltas: bool = False,
        keep_running: bool = False,
        deadline_s: float | None = None,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Start `task` and yield its events as they come; a failed run ends with its error raised.

        Closing the iterator cancels the run, unless somebody else follows it or `keep_running` is set.
        """
        check_task(task, request_id=request_id)
        with self._runner.place():
            assignment = replace(
                await self._assignment(caller, task),
                request_id=request_id,
                digest=digest_of(task) if request_id else "",
                keep_running=keep_running,
                time_limit_s=None if deadline_s is None else deadline_s * _DEADLINE_SHARE,
            )
            execution = await self._runner.start(assignment)
        events = self._follower.follow(execution, after=0, include_deltas=include_deltas, keep_running=keep_running)
        async with aclosing(events):
            async for event in events:
                yield event

    async def resume(
        self,
        caller: Principal,
        execution_id: str,
        *,
        after_sequence: int,
        include_deltas: bool = False,
        keep_running: bool = False,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events of an execution above `after_sequence`, those to come included.

        `keep_running` lets the execution go on when this stream is cut; it cannot be taken back.

        Raises:
            ExecutionNotFoundError: there is none for this caller.
            CursorExpiredError: its log is no longer kept.
            InvalidRequestError: the log never was that long.
        """
        execution = await self._store.find(caller.tenant, execution_id)
        if not 0 <= after_sequence <= execution.last_sequence:
            text = f"must be between 0 and {execution.last_sequence}, got {after_sequence}"
            raise InvalidRequestError.of(Violation(field="resume.after_sequence", description=text))
        events = self._follower.follow(
            execution, after=after_sequence, include_deltas=include_deltas, keep_running=keep_running
        )
        async with aclosing(events):
            async for event in events:
                yield event

    async def get(self, caller: Principal, execution_id: str) -> ExecutionView:
        """Return the execution with its result so far. Raises as `resume`."""
        execution = await self._store.find(caller.tenant, execution_id)
        events = await self._store.read(caller.tenant, execution_id)
        steps = [logged.event for logged in events if isinstance(logged.event, Iteration)]
        last = events[-1].event if events else None
        result = last if isinstance(last, Result) else _partial(execution)
        return ExecutionView(execution=execution, result=result, steps=steps)

    async def cancel(self, caller: Principal, execution_id: str) -> Execution:
        """Stop the execution, wait until its log has ended, and return it. Raises as `resume`."""
        await self._store.find(caller.tenant, execution_id)
        await self._stop(execution_id)
        return await self._store.find(caller.tenant, execution_id)

    async def list_executions(
        self,
        caller: Principal,
        *,
        strategy: str = "",
        finish_reason: FinishReason | None = None,
        page_size: int = 0,
        page_token: str = "",
    ) -> ExecutionPage:
        """Return a page of the caller's executions, newest first.

        Raises:
            InvalidRequestError: `page_size` is negative, or `page_token` is not from the page before.
        """
        if page_size < 0:
            text = f"must be at least 0, got {page_size}"
            raise InvalidRequestError.of(Violation(field="page_size", description=text))
        size = min(page_size or _DEFAULT_PAGE, _LARGEST_PAGE)
        wanted = ExecutionFilter(strategy=strategy, finish_reason=finish_reason)
        before = place_of(page_token, wanted) if page_token else None
        found = await self._store.page(caller.tenant, wanted, size=size + 1, before=before)
        token = token_after(found[size - 1], wanted) if len(found) > size else ""
        return ExecutionPage(executions=found[:size], next_page_token=token)

    async def delete(self, caller: Principal, execution_id: str) -> None:
        """Stop the execution if it runs, and forget it. Raises as `resume`."""
        await self._store.find(caller.tenant, execution_id)
        await self._stop(execution_id)
        await self._store.delete(caller.tenant, execution_id)

    async def _agent(self, caller: Principal, task: Task) -> RegisteredAgent | None:
        """Return the agent that the task names, if it names one."""
        if not task.agent:
            return None
        return await self._directory.get(tenant=caller.tenant, agent_id=task.agent)

    async def _stop(self, execution_id: str) -> None:
        run = self._runner.live(execution_id)
        if run is not None:
            run.cancel()
            await run.ended()

    async def _assignment(self, caller: Principal, task: Task) -> Assignment:
        """Decide which strategy works with which configuration, and whether it can work at all."""
        try:
            async with asyncio.timeout(self._policy.selection_timeout_s):
                agent = await self._agent(caller, task)
        except TimeoutError:
            raise StoreUnavailableError(
                f"Looking the agent up took longer than {self._policy.selection_timeout_s * 1000:g} ms",
                remedy="Retry, or raise [reasoning.performance] strategy_selection_timeout_ms.",
                retry_after_s=1.0,
            ) from None
        selection = self._selection(caller, task, agent)
        strategy = selection.strategy
        config = self._configuration.resolve(strategy, request=task.config, agent=_agent_config(agent, strategy.name))
        if config.uses_tools:
            require_tools(caller)
        await self._check(strategy, task, config)
        return Assignment(
            tenant=caller.tenant,
            task=task,
            strategy=strategy,
            strategy_source=selection.source,
            config=config,
            shown_config=config.model_dump(mode="json"),
        )

    async def _check(self, strategy: ReasoningStrategy[Any], task: Task, config: StrategyConfig) -> None:
        """Let the strategy refuse the task.

        Raises:
            InternalError: it raised what would end the whole process, such as SystemExit.
        """
        try:
            if len(task.query) + len(task.material) > _LONG_TEXT_CHARACTERS:
                await asyncio.to_thread(strategy.check, task, config, self._model)
            else:
                strategy.check(task, config, self._model)
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:
            raise InternalError(f"the check of strategy {strategy.name!r} failed") from error

    def _selection(self, caller: Principal, task: Task, agent: RegisteredAgent | None) -> Selection:
        """Choose a strategy that the caller may use."""
        wish = Wish(
            requested=task.strategy,
            offered=None if agent is None else agent.strategies,
            # Capabilities that name no strategy say nothing about strategies, so they narrow nothing.
            narrowed_to=strategies_of(task.agent_capabilities) or None,
            allowed=allowed_strategies(caller),
            default=self._policy.default_strategy,
        )
        selection = select(wish, self._registry)
        require_strategy(caller, selection.strategy.name)
        return selection


def _agent_config(agent: RegisteredAgent | None, strategy: str) -> Json:
    """Return the parameters that the agent's card sets for a strategy."""
    return {} if agent is None else agent.strategy_config.get(strategy, {})


def _partial(execution: Execution) -> Result:
    """Return the result of an execution that has not ended: no answer, what was spent."""
    return Result(
        execution_id=execution.execution_id,
        answer="",
        strategy_used=execution.strategy,
        strategy_source=execution.strategy_source,
        finish_reason=None,
        metrics=Metrics(usage=execution.usage, execution_time_s=0.0),
        warnings=("The execution is still running.",),
        model=execution.model,
    )
