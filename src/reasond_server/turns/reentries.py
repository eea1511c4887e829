"""Re-entries: a client settles the pending calls of a turn, and exactly one of all that try is taken."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from reasond_server.access import audit
from reasond_server.access.permissions import require_approval
from reasond_server.errors.base import ReasondError, RequestError, show
from reasond_server.errors.executions import ExecutionNotFoundError
from reasond_server.errors.turns import EtagMismatchError, HandoffExpiredError, TurnNotAwaitingError, TurnNotFoundError
from reasond_server.turns.fold import TurnProgress, fold
from reasond_server.turns.handoff import check_reentry, digest_of_reentry
from reasond_server.turns.history import TURN
from reasond_server.turns.turn_requests import check_reentry_shape
from reasond_server.types import Execution, FinishReason, LoggedEvent, Principal
from reasond_server.types.turns import Reentered, TurnReentry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reasond_server.base.clock import Clock
    from reasond_server.executions.desk import ExecutionDesk
    from reasond_server.limits.callers import CallerLimits
    from reasond_server.runs.runner import Runner
    from reasond_server.telemetry.observers import Observer
    from reasond_server.turns.policy import TurnPolicy


_ENDS_WITHIN_S: Final = 10.0


@dataclass(eq=False, kw_only=True)
class Reentries:
    """Takes the re-entries of verified callers."""

    runner: Runner
    desk: ExecutionDesk
    policy: TurnPolicy
    clock: Clock
    limits: CallerLimits
    observer: Observer

    async def take(self, caller: Principal, reentry: TurnReentry) -> int:
        """Let the turn go on with the results, exactly once; return the sequence after which its events go on.

        Raises:
            TurnNotFoundError: this caller has no such turn.
            PermissionMissingError: it approves a call, and the caller may not.
            ReasondError: as `handoff.check_reentry`; nothing was consumed.
        """
        try:
            after, is_first = await self._take(caller, reentry)
        except ReasondError as error:
            self.observer.turn_reentered(error.reason)
            if isinstance(error, RequestError):
                # The ids are unchecked text of the caller.
                audit.log_act("rejected", execution_id=reentry.turn_id, tool_calls=(), reason=error.reason)
            raise
        self.observer.turn_reentered("accepted" if is_first else "replayed")
        if is_first:
            _log_settlement(reentry)
        return after

    async def _take(self, caller: Principal, reentry: TurnReentry) -> tuple[int, bool]:
        """Return the sequence, and whether this re-entry was the first. Raises as `take`."""
        check_reentry_shape(reentry)
        if any(one.is_approved for one in reentry.decisions):
            require_approval(caller)
        execution, progress, sequence = await self._read_for_reentry(caller, reentry)
        if sequence is not None:
            return sequence - 1, False
        event = await asyncio.to_thread(
            partial(
                check_reentry,
                reentry,
                progress,
                now=self.clock.expiry_now(),
                max_result_bytes=self.policy.max_result_bytes,
            )
        )
        permit = await self.limits.admit(caller, TURN)
        try:
            logged = LoggedEvent(sequence=execution.last_sequence + 1, create_time=self.clock.now(), event=event)
            is_first = await self.runner.wake(caller.tenant, reentry.turn_id, event=logged)
        finally:
            if permit is not None:
                permit.release()
        if is_first:
            return execution.last_sequence, True
        _, progress, sequence = await self._read_for_reentry(caller, reentry)
        if sequence is None:
            # No re-entry took the turn, so it ends now: its hand-off has expired, or it was cancelled.
            await self._wait_for_end(caller, reentry.turn_id)
            _, progress, sequence = await self._read_for_reentry(caller, reentry)
        if sequence is None:
            raise _refuse_reentry(reentry, progress)
        return sequence - 1, False

    async def _wait_for_end(self, caller: Principal, turn_id: str) -> None:
        """Wait until the turn has ended, or for 10 seconds: the process that has taken it may have died."""
        with suppress(TimeoutError, ReasondError):
            async with (
                asyncio.timeout(_ENDS_WITHIN_S),
                aclosing(self.desk.resume(caller, turn_id, after_sequence=0)) as events,
            ):
                async for _ in events:
                    pass

    async def _read_for_reentry(
        self, caller: Principal, reentry: TurnReentry
    ) -> tuple[Execution, TurnProgress, int | None]:
        """Return the turn, and the sequence of the event of this very re-entry; None if it was not made before.

        Raises:
            EtagMismatchError: another re-entry has spent the etag.
            HandoffExpiredError, TurnNotAwaitingError: the turn has ended, or does not wait.
        """
        with naming_turns(reentry.turn_id):
            log = await self.desk.read(caller, reentry.turn_id)
        progress = fold(logged.event for logged in log.events)
        for logged in log.events:
            if isinstance(logged.event, Reentered) and logged.event.etag == reentry.etag:
                if logged.event.digest == digest_of_reentry(reentry):
                    return log.execution, progress, logged.sequence
                raise EtagMismatchError(
                    f"The etag {show(reentry.etag)} was spent by a re-entry with other results",
                    remedy="Read the turn: it went on with the results that came first.",
                )
        if progress.result is not None or progress.handoff is None:
            raise _refuse_reentry(reentry, progress)
        return log.execution, progress, None


@contextmanager
def naming_turns(turn_id: str) -> Iterator[None]:
    """Say that there is no such turn where the desk says that there is no such execution."""
    try:
        yield
    except ExecutionNotFoundError:
        raise TurnNotFoundError(
            f"Turn not found: {show(turn_id)}", remedy="Use a turn_id that this server returned to the same tenant."
        ) from None


def _log_settlement(reentry: TurnReentry) -> None:
    """Add to the audit log which calls were settled, and each decision of a person; never what they say."""
    if reentry.results:
        audit.log_act("settled", execution_id=reentry.turn_id, tool_calls=[one.call_id for one in reentry.results])
    for one in reentry.decisions:
        outcome = "approved" if one.is_approved else "refused"
        audit.log_act(outcome, execution_id=reentry.turn_id, tool_calls=[one.call_id], reason_length=len(one.reason))


def _refuse_reentry(reentry: TurnReentry, progress: TurnProgress) -> HandoffExpiredError | TurnNotAwaitingError:
    result = progress.result
    if result is not None and result.finish_reason is FinishReason.EXPIRED:
        return HandoffExpiredError(f"The turn {show(reentry.turn_id)} ended, because its hand-off expired")
    what = "runs and does not wait for results" if result is None else f"has ended: {result.finish_reason}"
    return TurnNotAwaitingError(f"The turn {show(reentry.turn_id)} {what}")
