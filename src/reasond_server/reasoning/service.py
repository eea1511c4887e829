"""The entry point of reasoning: chooses a strategy for a task, starts its execution, and returns the result."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from reasond_server.base.asyncio_tasks import finish_though_cancelled
from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.errors.executions import ExecutionNotFoundError
from reasond_server.errors.limits import StoreUnavailableError
from reasond_server.eventlog.mailbox import SilentSubscriber
from reasond_server.executions.desk import ExecutionDesk, note_concerned
from reasond_server.limits.callers import NO_LIMITS, CallerLimits
from reasond_server.reasoning.strategy_selection import Chooser
from reasond_server.reasoning.strategy_work import Assignment, ReasoningKind
from reasond_server.reasoning.views import ExecutionView, StrategyInfo, build_view, read_view
from reasond_server.requests.task_checks import DEFAULT_BOUNDS, HistoryBounds, check_task, digest_request
from reasond_server.runs.work import ABANDONED, WorkRequest, build_error_ending, build_failure
from reasond_server.telemetry.scope import get_current_trace, get_current_wire, note_result
from reasond_server.types import Execution, LoggedEvent, Principal, Result, StreamEvent, Task
from reasond_server.types.executions import write_headline
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from reasond_server.agents.directory import AgentDirectory
    from reasond_server.base.clock import Clock
    from reasond_server.eventlog.store import ExecutionStore
    from reasond_server.reasoning.configuration import StrategyConfiguration
    from reasond_server.reasoning.registry import StrategyRegistry
    from reasond_server.runs.run import Run
    from reasond_server.runs.runner import Runner
    from reasond_server.strategies.strategy import ReasoningStrategy
    from reasond_server.types.tasks import MeasuredChoice, TaskForm

__all__ = ["ExecutionView", "Policy", "ReasoningService", "StrategyInfo"]

# The rest of a caller's time is reserved for writing and sending the last event.
_DEADLINE_SHARE = 0.95
_STORE_WITHIN_S = 2.0
_NO_SANDBOX = "Not usable here: this server has no sandbox for programs ([reasoning] program_environment)."
_LEFT_OUT = "The store cannot be reached: the first steps are left out."


@value
class _StartOptions:
    """The caller's options besides the task."""

    request_id: str = ""
    keep_running: bool = False
    deadline_s: float | None = None
    is_unary: bool = False


@value
class Policy:
    """The operator's decisions for the reasoning service."""

    default_strategy: str = ""
    is_auto_enabled: bool = False
    choices: Mapping[TaskForm, MeasuredChoice] = field(default_factory=dict)
    selection_timeout_s: float = 0.05
    history: HistoryBounds = DEFAULT_BOUNDS


