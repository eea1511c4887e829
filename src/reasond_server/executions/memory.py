"""The store that lives and dies with the process: bounded in number, bytes and time."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reasond_server.errors import (
    CursorExpiredError,
    ExecutionNotFoundError,
    InternalError,
    StoreFullError,
    shown,
)
from reasond_server.executions.store import Claim
from reasond_server.types import ExecutionState, Iteration, Result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

    from reasond_server.executions.store import ExecutionFilter
    from reasond_server.types import Execution, LoggedEvent

# What an event takes beside its texts, roughly, as a few nested dataclasses with their fields.
_BYTES_PER_EVENT = 512
_LARGEST_LOG = 64 * 1024 * 1024
_FORGOTTEN_KEPT = 10_000


@dataclass(slots=True)
class _Log:
    """One execution with its events and their approximate size in bytes."""

    execution: Execution
    digest: str
    events: list[LoggedEvent] = field(default_factory=list)
    size: int = 0


class MemoryExecutionStore:
    """Keeps at most `max_executions` and about `max_bytes`; forgets what ended longest ago first.

    What ended is kept until its `expire_time`; a running execution is never forgotten, but its log grows to
    `max_bytes` or 64 MiB at most, whichever is more. The ids of the last
    10,000 forgotten ones are remembered, so that a late reader is told that it came too late.
    """

    def __init__(self, *, max_executions: int, max_bytes: int, now: Callable[[], datetime]) -> None:
        self._max_executions = max_executions
        self._max_bytes = max_bytes
        self._largest_log = max(max_bytes, _LARGEST_LOG)
        self._now = now
        self._logs: OrderedDict[str, _Log] = OrderedDict()
        self._claims: dict[tuple[str, str], Claim] = {}
        self._forgotten: OrderedDict[str, str] = OrderedDict()
        self._size = 0

    async def create(self, execution: Execution, *, digest: str) -> Claim:
        """See ExecutionStore."""
        self._forget_expired()
        if execution.request_id:
            held = self._claims.get((execution.tenant, execution.request_id))
            if held is not None:
                return held
        self._make_room(for_new=1)
        claim = Claim(execution_id=execution.execution_id, digest=digest)
        self._logs[execution.execution_id] = _Log(execution=execution, digest=digest)
        if execution.request_id:
            self._claims[execution.tenant, execution.request_id] = claim
        return claim

    async def release(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        self._release(self._log(tenant, execution_id).execution)

    async def append(self, execution: Execution, event: LoggedEvent) -> None:
        """See ExecutionStore."""
        log = self._log(execution.tenant, execution.execution_id)
        if event.sequence != len(log.events) + 1 or (log.events and isinstance(log.events[-1].event, Result)):
            raise InternalError(f"event {event.sequence} does not continue the log of {execution.execution_id}")
        size = _size_of(event)
        if log.size + size > self._largest_log and not isinstance(event.event, Result):
            raise StoreFullError(
                f"The execution wrote more than the {self._largest_log} bytes that one log may hold",
                remedy="What it wrote until then is kept. Ask for less.",
                metadata={"max_log_bytes": str(self._largest_log)},
            )
        log.events.append(event)
        log.execution = execution
        log.size += size
        self._size += size
        if execution.state is not ExecutionState.RUNNING:
            # What ended stands in the order in which it ended, which is the order of being forgotten.
            self._logs.move_to_end(execution.execution_id)
        if self._size > self._max_bytes:
            self._make_room(for_new=0, sparing=execution.execution_id)

    async def find(self, tenant: str, execution_id: str) -> Execution:
        """See ExecutionStore."""
        self._forget_expired()
        return self._log(tenant, execution_id).execution

    async def read(self, tenant: str, execution_id: str, *, after: int = 0) -> Sequence[LoggedEvent]:
        """See ExecutionStore."""
        return self._log(tenant, execution_id).events[after:]

    async def page(
        self, tenant: str, wanted: ExecutionFilter, *, size: int, before: tuple[float, str] | None
    ) -> Sequence[Execution]:
        """See ExecutionStore."""
        self._forget_expired()
        found = [
            log.execution
            for log in self._logs.values()
            if log.execution.tenant == tenant
            and (not wanted.strategy or log.execution.strategy == wanted.strategy)
            and (wanted.finish_reason is None or log.execution.finish_reason is wanted.finish_reason)
            and (before is None or _place(log.execution) < before)
        ]
        return sorted(found, key=_place, reverse=True)[:size]

    async def delete(self, tenant: str, execution_id: str) -> None:
        """See ExecutionStore."""
        self._log(tenant, execution_id)
        self._remove(execution_id)

    def _log(self, tenant: str, execution_id: str) -> _Log:
        log = self._logs.get(execution_id)
        if log is not None and log.execution.tenant == tenant:
            return log
        if self._forgotten.get(execution_id) == tenant:
            raise CursorExpiredError(
                f"Execution {shown(execution_id)} is no longer kept",
                remedy="Start the task again, or raise [store] retention_s, max_executions or max_bytes.",
            )
        raise ExecutionNotFoundError(
            f"Execution not found: {shown(execution_id)}",
            remedy="Use an execution_id that this server returned to the same tenant.",
        )

    def _remove(self, execution_id: str) -> _Log:
        log = self._logs.pop(execution_id)
        self._size -= log.size
        self._release(log.execution)
        return log

    def _release(self, execution: Execution) -> None:
        """Give the request id of `execution` up, unless another execution has it by now."""
        key = (execution.tenant, execution.request_id)
        claim = self._claims.get(key)
        if claim is not None and claim.execution_id == execution.execution_id:
            del self._claims[key]

    def _forget(self, execution_id: str) -> None:
        self._forgotten[execution_id] = self._remove(execution_id).execution.tenant
        if len(self._forgotten) > _FORGOTTEN_KEPT:
            self._forgotten.popitem(last=False)

    def _forget_expired(self) -> None:
        now = self._now()
        expired = [
            execution_id
            for execution_id, log in self._logs.items()
            if log.execution.expire_time is not None and log.execution.expire_time <= now
        ]
        for execution_id in expired:
            self._forget(execution_id)

    def _make_room(self, *, for_new: int, sparing: str = "") -> None:
        """Forget what ended longest ago until the bounds hold with `for_new` executions more."""
        while len(self._logs) + for_new > self._max_executions or self._size > self._max_bytes:
            ended = (
                execution_id
                for execution_id, log in self._logs.items()
                if log.execution.state is not ExecutionState.RUNNING and execution_id != sparing
            )
            oldest = next(ended, None)
            if oldest is None and for_new:
                raise StoreFullError(
                    f"The store holds {len(self._logs)} running executions and has no room for another",
                    remedy="Wait until one has ended, or raise [store] max_executions or max_bytes.",
                    metadata={"max_executions": str(self._max_executions), "max_bytes": str(self._max_bytes)},
                )
            if oldest is None:
                return
            self._forget(oldest)


def _place(execution: Execution) -> tuple[float, str]:
    """Return where an execution stands in the order of creation."""
    return execution.create_time.timestamp(), execution.execution_id


def _size_of(event: LoggedEvent) -> int:
    """Return the approximate size of an event in memory, in bytes."""
    body = event.event
    if isinstance(body, Iteration):
        return _BYTES_PER_EVENT + _texts(body.detail)
    return _BYTES_PER_EVENT + (len(body.answer) * 4 if isinstance(body, Result) else 0)


def _texts(detail: object) -> int:
    """Return an upper bound of the bytes of all texts below `detail`."""
    if isinstance(detail, str):
        return len(detail) * 4
    if isinstance(detail, dict):
        return sum(_texts(key) + _texts(value) for key, value in detail.items())
    if isinstance(detail, list | tuple):
        return sum(map(_texts, detail))
    slots = getattr(type(detail), "__dataclass_fields__", ())
    return sum(_texts(getattr(detail, name)) for name in slots)
