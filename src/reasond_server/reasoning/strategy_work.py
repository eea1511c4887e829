"""Reasoning as a kind of work: a strategy executes a task, and its steps become the events of a log."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from reasond_server.context.answer_schemas import SchemaCompiler
from reasond_server.context.calls import run_by_size
from reasond_server.context.final_replies import read_cut_call
from reasond_server.context.tags import restore
from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.eventlog.stored.codec import detail_digest
from reasond_server.reasoning.answer_finishing import finish_answer
from reasond_server.reasoning.run_tools import JournaledPrograms, JournaledToolbox, TracedPrograms, TracedToolbox
from reasond_server.reasoning.strategy_selection import OfferedModels, preface_model
from reasond_server.requests.payloads import require_outcome, require_step, require_wrote
from reasond_server.requests.task_checks import decode_task
from reasond_server.runs.phase import OWN_ENDS, Phase, Trigger
from reasond_server.runs.plan import Plan, PlanError, build_foreign_plan_error, make_nonces, read_work
from reasond_server.runs.run_driver import make_carriable
from reasond_server.runs.run_journal import JournaledModel, RepeatedSteps
from reasond_server.runs.work import RunEnding, WorkRequest
from reasond_server.strategies.strategy import (
    SHORTAGES,
    EarlyEnding,
    Outcome,
    ReasoningStrategy,
    RunContext,
    Step,
    StrategyConfig,
    StrategyEvent,
    Wrote,
)
from reasond_server.tools.programs import NO_PROGRAMS, ProgramRunner
from reasond_server.tools.tool import NO_TOOLS, Toolbox, ToolSource
from reasond_server.types import (
    ExecutionStarted,
    FinishReason,
    Iteration,
    Metrics,
    Result,
    Sample,
    StageStep,
    StrategySource,
    Thought,
    Usage,
    build_row,
)
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from reasond_server.base.clock import Clock
    from reasond_server.eventlog.store import Recovery
    from reasond_server.llm.model import ChatModel
    from reasond_server.runs.run import Run
    from reasond_server.types import Event, ExecutionFailure, Json, StepDetail, StrategyMetrics, Task, TextDelta

REASONING: Final = "reasoning"
"""The name of this kind of work."""
_EVENTS_PER_TURN: Final = 16


@value
class Assignment:
    """A task with its strategy and configuration, all chosen and checked.

    Attributes:
        strategy_source: who chose the strategy.
        shown_config: the configuration in the form shown to callers.
        warnings: what the caller is told of the choice.
    """

    task: Task
    strategy: ReasoningStrategy[Any]
    strategy_source: StrategySource
    config: StrategyConfig
    shown_config: Json
    warnings: Sequence[str] = ()


class ReasoningKind:
    """Makes the work of strategies: new work, or restored work that another process left behind.

    `find_strategy` returns a strategy by name and raises an error if there is none. `tools` are the tools of the runs,
    `programs` runs the programs of their models, `models` are those that tasks may name, and `schemas` compiles the
    schemas of their answers.
    """

    kind: str = REASONING
    keeps_plan: bool = True
    is_timed_at_work: bool = False

    def __init__(
        self,
        *,
        clock: Clock,
        tools: ToolSource = NO_TOOLS,
        programs: ProgramRunner = NO_PROGRAMS,
        find_strategy: Callable[[str], ReasoningStrategy[Any]],
        models: OfferedModels,
        schemas: SchemaCompiler | None = None,
    ) -> None:
        self.schemas = schemas or SchemaCompiler()
        self.programs = programs
        self.models = models
        self.clock = clock
        self._tools = tools
        self._find_strategy = find_strategy

    def create(self, assignment: Assignment, request: WorkRequest) -> ReasoningWork:
        """Return new work."""
        return ReasoningWork(
            assignment=assignment,
            request=request,
            clock=self.clock,
            tools=self._tools,
            programs=self.programs,
            schemas=self.schemas,
        )

    def revive(self, plan: Plan, recovery: Recovery) -> ReasoningWork:
        """Return work that repeats the recorded calls and the logged steps, and then continues.

        Raises:
            PlanError: the strategy or the model is not offered any more, the strategy refuses its configuration, or
                cannot be replayed.
        """
        assignment = self._read_assignment(plan.work)
        request = plan.to_request(recovery.execution, budget=assignment.task.budget)
        return ReasoningWork(
            assignment=assignment,
            request=replace(request, model=self._find_model(assignment.task)),
            clock=self.clock,
            tools=self._tools,
            programs=self.programs,
            schemas=self.schemas,
            known=[
                detail_digest(logged.event.detail) for logged in recovery.events if isinstance(logged.event, Iteration)
            ],
        )

    def shape_delta(self, delta: TextDelta, run: Run | None) -> TextDelta:  # noqa: ARG002 - the port's form
        """Return `delta`."""
        return delta

    def is_pause(self, event: Event) -> bool:  # noqa: ARG002 - the port's form
        """Return False: strategies do not suspend."""
        return False

    def write_off(self, recovery: Recovery, failure: ExecutionFailure, *, warnings: Sequence[str]) -> Sequence[Event]:
        """Return the result of an execution that cannot be resumed, after its first event if that is missing."""
        execution = recovery.execution
        last = recovery.events[-1].create_time if recovery.events else execution.create_time
        result = Result(
            execution_id=execution.execution_id,
            answer="",
            strategy_used=execution.strategy,
            strategy_source=execution.strategy_source,
            finish_reason=FinishReason.FAILED,
            metrics=Metrics(usage=execution.usage, execution_time_s=(last - execution.create_time).total_seconds()),
            warnings=tuple(warnings),
            model=execution.model,
            error=failure,
        )
        if execution.last_sequence:
            return [result]
        start = ExecutionStarted(
            strategy=execution.strategy, strategy_source=execution.strategy_source, model=execution.model, config={}
        )
        return [start, result]

    def _find_model(self, task: Task) -> ChatModel | None:
        try:
            return None if task.model is None else self.models.find(task.model)
        except ReasondError:
            raise PlanError(f"the model {task.model!r} is not offered here any more") from None

    def _read_assignment(self, row: Json) -> Assignment:
        if row.keys() != {"task", "strategy", "source", "config", "warnings"}:
            raise build_foreign_plan_error()
        name, shown_config = row["strategy"], row["config"]
        try:
            strategy = self._find_strategy(name)
        except ReasondError:
            raise PlanError(f"the strategy {name!r} is not enabled here any more") from None
        if not strategy.is_replayable:
            raise PlanError(f"the strategy {name!r} cannot go on from its steps")
        try:
            config = strategy.config_type.model_validate_json(json.dumps(shown_config))
        except ValidationError:
            raise PlanError(f"the strategy {name!r} does not take its configuration any more") from None
        return Assignment(
            task=_read_task(row["task"]),
            strategy=strategy,
            strategy_source=_read_source(row["source"]),
            config=config,
            shown_config=shown_config,
            warnings=tuple(row["warnings"]),
        )


@dataclass(eq=False, kw_only=True)
class ReasoningWork:
    """The execution of one task by one strategy; see `runs.run.Work`.

    `known` are digests of the steps that earlier lives logged: the strategy repeats them, and they are compared.
    """

    assignment: Assignment
    request: WorkRequest
    clock: Clock
    tools: ToolSource = NO_TOOLS
    programs: ProgramRunner = NO_PROGRAMS
    schemas: SchemaCompiler = field(default_factory=SchemaCompiler)
    known: Sequence[bytes] = ()

    def __post_init__(self) -> None:
        self.kind = REASONING
        self.name = self.assignment.strategy.name
        self.source = self.assignment.strategy_source
        self.agent = self.assignment.task.agent or ""
        self.may_suspend = False
        self.steps = RepeatedSteps(self.known)
        self.metrics: StrategyMetrics | None = None
        self._answer_json = ""
        self._thoughts: dict[str, str] = {}
        self._cut: tuple[str, ...] = ()
        self._stepped = Usage()
        task = self.assignment.task
        # A stop string cuts the answer, and a schema may have it written again.
        self.shows_answer = self.assignment.strategy.shows_answer and not task.stop and task.answer_schema is None

    @property
    def obstacle(self) -> str:
        """Why no other process could resume the work, in words; empty if one can."""
        return (
            "" if self.assignment.strategy.is_replayable else f"the strategy {self.name!r} cannot go on from its steps"
        )

    def describe(self) -> Json:
        """Return the task, the strategy and its configuration."""
        return {
            "task": build_row(self.assignment.task),
            "strategy": self.name,
            "source": str(self.source),
            "config": self.assignment.shown_config,
            "warnings": list(self.assignment.warnings),
        }

    def begin(self, run: Run) -> Event:
        """Return the first event."""
        execution = run.identity
        return ExecutionStarted(
            strategy=execution.strategy,
            strategy_source=execution.strategy_source,
            model=execution.model,
            config=self.assignment.shown_config,
        )

    async def work(self, run: Run) -> None:
        """Run the strategy, log its steps as they complete, and report its outcome before it cleans up."""
        context = await self._build_context(run)
        events = self.assignment.strategy.run(self.assignment.task, context)
        try:
            outcome = await self._take_events(run, events)
            if outcome is not None:
                await self._report_outcome(run, outcome, context)
        except ReasondError as error:
            run.report_end(make_carriable(error), trigger=Trigger.FAIL)
            raise
        finally:
            await events.aclose()

    async def _take_events(self, run: Run, events: AsyncGenerator[StrategyEvent, None]) -> Outcome | None:
        """Log the steps and return the outcome, or what there is if a later call was refused; None: the run stops.

        Raises:
            ReasondError: the run failed.
        """
        model, monotonic, ending = run.accounts.model, self.clock.monotonic, EarlyEnding()
        spent, since, turn = model.usage, monotonic(), 0
        try:
            async for event in events:
                if run.phase is not Phase.WORKING:
                    return None
                if isinstance(event, Wrote):
                    text = require_wrote(event, strategy=self.name).text
                    if self.steps.new_count >= 0:
                        thinking = event.thinking if self.shows_answer else None
                        run.subscribers.publish(self.steps.count, text, thinking=thinking)
                elif isinstance(event, Step):
                    used, now = model.usage, monotonic()
                    own = used - spent if event.usage is None else event.usage
                    took_s = now - since if event.elapsed_s is None else event.elapsed_s
                    self._append_step(run, event, used=own, elapsed_s=took_s)
                    ending.note(event)
                    if not run.log.has_room:
                        await run.log.wait_for_room()
                    spent, since = used, now
                    if run.leaves_at_checkpoint is not None and run.reach_checkpoint():
                        return None
                else:
                    return event
                turn += 1
                # Without this, a strategy that never waits would block all others.
                if not turn % _EVENTS_PER_TURN:
                    await asyncio.sleep(0)
        except SHORTAGES as error:
            return ending.build_outcome(error) if run.phase is Phase.WORKING else None
        raise InternalError(f"strategy {self.name!r} ended without an outcome")

    def leave(self, run: Run) -> None:
        """Report nothing: what the observers of runs get says all."""

    def conclude(self, run: Run, ending: RunEnding) -> Result:
        """Return the result."""
        accounts, execution = run.accounts, run.identity
        self._cut += self._log_cut_calls(run)
        changes = self.steps.list_changes(run.journal, execution_id=execution.execution_id)
        return Result(
            execution_id=execution.execution_id,
            answer=ending.answer,
            strategy_used=execution.strategy,
            strategy_source=execution.strategy_source,
            finish_reason=ending.finish_reason,
            metrics=Metrics(usage=accounts.usage, execution_time_s=accounts.elapsed_s, strategy_specific=self.metrics),
            warnings=(*accounts.warnings, *self.assignment.warnings, *changes, *self._cut, *ending.warnings),
            model=execution.model,
            error=ending.to_failure(),
            answer_json=self._answer_json if ending.answer else "",
            stop_sequence=ending.stop_sequence,
        )

    def _log_cut_calls(self, run: Run) -> tuple[str, ...]:
        """Append a step for each call that was cut off after text had come; return the warnings that name them."""
        warnings = []
        left = run.accounts.usage - self._stepped
        for cut in run.accounts.model.take_cut_calls(is_stopped=run.cause not in OWN_ENDS):
            read = read_cut_call(cut)
            thought = read.thought if getattr(self.assignment.config, "show_reasoning", True) else ""
            if not (thought or read.answer):
                continue
            index = self.steps.count
            self.steps.add()
            detail = Thought(text=thought, answer=read.answer)
            # A strategy that went on without the call has counted it in a step of its own.
            is_counted = cut.usage.total_tokens > left.total_tokens or cut.usage.model_calls > left.model_calls
            used = Usage() if is_counted else cut.usage
            left -= used
            step = Iteration(
                index=index,
                answer_found=False,
                usage=used,
                elapsed_s=cut.elapsed_s,
                detail=detail,
                edition=self._settle_draft(run, detail),
            )
            run.append(step, now=self.clock.now())
            warnings.append(f"Step {index} is what a model call had written when it was cut off; it is not whole.")
        return tuple(warnings)

    def _settle_draft(self, run: Run, detail: StepDetail) -> int:
        if not self.shows_answer or not isinstance(detail, Thought):
            return -1
        return run.subscribers.draft.settle(detail.answer, detail.text)

    async def _report_outcome(self, run: Run, outcome: Outcome, context: RunContext[Any]) -> None:
        """Report the outcome that the strategy yielded, with the answer in the form that the task asks for."""
        checked = require_outcome(outcome, strategy=self.name, before=self.metrics)
        self.metrics = checked.metrics
        self.steps.close()
        task = self.assignment.task
        if not task.stop and task.answer_schema is None:
            run.report_end(build_ending(checked, is_clamped=run.accounts.model.is_clamped))
            return
        window = self.assignment.config.window_tokens
        finished = await finish_answer(
            checked,
            task,
            model=context.model,
            window=window,
            new_nonce=context.new_nonce,
            thoughts=self._thoughts.get(checked.answer, ""),
            schemas=self.schemas,
        )
        ending = replace(
            build_ending(finished.outcome, is_clamped=run.accounts.model.is_clamped),
            stop_sequence=finished.stop_sequence,
        )
        self._answer_json = finished.json
        if finished.error is None:
            run.report_end(ending)
        else:
            failed = replace(ending, finish_reason=FinishReason.FAILED, error=finished.error)
            run.report_end(failed, trigger=Trigger.FAIL)

    def _append_step(self, run: Run, step: Step, *, used: Usage, elapsed_s: float) -> None:
        """Append the step, unless an earlier life of the run already logged this step: then the logged one stays.

        Raises:
            InternalError: the step cannot be stored.
        """
        detail, self.metrics = require_step(step, strategy=self.name, before=self.metrics)
        if self.assignment.task.answer_schema is not None and isinstance(detail, Thought | Sample | StageStep):
            self._thoughts[restore(detail.answer)] = detail.text
        index = self.steps.count
        is_known = self.steps.new_count < 0
        self._stepped += used
        if is_known:
            self.steps.compare(detail_digest(detail))
        self.steps.add()
        if is_known:
            run.trace.end_step()
            return
        iteration = Iteration(
            index=index,
            answer_found=step.answer_found,
            usage=used,
            elapsed_s=elapsed_s,
            detail=detail,
            edition=self._settle_draft(run, detail),
            logprobs_json=json.dumps([(each.text, each.logprob, each.top) for each in step.tokens])
            if step.tokens
            else "",
        )
        if run.trace.tracing is not None:
            run.trace.end_step(
                {
                    "reasond.step.index": index,
                    "reasond.step.answer_found": step.answer_found,
                    "gen_ai.usage.input_tokens": used.input_tokens,
                    "gen_ai.usage.output_tokens": used.output_tokens,
                }
            )
        run.append(iteration, now=self.clock.now())

    async def _build_context(self, run: Run) -> RunContext[Any]:
        model: ChatModel = run.accounts.model
        run.effects.is_replayed = True
        if run.journal is not None:
            model = JournaledModel(model=run.accounts.model, journal=run.journal)
        config, task = self.assignment.config, self.assignment.task
        preface = partial(preface_model, model, task, nonce=run.mark)
        return RunContext(
            config=config,
            model=await run_by_size(task.text_characters, preface) if task.has_options else model,
            # If the configuration does not use tools, the strategy gets none.
            tools=self._build_toolbox(run) if config.uses_tools else NO_TOOLS,
            programs=self._build_programs(run) if config.runs_programs else NO_PROGRAMS,
            monotonic=self.clock.monotonic,
            new_nonce=make_nonces(run.mark),
            effects=run.effects,
            schemas=self.schemas,
        )

    def _build_programs(self, run: Run) -> ProgramRunner:
        programs = self.programs
        if run.trace.tracing is not None:
            programs = TracedPrograms(programs=programs, trace=run.trace, tracing=run.trace.tracing)
        return JournaledPrograms(programs=programs, effects=run.effects)

    def _build_toolbox(self, run: Run) -> Toolbox:
        toolbox = self.tools.open_toolbox(
            max_calls=self.request.budget.max_tool_calls, execution_id=run.identity.execution_id
        )
        if not toolbox.specs:
            return toolbox
        if run.trace.tracing is not None:
            toolbox = TracedToolbox(toolbox=toolbox, trace=run.trace, tracing=run.trace.tracing)
        return JournaledToolbox(toolbox=toolbox, effects=run.effects)


def build_ending(outcome: Outcome, *, is_clamped: bool) -> RunEnding:
    """Return the ending for the strategy's `outcome`; `is_clamped` says that the budget shortened a model call."""
    reason, warnings = outcome.finish_reason, tuple(outcome.warnings)
    if reason is FinishReason.TRUNCATED and is_clamped:
        reason = FinishReason.BUDGET_EXHAUSTED
        warnings += ("The token budget cut the last model call short.",)
    return RunEnding(finish_reason=reason, answer=outcome.answer, warnings=warnings)


def _read_task(row: Any) -> Task:  # noqa: ANN401 - JSON of any version
    try:
        return decode_task(row)
    except (KeyError, TypeError, ValueError):
        raise build_foreign_plan_error() from None


def read_planned_task(plan: str) -> Task | None:
    """Return the task that was asked for; None if the plan does not hold it, or another version wrote it."""
    row = read_work(plan).get("task")
    try:
        return None if row is None else _read_task(row)
    except PlanError:
        return None


def _read_source(text: Any) -> StrategySource:  # noqa: ANN401 - JSON of any version
    try:
        return StrategySource(text)
    except ValueError:
        raise build_foreign_plan_error() from None
