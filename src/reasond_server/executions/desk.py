"""Reads, follows, observes, lists, cancels and deletes the executions of a caller, for every kind of work."""

from __future__ import annotations

import asyncio
import base64
import binascii
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic_core import from_json, to_json

from reasond_server.access import audit
from reasond_server.errors.base import InternalError, ReasondError
from reasond_server.errors.executions import CursorExpiredError, ExecutionNotFoundError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.eventlog.contract import build_not_found_error
from reasond_server.eventlog.store import ExecutionFilter, ExecutionStore
from reasond_server.runs.recorded_calls import read_calls
from reasond_server.telemetry.scope import note_execution
from reasond_server.types import Execution, ExecutionState, FinishReason, LoggedEvent, Principal, StreamEvent
from reasond_server.types.values import value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
    from datetime import datetime

    from reasond_server.runs.followers import Follower
    from reasond_server.runs.run import Run
    from reasond_server.runs.runner import Runner
    from reasond_server.types.executions import ModelCall

_DEFAULT_PAGE = 50
_LARGEST_PAGE = 100
_STOP_ELSEWHERE_S = 10.0
_LOOK_AGAIN_S = 1.0
MAX_SEARCH_CHARACTERS = 200
_PAGE_OF_CALLS = 20
_CHARACTERS_OF_PAGE = 262_144
_MOST_LOOKED_AT = 1_000


@value
class ExecutionLog:
    """An execution and the events of its log so far; `plan` is what it works on, empty where it was not read."""

    execution: Execution
    events: Sequence[LoggedEvent]
    plan: str = ""


async def read_log(store: ExecutionStore, tenant: str, execution_id: str, *, until: int) -> ExecutionLog | None:
    """Return the log of an execution with its plan, up to the event `until`; None if it is gone.

    Raises:
        ReasondError: the store cannot be read.
    """
    try:
        execution = await store.find(tenant, execution_id)
        events = [each for each in await store.read(tenant, execution_id) if each.sequence <= until]
        kept = await store.read_checkpoint(tenant, execution_id, with_records=False)
    except (ExecutionNotFoundError, CursorExpiredError):
        return None
    return ExecutionLog(execution=execution, events=events, plan=kept.plan)


@value
class Observation:
    """An execution as it was found, and its events from there on; they raise as `Follower.follow`."""

    execution: Execution
    events: AsyncGenerator[StreamEvent, None]


@value
class ExecutionPage:
    """One page of executions, newest first; the token is empty on the last page."""

    executions: Sequence[Execution]
    next_page_token: str


@value
class CallPage:
    """One page of model calls, oldest first; the token is empty on the last page."""

    calls: Sequence[ModelCall]
    next_page_token: str


