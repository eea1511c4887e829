"""Hand-offs to the client and its re-entries: what is asked for, whether an answer fits it, and who is taken.

All pending calls are settled by one re-entry. It names the etag of the hand-off; the log accepts one event after the
hand-off, so exactly one re-entry of all that try wins.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from reasond_server.access import audit
from reasond_server.access.permissions import require_approval
from reasond_server.errors.base import ReasondError, RequestError, Violation, show
from reasond_server.errors.executions import ExecutionNotFoundError
from reasond_server.errors.turns import (
    EtagMismatchError,
    HandoffExpiredError,
    ToolResultsMissingError,
    ToolResultsUnexpectedError,
    TurnNotAwaitingError,
    TurnNotFoundError,
)
from reasond_server.runs.recorded_calls import compute_texts_digest
from reasond_server.tools.json_parser import read_strict_json
from reasond_server.tools.results import escape_unseen
from reasond_server.turns.fold import TurnProgress, fold
from reasond_server.turns.history import TURN
from reasond_server.turns.turn_requests import check_reentry_shape
from reasond_server.types import Execution, FinishReason, LoggedEvent, Principal, ToolCall, ToolResult
from reasond_server.types.turns import CallKind, HandedOff, PendingCall, Reentered, TurnReentry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from reasond_server.base.clock import Clock
    from reasond_server.executions.desk import ExecutionDesk
    from reasond_server.limits.callers import CallerLimits
    from reasond_server.runs.runner import Runner
    from reasond_server.telemetry.observers import Observer
    from reasond_server.turns.fold import LedgerCall
    from reasond_server.turns.policy import TurnPolicy

_SHOWN_IDS: Final = 20
_ENDS_WITHIN_S: Final = 10.0


def take_fingerprint(call: ToolCall, kind: CallKind) -> str:
    """Return a digest of the tool, the arguments and the kind of the call: 32 hexadecimal digits."""
    return compute_texts_digest(call.name, call.arguments_json, kind.value)


def derive_call_key(call: ToolCall, derive_key: Callable[[str], str]) -> str:
    """Return the idempotency key of a call; a turn that replaces a cancelled one has it for an equal call only."""
    return derive_key(f"call:{call.call_id}:{compute_texts_digest(call.name, call.arguments_json)}")


def build_handoff(
    calls: Sequence[tuple[LedgerCall, CallKind]],
    *,
    derive_key: Callable[[str], str],
    sequence: int,
    expire_time: datetime,
) -> HandedOff:
    """Return the hand-off of `calls` as the event number `sequence`; `derive_key` makes keys that nobody can guess."""
    pending = tuple(
        PendingCall(
            call=one.call,
            kind=kind,
            idempotency_key=derive_call_key(one.call, derive_key),
            fingerprint=take_fingerprint(one.call, kind),
        )
        for one, kind in calls
    )
    return HandedOff(etag=derive_key(f"handoff:{sequence}")[:32], expire_time=expire_time, calls=pending)


def digest_of_reentry(reentry: TurnReentry) -> str:
    """Return a digest of what a re-entry says; the order of its results and decisions does not matter."""
    # Each result has its own digest first: to write all of them as one JSON would hold the interpreter for too long.
    results = sorted((one.call_id, compute_texts_digest(one.result_json), one.is_error) for one in reentry.results)
    decisions = sorted((one.call_id, one.is_approved, one.reason) for one in reentry.decisions)
    return compute_texts_digest(reentry.etag, json.dumps([results, decisions]))


def check_reentry(reentry: TurnReentry, progress: TurnProgress, *, now: datetime, max_result_bytes: int) -> Reentered:
    """Return the event of a re-entry that settles the hand-off of `progress`.

    Raises:
        TurnNotAwaitingError: the turn does not wait for its client.
        EtagMismatchError: the re-entry is for another hand-off.
        HandoffExpiredError: it comes too late.
        ToolResultsUnexpectedError: results or decisions do not fit the pending calls; all of them are named.
        ToolResultsMissingError: pending calls have no result or decision; all of them are named.
    """
    handoff = progress.handoff
    if handoff is None:
        raise TurnNotAwaitingError(f"The turn {show(reentry.turn_id)} does not wait for results")
    if handoff.etag != reentry.etag:
        raise EtagMismatchError(
            f"The etag {show(reentry.etag)} is not that of the turn's hand-off",
            remedy="Read the turn, settle the calls that are pending now, and send the etag of its hand-off.",
        )
    if now >= handoff.expire_time:
        raise HandoffExpiredError(f"The hand-off expired at {handoff.expire_time.isoformat()}")
    kinds = {one.call.call_id: one.kind for one in handoff.calls}
    violations = [*_find_unfit_results(reentry, kinds, max_result_bytes), *_find_unfit_decisions(reentry, kinds)]
    if violations:
        raise ToolResultsUnexpectedError.of(*violations)
    settled = {*[one.call_id for one in reentry.results], *[one.call_id for one in reentry.decisions]}
    missing = [name for name in kinds if name not in settled]
    if missing:
        raise ToolResultsMissingError(
            f"{len(missing)} of {len(kinds)} pending calls have neither result nor decision: {_list_ids(missing)}",
            metadata={"call_ids": ",".join(missing)},
        )
    return Reentered(
        etag=reentry.etag,
        digest=digest_of_reentry(reentry),
        call_ids=tuple(kinds),
        results=tuple(
            ToolResult(call_id=one.call_id, result_json=escape_unseen(one.result_json), is_error=one.is_error)
            for one in reentry.results
        ),
        decisions=tuple(reentry.decisions),
        echo_json=reentry.echo_json,
    )


def _find_unfit_results(reentry: TurnReentry, kinds: dict[str, CallKind], max_result_bytes: int) -> Sequence[Violation]:
    found: list[Violation] = []
    seen: set[str] = set()
    for place, one in enumerate(reentry.results):
        field = f"results[{place}]"
        found += _find_unfit_id(one.call_id, field, kinds, seen, is_decision=False)
        size = len(one.result_json.encode("utf-8", "surrogatepass"))
        if size > max_result_bytes:
            text = f"has {size} bytes; [turns] max_result_bytes allows {max_result_bytes}"
            found.append(Violation(field=f"{field}.result_json", description=text))
        elif not _is_json(one.result_json):
            found.append(
                Violation(field=f"{field}.result_json", description="must be JSON of finite numbers and valid Unicode")
            )
    return found


def _find_unfit_decisions(reentry: TurnReentry, kinds: dict[str, CallKind]) -> Sequence[Violation]:
    seen: set[str] = set()
    return [
        violation
        for place, one in enumerate(reentry.decisions)
        for violation in _find_unfit_id(one.call_id, f"decisions[{place}]", kinds, seen, is_decision=True)
    ]


def _find_unfit_id(
    call_id: str, field: str, kinds: dict[str, CallKind], seen: set[str], *, is_decision: bool
) -> Sequence[Violation]:
    """Return what is wrong with the call that a result or a decision names; add it to those `seen`."""
    field = f"{field}.call_id"
    kind = kinds.get(call_id)
    if kind is None:
        pending = _list_ids(list(kinds))
        return [Violation(field=field, description=f"{show(call_id)} is not pending; pending are {pending}")]
    if call_id in seen:
        return [Violation(field=field, description=f"{show(call_id)} is named twice")]
    seen.add(call_id)
    if is_decision is not (kind is CallKind.APPROVE):
        wanted = "a decision" if kind is CallKind.APPROVE else "a result"
        return [Violation(field=field, description=f"{show(call_id)} is of kind {kind.name} and needs {wanted}")]
    return []


def _is_json(text: str) -> bool:
    try:
        read_strict_json(text)
    except ValueError:
        return False
    return True


def _list_ids(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN_IDS} more" if len(names) > _SHOWN_IDS else ""
    return ", ".join(names[:_SHOWN_IDS]) + more


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
