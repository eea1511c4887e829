"""Drives every execution in a task of its own and writes its log; the RPC only follows."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from reasond_server.context.fences import new_nonce
from reasond_server.errors import (
    DrainingError,
    ExecutionNotFoundError,
    InternalError,
    OverloadedError,
    ReasondError,
    RequestIdReusedError,
    shown,
)
from reasond_server.executions.endings import (
    Ending,
    cancelled,
    ending_of_error,
    ending_of_limit,
    ending_of_outcome,
    frees_request_id,
)
from reasond_server.executions.payloads import carriable, require_step, require_wrote
from reasond_server.executions.run import Run
from reasond_server.llm.metering import MeteredModel
from reasond_server.strategies.strategy import RunContext, Step, Wrote
from reasond_server.tools.toolbox import NO_TOOLS
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
    from collections.abc import Callable, Iterator
    from datetime import datetime

    from reasond_server.executions.run import Assignment
    from reasond_server.executions.store import ExecutionStore
    from reasond_server.llm.model import ChatModel
    from reasond_server.tools.toolbox import Toolbox, ToolSource
    from reasond_server.types import Event, Usage

_log = logging.getLogger("reasond.executions")
_RETRY_AFTER_S = 1.0
_NATURAL_SHARE_OF_GRACE = 0.8
_FRAGMENTS_PER_TURN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Where times and ids come from; injected, so that a log can be made again byte for byte."""

    now: Callable[[], datetime]
    monotonic: Callable[[], float]
    new_id: Callable[[], str]
    new_nonce: Callable[[], str] = new_nonce