@dataclass(eq=False, kw_only=True)
class ExecutionDesk:
    """Reads, follows, lists, cancels and deletes executions for a verified caller, who sees only its own ones.

    It finds executions of one `kind` of work; an empty `kind` stands for every kind. It also lists, cancels and deletes
    executions of `or_kind`; their own service reads and follows them. The permissions to read and to list
    apply to all of them. `require_use` refuses a caller who may not follow, cancel or delete an execution.

    The audit log records what is found and refused.
    """

    store: ExecutionStore
    runner: Runner
    follower: Follower
    kind: str
    require_use: Callable[[Principal, Execution], None]
    or_kind: str = ""

    async def read(self, caller: Principal, execution_id: str, *, with_plan: bool = False) -> ExecutionLog:
        """Return the execution with its log so far. Raises as `resume`, but does not check its use."""
        execution = await self._find(caller, execution_id)
        events = await self._read_events(execution)
        if not with_plan:
            return ExecutionLog(execution=execution, events=events)
        kept = await self.store.read_checkpoint(caller.tenant, execution_id, with_records=False)
        return ExecutionLog(execution=execution, events=events, plan=kept.plan)

    async def read_end(self, caller: Principal, execution_id: str) -> ExecutionLog:
        """Return the execution with the last event of its log, or with none before that. Raises as `resume`."""
        execution = await self._find(caller, execution_id, is_used=True)
        has_ended = execution.state.has_ended
        return ExecutionLog(execution=execution, events=await self._read_last(execution) if has_ended else ())

    async def resume(
        self,
        caller: Principal,
        execution_id: str,
        *,
        after_sequence: int,
        include_deltas: bool = False,
        keep_running: bool = False,
        may_return: bool = False,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events of an execution above `after_sequence`, including future ones.

        With `may_return` the execution waits for who leaves this stream. With `keep_running` it continues when this
        stream is cut, in any process that runs it or takes it over. This takes effect before the first event and cannot
        be revoked.

        Raises:
            ExecutionNotFoundError: this caller has no such execution.
            PermissionMissingError: the caller may not use it.
            CursorExpiredError: its log is no longer kept.
            InvalidRequestError: `after_sequence` is beyond the end of the log.
        """
        execution = await self._find(caller, execution_id, is_used=True)
        run = self.runner.find_live(execution_id)
        link_rpc_to(run)
        _require_place(execution, after_sequence, field="resume.after_sequence")
        if may_return and run is not None:
            run.subscribers.expect_return()
        if keep_running:
            await self.keep(execution)
        events = self.follower.follow(execution, after=after_sequence, include_deltas=include_deltas)
        async with aclosing(events):
            async for event in events:
                yield event

    async def observe(
        self, caller: Principal, execution_id: str, *, after_sequence: int, include_deltas: bool = False
    ) -> Observation:
        """Return an execution and its events as `resume` yields them.

        Who reads them neither keeps the execution running nor cancels it by leaving. Raises as `resume`.
        """
        execution = await self._find(caller, execution_id, is_used=True)
        link_rpc_to(self.runner.find_live(execution_id))
        _require_place(execution, after_sequence, field="after_sequence")
        return Observation(
            execution=execution,
            events=self.follower.follow(
                execution, after=after_sequence, include_deltas=include_deltas, is_observer=True
            ),
        )

    async def follow(self, execution: Execution, *, include_deltas: bool) -> AsyncGenerator[StreamEvent, None]:
        """Yield all events of an execution that was just started or found for this caller; otherwise as `resume`."""
        async with aclosing(self.follower.follow(execution, after=0, include_deltas=include_deltas)) as events:
            async for event in events:
                yield event

    async def cancel(self, caller: Principal, execution_id: str) -> Execution:
        """Stop the execution, wait until its log has ended, and return it. Raises as `resume`.

        An execution in another process, or in none, is returned in its present state after 10 seconds at most.
        """
        return await self._stop(await self._find(caller, execution_id, is_used=True, may_be_other=True))

    async def list(
        self,
        caller: Principal,
        *,
        strategy: str = "",
        finish_reason: FinishReason | None = None,
        state: ExecutionState | None = None,
        create_time_after: datetime | None = None,
        create_time_before: datetime | None = None,
        text: str = "",
        session_id: str = "",
        page_size: int = 0,
        page_token: str = "",
    ) -> ExecutionPage:
        """Return a page of the caller's executions, newest first.

        They began at `create_time_after` or later, and before `create_time_before`. With a `text` they have it in their
        id, question, outcome, client or model, whatever its case; then a page ends after 1,000 executions that were
        looked at, and may be short.

        Raises:
            InvalidRequestError: `page_size` is negative, `page_token` is not from the page before, no time is
                between the two, or `text` is too long.
        """
        _require_page_size(page_size)
        if create_time_after and create_time_before and create_time_after >= create_time_before:
            text = f"must be later than create_time_after, {create_time_after.isoformat()}"
            raise InvalidRequestError.at("create_time_before", text)
        if len(text) > MAX_SEARCH_CHARACTERS:
            raise InvalidRequestError.at(
                "text", f"must have at most {MAX_SEARCH_CHARACTERS} characters, got {len(text)}"
            )
        size = min(page_size or _DEFAULT_PAGE, _LARGEST_PAGE)
        wanted = ExecutionFilter(
            strategy=strategy,
            finish_reason=finish_reason,
            state=state,
            created_since=create_time_after,
            created_until=create_time_before,
            kind=self.kind,
            or_kind=self.or_kind,
            session_id=session_id,
        )
        filters = [*_list_filters(wanted), *([f"text {text}"] if text else [])]
        before = read_page_token(page_token, filters) if page_token else None
        await self.runner.runs.wait_for_commits(caller.tenant, within_s=_LOOK_AGAIN_S)
        found, last = await self._page(caller.tenant, wanted, text.strip().casefold(), size=size, before=before)
        token = "" if last is None else write_page_token(last.create_time, last.execution_id, filters)
        return ExecutionPage(executions=found, next_page_token=token)

    async def _page(
        self, tenant: str, wanted: ExecutionFilter, text: str, *, size: int, before: tuple[float, str] | None
    ) -> tuple[Sequence[Execution], Execution | None]:
        """Return up to `size` executions that have the `text`, and the last one looked at if there may be more."""
        chunk = _LARGEST_PAGE if text else size
        found: list[Execution] = []
        seen = 0
        while True:
            rows = await self.store.page(tenant, wanted, size=chunk + 1, before=before)
            for each in rows[:chunk]:
                seen += 1
                if _has_text(each, text):
                    found.append(each)
                if len(found) == size or seen == _MOST_LOOKED_AT:
                    return found, None if each is rows[-1] else each
            if len(rows) <= chunk:
                return found, None
            before = rows[chunk - 1].create_time.timestamp(), rows[chunk - 1].execution_id

    async def list_calls(
        self, caller: Principal, execution_id: str, *, page_size: int = 0, page_token: str = ""
    ) -> CallPage:
        """Return a page of the model calls of an execution, oldest first, if they are kept.

        A page ends early once its texts have 262,144 characters. Raises as `resume`, and InvalidRequestError: a page
        size or token is not valid.
        """
        _require_page_size(page_size)
        await self._find(caller, execution_id, is_used=True)
        filters = [f"calls of {execution_id}"]
        last = read_page_token(page_token, filters)[1] if page_token else ""
        kept = await self.store.read_checkpoint(caller.tenant, execution_id)
        page: list[ModelCall] = []
        room, token = _CHARACTERS_OF_PAGE, ""
        for call in read_calls(kept.records, after=int(last) if last.isdecimal() else 0):
            if room <= 0 or len(page) == min(page_size or _PAGE_OF_CALLS, _LARGEST_PAGE):
                token = write_page_token(page[-1].create_time, str(page[-1].number), filters)
                break
            page.append(call)
            room -= call.characters
        return CallPage(calls=page, next_page_token=token)

    async def delete(self, caller: Principal, execution_id: str) -> None:
        """Stop the execution if it runs, and delete it. Raises as `resume`."""
        await self._stop(await self._find(caller, execution_id, is_used=True, may_be_other=True))
        await self.store.delete(caller.tenant, execution_id)

    async def _find(
        self, caller: Principal, execution_id: str, *, is_used: bool = False, may_be_other: bool = False
    ) -> Execution:
        """Return the caller's execution of this kind, or with `may_be_other` of the other one.

        With `is_used`, refuse it if the caller may not use it.
        """
        await self.runner.runs.wait_for_commits(caller.tenant, within_s=_LOOK_AGAIN_S)
        try:
            execution = await self.store.find(caller.tenant, execution_id)
            self._require_access(caller, execution, is_used=is_used, or_kind=self.or_kind if may_be_other else "")
        except ReasondError as error:
            audit.refuse(error, execution_id)
            raise
        note_concerned(execution_id)
        return execution

    def _require_access(self, caller: Principal, execution: Execution, *, is_used: bool, or_kind: str) -> None:
        if self.kind and execution.kind not in {self.kind, or_kind}:
            raise build_not_found_error(execution.execution_id)
        if is_used:
            self.require_use(caller, execution)

    async def _read_events(self, execution: Execution) -> Sequence[LoggedEvent]:
        """Return the events of the log; of a damaged log, the events before the damage and the last one."""
        tenant, name = execution.tenant, execution.execution_id
        try:
            events = await self.store.read(tenant, name)
        except InternalError:
            events = ()
        if not execution.state.has_ended or (events and events[-1].sequence >= execution.last_sequence):
            return events
        return [*events, *await self._read_last(execution)]

    async def _read_last(self, execution: Execution) -> Sequence[LoggedEvent]:
        return await self.store.read(execution.tenant, execution.execution_id, after=execution.last_sequence - 1)

    async def start_once(
        self,
        caller: Principal,
        request_id: str,
        digest: str,
        *,
        start: Callable[[], Awaitable[Execution]],
        keep_running: bool = False,
    ) -> Execution:
        """Return the execution that the request id stands for, or the one that `start` starts; keep it if asked to.

        Raises:
            RequestIdReusedError: the request id stands for another request.
            OverloadedError: another call with the request id takes too long.
        """
        ids = self.runner.request_ids
        async with ids.take_turn(caller.tenant, request_id):
            execution = await ids.find_known(caller.tenant, request_id, digest)
            if execution is None:
                execution = await start()
            else:
                # Another caller of the same tenant may have started it.
                self.require_use(caller, execution)
                link_rpc_to(self.runner.find_live(execution.execution_id))
                note_concerned(execution.execution_id)
            if keep_running:
                await self.keep(execution)
            return execution

    async def keep(self, execution: Execution) -> None:
        """Let the execution run without subscribers; nothing to do if its request asked for that already.

        Raises:
            StoreUnavailableError: the store cannot be reached.
        """
        run = self.runner.find_live(execution.execution_id)
        if run is not None:
            if run.work.request.keep_running:
                return
            run.subscribers.keep()
        if not execution.state.has_ended:
            await self.store.request_keep(execution.tenant, execution.execution_id)

    async def _stop(self, execution: Execution) -> Execution:
        """Stop an execution in any process, and return it in its new state."""
        run = self.runner.find_live(execution.execution_id)
        if run is not None:
            run.cancel()
            await run.wait_for_end()
            # The run may have suspended itself before the cancellation.
            execution = await self.store.find(execution.tenant, execution.execution_id)
        if execution.state is ExecutionState.SUSPENDED:
            await self.runner.stop_suspended(execution.tenant, execution.execution_id)
            # Another process may have woken it before.
            execution, run = await self.store.find(execution.tenant, execution.execution_id), None
        if execution.state is ExecutionState.RUNNING and run is None:
            await self._stop_elsewhere(execution)
        return await self.store.find(execution.tenant, execution.execution_id)

    async def _stop_elsewhere(self, execution: Execution) -> None:
        """Ask the process that runs the execution to stop it, and wait for the end, 10 seconds at most."""
        moved = asyncio.Event()
        tenant, execution_id = execution.tenant, execution.execution_id
        with self.store.watch(execution_id, lambda _: moved.set()), suppress(TimeoutError):
            async with asyncio.timeout(_STOP_ELSEWHERE_S):
                await self.store.request_cancel(tenant, execution_id)
                while not (await self.store.find(tenant, execution_id)).state.has_ended:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_LOOK_AGAIN_S):
                            await moved.wait()
                    moved.clear()


def _require_place(execution: Execution, after_sequence: int, *, field: str) -> None:
    if not 0 <= after_sequence <= execution.last_sequence:
        raise InvalidRequestError.at(field, f"must be between 0 and {execution.last_sequence}, got {after_sequence}")


def _require_page_size(page_size: int) -> None:
    if page_size < 0:
        raise InvalidRequestError.at("page_size", f"must be at least 0, got {page_size}")


def link_rpc_to(run: Run | None) -> None:
    """Link the span of the current RPC to `run`, if the run is active in this process."""
    if run is not None:
        run.trace.link_rpc()


def note_concerned(execution_id: str) -> None:
    """Add the execution's id to the audit log and the access log of the current call."""
    audit.concern(execution_id)
    note_execution(execution_id)


def write_page_token(time: datetime, name: str, filters: Sequence[str | None] = ()) -> str:
    """Return the token of the page that begins after the item with this time and name, for these `filters`."""
    return base64.urlsafe_b64encode(to_json([time.timestamp(), name, *filters])).decode()


def read_page_token(token: str, filters: Sequence[str | None] = ()) -> tuple[float, str]:
    """Return the time in seconds and the name that `token` stands for.

    Raises:
        InvalidRequestError: this server did not make the token, or it was made for other filters.
    """
    try:
        match from_json(base64.b64decode(token, altchars=b"-_", validate=True)):
            case [float(time), str(name), *given] if given == [*filters]:
                return time, name
    except (ValueError, binascii.Error):
        pass
    raise InvalidRequestError.at("page_token", "must be the next_page_token of the page before, with the same filters")


def _has_text(execution: Execution, text: str) -> bool:
    """Return whether a line of the execution has the casefolded `text`."""
    lines = (execution.execution_id, execution.question, execution.outcome, execution.client, execution.model)
    return any(text in line.casefold() for line in lines)


def _list_filters(wanted: ExecutionFilter) -> Sequence[str | None]:
    """Return the filters that are set, as a token has them."""
    named = {
        "strategy": wanted.strategy,
        "finish_reason": wanted.finish_reason,
        "session": wanted.session_id,
        "state": wanted.state,
        "since": wanted.created_since,
        "until": wanted.created_until,
    }
    return [f"{name} {value}" for name, value in named.items() if value]
