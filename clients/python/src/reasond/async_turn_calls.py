"""The turn service for the asynchronous client."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from reasond import requests
from reasond.client_tools import (
    Toolset,
    build_decision,
    build_failure,
    build_result,
    describe_exception,
    fit_message,
    replace_large,
)
from reasond.errors import ReasondError
from reasond.progress import is_cut, policy_of
from reasond.v1 import turn_service_pb2 as turns_pb
from reasond.v1.execution_pb2 import Budget, ExecutionCursor, ExecutionState
from reasond.v1.turns_pb2 import (
    CALL_KIND_APPROVE,
    CALL_KIND_RESOLVE,
    TURN_STATE_AWAITING_CLIENT,
    TURN_STATE_RUNNING,
    ContextBlock,
    PendingCall,
    Session,
    Turn,
    TurnReentry,
    TurnResult,
    TurnStart,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from reasond.async_calls import AsyncLink
    from reasond.client_tools import Approve, ClientFunction, Resolve
    from reasond.progress import ReconnectPolicy
    from reasond.requests import HistoryEntry
    from reasond.v1.strategies_pb2 import ToolResult


class AsyncTurnCalls:
    """Turns and sessions; a part of `AsyncClient`. A turn goes on if this client leaves, until it needs a client."""

    _link: AsyncLink

    async def turn(
        self,
        text: str,
        *,
        session: str = "",
        tools: Iterable[ClientFunction[..., Any]] = (),
        approve: Approve | None = None,
        resolve: Resolve | None = None,
        material: str = "",
        mode: str | None = None,
        context: Iterable[ContextBlock] = (),
        budget: Budget | None = None,
        if_revision: int | None = None,
        system: str = "",
        history: Iterable[HistoryEntry] = (),
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> TurnResult:
        """Run a turn to its end: whenever it waits for this client, run `tools` and ask `approve`, and go on.

        A program that dies after a tool's effect and before its result has arrived runs the tool again when it
        resumes; the tool's `idempotency_key` is the same then.

        Args:
            text: What the user says, 1-100,000 characters.
            session: The conversation; the first turn of a session makes it. Empty: no memory.
            tools: Functions with `@client_tool` that the model may call.
            approve: Asked before a call of a server tool that needs it; it returns True, False or the reason against.
            resolve: Asked what came of a server's call whose outcome nobody knows; it returns the call's result.
            material: A long text that `text` is about, at most 2,000,000 bytes of UTF-8.
            mode: The mode to begin in; None is that of the session, or the server's default.
            context: Further texts for the prompts.
            budget: Limits on the spending of the turn.
            if_revision: If set, the session must have this revision; 0: it must not exist yet.
            system: Instructions for every model call, at most 100,000 characters.
            history: What was said before, the oldest first, where no session keeps it.
            request_id: Idempotency key: the same id with the same request finds the same turn; random if None.
            timeout_s: Deadline in seconds of each leg, from one exit of the turn to the next. The turn itself goes on.

        Raises:
            TurnAwaitsError: the turn waits for something that is not given here; `resume_turn` goes on with it.
        """
        toolset = Toolset(tools, approve=approve, resolve=resolve)
        start = requests.turn_start(
            text,
            session=session,
            client_tools=toolset.describe(),
            material=material,
            mode=mode,
            context=context,
            budget=budget,
            if_revision=if_revision,
            system=system,
            history=history,
        )
        leg = await self.run_turn(start, request_id=request_id, timeout_s=timeout_s)
        return await self._drive(leg.turn, leg.result, toolset, timeout_s)

    async def resume_turn(
        self,
        turn_id: str,
        *,
        tools: Iterable[ClientFunction[..., Any]] = (),
        approve: Approve | None = None,
        resolve: Resolve | None = None,
        timeout_s: float | None = None,
    ) -> TurnResult:
        """Go on with a turn to its end, from any process; arguments mean what they mean for `turn`.

        A turn that has ended is not run again: its result is returned, also if it failed.
        """
        toolset = Toolset(tools, approve=approve, resolve=resolve)
        found = await self.get_turn(turn_id, timeout_s=timeout_s)
        if found.turn.state == TURN_STATE_RUNNING:
            cursor = ExecutionCursor(execution_id=turn_id, after_sequence=found.turn.last_sequence)
            async for _ in self.execute_turn(cursor, timeout_s=timeout_s):
                pass
            found = await self.get_turn(turn_id, timeout_s=timeout_s)
        return await self._drive(found.turn, found.result, toolset, timeout_s)

    def turn_events(
        self,
        text: str,
        *,
        session: str = "",
        tools: Iterable[ClientFunction[..., Any]] = (),
        material: str = "",
        mode: str | None = None,
        context: Iterable[ContextBlock] = (),
        budget: Budget | None = None,
        if_revision: int | None = None,
        system: str = "",
        history: Iterable[HistoryEntry] = (),
        request_id: str | None = None,
        include_deltas: bool = False,
        follow: bool = False,
        reconnect: bool | ReconnectPolicy = True,
        timeout_s: float | None = None,
    ) -> AsyncIterator[turns_pb.ExecuteTurnResponse]:
        """Start a turn and iterate over its events to its next exit; arguments mean what they mean for `turn`.

        Args:
            text: What the user says.
            session: See `turn`.
            tools: Functions that are offered; this method runs none of them.
            material: See `turn`.
            mode: See `turn`.
            context: See `turn`.
            budget: See `turn`.
            if_revision: See `turn`.
            system: See `turn`.
            history: See `turn`.
            request_id: See `turn`.
            include_deltas: Also yield text as the model writes it.
            follow: Go on after a hand-off, until the turn has ended.
            reconnect: Attach again if the connection breaks. Logged events are never repeated, deltas may be.
            timeout_s: Deadline of the stream in seconds.
        """
        start = requests.turn_start(
            text,
            session=session,
            client_tools=Toolset(tools, approve=None, resolve=None).describe(),
            material=material,
            mode=mode,
            context=context,
            budget=budget,
            if_revision=if_revision,
            system=system,
            history=history,
        )
        return self.execute_turn(
            start,
            request_id=request_id,
            include_deltas=include_deltas,
            follow=follow,
            reconnect=reconnect,
            timeout_s=timeout_s,
        )

    async def execute_turn(
        self,
        source: TurnStart | TurnReentry | ExecutionCursor,
        *,
        request_id: str | None = None,
        include_deltas: bool = False,
        follow: bool = False,
        reconnect: bool | ReconnectPolicy = True,
        timeout_s: float | None = None,
    ) -> AsyncIterator[turns_pb.ExecuteTurnResponse]:
        """Start a turn, go on with one, or attach to one, and iterate over its events to the next exit.

        Args:
            source: The start, the re-entry, or the place in a turn's log to follow it from.
            request_id: See `turn`; only for a start.
            include_deltas: See `turn_events`.
            follow: See `turn_events`.
            reconnect: See `turn_events`.
            timeout_s: Deadline of each connection in seconds.
        """
        request = requests.execute_turn_request(
            source, request_id=request_id, include_deltas=include_deltas, follow=follow
        )
        policy, failures = policy_of(reconnect), 0
        while True:
            has_exited = False
            try:
                async with aclosing(self._link.open_turn(request, timeout_s)) as events:
                    async for event in events:
                        failures = 0
                        has_exited = event.HasField("completed") or (event.HasField("handed_off") and not follow)
                        request.attach.execution_id = event.turn_id
                        request.attach.after_sequence = max(event.sequence, request.attach.after_sequence)
                        request.request_id = ""
                        yield event
            except ReasondError as error:
                is_lost = is_cut(error)
                if not (has_exited and is_lost):
                    if policy is None or not is_lost or failures >= policy.max_attempts:
                        raise
                    await self._link.pause(policy.wait_s(failures, error.retry_after))
                    failures += 1
                    continue
            return

    async def run_turn(
        self, source: TurnStart | TurnReentry, *, request_id: str | None = None, timeout_s: float | None = None
    ) -> turns_pb.RunTurnResponse:
        """Start a turn or go on with one, and return it at its next exit: its end, or a hand-off to this client.

        Args:
            source: The start, or the re-entry with results and decisions for all pending calls.
            request_id: See `turn`; only for a start.
            timeout_s: Deadline of this call in seconds; the turn itself goes on.
        """
        request = requests.run_turn_request(source, request_id=request_id)
        return await self._link.answer(self._link.turns.RunTurn, request, timeout_s)

    async def settle_turn(
        self,
        turn: Turn,
        *,
        tools: Iterable[ClientFunction[..., Any]] = (),
        approve: Approve | None = None,
        resolve: Resolve | None = None,
    ) -> TurnReentry:
        """Settle all pending calls of a turn that waits, in their order, and return what goes on with it.

        `turn` does this by itself; arguments mean what they mean there. Nothing is sent.

        Raises:
            TurnAwaitsError: something that the hand-off needs is not given; no tool has run then.
        """
        return await self._settle(turn, Toolset(tools, approve=approve, resolve=resolve))

    async def get_turn(self, turn_id: str, *, timeout_s: float | None = None) -> turns_pb.GetTurnResponse:
        """Return a turn with its ledger, its hand-off while it waits, and its result after its end."""
        request = turns_pb.GetTurnRequest(turn_id=turn_id)
        return await self._link.answer(self._link.turns.GetTurn, request, timeout_s)

    async def list_turns(
        self,
        *,
        session: str = "",
        state: ExecutionState.ValueType = ExecutionState.EXECUTION_STATE_UNSPECIFIED,
        page_size: int = 0,
        timeout_s: float | None = None,
    ) -> AsyncIterator[Turn]:
        """Iterate over the caller's turns, newest first; pages are fetched as needed."""
        request = turns_pb.ListTurnsRequest(session_id=session, state=state, page_size=page_size)
        while True:
            page = await self._link.answer(self._link.turns.ListTurns, request, timeout_s)
            for turn in page.turns:
                yield turn
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def cancel_turn(self, turn_id: str, *, timeout_s: float | None = None) -> Turn:
        """Cancel a turn that runs or waits, and return it."""
        request = turns_pb.CancelTurnRequest(turn_id=turn_id)
        return (await self._link.answer(self._link.turns.CancelTurn, request, timeout_s)).turn

    async def delete_turn(self, turn_id: str, *, timeout_s: float | None = None) -> None:
        """Delete a turn and its content; one that runs or waits is cancelled first."""
        request = turns_pb.DeleteTurnRequest(turn_id=turn_id)
        await self._link.answer(self._link.turns.DeleteTurn, request, timeout_s)

    async def read_tool_result(
        self,
        turn_id: str,
        call_id: str,
        *,
        offset: int = 0,
        limit: int = 0,
        json_pointer: str | None = None,
        contains: str | None = None,
        max_bytes: int = 0,
        timeout_s: float | None = None,
    ) -> turns_pb.ReadToolResultResponse:
        """Return the whole result of a tool call, or the part that one of the arguments names.

        Args:
            turn_id: The turn.
            call_id: The call.
            offset: The character to begin at.
            limit: Most characters; 0 means as many as `max_bytes` allows.
            json_pointer: Only the part at this JSON pointer (RFC 6901).
            contains: Only the places that contain this text, whatever its case.
            max_bytes: Most bytes of text, at most 3 MiB; 0 means that.
            timeout_s: Deadline of this call in seconds.
        """
        request = requests.read_result_request(
            turn_id,
            call_id,
            offset=offset,
            limit=limit,
            json_pointer=json_pointer,
            contains=contains,
            max_bytes=max_bytes,
        )
        return await self._link.answer(self._link.turns.ReadToolResult, request, timeout_s)

    async def get_session(self, session_id: str, *, timeout_s: float | None = None) -> Session:
        """Return a session."""
        request = turns_pb.GetSessionRequest(session_id=session_id)
        return (await self._link.answer(self._link.turns.GetSession, request, timeout_s)).session

    async def list_sessions(self, *, page_size: int = 0, timeout_s: float | None = None) -> AsyncIterator[Session]:
        """Iterate over the caller's sessions, last changed first; pages are fetched as needed."""
        request = turns_pb.ListSessionsRequest(page_size=page_size)
        while True:
            page = await self._link.answer(self._link.turns.ListSessions, request, timeout_s)
            for session in page.sessions:
                yield session
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    async def delete_session(self, session_id: str, *, timeout_s: float | None = None) -> None:
        """Delete a session and all its turns; refused while one of them runs or waits."""
        request = turns_pb.DeleteSessionRequest(session_id=session_id)
        await self._link.answer(self._link.turns.DeleteSession, request, timeout_s)

    async def _drive(self, turn: Turn, result: TurnResult, toolset: Toolset, timeout_s: float | None) -> TurnResult:
        while turn.state == TURN_STATE_AWAITING_CLIENT:
            reentry = await self._settle(turn, toolset)
            leg = await self._reenter(reentry, timeout_s)
            turn, result = leg.turn, leg.result
        return result

    async def _reenter(self, reentry: TurnReentry, timeout_s: float | None) -> turns_pb.RunTurnResponse:
        """Send a re-entry; a result that the server finds too large becomes an error, so that no tool runs twice."""
        try:
            return await self.run_turn(reentry, timeout_s=timeout_s)
        except ReasondError as error:
            if not replace_large(reentry, [one.field for one in error.violations if " bytes" in one.description]):
                raise
        return await self.run_turn(reentry, timeout_s=timeout_s)

    async def _settle(self, turn: Turn, toolset: Toolset) -> TurnReentry:
        toolset.require_all(turn)
        reentry = TurnReentry(turn_id=turn.turn_id, etag=turn.handoff.etag)
        for pending in turn.handoff.calls:
            if pending.kind == CALL_KIND_APPROVE:
                reentry.decisions.append(build_decision(pending, await self._link.ask(toolset.approve, pending)))
            else:
                reentry.results.append(await self._run_tool(pending, toolset))
        fit_message(reentry)
        return reentry

    async def _run_tool(self, pending: PendingCall, toolset: Toolset) -> ToolResult:
        try:
            if pending.kind == CALL_KIND_RESOLVE:
                return build_result(pending, await self._link.ask(toolset.resolve, pending))
            tool = toolset.tools[pending.call.tool]
            return build_result(pending, await self._link.run_tool(tool, tool.read_arguments(pending)))
        except Exception as error:  # noqa: BLE001 - whatever a tool raises is its result
            return build_failure(pending, describe_exception(error))
