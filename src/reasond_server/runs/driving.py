"""Works on one run until its end: lets its strategy work within its limits, and writes down what comes of it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from reasond_server.errors import InternalError, ReasondError, StoreFullError
from reasond_server.logs.stored.codec import detail_digest
from reasond_server.runs.endings import (
    ABANDONED,
    Ending,
    cancelled,
    ending_of_error,
    ending_of_limit,
    ending_of_outcome,
)
from reasond_server.runs.payloads import carriable, require_outcome, require_step, require_wrote
from reasond_server.runs.replay.journal import JournaledModel, JournaledToolbox
from reasond_server.runs.replay.recorded import ReplayError
from reasond_server.runs.run import Stop
from reasond_server.runs.traced_runs import enter_run, leave_run, reenter_run
from reasond_server.strategies.strategy import RunContext, Step, Wrote
from reasond_server.tools.toolbox import NO_TOOLS
from reasond_server.types import ExecutionFailure, Iteration, Metrics, Result

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta

    from reasond_server.clock import Clock
    from reasond_server.llm.model import ChatModel
    from reasond_server.runs.run import Run
    from reasond_server.strategies.strategy import Outcome
    from reasond_server.telemetry.spans import Tracing
    from reasond_server.tools.toolbox import ToolSource
    from reasond_server.types import FinishReason, Usage

_log = logging.getLogger("reasond.executions")
_EVENTS_PER_TURN = 16
# A disk that is full may have room again in a while; the answer is paid for.
_WAITS_FOR_ROOM_S = (0.5, 2.0, 8.0)


class Driver:
    """Drives runs: lets a strategy `work` in a task of its run, stops it from another, and writes down how it ended.

    A strategy has `unwinding_s` seconds to clean up after its outcome, and as long again once it is cancelled.
    `retention_of` tells how long a tenant's executions are kept after their end. `is_cut_off` stops a run whose task
    was cancelled because the whole event loop ends, and says so.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        tools: ToolSource,
        retention_of: Callable[[str], timedelta],
        unwinding_s: float,
        is_cut_off: Callable[[Run], bool],
        tracing: Tracing | None = None,
    ) -> None:
        self._clock = clock
        self._is_cut_off = is_cut_off
        self._tools = tools
        self._retention_of = retention_of
        self._unwinding_s = unwinding_s
        self._tracing = tracing

    async def work(self, run: Run) -> None:
        """Let the strategy of `run` work in the task that calls, until it has told its outcome and cleaned up.

        Nothing that a strategy raises gets past this: SystemExit and KeyboardInterrupt would end the whole process,
        and any other exception the log without a result.
        """
        try:
            enter_run(run, self._tracing)
            limit_s = run.assignment.limit_s
            left_s = None if limit_s is None else limit_s - self._elapsed_s(run)
            if run.told is None and run.stop_reason is None and (left_s is None or left_s > 0):
                run.limit(left_s)
                await self._work(run)
        except asyncio.CancelledError:
            if not run.is_ending and run.stop_reason is None and not self._is_cut_off(run):
                _log.exception("strategy cancelled itself", extra={"execution_id": run.identity.execution_id})
                run.tell(InternalError("internal error"))
        except ReasondError as caught:
            run.tell(carriable(caught))
        except BaseException:  # noqa: BLE001 - as the docstring says
            _log.exception("strategy failed", extra={"execution_id": run.identity.execution_id})
            run.tell(InternalError("internal error"))
        finally:
            run.limit(None)

    async def stop(self, run: Run, work: asyncio.Task[None]) -> bool:
        """Stop the strategy that is at `work` in a task; return whether it has cleaned up.

        One that does not is left behind after a while: its task may live on, but the run is over, its log ends, and
        its model makes no more calls.
        """
        reenter_run(run)
        # What failed beside the strategy it will hear of by itself; its outcome it has told some time ago.
        is_at_once = run.told is None or run.is_ending
        self._close(run)
        for is_cancelled in (True,) if is_at_once else (False, True):
            if is_cancelled:
                work.cancel()
            if not work.done():
                await asyncio.wait({work}, timeout=self._unwinding_s)
            if work.done():
                return True
        return False

    async def finish(self, run: Run, *, has_stopped: bool) -> None:
        """Write down how a run ended whose strategy works no more, or was left behind; never raises.

        A run that another process goes on with is left without an end. One that is handed over is written down as
        far as it came.
        """
        self._close(run)
        run.model.close()
        try:
            if run.stop_reason is None or run.stop_reason is Stop.CANCELLED:
                ending = self._told_ending(run)
                await self._write_end(run, ending if has_stopped else _left_behind(run, ending))
            elif run.stop_reason is Stop.HANDED_OVER and run.journal is not None:
                run.journal.note_cut()
                await run.log.wait_for_commit()
        except Exception:  # noqa: BLE001 - a task of its own: nobody above could handle it
            _log.exception("execution log could not be ended", extra={"execution_id": run.identity.execution_id})
        finally:
            leave_run(run)

    def _close(self, run: Run) -> None:
        """Let nothing that happens from now on change how the run ends."""
        run.is_ending = True
        if run.journal is not None:
            run.journal.close()

    def _told_ending(self, run: Run) -> Ending:
        told, limit_s = run.told, run.assignment.limit_s
        if told is not None:
            return told if isinstance(told, Ending) else ending_of_error(told, usage=run.usage)
        if run.is_cancelled or limit_s is None:
            return cancelled(*([ABANDONED] if run.is_abandoned else []))
        return ending_of_limit(limit_s, usage=run.usage)

    async def _work(self, run: Run) -> None:
        """Run the strategy, log its steps as they complete, and tell its outcome before it cleans up."""
        name, model = run.identity.strategy, run.model
        spent, since, turn = model.usage, self._clock.monotonic(), 0
        events = run.assignment.strategy.run(run.assignment.task, self._context(run))
        try:
            async for event in events:
                if run.is_ending or run.stop_reason is not None or run.told is not None:
                    return
                if isinstance(event, Wrote):
                    run.wrote(require_wrote(event, strategy=name).text)
                elif isinstance(event, Step):
                    used, now = model.usage, self._clock.monotonic()
                    self._append_step(run, event, used=used - spent, elapsed_s=now - since)
                    if not run.log.has_room:
                        await run.log.wait_for_room()
                    spent, since = used, now
                    if run.stops_at_step is not None:
                        self._stop_at_step(run, run.stops_at_step)
                        return
                else:
                    self._take_outcome(run, event)
                    return
                turn += 1
                # A strategy that never waits for anything would keep all others from working.
                if not turn % _EVENTS_PER_TURN:
                    await asyncio.sleep(0)
        except ReasondError as error:
            if run.told is None and run.stop_reason is None:
                self._take_ending(run, carriable(error))
            raise
        finally:
            await events.aclose()
        raise InternalError(f"strategy {name!r} ended without an outcome")

    def _take_outcome(self, run: Run, outcome: Outcome) -> None:
        """Tell how the strategy ended by itself."""
        kept = require_outcome(outcome, strategy=run.identity.strategy, before=run.metrics)
        run.metrics = kept.metrics
        if run.is_replaying:
            raise _differs(f"it ended after {run.step_count} of {len(run.known)} steps that it had made before")
        self._take_ending(run, ending_of_outcome(kept, is_clamped=run.model.is_clamped))

    def _stop_at_step(self, run: Run, reason: Stop) -> None:
        if reason is Stop.HANDED_OVER:
            run.stop(reason)
        else:
            self._take_ending(run, cancelled("The server was shut down; the steps until then are kept."))

    def _take_ending(self, run: Run, ending: Ending | ReasondError) -> None:
        """Tell how the run ends; nothing counts that its strategy does from now on, and it has a while to clean up."""
        run.tell(ending)
        self._close(run)
        run.limit(self._unwinding_s)

    def _context(self, run: Run) -> RunContext[Any]:
        # A run whose configuration does not use tools has none, whatever its strategy does.
        source = self._tools if run.assignment.config.uses_tools else NO_TOOLS
        toolbox = source.toolbox(max_calls=run.assignment.task.budget.max_tool_calls)
        run.has_tools = bool(toolbox.specs)
        if run.trace is not None:
            toolbox = run.trace.tools(toolbox)
        model: ChatModel = run.model
        if run.journal is not None:
            hold = None if run.tenure is None else run.tenure.wait_for_lease
            model = JournaledModel(model=run.model, journal=run.journal)
            toolbox = JournaledToolbox(toolbox=toolbox, journal=run.journal, hold=hold)
        return RunContext(
            config=run.assignment.config,
            model=model,
            tools=toolbox,
            monotonic=self._clock.monotonic,
            new_nonce=run.new_nonce,
        )

    def _append_step(self, run: Run, step: Step, *, used: Usage, elapsed_s: float) -> None:
        """Append the step, unless it is logged from an earlier life of the run.

        Raises:
            ReplayError: another step is logged in its place.
            InternalError: it cannot be kept.
        """
        detail, run.metrics = require_step(step, strategy=run.identity.strategy, before=run.metrics)
        index = run.step_count
        if run.is_replaying:
            if detail_digest(detail) != run.known[index]:
                raise _differs(f"its step {index} is another one than before")
            run.step_count += 1
            if run.trace is not None:
                run.trace.step_left()
            return
        iteration = Iteration(
            index=index, answer_found=step.answer_found, usage=used, elapsed_s=elapsed_s, detail=detail
        )
        run.step_count += 1
        if run.trace is not None:
            run.trace.step_made(iteration)
        run.log.append(iteration, now=self._clock.now(), usage=run.usage)

    async def _write_end(self, run: Run, ending: Ending) -> None:
        """Append the result, and wait until it is committed; whoever waits for the answer is told before."""
        run.error = ending.error
        run.is_free_failure = run.error is not None and not run.usage.model_calls and not run.may_have_had_effects
        result = self._result(run, ending)
        self._append_result(run, result, ending.finish_reason)
        run.conclude(result)
        if run.place is not None:
            run.place.leave()
        await run.log.wait_for_commit()
        for wait_s in _WAITS_FOR_ROOM_S:
            if not isinstance(run.log.error, StoreFullError) or not run.log.is_created:
                return
            await asyncio.sleep(wait_s)
            warning = "The store was full: the last steps are not kept."
            self._append_result(run, replace(result, warnings=(*result.warnings, warning)), ending.finish_reason)
            await run.log.wait_for_commit()

    def _append_result(self, run: Run, result: Result, reason: FinishReason) -> None:
        now = self._clock.now()
        expire_time = now + self._retention_of(run.assignment.tenant)
        run.log.end(result, now=now, usage=result.metrics.usage, finish_reason=reason, expire_time=expire_time)

    def _result(self, run: Run, ending: Ending) -> Result:
        error, model, execution = ending.error, run.model, run.identity
        return Result(
            execution_id=execution.execution_id,
            answer=ending.answer,
            strategy_used=execution.strategy,
            strategy_source=execution.strategy_source,
            finish_reason=ending.finish_reason,
            metrics=Metrics(usage=run.usage, execution_time_s=self._elapsed_s(run), strategy_specific=run.metrics),
            warnings=(*model.warnings, *model.warnings_of_calls, *run.inherited, *ending.warnings),
            model=execution.model,
            error=None if error is None else ExecutionFailure(reason=error.reason, message=error.full_message),
        )

    def _elapsed_s(self, run: Run) -> float:
        return self._clock.monotonic() - run.began_s


def _differs(how: str) -> ReplayError:
    return ReplayError(
        f"The server that worked on this execution went down, and going on failed: {how}",
        remedy="What was done until then is kept. Start the task again.",
    )


def _left_behind(run: Run, ending: Ending) -> Ending:
    """Return `ending` with a warning, and say in the log which strategy is at fault."""
    facts = {"execution_id": run.identity.execution_id, "strategy": run.identity.strategy}
    _log.error("strategy does not stop and was left behind", extra=facts)
    warning = "The strategy did not stop when it was told to and was left behind."
    return replace(ending, warnings=(*ending.warnings, warning))
