"""Turns, sessions and parts of tool results as callers see them; how turns leave, in the words of metrics.

Also what was said to a turn, as a person reads it who judges its calls.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from reasond_server.errors.base import show
from reasond_server.errors.request import InvalidRequestError
from reasond_server.tools.read_result import find_places
from reasond_server.tools.results import cut_to_bytes, resolve_pointer, to_json_text
from reasond_server.turns.fold import LedgerCall, TurnProgress
from reasond_server.types import Execution, ExecutionState, FinishReason, Session, ToolResult
from reasond_server.types.tasks import HistoryMessage, Speaker
from reasond_server.types.turns import (
    CallKind,
    HandedOff,
    LedgerState,
    ResultExcerpt,
    SessionView,
    TextHit,
    Turn,
    TurnConversation,
    TurnState,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from reasond_server.eventlog.store import Recovery
    from reasond_server.telemetry.observers import Observer
    from reasond_server.turns.history import EndedTurn
    from reasond_server.types.turns import ContextGoal, ContextItem, LedgerEntry, ResultPart, TurnStarted


_EXITS = {FinishReason.FAILED: "failed", FinishReason.CANCELLED: "cancelled", FinishReason.EXPIRED: "expired"}


def name_exit(finish_reason: FinishReason) -> str:
    """Return how a turn left that ended with `finish_reason`: "done", "failed", "cancelled" or "expired"."""
    return _EXITS.get(finish_reason, "done")


def report_wait(observer: Observer, recovery: Recovery, *, now: datetime) -> None:
    """Report the end of the hand-off after which a turn was taken that had been suspended."""
    for logged in reversed(recovery.events):
        if isinstance(logged.event, HandedOff):
            outcome = "settled" if recovery.has_waking_event else "cancelled"
            if recovery.is_due and not recovery.is_cancel_requested:
                outcome = "expired"
            observer.handoff_settled(outcome, max(0.0, (now - logged.create_time).total_seconds()))
            return


def report_context(observer: Observer, items: Sequence[ContextItem], *, goal: ContextGoal, results: set[str]) -> None:
    """Report the tokens of those items of a prompt that are `results`: the ids of their calls."""
    for item in items:
        if item.source in results:
            observer.context_built(goal.value, item.rendering.value, item.tokens)


MAX_EXCERPT_BYTES: Final = 3 * 1024 * 1024
"""Most bytes of text that one call returns of a tool result: the response must fit into a message."""

_MOST_LEDGER_CHARACTERS: Final = 262_144

_ENDED: Final = {
    FinishReason.CANCELLED: TurnState.CANCELLED,
    FinishReason.FAILED: TurnState.FAILED,
    FinishReason.EXPIRED: TurnState.EXPIRED,
}


def view_turn(execution: Execution, progress: TurnProgress | None = None) -> Turn:
    """Return the turn of `execution`; without its `progress` the mode, the hand-off and the ledger are left out."""
    known = progress or TurnProgress()
    return Turn(
        turn_id=execution.execution_id,
        session_id=execution.session_id,
        state=_find_state(execution),
        mode=known.mode,
        model=execution.model,
        create_time=execution.create_time,
        handoff=known.handoff if execution.state is ExecutionState.SUSPENDED else None,
        ledger=_list_entries(known, has_ended=execution.state.has_ended),
        end_time=execution.end_time,
        expire_time=execution.expire_time,
        usage=execution.usage,
        last_sequence=execution.last_sequence,
        request_id=execution.request_id,
        question=execution.question,
        outcome=execution.outcome,
        client=execution.client,
        wire=execution.wire,
        finish_reason=execution.finish_reason,
    )


def _list_entries(progress: TurnProgress, *, has_ended: bool) -> Sequence[LedgerEntry]:
    """Return the calls with their texts, of which all together have at most 262,144 characters."""
    entries: list[LedgerEntry] = []
    room = _MOST_LEDGER_CHARACTERS
    for one in progress.ledger.values():
        entry = _close_entry(one) if has_ended else one.entry
        room -= len(entry.arguments_json) + len(entry.result_json)
        entries.append(entry if room >= 0 else replace(entry, arguments_json="", result_json=""))
    return entries


def _close_entry(one: LedgerCall) -> LedgerEntry:
    """Return a call of a turn that has ended: what is still open is not made any more, or its outcome is not known."""
    entry = one.entry
    if entry.state is LedgerState.STARTED or (entry.state is LedgerState.HANDED_OFF and one.kind is CallKind.RESOLVE):
        return replace(entry, state=LedgerState.UNKNOWN)
    return entry if entry.state.is_closed else replace(entry, state=LedgerState.NOT_RUN)


def view_session(session: Session, *, default_mode: str) -> SessionView:
    """Return the session for callers."""
    return SessionView(
        session_id=session.session_id,
        revision=session.revision,
        mode=session.state.get("mode") or default_mode,
        open_turn_id=session.open_execution,
        turn_count=session.execution_count,
        create_time=session.create_time,
        update_time=session.update_time,
        expire_time=session.expire_time,
    )


def take_excerpt(result: ToolResult, part: ResultPart, *, max_bytes: int) -> ResultExcerpt:
    """Return the wanted part of `result`, at most `max_bytes` bytes of text; 0 means as many as a message may have.

    Raises:
        InvalidRequestError: there is nothing at the JSON pointer.
    """
    room = min(max_bytes or MAX_EXCERPT_BYTES, MAX_EXCERPT_BYTES)
    text = result.result_json
    if part.json_pointer is not None:
        text = _resolve(text, part.json_pointer)
    if part.contains is not None:
        hits, _ = find_places(text, part.contains, offset=part.offset, limit=room // 4)
        return ResultExcerpt(
            text="",
            total_characters=len(text),
            hits=tuple(TextHit(offset=hit["offset"], text=hit["text"]) for hit in hits),
            is_error=result.is_error,
        )
    wanted = text[part.offset : part.offset + part.limit] if part.limit else text[part.offset :]
    kept, _ = cut_to_bytes(wanted, room)
    end = part.offset + len(kept)
    return ResultExcerpt(
        text=kept,
        total_characters=len(text),
        offset=part.offset,
        next_offset=end if end < len(text) else 0,
        is_error=result.is_error,
    )


def _resolve(text: str, pointer: str) -> str:
    try:
        return to_json_text(resolve_pointer(text, pointer))
    except ValueError as error:
        raise InvalidRequestError.at("json_pointer", f"{show(pointer)}: {error}") from None


def _find_state(execution: Execution) -> TurnState:
    if execution.state is ExecutionState.SUSPENDED:
        return TurnState.AWAITING_CLIENT
    if not execution.state.has_ended or execution.finish_reason is None:
        return TurnState.RUNNING
    return _ENDED.get(execution.finish_reason, TurnState.SUCCEEDED)


_MOST_CHARACTERS: Final = 400_000
"""Of all texts together: as UTF-8 they fit into a message of 4 MiB, whatever they are."""


class _TextRoom:
    """How many characters may still be told."""

    def __init__(self) -> None:
        self._left = _MOST_CHARACTERS

    def take(self, text: str) -> str:
        """Return `text`, or its beginning with a note of what is left out."""
        kept = text[: self._left]
        self._left -= len(kept)
        return kept if len(kept) == len(text) else f"{kept}… [{len(text) - len(kept)} characters are left out here]"

    def has(self, message: HistoryMessage) -> bool:
        """Return whether the whole `message` fits, and count it if it does."""
        needed = sum(map(len, message.list_texts()))
        if needed > self._left:
            return False
        self._left -= needed
        return True


def write_conversation(start: TurnStarted, earlier: Sequence[EndedTurn]) -> TurnConversation | None:
    """Return what was said, with the `earlier` turns of the session; None where the store kept no content.

    All texts together have at most 400,000 characters: what is not said last is left out first, and told.
    """
    if not start.message:
        return None
    room = _TextRoom()
    message, system = room.take(start.message), room.take(start.system)
    messages = start.history or [message for turn in earlier for message in _list_messages(turn)]
    kept: list[HistoryMessage] = []
    for one in reversed(messages):
        if not room.has(one):
            break
        kept.insert(0, replace(one, images=()))
    return TurnConversation(
        system=system,
        history=kept,
        message=message,
        context=[replace(block, text=room.take(block.text)) for block in start.context],
        material=room.take(start.material),
        left_out_messages=len(messages) - len(kept),
    )


def _list_messages(turn: EndedTurn) -> Sequence[HistoryMessage]:
    start, result = turn.progress.start, turn.progress.result
    asked = "" if start is None else start.message
    ending = "" if result is None else result.answer or f"[the turn ended: {result.finish_reason}]"
    return (
        HistoryMessage(role=Speaker.USER, text=asked),
        HistoryMessage(role=Speaker.ASSISTANT, text=ending),
    )
