"""Requests that are sent again: what they attach to, and until when.

Nobody tells a server what its client has received: the end of a stream may be on its way when the connection breaks. So
a request that was answered whole is a new one only some seconds later, and until then gets what it began.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from reasond_server.errors.base import ReasondError

if TYPE_CHECKING:
    from reasond_server.eventlog.store import ExecutionStore
    from reasond_server.executions.desk import ExecutionDesk
    from reasond_server.types import Principal

_ATTACH: Final = "attach-"
"""The beginning of request ids that are made here; those of clients stand for their execution for good."""
_MOST_S: Final = 5.0


class Attachments:
    """Settles what was sent whole `within_s` seconds after the last time, 5 at most; `aclose` settles the rest."""

    def __init__(self, *, store: ExecutionStore, desk: ExecutionDesk, within_s: float) -> None:
        self._store = store
        self._desk = desk
        self._within_s = min(within_s, _MOST_S)
        self._waiting: dict[str, tuple[asyncio.TimerHandle, Principal, bool, bool]] = {}
        self._tasks = set[asyncio.Task[None]]()

    async def find_request_id(self, caller: Principal, key: str, *, is_first: bool) -> str:
        """Return the request id by which a request with this digest finds its execution; empty: it begins another.

        One that its client sends for the first time begins another where an equal one is under way.
        """
        if not key:
            return ""
        digest = hashlib.sha256(f"{key}\0{caller.subject}".encode()).hexdigest()
        name = f"{_ATTACH}{digest}"
        is_taken = is_first and await self._store.find_claim(caller.tenant, name) is not None
        return "" if is_taken else name

    async def settle(self, caller: Principal, execution_id: str, request_id: str, *, is_forgotten: bool) -> None:
        """Note that an execution was answered whole; what `is_forgotten` is deleted then."""
        ends_claim = request_id.startswith(_ATTACH)
        if not ends_claim and not is_forgotten:
            return
        if self._within_s <= 0:
            await self._settle(execution_id, caller, ends_claim=ends_claim, is_forgotten=is_forgotten)
        else:
            # Who asks again had not received it.
            if execution_id in self._waiting:
                self._waiting[execution_id][0].cancel()
            timer = asyncio.get_running_loop().call_later(self._within_s, self._begin, execution_id)
            self._waiting[execution_id] = (timer, caller, ends_claim, is_forgotten)

    def _begin(self, execution_id: str) -> None:
        _, caller, ends_claim, is_forgotten = self._waiting.pop(execution_id)
        settle = self._settle(execution_id, caller, ends_claim=ends_claim, is_forgotten=is_forgotten)
        task = asyncio.create_task(settle, name=f"settling {execution_id}")
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
