"""Request ids: the same id with the same request means the same execution, unless that was cancelled."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeGuard

from reasond_server.errors.base import show
from reasond_server.errors.executions import CursorExpiredError, ExecutionNotFoundError
from reasond_server.errors.limits import OverloadedError
from reasond_server.errors.request import RequestIdReusedError
from reasond_server.runs.making import Predecessor
from reasond_server.runs.plan import PlanError, decode_plan
from reasond_server.runs.recorded_calls import ReplayError
from reasond_server.runs.run_journal import sum_spent
from reasond_server.types import ExecutionState

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from reasond_server.eventlog.store import Claim, ExecutionStore
    from reasond_server.runs.run import Run
    from reasond_server.types import Execution

_SHORTEST_TURN_S = 5.0


@dataclass(slots=True)
class _Turn:
    """The turn among concurrent calls with the same request id, and how many wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    wanted: int = 0

    async def come(self, *, within_s: float) -> None:
        """Wait for the turn."""
        try:
            async with asyncio.timeout(within_s):
                await self.lock.acquire()
        except TimeoutError:
            raise OverloadedError("The same request is being started and waits for a place", remedy="Retry.") from None


def is_standing(held: Execution | None) -> TypeGuard[Execution]:
    """Return whether an execution can answer a request: it exists and was not cancelled."""
    return held is not None and held.state is not ExecutionState.CANCELLED


class RequestIds:
    """Finds the execution of a request id (AIP-155); `runs` are the active runs of this process."""

    def __init__(self, *, store: ExecutionStore, runs: Mapping[str, Run], queue_timeout_s: float) -> None:
        self._store = store
        self._runs = runs
        self._queue_timeout_s = queue_timeout_s
        self._turns: dict[tuple[str, str], _Turn] = {}

    @asynccontextmanager
    async def take_turn(self, tenant: str, request_id: str) -> AsyncGenerator[None, None]:
        """Admit calls with the same request id one at a time, so that only the first of them needs a place.

        Raises:
            OverloadedError: the call before takes too long.
        """
        if not request_id:
            yield
            return
        turn = self._turns.setdefault((tenant, request_id), _Turn())
        turn.wanted += 1
        try:
            await turn.come(within_s=max(self._queue_timeout_s, _SHORTEST_TURN_S))
            try:
                yield
            finally:
                turn.lock.release()
        finally:
            turn.wanted -= 1
            if not turn.wanted:
                del self._turns[tenant, request_id]

    async def find_known(self, tenant: str, request_id: str, digest: str) -> Execution | None:
        """Return the execution that a request id stands for; None if it has to be started.

        Raises:
            RequestIdReusedError: the request id stands for another request.
        """
        claim = await self._store.find_claim(tenant, request_id) if request_id else None
        if claim is None:
            return None
        held = await self.find_holder(claim, tenant, request_id=request_id, digest=digest)
        return held if is_standing(held) else None

    async def find_holder(self, claim: Claim, tenant: str, *, request_id: str, digest: str) -> Execution | None:
        """Return the execution that has the request id; if it is being cancelled, wait for that. None if it is deleted.

        Raises:
            RequestIdReusedError: it was started for another request.
        """
        if claim.digest != digest:
            raise RequestIdReusedError(
                f"The request id {show(request_id)} was used before with another request",
                remedy="Send the same request again, or a new request id.",
                metadata={"execution_id": claim.execution_id},
            )
        going = self._runs.get(claim.execution_id)
        if going is not None and (going.is_cancelled or going.error is not None):
            # Its caller has left, or it failed without cost: the retry wants a new execution, not the end of this one.
            await going.wait_for_end()
        try:
            return await self._store.find(tenant, claim.execution_id)
        except (ExecutionNotFoundError, CursorExpiredError):
            return None

    async def find_predecessor(self, held: Execution | None) -> Predecessor | None:
        """Return what a new execution inherits from the cancelled one that has its request id."""
        if held is None:
            return None
        kept = await self._store.read_checkpoint(held.tenant, held.execution_id)
        try:
            plan = decode_plan(kept.plan)
            sum_spent(kept.records)
        except (PlanError, ReplayError):
            plan = None
        return Predecessor(execution=held, plan=plan, records=kept.records)
