"""Runs that calls of tools start, and come back for.

A call that holds its connection for too long is answered with a state, with which the client sends it again. The state
names the execution and a nonce that the store keeps as its request id: one that was changed, or comes from another
caller or with other arguments, finds nothing, at any process over the store.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from reasond_server.access.permissions import require_permission
from reasond_server.errors.executions import ExecutionNotFoundError
from reasond_server.errors.request import InvalidRequestError
from reasond_server.http_api.params import Params, read_params
from reasond_server.protocols.mcp.mcp_arguments import ReasonArguments, RepairArguments

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from datetime import datetime

    from reasond_server.access.permissions import Operation
    from reasond_server.executions.desk import ExecutionDesk
    from reasond_server.reasoning.service import ReasoningService
    from reasond_server.repair.service.repair_service import RepairService
    from reasond_server.types import Cursor, Principal, StreamEvent

STATE_FIELD: Final = "requestState"
HOLD_S: Final = 25.0
"""How long a call is held before its client has to send it again: proxies cut connections after 30 or 60 seconds."""
# Clients send a call ten times at most, so that the last ones are held to their end.
_HOLDS: Final = 8
_STATE: Final = re.compile(r"([A-Za-z0-9_-]{1,128})\.(mcp-[A-Za-z0-9_-]{32})", re.ASCII)


class RunParams(Params):
    """A call of a tool: its `arguments`, and for `reason_<strategy>` the strategy.

    `request_id` is that of a new execution; empty for a client that cannot come back. With `is_kept` the call ends once
    its execution has begun. `state` is what a client sends again.
    """

    arguments: dict[str, Any]
    strategy: str = ""
    request_id: str = ""
    is_kept: bool = False
    state: str = ""


def write_state(execution_id: str, request_id: str) -> str:
    """Return the state by which a call finds its execution again."""
    return f"{execution_id}.{request_id}"


def read_request_id(state: str) -> str:
    """Return the request id in a state; empty in what is none."""
    match = _STATE.fullmatch(state)
    return "" if match is None else match[2]


@dataclass(eq=False, kw_only=True)
class ToolRuns:
    """Starts the runs of tools for verified callers, and follows them for 25 seconds.

    `desk` finds executions of every kind; `now` is the time by which they were created. What goes on without its
    client is started only for who may read it later, by `read_operation`.
    """

    reasoning: ReasoningService
    repairs: RepairService | None
    desk: ExecutionDesk
    read_operation: Operation
    now: Callable[[], datetime]

    def reason(self, caller: Principal, params: RunParams, _cursor: Cursor | None) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events of a task, up to its end or to the moment when its client has to come back.

        Raises:
            ReasondError: the call is refused, or the run failed.
        """
        wanted = read_params(ReasonArguments, params.arguments)
        start = partial(self.reasoning.stream, caller, wanted.task(params.strategy))
        return self._follow(caller, params, start, is_kept=params.is_kept or wanted.background)

    def repair(self, caller: Principal, params: RunParams, _cursor: Cursor | None) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events of a repair, as `reason` does. Raises as `reason`."""
        assert self.repairs is not None  # noqa: S101 - else no tool has this method
        wanted = read_params(RepairArguments, params.arguments)
        start = partial(self.repairs.stream, caller, wanted.repair())
        return self._follow(caller, params, start, is_kept=params.is_kept or wanted.background)

    async def _follow(
        self,
        caller: Principal,
        params: RunParams,
        start: Callable[..., AsyncGenerator[StreamEvent, None]],
        *,
        is_kept: bool,
    ) -> AsyncGenerator[StreamEvent, None]:
        request_id, left_s = params.request_id, HOLD_S if params.request_id else None
        if params.state:
            request_id, age_s = await self._recall(caller, params.state)
            left_s = None if age_s > _HOLDS * HOLD_S else HOLD_S
        if is_kept:
            require_permission(caller, self.read_operation)
        events = start(request_id=request_id, keep_running=is_kept)
        async with aclosing(events), aclosing(_within(events, left_s, self._expect_return)) as held:
            async for event in held:
                yield event
                if is_kept:
                    return

    def _expect_return(self, execution_id: str) -> None:
        run = self.desk.runner.find_live(execution_id)
        if run is not None:
            run.subscribers.expect_return()

    async def _recall(self, caller: Principal, state: str) -> tuple[str, float]:
        """Return the request id of the execution that `state` names, and how many seconds ago it began.

        Raises:
            InvalidRequestError: nobody here gave this caller that state.
        """
        match = _STATE.fullmatch(state)
        with suppress(ExecutionNotFoundError):
            if match is not None:
                observed = await self.desk.observe(caller, match[1], after_sequence=0)
                execution = observed.execution
                if hmac.compare_digest(execution.request_id, match[2]):
                    return match[2], (self.now() - execution.create_time).total_seconds()
        description = "is none that this server gave for this call; send the call again without it"
        raise InvalidRequestError.at(STATE_FIELD, description)


async def _within(
    events: AsyncGenerator[StreamEvent, None], left_s: float | None, on_leaving: Callable[[str], None]
) -> AsyncGenerator[StreamEvent, None]:
    """Yield `events` up to their end, or for `left_s` seconds; then `on_leaving` is told whose events they are."""
    loop = asyncio.get_running_loop()
    until = None if left_s is None else loop.time() + left_s
    execution_id = ""
    while True:
        following = asyncio.ensure_future(anext(events))
        try:
            timeout_s = None if until is None or not execution_id else max(0.0, until - loop.time())
            done, _ = await asyncio.wait({following}, timeout=timeout_s)
            if not done:
                on_leaving(execution_id)
                return
            event = following.result()
        except StopAsyncIteration:
            return
        finally:
            if following.cancel():
                with suppress(asyncio.CancelledError, StopAsyncIteration):
                    await following
        execution_id = event.execution_id
        yield event
