"""Drives a run from start to end: executes its work within its limits, then writes its last event."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.errors.limits import StoreFullError
from reasond_server.eventlog.store import Change, ExecutionStore, Lease
from reasond_server.runs.phase import CANCELS, LEAVES, STOP_REASONS, Phase, Trigger
from reasond_server.runs.work import ABANDONED, RunEnding, build_error_ending, build_limit_ending, cancel_with

if TYPE_CHECKING:
    from collections.abc import Callable

    from reasond_server.base.clock import Clock
    from reasond_server.runs.live_runs import LiveRuns, RunnerLimits
    from reasond_server.runs.run import Run
    from reasond_server.telemetry.observers import Observer
    from reasond_server.telemetry.spans import Attributes, Tracing

_log = logging.getLogger("reasond.executions")
# A full disk may have room again after a while, and the answer has already been paid for.
_WAITS_FOR_ROOM_S = (0.5, 2.0, 8.0)
_LONGEST_WAIT_S = 30 * 86_400.0
_REPORTED = (Trigger.FINISH, Trigger.FAIL, Trigger.REFUSE)


@dataclass(eq=False, kw_only=True)
class Driver:
    """Drives the `runs` of a process, each in its own task; a run that is stopped from outside ends in another task.

    `owner` is the owner of the process's leases. `is_cut_off` stops a run whose task was cancelled because the event
    loop ends; it returns whether that is the case.
    """

    runs: LiveRuns
    store: ExecutionStore
    clock: Clock
    limits: RunnerLimits
    owner: str
    observer: Observer
    is_cut_off: Callable[[Run], bool]
    tracing: Tracing | None = None

    async def drive(self, run: Run) -> None:
        """Execute the work of `run` and finish the run; if it is stopped from outside, another task finishes it."""
        own = run.driver
        run.on_over = partial(self._stop_from_outside, run)
        with self.store.watch(run.identity.execution_id, partial(self._take_change, run)):
            await self._work(run)
        if run.driver is not own or own is None:
            return
        seeing_out = self._see_out(run, has_stopped=True)
        if own.cancelling():
            # Cancelled by the work itself, or because the loop ends. Finishing must be neither cancelled nor delayed.
            run.driver = asyncio.create_task(seeing_out, name=f"end of {run.identity.execution_id}")
        else:
            await seeing_out

    async def give_back(self, execution_id: str, fence: int) -> None:
        """Release the lease, so that another process can resume the execution at once."""
        try:
            await self.store.renew(Lease(owner=self.owner, seconds=0), {execution_id: fence})
        except ReasondError:
            _log.warning("a lease could not be given back; it runs out by itself")

    async def _work(self, run: Run) -> None:
        """Execute the work in the calling task, until it has reported its end and cleaned up.

        All exceptions are caught: SystemExit and KeyboardInterrupt would end the whole process, and any other exception
        would leave the log without a result.
        """
        accounts = run.accounts
        try:
            work = run.work
            run.trace.begin(run.identity, self.tracing, caller=work.request.trace, agent=work.agent)
            limit_s = accounts.limit_s
            left_s = None if limit_s is None else limit_s - accounts.elapsed_s
            if left_s is not None and left_s <= 0:
                run.advance(Trigger.TIME_OUT)
            if run.phase is Phase.WORKING:
                if left_s is not None:
                    accounts.set_timer(left_s, partial(run.stop, Trigger.TIME_OUT))
                await _begin_work(run)
        except asyncio.CancelledError:
            if run.phase is Phase.WORKING and not self.is_cut_off(run):
                _log.exception("work cancelled itself", extra={"execution_id": run.identity.execution_id})
                run.report_end(InternalError("internal error"), trigger=Trigger.FAIL)
        except ReasondError as caught:
            run.report_end(make_carriable(caught), trigger=Trigger.FAIL)
        except BaseException:  # noqa: BLE001 - as the docstring says
            _log.exception("work failed", extra={"execution_id": run.identity.execution_id})
            run.report_end(InternalError("internal error"), trigger=Trigger.FAIL)
        else:
            if run.phase is Phase.WORKING:
                error = InternalError(f"the work {work.name!r} ended without reporting how")
                run.report_end(error, trigger=Trigger.FAIL)
        finally:
            accounts.set_timer(None, _do_nothing)

    def _stop_from_outside(self, run: Run) -> None:
        """Stop the work of `run` in a separate task, which the work cannot block."""
        if run.driver is not None:
            name = f"end of {run.identity.execution_id}"
            run.driver = asyncio.create_task(self._stop(run, run.driver), name=name)

    async def _stop(self, run: Run, work: asyncio.Task[None]) -> None:
        """Stop the work that runs in the task `work`; then finish the run, even if the work has not cleaned up.

        Work that does not stop is left behind after a timeout: its task may continue, but the run is over, its log
        ends, and its model makes no more calls.
        """
        run.trace.enter_again()
        # If the store refuses the log, the work gets an error itself: wait for that before cancelling it.
        for is_cancelled in (False, True) if run.cause is Trigger.REFUSE else (True,):
            if is_cancelled:
                work.cancel()
            if not work.done():
                await asyncio.wait({work}, timeout=self.limits.unwinding_s)
            if work.done():
                break
        await self._see_out(run, has_stopped=work.done())

    async def _see_out(self, run: Run, *, has_stopped: bool) -> None:
        """Write the end of a run, wait until it is committed, and release the run."""
        try:
            await self._finish(run, has_stopped=has_stopped)
        except asyncio.CancelledError:
            # Cancelled by a timer that the work left behind, or because the loop ends.
            run.driver = asyncio.create_task(self._release_committed(run), name=f"end of {run.identity.execution_id}")
            raise
        await self._release_run(run)

    async def _finish(self, run: Run, *, has_stopped: bool) -> None:
        """Write the end of a run whose work has stopped or was left behind; never raises.

        A run that is suspended, or that another process resumes, gets no last event. For a run that is handed over,
        the usage up to now is stored.
        """
        if run.journal is not None:
            run.journal.close()
        run.accounts.model.close()
        try:
            if run.phase is Phase.SUSPENDED:
                # This task also handles a stop that arrives during the commit.
                run.on_over = _do_nothing
                await run.log.wait_for_commit()
            if run.phase is Phase.STOPPING and run.cause not in LEAVES:
                ending = _find_ending(run)
                await self._write_end(run, ending if has_stopped else _leave_behind(run, ending))
            elif run.cause is Trigger.HAND_OVER and run.journal is not None:
                run.journal.note_cut()
                await run.log.wait_for_commit()
        except Exception:  # noqa: BLE001 - a task of its own: nobody above could handle it
            _log.exception("execution log could not be ended", extra={"execution_id": run.identity.execution_id})
        finally:
            if run.trace.tracing is not None:
                run.trace.end(_list_attributes(run), reason="" if run.error is None else run.error.reason)

    async def _write_end(self, run: Run, ending: RunEnding) -> None:
        """Append the last event and wait until it is committed; callers that wait for the answer get it before that."""
        run.ending = ending
        run.accounts.ended_s = self.clock.monotonic()
        self._append_end(run, ending)
        if run.place is not None:
            run.place.release()
        await run.log.wait_for_commit()
        for wait_s in _WAITS_FOR_ROOM_S:
            if not isinstance(run.log.error, StoreFullError) or not run.log.is_created:
                return
            await asyncio.sleep(wait_s)
            warning = "The store was full: the last steps are not kept."
            self._append_end(run, replace(ending, warnings=(*ending.warnings, warning)))
            await run.log.wait_for_commit()

    def _append_end(self, run: Run, ending: RunEnding) -> None:
        last, now = run.work.conclude(run, ending), self.clock.now()
        run.log.end(
            last,
            now=now,
            usage=run.accounts.usage,
            finish_reason=ending.finish_reason,
            expire_time=now + self.limits.find_retention(run.identity.tenant),
        )
        if run.result is None:
            run.conclude(last)

    async def _release_committed(self, run: Run) -> None:
        await run.log.wait_for_commit()
        await self._release_run(run)

    async def _release_run(self, run: Run) -> None:
        """Release everything that the run holds, and remove it."""
        execution = run.identity
        try:
            if run.cause is Trigger.HAND_OVER:
                await self.give_back(execution.execution_id, run.log.fence)
            elif execution.request_id and run.log.error is None and _has_failed_before_cost(run):
                await self._release(run)
        finally:
            run.advance(Trigger.LEAVE if run.cause in LEAVES else Trigger.END)
            # In this order: subscribers that wake up must find the run removed, or they would wait for more events.
            del self.runs.by_id[execution.execution_id]
            if run.place is not None:
                run.place.release()
            run.end()
            _report_left(run, self.observer)
            run.work.leave(run)

    async def _release(self, run: Run) -> None:
        """Release the request id, so that the same request can start again: the run failed without cost or effect.

        Only once its end is in the log: otherwise another process may be executing it, or will.
        """
        try:
            await self.store.release(run.identity.tenant, run.identity.execution_id)
        except ReasondError:
            _log.warning("a request id could not be given back; it stands for a failed execution")

    def _take_change(self, run: Run, change: Change) -> None:
        if change is Change.CANCEL_REQUESTED:
            run.cancel()
        elif change is Change.KEEP_REQUESTED:
            run.subscribers.keep()
        elif change is Change.FOLLOWED:
            run.subscribers.await_one(within_s=self.limits.reattach_s)


async def _begin_work(run: Run) -> None:
    """Let the work of `run` begin, after a takeover only once that is committed: the work may end this process.

    Raises:
        NotResumableError: it has ended too many.
    """
    if run.log.fence > 1:
        await run.log.wait_for_commit()
    if isinstance(run.ending, ReasondError):
        raise run.ending
    await run.work.work(run)


def _report_left(run: Run, observer: Observer) -> None:
    """Report the end that callers saw; the log may lack it, because the store may have refused it."""
    ending, cause = run.ending if run.result is not None and isinstance(run.ending, RunEnding) else None, run.cause
    if ending is None and cause is not None and cause in STOP_REASONS:
        observer.run_handed(STOP_REASONS[cause])
    observer.run_left(
        run.identity.strategy,
        "" if ending is None else str(ending.finish_reason),
        steps=run.work.steps.new_count,
        duration_s=0.0 if ending is None else run.accounts.elapsed_s,
        metrics=run.work.metrics,
    )
    if cause is not None and cause in LEAVES:
        left = {"execution_id": run.identity.execution_id, "stop_reason": STOP_REASONS[cause]}
        _log.info("execution left to another process", extra=left)
        return
    if run.phase is Phase.SUSPENDED:
        _log.info("execution suspended", extra=_describe_work(run))
        return
    error = None if ending is None else ending.error
    # At level DEBUG where the access log has the same facts in the line of the only call.
    is_logged = not run.log.events.is_for_one_answer or cause not in _REPORTED or error is not None
    if not _log.isEnabledFor(level := logging.INFO if is_logged else logging.DEBUG):
        return
    ended: dict[str, str | int] = {
        "finish_reason": str(run.log.execution.finish_reason or ""),
        "reason": "" if error is None else error.reason,
    }
    _log.log(level, "execution ended", extra=_describe_work(run) | ended)


def _describe_work(run: Run) -> dict[str, str | int]:
    execution = run.log.execution
    return {
        "execution_id": execution.execution_id,
        "strategy": execution.strategy,
        "total_tokens": execution.usage.total_tokens,
        "model_calls": execution.usage.model_calls,
        "steps": run.work.steps.count,
    }


def _list_attributes(run: Run) -> Attributes:
    execution, usage = run.log.execution, run.accounts.usage
    attributes: Attributes = {
        "reasond.steps": run.work.steps.count,
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "reasond.usage.source": usage.source.value,
    }
    if execution.finish_reason is not None:
        attributes["reasond.finish_reason"] = execution.finish_reason.value
    elif run.cause is not None and run.cause in STOP_REASONS:
        attributes["reasond.stop_reason"] = STOP_REASONS[run.cause]
    if run.journal is not None and run.journal.recalled:
        attributes["reasond.replayed_calls"] = run.journal.recalled
    return attributes


def make_carriable(error: ReasondError) -> ReasondError:
    """Return `error` with texts that UTF-8 can encode, metadata that are texts, and a finite retry wait or none."""
    error.message, error.remedy = _to_encodable(error.message), _to_encodable(error.remedy)
    error.metadata = {_to_encodable(name): _to_encodable(value) for name, value in error.metadata.items()}
    if error.retry_after_s is not None and not 0 <= error.retry_after_s <= _LONGEST_WAIT_S:
        error.retry_after_s = None
    return error


def _to_encodable(text: object) -> str:
    return str(text).encode("utf-8", "replace").decode("utf-8")


def _find_ending(run: Run) -> RunEnding:
    """Return the ending that the work reported; if there is none, the one that follows from the cause of the stop."""
    reported, limit_s = run.ending, run.accounts.limit_s
    if isinstance(reported, RunEnding):
        return reported
    if reported is not None:
        return build_error_ending(reported, usage=run.accounts.usage)
    if run.cause in CANCELS or limit_s is None:
        return cancel_with(*([ABANDONED] if run.cause is Trigger.ABANDON else []))
    return build_limit_ending(limit_s, usage=run.accounts.usage)


def _leave_behind(run: Run, ending: RunEnding) -> RunEnding:
    """Return `ending` with a warning, and log which work did not stop."""
    facts = {"execution_id": run.identity.execution_id, "strategy": run.identity.strategy}
    _log.error("work does not stop and was left behind", extra=facts)
    warning = "The work did not stop when it was told to and was left behind."
    return replace(ending, warnings=(*ending.warnings, warning))


def _has_failed_before_cost(run: Run) -> bool:
    """Return whether the run failed before it cost or did anything, so that its request id may be released."""
    return run.error is not None and not run.accounts.usage.model_calls and not run.effects.has_begun


def _do_nothing() -> None:
    """Do nothing: no time limit is set."""
