"""Drives every execution in a task of its own and writes its log; the RPC only follows."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from reasond_server.context.fences import new_nonce
from reasond_server.errors import (
    DrainingError,
    ExecutionNotFoundError,
    InternalError,
    ModelTimeoutError,
    OverloadedError,
    ReasondError,
    RequestIdReusedError,
    TokenBudgetExhaustedError,
    shown,
)
from reasond_server.executions.payloads import require_payload
from reasond_server.executions.run import Run
from reasond_server.llm.metering import MeteredModel
from reasond_server.strategies.strategy import Outcome, RunContext, Step, Wrote
from reasond_server.types import (
    Execution,
    ExecutionFailure,
    ExecutionStarted,
    ExecutionState,
    FinishReason,
    Iteration,
    LoggedEvent,
    Metrics,
    Result,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from reasond_server.executions.run import Assignment
    from reasond_server.executions.store import ExecutionStore
    from reasond_server.llm.model import ChatModel
    from reasond_server.types import Event, Usage

_log = logging.getLogger("reasond.executions")
_RETRY_AFTER_S = 1.0
_NATURAL_SHARE_OF_GRACE = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Where times and ids come from; injected, so that a log can be made again byte for byte."""

    now: Callable[[], datetime]
    monotonic: Callable[[], float]
    new_id: Callable[[], str]
    new_nonce: Callable[[], str] = new_nonce


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ending:
    """How a run ends, before it is written down."""

    finish_reason: FinishReason
    answer: str = ""
    warnings: tuple[str, ...] = ()
    error: ReasondError | None = None


