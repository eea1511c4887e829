"""A follower's view of one execution: the log from any place on, then what is added, until it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reasond_server.errors import InternalError, error_of
from reasond_server.executions.mailbox import Mailbox
from reasond_server.types import Heartbeat, Result, StreamEvent

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from reasond_server.executions.run import Run
    from reasond_server.executions.runner import Clock, Runner
    from reasond_server.executions.store import ExecutionStore
    from reasond_server.types import Event, Execution, TextDelta


class Follower:
    """Reads events back from the log, so that a lost or slow stream never loses one.

    Deltas come at most once per `flush_interval_s` seconds, joined; events of the log are never held back.
    """

    def __init__(
        self,
        *,
        store: ExecutionStore,
        runner: Runner,
        clock: Clock,
        heartbeat_interval_s: float,
        flush_interval_s: float = 0.03,
    ) -> None:
        self._store = store
        self._runner = runner
        self._clock = clock
        self._heartbeat_interval_s = heartbeat_interval_s
        self._flush_interval_s = flush_interval_s

    async def follow(
        self, execution: Execution, *, after: int, include_deltas: bool, keep_running: bool = False
    ) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events above `after`; closing the iterator leaves the run to its other followers.

        Raises:
            ReasondError: the execution failed; raised after its last event, with `execution_id` set.
            ExecutionNotFoundError: it was deleted meanwhile.
        """
        mailbox = Mailbox(wants_deltas=include_deltas, flush_interval_s=self._flush_interval_s)
        run = self._runner.live(execution.execution_id)
        if run is not None:
            run.attach(mailbox, keep_running=keep_running)
        try:
            while True:
                item, is_silent = await self._next(mailbox)
                if is_silent or item is not None:
                    event = self._unlogged(execution, after, item)
                    if event is not None:
                        yield event
                    continue
                # Asked before the read: a run that ends in between has written its last event by then, and the
                # next round reads it. Asked afterwards, that event could be missed.
                is_live = self._runner.live(execution.execution_id) is not None
                for logged in await self._store.read(execution.tenant, execution.execution_id, after=after):
                    after = logged.sequence
                    yield StreamEvent(
                        execution_id=execution.execution_id,
                        sequence=logged.sequence,
                        create_time=logged.create_time,
                        event=logged.event,
                    )
                if not is_live:
                    _raise_failure(await self._result(execution, after), run)
                    return
        finally:
            mailbox.close()
            if run is not None:
                run.detach(mailbox)

    async def _next(self, mailbox: Mailbox) -> tuple[TextDelta | None, bool]:
        """Return the next item of the mailbox, and whether instead nothing came for long."""
        try:
            return await mailbox.take(timeout_s=self._heartbeat_interval_s), False
        except TimeoutError:
            return None, True

    async def _result(self, execution: Execution, last: int) -> Result:
        """Return the last event of a log that no longer grows."""
        events = await self._store.read(execution.tenant, execution.execution_id, after=last - 1)
        if not events or not isinstance(events[-1].event, Result):
            raise InternalError("the execution ended without a result")
        return events[-1].event

    def _unlogged(self, execution: Execution, after: int, delta: TextDelta | None) -> StreamEvent | None:
        """Return a heartbeat or a delta; None for a delta whose step was sent already.

        Event 1 is the start and event i + 2 is step i, so `after` - 1 steps were sent.
        """
        if delta is not None and delta.iteration_index < after - 1:
            return None
        event: Event | TextDelta | Heartbeat = Heartbeat() if delta is None else delta
        return StreamEvent(
            execution_id=execution.execution_id, sequence=after, create_time=self._clock.now(), event=event
        )


def _raise_failure(result: Result, run: Run | None) -> None:
    """Raise what went wrong, if anything did: the error itself while it is at hand, else what was kept of it."""
    if result.error is not None:
        kept = error_of(result.error.reason, result.error.message)
        error = kept if run is None or run.error is None else run.error
        error.execution_id = result.execution_id
        raise error
