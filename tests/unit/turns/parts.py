"""A turn with every event, and a scripted turn service that records its calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from reasond_server.turns.turn_service import SessionPage, TurnPage, TurnService, TurnView
from reasond_server.types import FinishReason, Heartbeat, StreamEvent, ToolCall, ToolResult, Usage
from reasond_server.types.turns import (
    CallKind,
    ContextGoal,
    ContextItem,
    Decision,
    HandedOff,
    LedgerEntry,
    LedgerState,
    ModeChange,
    ModelCallStep,
    PendingCall,
    Reentered,
    Rendering,
    ResultExcerpt,
    SessionView,
    TextHit,
    ToolStep,
    Turn,
    TurnDelta,
    TurnResult,
    TurnStarted,
    TurnState,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.types import Principal

START = datetime(2026, 11, 21, 12, 0, 0, 123_000, tzinfo=UTC)
STAMP = "2026-11-21T12:00:00.123000Z"
USAGE = Usage(input_tokens=120, output_tokens=30, model_calls=1)
CALL = ToolCall(call_id="c1", name="deploy", arguments_json='{"to":"prod"}')
HANDED_OFF = HandedOff(
    etag="h1",
    expire_time=START + timedelta(days=1),
    calls=(PendingCall(call=CALL, kind=CallKind.APPROVE, idempotency_key="key-1", fingerprint="f1"),),
)
RESULT = TurnResult(
    execution_id="turn-1",
    answer="done",
    finish_reason=FinishReason.ANSWERED,
    mode="default",
    model="scripted",
    usage=USAGE,
    elapsed_s=1.5,
    warnings=("one warning",),
)
HAPPENINGS: tuple[Any, ...] = (
    TurnStarted(
        session_id="s", mode="default", model="scripted", message="SECRET", session_revision=1, material="SECRET"
    ),
    ModelCallStep(
        index=0,
        goal=ContextGoal.PLANNING,
        mode="default",
        model="scripted",
        usage=USAGE,
        elapsed_s=0.25,
        text="I deploy.",
        thinking="SECRET",
        context=(ContextItem(source="message", rendering=Rendering.FULL, tokens=7, full_tokens=9),),
        tools=("deploy",),
        calls=(CALL,),
        provider_ids=("SECRET",),
    ),
    ToolStep(
        call_id="c2",
        tool="look",
        state=LedgerState.SUCCEEDED,
        fingerprint="f2",
        result_bytes=9,
        elapsed_s=0.125,
        result_json='"SECRET"',
    ),
    ModeChange(call_id="c3", old_mode="default", new_mode="careful"),
    HANDED_OFF,
    Reentered(
        etag="h1",
        digest="SECRET",
        call_ids=("c1",),
        results=(ToolResult(call_id="c1", result_json='"SECRET"'),),
        decisions=(Decision(call_id="c1", is_approved=True),),
    ),
    RESULT,
    TurnDelta(iteration_index=1, text="don", is_draft=True),
    Heartbeat(),
)
TURN = Turn(
    turn_id="turn-1",
    session_id="s",
    state=TurnState.SUCCEEDED,
    mode="default",
    model="scripted",
    create_time=START,
    ledger=(LedgerEntry(call_id="c1", tool="deploy", state=LedgerState.SUCCEEDED, result_bytes=9),),
    end_time=START + timedelta(seconds=2),
    expire_time=START + timedelta(hours=1),
    usage=USAGE,
    last_sequence=7,
    request_id="mine",
)
WAITING = Turn(
    turn_id="turn-1",
    session_id="s",
    state=TurnState.AWAITING_CLIENT,
    mode="default",
    model="scripted",
    create_time=START,
    handoff=HANDED_OFF,
)
SESSION = SessionView(
    session_id="s",
    revision=2,
    mode="default",
    open_turn_id="turn-1",
    turn_count=1,
    create_time=START,
    update_time=START,
    expire_time=START + timedelta(days=30),
)
EXCERPT = ResultExcerpt(
    text="cdef", total_characters=9, offset=2, next_offset=6, hits=(TextHit(offset=2, text="cdef"),), is_error=True
)


def turn_event(sequence: int, happening: Any) -> StreamEvent:
    return StreamEvent(execution_id="turn-1", sequence=sequence, create_time=START, event=happening)


EVENTS = tuple(turn_event(index, happening) for index, happening in enumerate(HAPPENINGS[:7], start=1))


@dataclass(kw_only=True)
class ScriptedTurns(TurnService):
    """A turn service that answers from the values above; all but `get` raise `failure` if there is one."""

    view: TurnView = field(default_factory=lambda: TurnView(turn=TURN, result=RESULT))
    failure: Exception | None = None
    calls: list[dict[str, Any]] = field(default_factory=list)

    async def stream(self, caller: Principal, source: Any, **options: Any) -> AsyncGenerator[StreamEvent, None]:
        self._note("stream", caller, source=source, **options)
        after = getattr(source, "after_sequence", 0)
        for event in EVENTS:
            if event.sequence > after:
                yield event

    async def run(self, caller: Principal, source: Any, *, request_id: str = "") -> TurnView:
        self._note("run", caller, source=source, request_id=request_id)
        return self.view

    async def get(self, caller: Principal, turn_id: str, *, with_conversation: bool = False) -> TurnView:
        del with_conversation
        self.calls.append({"method": "get", "caller": caller, "turn_id": turn_id})
        return self.view

    async def list(self, caller: Principal, **options: Any) -> TurnPage:
        self._note("list", caller, **options)
        return TurnPage(turns=(TURN,), next_page_token="more")

    async def cancel(self, caller: Principal, turn_id: str) -> Turn:
        self._note("cancel", caller, turn_id=turn_id)
        return TURN

    async def delete(self, caller: Principal, turn_id: str) -> None:
        self._note("delete", caller, turn_id=turn_id)

    async def read_tool_result(
        self, caller: Principal, turn_id: str, call_id: str, part: Any, *, max_bytes: int = 0
    ) -> ResultExcerpt:
        self._note("read", caller, turn_id=turn_id, call_id=call_id, part=part, max_bytes=max_bytes)
        return EXCERPT

    async def get_session(self, caller: Principal, session_id: str) -> SessionView:
        self._note("get_session", caller, session_id=session_id)
        return SESSION

    async def list_sessions(self, caller: Principal, **options: Any) -> SessionPage:
        self._note("list_sessions", caller, **options)
        return SessionPage(sessions=(SESSION,), next_page_token="more")

    async def delete_session(self, caller: Principal, session_id: str) -> None:
        self._note("delete_session", caller, session_id=session_id)

    def _note(self, method: str, caller: Principal, **options: Any) -> None:
        self.calls.append({"method": method, "caller": caller, **options})
        if self.failure is not None:
            raise self.failure
