"""The entry point of turns: starts them, takes re-entries, and reads turns, sessions and tool results."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from datetime import timedelta
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final

from reasond_server.access.permissions import ADMIN, TOOLS
from reasond_server.base.asyncio_tasks import finish_though_cancelled
from reasond_server.errors.base import show
from reasond_server.errors.limits import StoreUnavailableError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.errors.turns import EtagMismatchError, SessionNotFoundError
from reasond_server.eventlog.store import ExecutionStore, SessionClaim
from reasond_server.executions.desk import ExecutionDesk, link_rpc_to, note_concerned, read_page_token, write_page_token
from reasond_server.limits.callers import NO_LIMITS, CallerLimits
from reasond_server.reasoning.answer_finishing import check_schema
from reasond_server.requests.task_checks import DEFAULT_BOUNDS, HistoryBounds, digest_request
from reasond_server.runs.work import WorkRequest, build_failure
from reasond_server.telemetry.observers import UNOBSERVED, Observer
from reasond_server.telemetry.scope import get_current_trace, get_current_wire, note_result
from reasond_server.turns.fold import TurnProgress, fold
from reasond_server.turns.handoff import Reentries, naming_turns
from reasond_server.turns.history import TURN, EndedTurn, read_history
from reasond_server.turns.providers import SESSION_BLOCKS
from reasond_server.turns.turn_requests import check_no_wait, check_part, check_session_blocks, check_start
from reasond_server.turns.turn_views import name_exit, take_excerpt, view_session, view_turn, write_conversation
from reasond_server.turns.turn_work import TurnAssignment, TurnKind, TurnWork
from reasond_server.types import Cursor, Execution, ExecutionState, Principal, Session, StreamEvent
from reasond_server.types.executions import write_headline
from reasond_server.types.turns import HandedOff, TurnReentry, TurnStart, TurnStarted
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from reasond_server.base.clock import Clock
    from reasond_server.runs.run import Run
    from reasond_server.runs.runner import Runner
    from reasond_server.turns.policy import TurnPolicy
    from reasond_server.types.turns import ResultExcerpt, ResultPart, SessionView, Turn, TurnConversation, TurnResult

_MOST_ATTEMPTS: Final = 10
_DEFAULT_PAGE: Final = 50
_LARGEST_PAGE: Final = 100
_HISTORY_WAITS_S: Final = 10.0


@value
class TurnView:
    """A turn, and how it ended; None before that. The `conversation` is read on request, and kept with content only."""

    turn: Turn
    result: TurnResult | None = None
    conversation: TurnConversation | None = None


@value
class TurnPage:
    """One page of turns, newest first; the token is empty on the last page."""

    turns: Sequence[Turn]
    next_page_token: str


@value
class SessionPage:
    """One page of sessions, last changed first; the token is empty on the last page."""

    sessions: Sequence[SessionView]
    next_page_token: str


class TurnService:
    """Works out turns for verified callers.

    `desk` reads and stops their executions, `tool_names` returns the names of the server's tools.
    """

    def __init__(
        self,
        *,
        store: ExecutionStore,
        runner: Runner,
        desk: ExecutionDesk,
        kind: TurnKind,
        policy: TurnPolicy,
        clock: Clock,
        tool_names: Callable[[], Sequence[str]],
        limits: CallerLimits = NO_LIMITS,
        history: HistoryBounds = DEFAULT_BOUNDS,
        observer: Observer = UNOBSERVED,
    ) -> None:
        self._reentries = Reentries(
            runner=runner, desk=desk, policy=policy, clock=clock, limits=limits, observer=observer
        )
        self._store = store
        self._runner = runner
        self._desk = desk
        self._kind = kind
        self._policy = policy
        self._clock = clock
        self._tool_names = tool_names
        self._limits = limits
        self._history = history

    @property
    def history_share(self) -> float:
        """The share of its prompts that a turn has for what was said before it."""
        return self._policy.context.history_share

    async def stream(
        self,
        caller: Principal,
        source: TurnStart | TurnReentry | Cursor,
        *,
        request_id: str = "",
        include_deltas: bool = False,
        follow: bool = False,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Start a turn, go on with one or attach to one; yield its events to the next exit, with `follow` to the end.

        Events of the class TurnDelta and Heartbeat are not logged. A turn that failed raises its error after its last
        event. Closing the iterator never affects the turn.

        Raises:
            ReasondError: nothing was started or consumed, or the turn failed; then `execution_id` is set.
        """
        cursor = await self._enter(caller, source, request_id)
        events = self._desk.resume(
            caller, cursor.execution_id, after_sequence=cursor.after_sequence, include_deltas=include_deltas
        )
        with naming_turns(cursor.execution_id):
            async with aclosing(events):
                async for event in events:
                    yield event
                    if not follow and isinstance(event.event, HandedOff) and await self._is_exit(caller, source, event):
                        return

    async def run(self, caller: Principal, source: TurnStart | TurnReentry, *, request_id: str = "") -> TurnView:
        """Start a turn or go on with one; return it at the next exit: its end, or a hand-off. Raises as `stream`."""
        cursor = await self._enter(caller, source, request_id)
        view = await self._wait_for_exit(caller, cursor)
        exit_ = "client_tools" if view.result is None else name_exit(view.result.finish_reason)
        note_result(view.turn.usage, exit_, strategy=TURN)
        return view

    async def _wait_for_exit(self, caller: Principal, cursor: Cursor) -> TurnView:
        """Return the turn at its next exit. Raises as `stream`."""
        run = self._runner.find_live(cursor.execution_id)
        if run is not None:
            # Nobody reads the steps one by one, and the run has all of them in memory.
            link_rpc_to(run)
            await run.wait_for_end()
            if (view := _view_at_exit(run)) is not None:
                return view
        async with aclosing(self.stream(caller, cursor)) as events:
            async for _ in events:
                pass
        return await self.get(caller, cursor.execution_id)

    async def get(self, caller: Principal, turn_id: str, *, with_conversation: bool = False) -> TurnView:
        """Return a turn with its ledger, and on request with what was said to it.

        Raises:
            TurnNotFoundError: this caller has no such turn.
        """
        execution, progress = await self._read(caller, turn_id)
        conversation: TurnConversation | None = None
        if with_conversation and progress.start is not None:
            earlier = await _read_earlier(self._store, execution, progress.start)
            conversation = await asyncio.to_thread(write_conversation, progress.start, earlier)
        return TurnView(turn=view_turn(execution, progress), result=progress.result, conversation=conversation)

    async def read_start(self, caller: Principal, turn_id: str) -> TurnStarted | None:
        """Return the first event of a turn. Raises as `get`."""
        return (await self._read(caller, turn_id))[1].start

    async def list(
        self,
        caller: Principal,
        *,
        session_id: str = "",
        state: ExecutionState | None = None,
        page_size: int = 0,
        page_token: str = "",
    ) -> TurnPage:
        """Return a page of the caller's turns.

        Raises:
            InvalidRequestError: `page_size` is negative, or `page_token` is not from the page before.
        """
        page = await self._desk.list(
            caller, session_id=session_id, state=state, page_size=page_size, page_token=page_token
        )
        return TurnPage(
            turns=[view_turn(execution) for execution in page.executions], next_page_token=page.next_page_token
        )

    async def cancel(self, caller: Principal, turn_id: str) -> Turn:
        """Cancel a turn that runs or waits, and return it. Raises as `get`."""
        with naming_turns(turn_id):
            execution = await self._desk.cancel(caller, turn_id)
        _, progress = await self._read(caller, turn_id)
        return view_turn(execution, progress)

    async def delete(self, caller: Principal, turn_id: str) -> None:
        """Cancel the turn if it has not ended, and forget it. Raises as `get`."""
        with naming_turns(turn_id):
            await self._desk.delete(caller, turn_id)

    async def read_tool_result(
        self, caller: Principal, turn_id: str, call_id: str, part: ResultPart, *, max_bytes: int = 0
    ) -> ResultExcerpt:
        """Return a part of the whole result of a tool call; `max_bytes` 0 means 3 MiB.

        Raises:
            TurnNotFoundError: this caller has no such turn.
            InvalidRequestError: the turn has no such call, the call has no result, or the result no such part.
        """
        check_part(part, max_bytes=max_bytes)
        _, progress = await self._read(caller, turn_id)
        one = progress.ledger.get(call_id)
        if one is None or one.result is None:
            known = ", ".join(name for name, each in progress.ledger.items() if each.result is not None) or "none"
            text = f"{show(call_id)} has no result in this turn; calls with results: {known}"
            raise InvalidRequestError.at("call_id", text)
        return await asyncio.to_thread(partial(take_excerpt, one.result, part, max_bytes=max_bytes))

    async def get_session(self, caller: Principal, session_id: str) -> SessionView:
        """Return a session.

        Raises:
            SessionNotFoundError: this caller has no such session.
        """
        session = await self._store.sessions.find(caller.tenant, session_id)
        return view_session(session, default_mode=self._policy.default_mode)

    async def list_sessions(self, caller: Principal, *, page_size: int = 0, page_token: str = "") -> SessionPage:
        """Return a page of the caller's sessions.

        Raises:
            InvalidRequestError: `page_size` is negative, or `page_token` is not from the page before.
        """
        if page_size < 0:
            raise InvalidRequestError.at("page_size", f"must be at least 0, got {page_size}")
        size = min(page_size or _DEFAULT_PAGE, _LARGEST_PAGE)
        before = read_page_token(page_token) if page_token else None
        found = await self._store.sessions.page(caller.tenant, size=size + 1, before=before)
        return SessionPage(
            sessions=[view_session(one, default_mode=self._policy.default_mode) for one in found[:size]],
            next_page_token=write_page_token(found[size - 1].update_time, found[size - 1].session_id)
            if len(found) > size
            else "",
        )

    async def delete_session(self, caller: Principal, session_id: str) -> None:
        """Forget a session and its turns.

        Raises:
            SessionNotFoundError: this caller has no such session.
            TurnLeasedError: a turn of it runs or waits.
        """
        await self._store.sessions.delete(caller.tenant, session_id)

    async def _enter(self, caller: Principal, source: TurnStart | TurnReentry | Cursor, request_id: str) -> Cursor:
        """Return where the events begin that `source` asks for, after it has taken effect."""
        if isinstance(source, TurnStart):
            starting = self._start_once(caller, source, request_id)
            if request_id:
                starting = finish_though_cancelled(starting, name="start of a turn")
            execution = await starting
            return Cursor(execution_id=execution.execution_id)
        if isinstance(source, TurnReentry):
            after = await self._reentries.take(caller, source)
            return Cursor(execution_id=source.turn_id, after_sequence=after)
        return source

    async def _start_once(self, caller: Principal, start: TurnStart, request_id: str) -> Execution:
        """Return the execution that the request id stands for, or start one."""
        names = self._tool_names() if start.uses_server_tools else ()
        check_start(start, policy=self._policy, server_tool_names=names, request_id=request_id, history=self._history)
        if not self._kind.records_content:
            check_no_wait(start, policy=self._policy, server_tool_names=names if _may_use_tools(caller) else ())
        if start.answer_schema_json:
            schema = json.loads(start.answer_schema_json)
            await check_schema(schema, schemas=self._kind.schemas, tenant=caller.tenant)
        digest = digest_request(start) if request_id else ""
        start_it = partial(self._start, caller, start, request_id, digest)
        return await self._desk.start_once(caller, request_id, digest, start=start_it)

    async def _start(self, caller: Principal, start: TurnStart, request_id: str, digest: str) -> Execution:
        """Start an execution once there is a place for it; its session must not change in between."""
        with await self._runner.find_place(caller.tenant) as place:
            permit = await self._limits.admit(caller, TURN)
            place.keep(permit)
            for attempt in count(1):
                session = await self._find_session(caller.tenant, start.session_id)
                trace = get_current_trace()
                request = WorkRequest(
                    tenant=caller.tenant,
                    subject=caller.subject,
                    request_id=request_id,
                    digest=digest,
                    keep_running=True,
                    time_limit_s=self._policy.max_active_s,
                    trace="" if trace is None else trace.text,
                    permit="" if permit is None else permit.name,
                    question=write_headline(start.message),
                    wire=get_current_wire(),
                    budget=start.budget,
                    session=self._claim(start, session),
                    prompts_begin_with=find_beginning(start),
                )
                work = self._kind.create(self._assign(caller, start, session), request)
                try:
                    execution = await self._runner.start(work, place=place)
                except EtagMismatchError:
                    # Another turn of the session began or ended meanwhile.
                    if start.if_revision is not None or attempt == _MOST_ATTEMPTS:
                        raise
                else:
                    break
        note_concerned(execution.execution_id)
        return execution

    def _claim(self, start: TurnStart, session: Session | None) -> SessionClaim | None:
        """Return the claim on the session with exactly the revision that the turn was made for; None without one."""
        if not start.session_id:
            return None
        known = 0 if session is None else session.revision
        return SessionClaim(
            session_id=start.session_id,
            if_revision=known if start.if_revision is None else start.if_revision,
            expire_time=self._clock.now() + timedelta(seconds=self._policy.session_retention_s),
        )

    def _assign(self, caller: Principal, start: TurnStart, session: Session | None) -> TurnAssignment:
        state = {} if session is None else session.state
        mode = start.mode or state.get("mode") or self._policy.default_mode
        revision = 0 if session is None else session.revision
        provided = state.get("providers", {})
        check_session_blocks(start.context, provided.get(SESSION_BLOCKS, {}))
        return TurnAssignment(
            start=TurnStarted(
                session_id=start.session_id,
                mode=mode,
                model="",
                message=start.message,
                session_revision=revision + 1 if start.session_id else 0,
                material=start.material,
                client_tools=tuple(start.client_tools),
                context=tuple(start.context),
                system=start.system,
                history=tuple(start.history),
                tool_choice=start.tool_choice,
                parallel_tool_calls=start.parallel_tool_calls,
                answer_schema_json=start.answer_schema_json,
                stop=tuple(start.stop),
                images=tuple(start.images),
                temperature=start.temperature,
                seed=start.seed,
                uses_server_tools=start.uses_server_tools,
                echo_json=start.echo_json,
            ),
            budget=start.budget,
            may_use_server_tools=start.uses_server_tools and _may_use_tools(caller),
            provided=provided,
        )

    async def _read(self, caller: Principal, turn_id: str) -> tuple[Execution, TurnProgress]:
        with naming_turns(turn_id):
            log = await self._desk.read(caller, turn_id)
        return log.execution, fold(logged.event for logged in log.events)

    async def _find_session(self, tenant: str, session_id: str) -> Session | None:
        if not session_id:
            return None
        try:
            return await self._store.sessions.find(tenant, session_id)
        except SessionNotFoundError:
            return None

    async def _is_exit(self, caller: Principal, source: TurnStart | TurnReentry | Cursor, event: StreamEvent) -> bool:
        """Return whether a stream ends at this hand-off; one that was attached passes those that were settled."""
        if not isinstance(source, Cursor):
            return True
        execution = await self._store.find(caller.tenant, event.execution_id)
        return execution.last_sequence == event.sequence


