"""What follows once a response was sent to its end: the same request is a new one, and what is not kept is forgotten.

Nobody tells a server what its client has received: the end of a stream may be on its way when the connection breaks. So
this takes effect only after some seconds, in which the client still gets what it began.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from reasond_server.errors.base import ReasondError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reasond_server.eventlog.store import ExecutionStore
    from reasond_server.executions.desk import ExecutionDesk
    from reasond_server.types import Principal

ATTACH: Final = "attach-"
"""The beginning of request ids that are made here; those of clients stand for their execution for good."""
_MOST_S: Final = 5.0


class Deliveries:
    """Settles deliveries `within_s` seconds after they were noted, 5 at most; `aclose` settles the rest."""

    def __init__(self, *, store: ExecutionStore, desk: ExecutionDesk, within_s: float) -> None:
        self._store = store
        self._desk = desk
        self._within_s = min(within_s, _MOST_S)
        self._waiting: dict[str, tuple[asyncio.TimerHandle, Principal, bool, bool]] = {}
        self._tasks = set[asyncio.Task[None]]()

    async def note(self, caller: Principal, response: Mapping[str, Any], request_id: str) -> None:
        """Note that `response` was sent whole; one that waits for results of tools is kept."""
        execution_id: str = response["reasond"]["execution_id"]
        is_waiting = response["output"][-1:] and response["output"][-1]["type"] == "function_call"
        ends_claim, is_forgotten = request_id.startswith(ATTACH), not response["store"] and not is_waiting
        if not ends_claim and not is_forgotten:
            return
        if self._within_s <= 0:
            await self._settle(execution_id, caller, ends_claim=ends_claim, is_forgotten=is_forgotten)
        elif execution_id not in self._waiting:
            timer = asyncio.get_running_loop().call_later(self._within_s, self._begin, execution_id)
            self._waiting[execution_id] = (timer, caller, ends_claim, is_forgotten)

    def _begin(self, execution_id: str) -> None:
        _, caller, ends_claim, is_forgotten = self._waiting.pop(execution_id)
        settle = self._settle(execution_id, caller, ends_claim=ends_claim, is_forgotten=is_forgotten)
        task = asyncio.create_task(settle, name=f"delivery of {execution_id}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _settle(self, execution_id: str, caller: Principal, *, ends_claim: bool, is_forgotten: bool) -> None:
        with suppress(ReasondError):
            if ends_claim:
                await self._store.release(caller.tenant, execution_id)
            if is_forgotten:
                await self._desk.delete(caller, execution_id)

    async def aclose(self) -> None:
        """Settle everything now."""
        for execution_id, (timer, *_) in [*self._waiting.items()]:
            timer.cancel()
            self._begin(execution_id)
        await asyncio.gather(*self._tasks)
