"""Hand-offs to the client and its re-entries: what is asked for, and whether an answer fits it.

All pending calls are settled by one re-entry. It names the etag of the hand-off; the log accepts one event after the
hand-off, so exactly one re-entry wins.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

from reasond_server.errors.base import Violation, show
from reasond_server.errors.turns import (
    EtagMismatchError,
    HandoffExpiredError,
    ToolResultsMissingError,
    ToolResultsUnexpectedError,
    TurnNotAwaitingError,
)
from reasond_server.runs.recorded_calls import compute_texts_digest
from reasond_server.tools.json_parser import read_strict_json
from reasond_server.tools.results import escape_unseen
from reasond_server.types import ToolCall, ToolResult
from reasond_server.types.turns import CallKind, HandedOff, PendingCall, Reentered, TurnReentry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from reasond_server.turns.fold import LedgerCall, TurnProgress

_SHOWN_IDS: Final = 20


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