class Runner:
    """Starts, tracks and stops executions; admits at most `max_concurrent` at a time."""

    def __init__(
        self, *, store: ExecutionStore, model: ChatModel, clock: Clock, max_concurrent: int, retention_s: float
    ) -> None:
        self._store = store
        self._model = model
        self._clock = clock
        self._max_concurrent = max_concurrent
        self._retention = timedelta(seconds=retention_s)
        self._runs: dict[str, Run] = {}
        self._is_draining = False

    def live(self, execution_id: str) -> Run | None:
        """Return the run of an execution that is at work in this process."""
        return self._runs.get(execution_id)

    async def start(self, assignment: Assignment) -> Execution:
        """Start an execution, or return the one that the request id stands for.

        Raises:
            DrainingError: the server is shutting down.
            OverloadedError: as many executions run as may.
            RequestIdReusedError: the request id stands for another request.
            StoreFullError: there is no room for another log.
        """
        self._admit()
        execution = self._new_execution(assignment)
        claim = await self._store.create(execution, digest=assignment.digest)
        if claim.execution_id != execution.execution_id:
            if claim.digest != assignment.digest:
                raise RequestIdReusedError(
                    f"The request id {shown(assignment.request_id)} was used before with another request",
                    remedy="Send the same request again, or a new request id.",
                    metadata={"execution_id": claim.execution_id},
                )
            return await self._store.find(assignment.tenant, claim.execution_id)
        metered = MeteredModel(model=self._model, budget=assignment.task.budget, time_left=self._time_left(assignment))
        run = Run(assignment=assignment, execution=execution, model=metered)
        self._runs[execution.execution_id] = run
        await self._append(run, _started(assignment, self._model.name))
        run.driver = asyncio.create_task(self._drive(run), name=f"execution {execution.execution_id}")
        return run.execution

    async def drain(self, *, grace_s: float) -> None:
        """Admit nothing more and see the running executions out within `grace_s` seconds.

        They may end by themselves for most of that time, then stop at their next step, then at once.
        """
        self._is_draining = True
        await self._wait_for_all(grace_s * _NATURAL_SHARE_OF_GRACE)
        for run in self._runs.values():
            run.stops_at_step = True
        await self._wait_for_all(grace_s * (1 - _NATURAL_SHARE_OF_GRACE))
        await self.stop()

    def begin_drain(self) -> None:
        """Refuse new executions from now on."""
        self._is_draining = True

    async def stop(self) -> None:
        """Cancel everything that runs and wait until the logs have ended."""
        self._is_draining = True
        for run in tuple(self._runs.values()):
            run.cancel()
        await self._wait_for_all(None)

    async def _wait_for_all(self, timeout_s: float | None) -> None:
        drivers = [run.driver for run in self._runs.values() if run.driver is not None]
        if drivers:
            await asyncio.wait(drivers, timeout=timeout_s)

    def _admit(self) -> None:
        if self._is_draining:
            raise DrainingError(
                "The server is shutting down", remedy="Retry; another instance answers.", retry_after_s=_RETRY_AFTER_S
            )
        if len(self._runs) >= self._max_concurrent:
            raise OverloadedError(
                f"{len(self._runs)} executions are running, as many as max_concurrent_requests allows",
                remedy="Retry after the time given, or raise [reasoning.performance] max_concurrent_requests.",
                metadata={"max_concurrent_requests": str(self._max_concurrent)},
                retry_after_s=_RETRY_AFTER_S,
            )

    def _time_left(self, assignment: Assignment) -> Callable[[], float | None]:
        """Return a function that tells the seconds until the run's limit; None where there is none."""
        limit_s, began = assignment.limit_s, self._clock.monotonic()
        return lambda: None if limit_s is None else limit_s - (self._clock.monotonic() - began)

    def _new_execution(self, assignment: Assignment) -> Execution:
        return Execution(
            execution_id=self._clock.new_id(),
            tenant=assignment.tenant,
            state=ExecutionState.RUNNING,
            strategy=assignment.strategy.name,
            strategy_source=assignment.strategy_source,
            model=self._model.name,
            create_time=self._clock.now(),
            request_id=assignment.request_id,
        )

    async def _drive(self, run: Run) -> None:
        """Work until the end and write it down; never raises."""
        began = self._clock.monotonic()
        run.has_begun = True
        try:
            ending = await self._ending_of(run)
            run.is_ending = True
            run.error = ending.error
            await self._append(run, self._result(run, ending, self._clock.monotonic() - began))
        except ExecutionNotFoundError:
            _log.info("execution deleted while it ran", extra={"execution_id": run.execution.execution_id})
        except Exception:  # noqa: BLE001 - the driver is a task of its own: nobody above could handle it
            _log.exception("execution log could not be ended", extra={"execution_id": run.execution.execution_id})
        finally:
            del self._runs[run.execution.execution_id]
            run.log_grew()
            _log_end(run)

    async def _ending_of(self, run: Run) -> _Ending:
        """Work, and turn every way in which that can end into an ending."""
        if run.is_cancelled:
            return _Ending(finish_reason=FinishReason.CANCELLED)
        try:
            return await self._within_limit(run)
        except asyncio.CancelledError:
            if run.driver is not None and run.driver.cancelling():
                return _Ending(finish_reason=FinishReason.CANCELLED)
            _log.exception("strategy cancelled itself", extra={"execution_id": run.execution.execution_id})
            error: ReasondError = InternalError("internal error")
        except ExecutionNotFoundError:
            raise
        except ReasondError as caught:
            error = caught
        except Exception:  # noqa: BLE001 - the driver is a task of its own: nobody above could handle it
            _log.exception("strategy failed", extra={"execution_id": run.execution.execution_id})
            error = InternalError("internal error")
        return _ending_of_error(run, error)

    async def _within_limit(self, run: Run) -> _Ending:
        """Work, but no longer than the caller and the budget allow."""
        limit_s = run.assignment.limit_s
        try:
            async with asyncio.timeout(limit_s) as limit:
                return await self._work(run)
        except TimeoutError:
            if not limit.expired():
                raise
        text = f"stopped after {limit_s:.3g} s, the caller's deadline or budget.max_elapsed"
        if not run.model.usage.model_calls:
            return _failed(ModelTimeoutError(f"The execution was {text}", remedy="Allow more time."))
        return _Ending(finish_reason=FinishReason.BUDGET_EXHAUSTED, warnings=(f"The execution was {text}.",))

    async def _work(self, run: Run) -> _Ending:
        """Run the strategy and log its steps as they complete."""
        assignment, model = run.assignment, run.model
        context = RunContext(
            config=assignment.config,
            model=model,
            monotonic=self._clock.monotonic,
            new_nonce=self._clock.new_nonce,
        )
        spent, since = model.usage, self._clock.monotonic()
        async with aclosing(assignment.strategy.run(assignment.task, context)) as events:
            async for event in events:
                if isinstance(event, Wrote):
                    run.wrote(event.text)
                elif isinstance(event, Step):
                    used, now = model.usage, self._clock.monotonic()
                    await self._append_step(run, event, used=used - spent, elapsed_s=now - since)
                    spent, since = used, now
                    if run.stops_at_step:
                        warning = "The server was shut down; the steps until then are kept."
                        return _Ending(finish_reason=FinishReason.CANCELLED, warnings=(warning,))
                else:
                    return _ending_of_outcome(run, event)
        raise InternalError(f"strategy {assignment.strategy.name!r} ended without an outcome")

    async def _append_step(self, run: Run, step: Step, *, used: Usage, elapsed_s: float) -> None:
        require_payload(step.detail, strategy=run.execution.strategy)
        require_payload(step.metrics, strategy=run.execution.strategy)
        run.metrics = step.metrics
        iteration = Iteration(
            index=run.step_count,
            answer_found=step.answer_found,
            usage=used,
            elapsed_s=elapsed_s,
            detail=step.detail,
        )
        run.step_count += 1
        await self._append(run, iteration)

    async def _append(self, run: Run, event: Event) -> None:
        """Write `event` at the end of the log and tell the followers."""
        now = self._clock.now()
        sequence = run.execution.last_sequence + 1
        execution = replace(run.execution, last_sequence=sequence, usage=run.model.usage)
        if isinstance(event, Result):
            execution = replace(
                execution,
                state=_state_after(event.finish_reason),
                finish_reason=event.finish_reason,
                end_time=now,
                expire_time=now + self._retention,
            )
        await self._store.append(execution, LoggedEvent(sequence=sequence, create_time=now, event=event))
        run.execution = execution
        run.log_grew()

    def _result(self, run: Run, ending: _Ending, elapsed_s: float) -> Result:
        error = ending.error
        return Result(
            execution_id=run.execution.execution_id,
            answer=ending.answer,
            strategy_used=run.execution.strategy,
            strategy_source=run.execution.strategy_source,
            finish_reason=ending.finish_reason,
            metrics=Metrics(usage=run.model.usage, execution_time_s=elapsed_s, strategy_specific=run.metrics),
            warnings=(*self._model.warnings, *run.model.warnings_of_calls, *ending.warnings),
            model=self._model.name,
            error=None if error is None else ExecutionFailure(reason=error.reason, message=error.full_message),
        )