class Runner:
    """Starts, tracks and stops executions; admits at most `max_concurrent` at a time.

    A strategy has `unwinding_s` seconds to clean up after its outcome, and as long again once it is cancelled.
    """

    def __init__(
        self,
        *,
        store: ExecutionStore,
        model: ChatModel,
        clock: Clock,
        max_concurrent: int,
        retention_s: float,
        unwinding_s: float = 2.0,
        tools: ToolSource = NO_TOOLS,
    ) -> None:
        self._store = store
        self._model = model
        self._clock = clock
        self._max_concurrent = max_concurrent
        self._retention = timedelta(seconds=retention_s)
        self._runs: dict[str, Run] = {}
        self._unwinding_s = unwinding_s
        self._tools = tools
        self._preparing = 0
        self._is_draining = False

    def live(self, execution_id: str) -> Run | None:
        """Return the run of an execution that is at work in this process."""
        return self._runs.get(execution_id)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place for an execution while it is prepared, so that preparing costs nothing where there is none.

        Raises:
            DrainingError: the server is shutting down.
            OverloadedError: as many executions run, or are prepared, as may.
        """
        self._admit(len(self._runs) + self._preparing)
        self._preparing += 1
        try:
            yield
        finally:
            self._preparing -= 1

    async def start(self, assignment: Assignment) -> Execution:
        """Start an execution, or return the one that the request id stands for.

        Raises:
            DrainingError: the server is shutting down.
            OverloadedError: as many executions run as may.
            RequestIdReusedError: the request id stands for another request.
            StoreFullError: there is no room for another log.
        """
        self._admit(len(self._runs))
        execution = self._new_execution(assignment)
        claim = await self._store.create(execution, digest=assignment.digest)
        if claim.execution_id != execution.execution_id:
            if claim.digest != assignment.digest:
                raise RequestIdReusedError(
                    f"The request id {shown(assignment.request_id)} was used before with another request",
                    remedy="Send the same request again, or a new request id.",
                    metadata={"execution_id": claim.execution_id},
                )
            going = self._runs.get(claim.execution_id)
            if going is None or not going.is_cancelled:
                return await self._store.find(assignment.tenant, claim.execution_id)
            # Whoever asked first has left; asking again is no wish to see the end of that.
            await going.ended()
            return await self.start(assignment)
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

    def _admit(self, busy: int) -> None:
        if self._is_draining:
            raise DrainingError(
                "The server is shutting down", remedy="Retry; another instance answers.", retry_after_s=_RETRY_AFTER_S
            )
        if busy >= self._max_concurrent:
            raise OverloadedError(
                f"{busy} executions are running, as many as max_concurrent_requests allows",
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
            if frees_request_id(run, ending):
                await self._store.release(run.execution.tenant, run.execution.execution_id)
            await self._append(run, self._result(run, ending, self._clock.monotonic() - began))
        except ExecutionNotFoundError:
            _log.info("execution deleted while it ran", extra={"execution_id": run.execution.execution_id})
        except Exception:  # noqa: BLE001 - the driver is a task of its own: nobody above could handle it
            _log.exception("execution log could not be ended", extra={"execution_id": run.execution.execution_id})
        finally:
            # In this order: followers that wake up must find the run gone, or they would wait for more.
            del self._runs[run.execution.execution_id]
            run.log_grew()
            _log_end(run)

    async def _ending_of(self, run: Run) -> Ending:
        """Let the strategy work in a task of its own and return how that ended, within its limits of time.

        A strategy that does not stop when it is cancelled is left behind after a while: its task may live on, but
        the run is over, its log ends, and its model makes no more calls.
        """
        if run.is_cancelled:
            return cancelled()
        told: asyncio.Future[Ending] = asyncio.get_running_loop().create_future()
        work = asyncio.create_task(self._work_and_tell(run, told), name=f"strategy of {run.execution.execution_id}")
        limit_s = run.assignment.limit_s
        is_out_of_time = False
        try:
            done, _ = await asyncio.wait({told}, timeout=limit_s)
            is_out_of_time = not done
        except asyncio.CancelledError:
            if not run.is_cancelled:
                raise
        run.is_ending = True
        has_stopped = await self._stopped(work, at_once=not told.done())
        run.model.close()
        if told.done():
            ending = told.result()
        elif is_out_of_time and limit_s is not None:
            ending = ending_of_limit(run, limit_s)
        else:
            ending = cancelled()
        return ending if has_stopped else _left_behind(run, ending)

    async def _stopped(self, work: asyncio.Task[None], *, at_once: bool) -> bool:
        """Wait until `work` has cleaned up, cancelling it first or after a while; return whether it has."""
        for is_cancelled in (True,) if at_once else (False, True):
            if is_cancelled:
                work.cancel()
            await asyncio.wait({work}, timeout=self._unwinding_s)
            if work.done():
                return True
        return False

    async def _work_and_tell(self, run: Run, told: asyncio.Future[Ending]) -> None:
        """Work, and tell how it ended; nothing that a strategy raises gets past this.

        SystemExit and KeyboardInterrupt would end the whole process, and any other exception the log without a result.
        """
        try:
            await self._work(run, told)
        except asyncio.CancelledError:
            if run.is_ending:
                return
            _log.exception("strategy cancelled itself", extra={"execution_id": run.execution.execution_id})
            error: ReasondError = InternalError("internal error")
        except ReasondError as caught:
            error = carriable(caught)
        except BaseException:  # noqa: BLE001 - as the docstring says
            _log.exception("strategy failed", extra={"execution_id": run.execution.execution_id})
            error = InternalError("internal error")
        else:
            return
        if not told.done():
            told.set_result(ending_of_error(run, error))

    async def _work(self, run: Run, told: asyncio.Future[Ending]) -> None:
        """Run the strategy, log its steps as they complete, and tell its outcome before it cleans up."""
        assignment, model, name = run.assignment, run.model, run.assignment.strategy.name
        context = RunContext(
            config=assignment.config,
            model=model,
            tools=self._toolbox(assignment),
            monotonic=self._clock.monotonic,
            new_nonce=self._clock.new_nonce,
        )
        spent, since, fragments = model.usage, self._clock.monotonic(), 0
        async with aclosing(assignment.strategy.run(assignment.task, context)) as events:
            async for event in events:
                if run.is_ending:
                    return
                if isinstance(event, Wrote):
                    run.wrote(require_wrote(event, strategy=name).text)
                    fragments += 1
                    if fragments % _FRAGMENTS_PER_TURN:
                        continue
                elif isinstance(event, Step):
                    used, now = model.usage, self._clock.monotonic()
                    await self._append_step(run, event, used=used - spent, elapsed_s=now - since)
                    spent, since = used, now
                    if run.stops_at_step:
                        told.set_result(cancelled("The server was shut down; the steps until then are kept."))
                        return
                else:
                    told.set_result(ending_of_outcome(run, event))
                    return
                # A strategy that never waits for anything would keep all others from working.
                await asyncio.sleep(0)
        raise InternalError(f"strategy {name!r} ended without an outcome")

    def _toolbox(self, assignment: Assignment) -> Toolbox:
        """Return the tools of a run; none where its configuration does not use them, whatever the strategy does."""
        source = self._tools if assignment.config.uses_tools else NO_TOOLS
        return source.toolbox(max_calls=assignment.task.budget.max_tool_calls)

    async def _append_step(self, run: Run, step: Step, *, used: Usage, elapsed_s: float) -> None:
        kept = require_step(step, strategy=run.execution.strategy, before=run.metrics)
        run.metrics = kept.metrics
        iteration = Iteration(
            index=run.step_count,
            answer_found=kept.answer_found,
            usage=used,
            elapsed_s=elapsed_s,
            detail=kept.detail,
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

    def _result(self, run: Run, ending: Ending, elapsed_s: float) -> Result:
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


def _left_behind(run: Run, ending: Ending) -> Ending:
    """Return `ending` with a warning, and say in the log which strategy is at fault."""
    facts = {"execution_id": run.execution.execution_id, "strategy": run.execution.strategy}
    _log.error("strategy does not stop and was left behind", extra=facts)
    warning = "The strategy did not stop when it was told to and was left behind."
    return replace(ending, warnings=(*ending.warnings, warning))


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