def _view_at_exit(run: Run) -> TurnView | None:
    """Return the turn of a run that has left this process, or raise its error; None if the log goes on elsewhere."""
    work = run.work
    if not isinstance(work, TurnWork) or run.log.error is not None or not run.log.is_committed:
        return None
    result = work.progress.result
    if result is not None and result.error is not None:
        raise build_failure(result.error, result.execution_id, error=run.error)
    if result is None and work.progress.handoff is None:
        return None
    return TurnView(turn=view_turn(run.log.execution, work.progress), result=result)


async def _read_earlier(store: ExecutionStore, execution: Execution, start: TurnStarted) -> Sequence[EndedTurn]:
    """Return the turns before this one in its session; a caller waits less long for the store than a run does."""
    try:
        async with asyncio.timeout(_HISTORY_WAITS_S):
            return (await read_history(store, execution, start)).turns
    except TimeoutError:
        raise StoreUnavailableError("The store did not return the earlier turns in time", remedy="Retry.") from None


def _may_use_tools(caller: Principal) -> bool:
    """Return whether the turns of the caller may use tools of the server."""
    return bool(caller.permissions & {TOOLS, ADMIN})


def find_beginning(start: TurnStart) -> str:
    """Return what prompts of the turn show first: its session, or the conversation that its caller sends again."""
    said = next((message.text for message in start.history if message.text), "")
    return start.session_id or said or start.message