def _state_after(reason: FinishReason | None) -> ExecutionState:
    states = {FinishReason.FAILED: ExecutionState.FAILED, FinishReason.CANCELLED: ExecutionState.CANCELLED}
    return states.get(reason, ExecutionState.SUCCEEDED) if reason else ExecutionState.SUCCEEDED


def _started(assignment: Assignment, model: str) -> ExecutionStarted:
    return ExecutionStarted(
        strategy=assignment.strategy.name,
        strategy_source=assignment.strategy_source,
        model=model,
        config=assignment.shown_config,
    )


def _failed(error: ReasondError) -> _Ending:
    return _Ending(finish_reason=FinishReason.FAILED, error=error)


def _ending_of_error(run: Run, error: ReasondError) -> _Ending:
    """Return how `error` ends the run: a budget that is gone after the first call is no failure."""
    if isinstance(error, TokenBudgetExhaustedError) and run.model.usage.model_calls:
        return _Ending(finish_reason=FinishReason.BUDGET_EXHAUSTED, warnings=(error.full_message,))
    return _failed(error)


def _ending_of_outcome(run: Run, outcome: Outcome) -> _Ending:
    require_payload(outcome.metrics, strategy=run.execution.strategy)
    run.metrics = outcome.metrics
    reason, warnings = outcome.finish_reason, tuple(outcome.warnings)
    if reason is FinishReason.TRUNCATED and run.model.is_clamped:
        reason = FinishReason.BUDGET_EXHAUSTED
        warnings += ("The token budget cut the last model call short.",)
    return _Ending(finish_reason=reason, answer=outcome.answer, warnings=warnings)


def _log_end(run: Run) -> None:
    execution = run.execution
    facts = {
        "execution_id": execution.execution_id,
        "strategy": execution.strategy,
        "finish_reason": str(execution.finish_reason or ""),
        "total_tokens": execution.usage.total_tokens,
        "model_calls": execution.usage.model_calls,
        "steps": run.step_count,
    }
    _log.info("execution ended", extra=facts)