@dataclass(eq=False, kw_only=True)
class ReasoningService:
    """Executes tasks for verified callers; `desk` reads and follows their executions."""

    registry: StrategyRegistry
    configuration: StrategyConfiguration
    directory: AgentDirectory
    store: ExecutionStore
    runner: Runner
    desk: ExecutionDesk
    kind: ReasoningKind
    clock: Clock
    policy: Policy
    limits: CallerLimits = NO_LIMITS

    def __post_init__(self) -> None:
        self._models = self.kind.models
        self._chooser = Chooser(
            registry=self.registry,
            configuration=self.configuration,
            directory=self.directory,
            models=self.kind.models,
            default_strategy=self.policy.default_strategy,
            is_auto_enabled=self.policy.is_auto_enabled,
            choices=self.policy.choices,
            within_s=self.policy.selection_timeout_s,
            has_programs=self.kind.programs.is_available,
            schemas=self.kind.schemas,
        )

    @property
    def model_name(self) -> str:
        """Name of the model behind the strategies."""
        return self._models.own.name

    @property
    def model_warnings(self) -> Sequence[str]:
        """Warnings for callers about the model."""
        return self._models.own.warnings

    @property
    def offered_models(self) -> Sequence[str]:
        """Names of the backends that a task may name."""
        return self._models.names

    @property
    def offers_auto(self) -> bool:
        """Whether tasks may ask for the rule `auto` in place of a strategy."""
        return self.policy.is_auto_enabled

    def strategies(self) -> Sequence[StrategyInfo]:
        """Return the enabled strategies by name, with the schema, defaults and ceilings that apply here."""
        return [self._inform(strategy) for strategy in self.registry]

    def _inform(self, strategy: ReasoningStrategy[Any]) -> StrategyInfo:
        config, shown_config = self.configuration.resolve(strategy, request={})
        is_usable = self.kind.programs.is_available or not config.runs_programs
        return StrategyInfo(
            name=strategy.name,
            description=strategy.description if is_usable else f"{strategy.description} {_NO_SANDBOX}",
            config_schema=self.configuration.schema(strategy),
            default_config=shown_config,
            capabilities=strategy.get_capabilities(),
            is_default=strategy.name == self.policy.default_strategy,
            ceilings=self.configuration.ceilings(strategy),
            cost_class=strategy.cost_class,
            cost_formula=strategy.cost_formula,
        )

    async def execute(
        self, caller: Principal, task: Task, *, request_id: str = "", deadline_s: float | None = None
    ) -> ExecutionView:
        """Execute `task` and return the result, which is the last event of the log that `stream` follows.

        A caller with a request id that leaves and retries pays for no call twice: open model calls are completed and
        recorded before the run is cancelled.

        Raises:
            ReasondError: nothing was started, or the run failed; if it failed, `execution_id` is set and `read_view`
                returns its steps.
        """
        if not request_id:
            return await self._execute_unresumable(caller, task, deadline_s)
        options = _StartOptions(request_id=request_id, deadline_s=deadline_s, is_unary=True)
        while True:
            execution = await self._start_once(caller, task, options)
            result = await self._wait_for_result(execution)
            # Another process may abandon the run at the same moment at which its caller retries here.
            if ABANDONED not in result.warnings:
                break
        view = await read_view(self.desk, caller, execution.execution_id)
        note_result(result.metrics.usage, str(result.finish_reason or ""), strategy=result.strategy_used)
        # If no content is stored, the store holds less than the stream has sent.
        return replace(view, result=result)

    async def stream(
        self,
        caller: Principal,
        task: Task,
        *,
        request_id: str = "",
        include_deltas: bool = False,
        keep_running: bool = False,
        may_return: bool = False,
        deadline_s: float | None = None,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Start `task` and yield its events as they come; if the run fails, raise its error at the end.

        A known request id starts nothing: its execution is followed from the first event. Closing the iterator cancels
        the run, unless it has another subscriber or `keep_running` is set. With `may_return` the open model calls are
        completed and recorded first, and the run waits `reattach_s` seconds, so that who comes back pays for none of
        them twice.
        """
        options = _StartOptions(request_id=request_id, keep_running=keep_running, deadline_s=deadline_s)
        starting = self._start_once(caller, task, options)
        if keep_running:
            starting = finish_though_cancelled(starting, name="start of a kept execution")
        execution = await starting
        run = self.runner.find_live(execution.execution_id)
        if may_return and run is not None:
            run.subscribers.expect_return()
        events = self.desk.follow(execution, include_deltas=include_deltas)
        async with aclosing(events):
            async for event in events:
                yield event

    async def _execute_unresumable(self, caller: Principal, task: Task, deadline_s: float | None) -> ExecutionView:
        """Execute `task` for a caller that cannot come back for it; the result may not be committed yet."""
        check_task(task, history=self.policy.history)
        execution = await self._start(caller, task, _StartOptions(deadline_s=deadline_s, is_unary=True))
        run = self.runner.find_live(execution.execution_id)
        if run is None:
            raise InternalError("the execution is gone before it has begun")
        subscriber = SilentSubscriber()
        run.subscribers.attach(subscriber)
        try:
            result: Result | None = await run.wait_for_result()  # type: ignore[assignment]  # reasoning ends with a Result
            if result is None:
                raise _explain_gone(run)
            note_result(result.metrics.usage, str(result.finish_reason or ""), strategy=result.strategy_used)
            if result.error is not None:
                raise build_failure(result.error, result.execution_id, error=run.error)
            events = await self._read_events(run)
            if events and events[0].sequence > 1:
                result = replace(result, warnings=(*result.warnings, _LEFT_OUT))
            return build_view(run.log.execution, events, result=result)
        finally:
            run.subscribers.detach(subscriber)

    async def _read_events(self, run: Run) -> Sequence[LoggedEvent]:
        """Return the events of a run that has its answer; only the last ones if the store does not return the rest."""
        events = run.log.events.read_all()
        if events is not None:
            return events
        try:
            async with asyncio.timeout(_STORE_WITHIN_S):
                await run.log.wait_for_commit()
                return await self.store.read(run.identity.tenant, run.identity.execution_id)
        except (TimeoutError, ReasondError):
            return run.log.events.read_recent()

    async def _start_once(self, caller: Principal, task: Task, options: _StartOptions) -> Execution:
        """Return the execution that the request id stands for, or start one."""
        check_task(task, request_id=options.request_id, history=self.policy.history)
        digest = digest_request(task) if options.request_id else ""
        start = partial(self._start, caller, task, options, digest=digest)
        return await self.desk.start_once(
            caller, options.request_id, digest, start=start, keep_running=options.keep_running
        )

    async def _wait_for_result(self, execution: Execution) -> Result:
        """Follow an execution to its end, for a caller that may retry its request."""
        run = self.runner.find_live(execution.execution_id)
        if run is not None:
            run.subscribers.finishes_open_calls = True
        async with aclosing(self.desk.follow(execution, include_deltas=False)) as events:
            async for event in events:
                if isinstance(event.event, Result):
                    result = event.event
        return result

    async def _start(self, caller: Principal, task: Task, options: _StartOptions, *, digest: str = "") -> Execution:
        """Start an execution once there is a place for it."""
        began_s = self.clock.monotonic()
        place = await self.runner.find_place(caller.tenant, within_s=options.deadline_s)
        with place:
            choice = await self._chooser.choose(caller, task)
            permit = await self.limits.admit(caller, choice.selection.strategy.name)
            place.keep(permit)
            # After the admission: a caller over its limit must not be able to cause the cost of counting and checking.
            choice = await self._chooser.apply_rule(caller, task, choice)
            selection = choice.selection
            await self._chooser.check(caller, selection.strategy, task, choice.config)
            left_s = options.deadline_s
            if left_s is not None:
                left_s = max(0.0, left_s - (self.clock.monotonic() - began_s)) * _DEADLINE_SHARE
            trace = get_current_trace()
            assignment = Assignment(
                task=task,
                strategy=selection.strategy,
                strategy_source=selection.source,
                warnings=selection.warnings,
                config=choice.config,
                shown_config=choice.shown_config,
            )
            request = WorkRequest(
                tenant=caller.tenant,
                subject=caller.subject,
                request_id=options.request_id,
                digest=digest,
                keep_running=options.keep_running,
                time_limit_s=left_s,
                is_unary=options.is_unary,
                trace="" if trace is None else trace.text,
                permit="" if permit is None else permit.name,
                question=write_headline(task.query),
                wire=get_current_wire(),
                budget=task.budget,
                model=None if task.model is None else self._models.find(task.model),
                prompts_begin_with=find_beginning(task),
            )
            execution = await self.runner.start(self.kind.create(assignment, request), place=place)
        note_concerned(execution.execution_id)
        return execution


def find_beginning(task: Task) -> str:
    """Return what prompts of the task show first: its conversation, its material, else its question."""
    said = next((message.text for message in task.history if message.text), "")
    return said or task.material or task.query


def _explain_gone(run: Run) -> ReasondError:
    """Return the error for a run that left this process without a result."""
    if isinstance(run.log.error, ExecutionNotFoundError):
        return run.log.error.copy()
    error = StoreUnavailableError(
        "The server was out of touch with its store for too long, and another one took the execution over",
        remedy="Start the task again.",
    )
    return build_error_ending(error, usage=run.accounts.usage).error or error
